//! The shared memory between pmvet and the fork servers inside a target.
//!
//! A *fork server* is a process of the target that has stopped at a fork point (see [`crate::plan::Forks`]) and makes a
//! child for each order it gets. A child either runs to its end, or becomes a server itself at the next fork point. The
//! turn of a server says which side acts: pmvet, which gives an order, or the server, which obeys it.
//!
//! Servers also find here which code their children had to translate, so that they can translate it once for all later
//! children; and, in a run that only counts, the two counter maps.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How many servers there may be at a time.
pub const SERVERS: usize = 64;
/// Counters in each map.
pub const MAP: usize = 1 << 16;
const BLOCKS: usize = 1 << 16;

/// All that pmvet and the fork servers share.
#[derive(Debug)]
#[repr(C)]
pub struct Stage {
    servers: [ServerSlot; SERVERS],
    blocks_used: AtomicU32,
    blocks: [AtomicU64; BLOCKS],
    /// Where the next run should end, and how far it is.
    pub stop: CrashTrigger,
    /// Not 0: a run pauses at the end of its input and asks whether to go on. See [`turn::PAUSED`].
    pub pauses: AtomicU32,
    /// The answer: not 0 if it should end.
    pub enough: AtomicU32,
    /// Not 0: a run maps PM privately, if its server can do that.
    pub apart: AtomicU32,
    /// Not 0: the run was about to access PM in a way that cannot be kept private, and ended there, useless.
    pub left: AtomicU32,
    /// What the run counts.
    pub maps: Maps,
}

/// Where a counting run should end, as if the machine had crashed there.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct CrashTrigger {
    /// Operations on PM so far, this one included.
    pub operations: AtomicU64,
    /// The run ends before this one; 0: before none.
    pub at_operation: AtomicU64,
    /// Fences so far, this one included.
    pub fences: AtomicU64,
    /// The run ends before this fence; 0: before none.
    pub at_fence: AtomicU64,
    /// Not 0 once the run was stopped.
    pub stopped: AtomicU32,
}

impl CrashTrigger {
    /// Starts counting operations and fences from `from`, and ends the run before those in `at`.
    pub fn set(&self, from: (u64, u64), at: (u64, u64)) {
        self.operations.store(from.0, Ordering::Relaxed);
        self.at_operation.store(at.0, Ordering::Relaxed);
        self.fences.store(from.1, Ordering::Relaxed);
        self.at_fence.store(at.1, Ordering::Relaxed);
        self.stopped.store(0, Ordering::Relaxed);
    }
}

/// What a run did, as counters that saturate at 255.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Maps {
    /// Transitions between operations on PM.
    pub pm: [AtomicU8; MAP],
    /// Branches taken.
    pub edges: [AtomicU8; MAP],
}

/// Whose turn it is.
pub mod turn {
    /// The process is on its way to the fork point.
    pub const AWAY: u32 = 0;
    /// pmvet may give an order.
    pub const READY: u32 = 1;
    /// The server has an order to obey.
    pub const ORDERED: u32 = 2;
    /// The process cannot be forked, since it has several threads. It goes on by itself.
    pub const REFUSED: u32 = 3;
    /// The child of a server has read all of its input and waits for pmvet to say whether the rest is wanted.
    pub const PAUSED: u32 = 4;
}

/// The order: a child that runs to its end.
pub const RUN: u32 = u32::MAX;

/// One server: whose turn it is, and the result of the last order.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct ServerSlot {
    turn: AtomicU32,
    /// [`RUN`], or the number of the server that the child should become.
    order: AtomicU32,
    /// The newest child.
    pub child: AtomicU32,
    /// How the newest child that ran to its end ended, as from `waitpid`.
    pub status: AtomicI32,
    /// The server's own process.
    pub process: AtomicU32,
    /// What the process was about to do: see [`ForkPoint`].
    point: AtomicU32,
    /// Not 0: its children can map PM privately.
    pub apart: AtomicU32,
}

/// Where a process stopped to become a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkPoint {
    /// It is about to name a PM file for the first time.
    Files,
    /// It is about to read its input for the first time.
    Input,
}

impl ServerSlot {
    /// Whose turn it is, one of those in [`turn`](mod@turn).
    pub fn turn(&self) -> u32 {
        self.turn.load(Ordering::Acquire)
    }

    /// Changes whose turn it is, and wakes the waiting side.
    pub fn set_turn(&self, turn: u32) {
        self.turn.store(turn, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        // SAFETY: wakes whoever waits for this word.
        unsafe { libc::syscall(libc::SYS_futex, &raw const self.turn, libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
    }

    /// Waits while the turn is `turn`, but no longer than this. Returns the turn it is then.
    pub fn wait_while(&self, turn: u32, most: Duration) -> u32 {
        let time = libc::timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        // SAFETY: the word and the time are valid during the call.
        unsafe {
            libc::syscall(libc::SYS_futex, &raw const self.turn, libc::FUTEX_WAIT, turn, &raw const time, 0, 0);
        }
        self.turn()
    }

    /// The order that the server has to obey, if it is its turn.
    pub fn order(&self) -> u32 {
        self.order.load(Ordering::Relaxed)
    }

    /// Gives an order to a server that is ready.
    pub fn give(&self, order: u32) {
        self.order.store(order, Ordering::Relaxed);
        self.set_turn(turn::ORDERED);
    }

    /// Lets a paused run go on. Its server may have become ready meanwhile, if the run was killed.
    pub fn answer(&self) {
        let paused = self.turn.compare_exchange(turn::PAUSED, turn::ORDERED, Ordering::AcqRel, Ordering::Relaxed);
        if paused.is_ok() {
            self.wake();
        }
    }

    /// Where the process stopped. Meaningful once it is a server.
    pub fn point(&self) -> ForkPoint {
        if self.point.load(Ordering::Relaxed) == 0 { ForkPoint::Files } else { ForkPoint::Input }
    }

    /// Remembers where the process stopped.
    pub fn set_point(&self, point: ForkPoint) {
        self.point.store((point == ForkPoint::Input).into(), Ordering::Relaxed);
    }
}

impl Stage {
    /// The size of the shared memory, in whole pages.
    pub const BYTES: usize = size_of::<Self>().next_multiple_of(4096);

    /// The server of this number, from 0. Numbers from [`SERVERS`] on wrap around.
    pub fn server(&self, number: usize) -> &ServerSlot {
        &self.servers[number % SERVERS]
    }

    /// Remembers that a child translated the code at this address.
    pub fn add_block(&self, tag: u64) {
        let at = self.blocks_used.load(Ordering::Relaxed) as usize;
        if let Some(slot) = self.blocks.get(at) {
            slot.store(tag, Ordering::Relaxed);
            self.blocks_used.store(at as u32 + 1, Ordering::Release);
        }
    }

    /// The addresses from the given position on.
    pub fn blocks_from(&self, position: usize) -> impl Iterator<Item = u64> {
        let used = (self.blocks_used.load(Ordering::Acquire) as usize).min(BLOCKS);
        self.blocks[position.min(used)..used].iter().map(|tag| tag.load(Ordering::Relaxed))
    }
}

impl Maps {
    const BYTES: usize = 2 * MAP;

    /// The counters as they are now. The target must be at rest.
    pub fn copy(&self) -> Vec<u8> {
        // SAFETY: the two maps follow each other, and nobody writes to them now.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), Self::BYTES) }.to_vec()
    }

    /// The target must be at rest.
    pub fn set(&self, counts: &[u8]) {
        let bytes = counts.len().min(Self::BYTES);
        // SAFETY: as in `copy`; atomics may be written through a shared reference.
        unsafe { std::ptr::copy_nonoverlapping(counts.as_ptr(), (&raw const *self).cast_mut().cast(), bytes) };
    }
}

/// pmvet's own mapping of a stage, and the file that processes of the target map.
#[derive(Debug)]
pub struct OwnStage {
    file: File,
    base: NonNull<Stage>,
}

// SAFETY: everything behind `base` is atomic.
unsafe impl Send for OwnStage {}
// SAFETY: as above.
unsafe impl Sync for OwnStage {}

impl OwnStage {
    /// Makes a stage with all counters at 0 and no servers.
    pub fn create() -> io::Result<Self> {
        // SAFETY: the name is a C string; the result is checked, and nobody else owns it.
        let file = unsafe {
            match libc::memfd_create(c"pmvet-stage".as_ptr(), libc::MFD_CLOEXEC) {
                -1 => return Err(io::Error::last_os_error()),
                fd => File::from_raw_fd(fd),
            }
        };
        file.set_len(Stage::BYTES as u64)?;
        // SAFETY: a fresh mapping of a file of this size.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), Stage::BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
        Ok(Self { file, base })
    }

    /// The path by which processes of the target reach it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

impl std::ops::Deref for OwnStage {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        // SAFETY: mapped as long as `self` lives; zeros, which it starts with, are valid; all accesses are atomic.
        unsafe { self.base.as_ref() }
    }
}

impl Drop for OwnStage {
    fn drop(&mut self) {
        // SAFETY: made by `create`, and every reference into it borrows from `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), Stage::BYTES) };
    }
}
