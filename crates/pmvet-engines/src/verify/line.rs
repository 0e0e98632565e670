//! What a cache line may hold after a crash.

use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::sync::Arc;

use pmvet_events::{ContextId, SiteId, ThreadId};
use pmvet_model::{LINE_BYTES, Line, LineContent, LineId, WriteKind};

/// The bytes of a line.
pub type LineBytes = [u8; LINE_BYTES];

/// A store that a crash may lose, or the part of it that is in one line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writer {
    /// Number of its event in the execution that made it.
    pub seq: u64,
    /// The thread that stored.
    pub thread: ThreadId,
    /// The instruction.
    pub site: SiteId,
    /// Its call path.
    pub context: ContextId,
    /// The bytes of the line that it covers, one bit each.
    pub covers: u64,
    /// It was flushed; only the fence is missing.
    pub flushing: bool,
    /// It bypasses the cache, so no flush was needed.
    pub is_non_temporal: bool,
    /// Which execution made it: 0 is the workload, 1 its recovery, 2 the recovery of that.
    pub level: u8,
}

/// One content that the line may have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Possible {
    /// The whole line.
    pub bytes: LineBytes,
    /// The stores that are not in it: for each crash, those after some point.
    pub missing: Vec<Range<u16>>,
    /// The one among these whose first bytes are in it.
    pub torn: Option<u16>,
}

/// A line that may hold one of several contents.
///
/// Contents are compared by value: two states that leave the same bytes are one content, since no recovery can tell them
/// apart.
#[derive(Debug, Clone)]
pub struct Uncertain {
    id: LineId,
    contents: Vec<Possible>,
    newest: u16,
    stores: Vec<Writer>,
}

impl Uncertain {
    /// A line of the model. Nothing if all states leave the same bytes.
    pub fn new(line: &Line, level: u8) -> Option<Self> {
        Self::after(line, level, &Earlier::Certain)
    }

    /// A line that was stored to after an earlier crash, which may have left it uncertain.
    pub fn after(line: &Line, level: u8, earlier: &Earlier<'_>) -> Option<Self> {
        let (before, mut stores) = match earlier {
            Earlier::Certain => (None, Vec::new()),
            Earlier::Uncertain { line, .. } => (Some(*line), line.stores.clone()),
        };
        let first = stores.len() as u16;
        stores.extend(line.stores().iter().map(|store| Writer {
            seq: store.seq,
            thread: store.thread,
            site: store.site,
            context: store.context,
            covers: line.covers(store),
            flushing: line.is_flushing(store),
            is_non_temporal: store.kind == WriteKind::NonTemporal,
            level,
        }));
        let end = stores.len() as u16;
        let mut contents: Vec<Possible> = Vec::new();
        let mut newest = 0;
        for (kept, torn, content) in kept_contents(line) {
            let lost = first + kept as u16..end;
            let torn = torn.then_some(lost.start);
            match (before, earlier) {
                (Some(before), Earlier::Uncertain { feasible, chosen, .. }) => {
                    for &state in feasible.iter() {
                        let Some(old) = before.contents.get(usize::from(state)) else { continue };
                        let missing = old.missing.iter().cloned().chain([lost.clone()]).collect();
                        let torn = torn.or(old.torn);
                        let at = add(&mut contents, Possible { bytes: over(&content, &old.bytes), missing, torn });
                        if state == *chosen {
                            newest = at;
                        }
                    }
                }
                _ => newest = add(&mut contents, Possible { bytes: content.bytes, missing: vec![lost], torn }),
            }
        }
        (contents.len() > 1).then(|| Self { id: line.id(), contents, newest, stores })
    }

    /// The same line after an execution that has narrowed it to the `feasible` contents, ran on `newest`, and has stored persistently
    /// over some bytes. Nothing if only one content is left.
    pub fn narrowed(&self, feasible: &[u16], newest: u16, stored: &LineContent) -> Option<Self> {
        let mut contents = Vec::new();
        let mut now = 0;
        for &state in feasible {
            let old = self.contents.get(usize::from(state))?;
            let content = Possible { bytes: over(stored, &old.bytes), ..old.clone() };
            let at = add(&mut contents, content);
            if state == newest {
                now = at;
            }
        }
        (contents.len() > 1).then(|| Self { id: self.id, contents, newest: now, stores: self.stores.clone() })
    }

    /// Which line of which file it is.
    pub fn id(&self) -> LineId {
        self.id
    }

    /// How many different contents it may have.
    pub fn states(&self) -> u16 {
        self.contents.len() as u16
    }

    /// The content in which no store is lost.
    pub fn newest(&self) -> u16 {
        self.newest
    }

    /// What a state stands for; nothing if the line has fewer states.
    pub fn content(&self, state: u16) -> Option<&Possible> {
        self.contents.get(usize::from(state))
    }

    /// All pending stores, oldest first; those of an earlier crash come before those of a later one.
    pub fn stores(&self) -> &[Writer] {
        &self.stores
    }

    /// The store that wrote last to some of these bytes, if `state` is what the crash left.
    pub fn read_from(&self, state: u16, bytes: u64) -> Option<&Writer> {
        let missing = &self.content(state)?.missing;
        let is_there = |i: usize| !missing.iter().any(|lost| lost.contains(&(i as u16)));
        let found = self.stores.iter().enumerate().rev().find(|(i, store)| store.covers & bytes != 0 && is_there(*i));
        found.map(|(_, store)| store)
    }

    /// Whether a load of these bytes sees in `state` what it would have seen before the store of this number, with nothing lost.
    pub fn is_as_before(&self, state: u16, bytes: u64, seq: u64) -> bool {
        let Some(content) = self.content(state).filter(|content| content.torn.is_none()) else { return false };
        let is_there = |i: usize| !content.missing.iter().any(|lost| lost.contains(&(i as u16)));
        (0..LINE_BYTES).filter(|byte| bytes >> byte & 1 == 1).all(|byte| {
            let newest = |counts: &dyn Fn(usize) -> bool| {
                (0..self.stores.len()).rev().find(|&i| self.stores[i].covers >> byte & 1 == 1 && counts(i))
            };
            newest(&is_there) == newest(&|i| self.stores[i].seq < seq)
        })
    }

    /// Groups some states by what a load of these bytes sees. The group of `mine` comes first, the others in order.
    pub fn split(&self, states: &[u16], bytes: u64, mine: u16) -> Vec<Vec<u16>> {
        let mut classes: Vec<Vec<u16>> = vec![Vec::new()];
        let mut seen: Vec<LineBytes> = self.seen(mine, bytes).into_iter().collect();
        for &state in states {
            let Some(value) = self.seen(state, bytes) else { continue };
            match seen.iter().position(|other| *other == value) {
                Some(class) => classes[class].push(state),
                None => {
                    seen.push(value);
                    classes.push(vec![state]);
                }
            }
        }
        classes
    }

    /// What a load of these bytes sees; zeros elsewhere.
    pub fn seen(&self, state: u16, bytes: u64) -> Option<LineBytes> {
        let mut value = self.content(state)?.bytes;
        for (_, byte) in value.iter_mut().enumerate().filter(|(i, _)| bytes >> i & 1 == 0) {
            *byte = 0;
        }
        Some(value)
    }
}

/// Two lines with the same possible contents are equal to any recovery, whichever stores led to them.
impl Hash for Uncertain {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
        let mut contents: Vec<&LineBytes> = self.contents.iter().map(|c| &c.bytes).collect();
        contents.sort_unstable();
        contents.hash(state);
    }
}

/// What is known about a line from before the execution that stored to it.
#[derive(Debug, Clone)]
pub enum Earlier<'a> {
    /// One content only: that of the image.
    Certain,
    /// An earlier crash left one of these contents, and no load has seen which.
    Uncertain {
        /// The line as that crash left it.
        line: &'a Uncertain,
        /// Its states that agree with what the execution has read.
        feasible: &'a [u16],
        /// The one that the execution ran on.
        chosen: u16,
    },
}

/// What the line holds if the crash keeps this many of its pending stores, and perhaps the first bytes of the next, in the order of
/// the stores. Merged stores are kept or lost together.
fn kept_contents(line: &Line) -> Vec<(usize, bool, LineContent)> {
    let mut contents = Vec::new();
    for (kept, store) in line.stores().iter().enumerate() {
        contents.push((kept, false, line.content(kept)));
        contents.extend(line.tears(store).map(|at| (kept, true, line.torn_content(kept, at))));
    }
    let all = line.stores().len();
    contents.push((all, false, line.content(all)));
    contents
}

/// Adds a content unless it is there already. Returns its index.
fn add(contents: &mut Vec<Possible>, content: Possible) -> u16 {
    let at = contents.iter().position(|known| known.bytes == content.bytes).unwrap_or_else(|| {
        contents.push(content);
        contents.len() - 1
    });
    at as u16
}

/// What the line holds where that is known, and `below` elsewhere.
fn over(content: &LineContent, below: &LineBytes) -> LineBytes {
    let mut bytes = *below;
    for (i, byte) in bytes.iter_mut().enumerate() {
        if content.known >> i & 1 == 1 {
            *byte = content.bytes[i];
        }
    }
    bytes
}

/// Failure points share lines that are the same at both.
pub type UncertainLines = Vec<Arc<Uncertain>>;
