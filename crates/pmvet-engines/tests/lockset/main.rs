//! Litmus tests of the lockset engine: the figures of the HawkSet paper and the patterns that pmvet adds, as scripted events
//! with exact verdicts.

mod findings;
mod limits;
mod lock_words;
mod optimistic;
mod publication;
mod script;
mod spin_locks;
mod strings;
mod windows;
