//! The hot path of an access to PM, as machine code.
//!
//! Instrumented code comes here (see [`crate::emit`]) with `rcx` = the [`Thread`], on the thread's private stack, with
//! every other register, the flags included, still the target's. An access is two calls: [`before`] checks that the
//! address is PM, prepares a record and takes the line's stripe lock; then the target's own instruction runs; then
//! [`after`] copies the value, numbers the record, publishes it and gives the lock back. Number and store are thus under one lock,
//! so numbers follow memory order. While the target has a single thread no lock and no atomic instruction is needed.
//!
//! Whatever is not the ordinary case (another mapping, two lines, a full ring, an unknown call path) is done in Rust by
//! [`crate::slow`], at the price of saving all extended registers. Only general registers are used here.

use std::arch::naked_asm;
use std::mem::offset_of;

use pmvet_events::shm::{RingControl, STRIPES};
use pmvet_events::wire;

use crate::context::{self, Frame};
use crate::slow;
use crate::thread::{Thread, mode, slot};

macro_rules! save {
    () => {
        "
        mov [rcx + {rax}], rax
        lahf
        seto al
        mov [rcx + {flags}], rax
        mov [rcx + {rdx}], rdx
        mov [rcx + {rsi}], rsi
        mov [rcx + {rdi}], rdi
        "
    };
}

macro_rules! restore_and_return {
    () => {
        "
        mov rax, [rcx + {flags}]
        add al, 0x7f
        sahf
        mov rax, [rcx + {rax}]
        mov rdx, [rcx + {rdx}]
        mov rsi, [rcx + {rsi}]
        mov rdi, [rcx + {rdi}]
        ret
        "
    };
}

/// Calls a Rust function with the thread as its argument; all registers that `save` does not cover are kept.
macro_rules! call_rust {
    () => {
        "
        push rcx
        push r8
        push r9
        push r10
        push r11
        mov rsi, [rcx + {xsave}]
        mov eax, [rcx + {xsave_mask}]
        xor edx, edx
        xsave64 [rsi]
        mov rdi, rcx
        cld
        call {slow}
        mov rcx, [rsp + 32]
        mov rsi, [rcx + {xsave}]
        mov eax, [rcx + {xsave_mask}]
        xor edx, edx
        xrstor64 [rsi]
        pop r11
        pop r10
        pop r9
        pop r8
        pop rcx
        "
    };
}

/// Puts the context into edx and the record's start into rsi, or jumps to 9 if that takes more than a look.
macro_rules! context_and_room {
    () => {
        "
        mov rsi, [rcx + {slots}]
        mov rsi, [rsi + {frame_slot}]
        mov rdx, [rsi + {frame_sp}]
        cmp rdx, [rcx + {rsp}]
        jbe 9f
        mov edx, [rsi + {frame_node}]
        test edx, edx
        jnz 40f
        call {resolve}
        test edx, edx
        jz 9f
    40:
        mov rsi, [rcx + {cursor}]
        cmp rsi, [rcx + {limit}]
        ja 9f
        "
    };
}

/// Numbers the record at rsi, whose length is rdx, and publishes it.
macro_rules! number_and_publish {
    () => {
        "
        mov rdi, [rcx + {shared_flag}]
        cmp dword ptr [rdi], 0
        mov rdi, [rcx + {next_seq}]
        jne 5f
        mov rax, [rdi]
        inc qword ptr [rdi]
        jmp 6f
    5:
        mov eax, 1
        lock xadd [rdi], rax
    6:
        movzx edi, word ptr [rcx + {kind}]
        shl rdi, 48
        or rax, rdi
        mov [rsi], rax
        // pmvet had these bytes last: get them back before they are needed.
        prefetchw [rsi + 768]
        add [rcx + {cursor}], rdx
        add rdx, [rcx + {head}]
        mov [rcx + {head}], rdx
        mov rdi, [rcx + {control}]
        mov [rdi + {control_head}], rdx
        "
    };
}

/// Gives the frame at rsi, which is alive, its node, and all frames below it that have none yet. Returns the node in edx, or
/// 0 if the thread's cache of the calling-context tree does not have it, or a frame below is dead.
#[unsafe(naked)]
extern "C" fn resolve() {
    naked_asm!(
        "
        push rax
        push rdi
        push r8
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
        // And up again.
    3:
        add si, {frame}
        mov r8d, [rsi + {call}]
        imul eax, edx, 0x9e3779b1
        add eax, r8d
        imul eax, eax, 0x85ebca6b
        shr eax, {shift}
        shl eax, 4
        add rax, [rcx + {paths}]
        cmp edx, [rax]
        jne 4f
        cmp r8d, [rax + 4]
        je 5f
        // Its neighbour, where an older step went.
    4:
        xor rax, 16
        cmp edx, [rax]
        jne 8f
        cmp r8d, [rax + 4]
        jne 8f
    5:
        mov edx, [rax + 8]
        mov [rsi + {node}], edx
        dec edi
        jnz 3b
    7:
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
        paths = const offset_of!(Thread, paths),
        shift = const 32 - context::PATHS.ilog2(),
    )
}

/// The part of an access to PM before the target's instruction: thread fields `site`, `kind`, `size` and `todo` and the
/// address slot are set.
#[unsafe(naked)]
pub(crate) extern "C" fn before() {
    naked_asm!(
        save!(),
        "
        mov rsi, [rcx + {slots}]
        mov rax, [rsi + {addr_slot}]
        mov rdi, rax
        sub rdi, [rcx + {pm_start}]
        cmp rdi, [rcx + {pm_span}]
        jae 9f
        ",
        context_and_room!(),
        "
        mov [rsi + 12], edx
        mov edx, [rcx + {site}]
        mov [rsi + 8], edx
        mov [rsi + 16], rax
        mov dl, [rcx + {todo}]
        mov [rcx + {mode}], dl
        cmp dl, {load}
        je 4f
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
    9:
        ",
        call_rust!(),
        restore_and_return!(),
        rax = const offset_of!(Thread, rax),
        rdx = const offset_of!(Thread, rdx),
        rsi = const offset_of!(Thread, rsi),
        rdi = const offset_of!(Thread, rdi),
        flags = const offset_of!(Thread, flags),
        rsp = const offset_of!(Thread, rsp),
        xsave = const offset_of!(Thread, xsave),
        xsave_mask = const offset_of!(Thread, xsave_mask),
        slots = const offset_of!(Thread, slots),
        site = const offset_of!(Thread, site),
        size = const offset_of!(Thread, size),
        todo = const offset_of!(Thread, todo),
        mode = const offset_of!(Thread, mode),
        lock = const offset_of!(Thread, lock),
        pm_start = const offset_of!(Thread, pm_start),
        pm_span = const offset_of!(Thread, pm_span),
        pm_key = const offset_of!(Thread, pm_key),
        cursor = const offset_of!(Thread, cursor),
        limit = const offset_of!(Thread, limit),
        control = const offset_of!(Thread, control),
        stripes = const offset_of!(Thread, stripes),
        shared_flag = const offset_of!(Thread, shared_flag),
        os_thread = const offset_of!(Thread, os_thread),
        in_flight = const offset_of!(RingControl, in_flight),
        frame_sp = const offset_of!(Frame, sp),
        frame_node = const offset_of!(Frame, node),
        addr_slot = const slot::ADDR * 8,
        frame_slot = const slot::FRAME * 8,
        resolve = sym resolve,
        stripes_mask = const STRIPES - 1,
        rmw = const mode::RMW,
        rare_rmw = const mode::RARE_RMW,
        load = const mode::LOAD,
        slow = sym slow::before,
    )
}

/// The part after the target's instruction.
#[unsafe(naked)]
pub(crate) extern "C" fn after() {
    naked_asm!(
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
        number_and_publish!(),
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
        mov edx, 24
        cmp eax, {flush}
        je 30b
        cmp eax, {load}
        jne 8f
        mov rdi, [rcx + {next_seq}]
        mov rax, [rdi]
        dec rax
        movzx edi, word ptr [rcx + {kind}]
        shl rdi, 48
        or rax, rdi
        mov [rsi], rax
        prefetchw [rsi + 768]
        add [rcx + {cursor}], rdx
        add rdx, [rcx + {head}]
        mov [rcx + {head}], rdx
        mov rdi, [rcx + {control}]
        mov [rdi + {control_head}], rdx
        mov byte ptr [rcx + {mode}], 0
        ",
        restore_and_return!(),
        "
    8:
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
        cmp byte ptr [rcx + {kind}], {failed}
        jne 30b
        test byte ptr [rcx + {flags} + 1], 0x40
        jz 30b
        mov byte ptr [rcx + {kind}], {succeeded}
        jmp 30b
    9:
        ",
        call_rust!(),
        restore_and_return!(),
        rax = const offset_of!(Thread, rax),
        rdx = const offset_of!(Thread, rdx),
        rsi = const offset_of!(Thread, rsi),
        rdi = const offset_of!(Thread, rdi),
        flags = const offset_of!(Thread, flags),
        xsave = const offset_of!(Thread, xsave),
        xsave_mask = const offset_of!(Thread, xsave_mask),
        kind = const offset_of!(Thread, kind),
        size = const offset_of!(Thread, size),
        mode = const offset_of!(Thread, mode),
        lock = const offset_of!(Thread, lock),
        cursor = const offset_of!(Thread, cursor),
        head = const offset_of!(Thread, head),
        control = const offset_of!(Thread, control),
        next_seq = const offset_of!(Thread, next_seq),
        shared_flag = const offset_of!(Thread, shared_flag),
        control_head = const offset_of!(RingControl, head),
        in_flight = const offset_of!(RingControl, in_flight),
        slots = const offset_of!(Thread, slots),
        value_slot = const slot::VALUE * 8,
        store = const mode::STORE,
        stream = const mode::STREAM,
        load = const mode::LOAD,
        flush = const mode::FLUSH,
        rmw = const mode::RMW,
        failed = const wire::RMW_FAILED,
        succeeded = const wire::RMW,
        slow = sym slow::after,
    )
}

/// An event without a second half: a fence, or a lock taken or given back, whose address is in the slot.
#[unsafe(naked)]
pub(crate) extern "C" fn plain() {
    naked_asm!(
        save!(),
        context_and_room!(),
        "
        mov [rsi + 12], edx
        mov edx, [rcx + {site}]
        mov [rsi + 8], edx
        mov rdi, [rcx + {slots}]
        mov rax, [rdi + {addr_slot}]
        mov [rsi + 16], rax
        mov edx, 24
        ",
        number_and_publish!(),
        restore_and_return!(),
        "
    9:
        ",
        call_rust!(),
        restore_and_return!(),
        rax = const offset_of!(Thread, rax),
        rdx = const offset_of!(Thread, rdx),
        rsi = const offset_of!(Thread, rsi),
        rdi = const offset_of!(Thread, rdi),
        flags = const offset_of!(Thread, flags),
        rsp = const offset_of!(Thread, rsp),
        xsave = const offset_of!(Thread, xsave),
        xsave_mask = const offset_of!(Thread, xsave_mask),
        slots = const offset_of!(Thread, slots),
        site = const offset_of!(Thread, site),
        kind = const offset_of!(Thread, kind),
        cursor = const offset_of!(Thread, cursor),
        limit = const offset_of!(Thread, limit),
        head = const offset_of!(Thread, head),
        control = const offset_of!(Thread, control),
        next_seq = const offset_of!(Thread, next_seq),
        shared_flag = const offset_of!(Thread, shared_flag),
        control_head = const offset_of!(RingControl, head),
        frame_sp = const offset_of!(Frame, sp),
        frame_node = const offset_of!(Frame, node),
        addr_slot = const slot::ADDR * 8,
        frame_slot = const slot::FRAME * 8,
        resolve = sym resolve,
        slow = sym slow::plain,
    )
}

/// Stubs that only lead to Rust, with the target's argument registers in place.
macro_rules! to_rust {
    ($($(#[$doc:meta])* $name:ident => $function:path),* $(,)?) => {$(
        $(#[$doc])*
        #[unsafe(naked)]
        pub(crate) extern "C" fn $name() {
            naked_asm!(
                save!(),
                call_rust!(),
                restore_and_return!(),
                rax = const offset_of!(Thread, rax),
                rdx = const offset_of!(Thread, rdx),
                rsi = const offset_of!(Thread, rsi),
                rdi = const offset_of!(Thread, rdi),
                flags = const offset_of!(Thread, flags),
                xsave = const offset_of!(Thread, xsave),
                xsave_mask = const offset_of!(Thread, xsave_mask),
                slow = sym $function,
            )
        }
    )*};
}

to_rust! {
    /// A hooked function was entered; `site` is the hook's number.
    hook_entered => crate::sync::entered,
    /// A hooked function is about to return.
    hook_returns => crate::sync::returns,
}
