//! A scripted run, event by event, with the words that tests share.

pub(crate) use pmvet_engines::lockset::{self, Code, Edges, LockShape, LocksetAnalysis, LocksetEngine, LocksetOptions};
pub(crate) use pmvet_engines::stacks::Stacks;
pub(crate) use pmvet_events::event::{AtomicKind, Event, FenceKind, FlushKind, LockKind, StoreKind, SyncOp, What};
pub(crate) use pmvet_events::{ContextId, FileId, SiteId, ThreadId};
pub(crate) use pmvet_findings::{Finding, Sources};

use pmvet_engines::lockset::recordings::join;

pub(crate) const BASE: u64 = 0x2000_0000_0000;
pub(crate) const X: u64 = BASE + 0x10000;
pub(crate) const Y: u64 = BASE + 0x10040;
pub(crate) const Z: u64 = BASE + 0x10080;
pub(crate) const A: u64 = 0x7000_0000;
pub(crate) const B: u64 = 0x7000_0040;

/// What one recording predicts.
pub(crate) fn findings(outcome: &LocksetAnalysis, stacks: &mut dyn Stacks, sources: &Sources) -> Vec<Finding> {
    join(vec![lockset::findings::findings(outcome, stacks, sources)])
}

/// Scripts a run, event by event. The test chooses the numbers of sites.
pub(crate) struct Script {
    pub(crate) engine: LocksetEngine,
    pub(crate) seq: u64,
}

impl Script {
    /// One PM file at `BASE`, and thread 1 with children 2 to 5.
    pub(crate) fn new(options: LocksetOptions) -> Self {
        let mut script = Script::bare(options);
        (2..=5).for_each(|child| script.create(1, child));
        script
    }

    pub(crate) fn bare(options: LocksetOptions) -> Self {
        let mut script = Script { engine: LocksetEngine::new(options), seq: 0 };
        script.add(1, 0, What::ProcessStart { process: 7, parent: 0, path: "prog".as_ref() });
        script.add(1, 0, What::ThreadStart { process: 7, os_thread: 7 });
        let file = FileId(1);
        script.add(1, 0, What::File { file, size: 1 << 20, device: 1, inode: 1, path: "/pool".as_ref() });
        script.add(1, 0, What::Map { file, addr: BASE, len: 1 << 20, offset: 0, writable: true });
        script
    }

    pub(crate) fn add(&mut self, thread: u32, site: u32, what: What<'_>) {
        self.seq += u64::from(what.is_numbered());
        let (thread, site) = (ThreadId(thread), SiteId(site));
        self.engine.event(&Event { seq: self.seq, thread, site, context: ContextId(1), what });
    }

    pub(crate) fn create(&mut self, parent: u32, child: u32) {
        self.add(parent, 0, What::ThreadCreate { child: ThreadId(child) });
        self.add(child, 0, What::ThreadStart { process: 7, os_thread: child });
    }

    pub(crate) fn store(&mut self, thread: u32, site: u32, addr: u64) {
        self.put(thread, site, addr, &7u64.to_le_bytes());
    }

    pub(crate) fn put(&mut self, thread: u32, site: u32, addr: u64, value: &[u8]) {
        self.add(thread, site, What::Store { addr, value, how: StoreKind::Regular });
    }

    pub(crate) fn load(&mut self, thread: u32, site: u32, addr: u64) {
        self.add(thread, site, What::Load { addr, size: 8 });
    }

    /// A store under a lock, which is held until the value is persistent.
    pub(crate) fn put_under(&mut self, lock: u64, thread: u32, site: u32, addr: u64, value: u64) {
        self.lock(thread, lock);
        self.put(thread, site, addr, &value.to_le_bytes());
        self.persist(thread, addr);
        self.unlock(thread, lock);
    }

    /// A load that its thread acts on, by a store to a place of its own.
    pub(crate) fn use_(&mut self, thread: u32, site: u32, addr: u64) {
        self.load(thread, site, addr);
        self.act(thread);
    }

    pub(crate) fn act(&mut self, thread: u32) {
        self.store(thread, 900, BASE + 0x80000 + u64::from(thread) * 64);
    }

    pub(crate) fn persist(&mut self, thread: u32, addr: u64) {
        self.add(thread, 901, What::Flush { addr, how: FlushKind::Clwb, pm: true });
        self.add(thread, 902, What::Fence { how: FenceKind::Sfence });
    }

    pub(crate) fn lock(&mut self, thread: u32, lock: u64) {
        self.add(thread, 903, What::Acquire { lock, how: LockKind::Exclusive });
    }

    pub(crate) fn unlock(&mut self, thread: u32, lock: u64) {
        self.add(thread, 904, What::Release { lock, how: LockKind::Exclusive });
    }

    pub(crate) fn cas(&mut self, thread: u32, site: u32, addr: u64, old: u64, new: u64, stored: bool) {
        let (old, new) = (&old.to_le_bytes(), &new.to_le_bytes());
        let how = if stored { AtomicKind::Changed } else { AtomicKind::Failed };
        let volatile = What::Atomic { addr, old, new, how };
        self.add(
            thread,
            site,
            if addr < BASE { volatile } else { What::Rmw { addr, old, new, stored, discards: false } },
        );
    }

    pub(crate) fn sync(&mut self, thread: u32, op: SyncOp) {
        self.add(thread, 905, What::Sync { object: B, op });
    }

    /// Both threads have touched `addr`, so that what follows is not initialisation.
    pub(crate) fn public(&mut self, addr: u64) {
        self.load(2, 906, addr);
        self.load(3, 906, addr);
    }

    pub(crate) fn races(self) -> Vec<(u32, u32)> {
        races(&self.engine.finish())
    }
}

pub(crate) fn races(outcome: &LocksetAnalysis) -> Vec<(u32, u32)> {
    let mut found: Vec<_> = outcome.races.iter().map(|r| (r.store.site.0, r.load.site.0)).collect();
    // Races of `Script::public` only prepare the test.
    found.retain(|&(_, load)| load != 906);
    found.sort_unstable();
    found
}

pub(crate) fn new() -> Script {
    let mut script = Script::new(LocksetOptions::default());
    script.public(X);
    script.public(Y);
    script
}

/// A critical section of a spin lock in PM around a store to X and its persist.
pub(crate) fn spin_section(s: &mut Script, thread: u32, take: u32, store: u32, free: u64, held: u64) {
    s.cas(thread, take, Z, free, held, true);
    s.store(thread, store, X);
    s.persist(thread, X);
    s.put(thread, 52, Z, &free.to_le_bytes());
}

pub(crate) fn late_persist(s: &mut Script) {
    s.lock(2, A);
    s.store(2, 1, X);
    s.unlock(2, A);
    s.persist(2, X);
}

pub(crate) fn locked_load(s: &mut Script) {
    s.lock(3, A);
    s.use_(3, 2, X);
    s.unlock(3, A);
}
