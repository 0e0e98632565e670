//! Building blocks of the stubs: names for offsets and constants, and shared pieces of code.
//!
//! Labels from 40 on belong to the pieces; 9 is where a stub gives up and leaves the rest to Rust.

/// Declares stubs, with the names that their code may use.
macro_rules! stubs {
    ($($(#[$doc:meta])* $name:ident, $slow:path: $($code:expr),+;)*) => {$(
        $(#[$doc])*
        #[unsafe(naked)]
        pub(crate) extern "C" fn $name() {
            std::arch::naked_asm!(
                $($code,)+
                // The compiler insists that every name is used, and no stub uses all: this comment does.
                "
                // {rax} {rdx} {rsi} {rdi} {flags} {rsp} {vectors} {slots} {site} {kind} {size} {next_mode}
                // {mode} {stripe_lock} {pm_start} {pm_span} {pm_key} {cursor} {limit} {head} {control} {next_seq}
                // {seq_after} {stripes} {shared_flag} {os_thread} {awaited_sp} {awaited_object} {awaited_place} {awaited_kind}
                // {held} {held_count} {held_room} {control_head} {in_flight} {frame_sp} {frame_node} {held_object}
                // {held_how} {addr_slot} {frame_slot} {return_slot} {value_slot} {stripes_mask} {store} {stream}
                // {rmw} {rare_rmw} {locking_rmw} {exchange} {bit_set} {near_load} {rmw_failed} {rmw_done} {atomic} {atomic_failed} {atomic_stored} {pending_slot}
                // {spin_locks} {spin_lock_count} {spin_lock_room} {spin_lock_bytes} {pm_counts} {last_operation} {stop} {operations}
                // {spin_head} {spin_place} {spin_addr} {spin_found} {spin_count} {spins_reported} {rest_mask} {trace_slot} {spinning} {unreported}
                // {at_operation} {fences} {at_fence} {hash_factor} {resolve} {resolve_stable}
                // {slow}
                ",
                rax = const offset_of!(Thread, rax),
                rdx = const offset_of!(Thread, rdx),
                rsi = const offset_of!(Thread, rsi),
                rdi = const offset_of!(Thread, rdi),
                flags = const offset_of!(Thread, flags),
                rsp = const offset_of!(Thread, rsp),
                vectors = const offset_of!(Thread, vectors),
                slots = const offset_of!(Thread, slots),
                site = const offset_of!(Thread, site),
                kind = const offset_of!(Thread, kind),
                size = const offset_of!(Thread, size),
                next_mode = const offset_of!(Thread, next_mode),
                mode = const offset_of!(Thread, mode),
                stripe_lock = const offset_of!(Thread, stripe_lock),
                pm_start = const offset_of!(Thread, pm_start),
                pm_span = const offset_of!(Thread, pm_span),
                pm_key = const offset_of!(Thread, pm_key),
                cursor = const offset_of!(Thread, cursor),
                limit = const offset_of!(Thread, limit),
                head = const offset_of!(Thread, head),
                control = const offset_of!(Thread, control),
                next_seq = const offset_of!(Thread, next_seq),
                seq_after = const offset_of!(Thread, seq_after),
                stripes = const offset_of!(Thread, stripes),
                shared_flag = const offset_of!(Thread, shared_flag),
                os_thread = const offset_of!(Thread, os_thread),
                awaited_sp = const offset_of!(Thread, awaited_lock) + offset_of!(AwaitedLock, sp),
                awaited_object = const offset_of!(Thread, awaited_lock) + offset_of!(AwaitedLock, object),
                awaited_place = const offset_of!(Thread, awaited_lock) + offset_of!(AwaitedLock, place),
                awaited_kind = const offset_of!(Thread, awaited_lock) + offset_of!(AwaitedLock, kind),
                held = const offset_of!(Thread, held_at),
                held_count = const offset_of!(Thread, held_count),
                held_room = const offset_of!(Thread, held_room),
                control_head = const offset_of!(RingControl, head),
                in_flight = const offset_of!(RingControl, in_flight),
                frame_sp = const offset_of!(ShadowFrame, sp),
                frame_node = const offset_of!(ShadowFrame, node),
                held_object = const offset_of!(HeldLock, object),
                held_how = const offset_of!(HeldLock, how),
                addr_slot = const slot::ADDR * 8,
                frame_slot = const slot::FRAME * 8,
                return_slot = const slot::RETURN_SP * 8,
                value_slot = const slot::VALUE * 8,
                stripes_mask = const STRIPES - 1,
                store = const mode::STORE,
                stream = const mode::STREAM,
                rmw = const mode::RMW,
                rare_rmw = const mode::RARE_RMW,
                near_load = const wire::NEAR_LOAD,
                rmw_failed = const wire::RMW_FAILED,
                rmw_done = const wire::RMW,
                pm_counts = const offset_of!(Thread, pm_counts),
                last_operation = const offset_of!(Thread, last_operation),
                stop = const offset_of!(Thread, stop),
                operations = const offset_of!(CrashTrigger, operations),
                at_operation = const offset_of!(CrashTrigger, at_operation),
                fences = const offset_of!(CrashTrigger, fences),
                at_fence = const offset_of!(CrashTrigger, at_fence),
                hash_factor = const crate::record::shadow_stack::HASH_FACTOR as i32,
                locking_rmw = const mode::LOCKING_RMW,
                exchange = const mode::EXCHANGE,
                bit_set = const mode::BIT_SET,
                atomic = const wire::ATOMIC,
                atomic_failed = const wire::ATOMIC_FAILED,
                atomic_stored = const wire::ATOMIC_STORED,
                pending_slot = const slot::FENCE_PENDING * 8,
                spin_locks = const offset_of!(Thread, spin_locks),
                spin_lock_count = const offset_of!(Thread, spin_lock_count),
                spin_lock_room = const MAX_HELD_SPIN_LOCKS,
                spin_lock_bytes = const size_of::<HeldSpinLock>(),
                spin_head = const offset_of!(Thread, spin) + offset_of!(Spin, head),
                spin_place = const offset_of!(Thread, spin) + offset_of!(Spin, place),
                spin_addr = const offset_of!(Thread, spin) + offset_of!(Spin, addr),
                spin_found = const offset_of!(Thread, spin) + offset_of!(Spin, found),
                spin_count = const offset_of!(Thread, spin) + offset_of!(Spin, count),
                spins_reported = const crate::record::spinning::SPINS_REPORTED,
                rest_mask = const crate::record::spinning::SPINS_PER_REST - 1,
                trace_slot = const slot::TRACE * 8,
                spinning = const mode::SPINNING,
                unreported = const crate::record::spinning::UNREPORTED,
                resolve = sym crate::instrument::stubs::call_paths::resolve,
                resolve_stable = sym crate::instrument::stubs::call_paths::resolve_stable,
                slow = sym $slow,
            )
        }
    )*};
}

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

/// The target of label 9: calls a Rust function with the thread as its argument, keeping all registers that `save` does
/// not cover, and returns.
///
/// It saves the low halves of the vector registers, which is all that baseline x86-64 code changes: `xsave` would save
/// everything and take thirty times as long. [`crate::dynamorio::bytes`] says what follows from that.
macro_rules! the_rest_in_rust {
    () => {
        concat!(
            "
    9:
        push rcx
        push r8
        push r9
        push r10
        push r11
        movups [rcx + {vectors}], xmm0
        movups [rcx + {vectors} + 0x10], xmm1
        movups [rcx + {vectors} + 0x20], xmm2
        movups [rcx + {vectors} + 0x30], xmm3
        movups [rcx + {vectors} + 0x40], xmm4
        movups [rcx + {vectors} + 0x50], xmm5
        movups [rcx + {vectors} + 0x60], xmm6
        movups [rcx + {vectors} + 0x70], xmm7
        movups [rcx + {vectors} + 0x80], xmm8
        movups [rcx + {vectors} + 0x90], xmm9
        movups [rcx + {vectors} + 0xa0], xmm10
        movups [rcx + {vectors} + 0xb0], xmm11
        movups [rcx + {vectors} + 0xc0], xmm12
        movups [rcx + {vectors} + 0xd0], xmm13
        movups [rcx + {vectors} + 0xe0], xmm14
        movups [rcx + {vectors} + 0xf0], xmm15
        mov rdi, rcx
        cld
        call {slow}
        mov rcx, [rsp + 32]
        movups xmm0, [rcx + {vectors}]
        movups xmm1, [rcx + {vectors} + 0x10]
        movups xmm2, [rcx + {vectors} + 0x20]
        movups xmm3, [rcx + {vectors} + 0x30]
        movups xmm4, [rcx + {vectors} + 0x40]
        movups xmm5, [rcx + {vectors} + 0x50]
        movups xmm6, [rcx + {vectors} + 0x60]
        movups xmm7, [rcx + {vectors} + 0x70]
        movups xmm8, [rcx + {vectors} + 0x80]
        movups xmm9, [rcx + {vectors} + 0x90]
        movups xmm10, [rcx + {vectors} + 0xa0]
        movups xmm11, [rcx + {vectors} + 0xb0]
        movups xmm12, [rcx + {vectors} + 0xc0]
        movups xmm13, [rcx + {vectors} + 0xd0]
        movups xmm14, [rcx + {vectors} + 0xe0]
        movups xmm15, [rcx + {vectors} + 0xf0]
        pop r11
        pop r10
        pop r9
        pop r8
        pop rcx
        ",
            restore_and_return!()
        )
    };
}

/// Locks the stripe of the word or line whose number is in `rdi`. If another thread holds it, the rest is for Rust, which
/// can wait.
macro_rules! lock_stripe {
    () => {
        "
        and edi, {stripes_mask}
        shl edi, 6
        add rdi, [rcx + {stripes}]
        xor eax, eax
        mov edx, [rcx + {os_thread}]
        lock cmpxchg [rdi], edx
        jne 9f
        mov [rcx + {stripe_lock}], rdi
        "
    };
}

/// Jumps to 9 if a spin lock of the thread has another value by now: see [`crate::record::held_spin_locks`].
macro_rules! spin_locks_still_held {
    () => {
        "
        mov eax, [rcx + {spin_lock_count}]
        test eax, eax
        jz 61f
    60:
        lea edi, [rax + rax * 2]
        lea rdi, [rcx + rdi * 8 + {spin_locks} - {spin_lock_bytes}]
        mov rdx, [rdi]
        mov rdx, [rdx]
        and rdx, [rdi + 8]
        cmp rdx, [rdi + 16]
        jne 9f
        dec eax
        jnz 60b
    61:
        "
    };
}

/// Puts the address of the access into rax and its distance from the start of the mapping into rdi, or jumps to 9 if it
/// is not in the mapping that was hit last.
macro_rules! address_in_pm {
    () => {
        "
        mov rsi, [rcx + {slots}]
        mov rax, [rsi + {addr_slot}]
        mov rdi, rax
        sub rdi, [rcx + {pm_start}]
        cmp rdi, [rcx + {pm_span}]
        jae 9f
        "
    };
}

/// Puts the context into edx, or jumps to 9 if it is not cached. The argument names the function that resolves new frames.
macro_rules! context {
    ($resolve:literal) => {
        concat!(
            "
        mov rsi, [rcx + {slots}]
        mov rsi, [rsi + {frame_slot}]
        mov rdx, [rsi + {frame_sp}]
        cmp rdx, [rcx + {rsp}]
        jbe 9f
        mov edx, [rsi + {frame_node}]
        test edx, edx
        jnz 40f
        call {",
            $resolve,
            "}
        test edx, edx
        jz 9f
    40:
        "
        )
    };
}

/// The same, and the record's start into rsi.
macro_rules! context_and_room {
    () => {
        concat!(
            context!("resolve"),
            "
        mov rsi, [rcx + {cursor}]
        cmp rsi, [rcx + {limit}]
        ja 9f
        "
        )
    };
}

/// Writes the place of the record at rsi: the site, and the context that is in edx.
macro_rules! write_place {
    () => {
        "
        mov [rsi + 12], edx
        mov edx, [rcx + {site}]
        mov [rsi + 8], edx
        "
    };
}

/// The access repeats the one before it. Goes to the label if it has to be reported anyway, and to Rust if the thread should rest;
/// otherwise goes on here.
macro_rules! same_again {
    ($report:literal) => {
        concat!(
            "
        inc dword ptr [rcx + {spin_count}]
        cmp dword ptr [rcx + {spin_count}], {spins_reported}
        jb ",
            $report,
            "
        mov rdi, [rcx + {slots}]
        cmp qword ptr [rdi + {trace_slot}], 0
        jne ",
            $report,
            "
        test dword ptr [rcx + {spin_count}], {rest_mask}
        jnz 72f
        mov byte ptr [rcx + {mode}], {spinning}
        jmp 9f
    72:
        "
        )
    };
}

/// Publishes the record at rsi, whose length is rdx. Leaves the ring's control block in rdi.
macro_rules! publish {
    () => {
        "
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

/// Numbers the record at rsi.
macro_rules! number {
    () => {
        "
        mov rdi, [rcx + {shared_flag}]
        cmp dword ptr [rdi], 0
        mov rdi, [rcx + {next_seq}]
        jne 50f
        mov rax, [rdi]
        inc qword ptr [rdi]
        jmp 51f
    50:
        mov eax, 1
        lock xadd [rdi], rax
    51:
        lea rdi, [rax + 1]
        mov [rcx + {seq_after}], rdi
        movzx edi, word ptr [rcx + {kind}]
        shl rdi, 48
        or rax, rdi
        mov [rsi], rax
        "
    };
}
