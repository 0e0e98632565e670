//! Watches a running recovery: what it reads of uncertain lines, what it stores, and where it could crash itself.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pmvet_events::event::{Event, LINE, What};
use pmvet_events::places::Places;
use pmvet_events::spaces::AddressSpaces;
use pmvet_events::{ContextId, FileId, ModuleId, SiteId};
use pmvet_model::{LineId, Mode, Model};
use pmvet_target::collect::{Sink, SinkError};
use pmvet_target::sandbox::RawFrame;
use rustc_hash::FxHashSet;
use xxhash_rust::xxh3::Xxh3;

use super::crash::CrashMoment;
use super::line::UncertainLines;
use super::nested::{self, Inner, RecoveryGround, WrittenLines};
use super::points::FailurePointFinder;
use super::reads::Observer;
use super::traced::{Ended, ImageBytes, Observed};

/// Numbers from here on are files of the recovery that the run did not have.
const FOREIGN: u32 = 1 << 30;

pub(super) struct RecoveryWatcher<'a> {
    /// The files of the run, by device and inode of their stand-ins.
    files: HashMap<(u64, u64), FileId>,
    /// From the recovery's numbers of files to those of the run.
    ids: HashMap<FileId, FileId>,
    modules: HashMap<ModuleId, (PathBuf, u64)>,
    spaces: AddressSpaces,
    observer: Observer,
    stacks: Vec<Vec<RawFrame>>,
    /// Hash of what was stored since the last read.
    stored: Xxh3,
    effects: Vec<u64>,
    processes: Arc<Mutex<Vec<u32>>>,
    /// Where it stored and could crash, if nested crashes are wanted.
    places: HashMap<(SiteId, ContextId), Vec<RawFrame>>,
    inside: Option<Inside<'a>>,
    /// What `inside` has found when the recovery has ended.
    inner: Vec<Inner>,
    inner_cut: bool,
    /// A PM file of the run was mapped or read.
    looked: bool,
}

/// What is needed to find the crashes of the recovery.
struct Inside<'a> {
    start: &'a ImageBytes,
    undecided: FxHashSet<LineId>,
    written: WrittenLines,
    model: Model,
    points: FailurePointFinder,
    found: Vec<Inner>,
    last_store: Option<(SiteId, ContextId)>,
    cut: bool,
}

impl<'a> RecoveryWatcher<'a> {
    pub(super) fn new(
        files: HashMap<(u64, u64), FileId>,
        lines: &UncertainLines,
        start: Option<(&'a ImageBytes, Mode)>,
    ) -> Self {
        let inside = start.map(|(start, mode)| Inside {
            start,
            undecided: lines.iter().map(|line| line.id()).collect(),
            written: WrittenLines::default(),
            model: Model::new(mode),
            points: FailurePointFinder::default(),
            found: Vec::new(),
            last_store: None,
            cut: false,
        });
        Self {
            files,
            ids: HashMap::new(),
            modules: HashMap::new(),
            spaces: AddressSpaces::default(),
            observer: Observer::new(lines.iter().map(|line| &**line)),
            stacks: Vec::new(),
            stored: Xxh3::new(),
            effects: Vec::new(),
            processes: Arc::default(),
            places: HashMap::new(),
            inside,
            inner: Vec::new(),
            inner_cut: false,
            looked: false,
        }
    }

    /// The processes of the recovery, updated as they start.
    pub(super) fn processes(&self) -> Arc<Mutex<Vec<u32>>> {
        Arc::clone(&self.processes)
    }

    /// Whether no uncertain byte is left to read.
    pub(super) fn has_seen_all(&self) -> bool {
        self.observer.has_seen_all()
    }

    /// The recovery has ended; next comes the oracle, a separate program that is not crashed.
    pub(super) fn begin_oracle(&mut self) {
        self.end_recovery();
        (self.ids, self.modules, self.spaces) = Default::default();
    }

    /// The next command has to look at PM itself.
    pub(super) fn forget_looks(&mut self) {
        self.looked = false;
    }

    fn end_recovery(&mut self) {
        let reads = self.observer.count();
        let Some(mut inside) = self.inside.take() else { return };
        if inside.points.at_end() {
            inside.crash(CrashMoment::END, reads);
        }
        (self.inner, self.inner_cut) = (inside.found, inside.cut);
    }

    pub(super) fn finish(mut self) -> Observed {
        self.end_recovery();
        let (inner, inner_cut) = (self.inner, self.inner_cut);
        self.effects.push(self.stored.digest());
        let (reads, stacks, effects) = (self.observer.finish(), self.stacks, self.effects);
        let (looked, places) = (Some(self.looked), self.places);
        Observed { reads, stacks, effects, inner, inner_cut, looked, places, ..Observed::unseen(Ended::Exit(0)) }
    }

    fn load(&mut self, event: &Event<'_>, addr: u64, len: u64, places: &dyn Places) {
        let before = self.observer.count();
        let Self { spaces, observer, .. } = self;
        spaces.locate(event.thread, addr, len, |part| {
            observer.load(part.file, part.offset, part.len as u64);
        });
        self.note_reads(before, event, places);
    }

    /// A system call reads a file.
    fn read(&mut self, event: &Event<'_>, file: FileId, offset: u64, len: u64, places: &dyn Places) {
        let before = self.observer.count();
        self.observer.load(file, offset, len);
        self.note_reads(before, event, places);
    }

    /// Notes the stack for each read beyond the first `before`.
    fn note_reads(&mut self, before: usize, event: &Event<'_>, places: &dyn Places) {
        for _ in before..self.observer.count() {
            let stack = self.stack(event, places);
            self.stacks.push(stack);
            self.effects.push(self.stored.digest());
            self.stored.reset();
        }
    }

    fn store(&mut self, event: &Event<'_>, addr: u64, value: &[u8]) {
        let Self { spaces, observer, stored, inside, .. } = self;
        spaces.locate(event.thread, addr, value.len() as u64, |part| {
            observer.store(part.file, part.offset, part.len as u64);
            let value = &value[part.first..part.first + part.len];
            stored.update(&part.offset.to_le_bytes());
            stored.update(value);
            if let Some(inside) = inside {
                for (i, byte) in value.iter().enumerate() {
                    let at = part.offset + i as u64;
                    inside.written.store(
                        LineId::containing(part.file, at),
                        (at % LINE) as usize,
                        &[*byte],
                        inside.start,
                    );
                }
            }
        });
    }

    fn stack(&self, event: &Event<'_>, places: &dyn Places) -> Vec<RawFrame> {
        let frame = |site: SiteId| {
            let site = places.site(site)?;
            Some(RawFrame { pc: site.pc, module: self.modules.get(&site.module).cloned() })
        };
        std::iter::once(event.site).chain(places.calls(event.context)).filter_map(frame).collect()
    }

    fn remember(&mut self, event: &Event<'_>, places: &dyn Places) {
        let key = (event.site, event.context);
        if !self.places.contains_key(&key) {
            let stack = self.stack(event, places);
            self.places.insert(key, stack);
        }
    }

    /// Replaces the file's number by its number in the run.
    fn renumber(&mut self, what: &mut What<'_>) {
        if let What::File { file, device, inode, .. } = *what {
            let foreign = FileId(FOREIGN + file.0);
            let known = self.files.get(&(device, inode)).copied();
            self.looked |= known.is_some();
            self.ids.insert(file, known.unwrap_or(foreign));
        }
        if let What::File { file, .. }
        | What::Map { file, .. }
        | What::FileRead { file, .. }
        | What::FileWrite { file, .. }
        | What::FileZero { file, .. }
        | What::FileResize { file, .. }
        | What::FileSync { file, .. }
        | What::FileRename { file, .. }
        | What::FileUnlink { file } = what
            && let Some(id) = self.ids.get(file)
        {
            *file = *id;
        }
    }
}

impl Sink for RecoveryWatcher<'_> {
    fn event(&mut self, event: &Event<'_>, places: &dyn Places) -> Result<(), SinkError> {
        let mut event = *event;
        self.renumber(&mut event.what);
        let event = &event;
        if event.what.is_numbered() {
            let reads = self.observer.count();
            if let Some(inside) = &mut self.inside {
                inside.before(event, reads);
                if event.what.range().is_some() || matches!(event.what, What::Fence { .. }) {
                    self.remember(event, places);
                }
            }
        }
        match event.what {
            What::Load { addr, size } => self.load(event, addr, u64::from(size), places),
            What::Store { addr, value, .. } => self.store(event, addr, value),
            What::Rmw { addr, old, new, stored, .. } => {
                self.load(event, addr, old.len() as u64, places);
                if stored {
                    self.store(event, addr, new);
                }
            }
            What::FileRead { file, offset, len } => self.read(event, file, offset, len, places),
            What::FileWrite { file, offset, data } => {
                self.observer.store(file, offset, data.len() as u64);
                self.stored.update(data);
            }
            What::FileZero { file, offset, len } => self.observer.store(file, offset, len),
            What::Module { module, base, path, .. } => {
                self.modules.insert(module, (path.into(), base));
            }
            What::ProcessStart { process, .. } => {
                self.processes.lock().unwrap_or_else(|e| e.into_inner()).push(process);
                self.spaces.update(event);
            }
            _ => self.spaces.update(event),
        }
        Ok(())
    }
}

impl Inside<'_> {
    fn before(&mut self, event: &Event<'_>, reads: usize) {
        if self.cut {
            return;
        }
        // Programs set the size of their pool each time they open it.
        if let What::FileResize { file, size } = event.what
            && self.start.size(file) == Some(size)
        {
            return;
        }
        // Changes of whole files cannot be expressed as changed bytes of an earlier image.
        if matches!(event.what, What::FileResize { .. } | What::FileRename { .. } | What::FileUnlink { .. })
            || matches!(event.what, What::FileWrite { .. } | What::FileZero { .. } | What::Unsupported { .. })
            || matches!(event.what, What::File { file, .. } if file.0 >= FOREIGN)
        {
            self.cut = true;
            return;
        }
        if self.points.is_point(event, &self.model) {
            self.crash(CrashMoment::before(event), reads);
        }
        let ground = RecoveryGround { image: self.start, written: &self.written, undecided: &self.undecided };
        self.model.event(event, &ground);
        if let What::Store { addr, value, .. } | What::Rmw { addr, new: value, stored: true, .. } = event.what {
            let place = (event.site, event.context);
            self.model.spaces().locate(event.thread, addr, value.len() as u64, |_| self.last_store = Some(place));
        }
    }

    fn crash(&mut self, moment: CrashMoment, reads: usize) {
        let (pending, written) = (nested::pending(&self.model), self.written.all());
        let moment = CrashMoment { last_store: self.last_store, ..moment };
        self.found.push(Inner { moment, reads, pending, written });
    }
}

#[cfg(test)]
mod unit_tests {
    use pmvet_events::ThreadId;
    use pmvet_events::event::StoreKind;

    use super::*;

    const POOL: FileId = FileId(3);

    /// How many crashes of a recovery can be told that sets the size of its pool, and whether that is all of them.
    fn crashes(size: u64) -> (usize, bool) {
        let start = ImageBytes(HashMap::from([(POOL, vec![0; 4096])]));
        let files = HashMap::from([((1, 2), POOL)]);
        let mut watcher = RecoveryWatcher::new(files, &UncertainLines::new(), Some((&start, Mode::Adr)));
        let of_recovery = FileId(0);
        let steps = [
            What::ProcessStart { process: 1, parent: 0, path: "/bin/p".as_ref() },
            What::File { file: of_recovery, device: 1, inode: 2, size: 4096, path: "/pm/pool".as_ref() },
            What::FileResize { file: of_recovery, size },
            What::Map { file: of_recovery, addr: 0x1000, len: 4096, offset: 0, writable: true },
            What::Store { addr: 0x1000, value: &[1], how: StoreKind::Regular },
        ];
        let places = pmvet_events::file::Definitions::default();
        for (seq, what) in (1..).zip(steps) {
            let event = Event { seq, thread: ThreadId(1), site: SiteId(0), context: ContextId(0), what };
            watcher.event(&event, &places).unwrap();
        }
        let observed = watcher.finish();
        (observed.inner.len(), !observed.inner_cut)
    }

    #[test]
    fn a_size_that_does_not_change_is_no_change() {
        assert_eq!(crashes(4096), (1, true));
        assert_eq!(crashes(8192), (0, false));
    }
}
