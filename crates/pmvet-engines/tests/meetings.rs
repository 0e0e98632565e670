//! Meetings on scripted events: whose stores are lost, and which thread is to blame.

#![allow(clippy::unwrap_used, reason = "a test")]

use pmvet_engines::confirm::meetings::MeetingScanner;
use pmvet_engines::confirm::{Meeting, Meetings};
use pmvet_events::event::{Event, FenceKind, FlushKind, StoreKind, What};
use pmvet_events::{ContextId, FileId, SiteId, ThreadId};
use pmvet_model::Mode;
use pmvet_target::crash::Patch;
use pmvet_target::mapped::MappedFile;
use pmvet_target::recording::Recording;

const FILE: FileId = FileId(1);
const BASE: u64 = 0x10_0000;
const SIZE: u64 = 4096;

struct Script {
    scanner: MeetingScanner,
    seq: u64,
    /// Holds the file as it was at first.
    _folder: tempfile::TempDir,
}

impl Script {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let recording = Recording::open(folder.path());
        std::fs::write(recording.base(FILE), vec![0; SIZE as usize]).unwrap();
        let store = MappedFile::new(tempfile::tempfile().unwrap());
        let mut script = Self { scanner: MeetingScanner::new(&recording, Mode::Adr, store), seq: 0, _folder: folder };
        script.send(1, 0, What::ProcessStart { process: 1, parent: 0, path: "".as_ref() });
        for thread in 1..=3 {
            script.send(thread, 0, What::ThreadStart { process: 1, os_thread: thread });
        }
        script.send(1, 0, What::File { file: FILE, size: SIZE, device: 1, inode: 1, path: "pool".as_ref() });
        script.send(1, 0, What::Map { file: FILE, addr: BASE, len: SIZE, offset: 0, writable: true });
        script
    }

    /// Returns the event's number.
    fn send(&mut self, thread: u32, site: u32, what: What<'_>) -> u64 {
        self.seq += 1;
        let (thread, site, context) = (ThreadId(thread), SiteId(site), ContextId(1));
        self.scanner.event(&Event { seq: self.seq, thread, site, context, what }).unwrap();
        self.seq
    }

    fn store(&mut self, thread: u32, site: u32, at: u64) -> u64 {
        self.send(thread, site, What::Store { addr: BASE + at, value: &[7; 8], how: StoreKind::Regular })
    }

    fn persist(&mut self, thread: u32, site: u32, at: u64) {
        self.send(thread, 0, What::Flush { addr: BASE + at, how: FlushKind::Clwb, pm: true });
        self.send(thread, site, What::Fence { how: FenceKind::Sfence });
    }

    /// Stores, and persists that with a fence at the next site.
    fn act(&mut self, thread: u32, site: u32, at: u64) {
        self.store(thread, site, at);
        self.persist(thread, site + 1, at);
    }
}

/// Where bytes are as before.
fn offsets(patches: &[Patch]) -> Vec<u64> {
    let mut bytes: Vec<u64> = patches.iter().flat_map(|p| p.offset..p.offset + p.bytes.len() as u64).collect();
    bytes.sort_unstable();
    bytes
}

fn of_store(meetings: &Meetings, site: u32) -> &Meeting {
    let found: Vec<&Meeting> = meetings.meetings.iter().filter(|m| m.store.site == SiteId(site)).collect();
    assert_eq!(found.len(), 1, "{:?}", meetings.meetings);
    found[0]
}

/// Losing a line also loses what other threads have stored there, which may be to blame instead.
#[test]
fn who_shares_a_line_is_told_apart() {
    let mut script = Script::new();
    let first = script.store(1, 10, 16);
    let second = script.store(2, 20, 24);
    script.act(3, 30, 128);
    script.persist(1, 11, 16);
    script.persist(2, 21, 24);
    let meetings = script.scanner.finish().unwrap();
    let (mine, other) = (of_store(&meetings, 10), of_store(&meetings, 20));
    for meeting in [mine, other] {
        assert!(!meeting.read);
        assert_eq!((meeting.load.thread, meeting.load.site), (ThreadId(3), SiteId(31)));
    }
    assert_eq!(offsets(&mine.crashes[0].patches), (16..32).collect::<Vec<_>>());
    assert_eq!(offsets(&mine.crashes[0].others), (24..32).collect::<Vec<_>>());
    assert_eq!(offsets(&other.crashes[0].patches), (24..32).collect::<Vec<_>>());
    assert!(other.crashes[0].others.is_empty());
    // Each is stopped before a fence of its own, though one has made both persistent.
    let fence = |store: u64| meetings.fences.get(&store).map(|fence| (fence.site, fence.nth));
    assert_eq!(fence(first), Some((SiteId(11), 0)));
    assert_eq!(fence(second), Some((SiteId(21), 0)));
}

/// A reader's fences after stores are followed by crashes ever more rarely. Each crash knows whether the writer has moved since.
#[test]
fn crashes_follow_a_reader_for_a_while() {
    let mut script = Script::new();
    script.store(1, 10, 16);
    script.send(2, 20, What::Load { addr: BASE + 16, size: 8 });
    let mut fences = Vec::new();
    for nth in 1..=10 {
        script.act(2, 21, 128);
        fences.push(script.seq);
        if nth == 3 {
            script.store(1, 11, 256);
        }
    }
    script.persist(1, 12, 16);
    let meetings = script.scanner.finish().unwrap();
    let crashes = &of_store(&meetings, 10).crashes;
    let after_fences: Vec<(u64, bool)> = crashes
        .iter()
        .filter(|crash| crash.act.site == SiteId(22) && crash.lost.len() == 1)
        .map(|crash| (crash.seq, crash.writer_idle))
        .collect();
    assert_eq!(after_fences, [(0, true), (1, true), (3, false), (7, false)].map(|(nth, idle)| (fences[nth] + 1, idle)));
}

/// The store that is read, and what comes later to its line by another thread.
#[test]
fn what_comes_later_to_the_line_that_is_read_is_known() {
    let mut script = Script::new();
    script.store(1, 10, 16);
    script.send(3, 32, What::Load { addr: BASE + 16, size: 8 });
    script.store(1, 12, 8);
    script.store(2, 20, 24);
    script.act(3, 30, 128);
    script.persist(1, 11, 16);
    let meetings = script.scanner.finish().unwrap();
    let read = of_store(&meetings, 10);
    assert!(read.read && !read.crashes.is_empty());
    for crash in &read.crashes {
        assert_eq!(offsets(&crash.patches), (8..32).collect::<Vec<_>>());
        assert_eq!(offsets(&crash.others), (24..32).collect::<Vec<_>>());
    }
}

/// A thread stores twice to a line. No thread reads the first store: the second may be to blame for both.
#[test]
fn what_the_writer_stores_later_to_the_line_is_known() {
    for reads in [false, true] {
        let mut script = Script::new();
        script.store(1, 10, 16);
        script.store(1, 12, 24);
        if reads {
            script.send(3, 32, What::Load { addr: BASE + 24, size: 8 });
        }
        script.act(3, 30, 128);
        script.persist(1, 11, 16);
        let meetings = script.scanner.finish().unwrap();
        let unread = of_store(&meetings, 10);
        assert!(!unread.read);
        let later: Vec<_> = unread.crashes[0].suspects.iter().map(|l| (l.site, offsets(&l.patches))).collect();
        assert_eq!(later, [(SiteId(12), (24..32).collect::<Vec<_>>())]);
    }
}

/// A crash may also lose what the thread had stored before to another line: that store alone may be to blame, too.
#[test]
fn what_the_writer_had_stored_before_is_known() {
    let mut script = Script::new();
    script.store(1, 10, 16);
    script.store(1, 12, 64);
    script.send(3, 32, What::Load { addr: BASE + 64, size: 8 });
    script.act(3, 30, 128);
    script.persist(1, 11, 16);
    let meetings = script.scanner.finish().unwrap();
    let read = of_store(&meetings, 12);
    let suspects = |lost: usize| {
        let crash = read.crashes.iter().find(|crash| crash.lost.len() == lost).unwrap();
        crash.suspects.iter().map(|suspect| (suspect.site, offsets(&suspect.patches))).collect::<Vec<_>>()
    };
    assert_eq!(suspects(1), [], "nothing else is lost");
    assert_eq!(suspects(2), [(SiteId(10), (16..24).collect::<Vec<_>>())]);
}

/// A third thread reads the store and acts on it before another one reads it, too.
#[test]
fn who_reads_what_others_have_acted_on_is_told_so() {
    for (acts, expected) in [(false, false), (true, true)] {
        let mut script = Script::new();
        script.store(1, 10, 16);
        script.send(2, 20, What::Load { addr: BASE + 16, size: 8 });
        if acts {
            script.act(2, 21, 256);
        }
        script.send(3, 32, What::Load { addr: BASE + 16, size: 8 });
        script.act(3, 30, 128);
        script.act(2, 21, 256);
        script.persist(1, 11, 16);
        let meetings = script.scanner.finish().unwrap();
        let by = |thread| meetings.meetings.iter().find(|m| m.load.thread == ThreadId(thread)).unwrap();
        assert!(!by(2).acted_before);
        assert_eq!(by(3).acted_before, expected);
    }
}
