//! What the engine may assume. Every switch trades false alarms against missed races; `docs/race.md` says which.

/// Switches of the engine. The default has everything on but [`lock_free`](LocksetOptions::lock_free).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocksetOptions {
    /// Forget stores that were persisted before a second thread touched their bytes: they were initialisation.
    pub init_removal: bool,
    /// Treat words that are used like locks as locks.
    pub infer_locks: bool,
    /// Treat memory as unpublished until it is allocated, or until a pointer in PM first leads to it, even if other
    /// threads used it before it was freed.
    pub allocators: bool,
    /// A load counts from the moment when its thread acts on it, not from the moment of the load: a thread that first
    /// persists the line, takes the writer's lock or finds it free has read nothing that a crash can take back.
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
    /// Functions of the user that take or release locks, by linker name; only to report which of them never ran.
    pub sync: Vec<String>,
    /// How many cache lines to track; a bound on memory. Accesses beyond it are counted, see `LocksetStats::refused`.
    pub max_lines: usize,
}

/// What orders threads, beside create and join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edges {
    /// `pthread_barrier_wait` and its relatives.
    pub barriers: bool,
    /// Condition variables: from the signalling thread to the woken one.
    pub conditions: bool,
    /// From the thread that posts a semaphore to the one that acquires it.
    pub semaphores: bool,
    /// A word of PM that one thread spins on and another stores to.
    pub flags: bool,
    /// From the end of a detached thread to the thread that created it.
    pub detached: bool,
}

impl Edges {
    /// All of them: the default.
    pub const ALL: Edges = Edges { barriers: true, conditions: true, semaphores: true, flags: true, detached: true };
    /// None of them: only create and join give order, as published.
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
    /// HawkSet as published: no inferred locks, no reuse of memory, loads count at once, order by create and join only.
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
