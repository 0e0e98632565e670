//! Races that happened in a recorded run, and the crashes that would show whether they do harm.

use std::collections::{BTreeMap, HashMap};

use pmvet_events::event::{Event, FlushKind, MarkerKind, What};
use pmvet_events::{ContextId, SiteId, ThreadId};
use pmvet_model::{Line, LineId, Mode, Model};
use pmvet_target::crash::{Patch, PmReplay, Versions};
use pmvet_target::mapped::MappedFile;
use pmvet_target::recording::Recording;

use super::history::{History, Readers, Stored};
use super::losses::{AtRisk, LossPatches, MetStores, losses, pending};
pub use super::meeting::{Meeting, MeetingCrash, Meetings, PmAccess, SuspectLoss};
use super::shared::Nth;
use super::undo::Undo;
use crate::lab::lost_stores;
use crate::lab::{Newest, ScanError};

/// How many meetings of the same two instructions are examined, and how many of those closely: with a crash after each of the
/// first stores that follow the load. Even where there is a bug, most meetings of two instructions are harmless, as when the
/// reader looks for another key in the same bucket, so many have to be tried.
const MOST_MEETINGS: usize = 96;
const MOST_CLOSE: usize = 2;
/// How many stores of a reader are followed by a crash.
const MOST_STORES: usize = 3;
/// For how many of its fences that make stores persistent a reader is followed. A crash comes after the first, second, fourth, and so on: an
/// operation acknowledges at its end, and what follows many fences includes all that was done before.
const MOST_FENCES: usize = 8;
/// How many meetings of threads with themselves are examined: the paper's intra-thread inconsistencies.
const MOST_INTRA: usize = 48;
/// How many meetings of one store with one instruction on one call path are examined.
const MOST_AGAIN: usize = 12;
/// How many meetings of a thread are followed at the same time: a bound on work, counted when it is reached.
const MOST_OPEN: usize = 256;
/// How many of a thread's last stores count as at risk beside the one that is read.
const MOST_AT_RISK: usize = 16;

/// Whether stores are persistent after it without anything else: a fence, or a `clflush`, which needs none.
fn persists_at_once(what: &What<'_>) -> bool {
    matches!(what, What::Fence { .. } | What::Flush { how: FlushKind::Clflush, pm: true, .. })
}

/// Makes [`Meetings`] out of events.
#[derive(Debug)]
pub struct MeetingScanner {
    model: Model,
    replay: PmReplay,
    versions: Versions,
    meetings: Vec<Meeting>,
    /// What is lost with each meeting, the store that was read first.
    at_risk: Vec<Vec<AtRisk>>,
    /// Meetings whose reader has acts to come, by the reader.
    open: HashMap<ThreadId, Vec<OpenMeeting>>,
    /// Meetings whose reader has an answer to come, by the reader. Nothing: answers do not matter.
    unanswered: Option<HashMap<ThreadId, Vec<usize>>>,
    /// A meeting of each store that is still pending, by the store's number.
    windows: HashMap<u64, usize>,
    met: HashMap<(SiteId, SiteId), usize>,
    met_again: HashMap<(u64, SiteId, ContextId), usize>,
    met_stores: MetStores,
    /// How many meetings of a thread with itself there are.
    intra: usize,
    /// What each thread has stored, and its other acts.
    history: History,
    fences: HashMap<u64, Nth>,
    /// Stores of meetings that another thread has made persistent: the next fences of their own threads are still to
    /// come.
    unfenced: HashMap<ThreadId, Vec<u64>>,
    readers: Readers,
    /// What threads that are followed have overwritten.
    undo: Undo,
    last_seq: u64,
    left_out: u64,
}

/// A meeting whose reader is followed.
#[derive(Debug)]
struct OpenMeeting {
    meeting: usize,
    close: bool,
    /// The reader has stored since the load, or since its last fence after it.
    acted: bool,
    stores: usize,
    fences: usize,
}

impl MeetingScanner {
    /// `store` is an empty file for the pages of all versions.
    pub fn new(recording: &Recording, mode: Mode, store: MappedFile) -> Self {
        Self {
            model: Model::new(mode),
            replay: PmReplay::new(recording),
            versions: Versions::new(store),
            meetings: Vec::new(),
            at_risk: Vec::new(),
            open: HashMap::new(),
            unanswered: None,
            windows: HashMap::new(),
            met: HashMap::new(),
            met_again: HashMap::new(),
            met_stores: MetStores::default(),
            intra: 0,
            history: History::default(),
            fences: HashMap::new(),
            unfenced: HashMap::new(),
            readers: Readers::default(),
            undo: Undo::default(),
            last_seq: 0,
            left_out: 0,
        }
    }

    /// The same scanner, with crashes after answers, too.
    pub fn with_answers(self) -> Self {
        Self { unanswered: Some(HashMap::new()), ..self }
    }

    /// Takes the next event of the run, which has to be recorded with loads.
    pub fn event(&mut self, event: &Event<'_>) -> Result<(), ScanError> {
        match event.what {
            What::Load { addr, size } => return self.load(event, addr, size.into()),
            What::Rmw { addr, old, .. } => self.load(event, addr, old.len() as u64)?,
            _ => {}
        }
        let (ending, unread) = (self.ending(event), self.unread(event));
        self.fence(event);
        self.model.event(event, &Newest(&self.replay));
        if !ending.is_empty() {
            self.end(event, ending)?;
        }
        for (writer, lost) in unread {
            self.end_unread(event, writer, lost)?;
        }
        self.remember(event);
        self.replay.apply(event)?;
        self.last_seq = event.seq;
        if matches!(event.what, What::Store { .. } | What::Rmw { stored: true, .. }) || persists_at_once(&event.what) {
            self.history.ran(event);
        }
        let acts = matches!(event.what, What::Store { .. } | What::Rmw { .. } | What::Fence { .. });
        if acts || event.what.is_answer() {
            self.history.was_active(event);
        }
        match event.what {
            What::Store { addr, value, .. } => self.store(event, addr, value.len() as u64),
            What::Rmw { addr, new, stored: true, .. } => self.store(event, addr, new.len() as u64),
            What::Fence { .. } => {
                self.history.fenced(event);
                self.act(event, None)
            }
            What::Marker { how: MarkerKind::OpEnd, .. } => self.answer(event, Some(event.thread)),
            What::Output { .. } => self.answer(event, None),
            _ => Ok(()),
        }
    }

    /// The run has ended. Meetings that no crash can show are left out.
    pub fn finish(mut self) -> Result<Meetings, ScanError> {
        let (last, _) = self.versions.snapshot(&mut self.replay)?;
        let Self { versions, mut meetings, fences, left_out, .. } = self;
        meetings.retain(|meeting| !meeting.crashes.is_empty());
        Ok(Meetings { versions, meetings, fences, last, left_out })
    }

    /// Remembers what a thread that is followed is about to overwrite.
    fn remember(&mut self, event: &Event<'_>) {
        let (addr, len) = match event.what {
            What::Store { addr, value, .. } => (addr, value.len()),
            What::Rmw { addr, new, stored: true, .. } => (addr, new.len()),
            _ => return,
        };
        if self.open.get(&event.thread).is_none_or(Vec::is_empty) {
            return;
        }
        let Self { model, replay, undo, .. } = self;
        model.spaces().locate(event.thread, addr, len as u64, |part| {
            let all = replay.bytes(part.file);
            let start = (part.offset as usize).min(all.len());
            let bytes = all[start..all.len().min(start + part.len)].to_vec();
            undo.store(event.thread, event.seq, Patch { file: part.file, offset: part.offset, bytes });
        });
    }

    fn store(&mut self, event: &Event<'_>, addr: u64, len: u64) -> Result<(), ScanError> {
        let mut place = None;
        let Self { model, history, readers, .. } = self;
        let new = history.begin(event);
        model.spaces().locate(event.thread, addr, len, |part| {
            let line = LineId::containing(part.file, part.offset);
            place.get_or_insert((line, part.offset, part.len as u64));
            let Event { seq, thread, site, context, .. } = *event;
            let end = PmAccess { thread, site, context, seq, line, offset: part.offset, len: part.len as u64 };
            history.stored(end, new);
            readers.stored(&end);
        });
        self.act(event, place)
    }

    fn load(&mut self, event: &Event<'_>, addr: u64, len: u64) -> Result<(), ScanError> {
        let mut parts = Vec::new();
        self.model.spaces().locate(event.thread, addr, len, |part| parts.push(part));
        for part in parts {
            let sees_change = self.readers.read(event.thread, part.file, part.offset / 8);
            let line = LineId::containing(part.file, part.offset);
            // An access over two lines counts for the first one.
            let within = part.len.min((line.offset() + 64 - part.offset) as usize);
            let Some(found) = self.model.line(line) else { continue };
            let at = (part.offset - line.offset()) as usize;
            let Some((index, bytes)) = found.writer(at, within) else { continue };
            let store = found.stores()[index];
            let intra = store.thread == event.thread;
            if found.uncertain() != 0 || intra && self.intra == MOST_INTRA {
                continue;
            }
            let open = self.open.entry(event.thread).or_default();
            let again = |open: &OpenMeeting| {
                let meeting = &self.meetings[open.meeting];
                meeting.store.seq == store.seq && meeting.load.site == event.site
            };
            if open.iter().any(again) {
                continue;
            }
            let met = self.met.entry((store.site, event.site)).or_insert(0);
            let met_again = self.met_again.entry((store.seq, event.site, event.context)).or_insert(0);
            let most = if intra { MOST_CLOSE } else { MOST_MEETINGS };
            if *met >= most || *met_again >= MOST_AGAIN || open.len() >= MOST_OPEN {
                self.left_out += u64::from(!intra);
                continue;
            }
            let close = *met < MOST_CLOSE;
            *met += 1;
            *met_again += 1;
            self.intra += usize::from(intra);
            let first = u64::from(bytes.trailing_zeros());
            let end = |thread, site, context, seq| PmAccess {
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
            let mut at_risk = vec![AtRisk { end: store, control: lost_stores::of_store(&self.model, found, index) }];
            let mut acted_before = self.met_stores.first_act(found, index).is_some();
            if !intra {
                let earlier = self.earlier(&store);
                let acts =
                    |at: &AtRisk| pending(&self.model, &at.end).and_then(|(l, i)| self.met_stores.first_act(l, i));
                acted_before |= earlier.iter().any(|at| acts(at).is_some());
                at_risk.extend(earlier);
                self.met_stores.met(store.seq);
            }
            let meeting = self.meetings.len();
            let open = self.open.entry(event.thread).or_default();
            open.push(OpenMeeting { meeting, close, acted: false, stores: 0, fences: 0 });
            if !intra {
                self.windows.entry(store.seq).or_insert(meeting);
                if let Some(unanswered) = &mut self.unanswered {
                    unanswered.entry(event.thread).or_default().push(meeting);
                }
            }
            let nth = self.history.nth_of(&store);
            self.meetings.push(Meeting {
                store,
                load,
                read: true,
                acts: 0,
                acted_before,
                sees_change,
                nth,
                crashes: Vec::new(),
                flow: None,
            });
            self.at_risk.push(at_risk);
        }
        Ok(())
    }

    /// Earlier stores of the same thread to other lines that are not persistent: a reader that relies on the store may
    /// rely on them, too.
    fn earlier(&self, store: &PmAccess) -> Vec<AtRisk> {
        let mut at_risk: Vec<AtRisk> = Vec::new();
        for &Stored { end: PmAccess { line, seq, .. }, .. } in self.history.stores_by(store.thread).iter().rev() {
            let known = |at: &AtRisk| at.end.line == line;
            if at_risk.len() == MOST_AT_RISK {
                break;
            }
            if seq >= store.seq || line == store.line || at_risk.iter().any(known) {
                continue;
            }
            let Some(found) = self.model.line(line).filter(|line| line.uncertain() == 0) else { continue };
            let mine = |s: &&pmvet_model::Store| s.thread == store.thread && s.seq < store.seq;
            let Some((index, first)) = found.stores().iter().enumerate().find(|(_, s)| mine(s)) else { continue };
            let end = PmAccess {
                thread: first.thread,
                site: first.site,
                context: first.context,
                seq: first.seq,
                line,
                offset: line.offset() + first.offset() as u64,
                len: first.len() as u64,
            };
            at_risk.push(AtRisk { end, control: lost_stores::of_store(&self.model, found, index) });
        }
        at_risk
    }

    /// The pending stores of meetings that an event may make persistent, each with the patches that lose it.
    fn ending(&self, event: &Event<'_>) -> Vec<(u64, LossPatches)> {
        if self.windows.is_empty() || !self.model.would_persist(event) {
            return Vec::new();
        }
        let lost = |(&seq, &i): (&u64, &usize)| {
            let (line, index) = pending(&self.model, &self.meetings[i].store)?;
            Some((seq, LossPatches::without(&self.model, line, index, &self.met_stores)))
        };
        self.windows.iter().filter_map(lost).collect()
    }

    /// Stores have become persistent: adds crashes just before. By then other threads have done all that they do while
    /// the store can be lost.
    fn end(&mut self, event: &Event<'_>, ending: Vec<(u64, LossPatches)>) -> Result<(), ScanError> {
        let Event { seq, thread, site, context, .. } = *event;
        for (store, LossPatches { patches, others, suspects, .. }) in ending {
            let i = self.windows[&store];
            if pending(&self.model, &self.meetings[i].store).is_some() {
                continue;
            }
            self.windows.remove(&store);
            if matches!(event.what, What::Fence { .. }) {
                self.fenced_by(event, store, self.meetings[i].store.thread);
            }
            if patches.is_empty() {
                continue;
            }
            let writer_idle = self.history.is_idle_since(&self.meetings[i].store);
            let (version, _) = self.versions.snapshot(&mut self.replay)?;
            let (meeting, control) = (&mut self.meetings[i], self.at_risk[i][0].control.clone());
            let act = PmAccess { thread, site, context, seq, line: meeting.store.line, offset: 0, len: 0 };
            let (lost, control_at) = (vec![meeting.store], meeting.load.seq + 1);
            meeting.crashes.push(MeetingCrash {
                seq,
                version,
                patches,
                others,
                suspects,
                beside: Vec::new(),
                control,
                control_at,
                lost,
                act,
                fenced: true,
                answered: false,
                writer_idle,
                unacted: None,
            });
        }
        Ok(())
    }

    /// A fence, or a `clflush`, has made a store persistent. Notes the writer's own, at which it can be stopped.
    fn fenced_by(&mut self, fence: &Event<'_>, store: u64, writer: ThreadId) {
        if fence.thread == writer {
            let nth = self.history.count(writer, fence.site);
            self.fences.insert(store, Nth { site: fence.site, nth });
        } else {
            self.unfenced.entry(writer).or_default().push(store);
        }
    }

    /// A thread fences after another thread has made its stores persistent.
    fn fence(&mut self, event: &Event<'_>) {
        if !matches!(event.what, What::Fence { .. }) {
            return;
        }
        for store in self.unfenced.remove(&event.thread).into_iter().flatten() {
            self.fenced_by(event, store, event.thread);
        }
    }

    /// Stores that the event may make persistent and that other threads may have acted on without reading them, by writer, each
    /// with the patches that lose it and what others stored into the same lines.
    fn unread(&self, event: &Event<'_>) -> BTreeMap<ThreadId, Vec<(Stored, LossPatches)>> {
        let mut first: BTreeMap<ThreadId, Vec<(Stored, LossPatches)>> = BTreeMap::new();
        if !persists_at_once(&event.what) {
            return first;
        }
        let mut add = |line: &Line, index: usize, store: &Stored| {
            let thread = store.end.thread;
            let known = first.entry(thread).or_default();
            let new = known.len() < MOST_AT_RISK && known.iter().all(|(known, _)| known.end.line != store.end.line);
            if new && store.others < self.history.others(thread) {
                known.push((*store, LossPatches::without(&self.model, line, index, &self.met_stores)));
            }
        };
        for store in self.history.stores_by(event.thread) {
            let Some((line, index)) = pending(&self.model, &store.end) else { continue };
            if line.uncertain() != 0 {
                continue;
            }
            add(line, index, store);
            for (index, later) in line.stores().iter().enumerate().skip(index + 1) {
                let is = |known: &&Stored| known.end.seq == later.seq && known.end.line == store.end.line;
                if later.thread != event.thread
                    && let Some(other) = self.history.stores_by(later.thread).iter().find(is)
                {
                    add(line, index, other);
                }
            }
        }
        first
    }

    /// Stores that no thread has read have become persistent: adds crashes just before.
    fn end_unread(
        &mut self,
        event: &Event<'_>,
        writer: ThreadId,
        mut lost: Vec<(Stored, LossPatches)>,
    ) -> Result<(), ScanError> {
        lost.retain(|(store, _)| pending(&self.model, &store.end).is_none());
        let stores: Vec<Stored> = lost.iter().map(|(store, _)| *store).collect();
        let loss: LossPatches = lost.into_iter().map(|(_, loss)| loss).collect();
        let (Some(&first), Some(act)) = (stores.first(), self.history.last_act()) else { return Ok(()) };
        let met = self.met.entry((first.end.site, act.site)).or_insert(0);
        let known = stores.iter().any(|store| self.met_stores.contains(store.end.seq));
        if act.thread == writer || *met >= MOST_MEETINGS || known || loss.patches.is_empty() {
            return Ok(());
        }
        *met += 1;
        let (version, _) = self.versions.snapshot(&mut self.replay)?;
        let last = self.history.stores_by(writer).last();
        let control_at = last.map_or(first.end.seq, |store| store.end.seq) + 1;
        let acted_before = loss.acted_on.is_some_and(|act| act < control_at);
        let crash = MeetingCrash {
            seq: event.seq,
            version,
            control: loss.patches.clone(),
            patches: loss.patches,
            others: loss.others,
            suspects: loss.suspects,
            beside: Vec::new(),
            control_at,
            lost: stores.iter().map(|store| store.end).collect(),
            act,
            fenced: true,
            answered: false,
            writer_idle: false,
            unacted: None,
        };
        self.fenced_by(event, first.end.seq, writer);
        self.meetings.push(Meeting {
            store: first.end,
            load: act,
            read: false,
            acts: self.history.others(writer) - first.others,
            acted_before,
            sees_change: false,
            nth: Some(first.nth),
            crashes: vec![crash],
            flow: None,
        });
        self.at_risk.push(Vec::new());
        Ok(())
    }

    /// A thread has stored or fenced: adds crashes right now.
    fn act(&mut self, event: &Event<'_>, place: Option<(LineId, u64, u64)>) -> Result<(), ScanError> {
        let Some(open) = self.open.get_mut(&event.thread).filter(|open| !open.is_empty()) else { return Ok(()) };
        let (model, meetings) = (&self.model, &mut self.meetings);
        let fenced = matches!(event.what, What::Fence { .. });
        for open in open.iter_mut() {
            let (meeting, at_risk) = (&mut meetings[open.meeting], &self.at_risk[open.meeting]);
            match (fenced, open.acted) {
                // A store to the same line, later than the lost one, is lost with it.
                (false, _) if at_risk.len() == 1 && place.is_none_or(|(line, ..)| line == meeting.store.line) => {
                    continue;
                }
                (false, _) => open.acted = true,
                // A fence without a store before it makes nothing persistent.
                (true, false) => continue,
                (true, true) => open.acted = false,
            }
            let count = if fenced { &mut open.fences } else { &mut open.stores };
            *count += 1;
            if !meeting.is_intra() {
                self.met_stores.acted_on(meeting.store.seq, event.seq);
            }
            let is_crash = if fenced { count.is_power_of_two() } else { open.close && *count <= MOST_STORES };
            if !is_crash {
                continue;
            }
            let left: Vec<&AtRisk> = at_risk.iter().filter(|at| pending(model, &at.end).is_some()).collect();
            if left.is_empty() {
                open.fences = MOST_FENCES;
                continue;
            }
            let (line, offset, len) = place.unwrap_or((meeting.store.line, 0, 0));
            let Event { seq, thread, site, context, .. } = *event;
            let act = PmAccess { thread, site, context, seq, line, offset, len };
            for loss in losses(model, &meeting.store, &left, &self.met_stores) {
                let (version, _) = self.versions.snapshot(&mut self.replay)?;
                let unacted = self.undo.since(thread, meeting.load.seq);
                let writer_idle = self.history.is_idle_since(&meeting.store);
                meeting.crashes.push(MeetingCrash {
                    fenced,
                    writer_idle,
                    unacted,
                    ..loss.after(act, &meeting.load, version)
                });
            }
        }
        open.retain(|open| open.fences < MOST_FENCES);
        let oldest = open.iter().map(|open| meetings[open.meeting].load.seq).min();
        self.undo.forget(event.thread, oldest);
        Ok(())
    }

    /// The program, or one of its threads, has answered: adds crashes that lose what the answer rests on and is not persistent.
    fn answer(&mut self, event: &Event<'_>, of: Option<ThreadId>) -> Result<(), ScanError> {
        let Some(unanswered) = &mut self.unanswered else { return Ok(()) };
        let waiting: Vec<usize> = match of {
            Some(thread) => unanswered.remove(&thread).unwrap_or_default(),
            None => std::mem::take(unanswered).into_values().flatten().collect(),
        };
        let Event { seq, thread, site, context, .. } = *event;
        for i in waiting {
            let (meeting, model) = (&mut self.meetings[i], &self.model);
            let left: Vec<&AtRisk> = self.at_risk[i].iter().filter(|at| pending(model, &at.end).is_some()).collect();
            let act = PmAccess { thread, site, context, seq, line: meeting.store.line, offset: 0, len: 0 };
            for loss in losses(model, &meeting.store, &left, &self.met_stores) {
                let (version, _) = self.versions.snapshot(&mut self.replay)?;
                let writer_idle = self.history.is_idle_since(&meeting.store);
                meeting.crashes.push(MeetingCrash {
                    answered: true,
                    writer_idle,
                    ..loss.after(act, &meeting.load, version)
                });
            }
        }
        Ok(())
    }
}
