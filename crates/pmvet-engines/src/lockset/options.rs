//! What the engine may take for granted. Every switch trades false alarms against missed races; `docs/race.md` says which.

/// Switches of the engine. The default has everything on but [`lock_free`](LocksetOptions::lock_free).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocksetOptions {
    /// Forget stores that were persisted before a second thread came near: they were initialisation.
    pub init_removal: bool,
    /// Take words for locks that are used like locks.
    pub infer_locks: bool,
    /// Memory that is allocated, or that a pointer in PM newly leads to, is unpublished until then, even if other
    /// threads have used it in an earlier life.
    pub allocators: bool,
    /// A load counts from the moment when its thread acts on it, not from the moment of the load: whoever persists
    /// the line first, takes the writer's lock or looks at it, has not read anything that a crash can take back.
    pub reader_window: bool,
    /// Predict races of stores made by lock-free read-modify-writes. Without it they are reported only if a thread
    /// was seen to act on one before it was persistent.
    pub lock_free: bool,
    /// What orders threads, beside create and join.
    pub edges: Edges,
    /// Functions whose read-modify-writes take no locks, and functions whose read-modify-writes do.
    pub deny: Vec<String>,
    /// Functions whose read-modify-writes take locks, whatever they look like.
    pub declare: Vec<String>,
    /// Functions of the user that take or give back locks, by the names that the linker knows; only to say which of them were not seen.
    pub sync: Vec<String>,
    /// How many cache lines to follow; a bound on memory. Accesses beyond it are counted, see `LocksetStats::refused`.
    pub max_lines: usize,
}

/// What orders threads, beside create and join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edges {
    /// `pthread_barrier_wait` and its relatives.
    pub barriers: bool,
    /// Condition variables: who signals, and who is woken.
    pub conditions: bool,
    /// Who posts, and who acquires.
    pub semaphores: bool,
    /// A word of PM that one thread spins on and another stores to.
    pub flags: bool,
    /// The end of a thread that nobody joins is known to the thread that made it.
    pub detached: bool,
}

impl Edges {
    /// All of them: the default.
    pub const ALL: Edges = Edges { barriers: true, conditions: true, semaphores: true, flags: true, detached: true };
    /// None of them: order comes from create and join only, as published.
    pub const NONE: Edges =
        Edges { barriers: false, conditions: false, semaphores: false, flags: false, detached: false };
}

impl Default for LocksetOptions {
    fn default() -> Self {
        LocksetOptions {
            init_removal: true,
            infer_locks: true,
            allocators: true,
            reader_window: true,
            lock_free: false,
            edges: Edges::ALL,
            deny: Vec::new(),
            declare: Vec::new(),
            sync: Vec::new(),
            max_lines: 2_000_000,
        }
    }
}

impl LocksetOptions {
    /// HawkSet as published: no inference, no reuse, loads count at once, order by create and join only.
    pub fn as_published() -> Self {
        LocksetOptions {
            infer_locks: false,
            allocators: false,
            reader_window: false,
            lock_free: true,
            edges: Edges::NONE,
            ..LocksetOptions::default()
        }
    }
}
