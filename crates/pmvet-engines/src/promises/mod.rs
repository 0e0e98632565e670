//! What a program has promised by the moment of a crash, and whether what is left keeps it: durable linearizability.
//!
//! The user's operations are lines of input, or the requests of a server's clients ([`connections`]). An operation that was answered is
//! *acknowledged*: after a crash its effect must be there. One that has begun but was not answered may be there as a whole, or not at all.
//! [`Promises`] says which operations are which at each moment of a recorded run. A [`judge`] runs the program natively on the operations
//! that may have happened, and compares the [`content`] that it leaves with what a recovered crash image holds. [`durable`] puts the two
//! together for a run.
//!
//! After Witcher (Fu, Kim, Shree, Won, Chen, Lee and Huang, SOSP 2021), section 4, which compares the answers after a crash with those of
//! two executions: with the operation under way and without it. Deviations: the user names a command that shows the whole content,
//! several operations may be under way, and operations are told apart by what the program reads and answers, not by a linked-in
//! driver.

pub mod connections;
pub mod content;
pub mod durable;
pub mod judge;
pub mod questions;

use std::collections::{BTreeSet, HashMap};

use pmvet_events::ThreadId;
use pmvet_events::event::{Event, MarkerKind, StoreKind, What};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// Identifies a promise by its content: the same in every run. 0 means none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PromiseId(pub u64);

impl PromiseId {
    /// The content is not compared.
    pub const NONE: Self = Self(0);
}

/// Operations, by their position in the input, at one moment of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Promise {
    /// All operations before this one are acknowledged ...
    pub done: u32,
    /// ... and these, which come after others that are not.
    pub more: Vec<u32>,
    /// Operations that have begun and are not acknowledged.
    pub open: Vec<u32>,
    /// Those of `open` that the program began after it had finished the previous ones.
    #[serde(default)]
    pub in_order: Vec<u32>,
}

impl Promise {
    fn id(&self) -> PromiseId {
        let mut hash = Xxh3::new();
        for part in [&[self.done][..], &self.more, &[u32::MAX], &self.open, &[u32::MAX], &self.in_order] {
            part.iter().for_each(|number| hash.update(&number.to_le_bytes()));
        }
        PromiseId(hash.digest().max(1))
    }

    /// The same for promises with the same acknowledged operations, whatever is under way.
    pub fn acknowledged_id(&self) -> PromiseId {
        Self { done: self.done, more: self.more.clone(), ..Self::default() }.id()
    }

    /// A promise with these operations acknowledged, and those under way.
    fn from_operations(done: &BTreeSet<u32>, open: &BTreeSet<u32>) -> Self {
        let first = (0..).zip(done).find(|(i, operation)| i != *operation).map_or(done.len() as u32, |(i, _)| i);
        let (more, open) = (done.range(first..).copied().collect(), open.iter().copied().collect());
        Self { done: first, more, open, in_order: Vec::new() }
    }

    /// The operations that are acknowledged.
    fn acknowledged(&self) -> Vec<u32> {
        (0..self.done).chain(self.more.iter().copied()).collect()
    }

    /// The open operations, in groups: the program finished one group before it began the next. Within a group, any may be missing after a
    /// crash.
    fn groups(&self) -> impl Iterator<Item = &[u32]> {
        self.open.chunk_by(|_, next| !self.in_order.contains(next))
    }

    /// The last operation that is acknowledged.
    pub fn last_done(&self) -> Option<u32> {
        self.more.last().copied().or(self.done.checked_sub(1))
    }
}

/// How to tell that an operation is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledgement {
    /// Its answer was written: there is one line of output for each operation.
    Answer,
    /// Any output was written after it was read.
    Output,
    /// The program, which prints nothing, has read the next one.
    NextRead,
    /// The program says so (`PMVET_OP_END`).
    Marker,
    /// A server has replied: there is one line for each request.
    Reply,
    /// A server has written the whole of its reply.
    WholeReply,
}

/// Why operations cannot be told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Indistinct {
    /// There are none.
    NoOperations,
    /// pmvet saw no read of the input.
    NotRead,
    /// All of it was read before the first change of PM.
    ReadAtOnce,
    /// This many markers, but that many lines.
    Markers(usize, usize),
    /// A server got no requests, or none that pmvet saw.
    NoRequests,
    /// The requests to a server are not lines of text.
    NoLines,
    /// A server has replied to nothing.
    NoReplies,
    /// There are more requests than pmvet keeps.
    TooManyRequests,
}

/// When an operation was under way, by the numbers of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationSpan {
    began: u64,
    /// When it was acknowledged.
    ended: u64,
    /// The thread that executed it, if known.
    thread: Option<ThreadId>,
}

impl OperationSpan {
    /// Of an operation that has not begun.
    const NEVER: Self = Self { began: u64::MAX, ended: u64::MAX, thread: None };

    fn overlaps(&self, other: &Self) -> bool {
        self.began < other.ended && other.began < self.ended
    }
}

/// The promises of a run, by moment.
#[derive(Debug, Clone, Default)]
pub struct Promises {
    promises: HashMap<PromiseId, Promise>,
    /// Each promise holds from the event with this number on; in order.
    since: Vec<(u64, PromiseId)>,
    /// When each operation was under way, if several may have been at a time.
    spans: Vec<OperationSpan>,
}

impl Promises {
    /// This promise, at every moment.
    pub fn only(promise: Promise) -> Self {
        let mut promises = Self::default();
        promises.push(0, promise);
        promises
    }

    /// The same promise at every moment: a recovery promises nothing new.
    pub fn fixed(&self, id: PromiseId) -> Self {
        let only = self.get(id).cloned().map(Self::only).unwrap_or_default();
        Self { spans: self.spans.clone(), ..only }
    }

    /// What is promised if the crash comes before the event with this number.
    pub fn at(&self, seq: u64) -> PromiseId {
        let later = self.since.partition_point(|&(since, _)| since < seq);
        later.checked_sub(1).map_or(PromiseId::NONE, |i| self.since[i].1)
    }

    /// The promise with this id. Nothing for [`PromiseId::NONE`], and for promises of other runs.
    pub fn get(&self, id: PromiseId) -> Option<&Promise> {
        self.promises.get(&id)
    }

    /// When each operation was under way, if several may have been at a time.
    pub fn spans(&self) -> &[OperationSpan] {
        &self.spans
    }

    /// A weaker promise: what a thread has acknowledged after this event may be missing.
    pub fn without_thread(&mut self, id: PromiseId, thread: ThreadId, since: u64) -> PromiseId {
        let Some(promise) = self.promises.get(&id) else { return id };
        let is_late =
            |o: &u32| self.spans.get(*o as usize).is_some_and(|span| span.thread == Some(thread) && span.ended > since);
        let (late, done): (BTreeSet<u32>, BTreeSet<u32>) = promise.acknowledged().into_iter().partition(is_late);
        if late.is_empty() {
            return id;
        }
        let open = late.into_iter().chain(promise.open.iter().copied()).collect();
        let weaker = Promise::from_operations(&done, &open);
        let id = weaker.id();
        self.promises.entry(id).or_insert(weaker);
        id
    }

    fn push(&mut self, seq: u64, promise: Promise) {
        let id = promise.id();
        if self.since.last().is_none_or(|&(_, last)| last != id) {
            self.promises.entry(id).or_insert(promise);
            self.since.push((seq, id));
        }
    }
}

/// Something that begins or ends an operation.
#[derive(Debug, Clone)]
enum Sign {
    /// Whether, since the last read, the program has changed PM or made something persistent.
    Read {
        len: u64,
        after_change: bool,
        after_persist: bool,
    },
    Wrote {
        lines: u64,
    },
    Begin {
        text: String,
    },
    /// `changed`: its thread has changed PM since the operation began.
    End {
        changed: bool,
    },
    Accepted {
        connection: u32,
        address: String,
    },
    Request {
        connection: u32,
        data: Vec<u8>,
    },
    Reply {
        connection: u32,
        lines: u64,
    },
}

/// How many bytes of requests are kept.
const MOST_REQUESTS: usize = 64 << 20;

/// Makes [`Promises`] out of events.
///
/// # What must be there after a crash
///
/// ```
/// use pmvet_engines::promises::{Acknowledgement, OperationSigns};
/// use pmvet_events::event::StoreKind;
/// use pmvet_events::{ContextId, Event, SiteId, ThreadId, What};
///
/// let store = What::Store { addr: 0x1000, value: &[1], how: StoreKind::Regular };
/// let answer = What::Output { len: 3, lines: 1 };
/// let run = [What::Input { len: 8 }, store, answer, What::Input { len: 6 }, store, answer];
/// let mut signs = OperationSigns::default();
/// for (seq, what) in (1..).zip(run) {
///     signs.event(&Event { seq, thread: ThreadId(1), site: SiteId(0), context: ContextId(0), what });
/// }
/// let (promises, how) = signs.promises(&["put 1 a", "del 1"]).expect("two operations, two answers");
/// assert_eq!(how, Acknowledgement::Answer);
/// // The crash comes before the second answer: `put` must be there, `del` may be.
/// let promise = promises.get(promises.at(6)).expect("a promise for each moment");
/// assert_eq!((promise.done, &promise.open[..]), (1, &[1][..]));
/// ```
#[derive(Debug, Default)]
pub struct OperationSigns {
    signs: Vec<(u64, ThreadId, Sign)>,
    /// Number of the first change of PM after some input was read.
    first_change: Option<u64>,
    /// Threads that read the input, or changed PM after some of it was read.
    workers: BTreeSet<ThreadId>,
    /// Those that have changed PM since their last marker that begins an operation.
    changed_by: BTreeSet<ThreadId>,
    since_read: PersistSteps,
    /// How many bytes of requests it has.
    request_bytes: usize,
    too_many_requests: bool,
}

/// How far the program has come on the way to something persistent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum PersistSteps {
    #[default]
    Nothing,
    Stored,
    Flushed,
    Persistent,
}

impl OperationSigns {
    /// Takes the next event of the run.
    pub fn event(&mut self, event: &Event<'_>) {
        let sign = match event.what {
            What::Input { len } => {
                self.workers.insert(event.thread);
                let steps = std::mem::take(&mut self.since_read);
                let (after_change, after_persist) = (steps >= PersistSteps::Stored, steps == PersistSteps::Persistent);
                Sign::Read { len, after_change, after_persist }
            }
            What::Output { lines, .. } => Sign::Wrote { lines },
            What::Marker { how: MarkerKind::OpBegin, text, .. } => {
                self.changed_by.remove(&event.thread);
                Sign::Begin { text: text.into() }
            }
            What::Marker { how: MarkerKind::OpEnd, .. } => {
                Sign::End { changed: self.changed_by.contains(&event.thread) }
            }
            What::Connection { connection, address } => Sign::Accepted { connection, address: address.into() },
            What::Request { connection, data } => {
                self.request_bytes += data.len();
                if self.request_bytes > MOST_REQUESTS {
                    self.too_many_requests = true;
                    return;
                }
                Sign::Request { connection, data: data.into() }
            }
            What::Reply { connection, lines, .. } => Sign::Reply { connection, lines },
            _ if self.signs.is_empty() => return,
            _ => return self.follow(event),
        };
        self.signs.push((event.seq, event.thread, sign));
    }

    /// Tracks changes and persists of PM between two reads.
    fn follow(&mut self, event: &Event<'_>) {
        use PersistSteps::{Flushed, Persistent, Stored};
        let (step, changes) = match event.what {
            What::Store { how: StoreKind::NonTemporal, .. } => (Flushed, true),
            What::Store { .. } | What::FileWrite { .. } => (Stored, true),
            What::Rmw { stored, .. } if self.since_read >= Flushed => (Persistent, stored),
            What::Rmw { stored: true, .. } => (Stored, true),
            What::Flush { pm: true, .. } if self.since_read >= Stored => (Flushed, false),
            What::Fence { .. } if self.since_read >= Flushed => (Persistent, false),
            What::FileSync { .. } if self.since_read >= Stored => (Persistent, false),
            _ => return,
        };
        self.since_read = self.since_read.max(step);
        if changes {
            self.first_change.get_or_insert(event.seq);
            self.workers.insert(event.thread);
            self.changed_by.insert(event.thread);
        }
    }

    /// The promises of a run whose operations were these lines, and how acknowledgements are known.
    pub fn promises(&self, lines: &[&str]) -> Result<(Promises, Acknowledgement), Indistinct> {
        if lines.is_empty() {
            return Err(Indistinct::NoOperations);
        }
        if self.signs.iter().any(|(.., sign)| matches!(sign, Sign::Begin { .. })) {
            return self.by_markers(lines, &[]).map(|promises| (promises, Acknowledgement::Marker));
        }
        let reads: Vec<u64> = self
            .signs
            .iter()
            .filter(|(.., s)| matches!(s, Sign::Read { len: 1.., .. }))
            .map(|(seq, ..)| *seq)
            .collect();
        let Some(&last) = reads.last() else { return Err(Indistinct::NotRead) };
        if lines.len() > 1 && self.first_change.is_none_or(|change| change > last) {
            return Err(Indistinct::ReadAtOnce);
        }
        let how = self.acknowledgement(lines.len());
        Ok((self.by_reads(lines, how), how))
    }

    fn acknowledgement(&self, operations: usize) -> Acknowledgement {
        let first_read = self.signs.iter().position(|(.., sign)| matches!(sign, Sign::Read { .. })).unwrap_or(0);
        let written = self.signs[first_read..].iter().map(|(.., sign)| match sign {
            Sign::Wrote { lines } => *lines,
            _ => 0,
        });
        match written.sum::<u64>() {
            0 => match self.signs[first_read..].iter().any(|(.., sign)| matches!(sign, Sign::Wrote { .. })) {
                true => Acknowledgement::Output,
                false => Acknowledgement::NextRead,
            },
            lines if lines == operations as u64 => Acknowledgement::Answer,
            _ => Acknowledgement::Output,
        }
    }

    fn by_reads(&self, lines: &[&str], how: Acknowledgement) -> Promises {
        let ends = line_ends(lines);
        let mut promises = Promises::default();
        let (mut bytes, mut answers) = (0, 0);
        let (mut begun, mut done) = (0, 0);
        // A thread that reads the next operation is done with the last one. A program may collect operations and execute them together;
        // pmvet assumes that one that makes something persistent before it reads on executes them one by one.
        let one_by_one = self.workers.len() == 1;
        let (mut in_order, mut is_new) = (BTreeSet::new(), false);
        promises.push(0, Promise::default());
        let mut spans = vec![OperationSpan::NEVER; lines.len()];
        let mut has_read = false;
        for (seq, _, sign) in &self.signs {
            let before = (begun, done);
            match sign {
                Sign::Read { len, after_persist, .. } => {
                    has_read = true;
                    is_new |= *after_persist;
                    if how == Acknowledgement::NextRead {
                        done = begun;
                    }
                    bytes += len;
                    let next = begun_by(&ends, bytes).max(begun);
                    if next > begun && std::mem::take(&mut is_new) && one_by_one {
                        in_order.insert(begun);
                    }
                    begun = next;
                }
                Sign::Wrote { lines } if has_read => {
                    answers += lines;
                    done = match how {
                        Acknowledgement::Answer => begun.min(answers as u32),
                        Acknowledgement::Output => begun,
                        _ => done,
                    };
                }
                _ => continue,
            }
            spans[before.0 as usize..begun as usize].iter_mut().for_each(|span| span.began = *seq);
            spans[before.1 as usize..done as usize].iter_mut().for_each(|span| span.ended = *seq);
            let open = (done..begun).collect();
            let in_order = in_order.range(done..begun).copied().collect();
            promises.push(*seq, Promise { done, open, in_order, ..Promise::default() });
        }
        if !one_by_one {
            promises.spans = spans;
        }
        promises
    }

    /// `readers` are the threads that have read the lines, if known: a marker without a text means a line of its own
    /// thread.
    fn by_markers(&self, lines: &[&str], readers: &[ThreadId]) -> Result<Promises, Indistinct> {
        let begins = self.signs.iter().filter(|(.., sign)| matches!(sign, Sign::Begin { .. })).count();
        if begins > lines.len() {
            return Err(Indistinct::Markers(begins, lines.len()));
        }
        let mut left: BTreeSet<u32> = (0..lines.len() as u32).collect();
        let mut running: HashMap<ThreadId, Vec<u32>> = HashMap::new();
        let mut done: BTreeSet<u32> = BTreeSet::new();
        let mut open: BTreeSet<u32> = BTreeSet::new();
        let mut promises = Promises { spans: vec![OperationSpan::NEVER; lines.len()], ..Promises::default() };
        promises.push(0, Promise::default());
        for (seq, thread, sign) in &self.signs {
            match sign {
                Sign::Begin { text } => {
                    let text = text.trim_end();
                    let named = left.iter().find(|&&i| !text.is_empty() && lines[i as usize].trim_end() == text);
                    let own = || left.iter().find(|&&i| readers.get(i as usize) == Some(thread));
                    let unnamed = || own().or(left.first()).filter(|_| text.is_empty());
                    let Some(operation) = named.or_else(unnamed).copied() else {
                        return Err(Indistinct::Markers(begins, lines.len()));
                    };
                    left.remove(&operation);
                    open.insert(operation);
                    let span = &mut promises.spans[operation as usize];
                    (span.began, span.thread) = (*seq, Some(*thread));
                    running.entry(*thread).or_default().push(operation);
                }
                Sign::End { .. } => {
                    let Some(operation) = running.entry(*thread).or_default().pop() else { continue };
                    open.remove(&operation);
                    done.insert(operation);
                    promises.spans[operation as usize].ended = *seq;
                }
                _ => continue,
            }
            promises.push(*seq, Promise::from_operations(&done, &open));
        }
        Ok(promises)
    }
}

/// Where each line ends; the last may lack its end.
fn line_ends(lines: &[&str]) -> Vec<u64> {
    let end = |at: &mut u64, line: &&str| {
        *at += line.len() as u64 + 1;
        Some(*at)
    };
    lines.iter().scan(0, end).collect()
}

/// How many lines have begun when this many bytes were read.
fn begun_by(ends: &[u64], bytes: u64) -> u32 {
    ends.partition_point(|&end| end <= bytes.saturating_add(1)) as u32
}

/// The operations of an input: its lines.
pub fn operations(input: &str) -> Vec<&str> {
    input.lines().collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use pmvet_events::event::{FenceKind, FlushKind};
    use pmvet_events::{ContextId, SiteId};

    const LINES: &[&str] = &["put 1 a", "put 2 b", "del 1"];

    fn signs(events: &[(u32, What<'_>)]) -> OperationSigns {
        let mut signs = OperationSigns::default();
        for (seq, (thread, what)) in (1..).zip(events) {
            signs.event(&Event { seq, thread: ThreadId(*thread), site: SiteId(0), context: ContextId(0), what: *what });
        }
        signs
    }

    const STORE: What<'static> = What::Store { addr: 0, value: &[1], how: StoreKind::Regular };
    const FLUSH: What<'static> = What::Flush { addr: 0, how: FlushKind::Clwb, pm: true };
    const FENCE: What<'static> = What::Fence { how: FenceKind::Sfence };

    fn read(len: u64) -> (u32, What<'static>) {
        (1, What::Input { len })
    }

    fn wrote(lines: u64) -> (u32, What<'static>) {
        (1, What::Output { len: lines * 3, lines })
    }

    fn at(promises: &Promises, seq: u64) -> (u32, Vec<u32>, Vec<u32>) {
        let promise = promises.get(promises.at(seq)).unwrap();
        (promise.done, promise.more.clone(), promise.open.clone())
    }

    #[test]
    fn an_answer_acknowledges_its_operation() {
        let events =
            [read(8), (1, STORE), wrote(1), read(8), (1, STORE), wrote(1), read(6), (1, STORE), wrote(1), read(0)];
        let (promises, how) = signs(&events).promises(LINES).unwrap();
        assert_eq!(how, Acknowledgement::Answer);
        assert_eq!(at(&promises, 1), (0, vec![], vec![]));
        assert_eq!(at(&promises, 3), (0, vec![], vec![0]), "begun, not answered");
        assert_eq!(at(&promises, 4), (1, vec![], vec![]), "after the answer");
        assert_eq!(at(&promises, 6), (1, vec![], vec![1]));
        assert_eq!(at(&promises, 11), (3, vec![], vec![]));
    }

    #[test]
    fn answers_that_come_later_than_the_next_read_acknowledge_their_own() {
        let events = [read(8), read(8), (1, STORE), wrote(1), (1, STORE), wrote(1), read(6), (1, STORE), wrote(1)];
        let (promises, _) = signs(&events).promises(LINES).unwrap();
        assert_eq!(at(&promises, 5), (1, vec![], vec![1]));
    }

    #[test]
    fn any_output_acknowledges_what_was_read_before() {
        let events = [read(8), (1, STORE), wrote(2), read(8), (1, STORE), read(6), (1, STORE), wrote(3)];
        let (promises, how) = signs(&events).promises(LINES).unwrap();
        assert_eq!(how, Acknowledgement::Output);
        assert_eq!(at(&promises, 4), (1, vec![], vec![]));
        assert_eq!(at(&promises, 7), (1, vec![], vec![1, 2]));
        assert_eq!(at(&promises, 9), (3, vec![], vec![]));
    }

    #[test]
    fn where_nothing_is_printed_the_next_read_ends_an_operation() {
        let events = [read(8), (1, STORE), read(8), (1, STORE), read(6), (1, STORE), read(0)];
        let (promises, how) = signs(&events).promises(LINES).unwrap();
        assert_eq!(how, Acknowledgement::NextRead);
        assert_eq!(at(&promises, 4), (1, vec![], vec![1]));
        assert_eq!(at(&promises, 8), (3, vec![], vec![]));
    }

    #[test]
    fn one_thread_that_persists_between_reads_works_in_order() {
        let persist = |thread| [(thread, STORE), (thread, FLUSH), (thread, FENCE)];
        let groups = |first: &[(u32, What<'static>)], second: &[(u32, What<'static>)]| {
            let mut events = vec![read(8)];
            events.extend(first);
            events.push(read(8));
            events.extend(second);
            events.extend([read(6), (1, STORE), wrote(7)]);
            let (promises, _) = signs(&events).promises(LINES).unwrap();
            let promise = promises.get(promises.at(events.len() as u64)).unwrap().clone();
            assert_eq!(promise.open, [0, 1, 2]);
            promise.groups().map(<[u32]>::to_vec).collect::<Vec<_>>()
        };
        assert_eq!(groups(&persist(1), &persist(1)), [vec![0], vec![1], vec![2]]);
        assert_eq!(groups(&[(1, STORE)], &persist(1)), [vec![0, 1], vec![2]], "the first waits for the second");
        assert_eq!(groups(&[(1, STORE)], &[(1, FENCE)]), [vec![0, 1, 2]], "nothing is flushed");
        assert_eq!(groups(&persist(1), &persist(2)), [vec![0, 1, 2]], "another thread works");
    }

    #[test]
    fn what_is_read_at_once_cannot_be_told_apart() {
        let events = [read(8), read(8), read(6), read(0), (1, STORE), wrote(3)];
        assert_eq!(signs(&events).promises(LINES).unwrap_err(), Indistinct::ReadAtOnce);
        assert_eq!(signs(&[(1, STORE)]).promises(LINES).unwrap_err(), Indistinct::NotRead);
        assert_eq!(signs(&[]).promises(&[]).unwrap_err(), Indistinct::NoOperations);
    }

    #[test]
    fn markers_tell_operations_of_threads_apart() {
        let mark = |thread, how, text| (thread, What::Marker { how, addr: 0, len: 0, text });
        let events = [
            read(22),
            mark(2, MarkerKind::OpBegin, "del 1"),
            mark(3, MarkerKind::OpBegin, "put 1 a"),
            mark(2, MarkerKind::OpEnd, ""),
            mark(2, MarkerKind::OpBegin, ""),
            mark(3, MarkerKind::OpEnd, ""),
        ];
        let (promises, how) = signs(&events).promises(LINES).unwrap();
        assert_eq!(how, Acknowledgement::Marker);
        assert_eq!(at(&promises, 4), (0, vec![], vec![0, 2]));
        assert_eq!(at(&promises, 5), (0, vec![2], vec![0]));
        assert_eq!(at(&promises, 6), (0, vec![2], vec![0, 1]), "no text: the next line");
        assert_eq!(at(&promises, 7), (1, vec![2], vec![1]));
        let mut weaker = promises.clone();
        let id = weaker.without_thread(promises.at(7), ThreadId(3), 3);
        assert_eq!(weaker.get(id).unwrap(), &Promise { more: vec![2], open: vec![0, 1], ..Promise::default() });
        let before = promises.at(5);
        assert_eq!(weaker.without_thread(before, ThreadId(3), 3), before, "it has acknowledged nothing yet");
        let unknown = [mark(1, MarkerKind::OpBegin, "put 9 z")];
        assert_eq!(signs(&unknown).promises(LINES).unwrap_err(), Indistinct::Markers(1, 3));
    }

    #[test]
    fn equal_promises_have_equal_names() {
        let events = [read(8), (1, STORE), wrote(1), read(8), (1, STORE), wrote(1), read(6), (1, STORE), wrote(1)];
        let [first, second] = [(); 2].map(|()| signs(&events).promises(LINES).unwrap().0);
        assert_eq!(first.at(5), second.at(5));
        assert_ne!(first.at(5), first.at(3));
        assert_eq!(Promises::default().at(5), PromiseId::NONE);
        assert_eq!(at(&first.fixed(first.at(5)), 99), at(&first, 5));
    }
}
