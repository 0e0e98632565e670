//! The shared memory between pmvet and the processes of a target.
//!
//! pmvet makes one anonymous file, sparse, so that only what is used takes memory:
//!
//! ```text
//! Header            counters
//! RingControl × N   one per thread that is alive
//! stripe locks      held while a PM store is numbered and performed
//! sites             instruction → address and module, written once, never changed
//! contexts          the calling-context tree, written once, never changed
//! ring buffers × N
//! plan              as long as it is
//! ```
//!
//! A ring has one producer (a thread of the target) and one consumer (pmvet). Positions are byte counts that only
//! grow; the producer publishes `head` after a record is complete, the consumer publishes `tail` after it is done with
//! a record. A site or context is written before its id appears in any record, so a reader of the record may read it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use crate::ids::{ContextId, ModuleId, SiteId, ThreadId};
use crate::places::{Context, Places, Site};

const MAGIC: u64 = u64::from_le_bytes(*b"pmvetshm");
/// Changes with the layout; client and pmvet must be of the same build anyway.
const VERSION: u64 = 3;

/// How many threads of a target may be alive at the same time. Others wait until a ring is free.
pub const MAX_RINGS: usize = 8192;
/// The size of a ring's buffer: a multiple of the page size, and many times the longest record.
pub const RING_BYTES: usize = 1 << 20;
/// How many locks order stores. Stores to lines that share one wait for each other needlessly.
pub const STRIPES: usize = 1024;
const MAX_SITES: usize = 1 << 23;
const MAX_CONTEXTS: usize = 1 << 25;
/// Room for the reason why the client gave up.
const FAILURE_BYTES: usize = 1 << 10;

/// A value alone on its cache line, so that neighbours do not slow each other down.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Alone<T>(pub T);

/// The start of the shared memory: counters that all processes of the target share.
#[derive(Debug)]
#[repr(C)]
pub struct Header {
    magic: AtomicU64,
    version: AtomicU64,
    /// The number the next event gets.
    pub next_seq: Alone<AtomicU64>,
    /// The number the next thread gets.
    pub next_thread: Alone<AtomicU32>,
    /// The number the next site gets. Stays at the size of the table once that is full.
    pub next_site: AtomicU32,
    /// The number the next call path gets. Stays at the size of the table once that is full.
    pub next_context: AtomicU32,
    /// The number the next PM file gets.
    pub next_file: AtomicU32,
    /// The number the next module gets.
    pub next_module: AtomicU32,
    /// Rare events that were begun: a thread counts its event here before numbering it.
    pub rare_begun: AtomicU64,
    /// Rings that were ever used: the consumer reads no further.
    pub rings_used: AtomicU32,
    /// How often a ring was taken: a thread that waits for one sees that others still get theirs.
    pub rings_claimed: AtomicU32,
    /// Whether the client has failed and written the reason: see [`Header::fail`].
    client_failed: AtomicU32,
    /// Not 0 once the target has more than one thread, in all its processes together.
    pub many_threads: Alone<AtomicU32>,
    /// One bit for each stall of the plan that is over: no thread stops there any more.
    pub stalls_over: Alone<AtomicU64>,
    plan_len: AtomicU64,
    failure_len: AtomicU64,
    failure: [AtomicU8; FAILURE_BYTES],
}

/// States of `client_failed`.
mod failed {
    pub(super) const NO: u32 = 0;
    /// One thread is writing the reason; others that fail meanwhile add nothing.
    pub(super) const WRITING: u32 = 1;
    pub(super) const YES: u32 = 2;
}

impl Header {
    /// Tells pmvet why the client cannot go on; the target's standard error may go unseen. False if another thread has done so
    /// already.
    pub fn fail(&self, why: &str) -> bool {
        let first =
            self.client_failed.compare_exchange(failed::NO, failed::WRITING, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_err() {
            return false;
        }
        let why = &why[..why.floor_char_boundary(FAILURE_BYTES)];
        self.failure.iter().zip(why.bytes()).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
        self.failure_len.store(why.len() as u64, Ordering::Relaxed);
        self.client_failed.store(failed::YES, Ordering::Release);
        true
    }

    /// Why the client gave up, if it did.
    pub fn failure(&self) -> Option<String> {
        match self.client_failed.load(Ordering::Acquire) {
            failed::NO => None,
            failed::WRITING => Some("it was killed before it could say why".into()),
            _ => {
                let len = (self.failure_len.load(Ordering::Relaxed) as usize).min(FAILURE_BYTES);
                let bytes: Vec<u8> = self.failure[..len].iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
                Some(String::from_utf8_lossy(&bytes).into_owned())
            }
        }
    }
}

/// One ring: its owner, and how far both sides are.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct RingControl {
    /// The owner and what it does with the ring, in one word: see [`RingState`].
    state: AtomicU32,
    /// The kernel's number of the owner's process.
    pub process: AtomicU32,
    /// The kernel's number of the owner.
    pub os_thread: AtomicU32,
    /// Set once the fields above are.
    pub ready: AtomicU32,
    /// While the thread is stopped, the number of the stall, from 1; otherwise 0. A futex that pmvet resets.
    pub stalled: AtomicU32,
    /// How many bytes the producer has published.
    pub head: Alone<AtomicU64>,
    /// The address of a store under way, in case the thread dies.
    pub in_flight: AtomicU64,
    /// The size of that store in bytes.
    pub in_flight_size: AtomicU64,
    /// How many bytes the consumer is done with.
    pub tail: Alone<AtomicU64>,
}

/// The call path of a thread's outermost function.
pub const ROOT_CONTEXT: ContextId = ContextId(1);

/// The owner of a ring. Owner and state change together, so that no thread closes the ring of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RingState {
    /// None: the next thread that starts may take it.
    Free,
    /// A thread that is alive.
    Active(ThreadId),
    /// The owner has ended; pmvet has yet to read the rest.
    Closed(ThreadId),
}

impl RingState {
    fn word(self) -> u32 {
        match self {
            RingState::Free => 0,
            RingState::Active(thread) => thread.0 << 1,
            RingState::Closed(thread) => thread.0 << 1 | 1,
        }
    }
}

impl RingControl {
    /// The owner and the state, as of now.
    pub fn state(&self) -> RingState {
        let word = self.state.load(Ordering::Acquire);
        let thread = ThreadId(word >> 1);
        match word {
            0 => RingState::Free,
            _ if word & 1 == 0 => RingState::Active(thread),
            _ => RingState::Closed(thread),
        }
    }

    /// Goes from one state to another. False if it was not in the first.
    pub fn change(&self, from: RingState, to: RingState) -> bool {
        self.state.compare_exchange(from.word(), to.word(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Stops the calling thread at a stall, for a short time, so that it can check for other things in between. True
    /// once it may go on.
    pub fn wait_at_stall(&self, number: u32) -> bool {
        let time = libc::timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        // SAFETY: the word is valid and shared between processes; nothing else is passed.
        unsafe {
            libc::syscall(libc::SYS_futex, self.stalled.as_ptr(), libc::FUTEX_WAIT, number, &raw const time, 0, 0);
        }
        self.stalled.load(Ordering::Acquire) == 0
    }

    /// Lets a stalled thread go on.
    pub fn end_stall(&self) {
        self.stalled.store(0, Ordering::Release);
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_futex, self.stalled.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
    }

    /// Frees a ring that was read to its end. Returns the store that was under way when its owner ended, as address and size; it is
    /// cleared so that the next owner does not inherit it.
    pub fn free(&self) -> Option<(u64, u64)> {
        let addr = self.in_flight.swap(0, Ordering::AcqRel);
        let size = self.in_flight_size.swap(0, Ordering::AcqRel);
        self.stalled.store(0, Ordering::Relaxed);
        self.ready.store(0, Ordering::Relaxed);
        self.state.store(RingState::Free.word(), Ordering::Release);
        (addr != 0).then_some((addr, size))
    }
}

#[repr(C)]
struct SiteEntry {
    pc: AtomicU64,
    module: AtomicU32,
    _unused: u32,
}

#[repr(C)]
struct ContextEntry {
    parent: AtomicU32,
    call: AtomicU32,
}

const PAGE: usize = 4096;

const fn pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE) * PAGE
}

const CONTROLS_AT: usize = pages(size_of::<Header>());
const STRIPES_AT: usize = CONTROLS_AT + pages(MAX_RINGS * size_of::<RingControl>());
const SITES_AT: usize = STRIPES_AT + pages(STRIPES * size_of::<Alone<AtomicU32>>());
const CONTEXTS_AT: usize = SITES_AT + pages(MAX_SITES * size_of::<SiteEntry>());
const RINGS_AT: usize = CONTEXTS_AT + pages(MAX_CONTEXTS * size_of::<ContextEntry>());
const PLAN_AT: usize = RINGS_AT + MAX_RINGS * RING_BYTES;

/// Everything but the ring buffers, mapped.
#[derive(Debug)]
pub struct SharedMemory {
    source: Source,
    base: NonNull<u8>,
}

/// How to reach the file again, for a ring's buffer.
#[derive(Debug)]
enum Source {
    Own(File),
    /// The client keeps no descriptor: the target would see it, and might close it.
    Path(PathBuf),
}

// SAFETY: all shared state behind `base` is atomic or written before it is published.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Makes the shared memory and writes the plan into it.
    pub fn create(plan: &[u8]) -> io::Result<Self> {
        // SAFETY: the name is a C string; the result is checked.
        let fd = unsafe { libc::memfd_create(c"pmvet".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` was just made and nobody else owns it.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len((PLAN_AT + plan.len()) as u64)?;
        file.write_all_at(plan, PLAN_AT as u64)?;
        let base = map_shared(&file, 0, RINGS_AT)?;
        let shared = Self { source: Source::Own(file), base };
        let header = shared.header();
        header.plan_len.store(plan.len() as u64, Ordering::Relaxed);
        for counter in [&header.next_site, &header.next_file, &header.next_module] {
            counter.store(1, Ordering::Relaxed);
        }
        header.next_context.store(ROOT_CONTEXT.0 + 1, Ordering::Relaxed);
        header.next_seq.0.store(1, Ordering::Relaxed);
        header.next_thread.0.store(1, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.magic.store(MAGIC, Ordering::Release);
        Ok(shared)
    }

    /// Attaches to shared memory that pmvet made, by a path that leads to it as long as pmvet lives.
    pub fn attach(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        let foreign = || io::Error::new(io::ErrorKind::InvalidData, "not the shared memory of this pmvet");
        if file.metadata()?.len() < PLAN_AT as u64 {
            return Err(foreign());
        }
        let shared = Self { source: Source::Path(path.to_owned()), base: map_shared(&file, 0, RINGS_AT)? };
        let header = shared.header();
        if header.magic.load(Ordering::Acquire) != MAGIC || header.version.load(Ordering::Relaxed) != VERSION {
            return Err(foreign());
        }
        Ok(shared)
    }

    /// The path by which processes of the target attach.
    pub fn path(&self) -> PathBuf {
        match &self.source {
            Source::Own(file) => format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()).into(),
            Source::Path(path) => path.clone(),
        }
    }

    fn at<T>(&self, offset: usize, index: usize) -> &T {
        // SAFETY: callers pass the offset of an array of `T` and an index within it; the mapping lives as long as
        // `self`, is page-aligned, zero-initialised (valid for every `T` used here) and only accessed atomically.
        unsafe { &*self.base.as_ptr().add(offset + index * size_of::<T>()).cast::<T>() }
    }

    /// The counters.
    pub fn header(&self) -> &Header {
        self.at(0, 0)
    }

    /// The plan as it was passed to [`SharedMemory::create`].
    pub fn plan(&self) -> io::Result<Vec<u8>> {
        let mut plan = vec![0; self.header().plan_len.load(Ordering::Relaxed) as usize];
        match &self.source {
            Source::Own(file) => file.read_exact_at(&mut plan, PLAN_AT as u64)?,
            Source::Path(path) => open(path)?.read_exact_at(&mut plan, PLAN_AT as u64)?,
        }
        Ok(plan)
    }

    /// The ring of this number, from 0. Panics if there is none.
    pub fn control(&self, ring: usize) -> &RingControl {
        assert!(ring < MAX_RINGS);
        self.at(CONTROLS_AT, ring)
    }

    /// The lock that orders stores to a line: `0` is free, else the OS thread that holds it.
    pub fn stripe(&self, index: usize) -> &AtomicU32 {
        &self.at::<Alone<AtomicU32>>(STRIPES_AT, index % STRIPES).0
    }

    /// The first stripe; they stand 64 bytes apart.
    pub fn stripes(&self) -> *const AtomicU32 {
        self.stripe(0)
    }

    /// Maps a ring's buffer. It stays mapped until the [`RingBuffer`] is dropped.
    pub fn ring_buffer(&self, ring: usize) -> io::Result<RingBuffer> {
        assert!(ring < MAX_RINGS);
        let at = RINGS_AT + ring * RING_BYTES;
        let base = match &self.source {
            Source::Own(file) => map_shared(file, at, RING_BYTES)?,
            Source::Path(path) => map_shared(&open(path)?, at, RING_BYTES)?,
        };
        Ok(RingBuffer { base })
    }

    /// Takes a free ring, for a thread that starts. `None` if all are taken.
    pub fn claim_ring(&self, thread: ThreadId) -> Option<usize> {
        let used = self.header().rings_used.load(Ordering::Acquire) as usize;
        let free = |&ring: &usize| self.control(ring).change(RingState::Free, RingState::Active(thread));
        let ring = (0..used.min(MAX_RINGS)).find(free).or_else(|| (used..MAX_RINGS).find(free))?;
        self.header().rings_used.fetch_max(ring as u32 + 1, Ordering::AcqRel);
        self.header().rings_claimed.fetch_add(1, Ordering::Relaxed);
        Some(ring)
    }

    /// Adds an instruction and returns its number. 0, the unknown site, once the table is full.
    pub fn add_site(&self, site: Site) -> SiteId {
        let id = self.header().next_site.fetch_add(1, Ordering::Relaxed);
        if id as usize >= MAX_SITES {
            self.header().next_site.store(MAX_SITES as u32, Ordering::Relaxed);
            return SiteId(0);
        }
        let entry: &SiteEntry = self.at(SITES_AT, id as usize);
        entry.module.store(site.module.0, Ordering::Relaxed);
        entry.pc.store(site.pc, Ordering::Release);
        SiteId(id)
    }

    /// Adds a call path. 0, the unknown path, once the table is full.
    pub fn add_context(&self, context: Context) -> ContextId {
        let id = self.header().next_context.fetch_add(1, Ordering::Relaxed);
        if id as usize >= MAX_CONTEXTS {
            self.header().next_context.store(MAX_CONTEXTS as u32, Ordering::Relaxed);
            return ContextId(0);
        }
        let entry: &ContextEntry = self.at(CONTEXTS_AT, id as usize);
        entry.parent.store(context.parent.0, Ordering::Relaxed);
        entry.call.store(context.call.0, Ordering::Release);
        ContextId(id)
    }

    /// Whether a table of places overflowed, so that some events have no place.
    pub fn places_lost(&self) -> bool {
        let header = self.header();
        header.next_site.load(Ordering::Relaxed) as usize >= MAX_SITES
            || header.next_context.load(Ordering::Relaxed) as usize >= MAX_CONTEXTS
    }
}

impl Places for SharedMemory {
    fn site(&self, id: SiteId) -> Option<Site> {
        let known = id.0 != 0 && (id.0 as usize) < MAX_SITES && id.0 < self.header().next_site.load(Ordering::Acquire);
        known.then(|| {
            let entry: &SiteEntry = self.at(SITES_AT, id.0 as usize);
            let pc = entry.pc.load(Ordering::Acquire);
            Site { pc, module: ModuleId(entry.module.load(Ordering::Relaxed)) }
        })
    }

    fn context(&self, id: ContextId) -> Option<Context> {
        let known = id > ROOT_CONTEXT
            && (id.0 as usize) < MAX_CONTEXTS
            && id.0 < self.header().next_context.load(Ordering::Acquire);
        known.then(|| {
            let entry: &ContextEntry = self.at(CONTEXTS_AT, id.0 as usize);
            let call = SiteId(entry.call.load(Ordering::Acquire));
            Context { parent: ContextId(entry.parent.load(Ordering::Relaxed)), call }
        })
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: `map` made exactly this mapping, and every reference into it borrows from `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), RINGS_AT) };
    }
}

/// The bytes of one ring.
#[derive(Debug)]
pub struct RingBuffer {
    base: NonNull<u8>,
}

// SAFETY: one producer and one consumer agree on who may touch which bytes by `head` and `tail`.
unsafe impl Send for RingBuffer {}

impl RingBuffer {
    /// The first byte. The buffer has [`RING_BYTES`].
    pub fn start(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The published bytes from position `from` up to position `to` or the end of the buffer, whichever is first.
    ///
    /// # Safety
    /// Both positions are the consumer's: `from` is at or after its tail, `to` at or before the published head, and the
    /// tail does not pass `from` while the slice lives.
    #[inline]
    pub unsafe fn published(&self, from: u64, to: u64) -> &[u8] {
        let start = from as usize % RING_BYTES;
        let len = ((to - from) as usize).min(RING_BYTES - start);
        // SAFETY: in bounds by construction; not written by the producer, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(start), len) }
    }
}

impl Drop for RingBuffer {
    fn drop(&mut self) {
        // SAFETY: made by `ring_buffer` with this length.
        unsafe { libc::munmap(self.base.as_ptr().cast(), RING_BYTES) };
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn map_shared(file: &File, offset: usize, len: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: a fresh shared mapping at an address of the kernel's choice.
    let at = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_NORESERVE,
            file.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_may_be_as_long_as_it_likes() {
        for len in [0, 1, 64 << 10, (64 << 10) + 1, 5 << 20] {
            let plan: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
            let shared = SharedMemory::create(&plan).unwrap();
            let attached = SharedMemory::attach(&shared.path()).unwrap();
            assert!(attached.plan().unwrap() == plan, "{len} bytes");
        }
    }

    #[test]
    fn what_was_in_flight_is_not_the_next_owners() {
        let shared = SharedMemory::create(&[]).unwrap();
        let ring = shared.claim_ring(ThreadId(1)).unwrap();
        let control = shared.control(ring);
        control.in_flight_size.store(48, Ordering::Relaxed);
        control.in_flight.store(0x1000, Ordering::Relaxed);
        assert_eq!(control.free(), Some((0x1000, 48)));
        assert_eq!(shared.claim_ring(ThreadId(2)), Some(ring), "the same ring, for another thread");
        assert_eq!(control.free(), None);
    }

    #[test]
    fn the_first_reason_to_give_up_counts() {
        let shared = SharedMemory::create(&[]).unwrap();
        let header = shared.header();
        assert_eq!(header.failure(), None);
        let long = "ü".repeat(FAILURE_BYTES);
        assert!(header.fail(&long));
        assert!(!header.fail("something else"));
        let told = header.failure().unwrap();
        assert!(told.len() <= FAILURE_BYTES && long.starts_with(&told) && !told.is_empty());
    }
}
