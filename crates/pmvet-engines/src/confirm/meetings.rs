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
/// How many meetings beyond that, of stores by the same instruction, are looked at only where they end.
const MOST_BRIEF: usize = 16;
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
    /// The store is lost: at the moment of the load, after each act of the reader, and just before the store becomes persistent.
    pub crashes: Vec<Crash>,
    /// Only the last of these: others of the same instructions were looked at closely.
    pub brief: bool,
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
    /// Brief meetings, by the instruction that stored.
    brief: HashMap<SiteId, usize>,
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
            brief: HashMap::new(),
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
        let ending = self.ending(event);
        self.model.event(event, &Newest(&self.replay));
        if !ending.is_empty() {
            self.end(event, ending)?;
        }
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
        let Self { versions, mut meetings, left_out, .. } = self;
        meetings.retain(|meeting| !meeting.crashes.is_empty());
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
            let brief = self.met.get(&(store.site, event.site)).is_some_and(|&met| met >= MOST_MEETINGS);
            if brief && self.brief.get(&store.site).is_some_and(|&met| met >= MOST_BRIEF) {
                continue;
            }
            let again =
                |&i: &usize| self.meetings[i].store.seq == store.seq && self.meetings[i].load.site == event.site;
            let open = self.open.get(&event.thread).map_or(&[][..], Vec::as_slice);
            if open.iter().any(again) {
                continue;
            }
            if open.len() >= MOST_OPEN {
                self.left_out += 1;
                continue;
            }
            // One brief meeting for each store is enough: they all end with it.
            let known = |i: &usize| self.meetings[*i].store.seq == store.seq;
            if brief && self.open.values().flatten().any(known) {
                continue;
            }
            match brief {
                true => *self.brief.entry(store.site).or_insert(0) += 1,
                false => *self.met.entry((store.site, event.site)).or_insert(0) += 1,
            }
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
            let mut crashes = Vec::new();
            if !brief && !patches.is_empty() {
                let (version, _) = self.versions.take(&mut self.replay)?;
                crashes.push(Crash { seq: self.last_seq + 1, version, patches, act: load, fenced: false });
            }
            self.open.entry(event.thread).or_default().push(self.meetings.len());
            self.meetings.push(Meeting { store, load, crashes, brief });
        }
        Ok(())
    }

    /// The open meetings that a fence may end, with what to write over the image to lose their stores.
    fn ending(&self, event: &Event<'_>) -> Vec<(usize, Vec<Patch>)> {
        if !matches!(event.what, What::Fence { .. }) || !self.model.would_persist(event) {
            return Vec::new();
        }
        let open = self.open.values().flatten();
        open.filter_map(|&i| {
            let (line, index) = pending(&self.model, &self.meetings[i])?;
            Some((i, lost(&self.model, line, index)))
        })
        .collect()
    }

    /// The fence has made stores persistent: what if the machine had failed just before? By then others have done all that
    /// they do while the store can be lost.
    fn end(&mut self, event: &Event<'_>, ending: Vec<(usize, Vec<Patch>)>) -> Result<(), ScanError> {
        let Event { seq, thread, site, context, .. } = *event;
        for (i, patches) in ending {
            if patches.is_empty() || pending(&self.model, &self.meetings[i]).is_some() {
                continue;
            }
            let (version, _) = self.versions.take(&mut self.replay)?;
            let meeting = &mut self.meetings[i];
            let act = End { thread, site, context, seq, line: meeting.store.line, offset: 0, len: 0 };
            meeting.crashes.push(Crash { seq, version, patches, act, fenced: true });
        }
        Ok(())
    }

    /// A thread has stored or fenced: what if the machine fails now?
    fn act(&mut self, event: &Event<'_>, memory: Option<(u64, u64)>) -> Result<(), ScanError> {
        let Some(open) = self.open.get_mut(&event.thread).filter(|open| !open.is_empty()) else { return Ok(()) };
        let (model, meetings) = (&self.model, &mut self.meetings);
        open.retain(|&i| pending(model, &meetings[i]).is_some());
        let mut place = None;
        if let Some((addr, len)) = memory {
            model.spaces().locate(event.thread, addr, len, |part| {
                place.get_or_insert((LineId::of(part.file, part.offset), part.offset, part.len as u64));
            });
        }
        for &i in open.iter() {
            let meeting = &mut meetings[i];
            if meeting.brief {
                continue;
            }
            let fenced = memory.is_none();
            let most = if fenced { MOST_FENCES } else { MOST_STORES };
            if meeting.crashes.iter().filter(|crash| crash.fenced == fenced).count() >= most {
                continue;
            }
            // A store to the same line, later than the lost one, is lost with it.
            if place.is_some_and(|(line, ..)| line == meeting.store.line) {
                continue;
            }
            let Some((line, index)) = pending(model, meeting) else { continue };
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

/// The line of a meeting's store and its place among the pending stores there, if it is still pending.
fn pending<'a>(model: &'a Model, meeting: &Meeting) -> Option<(&'a Line, usize)> {
    let line = model.line(meeting.store.line)?;
    let index = line.stores().iter().position(|store| store.seq == meeting.store.seq)?;
    Some((line, index))
}

/// What to write over the newest image so that a pending store, and what its line got after it, is not there.
fn lost(model: &Model, line: &Line, index: usize) -> Vec<Patch> {
    let cut = Cut { line: line.id(), kept: index };
    let patches = model.patches(&[cut]).into_iter();
    patches.map(|p| Patch { file: p.file, offset: p.offset, bytes: p.bytes }).collect()
}
