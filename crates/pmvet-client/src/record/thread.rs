//! What the client keeps for each thread of the target.
//!
//! [`Thread`] is shared between Rust and the machine code in [`crate::instrument::stubs`], which reads and writes its fields
//! by offset while the thread is in the code cache. Only the thread itself touches it, with the exceptions that
//! [`super::threads`] names. It also has the state that [`crate::control`] and [`crate::coverage`] keep for a thread, as
//! plain numbers, so that one pointer in a slot leads to everything.

use std::sync::atomic::Ordering;

use pmvet_events::ids::ThreadId;
use pmvet_events::shm::{RING_BYTES, RingBuffer, RingControl, RingState};
use pmvet_events::stage::Stage;
use pmvet_events::wire;

use super::lock_state::{AwaitedLock, HeldLock, HeldSpinLock, MAX_HELD_SPIN_LOCKS, PendingCall};
use super::ring_claim::claim_ring;
use super::shadow_stack::{PathCache, ShadowFrame, ShadowStack};
use super::spinning::Spin;
use super::syscalls::pending::PendingSyscall;
use super::unfenced_stores::InstructionTrace;
use crate::dynamorio::{self, TLS};
use crate::run::run;

/// Slots of the thread's segment, which instrumented code reaches without any register.
pub(crate) mod slot {
    /// The address of the [`super::Thread`].
    pub(crate) const THREAD: usize = 0;
    /// The target's value of the register that instrumentation uses.
    pub(crate) const SAVED: usize = 1;
    /// The address that an access hit.
    pub(crate) const ADDR: usize = 2;
    /// The newest frame of the shadow stack.
    pub(crate) const FRAME: usize = 3;
    /// Minus the stack pointer at which a hooked function returns; 0 while none is under way.
    pub(crate) const RETURN_SP: usize = 4;
    /// Not 0 while a flush or non-temporal store of this thread waits for a fence.
    pub(crate) const FENCE_PENDING: usize = 5;
    /// The value of a non-temporal store, up to 64 bytes.
    pub(crate) const VALUE: usize = 6;
    /// The block before this one, for counting branches.
    pub(crate) const PREVIOUS_BLOCK: usize = VALUE + 8;
    /// How many more instructions of the thread are traced; 0 if none.
    pub(crate) const TRACE: usize = PREVIOUS_BLOCK + 1;
    pub(crate) const COUNT: usize = TRACE + 1;
}

/// What is left to do after the instruction of an access.
pub(crate) mod mode {
    pub(crate) const NOTHING: u8 = 0;
    /// Copy the stored value, number, publish.
    pub(crate) const STORE: u8 = 1;
    /// The slow path does it.
    pub(crate) const SLOW: u8 = 2;
    /// A locked read-modify-write of 1, 4 or 8 bytes: copy the new value too, number, publish.
    pub(crate) const RMW: u8 = 3;
    /// As `STORE`, but the value is in the value slots: reading a line that was just written past the cache is slow.
    pub(crate) const STREAM: u8 = 4;
    /// A read-modify-write of another size, which is done in Rust.
    pub(crate) const RARE_RMW: u8 = 5;
    /// As `RMW`, of volatile memory, by an instruction that programs take locks with.
    pub(crate) const LOCKING_RMW: u8 = 6;
    /// As `LOCKING_RMW`, by an exchange: what it has found is in the value slots.
    pub(crate) const EXCHANGE: u8 = 7;
    /// As `LOCKING_RMW`, by an instruction that sets a bit: which one is in the value slots, what it has found in the carry flag.
    pub(crate) const BIT_SET: u8 = 8;
    /// The thread spins and rests for a moment; there is nothing to report.
    pub(crate) const SPINNING: u8 = 9;
}

#[repr(C)]
pub(crate) struct Thread {
    // Where the stubs keep the target's registers.
    pub(crate) rax: u64,
    pub(crate) rdx: u64,
    pub(crate) rsi: u64,
    pub(crate) rdi: u64,
    pub(crate) flags: u64,
    /// The target's stack pointer while a stub runs on `stack`.
    pub(crate) rsp: u64,
    /// Top of the stack that stubs run on.
    pub(crate) stack: u64,

    /// The segment slots.
    pub(crate) slots: *mut u64,

    // The access under way.
    pub(crate) site: u32,
    /// Kind and size, as in a record's first word.
    pub(crate) kind: u8,
    pub(crate) size: u8,
    /// The [`mode`] that the first half of the access sets if it hits PM.
    pub(crate) next_mode: u8,
    /// The [`mode`] of the access under way.
    pub(crate) mode: u8,
    /// The stripe lock held, or null.
    pub(crate) stripe_lock: u64,

    /// The PM mapping that was hit last: addresses from `pm_start`, fewer than `pm_span` bytes further.
    pub(crate) pm_start: u64,
    pub(crate) pm_span: u64,
    /// Added to an address relative to `pm_start` it gives the position that stripe locks are chosen by, which is
    /// the same for every mapping of a file.
    pub(crate) pm_key: u64,

    // The ring.
    pub(crate) cursor: *mut u8,
    /// A stub may write while `cursor` is not above this.
    pub(crate) limit: *mut u8,
    pub(crate) head: u64,
    pub(crate) control: *const RingControl,

    // Shared with all threads.
    pub(crate) next_seq: u64,
    /// The number after that of the last record in the ring.
    pub(crate) seq_after: u64,
    pub(crate) stripes: u64,
    /// Address of the word that is not 0 once the target has more than one thread.
    pub(crate) shared_flag: u64,
    pub(crate) os_thread: u32,
    /// Start of `path_cache`, and the bits of a hash that select a bucket there.
    pub(crate) paths: u64,
    pub(crate) path_mask: u32,

    /// The lock that the thread is about to take, unless another hooked function is under way.
    pub(crate) awaited_lock: AwaitedLock,
    /// Address of `held`, how many locks it has, and for how many it has room.
    pub(crate) held_at: u64,
    pub(crate) held_count: u64,
    pub(crate) held_room: u64,
    /// Spin locks in volatile memory that the thread holds.
    pub(crate) spin_locks: [HeldSpinLock; MAX_HELD_SPIN_LOCKS],
    pub(crate) spin_lock_count: u32,
    /// What it may be waiting for without sleeping.
    pub(crate) spin: Spin,

    /// The coverage map of operations on PM, and a hash of the last operation.
    pub(crate) pm_counts: u64,
    pub(crate) last_operation: u32,
    /// Where operations are numbered, and where the run is to end: a [`pmvet_events::stage::CrashTrigger`].
    pub(crate) stop: u64,

    /// The low halves of the vector registers, while Rust code runs.
    pub(crate) vectors: [u128; 16],

    // From here on Rust only.
    pub(crate) id: ThreadId,
    pub(crate) ring: usize,
    pub(crate) buffer: RingBuffer,
    pub(crate) frames: Box<ShadowStack>,
    pub(crate) path_cache: PathCache,
    /// Memory that `context` reuses.
    pub(crate) new_frames: Vec<ShadowFrame>,
    /// Shadow stack positions that signal handlers interrupted.
    pub(crate) interrupted: Vec<u64>,
    pub(crate) pending_calls: Vec<PendingCall>,
    /// The pool of the transaction that was begun last.
    pub(crate) pool: u64,
    /// The locks that the thread holds.
    pub(crate) held: Vec<HeldLock>,
    /// Stripes that a slow access holds.
    pub(crate) held_stripes: Vec<usize>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) old_value: [u8; 16],
    /// Ranges a masked or repeated instruction is about to store to.
    pub(crate) ranges: Vec<(u64, u32)>,
    /// How often the thread has come to each stall of the plan.
    pub(crate) stall_visits: Vec<u32>,
    /// How many fences it has made, in runs that need to know.
    pub(crate) fences_made: u64,
    pub(crate) lockstep: LockstepState,
    pub(crate) trace: InstructionTrace,
    pub(crate) syscall: PendingSyscall,
    /// The thread is a child of vfork: another process that runs in this one's memory until it runs a program of its own.
    pub(crate) is_vfork_child: bool,
    /// The signals that it blocks.
    pub(crate) blocked_signals: u64,
    process: u32,
    /// Arguments of the system call under way that were replaced, with the target's values.
    pub(crate) replaced_arguments: Vec<(i32, u64)>,
    stack_memory: (*mut u8, usize),
}

/// What [`crate::control::lockstep`] remembers about a thread whose waits for others were useless.
#[derive(Debug, Default)]
pub(crate) struct LockstepState {
    /// For how many fences it goes on without waiting.
    pub(crate) free_fences: u64,
    /// The fence until which it does.
    pub(crate) free_until: u64,
    /// How often it has waited for threads that had no processor.
    pub(crate) starved_waits: u32,
}

/// The stack that stubs and the slow path run on. Rust code there is shallow.
const STACK_BYTES: usize = 64 << 10;

impl Thread {
    /// Prepares everything a thread needs and points its segment slots at it.
    ///
    /// `fences` is how many fences it counts as having made. `stage` is where operations are counted, if they are.
    pub(crate) fn start(id: ThreadId, fences: u64, stage: Option<&'static Stage>) -> *mut Self {
        let shared = &run().shared;
        let header = shared.header();
        let ring = claim_ring(id);
        let buffer = match shared.ring_buffer(ring) {
            Ok(buffer) => buffer,
            Err(e) => dynamorio::fail(&format!("cannot map the event ring of a thread: {e}")),
        };
        let control = shared.control(ring);
        let os_thread = dynamorio::os_thread();
        // A ring starts where its last owner left it.
        let head = control.head.0.load(Ordering::Acquire);
        control.process.store(run().process(), Ordering::Relaxed);
        control.os_thread.store(os_thread, Ordering::Relaxed);
        control.in_flight.store(0, Ordering::Relaxed);
        control.ready.store(1, Ordering::Release);

        let stack_memory = dynamorio::alloc_pages(STACK_BYTES);
        let frames = ShadowStack::new();
        let first_frame = frames.bottom();
        let path_cache = PathCache::new();
        let slots = TLS.slots();
        let thread = Box::new(Self {
            rax: 0,
            rdx: 0,
            rsi: 0,
            rdi: 0,
            flags: 0,
            rsp: 0,
            stack: stack_memory as u64 + STACK_BYTES as u64,
            slots,
            site: 0,
            kind: 0,
            size: 0,
            next_mode: 0,
            mode: mode::NOTHING,
            stripe_lock: 0,
            pm_start: 0,
            pm_span: 0,
            pm_key: 0,
            cursor: std::ptr::null_mut(),
            limit: std::ptr::null_mut(),
            head,
            control,
            next_seq: &raw const header.next_seq.0 as u64,
            seq_after: 0,
            stripes: shared.stripes() as u64,
            shared_flag: &raw const header.many_threads.0 as u64,
            os_thread,
            paths: path_cache.start(),
            path_mask: path_cache.mask(),
            awaited_lock: AwaitedLock::default(),
            held_at: 0,
            held_count: 0,
            held_room: 0,
            pm_counts: stage.map_or(0, |stage| stage.maps.pm.as_ptr() as u64),
            last_operation: 0,
            stop: stage.map_or(0, |stage| &raw const stage.stop as u64),
            spin_locks: [HeldSpinLock::default(); MAX_HELD_SPIN_LOCKS],
            spin_lock_count: 0,
            spin: Spin::default(),
            vectors: [0; 16],
            id,
            ring,
            buffer,
            frames,
            path_cache,
            new_frames: Vec::new(),
            interrupted: Vec::new(),
            pending_calls: Vec::new(),
            pool: 0,
            held: Vec::new(),
            held_stripes: Vec::new(),
            scratch: Vec::with_capacity(wire::MAX_RECORD),
            old_value: [0; 16],
            ranges: Vec::new(),
            stall_visits: Vec::new(),
            fences_made: fences,
            lockstep: Default::default(),
            trace: Default::default(),
            syscall: Default::default(),
            is_vfork_child: dynamorio::process() != run().process(),
            blocked_signals: 0,
            process: dynamorio::process(),
            replaced_arguments: Vec::new(),
            stack_memory: (stack_memory, STACK_BYTES),
        });
        let thread = Box::into_raw(thread);
        // SAFETY: `thread` was just made, and the slots are this thread's own.
        unsafe {
            let start = (*thread).buffer.start();
            (*thread).cursor = start.add((*thread).head as usize % RING_BYTES);
            (*thread).set_limit();
            *slots.add(slot::THREAD) = thread as u64;
            *slots.add(slot::FRAME) = first_frame as u64;
            *slots.add(slot::RETURN_SP) = 0;
            *slots.add(slot::FENCE_PENDING) = 0;
            *slots.add(slot::PREVIOUS_BLOCK) = 0;
            *slots.add(slot::TRACE) = 0;
        }
        thread
    }

    /// The thread that runs now.
    pub(crate) fn current<'a>() -> &'a mut Self {
        // SAFETY: set by `start` before any event of the thread; a thread only ever looks at its own, and no two
        // borrows overlap, since callbacks of one thread do not nest except through stubs, which re-derive it.
        unsafe { &mut *(*TLS.slots().add(slot::THREAD) as *mut Self) }
    }

    /// The thread that runs now, or `None` before `start` and after `end`.
    pub(crate) fn try_current<'a>() -> Option<&'a mut Self> {
        // SAFETY: as in `current`; a slot that was never set is 0.
        unsafe { (*TLS.slots().add(slot::THREAD) as *mut Self).as_mut() }
    }

    /// Whether a fork has copied this from its parent, where the thread still runs. The ring is not the child's.
    pub(crate) fn is_fork_copy(&self) -> bool {
        !self.is_vfork_child && self.process != dynamorio::process()
    }

    /// The process was forked behind DynamoRIO's back: this state belongs to the child now.
    pub(crate) fn set_process(&mut self, process: u32) {
        self.process = process;
    }

    pub(crate) fn slot(&self, index: usize) -> u64 {
        // SAFETY: `slots` are this thread's, `slot::COUNT` long.
        unsafe { *self.slots.add(index) }
    }

    pub(crate) fn set_slot(&self, index: usize, value: u64) {
        // SAFETY: as in `slot`.
        unsafe { *self.slots.add(index) = value }
    }

    pub(crate) fn frame(&self) -> *mut ShadowFrame {
        self.slot(slot::FRAME) as *mut ShadowFrame
    }

    /// Ends the thread's stream and frees what belongs to it.
    pub(crate) fn end(this: *mut Self) {
        // SAFETY: made by `start`, ended once, not used after.
        let mut thread = unsafe { Box::from_raw(this) };
        thread.trace.thread_ends();
        // The slots may belong to another thread: the parent of a vfork child ends the child's thread.
        if thread.slot(slot::THREAD) == this as u64 {
            thread.set_slot(slot::THREAD, 0);
        }
        // It may fail: pmvet may notice before the parent that a child of vfork is gone, and another thread may have the ring
        // by now.
        thread.control().change(RingState::Active(thread.id), RingState::Closed(thread.id));
        dynamorio::free_pages(thread.stack_memory.0, thread.stack_memory.1);
    }

    /// In a forked child: forgets the parent's ring without closing it.
    pub(crate) fn abandon(this: *mut Self) {
        // SAFETY: as in `end`; the child has its own copy of the memory.
        let thread = unsafe { Box::from_raw(this) };
        dynamorio::free_pages(thread.stack_memory.0, thread.stack_memory.1);
    }
}
