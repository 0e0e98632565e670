//! From the shadow stack to a node of the calling-context tree.

use std::arch::naked_asm;
use std::mem::offset_of;

use crate::context::{self, Frame, Path};
use crate::thread::Thread;

/// Gives the frame at rsi, which is alive, its node, and all frames below it that have none yet. Returns the node in edx, or
/// 0 if the thread's cache of the calling-context tree does not have it, or a frame below is dead.
#[unsafe(naked)]
pub(super) extern "C" fn resolve() {
    naked_asm!(
        "
        push rax
        push rdi
        push r8
        push r9
        xor edi, edi
        // Down to the first frame that has a node.
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
        // And up again. The four places where a step may be remembered are next to each other.
    3:
        add si, {frame}
        mov r8d, [rsi + {call}]
        mov r9d, r8d
        shl r9d, 6
        imul eax, edx, {spread}
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
        ",
        sp = const offset_of!(Frame, sp),
        call = const offset_of!(Frame, call),
        node = const offset_of!(Frame, node),
        frame = const size_of::<Frame>(),
        parent = const offset_of!(Path, parent),
        path_call = const offset_of!(Path, call),
        path_node = const offset_of!(Path, node),
        path = const size_of::<Path>(),
        spread = const context::SPREAD as i32,
        paths = const offset_of!(Thread, paths),
        mask = const offset_of!(Thread, path_mask),
    )
}
