//! Fault injection: what would a power failure here leave, and does the program recover from it?
//!
//! After Mumak (Gonçalves, Matos and Rodrigues, EuroSys 2023), section 4.1: failure points are the flushes and fences that follow a
//! store to PM, made unique by their call path, and the program's own recovery is the oracle.
//!
//! Deviations:
//!
//! * The program is not run again for each failure point. Its one recorded run holds the value of every store, so each crash image is
//!   rebuilt (`scan`), and images with equal content are tried once.
//! * A failing image is narrowed down to the store that broke it (`refine`), and failures that follow each other without a
//!   good image between them are one finding (`causes/windows`).
//! * Several machines may each try a part of the images (`part`), and a campaign skips call paths that earlier runs tried
//!   (`known_paths`).
//! * Besides the newest value of everything, it tries states in which the processor wrote lines back in another order
//!   (`InjectionPlan::reorder`): the likely ones, or all.
//!
//! What it misses: states that only a later visit to the same call path would show (`InjectionPlan::visits` tries more of them), states in
//! which several lines are kept back at once, and whatever the recovery does not notice.

pub(crate) mod findings;
pub(crate) mod known_paths;
pub(crate) mod part;
pub(crate) mod points;
pub(crate) mod refine;
pub(crate) mod scan;

pub use points::Granularity;

pub(crate) use scan::{FailurePointScan, FailurePointScanner, PendingStore, ReorderedState};

/// What to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InjectionPlan {
    /// Where crashes are tried.
    pub at: Granularity,
    /// How many visits to the same call path are tried; [`AUTOMATIC_VISITS`]: the length of the run decides.
    pub visits: u32,
    /// Try states in which lines were written back in another order.
    pub reorder: Option<Reorder>,
}

/// In [`InjectionPlan::visits`]: as many as the length of the run suggests.
pub const AUTOMATIC_VISITS: u32 = 0;
/// Shorter recordings count as short: nearly all visits can be tried.
const SHORT_BYTES: u64 = 1 << 20;
const VISITS_IN_SHORT_RUN: u32 = 64;
const VISITS_IN_LONG_RUN: u32 = 1;

impl InjectionPlan {
    /// What to try in a run whose recording has this size.
    pub(crate) fn for_recording(self, bytes: u64) -> Self {
        let visits = match self.visits {
            AUTOMATIC_VISITS if bytes < SHORT_BYTES => VISITS_IN_SHORT_RUN,
            AUTOMATIC_VISITS => VISITS_IN_LONG_RUN,
            visits => visits,
        };
        Self { visits, ..self }
    }
}

/// Which states with lines in another order are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reorder {
    /// Upper bound for one failure point.
    pub states: usize,
    /// Try all of these; otherwise the likeliest, about as many as there are images in program order.
    pub all: bool,
}
