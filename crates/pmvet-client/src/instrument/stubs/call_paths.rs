//! From the shadow stack to a node of the calling-context tree.

use std::arch::naked_asm;
use std::mem::offset_of;

use crate::record::shadow_stack::{self, PathStep, ShadowFrame};
use crate::record::stable_ids;
use crate::record::thread::Thread;

/// Goes from the frame at rsi down to the first one that has a node, then up again. Label 3 is reached once for each frame
/// that has none, with the frame in rsi, its call in r8d and its parent's node in edx.
macro_rules! each_new_frame {
    () => {
        "
        push rax
        push rdi
        push r8
        push r9
        xor edi, edi
    2:
        inc edi
        mov rax, [rsi + {sp}]
        sub si, {frame}
        cmp rax, [rsi + {sp}]
        jae 8f
        mov edx, [rsi + {node}]
        test edx, edx
        jnz 3f
        cmp edi, 64
        jb 2b
        jmp 8f
    3:
        add si, {frame}
        mov r8d, [rsi + {call}]
        "
    };
}

/// The frame's node is in edx. Ends with that of the last one, or with 0 from label 8.
macro_rules! next_frame {
    () => {
        "
        mov [rsi + {node}], edx
        dec edi
        jnz 3b
    7:
        pop r9
        pop r8
        pop rdi
        pop rax
        ret
    8:
        xor edx, edx
        jmp 7b
        "
    };
}

/// Gives the frame at rsi, which is alive, its node, and all frames below it that have none yet. Returns the node in edx, or
/// 0 if the thread's cache of the calling-context tree does not have it, or a frame below is dead.
#[unsafe(naked)]
pub(super) extern "C" fn resolve() {
    naked_asm!(
        each_new_frame!(),
        // The four places where a step may be remembered are next to each other.
        "
        mov r9d, r8d
        shl r9d, 6
        imul eax, edx, {hash_factor}
        xor eax, r9d
        and eax, [rcx + {mask}]
        add rax, [rcx + {paths}]
        ",
        "
        cmp edx, [rax + {parent}]
        jne 41f
        cmp r8d, [rax + {path_call}]
        je 5f
    41:
        add rax, {path}
        cmp edx, [rax + {parent}]
        jne 42f
        cmp r8d, [rax + {path_call}]
        je 5f
    42:
        add rax, {path}
        cmp edx, [rax + {parent}]
        jne 43f
        cmp r8d, [rax + {path_call}]
        je 5f
    43:
        add rax, {path}
        cmp edx, [rax + {parent}]
        jne 8f
        cmp r8d, [rax + {path_call}]
        jne 8f
    5:
        mov edx, [rax + {path_node}]
        ",
        next_frame!(),
        sp = const offset_of!(ShadowFrame, sp),
        call = const offset_of!(ShadowFrame, call),
        node = const offset_of!(ShadowFrame, node),
        frame = const size_of::<ShadowFrame>(),
        parent = const offset_of!(PathStep, parent),
        path_call = const offset_of!(PathStep, call),
        path_node = const offset_of!(PathStep, node),
        path = const size_of::<PathStep>(),
        hash_factor = const shadow_stack::HASH_FACTOR as i32,
        paths = const offset_of!(Thread, paths),
        mask = const offset_of!(Thread, path_mask),
    )
}

/// The same for coverage runs, in which a node's number is computed from its parent's and the call: see
/// [`stable_ids::context_id`].
#[unsafe(naked)]
pub(super) extern "C" fn resolve_stable() {
    naked_asm!(
        each_new_frame!(),
        "
        mov r9d, edx
        shr r9d, 16
        test r8d, {library}
        jz 4f
        movzx edx, dx
        jmp 5f
    4:
        mov edx, r9d
        xor r9d, r9d
    5:
        shl r9, 32
        or r9, r8
        mov rax, {first}
        imul r9, rax
        mov r8, r9
        shr r8, 29
        xor r9, r8
        mov rax, {second}
        imul r9, rax
        shr r9, 32
        or r9d, 1
        shl r9d, 16
        or edx, r9d
        ",
        next_frame!(),
        sp = const offset_of!(ShadowFrame, sp),
        call = const offset_of!(ShadowFrame, call),
        node = const offset_of!(ShadowFrame, node),
        frame = const size_of::<ShadowFrame>(),
        library = const stable_ids::LIBRARY_BIT,
        first = const stable_ids::MIX_FACTORS[0],
        second = const stable_ids::MIX_FACTORS[1],
    )
}
