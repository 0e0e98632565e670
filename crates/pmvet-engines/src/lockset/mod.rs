//! Persistency-induced races, predicted: HawkSet (Oliveira, Gonçalves, Matos; EuroSys 2025).
//!
//! A thread reads a value that another thread has stored but not yet made persistent, and acts on it; a crash may then keep
//! the act and lose the value. As in the paper the two need not meet in the run at hand. A store has a *window*, from
//! the store to its persist or its overwriting; its *effective lockset* is what protected the whole window. A load
//! of another thread, not ordered after the end of the window, without a common lock, is a race.
//!
//! * [`LocksetEngine`] — the sink; `loads`, `stores` and `persist` are its memory side.
//! * `lines` — what is known of each cache line; `reader` — of each thread; `locksets`, `clocks` — its locks, its time.
//! * `races` — pairs and their judgement; `sightings` — whether another run would show them.
//! * `spin` — locks that only the trace shows; [`pm_locks`] — locks in PM; `lock_objects` — how large they are.
//! * [`findings`] — the outcome in words, `race_paths` what is one finding, [`recordings`] what several runs have in common, `lock_words` the words for locks, [`listed_locks`] those that are inferred, for the user. [`LocksetOptions`] — every choice below as a switch.
//!
//! Where it differs from the paper:
//!
//! * Streaming. The paper keeps all accesses of a run and compares each with each at the end. Here every line keeps the
//!   loads and stores that differ in instruction, locks or time, and a new one is compared with them when it comes. Memory
//!   that begins another life is told apart from itself: see `LocksetOptions::allocators`.
//! * The effective lockset asks which locks the *storing* thread still holds when the store becomes persistent, whoever
//!   flushed it. For a thread that persists its own stores that is the paper's definition.
//! * A load counts when its thread acts on it (`reader`), as PMRace has it. The exception: a load under a lock that the
//!   writer gave back too early counts at once.
//! * Loads by which the C library reads beyond the end of a string do not count (`strings`).
//! * Spin locks are inferred; locks in PM are looked after; initialisation is recognised again when memory is used again.
//! * A store by a lock-free read-modify-write is reported only if a thread was seen to act on it in its window, unless
//!   `LocksetOptions::lock_free` is set: what keeps lock-free readers out is other words, mostly not in PM, so that predictions
//!   would be wrong nearly always. An exchange whose old value is not used is a store like any other.
//!
//! What it misses, beside what its switches hide: pairs that the run does not hold at all, as when each thread is done before the
//! next one starts; acts that leave no event in PM, such as an answer to a client; code that
//! the run did not reach. What it reports wrongly: threads kept apart by something that is neither a known lock function, nor in PM,
//! nor an atomic that the client reports. See `docs/race.md`.

pub(crate) mod clocks;
mod engine;
pub mod findings;
mod lines;
pub mod listed_locks;
mod loads;
mod lock_objects;
mod lock_words;
mod locksets;
mod options;
mod persist;
pub mod pm_locks;
mod race_paths;
mod races;
mod reader;
mod reads;
pub mod recordings;
pub mod restarts;
mod sightings;
mod spin;
mod stores;
mod strings;

pub use engine::{Code, CodeNames, LocksetAnalysis, LocksetEngine, LocksetStats, Unmatched};
pub use lines::Fate;
pub use options::{Edges, LocksetOptions};
pub use races::{LockName, LockTime, PredictedRace, RaceAccess, WindowEnd};
pub use sightings::Sightings;
pub use spin::{InferredLock, LockShape, PmWord, Takers};
