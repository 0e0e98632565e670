//! The story of a crash: what happened before it to the cache lines involved, and which bytes it left different.
//!
//! Engines say which stores matter. If there are findings, one more pass over the recorded run collects the rest.

pub(crate) mod step;

use std::collections::{BTreeMap, HashMap, VecDeque};

use pmvet_events::event::{Event, LINE, What};
use pmvet_events::{FileId, ThreadId};
use pmvet_findings::finding::ByteDiff;
use pmvet_findings::{Evidence, Finding, PmRange, Role};
use pmvet_target::crash::PmReplay;
use pmvet_target::recording::Recording;
use pmvet_target::shutdown;

use self::step::{PmExtent, RawStep, StepKind, access};
use crate::lab::ScanError;
use crate::stacks::Stacks;

/// Upper bound of lines that one story follows.
const LINES: usize = 6;
/// Steps to show for each.
const STEPS: usize = 8;
/// Differing places to show, and bytes of each.
const DIFFS: usize = 16;
const BYTES: usize = 64;

/// Completes the evidence of crashes of this run, if time allows: their timelines, and the bytes that make the difference.
pub fn tell(recording: &Recording, findings: &mut [Finding], stacks: &mut dyn Stacks) -> Result<(), ScanError> {
    let mut stories: Vec<Story> = findings.iter().enumerate().filter_map(|(i, f)| Story::from_finding(i, f)).collect();
    stories.sort_by_key(|story| story.crash);
    if stories.is_empty() {
        return Ok(());
    }
    let mut teller = Teller::new(recording, &stories);
    let mut next = 0;
    let mut reader = recording.read()?;
    let mut clock = shutdown::ClockCheck::default();
    while next < stories.len()
        && let Some(event) = reader.next()?
    {
        if clock.is_due() && !shutdown::may_elaborate() {
            stories.truncate(next);
            break;
        }
        // Loads have no number of their own.
        while event.what.is_numbered() && stories.get(next).is_some_and(|story| story.crash <= event.seq) {
            teller.end(&mut stories[next], Some(&event));
            next += 1;
        }
        teller.event(&event, &mut stories, stacks)?;
    }
    for story in &mut stories[next..] {
        teller.end(story, None);
    }
    for story in stories {
        let finding = &mut findings[story.finding];
        story.complete(finding, stacks);
    }
    Ok(())
}

/// What one finding needs.
#[derive(Debug)]
struct Story {
    finding: usize,
    /// The crash comes before this event.
    crash: u64,
    lines: Vec<PmRange>,
    stores: Vec<Changed>,
    steps: Vec<RawStep>,
}

/// A store that makes the difference between the crash image and a good one.
#[derive(Debug)]
struct Changed {
    seq: u64,
    range: PmRange,
    /// The crash image lacks it; else the good image does.
    lost: bool,
    old: Vec<u8>,
    new: Vec<u8>,
}

impl Story {
    fn from_finding(index: usize, finding: &Finding) -> Option<Self> {
        let Evidence::Crash { image, .. } = &finding.evidence else { return None };
        let culprits = finding.places.iter().filter(|p| p.role == Role::Store && image.lost.is_empty());
        let lost = image.lost.iter().map(|place| (place, true));
        let decisive: Vec<_> = lost.chain(culprits.map(|place| (place, false))).collect();
        let changed = |&(place, lost): &(&pmvet_findings::Place, bool)| {
            let (seq, range) = (place.seq?, place.pm.clone()?);
            Some(Changed { seq, range, lost, old: Vec::new(), new: Vec::new() })
        };
        let stores = decisive.iter().filter_map(changed).take(DIFFS).collect();
        let mut lines: Vec<PmRange> = Vec::new();
        for range in decisive.iter().map(|(place, _)| *place).chain(&image.unpersisted).filter_map(|p| p.pm.as_ref()) {
            let line =
                PmRange { offset: range.offset & !(LINE - 1), len: LINE, object: None, file: range.file.clone() };
            if lines.len() < LINES && !lines.contains(&line) {
                lines.push(line);
            }
        }
        Some(Self { finding: index, crash: image.seq, lines, stores, steps: Vec::new() })
    }

    fn complete(self, finding: &mut Finding, stacks: &mut dyn Stacks) {
        let Evidence::Crash { image, timeline, .. } = &mut finding.evidence else { return };
        if timeline.is_empty() && !self.lines.is_empty() {
            *timeline = self.steps.iter().map(|step| access(step, stacks)).collect();
        }
        if image.diff.is_empty() {
            image.diff = self.stores.into_iter().filter_map(Changed::difference).collect();
        }
    }
}

impl Changed {
    fn difference(self) -> Option<ByteDiff> {
        let (mut before, mut after) = if self.lost { (self.new, self.old) } else { (self.old, self.new) };
        let first = before.iter().zip(&after).position(|(a, b)| a != b)?;
        before.drain(..first);
        after.drain(..first);
        before.truncate(BYTES);
        after.truncate(BYTES);
        let PmRange { file, offset, object, .. } = self.range;
        Some(ByteDiff { file, offset: offset + first as u64, before, after, object })
    }
}

/// The pass over the run.
struct Teller {
    replay: PmReplay,
    /// Lines that stories are about, by the paths of their files: file ids are known only during the run.
    wanted: Vec<PmRange>,
    lines: BTreeMap<(FileId, u64), VecDeque<RawStep>>,
    /// Lines that a thread has flushed since its last fence.
    flushed: HashMap<ThreadId, Vec<(FileId, u64)>>,
    /// By number of the store: its story, and its index there.
    stores: HashMap<u64, Vec<(usize, usize)>>,
    files: HashMap<std::path::PathBuf, FileId>,
}

impl Teller {
    fn new(recording: &Recording, stories: &[Story]) -> Self {
        let mut stores: HashMap<u64, Vec<(usize, usize)>> = HashMap::new();
        for (i, story) in stories.iter().enumerate() {
            story.stores.iter().enumerate().for_each(|(j, store)| stores.entry(store.seq).or_default().push((i, j)));
        }
        let wanted = stories.iter().flat_map(|story| story.lines.iter().cloned()).collect();
        let replay = PmReplay::new(recording);
        let (lines, flushed, files) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        Self { replay, wanted, lines, flushed, stores, files }
    }

    fn event(&mut self, event: &Event<'_>, stories: &mut [Story], stacks: &mut dyn Stacks) -> Result<(), ScanError> {
        if matches!(event.what, What::Fence { .. } | What::Rmw { .. }) {
            self.fenced(event);
        }
        match event.what {
            What::Store { addr, value, .. } | What::Rmw { addr, new: value, stored: true, .. } => {
                self.touched(event, addr, value.len() as u64, StepKind::Stored);
            }
            What::FileWrite { file, offset, data } => {
                self.happened(event, file, offset, data.len() as u64, StepKind::Stored)
            }
            What::FileZero { file, offset, len } => self.happened(event, file, offset, len, StepKind::Stored),
            What::Flush { addr, pm: true, .. } => self.touched(event, addr & !(LINE - 1), LINE, StepKind::Flushed),
            _ => {}
        }
        if let Some(wanting) = self.stores.get(&event.seq).filter(|_| event.what.is_numbered()) {
            for &(story, store) in wanting {
                let changed = &mut stories[story].stores[store];
                changed.old = self.bytes(&changed.range);
            }
        }
        self.replay.apply(event)?;
        if let What::File { file, .. } = event.what {
            self.file(file, stacks);
        }
        Ok(())
    }

    /// A file now has its number, so its lines can be followed.
    fn file(&mut self, file: FileId, stacks: &mut dyn Stacks) {
        let path = stacks.file(file);
        for range in self.wanted.iter().filter(|range| range.file == path) {
            self.lines.entry((file, range.offset / LINE)).or_default();
        }
        self.files.insert(path, file);
    }

    fn bytes(&self, range: &PmRange) -> Vec<u8> {
        let bytes = self.files.get(&range.file).map_or(&[][..], |&file| self.replay.bytes(file));
        let start = (range.offset as usize).min(bytes.len());
        let len = (range.len as usize).min(4 * BYTES);
        bytes[start..bytes.len().min(start + len)].to_vec()
    }

    fn touched(&mut self, event: &Event<'_>, addr: u64, len: u64, what: StepKind) {
        if self.lines.is_empty() {
            return;
        }
        let mut found = Vec::new();
        self.replay
            .spaces()
            .locate(event.thread, addr, len, |part| found.push((part.file, part.offset, part.len as u64)));
        for (file, offset, len) in found {
            self.happened(event, file, offset, len, what);
        }
    }

    fn happened(&mut self, event: &Event<'_>, file: FileId, offset: u64, len: u64, what: StepKind) {
        let last = offset.saturating_add(len.max(1) - 1) / LINE;
        for (&line, steps) in self.lines.range_mut((file, offset / LINE)..=(file, last)) {
            let start = offset.max(line.1 * LINE);
            let end = (offset + len).min((line.1 + 1) * LINE);
            note(steps, step(event, what, Some(PmExtent { file, offset: start, len: end - start })));
            if what == StepKind::Flushed {
                self.flushed.entry(event.thread).or_default().push(line);
            }
        }
    }

    fn fenced(&mut self, event: &Event<'_>) {
        for line in self.flushed.remove(&event.thread).unwrap_or_default() {
            if let Some(steps) = self.lines.get_mut(&line) {
                let pm = PmExtent { file: line.0, offset: line.1 * LINE, len: LINE };
                note(steps, step(event, StepKind::Persisted, Some(pm)));
            }
        }
    }

    /// The crash comes before this event, or at the end of the run.
    fn end(&self, story: &mut Story, event: Option<&Event<'_>>) {
        for range in &story.lines {
            let steps = self.files.get(&range.file).and_then(|&file| self.lines.get(&(file, range.offset / LINE)));
            story.steps.extend(steps.into_iter().flatten());
        }
        story.steps.sort_by_key(|step| (step.seq, step.pm.map(|pm| (pm.file, pm.offset))));
        story.steps.extend(event.map(|event| step(event, StepKind::Crash, None)));
        for store in &mut story.stores {
            store.new = self.bytes(&store.range);
        }
    }
}

fn step(event: &Event<'_>, what: StepKind, pm: Option<PmExtent>) -> RawStep {
    let Event { seq, thread, site, context, .. } = *event;
    RawStep { seq, thread, site, context, what, pm }
}

fn note(steps: &mut VecDeque<RawStep>, step: RawStep) {
    if steps.len() == STEPS {
        steps.pop_front();
    }
    steps.push_back(step);
}
