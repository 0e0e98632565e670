//! Synchronisation variables that the user declares (PMRace's annotations, sections 4.3 and 5): after recovery each must hold its
//! initial value, since the threads that used it are gone.
//!
//! A variable is known by its place in the pool, or by name (`sync_names`). As in the paper, each call path that
//! updates a variable is tried once, with a crash just after the update.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use pmvet_events::event::{Event, What};
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{ContextId, FileId, SiteId};
use pmvet_findings::finding::CrashImage;
use pmvet_findings::{Evidence, Finding, Outcome, Place, PmRange, Role, Severity, Sources, Stack, rules};
use pmvet_model::LineId;
use pmvet_target::symbols::types::Types;

use super::meetings::PmAccess;
use super::sync_names::is_named;
use crate::lab::Tried;
use crate::lab::evidence::{StackLookup, UsualRecovery, recovered};
use crate::stacks;

/// Updates with different values to remember per call path, and call paths.
const MOST_VALUES: usize = 4;
const MOST_PATHS: usize = 1 << 14;
/// Largest offset of a variable within a struct at a known place.
const LARGEST: u64 = 1 << 16;

/// A variable, and its initial value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyncVariable {
    /// Where it is, or what it is called.
    pub at: VariablePlace,
    /// In bytes, up to 8.
    pub size: u64,
    /// Its value when no thread holds it.
    pub init: u64,
}

/// All variables of a run, the types to look up their names in, and the stores that may update them.
#[derive(Debug, Default)]
pub struct Variables {
    /// What the configuration declares.
    pub all: Vec<SyncVariable>,
    /// What the program's debug information says about its structs and variables.
    pub types: Types,
    /// Stores of words in the recorded run, in program order; some of them update these variables.
    pub updates: Vec<Update>,
}

/// Where a variable is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VariablePlace {
    /// A member of every object of a struct; of any struct if that has no name.
    Member {
        /// As the user wrote it.
        name: String,
        /// The name of the member.
        member: String,
        /// The name of the struct.
        of: Option<String>,
    },
    /// A global variable, or what it points to.
    Global(String),
    /// At an offset of the PM file.
    Offset {
        /// What reports call it, if the user gave it a name.
        name: Option<String>,
        /// From the start of the file.
        offset: u64,
    },
}

impl std::fmt::Display for VariablePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            VariablePlace::Member { name, .. } | VariablePlace::Global(name) => write!(f, "`{name}`"),
            VariablePlace::Offset { name: Some(name), offset } => write!(f, "`{name}` at {offset:#x}"),
            VariablePlace::Offset { name: None, offset } => write!(f, "the variable at {offset:#x}"),
        }
    }
}

impl SyncVariable {
    /// Whether a store updates this variable.
    pub fn is(&self, update: &Update, stack: &Stack, sources: &Sources, types: &Types) -> bool {
        update.end.len == self.size
            && match &self.at {
                VariablePlace::Offset { offset, .. } => update.end.offset == *offset,
                named => is_named(named, stack, sources, types),
            }
    }
}

/// A store that may update a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Update {
    /// The thread, place and time of the store.
    pub end: PmAccess,
    /// What was stored, as a little-endian number.
    pub value: u64,
}

/// Remembers stores of words, fed with the events of a run.
#[derive(Debug, Default)]
pub struct Updates {
    spaces: AddressSpaces,
    /// Offsets of declared variables; each word there is tracked separately.
    watched: Vec<u64>,
    found: HashMap<(SiteId, ContextId, Option<u64>), Vec<Update>>,
}

impl Updates {
    /// `watched`: places in the pool that the user has named.
    pub fn new(watched: Vec<u64>) -> Self {
        Self { watched, ..Self::default() }
    }

    /// Takes the next event of the run.
    pub fn event(&mut self, event: &Event<'_>) {
        self.spaces.update(event);
        let (addr, value) = match event.what {
            What::Store { addr, value, .. } => (addr, value),
            What::Rmw { addr, new, stored: true, .. } => (addr, new),
            _ => return,
        };
        if value.len() > 8 || self.found.len() >= MOST_PATHS {
            return;
        }
        let number = number(value);
        let Event { seq, thread, site, context, .. } = *event;
        let Self { spaces, watched, found } = self;
        spaces.locate(thread, addr, value.len() as u64, |part| {
            let is_watched = watched.iter().any(|&from| part.offset.wrapping_sub(from) < LARGEST);
            let known = found.entry((site, context, is_watched.then_some(part.offset))).or_default();
            if known.len() == MOST_VALUES || known.iter().any(|update| update.value == number) {
                return;
            }
            let line = LineId::containing(part.file, part.offset);
            let end = PmAccess { thread, site, context, seq, line, offset: part.offset, len: part.len as u64 };
            known.push(Update { end, value: number });
        });
    }

    /// All updates, in program order.
    pub fn finish(self) -> Vec<Update> {
        let mut all: Vec<Update> = self.found.into_values().flatten().collect();
        all.sort_by_key(|update| update.end.seq);
        all
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().take(8).rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Watches a restart: is a variable reset to its initial value before the program relies on it? A variable that is never
/// read does not count: it may lie in memory that is no longer in use.
#[derive(Debug)]
pub struct Restarted {
    init: u64,
    looked: bool,
    reset: bool,
    spaces: AddressSpaces,
    path: PathBuf,
    offset: u64,
    file: Option<FileId>,
    bytes: Vec<u8>,
}

impl Restarted {
    /// `path` is the file, as the target names it.
    pub fn new(path: &Path, variable: &SyncVariable, update: &Update) -> Self {
        let bytes = update.value.to_le_bytes()[..(variable.size as usize).min(8)].to_vec();
        let (init, path, offset) = (variable.init, path.into(), update.end.offset);
        Self { init, looked: false, reset: false, spaces: AddressSpaces::default(), path, offset, file: None, bytes }
    }

    /// The value that it has kept, if the program relies on it.
    pub fn kept(&self) -> Option<u64> {
        (self.looked && !self.reset).then(|| number(&self.bytes))
    }

    /// The variable has its initial value again: later events do not matter.
    pub fn is_decided(&self) -> bool {
        self.reset
    }

    /// Takes the next event of the restart.
    pub fn event(&mut self, event: &Event<'_>) {
        self.spaces.update(event);
        match event.what {
            What::File { file, path, .. } if path == self.path => self.file = Some(file),
            What::Store { addr, value, .. } | What::Rmw { addr, new: value, stored: true, .. } => {
                let mut parts = Vec::new();
                self.spaces.locate(event.thread, addr, value.len() as u64, |part| parts.push(part));
                for part in parts {
                    self.written(part.file, part.offset, &value[part.first..part.first + part.len]);
                }
            }
            What::Load { addr, size } => self.spaces.locate(event.thread, addr, size.into(), |part| {
                let end = self.offset + self.bytes.len() as u64;
                let overlaps = part.offset < end && self.offset < part.offset + part.len as u64;
                self.looked |= Some(part.file) == self.file && overlaps;
            }),
            What::FileWrite { file, offset, data } => self.written(file, offset, data),
            What::FileZero { file, offset, len } if Some(file) == self.file => {
                let zeroed = offset..offset.saturating_add(len);
                for (at, byte) in (self.offset..).zip(&mut self.bytes) {
                    *byte = if zeroed.contains(&at) { 0 } else { *byte };
                }
                self.reset |= number(&self.bytes) == self.init;
            }
            _ => {}
        }
    }

    fn written(&mut self, file: FileId, offset: u64, data: &[u8]) {
        if Some(file) != self.file {
            return;
        }
        for (at, byte) in (self.offset..).zip(&mut self.bytes) {
            let new = at.checked_sub(offset).and_then(|i| data.get(usize::try_from(i).ok()?));
            *byte = new.copied().unwrap_or(*byte);
        }
        let end = self.offset + self.bytes.len() as u64;
        let hit = offset < end && self.offset < offset.saturating_add(data.len() as u64);
        self.reset |= hit && number(&self.bytes) == self.init;
    }
}

/// How a restart treats a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Recovery, or what runs after it, fails with this value and not with the initial one.
    Fails,
    /// Recovery works, but never resets it to the initial value, and relies on this one.
    Holds(u64),
}

/// The finding about a variable that keeps its value across a crash.
pub fn finding(
    variable: &SyncVariable,
    update: &Update,
    left: Left,
    tried: &Tried,
    setting: &UsualRecovery,
    names: &mut StackLookup<'_>,
) -> Finding {
    let stack = names.stacks.stack(update.end.site, update.end.context);
    let pm = PmRange {
        file: names.stacks.file(update.end.line.file),
        offset: update.end.offset,
        len: variable.size,
        object: None,
    };
    let (at, value, init) = (&variable.at, update.value, variable.init);
    let happened = match left {
        Left::Fails => format!(
            "After a crash just after that, recovery {}. It works if the variable is {init} instead.",
            tried.outcome
        ),
        Left::Holds(kept) => format!(
            "After a crash just after that, the program goes by what is left of it, and it is {kept} when all is done."
        ),
    };
    let native = names.natives.stack(&tried.stack);
    let mut places = vec![Place {
        role: Role::Lock,
        stack,
        thread: Some(update.end.thread.0),
        pm: Some(pm),
        seq: Some(update.end.seq),
        label: format!("this sets a synchronisation variable to {value}, and a crash keeps it"),
    }];
    if tried.outcome != (Outcome::Exit { status: 0 }) {
        places.extend(stacks::recovery_place(&native, &tried.outcome));
    }
    Finding {
        rule: rules::LOCK_IN_PM.id(),
        severity: Severity::Error,
        title: format!("{at} keeps its value over a crash"),
        places,
        expected: format!("A synchronisation variable is {init} again after recovery, as the configuration declares."),
        happened: format!("Confirmed: {at} is set to {value} by a thread that a crash ends. {happened}"),
        fix: "Set the variable to its initial value when the pool is opened, before any thread can use it, or keep it in \
              ordinary memory."
            .into(),
        caveat: None,
        evidence: Evidence::Crash {
            image: CrashImage {
                seq: update.end.seq + 1,
                unpersisted: Vec::new(),
                unpersisted_total: 0,
                lost: Vec::new(),
                choice: "every store so far is in PM".into(),
                hash: tried.image.clone(),
                diff: Vec::new(),
            },
            recovery: recovered(tried, setting, native),
            timeline: Vec::new(),
        },
        count: 1,
        fingerprint: String::new(),
        replay: None,
    }
}

#[cfg(test)]
mod tests {
    use pmvet_events::ThreadId;
    use pmvet_events::event::StoreKind;

    use super::*;

    #[test]
    fn updates_of_places_that_were_named_are_all_known() {
        let update = |updates: &mut Updates, seq, addr| {
            let what = What::Store { addr, value: &[1; 8], how: StoreKind::Regular };
            updates.event(&Event { seq, thread: ThreadId(1), site: SiteId(3), context: ContextId(4), what });
        };
        let offsets = |watched| {
            let mut updates = Updates::new(watched);
            let map = What::Map { file: FileId(2), addr: 0x1000, len: 4096, offset: 0, writable: true };
            let start = What::ThreadStart { process: 1, os_thread: 1 };
            for what in [start, map] {
                let (site, context) = (SiteId(0), ContextId(0));
                updates.event(&Event { seq: 1, thread: ThreadId(1), site, context, what });
            }
            (0..4).for_each(|i| update(&mut updates, 2 + i, 0x1000 + 64 * i));
            updates.finish().iter().map(|update| update.end.offset).collect::<Vec<_>>()
        };
        assert_eq!(offsets(vec![]), [0]);
        assert_eq!(offsets(vec![0x80]), [0, 0x80, 0xc0]);
    }

    #[test]
    fn updates_and_what_is_left_of_them() {
        let thread = ThreadId(1);
        let event = |seq, what| Event { seq, thread, site: SiteId(3), context: ContextId(4), what };
        let start = [
            What::ThreadStart { process: 1, os_thread: 1 },
            What::File { file: FileId(2), size: 4096, device: 0, inode: 0, path: "/pool".as_ref() },
            What::Map { file: FileId(2), addr: 0x1000, len: 4096, offset: 0, writable: true },
        ];
        let store = |addr, value| What::Store { addr, value, how: StoreKind::Regular };
        let mut updates = Updates::default();
        start.iter().for_each(|what| updates.event(&event(1, *what)));
        // The second is like the first, and the fourth is no word.
        for (seq, what) in
            [store(0x1100, &[1, 0]), store(0x1108, &[1, 0]), store(0x1100, &[0, 2]), store(0x1100, &[0; 9])]
                .into_iter()
                .enumerate()
        {
            updates.event(&event(seq as u64 + 4, what));
        }
        let updates = updates.finish();
        assert_eq!(
            updates.iter().map(|u| (u.end.seq, u.end.offset, u.value)).collect::<Vec<_>>(),
            [(4, 0x100, 1), (6, 0x100, 0x200)]
        );
        let variable = SyncVariable { at: VariablePlace::Offset { name: None, offset: 0x100 }, size: 2, init: 0 };
        assert!(variable.is(&updates[0], &Stack::new(), &Sources::new([] as [PathBuf; 0]), &Types::default()));
        let mut restart = Restarted::new(Path::new("/pool"), &variable, &updates[0]);
        start.iter().for_each(|what| restart.event(&event(1, *what)));
        restart.event(&event(2, What::Load { addr: 0x1102, size: 8 }));
        assert_eq!(restart.kept(), None, "nobody has looked");
        restart.event(&event(2, What::Load { addr: 0x1100, size: 8 }));
        assert_eq!(restart.kept(), Some(1));
        restart.event(&event(2, store(0x1101, &[7, 9])));
        assert_eq!(restart.kept(), Some(0x701));
        restart.event(&event(3, What::FileZero { file: FileId(2), offset: 0x101, len: 9 }));
        restart.event(&event(4, store(0x1200, &[0; 8])));
        assert_eq!((restart.kept(), restart.is_decided()), (Some(1), false));
        restart.event(&event(4, store(0x1100, &[0])));
        assert_eq!((restart.kept(), restart.is_decided()), (None, true));
    }
}
