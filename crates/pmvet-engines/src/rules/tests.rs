//! Each rule on scripted events: when it speaks and when it keeps silent.

use std::path::PathBuf;

use pmvet_events::event::{Event, FenceKind, FlushKind, MarkerKind, StoreKind, SyncKind, What};
use pmvet_events::{ContextId, FileId, SiteId, ThreadId};
use pmvet_findings::{Evidence, Finding, Frame, Severity, Stack, rules as catalogue};
use pmvet_model::{Mode, Shadow};

use super::{RawFindings, RuleOptions, Rules, report};
use crate::stacks::Stacks;

const FILE: FileId = FileId(1);
const BASE: u64 = 0x10_0000;

/// A program of one new file, in which every event has a line of its own unless [`at`](Run::at) says otherwise.
struct ScriptedRun {
    rules: Rules,
    shadow: Shadow,
    seq: u64,
    site: Option<u32>,
}

impl ScriptedRun {
    fn new() -> Self {
        Self::with(RuleOptions { mode: Mode::Adr, pedantic: false }, 0)
    }

    fn with(options: RuleOptions, size: u64) -> Self {
        let mut run = Self { rules: Rules::new(options), shadow: Shadow::default(), seq: 0, site: None };
        run.what(1, What::ProcessStart { process: 1, parent: 0, path: "".as_ref() });
        run.what(2, What::ThreadStart { process: 1, os_thread: 2 });
        run.what(1, What::File { file: FILE, size, device: 0, inode: 1, path: "pool".as_ref() });
        run.what(1, What::Map { file: FILE, addr: BASE, len: 0x4000, offset: 0, writable: true });
        run
    }

    fn what(&mut self, thread: u32, what: What<'_>) {
        self.seq += 1;
        let site = SiteId(self.site.take().unwrap_or(1000 + self.seq as u32));
        let event = Event { seq: self.seq, thread: ThreadId(thread), site, context: ContextId(1), what };
        self.rules.event(&event, &self.shadow);
        self.shadow.event(&event);
    }

    /// The next event is at this site: line `site % 100` of function `site / 100`.
    fn at(&mut self, site: u32) -> &mut Self {
        self.site = Some(site);
        self
    }

    fn store(&mut self, offset: u64, value: u64) -> &mut Self {
        let how = StoreKind::Regular;
        self.what(1, What::Store { addr: BASE + offset, value: &value.to_le_bytes(), how });
        self
    }

    fn nt(&mut self, offset: u64, value: u64) -> &mut Self {
        let how = StoreKind::NonTemporal;
        self.what(1, What::Store { addr: BASE + offset, value: &value.to_le_bytes(), how });
        self
    }

    fn clwb(&mut self, offset: u64) -> &mut Self {
        self.clwb_by(1, offset)
    }

    fn clwb_by(&mut self, thread: u32, offset: u64) -> &mut Self {
        self.what(thread, What::Flush { addr: BASE + offset, how: FlushKind::Clwb, pm: true });
        self
    }

    fn sfence(&mut self) -> &mut Self {
        self.fence(FenceKind::Sfence)
    }

    fn fence(&mut self, how: FenceKind) -> &mut Self {
        self.what(1, What::Fence { how });
        self
    }

    fn cas(&mut self, offset: u64, old: u64, new: u64) -> &mut Self {
        let (old, new) = (old.to_le_bytes(), new.to_le_bytes());
        self.what(1, What::Rmw { addr: BASE + offset, old: &old, new: &new, stored: true, discards: false });
        self
    }

    fn raw(self) -> RawFindings {
        self.rules.finish()
    }

    fn found(self) -> Vec<(&'static str, u64)> {
        self.raw().findings.iter().map(|f| (f.rule.id, f.count)).collect()
    }

    fn report(self) -> Vec<Finding> {
        report(self.raw(), &mut Fake)
    }
}

/// Sites as functions and lines, all in the program itself.
struct Fake;

/// The sites of functions that `f3` calls begin here.
const CALLED_BY_F3: u32 = 20_000;

impl Stacks for Fake {
    fn stack(&mut self, site: SiteId, _context: ContextId) -> Stack {
        let frame = |module: &str, function: String, line: u32| Frame {
            function: Some(function),
            file: Some("prog.c".into()),
            line: Some(line),
            module: Some(module.into()),
            ..Frame::default()
        };
        let main = frame("/bin/prog", "main".into(), 1);
        match site.0 {
            // A library's own, and on behalf of the program.
            10 => vec![frame("/lib/libpmemobj.so.1", "pmemobj_tx_commit".into(), 0), main],
            11 => vec![frame("/lib/libpmem.so.1", "pmem_persist".into(), 0), main],
            12 => vec![frame("/lib/libc.so.6", "___pthread_mutex_lock".into(), 0), main],
            // Of a function that `f3` calls.
            site @ CALLED_BY_F3.. => {
                let callee = site - CALLED_BY_F3;
                let callee = frame("/bin/prog", format!("f{}", callee / 100), callee % 100);
                vec![callee, frame("/bin/prog", "f3".into(), 99), main]
            }
            site => vec![frame("/bin/prog", format!("f{}", site / 100), site % 100), main],
        }
    }

    fn file(&self, _file: FileId) -> PathBuf {
        "pool".into()
    }
}

const UNPERSISTED: &str = catalogue::UNPERSISTED_STORE.id;
const TRANSIENT: &str = catalogue::TRANSIENT_DATA.id;
const OVERWRITE: &str = catalogue::DIRTY_OVERWRITE.id;
const CLEAN: &str = catalogue::FLUSH_CLEAN.id;
const FENCE: &str = catalogue::REDUNDANT_FENCE.id;

#[test]
fn persisted_stores_are_fine() {
    let mut run = ScriptedRun::new();
    run.store(0, 1).clwb(0).sfence().nt(64, 1).sfence().store(128, 1);
    run.what(1, What::Flush { addr: BASE + 128, how: FlushKind::Clflush, pm: true });
    run.store(192, 1);
    run.what(1, What::FileSync { file: FILE, offset: 0, len: 4096, how: SyncKind::Msync });
    assert_eq!(run.found(), []);
}

#[test]
fn a_store_to_a_line_that_is_flushed_at_other_times_is_unpersisted() {
    let mut run = ScriptedRun::new();
    run.store(0, 1).clwb(0).sfence().at(77).store(0, 0x0102);
    let raw = run.raw();
    let finding = &raw.findings[0];
    assert_eq!((finding.rule.id, finding.count, finding.flushing), (UNPERSISTED, 1, false));
    let without = finding.lost[0].without.as_deref().unwrap_or_default();
    assert_eq!(without.iter().map(|p| (p.offset, p.bytes.as_slice())).collect::<Vec<_>>(), [(0, &[1, 0][..])]);
    let steps: Vec<_> = finding.timeline.iter().map(|s| s.what.name()).collect();
    assert_eq!(steps, ["stored", "flushed", "fenced", "stored"]);
}

#[test]
fn what_was_stored_to_the_line_later_is_lost_with_a_store() {
    let mut run = ScriptedRun::new();
    run.store(0, 1).store(8, 1).clwb(0).sfence().at(77).store(0, 2).at(78).store(8, 2);
    let raw = run.raw();
    let without = |i: usize| raw.findings[i].lost[0].without.as_deref().unwrap_or_default().to_vec();
    let bytes = |i: usize| without(i).into_iter().map(|p| (p.offset, p.bytes[0])).collect::<Vec<_>>();
    assert_eq!((bytes(0), bytes(1)), (vec![(0, 1), (8, 1)], vec![(8, 1)]));
}

#[test]
fn data_that_nothing_flushes_is_transient() {
    let mut run = ScriptedRun::new();
    run.store(0, 1);
    assert_eq!(run.found(), [(TRANSIENT, 1)]);
}

#[test]
fn a_store_whose_data_is_usually_flushed_is_unpersisted() {
    let mut run = ScriptedRun::new();
    run.at(77).store(0, 1).at(78).clwb(0).sfence().at(77).store(4096, 1);
    let raw = run.raw();
    assert_eq!(raw.findings[0].rule.id, UNPERSISTED);
    assert_eq!(raw.findings[0].flusher, Some((SiteId(78), ContextId(1))));
}

#[test]
fn a_flush_of_the_same_function_may_leave_out_a_line_that_it_is_meant_for() {
    for (flush, may_be_meant) in [(78, true), (178, false)] {
        let mut run = ScriptedRun::new();
        run.at(77).store(0, 1).at(flush).clwb(0).sfence().at(77).store(4096, 1);
        let fix = run.report().remove(0).fix;
        assert_eq!(fix.contains("it leaves out this cache line"), may_be_meant, "{fix}");
    }
}

#[test]
fn the_oldest_value_of_a_place_may_be_left_as_well_as_the_last_but_one() {
    let mut run = ScriptedRun::new();
    run.store(0, 1).clwb(0).sfence();
    (2..5).for_each(|value| _ = run.at(77).store(0, value));
    let raw = run.raw();
    let left: Vec<_> = raw.findings[0].lost.iter().map(|lost| lost.without.as_deref().unwrap()[0].bytes[0]).collect();
    assert_eq!(left, [3, 1]);
}

#[test]
fn a_flush_without_a_fence_is_not_enough() {
    let mut run = ScriptedRun::new();
    run.store(0, 1).clwb(0);
    let raw = run.raw();
    assert_eq!((raw.findings[0].rule.id, raw.findings[0].flushing), (UNPERSISTED, true));
}

#[test]
fn what_is_ignored_deleted_or_unchanged_may_stay_unpersisted() {
    let mut run = ScriptedRun::new();
    run.what(1, What::Marker { how: MarkerKind::Ignore, addr: BASE, len: 16, text: "" });
    run.store(0, 1).store(8, 1).store(0, 2).store(64, 0);
    assert_eq!(run.found(), []);
    let mut run = ScriptedRun::new();
    run.store(0, 1).what(1, What::FileUnlink { file: FILE });
    assert_eq!(run.found(), []);
}

#[test]
fn locks_may_stay_unpersisted() {
    let mut run = ScriptedRun::new();
    for _ in 0..3 {
        run.at(1).cas(0, 0, 1).at(2).store(8, 5).clwb(0).sfence().at(3).store(0, 0);
    }
    // One that is taken but never given back, by the same instruction.
    run.at(1).cas(128, 0, 1);
    // Repeated values of the field are not of interest here.
    assert_eq!(run.found(), []);
}

#[test]
fn a_link_stored_by_compare_and_swap_is_no_lock() {
    let mut run = ScriptedRun::new();
    for i in 0..10 {
        run.at(1).cas(64 * i, 0, 100 + i).at(2).clwb(64 * i).sfence().at(3).store(64 * i, 0).clwb(64 * i).sfence();
    }
    run.at(1).cas(0, 0, 7);
    assert_eq!(run.found(), [(UNPERSISTED, 1)]);
}

#[test]
fn overwriting_an_unpersisted_value_is_a_dirty_overwrite() {
    let mut run = ScriptedRun::new();
    run.at(1).store(0, 1).at(2).store(0, 2).clwb(0).sfence();
    let raw = run.raw();
    assert_eq!(raw.findings.len(), 1);
    assert_eq!(raw.findings[0].rule.id, OVERWRITE);
    assert_eq!(raw.findings[0].place.site, SiteId(2));
    assert_eq!(raw.findings[0].other.map(|o| o.site), Some(SiteId(1)));
}

#[test]
fn no_dirty_overwrite_without_a_change_or_after_a_flush() {
    let mut run = ScriptedRun::new();
    // The same value again, and zeros over zeros that are then filled in.
    run.store(0, 1).store(0, 1).store(64, 0).store(64, 5).clwb(0).clwb(64).sfence();
    // The first value is on its way.
    run.store(0, 2).clwb(0).store(0, 3).clwb(0).sfence();
    // Locked operations.
    run.cas(128, 0, 1).store(128, 0).cas(128, 0, 1).clwb(128).sfence();
    assert_eq!(run.found(), []);
}

#[test]
fn order_within_a_line_is_no_dirty_overwrite() {
    let mut run = ScriptedRun::new();
    // Invalidate, fill in, validate.
    run.at(1).store(0, 1).at(2).store(8, 7).at(3).store(0, 2).clwb(0).sfence();
    assert_eq!(run.found(), []);
    // But a loop that adds up in PM is one.
    let mut run = ScriptedRun::new();
    run.at(1).store(0, 1).at(2).store(8, 7).at(1).store(0, 2).clwb(0).sfence();
    assert_eq!(run.found(), [(OVERWRITE, 1)]);
}

#[test]
fn correcting_a_copy_is_no_dirty_overwrite() {
    let copy = |run: &mut ScriptedRun| {
        (0..8).for_each(|word| {
            run.at(1).store(word * 8, word + 1);
        });
    };
    let mut run = ScriptedRun::new();
    copy(&mut run);
    run.at(2).store(8, 70).at(3).store(16, 71).clwb(0).sfence();
    assert_eq!(run.found(), []);
    // But what is mostly overwritten was stored for nothing.
    let mut run = ScriptedRun::new();
    copy(&mut run);
    (0..8).for_each(|word| {
        run.at(2).store(word * 8, word + 70);
    });
    run.clwb(0).sfence();
    assert!(run.found().iter().all(|(rule, _)| *rule == OVERWRITE));
}

#[test]
fn flushing_a_clean_line_is_needless() {
    let mut run = ScriptedRun::new();
    run.store(0, 1).clwb(0).sfence().at(5).clwb(0).sfence();
    // Even while the first flush is under way, and if the line was never written.
    run.store(0, 2).clwb(0).at(5).clwb(0).at(6).clwb(640).sfence();
    let raw = run.raw();
    let found: Vec<_> = raw.findings.iter().map(|f| (f.rule.id, f.count, f.other.is_some())).collect();
    assert_eq!(found, [(CLEAN, 2, true), (CLEAN, 1, false)]);
}

#[test]
fn a_flush_may_help_another_thread_or_an_earlier_run() {
    let mut run = ScriptedRun::new();
    run.store(0, 1).clwb(0).clwb_by(2, 0).sfence();
    run.what(2, What::Fence { how: FenceKind::Sfence });
    assert_eq!(run.found(), []);
    let mut run = ScriptedRun::with(RuleOptions::default(), 4096);
    run.clwb(0).sfence();
    assert_eq!(run.found(), []);
}

#[test]
fn flushes_of_volatile_memory_and_of_nontemporal_stores() {
    let mut run = ScriptedRun::new();
    run.what(1, What::Flush { addr: 0x1234, how: FlushKind::Clwb, pm: false });
    run.nt(0, 1).clwb(0).sfence();
    let found = run.found();
    assert_eq!(found, [(catalogue::FLUSH_VOLATILE.id, 1), (catalogue::FLUSH_NONTEMPORAL.id, 1)]);
    // A regular store beside it needs the flush.
    let mut run = ScriptedRun::new();
    run.nt(0, 1).store(8, 1).clwb(0).sfence();
    assert_eq!(run.found(), []);
}

#[test]
fn a_fence_needs_something_to_wait_for() {
    let mut run = ScriptedRun::new();
    run.store(0, 1).clwb(0).sfence().at(5).sfence();
    assert_eq!(run.found(), [(FENCE, 1)]);
    // A locked instruction in between makes an explicit fence no error; mfence has other uses.
    let mut run = ScriptedRun::new();
    run.store(0, 1).clwb(0).fence(FenceKind::Locked).sfence().fence(FenceKind::Mfence).nt(64, 1).sfence();
    assert_eq!(run.found(), []);
}

#[test]
fn pedantic_rules_speak_only_when_asked() {
    for pedantic in [false, true] {
        let mut run = ScriptedRun::with(RuleOptions { pedantic, ..RuleOptions::default() }, 0);
        run.store(0, 1).store(8, 1).store(64, 1).clwb(0).clwb(64).sfence();
        let expected = [(catalogue::FLUSH_COVERS_STORES.id, 1), (catalogue::FENCE_ORDERS_LINES.id, 1)];
        assert_eq!(run.found(), if pedantic { &expected[..] } else { &[] });
    }
}

#[test]
fn with_persistent_caches_flushes_are_needless_and_unfenced_nontemporal_stores_are_not_safe() {
    let mut run = ScriptedRun::with(RuleOptions { mode: Mode::Eadr, pedantic: false }, 0);
    run.store(0, 1).store(0, 2).clwb(0).sfence().nt(64, 1);
    assert_eq!(run.found(), [(UNPERSISTED, 1), (CLEAN, 1)]);
}

#[test]
fn the_stores_of_a_function_are_one_finding() {
    let mut run = ScriptedRun::new();
    run.store(0, 1).clwb(0).sfence();
    run.at(301).store(0, 2).at(302).store(8, 2).at(401).store(16, 2);
    let findings = run.report();
    assert_eq!(findings.len(), 2);
    let first = &findings[0];
    assert_eq!((first.rule.0.as_str(), first.count, first.severity), (UNPERSISTED, 2, Severity::Warning));
    assert_eq!(first.title, "What `f3` stores to PM is never flushed");
    assert_eq!(first.places.len(), 2);
    assert_eq!(first.places[0].pm.as_ref().map(|pm| pm.offset), Some(0));
    assert!(matches!(&first.evidence, Evidence::Trace { timeline } if timeline.len() == 6));
}

/// An object of two lines and one far from it, none of them flushed by the function that fills them.
#[test]
fn each_unflushed_object_that_recovery_needs_is_a_finding() {
    let lines_of = |needed: &[u32]| {
        let mut run = ScriptedRun::new();
        for line in [0, 64, 640] {
            run.store(line, 1).clwb(line).sfence();
        }
        run.at(301).store(0, 2).at(302).store(64, 2).at(303).store(640, 2);
        let mut raw = run.raw();
        for finding in &mut raw.findings {
            finding.needed = needed.contains(&finding.place.site.0);
        }
        let lines = |f: Finding| f.places.iter().filter_map(|place| place.frame()?.line).collect::<Vec<_>>();
        report(raw, &mut Fake).into_iter().map(lines).collect::<Vec<_>>()
    };
    assert_eq!(lines_of(&[301, 302, 303]), [vec![1, 2], vec![3]]);
    assert_eq!(
        lines_of(&[301, 303]),
        [vec![1, 2], vec![3]],
        "what recovery does not need goes with the object that it belongs to"
    );
    assert_eq!(lines_of(&[303]).len(), 1, "one object is needed");
    assert_eq!(lines_of(&[]).len(), 1, "nothing is known");
}

/// No flush ever touches these lines: one of an object that recovery needs, the next line, one far from it, and one of another function.
#[test]
fn parts_of_an_object_that_recovery_needs_are_not_transient() {
    let mut run = ScriptedRun::new();
    run.at(301).store(0, 1).at(302).store(64, 1).at(303).store(6400, 1).at(401).store(128, 1);
    let mut raw = run.raw();
    for finding in raw.findings.iter_mut().filter(|finding| finding.place.site.0 == 301) {
        (finding.needed, finding.rule) = (true, catalogue::UNPERSISTED_STORE);
    }
    let found: Vec<(String, usize)> =
        report(raw, &mut Fake).into_iter().map(|f| (f.rule.to_string(), f.places.len())).collect();
    assert_eq!(found, [(UNPERSISTED.into(), 2), (TRANSIENT.into(), 1), (TRANSIENT.into(), 1)]);
}

#[test]
fn a_function_forgets_the_flush_of_a_line_that_it_lets_others_store_to() {
    let mut run = ScriptedRun::new();
    run.store(0, 1).clwb(0).sfence().store(64, 1).clwb(64).sfence();
    run.at(301).store(0, 2).at(CALLED_BY_F3 + 702).store(8, 2).at(CALLED_BY_F3 + 801).store(64, 2);
    let findings = run.report();
    let found: Vec<(&str, usize)> = findings.iter().map(|f| (f.title.as_str(), f.places.len())).collect();
    assert_eq!(
        found,
        [("What `f3` stores to PM is never flushed", 2), ("What `f8` stores to PM is never flushed", 1)],
        "the line that `f8` stores to is one of its own"
    );
}

#[test]
fn consequences_of_a_missing_flush_are_not_told() {
    let mut run = ScriptedRun::new();
    run.at(301).store(0, 1).at(302).clwb(0).sfence();
    run.at(301).store(0, 2).at(303).sfence().at(401).store(0, 3).at(301).store(0, 4);
    let found: Vec<String> = run.report().into_iter().map(|f| format!("{} {}", f.rule, f.title)).collect();
    assert_eq!(
        found,
        [
            "unpersisted-store What `f3` stores to PM is never flushed",
            "dirty-overwrite `f3` overwrites what `f4` stored before that is persistent",
        ]
    );
}

#[test]
fn forgotten_parts_beside_flushed_data_are_unpersisted_rather_than_transient() {
    let mut run = ScriptedRun::new();
    run.at(301).store(0, 1).at(302).clwb(0).sfence().at(303).store(64, 1);
    run.at(401).store(128, 1);
    let found: Vec<String> = run.report().into_iter().map(|f| f.rule.0).collect();
    assert_eq!(found, [UNPERSISTED, TRANSIENT]);
}

#[test]
fn libraries_are_trusted_with_their_own_data_only() {
    let mut run = ScriptedRun::new();
    // What a transaction's commit flushes may be stored twice.
    run.at(301).store(0, 1).at(302).store(0, 2).at(10).clwb(0).at(10).sfence();
    // A library's own state, and a lock's.
    run.at(10).store(64, 1).at(12).store(192, 1);
    // `pmem_persist` is the program's own.
    run.at(301).store(128, 1).at(11).clwb(128).at(11).clwb(128).at(11).sfence().at(11).sfence();
    let found: Vec<String> = run.report().into_iter().map(|f| format!("{} {}", f.rule, f.title)).collect();
    assert_eq!(
        found,
        [
            "flush-clean `main` flushes a cache line that holds nothing new",
            "redundant-fence The fence in `main` has nothing to wait for",
        ]
    );
}
