//! Runs test cases in a fork server.
//!
//! There are two ways. The *whole* way forks where the program first names a PM file, so the run opens its pool. The *short* way
//! forks where the program first reads its input, in a server that has opened the pool of one image and is kept for the next
//! inputs on that image. It is used as long as it gives the same counts and content as the whole way; the first servers, and
//! occasionally later ones, are compared.
//!
//! On the short way, a run whose image is not wanted maps PM privately, so that the next run finds it unchanged. That is given up
//! for a target that accesses PM other than through its mappings.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use pmvet_events::plan::Forks;
use pmvet_events::stage::ForkPoint;
use pmvet_target::Launch;
use pmvet_target::collect::{Sink, SinkError};
use pmvet_target::forkserver::{FIRST, ForkError, ForkServer, ForkedEnd, InputEndJudge, RunLimits};
use pmvet_target::install::Install;
use pmvet_target::mapped::Restored;
use pmvet_target::sandbox::Overlay;
use pmvet_target::sparse;

use super::content::{FileContent, ImageId, PmContent};

/// What to run.
#[derive(Debug, Clone)]
pub struct FuzzTarget {
    /// Must have a sandbox, whose input is the file that test cases are written to.
    pub launch: Launch,
    /// Where the client and DynamoRIO are.
    pub install: Install,
    /// The PM files.
    pub files: Vec<PathBuf>,
    /// The file that inputs are read from, if not standard input.
    pub input: Option<PathBuf>,
    /// What the program finds besides PM.
    pub overlay: Overlay,
    /// What every run may take at most.
    pub limits: RunLimits,
    /// Whether the short way may be used at all.
    pub short: bool,
}

/// Puts the files of an image where the program looks for them, and the input, if it is read by name.
pub fn lay_out(
    files: &[PathBuf],
    input_path: Option<&Path>,
    overlay: &mut Overlay,
    content: &PmContent,
    input: &Arc<File>,
) -> io::Result<()> {
    for path in files {
        match content.files.get(path) {
            Some(file) => {
                let stand_in = sparse::unnamed(path)?;
                file.restore(&stand_in)?;
                overlay.put(path.clone(), Arc::new(stand_in));
            }
            None => overlay.hide(path.clone()),
        }
    }
    if let Some(path) = input_path {
        overlay.put(path.to_owned(), Arc::clone(input));
    }
    Ok(())
}

/// What a run did.
#[derive(Debug, Clone)]
pub struct CaseOutcome {
    /// How it ended; `SIGKILL` if it killed its server.
    pub end: ForkedEnd,
    /// Operations on PM, then branches. Nothing if the run was cut: its judge has seen them.
    pub counts: Vec<u8>,
    /// How many operations on PM and how many fences it did.
    pub operations: (u64, u64),
    /// It was stopped where the order asked for.
    pub stopped: bool,
    /// It was cut short where its input ended.
    pub cut: bool,
    /// Processes that it left behind.
    pub strays: usize,
    /// What it left in PM, if that was asked for.
    pub content: Option<PmContent>,
}

/// Why a test case could not be run. That it fails is an outcome.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The fork server could not be started, or does not answer.
    #[error(transparent)]
    Fork(#[from] ForkError),
    /// A file for the run could not be made or read.
    #[error("cannot prepare a run: {0}")]
    Files(#[from] io::Error),
}

/// A test case, and what its run should give.
#[derive(Debug, Clone, Copy)]
pub struct CaseOrder<'a> {
    /// Names `content`: a server that has it open is used again.
    pub image: ImageId,
    /// What PM holds when the run starts.
    pub content: &'a PmContent,
    /// What the program reads.
    pub input: &'a [u8],
    /// The operation or the fence to stop before; 0: none.
    pub stop: (u64, u64),
    /// Return the content of PM at the end.
    pub keep: bool,
    /// No other run on this image is expected, so a server for it does not pay.
    pub once: bool,
    /// It only shows whether its case is worth keeping, so pmvet cuts it short if it is much slower than others.
    pub hurried: bool,
}

/// A server that has the pool of an image open.
#[derive(Debug)]
struct Opened {
    server: usize,
    overlay: Overlay,
    files: Vec<Laid>,
    /// PM is unchanged.
    intact: bool,
    counts: Vec<u8>,
    operations: (u64, u64),
    used: u64,
}

/// A file of an image, and what it should be before each run.
#[derive(Debug)]
struct Laid {
    file: Restored,
    content: FileContent,
    pm: bool,
}

/// A fork server with its target, and the images that it has open.
#[derive(Debug)]
pub struct Runner {
    target: FuzzTarget,
    input: Arc<File>,
    server: ForkServer,
    /// Counts at the first fork point.
    counts: Vec<u8>,
    opened: HashMap<ImageId, Opened>,
    /// Images on which the program does not get as far as its input.
    closed: HashMap<ImageId, ()>,
    clock: u64,
    /// Runs may map PM privately.
    apart: bool,
    /// Recent average time of hurried runs; `hurried`: how many there were.
    usual: Duration,
    hurried: u32,
    /// How often both ways were compared.
    pub compared: u32,
    /// How often they differed; after a few times the short way is given up.
    pub differed: u32,
}

/// How many images are kept open.
const MOST_OPENED: usize = 40;
/// The first servers of the short way that are compared; after that, one in `COMPARED_LATER`.
const COMPARED_AT_FIRST: u32 = 6;
const COMPARED_LATER: u64 = 50;
/// After this many differences, the short way is given up.
const MOST_DIFFERENCES: u32 = 2;
/// A hurried run may take `PATIENCE` times the average of the last `OF_LATE`, once `KNOWN_FROM` are known, and always
/// `SHORTEST_LIMIT`.
const PATIENCE: u32 = 20;
const OF_LATE: u32 = 32;
const KNOWN_FROM: u32 = 4;
const SHORTEST_LIMIT: Duration = Duration::from_millis(100);

impl Runner {
    /// Starts the target up to its first fork point.
    pub fn new(target: FuzzTarget) -> Result<Self, RunError> {
        let private = target.launch.sandbox.as_ref().ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
        let input = match &private.input {
            Some(file) => Arc::clone(file),
            None => Arc::new(sparse::input()?),
        };
        let server = start(&target, &input)?;
        let counts = server.counts();
        Ok(Self {
            target,
            input,
            server,
            counts,
            opened: HashMap::new(),
            closed: HashMap::new(),
            clock: 0,
            apart: true,
            usual: Duration::ZERO,
            hurried: 0,
            compared: 0,
            differed: 0,
        })
    }

    /// Whether the short way is in use.
    pub fn is_short(&self) -> bool {
        self.target.short && self.server.point(FIRST) == ForkPoint::Files && self.differed < MOST_DIFFERENCES
    }

    /// What it runs.
    pub fn target(&self) -> &FuzzTarget {
        &self.target
    }

    /// Runs a case. With a judge, the run may be cut short where its input ends.
    pub fn run(&mut self, order: &CaseOrder<'_>, judge: Option<InputEndJudge<'_>>) -> Result<CaseOutcome, RunError> {
        match self.try_run(order, judge) {
            // The target killed its server. That is a result of this test case, and the next one needs a server.
            Err(RunError::Fork(ForkError::Died)) => {
                self.restart()?;
                let counts = self.counts.clone();
                let end = ForkedEnd::Exit(pmvet_target::launch::TargetExit::Signal(libc::SIGKILL));
                Ok(CaseOutcome {
                    end,
                    counts,
                    operations: (0, 0),
                    stopped: false,
                    cut: false,
                    strays: 0,
                    content: None,
                })
            }
            result => result,
        }
    }

    /// Makes sure that the next run finds the right files.
    fn renew(&mut self) -> Result<(), RunError> {
        if self.server.is_spoilt() { self.restart() } else { Ok(()) }
    }

    fn restart(&mut self) -> Result<(), RunError> {
        self.opened.clear();
        self.server = start(&self.target, &self.input)?;
        self.counts = self.server.counts();
        Ok(())
    }

    fn try_run(&mut self, order: &CaseOrder<'_>, judge: Option<InputEndJudge<'_>>) -> Result<CaseOutcome, RunError> {
        self.input.write_all_at(order.input, 0)?;
        self.input.set_len(order.input.len() as u64)?;
        self.clock += 1;
        if !self.is_short() || self.closed.contains_key(&order.image) {
            return self.whole(order, judge);
        }
        let fresh = !self.opened.contains_key(&order.image);
        if fresh && order.once {
            return self.whole(order, judge);
        }
        if fresh && !self.open(order)? {
            self.closed.insert(order.image, ());
            return self.whole(order, judge);
        }
        let before = self.opened.get(&order.image).map_or((0, 0), |opened| opened.operations);
        let passed = |stop: u64, before: u64| stop != 0 && stop <= before;
        if passed(order.stop.0, before.0) || passed(order.stop.1, before.1) {
            return self.whole(order, judge);
        }
        let compare = fresh && (self.compared < COMPARED_AT_FIRST || self.clock.is_multiple_of(COMPARED_LATER));
        if !compare {
            return self.short(order, judge);
        }
        self.compared += 1;
        let kept = CaseOrder { keep: true, hurried: false, ..*order };
        let (short, whole) = (self.short(&kept, None)?, self.whole(&kept, None)?);
        let did = |outcome: &CaseOutcome| (outcome.end, outcome.operations);
        let same = |a: &CaseOutcome, b: &CaseOutcome| did(a) == did(b) && a.counts == b.counts;
        self.differed += u32::from(!same(&short, &whole) || short.content != whole.content);
        if self.apart {
            let apart = self.short(&CaseOrder { keep: false, hurried: false, ..*order }, None)?;
            self.apart &= same(&apart, &short);
        }
        Ok(whole)
    }

    fn overlay(&self) -> MutexGuard<'_, Overlay> {
        self.server.overlay().lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Gives the program the files of an image.
    fn lay_out(&self, content: &PmContent) -> io::Result<()> {
        let mut overlay = self.target.overlay.clone();
        let target = &self.target;
        lay_out(&target.files, target.input.as_deref(), &mut overlay, content, &self.input)?;
        self.overlay().become_like(overlay);
        Ok(())
    }

    /// The PM files as they are now, mostly unchanged.
    fn content(&self, before: &PmContent) -> io::Result<PmContent> {
        let overlay = self.overlay();
        let mut content = PmContent::default();
        for path in &self.target.files {
            if let Some(file) = overlay.get(path) {
                content.files.insert(path.clone(), FileContent::read_like(file, before.files.get(path))?);
            }
        }
        Ok(content)
    }

    fn whole(&mut self, order: &CaseOrder<'_>, judge: Option<InputEndJudge<'_>>) -> Result<CaseOutcome, RunError> {
        self.renew()?;
        self.lay_out(order.content)?;
        self.server.set_counts(&self.counts);
        self.server.stop_at((0, 0), order.stop);
        self.server.keep_apart(false);
        self.finish(FIRST, order, judge)
    }

    fn finish(
        &mut self,
        server: usize,
        order: &CaseOrder<'_>,
        judge: Option<InputEndJudge<'_>>,
    ) -> Result<CaseOutcome, RunError> {
        let limits = if order.hurried { self.limits() } else { self.target.limits };
        let run = self.server.run_judged(server, &limits, &mut Nobody, judge)?;
        if order.hurried && matches!(run.end, ForkedEnd::Exit(_)) {
            self.hurried = (self.hurried + 1).min(OF_LATE);
            self.usual = (self.usual * (self.hurried - 1) + run.time) / self.hurried;
        }
        let (operations, fences, stopped) = self.server.operations();
        let content = order.keep.then(|| self.content(order.content)).transpose()?;
        let counts = if run.cut { Vec::new() } else { self.server.counts() };
        let (end, cut, strays) = (run.end, run.cut, run.strays);
        Ok(CaseOutcome { end, counts, operations: (operations, fences), stopped, cut, strays, content })
    }

    /// Limits of a run that decides only whether its case is kept: a slow one costs the time of many.
    fn limits(&self) -> RunLimits {
        let most = self.target.limits.time;
        let known = self.hurried >= KNOWN_FROM;
        let time = if known { (self.usual * PATIENCE).max(SHORTEST_LIMIT).min(most) } else { most };
        RunLimits { time, ..self.target.limits }
    }

    fn short(&mut self, order: &CaseOrder<'_>, mut judge: Option<InputEndJudge<'_>>) -> Result<CaseOutcome, RunError> {
        self.renew()?;
        let Some(opened) = self.opened.get_mut(&order.image) else { return self.whole(order, judge) };
        opened.used = self.clock;
        let apart = self.apart && !order.keep && self.server.can_keep_apart(opened.server);
        for laid in opened.files.iter_mut().filter(|laid| !(laid.pm && opened.intact)) {
            laid.file.restore(laid.content.size, laid.content.pages())?;
        }
        opened.intact = apart;
        self.server.set_counts(&opened.counts);
        self.server.stop_at(opened.operations, order.stop);
        self.server.keep_apart(apart);
        let (server, overlay) = (opened.server, opened.overlay.clone());
        self.overlay().become_like(overlay);
        // Not `map`, which would not shorten the judge's life.
        let borrowed: Option<InputEndJudge<'_>> = match &mut judge {
            Some(judge) => Some(&mut **judge),
            None => None,
        };
        let outcome = self.finish(server, order, borrowed)?;
        if !self.server.was_left() {
            return Ok(outcome);
        }
        self.apart = false;
        if let Some(opened) = self.opened.get_mut(&order.image) {
            opened.intact = false;
        }
        self.short(order, judge)
    }

    /// Makes a server that has an image open. False if the program does not get as far as its input.
    fn open(&mut self, order: &CaseOrder<'_>) -> Result<bool, RunError> {
        if self.opened.len() >= MOST_OPENED
            && let Some(oldest) = self.opened.iter().min_by_key(|(_, opened)| opened.used).map(|(&id, _)| id)
            && let Some(opened) = self.opened.remove(&oldest)
        {
            self.server.end(opened.server);
        }
        self.renew()?;
        self.lay_out(order.content)?;
        self.server.set_counts(&self.counts);
        self.server.stop_at((0, 0), (0, 0));
        let server = match self.server.branch(FIRST) {
            Ok(Some(server)) => server,
            Ok(None) | Err(ForkError::Threads) => return Ok(false),
            Err(e) => return Err(e.into()),
        };
        if self.server.is_spoilt() {
            // Opening the image changes other files, so runs cannot share an opened one.
            self.restart()?;
            return Ok(false);
        }
        let (operations, fences, _) = self.server.operations();
        let overlay = self.overlay().clone();
        let mut files = Vec::new();
        for (path, file) in overlay.files().filter(|(_, file)| !Arc::ptr_eq(file, &self.input)) {
            let content = FileContent::read_like(file, order.content.files.get(path))?;
            let pm = self.target.files.iter().any(|pm| pm == path);
            files.push(Laid { file: Restored::new(Arc::clone(file)), content, pm });
        }
        let (counts, operations) = (self.server.counts(), (operations, fences));
        let opened = Opened { server, overlay, files, intact: true, counts, operations, used: self.clock };
        self.opened.insert(order.image, opened);
        Ok(true)
    }
}

fn start(target: &FuzzTarget, input: &Arc<File>) -> Result<ForkServer, ForkError> {
    let mut launch = target.launch.clone();
    if let Some(private) = &mut launch.sandbox {
        private.input = Some(Arc::clone(input));
        let mut overlay = target.overlay.clone();
        for path in &target.files {
            overlay.hide(path.clone());
        }
        if let Some(path) = &target.input {
            overlay.put(path.clone(), Arc::clone(input));
        }
        private.overlay = Arc::new(std::sync::Mutex::new(overlay));
    }
    let points = Forks { files: target.files.clone(), input: target.input.clone(), count: true, ..Forks::default() };
    ForkServer::start(&launch, points, &target.install)
}

struct Nobody;

impl Sink for Nobody {
    fn event(&mut self, _: &pmvet_events::Event<'_>, _: &dyn pmvet_events::Places) -> Result<(), SinkError> {
        Ok(())
    }
}
