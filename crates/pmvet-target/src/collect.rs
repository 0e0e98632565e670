//! Reads the rings of a running target and puts the events of all threads into one order.
//!
//! Every numbered event has its own number and no number is left out, so the next event is always the one with the next
//! number, whichever ring it is in. Loads carry the number of the last event before them and go between that event and
//! the next one, whichever ring that is in. If a thread is killed between taking a number and publishing its record,
//! the number is lost; such losses are counted and reported.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pmvet_events::event::{Event, LINE, What};
use pmvet_events::ids::{ContextId, FileId, SiteId, ThreadId};
use pmvet_events::places::Places;
use pmvet_events::shm::{RING_BYTES, RingBuffer, RingState, SharedMemory};
use pmvet_events::wire::{self, BadRecord, Brief, Front};

use crate::stalled_threads::Director;
use crate::thread_activity::ThisKernel;

/// A consumer of the events of a run.
pub trait Sink {
    /// The next event, in the order of their numbers. An error ends the run.
    fn event(&mut self, event: &Event<'_>, places: &dyn Places) -> Result<(), SinkError>;

    /// Whether it only counts. Then accesses, flushes and fences arrive through [`count`](Sink::count), and the order of
    /// different threads between two rare events is arbitrary.
    fn counts(&self) -> bool {
        false
    }

    /// The next record of a frequent kind, for a sink that only counts.
    fn count(&mut self, _thread: ThreadId, _record: &Brief, _places: &dyn Places) {}
}

/// A sink has failed, so the run is useless.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct SinkError(pub String);

/// Why the events of a run could not all be passed on.
#[derive(Debug, thiserror::Error)]
pub enum CollectError {
    /// A ring holds something that no client writes.
    #[error("the event stream of thread {thread} is damaged: {source}")]
    Damaged {
        /// The owner of the ring.
        thread: ThreadId,
        /// What was found there.
        source: BadRecord,
    },
    /// The kernel does not let pmvet see the ring of a new thread.
    #[error("cannot map the event ring of a thread: {0}")]
    Map(#[source] std::io::Error),
    /// The sink has given up.
    #[error(transparent)]
    Sink(#[from] SinkError),
}

/// What is missing from a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LostEvents {
    /// Events whose number was taken but whose record never came.
    pub events: u64,
    /// Threads that were killed during a store to PM.
    pub interrupted: u64,
}

impl LostEvents {
    /// Whether nothing is missing.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

struct Ring {
    index: usize,
    buffer: RingBuffer,
    thread: ThreadId,
    process: u32,
    os_thread: u32,
    tail: u64,
    head: u64,
    /// Position of the record at the front.
    position: Position,
    /// The thread is gone without having reported its end.
    dead: bool,
}

impl Ring {
    /// Where the record at the front belongs.
    fn front(&self) -> Position {
        // SAFETY: between our tail and the published head.
        let bytes = unsafe { self.buffer.published(self.tail, self.head) };
        bytes.split_first_chunk().map_or(Position::LAST, |(word, _)| {
            let (seq, kind) = wire::peek(u64::from_le_bytes(*word));
            Position::record(seq, kind)
        })
    }
}

/// Where a record belongs in the order of all rings: the event with number `n` at `2n`, the loads after it at `2n + 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Position(u64);

impl Position {
    /// Before everything else: the position of a load with the number of the record before it in its ring, and of a front
    /// that was not read yet.
    const FIRST: Position = Position(0);
    /// After everything else: the position of an empty ring.
    const LAST: Position = Position(u64::MAX);

    fn event(seq: u64) -> Self {
        Position(2 * seq)
    }

    fn record(seq: u64, kind: u8) -> Self {
        match kind {
            wire::PAD => Position::FIRST,
            wire::LOAD if seq == 0 => Position::FIRST,
            wire::LOAD => Position(2 * seq + 1),
            _ => Position::event(seq),
        }
    }
}

/// How events are passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PassOrder {
    Exact,
    /// In order, but frequent ones need only be counted.
    Counted,
    /// As `Counted`, but each ring by itself: there are no rare events among them.
    Any,
}

pub(crate) struct Collector<'a> {
    shared: &'a SharedMemory,
    rings: Vec<Ring>,
    /// The client's number of the next event to pass on.
    next: u64,
    /// How many rare events were passed on.
    rare: u64,
    /// The last number that the sink has seen.
    sent: u64,
    files: Files,
    loss: LostEvents,
    stalled: Option<(u64, Instant)>,
    looked: Instant,
}

impl<'a> Collector<'a> {
    pub(crate) fn new(shared: &'a SharedMemory) -> Self {
        Self {
            shared,
            rings: Vec::new(),
            next: 1,
            rare: 0,
            sent: 0,
            files: Files::default(),
            loss: LostEvents::default(),
            stalled: None,
            looked: Instant::now(),
        }
    }

    /// A collector that starts after the events so far, which another one has passed on.
    pub(crate) fn from_now(shared: &'a SharedMemory) -> Self {
        let header = shared.header();
        let (next, rare) = (header.next_seq.0.load(Ordering::Acquire), header.rare_begun.load(Ordering::Acquire));
        Self { next, rare, ..Self::new(shared) }
    }

    /// Passes on available events, up to a bound. Returns how many bytes they took.
    pub(crate) fn pump(&mut self, sink: &mut dyn Sink) -> Result<u64, CollectError> {
        let mut total = 0;
        // Read before the heads, so that loads before any event below this number are below the heads.
        let numbered = self.shared.header().next_seq.0.load(Ordering::Acquire);
        self.find_rings()?;
        // Reads each head only once: each read takes the cache line from the thread that writes it.
        for ring in &mut self.rings {
            ring.head = self.shared.control(ring.index).head.0.load(Ordering::Acquire);
            ring.position = ring.front();
        }
        let order = match sink.counts() {
            false => PassOrder::Exact,
            // Read after the heads: what is before those comes before any rare event that is still to come.
            true if self.shared.header().rare_begun.load(Ordering::Acquire) == self.rare => PassOrder::Any,
            true => PassOrder::Counted,
        };
        while total < MAX_BATCH_BYTES {
            let mut moved = 0;
            for i in 0..self.rings.len() {
                if order == PassOrder::Any || self.rings[i].position <= Position::event(self.next) {
                    moved += self.drain(i, sink, order, numbered)?;
                }
            }
            if moved == 0 {
                break;
            }
            total += moved;
        }
        self.release_rings(sink)?;
        Ok(total)
    }

    fn find_rings(&mut self) -> Result<(), CollectError> {
        let used = self.shared.header().rings_used.load(Ordering::Acquire) as usize;
        if self.rings.len() == used {
            return Ok(());
        }
        for index in 0..used {
            if self.rings.iter().any(|r| r.index == index) {
                continue;
            }
            let control = self.shared.control(index);
            let (RingState::Active(thread) | RingState::Closed(thread)) = control.state() else { continue };
            if control.ready.load(Ordering::Acquire) == 0 {
                continue;
            }
            let tail = control.tail.0.load(Ordering::Acquire);
            self.rings.push(Ring {
                index,
                buffer: self.shared.ring_buffer(index).map_err(CollectError::Map)?,
                thread,
                process: control.process.load(Ordering::Relaxed),
                os_thread: control.os_thread.load(Ordering::Relaxed),
                tail,
                head: tail,
                position: Position::LAST,
                dead: false,
            });
        }
        Ok(())
    }

    /// Passes on the records at the front of one ring that are next in order: only events below `numbered`, and only once
    /// all rings have passed on the loads before them. Returns how many bytes they took.
    fn drain(&mut self, i: usize, sink: &mut dyn Sink, order: PassOrder, numbered: u64) -> Result<u64, CollectError> {
        let Self { shared, rings, next, rare, sent, files, .. } = self;
        let others = rings.iter().enumerate().filter(|(other, _)| *other != i).map(|(_, ring)| ring.position);
        let mut bound = Position::event(numbered.saturating_sub(1));
        if order == PassOrder::Exact {
            bound = others.fold(bound, Position::min);
        }
        let ring = &mut rings[i];
        let control = shared.control(ring.index);
        let first = ring.tail;
        let mut start = first;
        let mut replaced = None;
        ring.position = Position::FIRST;
        loop {
            if ring.tail == ring.head {
                ring.position = Position::LAST;
                break;
            }
            // SAFETY: between our tail and the published head.
            let bytes = unsafe { ring.buffer.published(ring.tail, ring.head) };
            let damaged = |source| CollectError::Damaged { thread: ring.thread, source };
            let (word, _) = bytes.split_first_chunk().ok_or(damaged(BadRecord { kind: 0 }))?;
            let (seq, kind) = wire::peek(u64::from_le_bytes(*word));
            let position = Position::record(seq, kind);
            let is_load = kind == wire::LOAD;
            let too_early = position > Position::event(*next) || !is_load && position > bound;
            if too_early && order != PassOrder::Any {
                ring.position = position;
                break;
            }
            let step = u64::from(!is_load);
            if order != PassOrder::Exact
                && let Some(record) = wire::brief(bytes)
            {
                *next += step;
                *sent += step;
                sink.count(ring.thread, &record, *shared);
                ring.tail += record.len as u64;
            } else if let Front::Record { mut event, len } = wire::read(bytes, ring.thread).map_err(damaged)? {
                *next += step;
                // Only rare events are about files and processes.
                if kind != wire::RARE || files.canonical(&mut event.what) {
                    *sent += step;
                    event.seq = *sent;
                    sink.event(&event, *shared)?;
                }
                ring.tail += len as u64;
                if kind == wire::RARE {
                    *rare += 1;
                    if let What::ProcessStart { process, .. } = event.what {
                        replaced = Some((process, ring.thread));
                    }
                }
            } else {
                ring.tail += (RING_BYTES - ring.tail as usize % RING_BYTES) as u64;
            }
            if ring.tail - start > (RING_BYTES / 4) as u64 {
                // The producer may be waiting for room.
                control.tail.0.store(ring.tail, Ordering::Release);
                start = ring.tail;
                if start - first > MAX_BATCH_BYTES {
                    break;
                }
            }
        }
        if ring.tail != start {
            control.tail.0.store(ring.tail, Ordering::Release);
        }
        let moved = ring.tail - first;
        if let Some((process, thread)) = replaced {
            // The process runs another program now; the threads of the last one are gone without reporting their end.
            for ring in rings.iter_mut().filter(|r| r.process == process && r.thread < thread) {
                ring.dead = true;
            }
        }
        Ok(moved)
    }

    /// Tells `director` which threads are stopped at stalls, once all their earlier events were passed on, and releases
    /// those that may go on.
    pub(crate) fn direct(&mut self, director: &mut Director) {
        let now = Instant::now();
        for ring in &self.rings {
            let control = self.shared.control(ring.index);
            let stall = control.stalled.load(Ordering::Acquire);
            if stall != 0 && control.head.0.load(Ordering::Acquire) == ring.tail {
                director.stopped(ring.thread, stall, now);
            }
        }
        if director.is_idle() {
            return;
        }
        let (free, over) = director.release(now, &ThisKernel);
        for stall in over {
            self.shared.header().stalls_over.0.fetch_or(1 << (stall - 1), Ordering::Relaxed);
        }
        for ring in self.rings.iter().filter(|ring| free.contains(&ring.thread)) {
            self.shared.control(ring.index).end_stall();
        }
    }

    /// Releases the rings of threads that have ended and whose events were all passed on.
    fn release_rings(&mut self, sink: &mut dyn Sink) -> Result<(), CollectError> {
        let mut i = 0;
        while i < self.rings.len() {
            let ring = &self.rings[i];
            let control = self.shared.control(ring.index);
            let closed = control.state() == RingState::Closed(ring.thread) || ring.dead;
            if !closed || control.head.0.load(Ordering::Acquire) != ring.tail {
                i += 1;
                continue;
            }
            let (thread, dead) = (ring.thread, ring.dead);
            self.rings.swap_remove(i);
            if let Some((addr, size)) = control.free()
                && dead
            {
                self.loss.interrupted += 1;
                self.sent += 1;
                let what = What::Interrupted { addr, size: size.max(LINE) as u32 };
                let (site, context) = (SiteId(0), ContextId(0));
                sink.event(&Event { seq: self.sent, thread, site, context, what }, self.shared)?;
            }
        }
        Ok(())
    }

    /// Checks periodically for threads that were killed, and for numbers that were lost with them.
    pub(crate) fn notice_deaths(&mut self) {
        const EVERY: Duration = Duration::from_millis(100);
        if self.looked.elapsed() < EVERY {
            return;
        }
        self.looked = Instant::now();
        let waiting = self.rings.iter().any(|r| r.tail != r.head);
        match self.stalled {
            Some((next, since)) if waiting && next == self.next => {
                let killed = self.rings.iter().any(|r| r.dead);
                if killed && since.elapsed() > 5 * EVERY {
                    self.skip_lost();
                }
            }
            _ => self.stalled = waiting.then(|| (self.next, Instant::now())),
        }
        for ring in &mut self.rings {
            let active = self.shared.control(ring.index).state() == RingState::Active(ring.thread);
            ring.dead = ring.dead || active && !thread_exists(ring.os_thread);
        }
    }

    /// Skips lost numbers: goes on with the smallest one that did come.
    fn skip_lost(&mut self) {
        let fronts = self.rings.iter().map(Ring::front).filter(|&front| front != Position::LAST);
        // A load waits until the event after it is next.
        if let Some(first) = fronts.min().map(|front| front.0.div_ceil(2))
            && first > self.next
        {
            self.loss.events += first - self.next;
            self.next = first;
        }
    }

    /// Passes on the rest, after all processes have ended.
    pub(crate) fn finish(&mut self, sink: &mut dyn Sink) -> Result<LostEvents, CollectError> {
        loop {
            while self.pump(sink)? > 0 {}
            for ring in &mut self.rings {
                let control = self.shared.control(ring.index);
                ring.dead = control.state() == RingState::Active(ring.thread);
            }
            let before = self.next;
            self.skip_lost();
            if self.next == before && self.pump(sink)? == 0 {
                break;
            }
        }
        let taken = self.shared.header().next_seq.0.load(Ordering::Acquire);
        self.loss.events += taken.saturating_sub(self.next);
        Ok(self.loss)
    }
}

/// How many bytes of events are passed on before pmvet does anything else.
const MAX_BATCH_BYTES: u64 = 16 * RING_BYTES as u64;

fn thread_exists(thread: u32) -> bool {
    // SAFETY: signal 0 only asks.
    unsafe { libc::syscall(libc::SYS_tkill, thread, 0) == 0 }
}

/// Two processes may open the same file independently and number it twice. This gives it one id.
#[derive(Default)]
struct Files {
    by_inode: HashMap<(u64, u64), FileId>,
    canonical: HashMap<FileId, FileId>,
}

impl Files {
    /// Replaces the file's id by its first one. False if the event only repeats what is known.
    fn canonical(&mut self, what: &mut What<'_>) -> bool {
        match what {
            What::File { file, device, inode, .. } => {
                let first = *self.by_inode.entry((*device, *inode)).or_insert(*file);
                self.canonical.insert(*file, first);
                let new = first == *file;
                *file = first;
                return new;
            }
            What::Map { file, .. }
            | What::FileWrite { file, .. }
            | What::FileRead { file, .. }
            | What::FileZero { file, .. }
            | What::FileResize { file, .. }
            | What::FileSync { file, .. }
            | What::FileRename { file, .. } => self.replace(file),
            What::FileUnlink { file } => {
                self.replace(file);
                // The inode may be reused for another file.
                self.by_inode.retain(|_, known| known != file);
            }
            _ => {}
        }
        true
    }

    fn replace(&self, file: &mut FileId) {
        if let Some(&first) = self.canonical.get(file) {
            *file = first;
        }
    }
}

#[cfg(test)]
mod scripted_rings;
