//! Races that happened in a recorded run, and the crashes that would show whether they do harm.

use std::collections::HashMap;

use pmvet_events::event::{Event, What};
use pmvet_events::{ContextId, SiteId, ThreadId};
use pmvet_model::states::Cut;
use pmvet_model::{Line, LineId, Mode, Model};
use pmvet_target::crash::{Patch, Replay, VersionId, Versions};
use pmvet_target::mapped::MappedFile;
use pmvet_target::recording::Recording;

use crate::inject::scan::{Newest, ScanError};

/// How many meetings of the same two instructions are looked at.
const MOST_MEETINGS: usize = 3;
/// How many acts of a reader are followed by a crash: stores, fences.
const MOST_STORES: usize = 3;
const MOST_FENCES: usize = 3;
/// How many pairs of instructions are followed at the same time: a bound on work, counted when it is reached.
const MOST_OPEN: usize = 512;

/// One side of a meeting, or an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct End {
    pub thread: ThreadId,
    pub site: SiteId,
    pub context: ContextId,
    /// For a load, the number of the last event before it.
    pub seq: u64,
    pub line: LineId,
    /// In the file.
    pub offset: u64,
    pub len: u64,
}

/// A crash image: the content of PM before the event `seq`, with some bytes as they were before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Crash {
    pub seq: u64,
    pub version: VersionId,
    pub patches: Vec<Patch>,
    /// What the reader has just done; at first, the load.
    pub act: End,
    /// The act is a fence: what came before it is persistent.
    pub fenced: bool,
}

/// A thread read what another had stored, before it was persistent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meeting {
    pub store: End,
    pub load: End,
    /// The store is lost: at the moment of the load, and after each act of the reader.
    pub crashes: Vec<Crash>,
}

/// All meetings of a run.
#[derive(Debug)]
pub struct Meetings {
    pub versions: Versions,
    pub meetings: Vec<Meeting>,
    /// The content at the end.
    pub last: VersionId,
    /// Meetings left out because there were too many at a time.
    pub left_out: u64,
}

/// Makes [`Meetings`] out of events.
#[derive(Debug)]
pub struct Scanner {
    model: Model,
    replay: Replay,
    versions: Versions,
    meetings: Vec<Meeting>,
    /// Meetings whose store is still pending, by the reader.
    open: HashMap<ThreadId, Vec<usize>>,
    met: HashMap<(SiteId, SiteId), usize>,
    last_seq: u64,
    left_out: u64,
}

impl Scanner {
    /// `store` is an empty file for the pages of all versions.
    pub fn new(recording: &Recording, mode: Mode, store: MappedFile) -> Self {
        Self {
            model: Model::new(mode),
            replay: Replay::new(recording),
            versions: Versions::new(store),
            meetings: Vec::new(),
            open: HashMap::new(),
            met: HashMap::new(),
            last_seq: 0,
            left_out: 0,
        }
    }

    pub fn event(&mut self, event: &Event<'_>) -> Result<(), ScanError> {
        match event.what {
            What::Load { addr, size } => return self.load(event, addr, size.into()),
            What::Rmw { addr, old, .. } => self.load(event, addr, old.len() as u64)?,
            _ => {}
        }
        self.model.event(event, &Newest(&self.replay));
        self.replay.apply(event)?;
        self.last_seq = event.seq;
        match event.what {
            What::Store { addr, value, .. } => self.act(event, Some((addr, value.len() as u64))),
            What::Rmw { addr, new, stored: true, .. } => self.act(event, Some((addr, new.len() as u64))),
            What::Fence { .. } => self.act(event, None),
            _ => Ok(()),
        }
    }

    pub fn finish(mut self) -> Result<Meetings, ScanError> {
        let (last, _) = self.versions.take(&mut self.replay)?;
        let Self { versions, meetings, left_out, .. } = self;
        Ok(Meetings { versions, meetings, last, left_out })
    }

    fn load(&mut self, event: &Event<'_>, addr: u64, len: u64) -> Result<(), ScanError> {
        let mut parts = Vec::new();
        self.model.spaces().locate(event.thread, addr, len, |part| parts.push(part));
        for part in parts {
            let line = LineId::of(part.file, part.offset);
            // An access over two lines counts with its first.
            let within = part.len.min((line.offset() + 64 - part.offset) as usize);
            let Some(found) = self.model.line(line) else { continue };
            let at = (part.offset - line.offset()) as usize;
            let Some((index, bytes)) = found.writer(at, within) else { continue };
            let store = found.stores()[index];
            if store.thread == event.thread || found.uncertain() != 0 {
                continue;
            }
            let met = self.met.entry((store.site, event.site)).or_insert(0);
            if *met >= MOST_MEETINGS {
                continue;
            }
            let again =
                |&i: &usize| self.meetings[i].store.seq == store.seq && self.meetings[i].load.site == event.site;
            let open = self.open.entry(event.thread).or_default();
            if open.iter().any(again) {
                continue;
            }
            if open.len() >= MOST_OPEN {
                self.left_out += 1;
                continue;
            }
            *met += 1;
            let first = u64::from(bytes.trailing_zeros());
            let end = |thread, site, context, seq| End {
                thread,
                site,
                context,
                seq,
                line,
                offset: line.offset() + first,
                len: 64 - u64::from(bytes.leading_zeros()) - first,
            };
            let load = end(event.thread, event.site, event.context, self.last_seq);
            let store = end(store.thread, store.site, store.context, store.seq);
            let patches = lost(&self.model, found, index);
            if patches.is_empty() {
                continue;
            }
            let (version, _) = self.versions.take(&mut self.replay)?;
            let first = Crash { seq: self.last_seq + 1, version, patches, act: load, fenced: false };
            open.push(self.meetings.len());
            self.meetings.push(Meeting { store, load, crashes: vec![first] });
        }
        Ok(())
    }

    /// A thread has stored or fenced: what if the machine fails now?
    fn act(&mut self, event: &Event<'_>, memory: Option<(u64, u64)>) -> Result<(), ScanError> {
        let Some(open) = self.open.get_mut(&event.thread).filter(|open| !open.is_empty()) else { return Ok(()) };
        let (model, meetings) = (&self.model, &mut self.meetings);
        let pending = |meeting: &Meeting| {
            let line = model.line(meeting.store.line)?;
            let index = line.stores().iter().position(|store| store.seq == meeting.store.seq)?;
            Some((line, index))
        };
        open.retain(|&i| pending(&meetings[i]).is_some());
        let mut place = None;
        if let Some((addr, len)) = memory {
            model.spaces().locate(event.thread, addr, len, |part| {
                place.get_or_insert((LineId::of(part.file, part.offset), part.offset, part.len as u64));
            });
        }
        for &i in open.iter() {
            let meeting = &mut meetings[i];
            let fenced = memory.is_none();
            let most = if fenced { MOST_FENCES } else { MOST_STORES };
            if meeting.crashes.iter().filter(|crash| crash.fenced == fenced).count() >= most {
                continue;
            }
            // A store to the same line, later than the lost one, is lost with it.
            if place.is_some_and(|(line, ..)| line == meeting.store.line) {
                continue;
            }
            let Some((line, index)) = pending(meeting) else { continue };
            let patches = lost(model, line, index);
            if patches.is_empty() {
                continue;
            }
            let (version, _) = self.versions.take(&mut self.replay)?;
            let (line, offset, len) = place.unwrap_or((meeting.store.line, 0, 0));
            let Event { seq, thread, site, context, .. } = *event;
            let act = End { thread, site, context, seq, line, offset, len };
            meeting.crashes.push(Crash { seq: seq + 1, version, patches, act, fenced });
        }
        Ok(())
    }
}

/// What to write over the newest image so that a pending store, and what its line got after it, is not there.
fn lost(model: &Model, line: &Line, index: usize) -> Vec<Patch> {
    let cut = Cut { line: line.id(), kept: index };
    let patches = model.patches(&[cut]).into_iter();
    patches.map(|p| Patch { file: p.file, offset: p.offset, bytes: p.bytes }).collect()
}
