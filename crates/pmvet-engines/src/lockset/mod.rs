//! Persistency-induced races, predicted: HawkSet (Oliveira, Gonçalves, Matos; EuroSys 2025).
//!
//! A thread reads a value that another thread has stored but not yet made persistent, and acts on it; a crash may then keep
//! the effect and lose the value. As in the paper, the two threads need not meet in the recorded run. A store has a
//! *window*, from the store until it is persistent or overwritten; its *effective lockset* holds the locks that
//! protected the whole window. A load by another thread is a race if it shares no lock with that set and is not ordered
//! after the end of the window.
//!
//! * [`LocksetEngine`] — the sink; `loads`, `stores`, `persist` and `publication` are its memory side.
//! * `lines` — the state of each cache line; `reader` — of each thread; `locksets`, `clocks` — a thread's locks and its
//!   logical time.
//! * `races` — pairs of accesses, and which of them race; `rechecks` — readers that compare a version before and after;
//!   `sightings` — whether another run would show a race.
//! * `spin` — locks that only the trace shows; `inferred` — the evidence for them; [`pm_locks`] — locks in PM;
//!   `lock_objects` — how large they are.
//! * [`findings`] — the outcome in words; `race_paths` — which races form one finding; [`recordings`] — what several
//!   runs have in common; `lock_words` — names for locks; [`listed_locks`] — the inferred locks, for the user.
//!   [`LocksetOptions`] — every choice below as a switch.
//!
//! Where it differs from the paper:
//!
//! * Streaming. The paper keeps all accesses of a run and compares each with each at the end. Here every line keeps the
//!   loads and stores that differ in instruction, locks or time, and each new one is compared with them at once. Memory
//!   that is freed and allocated again counts as new memory: see `LocksetOptions::allocators`.
//! * The effective lockset consists of the locks that the *storing* thread still holds when the store becomes
//!   persistent, whichever thread flushed it. For a thread that persists its own stores that is the paper's definition.
//! * A load counts when its thread acts on it (`reader`), as PMRace has it. The exception: a load under a lock that the
//!   writer released too early counts at once.
//! * Loads with which the C library reads past the end of a string do not count (`strings`).
//! * Spin locks are inferred; locks in PM are tracked; initialisation is recognised anew when memory is reused.
//! * A store by a lock-free read-modify-write is reported only if the run shows a thread acting on it in its window, unless
//!   `LocksetOptions::lock_free` is set: other words, mostly outside PM, keep lock-free readers out, so predictions would
//!   nearly always be wrong. An exchange whose old value is not used counts as an ordinary store.
//!
//! What it misses, beside what its switches hide: pairs that never occur in the run, as when each thread ends before the next one
//! starts; acts that leave no event in PM, such as an answer to a client; code that the run did not reach. What it reports wrongly:
//! threads that exclude each other by something that is neither a known lock function, nor in PM, nor an atomic that the client
//! reports. See `docs/race.md`.

pub(crate) mod clocks;
mod engine;
pub mod findings;
mod inferred;
mod lines;
pub mod listed_locks;
mod loads;
mod lock_objects;
mod lock_words;
mod locksets;
mod options;
mod persist;
pub mod pm_locks;
mod publication;
mod race_paths;
mod races;
mod reader;
mod reads;
mod rechecks;
pub mod recordings;
pub mod restarts;
mod sightings;
mod spin;
mod stores;
mod strings;

pub use engine::{Code, CodeNames, LocksetAnalysis, LocksetEngine, LocksetStats, Unmatched};
pub use inferred::{InferredLock, LockShape};
pub use lines::Fate;
pub use options::{Edges, LocksetOptions};
pub use races::{LockName, LockTime, PredictedRace, RaceAccess, WindowEnd};
pub use sightings::Sightings;
pub use spin::{PmWord, Takers};
