//! Hooked functions, above all those that take and release a lock.

use std::mem::offset_of;

use pmvet_events::shm::{RingControl, STRIPES};
use pmvet_events::stage::CrashTrigger;
use pmvet_events::wire;

use crate::record::hooked_calls;
use crate::record::lock_state::{AwaitedLock, HeldLock, HeldSpinLock, MAX_HELD_SPIN_LOCKS};
use crate::record::shadow_stack::ShadowFrame;
use crate::record::spinning::Spin;
use crate::record::thread::{Thread, mode, slot};

stubs! {
    /// A hooked function was entered. The address slot has the hook's number.
    function_entered, hooked_calls::function_entered:
        save!(),
        the_rest_in_rust!();

    /// A function that takes the lock at rdi was entered. If no other hooked function is under way, its return is awaited
    /// in [`Thread::awaited_lock`].
    lock_entered, hooked_calls::function_entered:
        save!(),
        "
        mov rsi, [rcx + {slots}]
        cmp qword ptr [rsi + {return_slot}], 0
        jne 9f
        ",
        context_and_room!(),
        "
        mov [rcx + {awaited_place} + 4], edx
        mov edx, [rcx + {site}]
        mov [rcx + {awaited_place}], edx
        movzx edx, word ptr [rcx + {kind}]
        mov [rcx + {awaited_kind}], edx
        mov rdx, [rcx + {rdi}]
        mov [rcx + {awaited_object}], rdx
        mov rdx, [rcx + {rsp}]
        mov [rcx + {awaited_sp}], rdx
        neg rdx
        mov rsi, [rcx + {slots}]
        mov [rsi + {return_slot}], rdx
        ",
        restore_and_return!(),
        the_rest_in_rust!();

    /// A function that releases the lock at rdi was entered, usually the lock that was taken last.
    unlock_entered, hooked_calls::function_entered:
        save!(),
        "
        mov rsi, [rcx + {slots}]
        cmp qword ptr [rsi + {return_slot}], 0
        jne 9f
        mov rdx, [rcx + {held_count}]
        sub rdx, 1
        jb 9f
        shl rdx, 4
        add rdx, [rcx + {held}]
        cmp rdi, [rdx + {held_object}]
        jne 9f
        mov rax, rdx
        ",
        context_and_room!(),
        write_place!(),
        "
        mov rdi, [rax + {held_object}]
        mov [rsi + 16], rdi
        mov al, [rax + {held_how}]
        mov [rcx + {size}], al
        dec qword ptr [rcx + {held_count}]
        ",
        number!(),
        "mov edx, 24",
        publish!(),
        restore_and_return!(),
        the_rest_in_rust!();

    /// A hooked function is about to return.
    function_returns, hooked_calls::function_returns:
        save!(),
        "
        mov rdx, [rcx + {awaited_sp}]
        cmp rdx, [rcx + {rsp}]
        jne 9f
        cmp dword ptr [rcx + {rax}], 0
        jne 9f
        mov rdx, [rcx + {held_count}]
        cmp rdx, [rcx + {held_room}]
        jae 9f
        mov rsi, [rcx + {cursor}]
        cmp rsi, [rcx + {limit}]
        ja 9f
        inc qword ptr [rcx + {held_count}]
        shl rdx, 4
        add rdx, [rcx + {held}]
        mov rdi, [rcx + {awaited_object}]
        mov [rdx + {held_object}], rdi
        mov [rsi + 16], rdi
        mov eax, [rcx + {awaited_kind}]
        mov [rcx + {kind}], ax
        mov [rdx + {held_how}], ah
        mov rdi, [rcx + {awaited_place}]
        mov [rsi + 8], rdi
        mov rdi, [rcx + {slots}]
        mov qword ptr [rdi + {return_slot}], 0
        mov qword ptr [rcx + {awaited_sp}], 0
        ",
        number!(),
        "mov edx, 24",
        publish!(),
        restore_and_return!(),
        the_rest_in_rust!();
}
