//! Crashes in the recovery.
//!
//! While a recovery runs, each line it has not read may still hold any content that the first crash could leave; its own stores lie on
//! top of that. If it crashes too, a line holds one of the old contents with a prefix of the new stores over it, at or after what the
//! recovery's own flushes guarantee. Such a line is an uncertain line like any other, and the next recovery is explored in the same way.
//! This is the recursion of Jaaru's `ReadPreFailure` and `UpdateRanges` (figures 9 and 10), done on contents instead of intervals.

use std::sync::Arc;

use pmvet_model::{LineContent, LineId, LineSource, Model};
use rustc_hash::{FxHashMap, FxHashSet};

use super::crash::{CrashMoment, LinePatch, difference};
use super::explore::{Feasible, ImageChoice, state_of, walk};
use super::line::{Earlier, Uncertain, UncertainLines};
use super::reads::UncertainRead;

/// A failure point of a recovery.
#[derive(Debug, Clone)]
pub struct Inner {
    /// Its place in the recovery.
    pub moment: CrashMoment,
    /// How many of the recovery's reads came before it.
    pub reads: usize,
    /// The pending lines of the recovery's own stores.
    pub pending: Vec<pmvet_model::Line>,
    /// The newest content of all lines that the recovery has stored to.
    pub written: Vec<(LineId, LineContent)>,
}

/// The newest content of the lines that an execution stores to. Only the bytes it has stored count as known.
#[derive(Debug, Default)]
pub struct WrittenLines {
    lines: FxHashMap<LineId, LineContent>,
}

impl WrittenLines {
    /// Notes a store to a line, from its byte `first` on. `image` is what the execution started on.
    pub fn store(&mut self, id: LineId, first: usize, value: &[u8], image: &impl LineSource) {
        let content = self.lines.entry(id).or_insert_with(|| LineContent { known: 0, ..image.line(id) });
        for (i, byte) in (first..).zip(value) {
            content.bytes[i] = *byte;
            content.known |= 1 << i;
        }
    }

    /// In the order of lines.
    pub fn all(&self) -> Vec<(LineId, LineContent)> {
        let mut all: Vec<_> = self.lines.iter().map(|(id, content)| (*id, *content)).collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }
}

/// The newest content of PM for the model of a recovery: a byte that the previous crash left undecided counts as unknown until the
/// recovery stores to it.
#[derive(Debug)]
pub struct RecoveryGround<'a, B> {
    /// The image that the recovery started on.
    pub image: &'a B,
    /// What the recovery has stored so far.
    pub written: &'a WrittenLines,
    /// Lines that the previous crash left uncertain.
    pub undecided: &'a FxHashSet<LineId>,
}

impl<B: LineSource> LineSource for RecoveryGround<'_, B> {
    fn line(&self, line: LineId) -> LineContent {
        let content = match self.written.lines.get(&line) {
            Some(written) => *written,
            None => LineContent { known: 0, ..self.image.line(line) },
        };
        if self.undecided.contains(&line) { content } else { LineContent::new(content.bytes) }
    }
}

/// The pending lines of a model, kept for later.
pub fn pending(model: &Model) -> Vec<pmvet_model::Line> {
    model.pending().into_iter().cloned().collect()
}

/// A crash in a recovery, as changes to the newest image of the previous crash, and lines that are uncertain now.
#[derive(Debug)]
pub struct Second {
    /// The lines that are uncertain now.
    pub lines: UncertainLines,
    /// What certainly differs from the newest image of the previous crash.
    pub patches: Vec<LinePatch>,
}

/// What a crash at this point of a recovery leaves. `level` counts the crashes before it.
pub fn crash(
    lines: &UncertainLines,
    choice: &ImageChoice,
    reads: &[UncertainRead],
    inner: &Inner,
    level: u8,
) -> Second {
    let mut feasible = Feasible::new();
    walk(lines, &mut feasible, choice, reads.get(..inner.reads).unwrap_or(reads));
    let mut found: FxHashMap<LineId, Option<Uncertain>> = FxHashMap::default();
    let written: FxHashMap<LineId, &LineContent> = inner.written.iter().map(|(id, content)| (*id, content)).collect();
    let pending: FxHashMap<LineId, &pmvet_model::Line> = inner.pending.iter().map(|line| (line.id(), line)).collect();
    let mut patches = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let index = index as u32;
        let chosen = state_of(line, choice, index);
        let all: Vec<u16>;
        let states = match feasible.get(&index) {
            Some(states) => states,
            None => {
                all = (0..line.states()).collect();
                &all
            }
        };
        let stored = written.get(&line.id()).copied();
        let uncertain = match pending.get(&line.id()) {
            Some(new) => Uncertain::after(new, level, &Earlier::Uncertain { line, feasible: states, chosen }),
            None => line.narrowed(states, chosen, stored.unwrap_or(&LineContent::UNKNOWN)),
        };
        found.insert(line.id(), uncertain);
        // The newest image is now the chosen one, with what the recovery stored.
        if let (Some(old), Some(now)) = (line.content(line.newest()), line.content(chosen)) {
            difference(line.id(), stored.map_or(&now.bytes, |content| &content.bytes), &old.bytes, &mut patches);
        }
    }
    for (id, content) in &inner.written {
        if !found.contains_key(id) {
            patches.push((*id, 0, content.bytes.to_vec()));
            found.insert(*id, pending.get(id).and_then(|line| Uncertain::after(line, level, &Earlier::Certain)));
        }
    }
    let mut lines: UncertainLines = found.into_values().flatten().map(Arc::new).collect();
    lines.sort_unstable_by_key(|line| line.id());
    patches.sort_unstable_by_key(|(id, first, _)| (*id, *first));
    Second { lines, patches }
}
