//! What has been tried, kept on disk line by line, so that an interrupted run can go on.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use pmvet_findings::Outcome;
use serde::{Deserialize, Serialize};

use super::recovery::Trial;
use crate::json_lines::JournalLines;
use pmvet_target::sandbox::RawFrame;

/// A finished trial, under the hash of its image.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// The hash of the image and of what it must show: [`TrialImage::name`](super::TrialImage::name).
    pub image: String,
    /// How the recovery ended.
    pub outcome: Outcome,
    /// The end of what it printed; empty if it ended as usual.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub output: String,
    /// Its stack when it failed, innermost frame first; empty if it ended as usual.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<RawFrame>,
    /// How long it took, with the oracle and the dump.
    pub seconds: f64,
}

impl Tried {
    /// Keeps no output of a good recovery: nothing reads it.
    pub fn new(image: String, trial: Trial, good: bool) -> Self {
        let output = if good { String::new() } else { String::from_utf8_lossy(&trial.output).into_owned() };
        Self { image, outcome: trial.outcome, output, stack: trial.stack, seconds: trial.time.as_secs_f64() }
    }
}

/// All trials of a run, in memory and on disk.
#[derive(Debug)]
pub struct TrialJournal {
    lines: JournalLines,
    tried: HashMap<String, Tried>,
}

impl TrialJournal {
    /// Opens or makes it.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (lines, known) = JournalLines::open::<Tried>(path)?;
        Ok(Self { lines, tried: known.into_iter().map(|tried| (tried.image.clone(), tried)).collect() })
    }

    /// The trial of the image with this name, if there is one.
    pub fn get(&self, image: &str) -> Option<&Tried> {
        self.tried.get(image)
    }

    /// Adds a trial. It counts even if it cannot be written, as on a full disk; see
    /// [`take_failure`](Self::take_failure).
    pub fn add(&mut self, tried: Tried) -> io::Result<()> {
        self.lines.add(&tried)?;
        self.tried.insert(tried.image.clone(), tried);
        Ok(())
    }

    /// Why trials are missing on disk, if any are.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.lines.take_failure()
    }

    /// Whether a kill cut off the last line. That trial has to be repeated.
    pub fn was_torn(&self) -> bool {
        self.lines.was_torn()
    }

    /// All trials, in no order.
    pub fn all(&self) -> impl Iterator<Item = &Tried> {
        self.tried.values()
    }
}
