//! Any event in any order, and large runs.

use proptest::prelude::*;

use crate::script::*;

#[test]
fn ten_million_loads_of_a_hot_line_and_sixty_four_threads_stay_small() {
    let mut s = Script::bare(LocksetOptions::default());
    (2..=65).for_each(|child| s.create(1, child));
    for round in 0..2_500 {
        for thread in 2..=65 {
            (0..if cfg!(debug_assertions) { 2 } else { 62 }).for_each(|_| s.load(thread, 3, X));
        }
        if round % 100 == 0 {
            s.lock(2, A);
            s.store(2, 1, X);
            s.persist(2, X);
            s.unlock(2, A);
        }
    }
    (2..=65).for_each(|thread| s.act(thread));
    let outcome = s.engine.finish();
    assert_eq!(races(&outcome), [(1, 3)]);
    assert!(outcome.stats.locksets < 10 && outcome.stats.lines < 100, "{:?}", outcome.stats);
}

/// Any event at all, on few addresses, sites and threads so that they meet.
fn event() -> impl Strategy<Value = (u32, u32, u8, u64, u64)> {
    (0..6u32, 0..8u32, 0..24u8, 0..40u64, 0..4u64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn no_order_of_events_makes_it_panic(events in prop::collection::vec(event(), 0..300), variant in 0..4u8) {
        let options = match variant {
            0 => LocksetOptions::default(),
            1 => LocksetOptions::as_published(),
            2 => LocksetOptions { lock_free: true, init_removal: false, ..LocksetOptions::default() },
            _ => LocksetOptions { reader_window: false, max_lines: 3, ..LocksetOptions::default() },
        };
        let mut s = Script::bare(options);
        for (thread, site, kind, place, n) in events {
            let addr = X + place * 5;
            let (old, new) = (n.to_le_bytes(), (n + 1).to_le_bytes());
            let lock = if place % 2 == 0 { addr } else { A + place * 8 };
            let wide = [n as u8; 100];
            let how = if n == 0 { LockKind::Shared } else { LockKind::Exclusive };
            let sync = SyncOp::ALL[place as usize % SyncOp::ALL.len()];
            let (file, child) = (FileId(n as u32), ThreadId(n as u32 + 1));
            let what = match kind {
                0..3 => What::Load { addr, size: 1 << n },
                3 => What::Load { addr: lock, size: 200 },
                4 | 5 => What::Store { addr, value: &new, how: StoreKind::Regular },
                6 => What::Store { addr, value: &wide, how: StoreKind::NonTemporal },
                7 => What::Rmw { addr: lock, old: &old, new: &new, stored: site % 2 == 0, discards: false },
                8 => What::Rmw { addr: lock, old: &new, new: &old, stored: true, discards: false },
                9 => What::Flush { addr, how: FlushKind::Clwb, pm: true },
                10 => What::Flush { addr, how: FlushKind::Clflush, pm: true },
                11 | 12 => What::Fence { how: FenceKind::Sfence },
                13 => What::Acquire { lock, how },
                14 => What::Release { lock, how },
                15 => What::ThreadCreate { child },
                16 => What::ThreadJoin { child },
                17 => What::ThreadExit,
                18 => What::Sync { object: lock, op: sync },
                19 => What::Map { file, addr: BASE, len: 1 << (12 + n * 2), offset: n * 64, writable: true },
                21 => What::Allocate { addr, len: n * 100 },
                22 => What::Atomic { addr: lock, old: &old, new: &new, how: AtomicKind::ALL[site as usize % 3] },
                20 => What::Unmap { addr: X, len: 4096 },
                _ => What::FileSync { file: FileId(1), offset: place, len: u64::MAX, how: pmvet_events::event::SyncKind::Msync },
            };
            s.add(thread, site, what);
        }
        s.engine.finish();
    }
}
