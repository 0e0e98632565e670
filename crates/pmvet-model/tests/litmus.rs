//! Litmus tests of the persistency semantics: one rule each.

mod common;

use common::{ALIAS, BASE, FILE, Run};
use pmvet_events::event::{FenceKind, FlushKind, StoreKind, What};
use pmvet_model::states::{Reordering, StateLimits};
use pmvet_model::{LineId, MAX_PENDING, Mode, WriteKind};

const OLD: u8 = 0xee;

fn adr() -> Run {
    Run::new(Mode::Adr)
}

#[test]
fn a_store_may_or_may_not_be_there() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    assert_eq!(run.may_be(0), [OLD, 1]);
    assert_eq!(run.model.crash_states(), 2);
}

#[test]
fn stores_to_one_line_keep_their_order() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.store(2, 8, &[2]);
    let line = run.model.line(LineId::containing(FILE, 0)).unwrap();
    let states: Vec<_> = line.states().iter().map(|(_, c)| (c.bytes[0], c.bytes[8])).collect();
    assert_eq!(states, [(OLD, OLD), (1, OLD), (1, 2)]);
}

#[test]
fn stores_to_two_lines_are_independent() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.store(1, 64, &[2]);
    assert_eq!(run.model.crash_states(), 4);
}

#[test]
fn clwb_alone_guarantees_nothing() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.clwb(1, 0);
    assert_eq!(run.may_be(0), [OLD, 1]);
    let line = run.model.line(LineId::containing(FILE, 0)).unwrap();
    assert!(line.is_flushing(&line.stores()[0]));
    run.sfence(1);
    assert_eq!(run.may_be(0), [1]);
    assert_eq!(run.pending(), 0);
}

#[test]
fn clflush_needs_no_fence() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.clflush(2, 0);
    assert_eq!(run.pending(), 0);
}

#[test]
fn a_fence_alone_guarantees_nothing() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.sfence(1);
    assert_eq!(run.may_be(0), [OLD, 1]);
}

#[test]
fn a_flush_covers_only_what_was_stored_before_it() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.clwb(1, 0);
    run.store(1, 0, &[2]);
    run.sfence(1);
    assert_eq!(run.may_be(0), [1, 2]);
}

#[test]
fn each_thread_fences_its_own_flushes() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.clwb(1, 0);
    run.sfence(2);
    assert_eq!(run.may_be(0), [OLD, 1]);
    run.clwb(2, 0);
    run.sfence(2);
    assert_eq!(run.may_be(0), [1]);
}

#[test]
fn a_late_fence_does_not_cover_a_new_life_of_the_line() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.clwb(1, 0);
    run.clflush(2, 0);
    run.store(1, 0, &[2]);
    run.sfence(1);
    assert_eq!(run.may_be(0), [1, 2]);
}

#[test]
fn every_kind_of_fence_waits_for_flushes() {
    for how in FenceKind::ALL {
        let mut run = adr();
        run.store(1, 0, &[1]);
        run.what(1, What::Flush { addr: BASE, how: FlushKind::Clflushopt, pm: true });
        run.what(1, What::Fence { how: *how });
        assert_eq!(run.pending(), 0, "{how:?}");
    }
}

#[test]
fn a_locked_operation_is_a_fence_and_then_a_store() {
    for stored in [false, true] {
        let mut run = adr();
        run.store(1, 0, &[1]);
        run.clwb(1, 0);
        run.rmw(1, 64, &[2], stored);
        assert_eq!(run.may_be(0), [1]);
        assert_eq!(run.may_be(64), if stored { vec![OLD, 2] } else { vec![OLD] });
    }
}

#[test]
fn a_locked_operation_does_not_persist_its_own_store() {
    let mut run = adr();
    run.rmw(1, 0, &[1], true);
    run.clwb(1, 0);
    run.rmw(1, 0, &[2], true);
    assert_eq!(run.may_be(0), [1, 2]);
    assert_eq!(run.model.pending()[0].stores()[0].kind, WriteKind::Rmw);
}

#[test]
fn a_nontemporal_store_needs_only_a_fence() {
    let mut run = adr();
    run.nt(1, 0, &[1; 64]);
    assert_eq!(run.may_be(5), [OLD, 1]);
    run.sfence(2);
    assert_eq!(run.pending(), 1);
    run.sfence(1);
    assert_eq!(run.pending(), 0);
}

#[test]
fn a_nontemporal_store_takes_along_what_its_line_held_before() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.nt(1, 8, &[2; 8]);
    run.store(1, 16, &[3]);
    run.sfence(1);
    assert_eq!(run.may_be(0), [1]);
    assert_eq!(run.may_be(8), [2]);
    assert_eq!(run.may_be(16), [OLD, 3]);
}

#[test]
fn a_store_across_lines_can_be_torn_there() {
    let mut run = adr();
    run.store(1, 60, &[1; 8]);
    assert_eq!(run.pending(), 2);
    assert_eq!(run.model.crash_states(), 4);
    run.clwb(1, 60);
    run.sfence(1);
    assert_eq!(run.may_be(63), [1]);
    assert_eq!(run.may_be(64), [OLD, 1]);
}

#[test]
fn a_store_larger_than_a_line_is_split() {
    let mut run = adr();
    run.store(1, 32, &[1; 256]);
    assert_eq!(run.pending(), 5);
}

#[test]
fn stores_of_different_sizes_overlap() {
    let mut run = adr();
    run.store(1, 0, &[1; 8]);
    run.store(1, 4, &[2; 2]);
    run.store(1, 0, &[3; 16]);
    let line = run.model.pending()[0];
    assert_eq!(line.content(2).bytes[..10], [1, 1, 1, 1, 2, 2, 1, 1, OLD, OLD]);
    assert_eq!(line.newest().bytes[..16], [3; 16]);
    assert_eq!(line.writer(4, 16), Some((2, 0xfff0)));
    assert_eq!(line.writer(16, 8), None);
    assert_eq!((0..3).map(|i| line.visible(i)).collect::<Vec<_>>(), [0, 0, 0xffff]);
}

#[test]
fn mappings_and_processes_share_lines() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.what(2, What::Store { addr: ALIAS + 1, value: &[2], how: StoreKind::Regular });
    run.what(4, What::Store { addr: 0x30_0002, value: &[3], how: StoreKind::Regular });
    assert_eq!(run.model.pending()[0].stores().len(), 3);
    run.what(4, What::Flush { addr: 0x30_003f, how: FlushKind::Clwb, pm: true });
    run.sfence(4);
    assert_eq!(run.pending(), 0);
}

#[test]
fn unmapping_and_exit_persist_nothing() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.clwb(1, 0);
    run.what(1, What::Unmap { addr: BASE, len: 4096 });
    run.what(1, What::ThreadExit);
    run.what(1, What::ProcessExit { process: 1 });
    assert_eq!(run.may_be(0), [OLD, 1]);
}

#[test]
fn syncing_a_file_persists_the_lines_of_the_range() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.store(1, 128, &[2]);
    run.store(1, 256, &[3]);
    run.msync(64, 128);
    assert_eq!(run.pending(), 2);
    run.msync(0, u64::MAX);
    assert_eq!(run.pending(), 0);
}

#[test]
fn changes_by_system_calls_are_durable_with_what_was_before() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.store(1, 64, &[2]);
    run.what(1, What::FileWrite { file: FILE, offset: 60, data: &[9; 2] });
    assert_eq!(run.pending(), 1);
    run.what(1, What::FileResize { file: FILE, size: 64 });
    assert_eq!(run.pending(), 0);
}

#[test]
fn a_flush_of_volatile_memory_does_nothing() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.what(1, What::Flush { addr: BASE, how: FlushKind::Clflush, pm: false });
    assert_eq!(run.pending(), 1);
}

#[test]
fn with_persistent_caches_only_nontemporal_stores_are_pending() {
    let mut run = Run::new(Mode::Eadr);
    run.store(1, 0, &[1]);
    run.rmw(1, 8, &[1], true);
    assert_eq!(run.pending(), 0);
    run.nt(1, 0, &[2]);
    assert_eq!(run.may_be(0), [1, 2]);
    run.nt(1, 64, &[3]);
    run.store(1, 65, &[4]);
    assert_eq!(run.pending(), 1, "the store takes along what was under way to its line");
    run.sfence(1);
    assert_eq!(run.pending(), 0);
}

#[test]
fn contents_that_are_equal_are_one_state() {
    let mut run = adr();
    run.store(1, 0, &[OLD]);
    run.store(1, 0, &[1]);
    run.store(1, 0, &[OLD]);
    assert_eq!(run.model.crash_states(), 2);
    // Back where it was: only the state between differs.
    let states = run.model.adversarial(StateLimits::default());
    assert_eq!(states.len(), 1);
    assert_eq!(states[0].choice, Reordering::Partial(LineId::containing(FILE, 0), 2));
}

#[test]
fn too_many_stores_are_merged_from_the_oldest_on() {
    let mut run = adr();
    let first = run.store(1, 0, &[1]);
    for i in 0..2 * MAX_PENDING {
        run.store(1, 8 + (i % 4) as u64, &[i as u8]);
    }
    let line = run.model.pending()[0];
    assert!(line.stores().len() <= MAX_PENDING);
    assert!(line.stores()[0].merged);
    assert_eq!(line.stores()[0].seq, first);
    assert_eq!(line.covers(&line.stores()[0]), 0xf01);
    assert!(run.model.merged() > 0);
    assert_eq!(line.newest().bytes[..12], run.image.0[..12]);
    // A state between the merged ones is not explored, so whatever covers the first covers all of them.
    run.what(1, What::Flush { addr: BASE, how: FlushKind::Clwb, pm: true });
    run.sfence(1);
    assert_eq!(run.pending(), 0);
}

#[test]
fn adversarial_states_keep_one_line_back_or_ahead() {
    let mut run = adr();
    run.store(1, 0, &[1]);
    run.store(1, 1, &[2]);
    run.store(1, 64, &[3]);
    // With two lines, one ahead is the other behind.
    let choices: Vec<_> = run.model.adversarial(StateLimits::default()).into_iter().map(|s| s.choice).collect();
    let line = |n: u64| LineId::containing(FILE, n * 64);
    assert_eq!(choices, [Reordering::Behind(line(0)), Reordering::Partial(line(0), 1), Reordering::Behind(line(1))]);

    run.store(1, 128, &[4]);
    let states = run.model.adversarial(StateLimits::default());
    let ahead: Vec<_> = states.iter().filter(|s| matches!(s.choice, Reordering::Ahead(_))).collect();
    assert_eq!(ahead.len(), 3);
    let patches = run.model.patches(&ahead[1].cuts);
    let patched: Vec<_> = patches.iter().map(|p| (p.offset, p.bytes.clone())).collect();
    assert_eq!(patched, [(0, vec![OLD, OLD]), (128, vec![OLD])]);
    assert_eq!(run.model.lost(&ahead[1].cuts).count(), 3);

    let few = run.model.adversarial(StateLimits { states: 2, ..StateLimits::default() });
    assert_eq!(few, states[..2]);
    let since = run.model.line(line(2)).unwrap().stores()[0].seq - 1;
    assert!(run.model.adversarial(StateLimits { since, ..StateLimits::default() }).iter().all(|s| match s.choice {
        Reordering::Behind(l)
        | Reordering::Ahead(l)
        | Reordering::Partial(l, _)
        | Reordering::Torn(l, ..)
        | Reordering::Several(l, _) => l == line(2),
    }));
}

#[test]
fn a_store_of_more_than_eight_bytes_is_torn() {
    let mut run = adr();
    run.store(1, 4, &[1; 20]);
    run.store(1, 32, &[2; 8]);
    let line = LineId::containing(FILE, 0);
    let states = run.model.adversarial(StateLimits::default());
    let torn: Vec<_> = states.iter().filter(|s| matches!(s.choice, Reordering::Torn(..))).collect();
    let at = |torn_at| Reordering::Torn(line, 0, torn_at);
    assert_eq!(torn.iter().map(|s| s.choice).collect::<Vec<_>>(), [at(8), at(16)]);
    let patches = run.model.patches(&torn[1].cuts);
    let patched: Vec<_> = patches.iter().map(|p| (p.offset, p.bytes.clone())).collect();
    assert_eq!(patched, [(16, vec![OLD; 8]), (32, vec![OLD; 8])]);
    assert_eq!(run.model.lost(&torn[1].cuts).count(), 2, "the torn one and what came after it");
}

#[test]
fn tears_that_leave_the_same_bytes_are_one_state() {
    let mut run = adr();
    run.store(1, 0, &[[1; 8], [OLD; 8], [3; 8]].concat());
    let states = run.model.adversarial(StateLimits::default());
    let line = LineId::containing(FILE, 0);
    let torn = states.iter().map(|s| s.choice).filter(|choice| matches!(choice, Reordering::Torn(..)));
    assert_eq!(torn.collect::<Vec<_>>(), [Reordering::Torn(line, 0, 8)], "the second word was as it is now");
}

#[test]
fn few_lines_are_combined_in_every_way() {
    let mut run = adr();
    let mut subsets = Vec::new();
    for lines in 1..=8_u64 {
        run.store(1, (lines - 1) * 64, &[1]);
        let states = run.model.adversarial(StateLimits::default());
        let behind: std::collections::BTreeSet<Vec<LineId>> =
            states.iter().map(|state| state.cuts.iter().map(|cut| cut.line).collect()).collect();
        assert_eq!(behind.len(), states.len(), "no state twice");
        subsets.push(behind.len());
    }
    // All sets of lines that are behind but the empty and the whole one; with seven and more, one line unlike the others.
    assert_eq!(subsets, [1, 2, 6, 14, 30, 62, 14, 16]);
    let since = run.model.line(LineId::containing(FILE, 7 * 64)).unwrap().stores()[0].seq;
    assert!(run.model.adversarial(StateLimits { since, ..StateLimits::default() }).is_empty());
}
