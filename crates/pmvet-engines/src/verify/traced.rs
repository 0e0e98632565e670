//! One execution: the recovery under DynamoRIO, on a crash image, with its loads of uncertain lines noted.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use pmvet_events::plan::Plan;
use pmvet_events::{ContextId, FileId, SiteId};
use pmvet_model::{Bytes, Content, LINE_BYTES, LineId};
use pmvet_target::crash::{Scratch, Versions};
use pmvet_target::install::Install;
use pmvet_target::launch::{Exit, Launch, LaunchError, Private, launch, stopped_by};
use pmvet_target::program::Program;
use pmvet_target::sandbox::{self, Capture, End, Job, Output, Overlay, RawFrame, Unwinder};

use super::campaign::Observe;
use super::explore::Choice;
use super::nested::Inner;
use super::reads::Read;
use super::scan::Crash;
use super::watcher::Watcher;

/// The files of the crash image, by device and inode.
type StandIns = HashMap<(u64, u64), FileId>;

/// The recovery, as it is run to see what it reads.
#[derive(Debug)]
pub struct Traced<'a> {
    pub program: Program,
    pub plan: Plan,
    pub install: &'a Install,
    /// The files beside PM, as the run started with them.
    pub files: &'a Overlay,
    pub input: Option<Arc<File>>,
    pub timeout: Duration,
    /// Looks at the recovered image; 0 means consistent.
    pub oracle: Option<Vec<OsString>>,
    pub variables: Vec<(OsString, OsString)>,
    /// Crashes in the recovery are wanted too.
    pub nested: bool,
    pub versions: &'a Versions,
    /// How the recovery ends when nothing was injected; the oracle is asked only then.
    pub usual: Ended,
}

/// How an execution ended, as far as it can be told under DynamoRIO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ended {
    Exit(i32),
    Signal(i32),
    Hang,
    Oracle(i32),
    /// Otherwise than usual, in a native run.
    Unseen,
}

/// What an execution showed.
#[derive(Debug)]
pub struct Observed {
    pub reads: Vec<Read>,
    /// Where each read was made, innermost first.
    pub stacks: Vec<Vec<RawFrame>>,
    pub ended: Ended,
    /// A hash of what it stored.
    pub effects: u64,
    pub inner: Vec<Inner>,
    /// It did what a crash in it cannot be told for.
    pub inner_cut: bool,
    /// Where its stores were made and where it could crash.
    pub places: HashMap<(SiteId, ContextId), Vec<RawFrame>>,
}

impl Observed {
    /// An execution that nobody looked at.
    pub fn unseen(ended: Ended) -> Self {
        Self {
            reads: Vec::new(),
            stacks: Vec::new(),
            ended,
            effects: 0,
            inner: Vec::new(),
            inner_cut: false,
            places: HashMap::new(),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TraceFailure {
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("cannot make a crash image: {0}")]
    Image(#[from] io::Error),
    #[error("events of a recovery were lost")]
    Lost,
}

/// What a worker keeps from one execution to the next.
#[derive(Debug, Default)]
pub struct Worker {
    scratch: Scratch,
    unwinder: Unwinder,
}

/// A crash image in memory.
#[derive(Debug, Default)]
pub(super) struct Start(HashMap<FileId, Vec<u8>>);

impl Bytes for Start {
    fn line(&self, line: LineId) -> Content {
        let bytes = self.0.get(&line.file).map_or(&[][..], Vec::as_slice);
        let start = (line.offset() as usize).min(bytes.len());
        let found = &bytes[start..bytes.len().min(start + LINE_BYTES)];
        let mut content = [0; LINE_BYTES];
        content[..found.len()].copy_from_slice(found);
        Content::new(content)
    }
}

impl Observe for Traced<'_> {
    type Worker = Worker;

    fn observe(&self, worker: &mut Worker, crash: &Crash, choice: &Choice) -> Result<Option<Observed>, TraceFailure> {
        let mut overlay = self.files.above(Capture::Writable);
        worker.scratch.become_version(self.versions, crash.version, &crash.image(choice), &mut overlay)?;
        let (files, start) = self.stand_ins(crash, &overlay)?;
        let overlay = Arc::new(Mutex::new(overlay));
        let how = Launch {
            program: self.program.clone(),
            plan: self.plan.clone(),
            follow_forks: true,
            bare: false,
            sandbox: Some(Private {
                overlay: Arc::clone(&overlay),
                input: self.input.clone(),
                output: Output::Tail(0),
                driver: None,
                timeout: None,
            }),
        };
        let mut watcher = Watcher::new(files, &crash.lines, self.nested.then_some(&start));
        let (ending, hung) = self.in_time(&how, &mut watcher);
        if stopped_by().is_some() {
            return Ok(None);
        }
        let ending = ending?;
        if !hung && ending.loss.events > 0 && matches!(ending.exit, Exit::Status(_)) {
            return Err(TraceFailure::Lost);
        }
        let mut observed = watcher.finish();
        observed.ended = match ending.exit {
            _ if hung => Ended::Hang,
            Exit::Status(status) => Ended::Exit(status),
            Exit::Signal(signal) => Ended::Signal(signal),
        };
        if let Some(oracle) = &self.oracle
            && observed.ended == self.usual
        {
            let job = Job { variables: &self.variables, timeout: Some(self.timeout), ..Job::new(oracle) };
            match sandbox::run(&job, &overlay, &mut worker.unwinder)?.end {
                End::Exit(0) => {}
                End::Interrupted => return Ok(None),
                End::Exit(status) => observed.ended = Ended::Oracle(status),
                End::Signal(signal) => observed.ended = Ended::Oracle(128 + signal),
                End::Timeout | End::Runaway => observed.ended = Ended::Oracle(-1),
            }
        }
        Ok(Some(observed))
    }
}

impl Traced<'_> {
    /// Runs the target, and ends it when its time is over.
    fn in_time(&self, how: &Launch, watcher: &mut Watcher<'_>) -> (Result<pmvet_target::Ending, LaunchError>, bool) {
        let (done, waiting) = mpsc::channel::<()>();
        let hung = AtomicBool::new(false);
        let processes = watcher.processes();
        let result = std::thread::scope(|scope| {
            let hung = &hung;
            scope.spawn(move || {
                while let Err(mpsc::RecvTimeoutError::Timeout) = waiting.recv_timeout(self.timeout) {
                    hung.store(true, Ordering::Release);
                    for &pid in processes.lock().unwrap_or_else(|e| e.into_inner()).iter() {
                        // SAFETY: processes of our own sandbox, which has not ended yet.
                        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
                    }
                }
            });
            let result = launch(how, self.install, watcher);
            drop(done);
            result
        });
        (result, hung.into_inner())
    }

    /// Which stand-in is which file of the run, and what is in them.
    fn stand_ins(&self, crash: &Crash, overlay: &Overlay) -> io::Result<(StandIns, Start)> {
        let states = self.versions.get(crash.version).map_or(&[][..], |version| &version.files);
        let ids: HashMap<&PathBuf, FileId> = states.iter().map(|state| (&state.path, state.file)).collect();
        let (mut files, mut start) = (HashMap::new(), Start::default());
        for (path, file) in overlay.files() {
            let Some(&id) = ids.get(&path.to_path_buf()) else { continue };
            let found = file.metadata()?;
            files.insert((found.dev(), found.ino()), id);
            if self.nested {
                let mut bytes = vec![0; found.len() as usize];
                file.read_exact_at(&mut bytes, 0)?;
                start.0.insert(id, bytes);
            }
        }
        Ok((files, start))
    }
}
