//! What the client keeps for each thread of the target.
//!
//! [`Thread`] is shared between Rust and the stubs in [`crate::stubs`], which read and write its fields by offset while the
//! thread is in the code cache. Nobody but the thread itself touches it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pmvet_events::event::{Event, What};
use pmvet_events::ids::{ContextId, SiteId, ThreadId};
use pmvet_events::shm::{MAX_RINGS, RING_BYTES, RingBuffer, RingControl, RingState};
use pmvet_events::wire;

use crate::context::Frame;
use crate::sync::{Held, Lock, Pending};
use crate::taken::{TAKEN, Taken};
use crate::{client, context, dr};

/// Slots of the thread's segment, which instrumented code reaches without any register.
pub(crate) mod slot {
    /// The address of the [`super::Thread`].
    pub(crate) const THREAD: usize = 0;
    /// The register that instrumentation borrowed.
    pub(crate) const SAVED: usize = 1;
    /// The address that an access hit.
    pub(crate) const ADDR: usize = 2;
    /// The newest frame of the shadow stack.
    pub(crate) const FRAME: usize = 3;
    /// Minus the stack pointer at which a hooked function returns; 0 while none is under way.
    pub(crate) const RETURN: usize = 4;
    /// Not 0 while a flush or non-temporal store of this thread waits for a fence.
    pub(crate) const PENDING: usize = 5;
    /// The value of a non-temporal store, up to 64 bytes.
    pub(crate) const VALUE: usize = 6;
    /// The block before this one, for counting branches.
    pub(crate) const BLOCK: usize = VALUE + 8;
    /// Not 0 while the thread's instructions are followed.
    pub(crate) const FOLLOW: usize = BLOCK + 1;
    pub(crate) const COUNT: usize = FOLLOW + 1;
}

/// The largest record that a stub writes: it needs no more room than this to be left in the ring.
pub(crate) const STUB_RECORD: usize = wire::HEADER + 64;

/// What the second half of an access still has to do.
pub(crate) mod mode {
    pub(crate) const NOTHING: u8 = 0;
    /// Copy the stored value, number, publish.
    pub(crate) const STORE: u8 = 1;
    /// Everything out of the ordinary is done in Rust.
    pub(crate) const SLOW: u8 = 2;
    /// A locked read-modify-write of 4 or 8 bytes: copy the new value too, number, publish.
    pub(crate) const RMW: u8 = 3;
    /// As `STORE`, but the value is in the value slots: reading a line that was just written past the cache is slow.
    pub(crate) const STREAM: u8 = 4;
    /// A read-modify-write of another size, which is done in Rust.
    pub(crate) const RARE_RMW: u8 = 5;
    /// As `RMW`, of volatile memory, by an instruction that locks are taken with.
    pub(crate) const TAKES: u8 = 6;
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
    /// Kind and size, as in a record's first word; then what to do after the instruction.
    pub(crate) kind: u8,
    pub(crate) size: u8,
    pub(crate) todo: u8,
    pub(crate) mode: u8,
    /// The stripe lock held, or null.
    pub(crate) lock: u64,

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
    /// Start of `remembered`, and what is left of a hash to find a bucket there.
    pub(crate) paths: u64,
    pub(crate) path_mask: u32,

    /// A lock whose taking is under way, if no other hooked function is.
    pub(crate) waits: Lock,
    /// Where `held` is, how many locks there are in it, and for how many there is room.
    pub(crate) held_at: u64,
    pub(crate) held_count: u64,
    pub(crate) held_room: u64,
    /// Words of volatile memory that the thread has taken as one takes a lock.
    pub(crate) taken: [Taken; TAKEN],
    pub(crate) taken_count: u32,

    /// Where transitions between operations on PM are counted, and what is left of the last operation.
    pub(crate) pm_counts: u64,
    pub(crate) last_operation: u32,
    /// Where operations are numbered, and where the run is to end: a [`pmvet_events::stage::Stop`].
    pub(crate) stop: u64,

    /// The low halves of the vector registers, while Rust code runs.
    pub(crate) vectors: [u128; 16],

    // From here on Rust only.
    pub(crate) id: ThreadId,
    pub(crate) ring: usize,
    pub(crate) buffer: RingBuffer,
    pub(crate) frames: Box<context::ShadowStack>,
    pub(crate) remembered: context::Paths,
    /// Memory that `context` uses again each time.
    pub(crate) new_frames: Vec<Frame>,
    /// Shadow stack positions that signal handlers interrupted.
    pub(crate) interrupted: Vec<u64>,
    pub(crate) pending: Vec<Pending>,
    /// The pool of the transaction that was begun last.
    pub(crate) pool: u64,
    /// Room for the locks that this thread took and has not given back.
    pub(crate) held: Vec<Held>,
    /// Stripes that a slow access holds.
    pub(crate) locks: Vec<usize>,
    pub(crate) scratch: Vec<u8>,
    pub(crate) old_value: [u8; 16],
    /// Ranges a masked or repeated instruction is about to store to.
    pub(crate) ranges: Vec<(u64, u32)>,
    /// How often the thread has come to each stall of the plan.
    pub(crate) passed: Vec<u32>,
    /// How many fences it has made, if threads are kept in step.
    pub(crate) pace: u64,
    pub(crate) ahead: crate::pace::Ahead,
    pub(crate) follow: crate::follow::Follow,
    pub(crate) syscall: crate::syscalls::Pending,
    /// The thread is a child of vfork: another process that runs in this one's memory until it runs a program of its own.
    pub(crate) borrowed: bool,
    /// The signals that it blocks.
    pub(crate) blocked: u64,
    process: u32,
    /// The argument of the system call under way that the kernel sees another value of.
    pub(crate) replaced: Vec<(i32, u64)>,
    stack_memory: (*mut u8, usize),
}

const STACK_BYTES: usize = 64 << 10;

impl Thread {
    /// Prepares everything a thread needs and points its segment slots at it.
    pub(crate) fn start(id: ThreadId) -> *mut Self {
        let client = client();
        let shared = &client.shared;
        let header = shared.header();
        let ring = claim_ring(id);
        let buffer = match shared.ring_buffer(ring) {
            Ok(buffer) => buffer,
            Err(e) => dr::fail(&format!("cannot map the event ring of a thread: {e}")),
        };
        let control = shared.control(ring);
        let os_thread = dr::os_thread();
        // A ring starts where its last owner left it.
        let head = control.head.0.load(Ordering::Acquire);
        control.process.store(client.process(), Ordering::Relaxed);
        control.os_thread.store(os_thread, Ordering::Relaxed);
        control.in_flight.store(0, Ordering::Relaxed);
        control.ready.store(1, Ordering::Release);

        let stack_memory = dr::alloc_pages(STACK_BYTES);
        let frames = context::ShadowStack::new();
        let first_frame = frames.bottom();
        let remembered = context::Paths::new();
        let slots = client.tls.slots();
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
            todo: 0,
            mode: mode::NOTHING,
            lock: 0,
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
            paths: remembered.start(),
            path_mask: remembered.mask(),
            waits: Lock::default(),
            held_at: 0,
            held_count: 0,
            held_room: 0,
            pm_counts: client.forks.as_ref().map_or(0, |forks| forks.stage().maps.pm.as_ptr() as u64),
            last_operation: 0,
            stop: client.forks.as_ref().map_or(0, |forks| &raw const forks.stage().stop as u64),
            taken: [Taken::default(); TAKEN],
            taken_count: 0,
            vectors: [0; 16],
            id,
            ring,
            buffer,
            frames,
            remembered,
            new_frames: Vec::new(),
            interrupted: Vec::new(),
            pending: Vec::new(),
            pool: 0,
            held: Vec::new(),
            locks: Vec::new(),
            scratch: Vec::with_capacity(wire::MAX_RECORD),
            old_value: [0; 16],
            ranges: Vec::new(),
            passed: Vec::new(),
            pace: client.pace.of_new(),
            ahead: Default::default(),
            follow: Default::default(),
            syscall: Default::default(),
            borrowed: dr::process() != client.process(),
            blocked: 0,
            process: dr::process(),
            replaced: Vec::new(),
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
            *slots.add(slot::RETURN) = 0;
            *slots.add(slot::PENDING) = 0;
            *slots.add(slot::BLOCK) = 0;
            *slots.add(slot::FOLLOW) = 0;
        }
        thread
    }

    /// The thread that runs now.
    pub(crate) fn current<'a>() -> &'a mut Self {
        // SAFETY: set by `start` before any event of the thread; a thread only ever looks at its own, and no two
        // borrows overlap, since callbacks of one thread do not nest except through stubs, which re-derive it.
        unsafe { &mut *(*client().tls.slots().add(slot::THREAD) as *mut Self) }
    }

    /// The thread that runs now, or `None` before `start` and after `end`.
    pub(crate) fn try_current<'a>() -> Option<&'a mut Self> {
        // SAFETY: as in `current`; a slot that was never set is 0.
        unsafe { (*client().tls.slots().add(slot::THREAD) as *mut Self).as_mut() }
    }

    /// Whether this is what a fork copied of a thread that does not exist in the child. Its ring is not the child's.
    pub(crate) fn is_copy(&self) -> bool {
        !self.borrowed && self.process != dr::process()
    }

    /// Its process was forked behind DynamoRIO's back: all it has is the child's now.
    pub(crate) fn belongs_to(&mut self, process: u32) {
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

    pub(crate) fn frame(&self) -> *mut Frame {
        self.slot(slot::FRAME) as *mut Frame
    }

    fn control(&self) -> &RingControl {
        // SAFETY: points into the shared memory, which stays mapped.
        unsafe { &*self.control }
    }

    /// How far stubs may write: to the end of the free part, or of the buffer, less one record.
    fn set_limit(&mut self) {
        let tail = self.control().tail.0.load(Ordering::Acquire);
        let free = RING_BYTES - (self.head - tail) as usize;
        let start = self.buffer.start();
        let at = self.head as usize % RING_BYTES;
        let room = free.min(RING_BYTES - at);
        // SAFETY: the result stays within the buffer, or just before it when there is no room at all.
        self.limit = unsafe { start.add(at) }.wrapping_add(room).wrapping_sub(STUB_RECORD);
    }

    /// Makes room for a record of `len` bytes at `cursor`, waiting for pmvet if the ring is full.
    pub(crate) fn make_room(&mut self, len: usize) {
        let mut waits = 0u32;
        // A stub may have left the cursor at the very end of the buffer.
        self.cursor = self.buffer.start().wrapping_add(self.head as usize % RING_BYTES);
        loop {
            let tail = self.control().tail.0.load(Ordering::Acquire);
            let free = RING_BYTES - (self.head - tail) as usize;
            let at = self.head as usize % RING_BYTES;
            let to_end = RING_BYTES - at;
            if len <= to_end && len <= free {
                break;
            }
            if len > to_end && to_end <= free {
                // SAFETY: at least one free word is left before the end of the buffer.
                unsafe { self.cursor.cast::<u64>().write(wire::word0(0, wire::PAD, 0)) };
                self.advance(to_end);
                continue;
            }
            wait(&mut waits);
        }
        self.set_limit();
    }

    pub(crate) fn advance(&mut self, len: usize) {
        self.head += len as u64;
        self.cursor = self.buffer.start().wrapping_add(self.head as usize % RING_BYTES);
        self.control().head.0.store(self.head, Ordering::Release);
    }

    /// Numbers and sends an event that no stub writes. Returns its number.
    pub(crate) fn emit_at(&mut self, site: SiteId, context: ContextId, what: What<'_>) -> u64 {
        if client().counts() {
            return 0;
        }
        // Room first: once numbered, the event must not wait for pmvet, which may wait for its number.
        let mut record = std::mem::take(&mut self.scratch);
        record.clear();
        wire::write(&Event { seq: 0, thread: self.id, site, context, what }, &mut record);
        self.make_room(record.len());
        if wire::is_rare(&record) {
            client().shared.header().rare_begun.fetch_add(1, Ordering::AcqRel);
        }
        let seq = if what.is_numbered() {
            client().shared.header().next_seq.0.fetch_add(1, Ordering::AcqRel)
        } else {
            client().shared.header().next_seq.0.load(Ordering::Acquire) - 1
        };
        let word = u64::from_le_bytes(record[..8].try_into().unwrap_or_default()) | seq;
        record[..8].copy_from_slice(&word.to_le_bytes());
        // SAFETY: `make_room` left this many bytes.
        unsafe { std::ptr::copy_nonoverlapping(record.as_ptr(), self.cursor, record.len()) };
        self.advance(record.len());
        self.seq_after = seq + 1;
        self.set_limit();
        self.scratch = record;
        seq
    }

    /// Sends an event that belongs to no instruction.
    pub(crate) fn emit(&mut self, what: What<'_>) -> u64 {
        self.emit_at(SiteId(0), ContextId(0), what)
    }

    /// Waits until pmvet has seen everything this thread sent.
    pub(crate) fn wait_until_seen(&mut self) {
        let mut waits = 0;
        while self.control().tail.0.load(Ordering::Acquire) != self.head {
            wait(&mut waits);
        }
    }

    /// Ends the thread's stream and frees what belongs to it.
    pub(crate) fn end(this: *mut Self) {
        // SAFETY: made by `start`, ended once, not used after.
        let mut thread = unsafe { Box::from_raw(this) };
        client().pace.leave(thread.id);
        thread.follow.end();
        // The slots may be another thread's: that of a child of vfork is ended by its parent.
        if thread.slot(slot::THREAD) == this as u64 {
            thread.set_slot(slot::THREAD, 0);
        }
        // No matter if it fails: pmvet may have noticed that a child of vfork is gone before its parent did, and the ring
        // may be another's by now.
        thread.control().change(RingState::Active(thread.id), RingState::Closed(thread.id));
        dr::free_pages(thread.stack_memory.0, thread.stack_memory.1);
    }

    /// In a forked child: forgets the parent's ring without closing it.
    pub(crate) fn abandon(this: *mut Self) {
        // SAFETY: as in `end`; the child has its own copy of the memory.
        let thread = unsafe { Box::from_raw(this) };
        dr::free_pages(thread.stack_memory.0, thread.stack_memory.1);
    }
}

/// How long a new thread waits for a ring while no other thread gets one either.
const RING_PATIENCE: Duration = Duration::from_secs(10);

/// Takes a ring. If all are taken, waits for a thread to end, but not for ever: those that are there may wait for this one.
fn claim_ring(id: ThreadId) -> usize {
    let shared = &client().shared;
    let mut waits = 0;
    let mut waiting = None;
    loop {
        if let Some(ring) = shared.claim_ring(id) {
            return ring;
        }
        let claims = shared.header().rings_claimed.load(Ordering::Relaxed);
        let (_, since) = *waiting.get_or_insert((claims, Instant::now()));
        if waiting.is_some_and(|(before, _)| before != claims) {
            waiting = Some((claims, Instant::now()));
        } else if since.elapsed() > RING_PATIENCE {
            dr::fail(&format!(
                "the target has more than {MAX_RINGS} threads at a time, and pmvet cannot follow more; run it with fewer"
            ));
        }
        wait(&mut waits);
    }
}

/// Waits a little, longer as waiting goes on. Gives the thread up to DynamoRIO meanwhile.
pub(crate) fn wait(waits: &mut u32) {
    *waits += 1;
    if *waits < 64 {
        std::hint::spin_loop();
    } else if *waits < 256 {
        dr::yield_thread();
    } else {
        dr::sleep_briefly();
        client().check_pmvet_lives();
    }
}
