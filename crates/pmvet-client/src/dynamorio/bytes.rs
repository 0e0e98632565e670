//! Copying, filling and comparing bytes, in place of the C library's functions.
//!
//! A stub that calls Rust saves only the low halves of the target's vector registers: baseline x86-64 code changes nothing
//! else. The C library's versions of these functions do, because they use whatever the processor has. Apart from system
//! calls a stub uses nothing else of the C library; pmvet's test `client_code` checks all code of the client.

use std::arch::global_asm;

global_asm!(
    "
    .macro function name
    .globl \\name
    .hidden \\name
    .type \\name, @function
    .p2align 4
    \\name:
    .endm

    function memcpy
    function memmove
        mov rax, rdi
        mov rcx, rdi
        sub rcx, rsi
        cmp rcx, rdx
        jb 5f
        cmp rdx, 512
        jae 4f
    1:
        sub rdx, 8
        jb 2f
        mov rcx, [rsi]
        mov [rdi], rcx
        add rsi, 8
        add rdi, 8
        jmp 1b
    2:
        add rdx, 8
        jz 3f
        mov cl, [rsi]
        mov [rdi], cl
        inc rsi
        inc rdi
        sub rdx, 9
        jmp 2b
    3:
        ret
    4:
        mov rcx, rdx
        rep movsb
        ret
        // The target begins within the source: from its end.
    5:
        sub rdx, 8
        jb 6f
        mov rcx, [rsi + rdx]
        mov [rdi + rdx], rcx
        jmp 5b
    6:
        add rdx, 8
    7:
        sub rdx, 1
        jb 3b
        mov cl, [rsi + rdx]
        mov [rdi + rdx], cl
        jmp 7b

    function memset
        mov r8, rdi
        mov eax, esi
        mov rcx, rdx
        rep stosb
        mov rax, r8
        ret

    function bcmp
    function memcmp
        xor ecx, ecx
        // A line at a time: whole pages are compared.
    1:
        lea r8, [rcx + 64]
        cmp r8, rdx
        ja 2f
        movdqu xmm0, [rdi + rcx]
        movdqu xmm1, [rdi + rcx + 16]
        movdqu xmm2, [rdi + rcx + 32]
        movdqu xmm3, [rdi + rcx + 48]
        movdqu xmm4, [rsi + rcx]
        movdqu xmm5, [rsi + rcx + 16]
        movdqu xmm6, [rsi + rcx + 32]
        movdqu xmm7, [rsi + rcx + 48]
        pcmpeqb xmm0, xmm4
        pcmpeqb xmm1, xmm5
        pcmpeqb xmm2, xmm6
        pcmpeqb xmm3, xmm7
        pand xmm0, xmm1
        pand xmm2, xmm3
        pand xmm0, xmm2
        pmovmskb eax, xmm0
        cmp eax, 0xffff
        jne 2f
        mov rcx, r8
        jmp 1b
        // What is left, or where the difference is.
    2:
        cmp rcx, rdx
        je 3f
        movzx eax, byte ptr [rdi + rcx]
        movzx r8d, byte ptr [rsi + rcx]
        inc rcx
        sub eax, r8d
        je 2b
        ret
    3:
        xor eax, eax
        ret

    function strlen
        mov rax, -1
    1:
        inc rax
        cmp byte ptr [rdi + rax], 0
        jne 1b
        ret
    "
);
