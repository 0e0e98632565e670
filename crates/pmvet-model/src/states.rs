//! Crash states: what PM may hold if the power fails now.
//!
//! A state is one choice per pending line: how many of its pending stores have reached PM. There are far too many to
//! try all, so [`Model::adversarial`] picks those that reveal when a program relies on one line being persistent before
//! another.
//!
//! What it misses: with more than [`COMBINED_LINES`] pending lines, states in which two or more lines are kept back while two or
//! more others are ahead. Those need the exhaustive search.

use pmvet_events::FileId;
use rustc_hash::FxHashSet;

use crate::line::Line;
use crate::model::Model;
use crate::store::{Store, WriteKind};
use crate::{LINE_BYTES, LineContent, LineId, mask};

/// A line that is not at its newest content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cut {
    /// The line.
    pub line: LineId,
    /// How many of its pending stores it has.
    pub kept: usize,
    /// It also has the next store up to this byte of the line; 0 if it has nothing of it.
    pub torn_at: u8,
}

impl Cut {
    /// The line has its first `kept` pending stores, each as a whole.
    pub fn between_stores(line: LineId, kept: usize) -> Self {
        Self { line, kept, torn_at: 0 }
    }
}

/// A crash state, as the difference from the state that has every store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CrashState {
    /// Why it is worth trying.
    pub choice: Reordering,
    /// In the order of lines.
    pub cuts: Vec<Cut>,
}

/// Which idea a state stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reordering {
    /// This line lost all its pending stores, everything else is newest.
    Behind(LineId),
    /// This line is newest, all other pending ones lost their stores.
    Ahead(LineId),
    /// This line has its first pending stores but not all, everything else is newest.
    Partial(LineId, usize),
    /// This line has this many of its pending stores, and the next one up to this byte of the line; everything else is
    /// newest.
    Torn(LineId, usize, u8),
    /// This line and others lost all their pending stores, while at least two did not. The bits say which, in the order of lines.
    Several(LineId, u8),
}

/// Up to this many pending lines, the states include all combinations of lines that are behind and lines that are not: 50 for six lines.
pub const COMBINED_LINES: usize = 6;

/// The processor makes aligned stores of at most this many bytes atomic.
pub const ATOMIC_BYTES: usize = 8;

/// Bytes to write over the newest image.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Overwrite {
    /// The file.
    pub file: FileId,
    /// Offset of the first byte.
    pub offset: u64,
    /// What to write there.
    pub bytes: Vec<u8>,
}

/// How many states to pick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateLimits {
    /// Upper bound in all.
    pub states: usize,
    /// Upper bound of intermediate contents per line.
    pub partial: usize,
    /// Only lines with a store after this number are kept back or ahead: the others had their turn when they last
    /// changed.
    pub since: u64,
}

impl Default for StateLimits {
    fn default() -> Self {
        Self { states: 4096, partial: 16, since: 0 }
    }
}

impl Line {
    /// The different contents it may have after a crash, each with the least number of pending stores that gives it.
    ///
    /// Without those in which a store is torn, see [`Line::tears`].
    pub fn states(&self) -> Vec<(usize, LineContent)> {
        let mut seen = FxHashSet::default();
        let mut content = self.bound;
        let mut states = vec![(0, content)];
        seen.insert(content.bytes);
        for (i, store) in self.stores().iter().enumerate() {
            self.apply(store, &mut content);
            if seen.insert(content.bytes) {
                states.push((i + 1, content));
            }
        }
        states
    }

    /// The bytes of the line at which a crash may tear a pending store, so that only its first part is in PM. Merged stores stay together,
    /// and a locked read-modify-write is atomic.
    pub fn tears(&self, store: &Store) -> impl Iterator<Item = usize> + use<> {
        let atomic = store.merged || store.kind == WriteKind::Rmw;
        let inside = if atomic { 0..0 } else { store.offset() + 1..store.offset() + store.len() };
        inside.filter(|at| at % ATOMIC_BYTES == 0)
    }

    /// What it holds once the first `kept` of its pending stores have reached PM, and the next one up to a byte of the line.
    pub fn torn_content(&self, kept: usize, torn_at: usize) -> LineContent {
        let (mut content, whole) = (self.content(kept), self.content(kept + 1));
        if let Some(store) = self.stores().get(kept).filter(|store| store.offset() < torn_at) {
            let part = store.offset()..torn_at;
            content.bytes[part.clone()].copy_from_slice(&whole.bytes[part.clone()]);
            content.known |= mask(part.start, part.len());
        }
        content
    }
}

impl Model {
    /// How many lines have pending stores.
    pub fn pending_lines(&self) -> usize {
        self.lines.len()
    }

    /// The lines with pending stores, in the order of files and offsets.
    pub fn pending(&self) -> Vec<&Line> {
        let mut lines: Vec<&Line> = self.lines.iter().collect();
        lines.sort_unstable_by_key(|line| line.id());
        lines
    }

    /// How many different states a crash may leave, saturating at the largest number.
    pub fn crash_states(&self) -> u128 {
        self.lines.iter().fold(1, |all: u128, line| all.saturating_mul(line.states().len() as u128))
    }

    /// States in which one line differs from the others, or several lines if few are pending, without duplicates and in a fixed
    /// order.
    ///
    /// Lines whose content before their pending stores is unknown cannot be kept back and are left out.
    pub fn adversarial(&self, limits: StateLimits) -> Vec<CrashState> {
        let lines: Vec<Candidate<'_>> = self.pending().into_iter().filter_map(Candidate::new).collect();
        let moving: Vec<&Candidate<'_>> = lines.iter().filter(|c| c.moves).collect();
        let is_new = |line: &Line| line.stores().last().is_some_and(|s| s.seq > limits.since);
        let mut states = Vec::new();
        for candidate in lines.iter().filter(|c| is_new(c.line)) {
            let id = candidate.line.id();
            if candidate.moves {
                states.push(CrashState { choice: Reordering::Behind(id), cuts: vec![Cut::between_stores(id, 0)] });
            }
            // With two lines that move, one being ahead means the other is behind; with one it is the newest state.
            if candidate.moves && moving.len() > 2 {
                let others = moving.iter().map(|c| c.line.id()).filter(|other| *other != id);
                let cuts = others.map(|line| Cut::between_stores(line, 0)).collect();
                states.push(CrashState { choice: Reordering::Ahead(id), cuts });
            }
            for kept in candidate.between(limits.partial) {
                let cuts = vec![Cut::between_stores(id, kept)];
                states.push(CrashState { choice: Reordering::Partial(id, kept), cuts });
            }
            for (kept, torn_at) in candidate.torn(limits.partial) {
                let cuts = vec![Cut { line: id, kept, torn_at }];
                states.push(CrashState { choice: Reordering::Torn(id, kept, torn_at), cuts });
            }
            if states.len() >= limits.states {
                states.truncate(limits.states);
                break;
            }
        }
        // With three lines, two being behind means one is ahead.
        if (4..=COMBINED_LINES).contains(&moving.len()) {
            let some = 2..=moving.len() as u32 - 2;
            for set in (0..1_u8 << moving.len()).filter(|set| some.contains(&set.count_ones())) {
                let behind =
                    || (0..).zip(&moving).filter(|(i, _)| set >> i & 1 == 1).map(|(_, candidate)| candidate.line);
                let first = behind().find(|line| is_new(line)).filter(|_| states.len() < limits.states);
                let Some(first) = first else { continue };
                let cuts = behind().map(|line| Cut::between_stores(line.id(), 0)).collect();
                states.push(CrashState { choice: Reordering::Several(first.id(), set), cuts });
            }
        }
        states
    }

    /// What to write over the newest image to get this state.
    pub fn patches(&self, cuts: &[Cut]) -> Vec<Overwrite> {
        let mut patches = Vec::new();
        for cut in cuts {
            if let Some(line) = self.line(cut.line) {
                difference(cut.line, &line.torn_content(cut.kept, cut.torn_at.into()), &line.newest(), &mut patches);
            }
        }
        patches
    }

    /// The stores that this state leaves out, as a whole or in part.
    pub fn lost<'a>(&'a self, cuts: &'a [Cut]) -> impl Iterator<Item = (LineId, &'a Store)> {
        cuts.iter().flat_map(|cut| {
            let stores = self.line(cut.line).map_or(&[][..], |line| line.stores().get(cut.kept..).unwrap_or_default());
            stores.iter().map(|store| (cut.line, store))
        })
    }
}

/// A line that can be kept back.
struct Candidate<'a> {
    line: &'a Line,
    /// Its newest content differs from its guaranteed one.
    moves: bool,
    states: Vec<(usize, LineContent)>,
}

impl<'a> Candidate<'a> {
    fn new(line: &'a Line) -> Option<Self> {
        let moves = line.bound().bytes != line.newest().bytes;
        (line.uncertain() == 0).then(|| Self { line, moves, states: line.states() })
    }

    /// Prefixes that give neither the guaranteed nor the newest content: at most `limit` of them, spread evenly.
    fn between(&self, limit: usize) -> Vec<usize> {
        let newest = self.line.newest().bytes;
        let all: Vec<usize> =
            self.states[1..].iter().filter(|(_, c)| c.bytes != newest).map(|&(kept, _)| kept).collect();
        spread(all, limit)
    }

    /// Torn stores that give a new content each: at most `limit`, spread evenly.
    fn torn(&self, limit: usize) -> Vec<(usize, u8)> {
        let newest = self.line.newest().bytes;
        let mut contents = Vec::new();
        let mut all = Vec::new();
        for (kept, store) in self.line.stores().iter().enumerate() {
            for at in self.line.tears(store) {
                let bytes = self.line.torn_content(kept, at).bytes;
                let is_whole = bytes == newest || self.states.iter().any(|(_, content)| content.bytes == bytes);
                if !is_whole && !contents.contains(&bytes) {
                    contents.push(bytes);
                    all.push((kept, at as u8));
                }
            }
        }
        spread(all, limit)
    }
}

/// At most `limit` of them, spread evenly.
fn spread<T: Copy>(all: Vec<T>, limit: usize) -> Vec<T> {
    let picked = all.len().min(limit);
    (0..picked).map(|i| all[i * all.len() / picked]).collect()
}

/// One patch for each run of bytes that differ.
fn difference(line: LineId, content: &LineContent, newest: &LineContent, patches: &mut Vec<Overwrite>) {
    let differs = |i: usize| content.bytes[i] != newest.bytes[i];
    let mut i = 0;
    while i < LINE_BYTES {
        let end = (i..LINE_BYTES).find(|&end| !differs(end)).unwrap_or(LINE_BYTES);
        if end > i {
            let bytes = content.bytes[i..end].to_vec();
            patches.push(Overwrite { file: line.file, offset: line.offset() + i as u64, bytes });
        }
        i = end + 1;
    }
}
