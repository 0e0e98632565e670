//! Accesses to PM, flushes and fences.

use std::mem::offset_of;

use pmvet_events::shm::{RingControl, STRIPES};
use pmvet_events::stage::Stop;
use pmvet_events::wire;

use super::paths::resolve;
use crate::context::Frame;
use crate::sync::{Held, Lock};
use crate::thread::{Thread, mode, slot};
use crate::{schedule, slow};

stubs! {
    /// The part of a store to PM before the target's instruction: thread fields `site`, `kind`, `size` and `todo` and the
    /// address slot are set.
    before, slow::before:
        save!(),
        address_in_pm!(),
        context_and_room!(),
        write_place!(),
        "
        mov [rsi + 16], rax
        mov dl, [rcx + {todo}]
        mov [rcx + {mode}], dl
        mov rdx, [rcx + {shared_flag}]
        cmp dword ptr [rdx], 0
        jne 3f
    2:
        mov rdx, [rcx + {control}]
        mov [rdx + {in_flight}], rax
        cmp byte ptr [rcx + {todo}], {rmw}
        je 5f
    4:
        ",
        restore_and_return!(),
        "
    3:
        // A store to two lines needs two locks.
        and eax, 63
        movzx edx, byte ptr [rcx + {size}]
        add eax, edx
        cmp eax, 64
        ja 9f
        add rdi, [rcx + {pm_key}]
        shr rdi, 6
        and edi, {stripes_mask}
        shl edi, 6
        add rdi, [rcx + {stripes}]
        xor eax, eax
        mov edx, [rcx + {os_thread}]
        lock cmpxchg [rdi], edx
        jne 9f
        mov [rcx + {lock}], rdi
        mov rax, [rsi + 16]
        jmp 2b
        // A read-modify-write: its old value, with what is above it in its word, if it is within one.
    5:
        mov edx, eax
        and edx, 7
        add dl, [rcx + {size}]
        cmp edx, 8
        ja 6f
        movzx edx, byte ptr [rcx + {size}]
        cmp edx, 8
        jne 7f
        mov rax, [rax]
        mov [rsi + 24], rax
        jmp 4b
    7:
        cmp edx, 4
        jne 6f
        mov eax, [rax]
        mov [rsi + 24], rax
        jmp 4b
        // Any other size is done in Rust, which finds the lock taken.
    6:
        mov byte ptr [rcx + {mode}], {rare_rmw}
        ",
        the_rest_in_rust!();

    /// The part after the target's instruction.
    after, slow::after:
        save!(),
        "
        mov rsi, [rcx + {cursor}]
        movzx eax, byte ptr [rcx + {mode}]
        movzx edx, byte ptr [rcx + {size}]
        cmp eax, {store}
        je 32f
        cmp eax, {stream}
        jne 4f
        mov rdi, [rcx + {slots}]
        add rdi, {value_slot}
        jmp 31f
        // Only a prepared record has an address; elsewhere the cursor may be at the end of the ring.
    32:
        mov rdi, [rsi + 16]
    31:
        cmp edx, 8
        jne 2f
        mov rax, [rdi]
        mov [rsi + 24], rax
        mov edx, 32
    30:
        ",
        number!(),
        publish!(),
        "
        mov qword ptr [rdi + {in_flight}], 0
        mov rdi, [rcx + {lock}]
        test rdi, rdi
        jz 3f
        mov dword ptr [rdi], 0
        mov qword ptr [rcx + {lock}], 0
    3:
        mov byte ptr [rcx + {mode}], 0
        ",
        restore_and_return!(),
        // Stores of other sizes: whole words, then bytes.
        "
    2:
        cmp edx, 4
        jne 7f
        mov eax, [rdi]
        mov [rsi + 24], rax
        mov edx, 32
        jmp 30b
    7:
        prefetchw [rsi + 768 + 64]
        push rdx
        add rsi, 24
    21:
        cmp edx, 8
        jb 22f
        mov rax, [rdi]
        mov [rsi], rax
        add rdi, 8
        add rsi, 8
        sub edx, 8
        jmp 21b
    22:
        test edx, edx
        jz 23f
        mov al, [rdi]
        mov [rsi], al
        inc rdi
        inc rsi
        dec edx
        jmp 22b
    23:
        pop rdx
        add edx, 31
        and edx, 0xf8
        mov rsi, [rcx + {cursor}]
        jmp 30b
    4:
        cmp eax, {rmw}
        je 33f
        test eax, eax
        jnz 9f
        ",
        restore_and_return!(),
        // The new value of a read-modify-write of 8 or 4 bytes, and whether a comparison succeeded.
        "
    33:
        mov rdi, [rsi + 16]
        cmp edx, 8
        jne 34f
        mov rax, [rdi]
        jmp 35f
    34:
        mov eax, [rdi]
    35:
        mov [rsi + 32], rax
        mov edx, 40
        cmp byte ptr [rcx + {kind}], {rmw_failed}
        jne 30b
        test byte ptr [rcx + {flags} + 1], 0x40
        jz 30b
        mov byte ptr [rcx + {kind}], {rmw_done}
        jmp 30b
        ",
        the_rest_in_rust!();

    /// The store that has just been reported is one to stop after, perhaps.
    stored, schedule::stored:
        save!(),
        the_rest_in_rust!();

    /// An access to PM is followed by a random delay.
    delayed, schedule::delayed:
        save!(),
        the_rest_in_rust!();

    /// The instruction that comes next is one to stop before, perhaps.
    reached, schedule::reached:
        save!(),
        the_rest_in_rust!();

    /// A load that was done, from the address in the slot.
    load, slow::load:
        save!(),
        address_in_pm!(),
        context_and_room!(),
        write_place!(),
        "
        mov rdi, [rcx + {next_seq}]
        mov rdi, [rdi]
        cmp rdi, [rcx + {seq_after}]
        jne 2f
        // Nothing was numbered since the last record of this ring: the short form.
        movzx edx, byte ptr [rcx + {size}]
        shl edx, 8
        or edx, {near_load}
        shl rdx, 48
        or rax, rdx
        mov [rsi], rax
        mov edx, 16
    3:
        ",
        publish!(),
        restore_and_return!(),
        "
    2:
        mov [rcx + {seq_after}], rdi
        mov [rsi + 16], rax
        dec rdi
        movzx edx, word ptr [rcx + {kind}]
        shl rdx, 48
        or rdi, rdx
        mov [rsi], rdi
        mov edx, 24
        jmp 3b
        ",
        the_rest_in_rust!();

    /// A flush of the line at the address in the slot.
    flush, slow::flush:
        save!(),
        address_in_pm!(),
        context_and_room!(),
        write_place!(),
        "
        mov [rsi + 16], rax
        ",
        number!(),
        "mov edx, 24",
        publish!(),
        restore_and_return!(),
        the_rest_in_rust!();

    /// A fence.
    fence, slow::fence:
        save!(),
        context_and_room!(),
        write_place!(),
        "
        mov qword ptr [rsi + 16], 0
        ",
        number!(),
        "mov edx, 24",
        publish!(),
        restore_and_return!(),
        the_rest_in_rust!();
}
