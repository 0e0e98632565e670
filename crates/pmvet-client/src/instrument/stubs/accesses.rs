//! Accesses to PM, flushes and fences.

use std::mem::offset_of;

use pmvet_events::shm::{RingControl, STRIPES};
use pmvet_events::stage::CrashTrigger;
use pmvet_events::wire;

use crate::control::{lockstep, schedule, spinning};
use crate::record::lock_state::{AwaitedLock, HeldLock, HeldSpinLock, MAX_HELD_SPIN_LOCKS};
use crate::record::shadow_stack::ShadowFrame;
use crate::record::slow_path;
use crate::record::spinning::Spin;
use crate::record::thread::{Thread, mode, slot};

stubs! {
    /// The part of a store to PM before the target's instruction: thread fields `site`, `kind`, `size` and `next_mode` and the
    /// address slot are set.
    before_store, slow_path::before_store:
        save!(),
        spin_locks_still_held!(),
        address_in_pm!(),
        // The line arrives while the record is prepared; otherwise the numbering would wait for it.
        "prefetchw [rax]",
        context_and_room!(),
        write_place!(),
        "
        mov [rsi + 16], rax
        mov dl, [rcx + {next_mode}]
        mov [rcx + {mode}], dl
        mov rdx, [rcx + {shared_flag}]
        cmp dword ptr [rdx], 0
        jne 3f
    2:
        mov rdx, [rcx + {control}]
        mov [rdx + {in_flight}], rax
        cmp byte ptr [rcx + {next_mode}], {rmw}
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
        ",
        lock_stripe!(),
        "
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
        jne 8f
        mov eax, [rax]
        mov [rsi + 24], rax
        jmp 4b
    8:
        cmp edx, 1
        jne 6f
        movzx eax, byte ptr [rax]
        mov [rsi + 24], rax
        jmp 4b
        // Any other size is done in Rust, which finds the lock taken.
    6:
        mov byte ptr [rcx + {mode}], {rare_rmw}
        ",
        the_rest_in_rust!();

    /// The part after the target's instruction.
    after_store, spinning::after_store:
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
        mov rdi, [rcx + {stripe_lock}]
        test rdi, rdi
        jz 3f
        mov dword ptr [rdi], 0
        mov qword ptr [rcx + {stripe_lock}], 0
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
        cmp eax, {locking_rmw}
        je 33f
        cmp eax, {exchange}
        je 33f
        cmp eax, {bit_set}
        je 33f
        test eax, eax
        jnz 9f
        ",
        restore_and_return!(),
        // The new value of a read-modify-write of 8, 4, 2 bytes or 1, and whether a comparison succeeded.
        "
    33:
        mov rdi, [rsi + 16]
        cmp edx, 8
        jne 34f
        mov rax, [rdi]
        jmp 35f
    34:
        cmp edx, 4
        jne 36f
        mov eax, [rdi]
        jmp 35f
    36:
        movzx eax, byte ptr [rdi]
        cmp edx, 1
        je 35f
        movzx eax, word ptr [rdi]
    35:
        mov [rsi + 32], rax
        mov edx, 40
        cmp byte ptr [rcx + {kind}], {rmw_failed}
        je 37f
        cmp byte ptr [rcx + {kind}], {atomic_failed}
        jne 38f
    37:
        test byte ptr [rcx + {flags} + 1], 0x40
        jz 70f
        dec byte ptr [rcx + {kind}]
        cmp byte ptr [rcx + {kind}], {atomic}
        jne 30b
        // What was there before may have been read too early: a plain store of volatile memory waits for nobody. The
        // instruction itself knows. A comparison that succeeded has found what is in rax.
        mov rdi, [rcx + {rax}]
        jmp 12f
    38:
        mov rdi, [rcx + {slots}]
        mov rdi, [rdi + {value_slot}]
        cmp byte ptr [rcx + {mode}], {exchange}
        je 17f
        cmp byte ptr [rcx + {mode}], {bit_set}
        jne 14f
        mov byte ptr [rcx + {mode}], {locking_rmw}
        not rdi
        and rdi, rax
        test byte ptr [rcx + {flags} + 1], 1
        cmovnz rdi, rax
        jmp 13f
    17:
        mov byte ptr [rcx + {mode}], {locking_rmw}
    12:
        movzx edx, byte ptr [rcx + {size}]
        cmp edx, 8
        je 13f
        cmp edx, 4
        je 15f
        cmp edx, 1
        je 16f
        movzx edi, di
        jmp 13f
    15:
        mov edi, edi
        jmp 13f
    16:
        movzx edi, dil
    13:
        mov [rsi + 24], rdi
        mov edx, 40
    14:
        cmp byte ptr [rcx + {kind}], {atomic}
        je 39f
        cmp byte ptr [rcx + {kind}], {atomic_stored}
        je 39f
        cmp byte ptr [rcx + {kind}], {rmw_done}
        jne 30b
        cmp rax, [rsi + 24]
        je 70f
        jmp 30b
    39:
        // The spin lock that was taken last is released, or taken in another way. Its word may hold a second lock.
        mov edi, [rcx + {spin_lock_count}]
        test edi, edi
        jz 24f
        lea edi, [rdi + rdi * 2]
        mov rdx, [rsi + 16]
        and rdx, -8
        cmp rdx, [rcx + rdi * 8 + {spin_locks} - {spin_lock_bytes}]
        jne 24f
        mov rdi, [rcx + rdi * 8 + {spin_locks} - {spin_lock_bytes} + 8]
        mov edx, [rsi + 16]
        shl edx, 3
        bt rdi, rdx
        jnc 24f
        dec dword ptr [rcx + {spin_lock_count}]
    24:
        // Taking a lock sets bits in its word and clears none.
        cmp byte ptr [rcx + {mode}], {locking_rmw}
        jne 26f
        mov rdx, [rsi + 24]
        cmp rdx, rax
        je 70f
        mov rdi, rdx
        and rdi, rax
        cmp rdi, rdx
        jne 26f
        mov edi, [rcx + {spin_lock_count}]
        cmp edi, {spin_lock_room}
        jb 29f
        // All room is taken: the oldest goes. What was taken once and never given back is no lock, or not soon needed.
        lea rdi, [rcx + {spin_locks}]
    28:
        mov rdx, [rdi + {spin_lock_bytes}]
        mov [rdi], rdx
        add rdi, 8
        lea rdx, [rcx + {spin_locks} + ({spin_lock_room} - 1) * {spin_lock_bytes}]
        cmp rdi, rdx
        jb 28b
        mov edi, {spin_lock_room} - 1
        mov [rcx + {spin_lock_count}], edi
    29:
        inc dword ptr [rcx + {spin_lock_count}]
        lea edi, [rdi + rdi * 2]
        lea rdi, [rcx + rdi * 8 + {spin_locks}]
        mov rdx, [rsi + 16]
        and rdx, -8
        mov [rdi], rdx
        movzx edx, byte ptr [rcx + {size}]
        push rcx
        mov ecx, edx
        neg ecx
        and ecx, 7
        shl ecx, 3
        mov rdx, -1
        shr rdx, cl
        mov ecx, [rsi + 16]
        and ecx, 7
        shl ecx, 3
        shl rdx, cl
        shl rax, cl
        pop rcx
        mov [rdi + 8], rdx
        mov [rdi + 16], rax
    26:
        mov edx, 40
        jmp 30b
        // An attempt at a lock that has changed nothing: see [`crate::record::spinning`].
    70:
        mov rdi, [rcx + {head}]
        cmp rdi, [rcx + {spin_head}]
        jne 71f
        mov rdx, [rsi + 8]
        cmp rdx, [rcx + {spin_place}]
        jne 71f
        mov rdx, [rsi + 16]
        cmp rdx, [rcx + {spin_addr}]
        jne 71f
        mov rdx, [rsi + 24]
        cmp rdx, [rcx + {spin_found}]
        jne 71f
        ",
        same_again!("74f"),
        "
        mov rdi, [rcx + {control}]
        mov qword ptr [rdi + {in_flight}], 0
        mov rdi, [rcx + {stripe_lock}]
        test rdi, rdi
        jz 75f
        mov dword ptr [rdi], 0
        mov qword ptr [rcx + {stripe_lock}], 0
    75:
        mov byte ptr [rcx + {mode}], 0
        mov byte ptr [rcx + {kind}], {unreported}
        ",
        restore_and_return!(),
        "
    71:
        mov rdx, [rsi + 8]
        mov [rcx + {spin_place}], rdx
        mov rdx, [rsi + 16]
        mov [rcx + {spin_addr}], rdx
        mov rdx, [rsi + 24]
        mov [rcx + {spin_found}], rdx
        mov dword ptr [rcx + {spin_count}], 0
    74:
        mov rdi, [rcx + {head}]
        add rdi, 40
        mov [rcx + {spin_head}], rdi
        mov edx, 40
        jmp 30b
        ",
        the_rest_in_rust!();

    /// The part before a read-modify-write of volatile memory. One that is not within an aligned word is no lock.
    before_atomic, slow_path::before_atomic:
        save!(),
        "
        mov rsi, [rcx + {slots}]
        cmp qword ptr [rsi + {pending_slot}], 0
        jne 9f
        mov rdx, [rcx + {shared_flag}]
        cmp dword ptr [rdx], 0
        je 4f
        mov edx, [rsi + {addr_slot}]
        and edx, 7
        add dl, [rcx + {size}]
        cmp edx, 8
        ja 4f
        ",
        spin_locks_still_held!(),
        context_and_room!(),
        write_place!(),
        "
        mov rax, [rcx + {slots}]
        mov rdi, [rax + {addr_slot}]
        mov [rsi + 16], rdi
        shr rdi, 3
        ",
        lock_stripe!(),
        "
        mov dl, [rcx + {next_mode}]
        mov [rcx + {mode}], dl
        mov rdi, [rsi + 16]
        movzx edx, byte ptr [rcx + {size}]
        cmp edx, 8
        jne 2f
        mov rax, [rdi]
        jmp 3f
    2:
        cmp edx, 4
        jne 5f
        mov eax, [rdi]
        jmp 3f
    5:
        movzx eax, byte ptr [rdi]
        cmp edx, 1
        je 3f
        movzx eax, word ptr [rdi]
    3:
        mov [rsi + 24], rax
    4:
        ",
        restore_and_return!(),
        the_rest_in_rust!();

    /// The schedule may stop the thread after the store that was just reported.
    stall_after_store, schedule::stall_after_store:
        save!(),
        the_rest_in_rust!();

    /// An access to PM is followed by a random delay.
    random_delay, schedule::random_delay:
        save!(),
        the_rest_in_rust!();

    /// The schedule may stop the thread before the next instruction.
    stall_before, schedule::stall_before:
        save!(),
        the_rest_in_rust!();

    /// A fence comes next, in a run with lockstep or an instruction trace.
    lockstep_fence, lockstep::before_fence:
        save!(),
        the_rest_in_rust!();

    /// A hooked function comes next, in a run with lockstep.
    lockstep_entry, lockstep::before_hooked_function:
        save!(),
        the_rest_in_rust!();

    /// A load was done, from the address in the slot.
    load, spinning::load:
        save!(),
        spin_locks_still_held!(),
        address_in_pm!(),
        context_and_room!(),
        write_place!(),
        "
        mov rdx, [rsi + 8]
        cmp rdx, [rcx + {spin_place}]
        je 70f
        mov [rcx + {spin_place}], rdx
        mov qword ptr [rcx + {spin_addr}], 0
    74:
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
        "mov [rcx + {spin_head}], rdx",
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
        // The same instruction as last time; perhaps it waits for something: see [`crate::record::spinning`].
    70:
        movzx edx, byte ptr [rcx + {size}]
        cmp edx, 8
        jne 76f
        mov rdx, [rax]
        jmp 78f
    76:
        cmp edx, 4
        jne 77f
        mov edx, [rax]
        jmp 78f
    77:
        cmp edx, 1
        mov edx, 0
        jne 71f
        movzx edx, byte ptr [rax]
    78:
        mov rdi, [rcx + {head}]
        cmp rdi, [rcx + {spin_head}]
        jne 71f
        cmp rax, [rcx + {spin_addr}]
        jne 71f
        cmp rdx, [rcx + {spin_found}]
        jne 71f
        ",
        same_again!("74b"),
        restore_and_return!(),
        "
    71:
        mov [rcx + {spin_addr}], rax
        mov [rcx + {spin_found}], rdx
        mov dword ptr [rcx + {spin_count}], 0
        jmp 74b
        ",
        the_rest_in_rust!();

    /// A flush of the line at the address in the slot.
    flush, slow_path::flush:
        save!(),
        spin_locks_still_held!(),
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

    /// A fence. One in a loop that does nothing but wait is a part of the waiting: see [`crate::record::spinning`].
    fence, slow_path::fence:
        save!(),
        spin_locks_still_held!(),
        "
        mov rdi, [rcx + {head}]
        cmp rdi, [rcx + {spin_head}]
        jne 2f
        cmp qword ptr [rcx + {spin_addr}], 0
        je 2f
        cmp dword ptr [rcx + {spin_count}], {spins_reported}
        jae 3f
        add rdi, 24
        mov [rcx + {spin_head}], rdi
    2:
        ",
        context_and_room!(),
        write_place!(),
        "
        mov qword ptr [rsi + 16], 0
        ",
        number!(),
        "mov edx, 24",
        publish!(),
        "3:",
        restore_and_return!(),
        the_rest_in_rust!();
}
