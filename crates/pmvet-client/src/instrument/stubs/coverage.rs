//! Operations on PM, counted as PMFuzz counts them: which one follows which.

use std::mem::offset_of;

use pmvet_events::shm::{RingControl, STRIPES};
use pmvet_events::stage::CrashTrigger;
use pmvet_events::wire;

use crate::coverage::coverage_map;
use crate::record::lock_state::{AwaitedLock, HeldLock, HeldSpinLock, MAX_HELD_SPIN_LOCKS};
use crate::record::shadow_stack::ShadowFrame;
use crate::record::spinning::Spin;
use crate::record::thread::{Thread, mode, slot};

/// Counts the operation at the site, by the call path in edx; see [`Thread::count`], which does the same.
macro_rules! count {
    () => {
        "
        imul esi, dword ptr [rcx + {site}], {hash_factor}
        xor esi, edx
        mov edi, esi
        shr esi, 1
        xor edi, [rcx + {last_operation}]
        mov [rcx + {last_operation}], esi
        mov eax, edi
        shr eax, 16
        xor edi, eax
        movzx edi, di
        add rdi, [rcx + {pm_counts}]
        inc byte ptr [rdi]
        jnz 2f
        dec byte ptr [rdi]
    2:
        "
    };
}

/// Numbers the operation, and leaves the rest to Rust if the run is to end before it.
macro_rules! number_operation {
    () => {
        "
        mov rdi, [rcx + {stop}]
        mov rax, [rdi + {operations}]
        inc rax
        mov [rdi + {operations}], rax
        cmp rax, [rdi + {at_operation}]
        je 9f
        "
    };
}

stubs! {
    /// A store to the address in the slot, or a flush of it, is about to be done.
    count_operation, coverage_map::count_operation:
        save!(),
        address_in_pm!(),
        context!("resolve_stable"),
        number_operation!(),
        count!(),
        restore_and_return!(),
        the_rest_in_rust!();

    /// A fence is about to be done.
    count_fence, coverage_map::count_fence:
        save!(),
        context!("resolve_stable"),
        number_operation!(),
        "
        mov rax, [rdi + {fences}]
        inc rax
        mov [rdi + {fences}], rax
        cmp rax, [rdi + {at_fence}]
        je 9f
        ",
        count!(),
        restore_and_return!(),
        the_rest_in_rust!();
}
