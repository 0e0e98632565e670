//! A target that is started once and run many times.
//!
//! The target runs to its first fork point: where it first names one of its PM files, or reads its input. There the
//! client makes it a *server*, which forks a child for each run; translated code and start-up are paid for once. A server
//! may *branch*: its child becomes another server at the next fork point, when the PM files are open, so that runs on the
//! same image do not open it each time.
//!
//! All processes live in one sandbox and see one [`Overlay`], so there is one run at a time, and the caller puts the files of a
//! run into the overlay before it. What a run changes in files that were open at the fork point stays changed: the caller restores
//! it before the next run. A run reports events, or counts (see [`pmvet_events::plan::Forks`]).

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use pmvet_events::ids::{ContextId, ModuleId, SiteId, ThreadId};
use pmvet_events::plan::Forks;
use pmvet_events::shm::SharedMemory;
use pmvet_events::stage::{ForkPoint, Maps, OwnStage, RUN, SERVERS, turn};
use pmvet_events::{Event, Places, What};

use crate::collect::{CollectError, Collector, LostEvents, Sink, SinkError};
use crate::install::Install;
use crate::launch::{Launch, LaunchError, SandboxThread, TargetExit, exit_of};
use crate::sandbox::start_error::StartError;
use crate::sandbox::{Overlay, Tracees, waiting};
use crate::shutdown::is_over;

/// The server that the target itself became.
pub const FIRST: usize = 0;

/// How long a run may take, not counting waits for a processor, and how much memory.
#[derive(Debug, Clone, Copy)]
pub struct RunLimits {
    /// A run that takes longer is killed.
    pub time: Duration,
    /// Of each process of a run.
    pub bytes: u64,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForkedEnd {
    /// By itself, or by a signal.
    Exit(TargetExit),
    /// It took too long and was killed.
    Timeout,
    /// It took too much memory and was killed.
    Runaway,
}

/// Decides, from the counts so far, whether the rest of a run that has read all of its input is wanted.
pub type InputEndJudge<'a> = &'a mut dyn FnMut(&Maps) -> bool;

/// The result of a run.
#[derive(Debug)]
pub struct ForkedRun {
    /// How it ended. A run that was cut short counts as a success.
    pub end: ForkedEnd,
    /// The rest of it was not wanted.
    pub cut: bool,
    /// Processes that it left behind, which were killed.
    pub strays: usize,
    /// Events that are missing.
    pub loss: LostEvents,
    /// Wall-clock time from the order to the end.
    pub time: Duration,
}

/// Why a target cannot be run many times, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// It could not even be started.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// It ended before its first fork point, with this output.
    #[error("the target ended ({0}) before it touched a PM file or its input; the end of its output:\n{1}")]
    Ended(TargetExit, String),
    /// It has threads at its first fork point, which a fork would lose.
    #[error("the target has several threads before it touches its PM files and its input, so it cannot be forked")]
    Threads,
    /// A server was killed, or died by itself. Others may live on.
    #[error("the fork server inside the target has ended")]
    Died,
    /// pmvet was asked to stop, or its budget is used up.
    #[error("interrupted, or out of time, before the target had been run")]
    Interrupted,
    /// The events of a run could not all be passed on.
    #[error(transparent)]
    Collect(#[from] CollectError),
}

/// A target that waits at its fork points, and the servers that it has become.
#[derive(Debug)]
pub struct ForkServer {
    stage: OwnStage,
    shared: SharedMemory,
    sandbox: SandboxThread,
    overlay: Arc<Mutex<Overlay>>,
    tracees: Arc<Tracees>,
    counts: bool,
    /// The process of each running server, by number.
    servers: [Option<libc::pid_t>; SERVERS],
    /// The server whose last run was cut short and may not have ended yet.
    ending: Option<usize>,
    modules: Modules,
}

/// Poll interval for what is not signalled.
const ROUND: Duration = Duration::from_millis(20);

impl ForkServer {
    /// Starts a target, which must have a sandbox, and waits until it is at its first fork point. `points` says where that
    /// is; its stage is filled in here.
    pub fn start(launch: &Launch, points: Forks, install: &Install) -> Result<Self, ForkError> {
        let private = launch.sandbox.as_ref().ok_or(LaunchError::Guard(std::io::ErrorKind::InvalidInput.into()))?;
        let stage = OwnStage::create().map_err(LaunchError::SharedMemory)?;
        let counts = points.count;
        let mut launch = launch.clone();
        launch.plan.forks = Some(Forks { stage: stage.path(), ..points });
        let plan = serde_json::to_vec(&launch.plan).map_err(LaunchError::Plan)?;
        let shared = SharedMemory::create(&plan).map_err(LaunchError::SharedMemory)?;
        let tracees = Arc::<Tracees>::default();
        let sandbox = SandboxThread::start(&launch, private, install, &shared, Arc::clone(&tracees));
        let overlay = Arc::clone(&private.overlay);
        let mut this = Self {
            stage,
            shared,
            sandbox,
            overlay,
            tracees,
            counts,
            servers: [None; SERVERS],
            ending: None,
            modules: Modules::default(),
        };
        this.arrive(FIRST, None)?;
        this.files().settle();
        Ok(this)
    }

    /// Waits until a server is at its fork point. Returns whether it got there.
    fn arrive(&mut self, number: usize, process: Option<libc::pid_t>) -> Result<bool, ForkError> {
        let server = self.stage.server(number);
        // Of the events of the start, runs need only the modules; but all must be read, so that the target does not wait.
        let mut collector = (!self.counts).then(|| Collector::from_now(&self.shared));
        loop {
            if let Some(collector) = &mut collector {
                while collector.pump(&mut self.modules)? > 0 {}
            }
            match server.wait_while(turn::AWAY, if self.counts { ROUND } else { Duration::from_micros(200) }) {
                turn::AWAY => {}
                turn::REFUSED => return Err(ForkError::Threads),
                _ => break,
            }
            if is_over() {
                return Err(ForkError::Interrupted);
            }
            match process {
                None if self.sandbox.is_over() => return Err(self.last_words()),
                Some(process) if !self.tracees.contains(process) => return Ok(false),
                _ => {}
            }
        }
        if let Some(collector) = &mut collector {
            collector.pump(&mut self.modules)?;
        }
        self.servers[number] = Some(server.process.load(Ordering::Relaxed) as libc::pid_t);
        Ok(true)
    }

    fn last_words(&mut self) -> ForkError {
        let ended = self.sandbox.join();
        if let Some(why) = self.shared.header().failure() {
            return LaunchError::ClientFailed(why).into();
        }
        match ended {
            _ if is_over() => ForkError::Interrupted,
            Some(Ok(run)) => ForkError::Ended(run.end.exit(), String::from_utf8_lossy(&run.output).into_owned()),
            Some(Err(error)) => StartError::from_io(error).map_or_else(|_| gone(), |e| LaunchError::Sandbox(e).into()),
            None => gone(),
        }
    }

    /// Where a server stopped.
    pub fn point(&self, server: usize) -> ForkPoint {
        self.stage.server(server).point()
    }

    fn files(&self) -> MutexGuard<'_, Overlay> {
        self.overlay.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Whether a run has changed files so that later runs would see it. Only a new server has them unchanged.
    pub fn is_spoilt(&self) -> bool {
        self.files().is_touched()
    }

    /// The files that the processes see.
    pub fn overlay(&self) -> &Arc<Mutex<Overlay>> {
        &self.overlay
    }

    /// The counter maps: operations on PM, then branches.
    pub fn counts(&self) -> Vec<u8> {
        self.stage.maps.copy()
    }

    /// Sets the counter maps, as [`ForkServer::counts`] gives them. No run may be under way.
    pub fn set_counts(&self, counts: &[u8]) {
        self.stage.maps.set(counts);
    }

    /// For runs that count: the next run counts operations on PM and fences starting at the two numbers in `from`, and
    /// ends before the operation or the fence in `at`; 0 is none.
    pub fn stop_at(&self, from: (u64, u64), at: (u64, u64)) {
        self.stage.stop.set(from, at);
    }

    /// How many operations on PM, and how many fences, the last run did, and whether it was stopped before the last of them.
    pub fn operations(&self) -> (u64, u64, bool) {
        let stop = &self.stage.stop;
        let [operations, fences] = [&stop.operations, &stop.fences].map(|count| count.load(Ordering::Relaxed));
        (operations, fences, stop.stopped.load(Ordering::Relaxed) != 0)
    }

    /// Whether runs of a server can map PM privately, so that other runs do not see their changes.
    pub fn can_keep_apart(&self, server: usize) -> bool {
        self.stage.server(server).apart.load(Ordering::Relaxed) != 0
    }

    /// Makes the next runs do so, if they can.
    pub fn keep_apart(&self, apart: bool) {
        self.stage.apart.store(apart.into(), Ordering::Relaxed);
        self.stage.left.store(0, Ordering::Relaxed);
    }

    /// Whether the last run could not be kept apart after all. It ended when that became clear.
    pub fn was_left(&self) -> bool {
        self.stage.left.load(Ordering::Relaxed) != 0
    }

    /// Makes a server fork a child, and waits for the child's end. Its events go to `sink`.
    pub fn run(&mut self, server: usize, limits: &RunLimits, sink: &mut dyn Sink) -> Result<ForkedRun, ForkError> {
        self.run_judged(server, limits, sink, None)
    }

    /// The same, but the run may be cut short.
    pub fn run_judged(
        &mut self,
        server: usize,
        limits: &RunLimits,
        sink: &mut dyn Sink,
        mut judge: Option<InputEndJudge<'_>>,
    ) -> Result<ForkedRun, ForkError> {
        let mut left = self.settle()?;
        self.files().tidy();
        let process = self.servers[server].ok_or_else(gone)?;
        let control = self.stage.server(server);
        let started = Instant::now();
        let mut collector = (!self.counts).then(|| Collector::from_now(&self.shared));
        let mut killed = None;
        let mut cut = false;
        self.stage.pauses.store(judge.is_some().into(), Ordering::Relaxed);
        if !self.counts {
            self.modules.tell(sink, &self.shared)?;
        }
        control.give(RUN);
        loop {
            let pause = match &mut collector {
                Some(collector) => {
                    collector.pump(sink)?;
                    Duration::from_micros(100)
                }
                None => ROUND.min(limits.time),
            };
            match control.wait_while(turn::ORDERED, pause) {
                turn::READY => break,
                turn::PAUSED => {
                    cut = judge.as_mut().is_some_and(|judge| !judge(&self.stage.maps));
                    self.stage.enough.store(cut.into(), Ordering::Relaxed);
                    control.answer();
                    if cut && self.counts && self.is_alone() {
                        // It only has to end, and the next run waits for that: the caller has other things to do.
                        self.ending = Some(server);
                        let (end, time) = (ForkedEnd::Exit(TargetExit::Status(0)), started.elapsed());
                        return Ok(ForkedRun { end, cut, strays: left, loss: LostEvents::default(), time });
                    }
                    continue;
                }
                _ => {}
            }
            if started.elapsed() < ROUND {
                continue;
            }
            if !self.tracees.contains(process) {
                self.servers[server] = None;
                return Err(gone());
            }
            if is_over() {
                return Err(ForkError::Interrupted);
            }
            let child = control.child.load(Ordering::Relaxed);
            killed = killed.or(if is_late(child, started.elapsed(), limits.time) {
                Some(ForkedEnd::Timeout)
            } else if resident(child) > limits.bytes {
                Some(ForkedEnd::Runaway)
            } else {
                None
            });
            if killed.is_some() {
                left += self.kill_all_but_servers(child);
            }
        }
        let strays = left + self.kill_all_but_servers(control.child.load(Ordering::Relaxed));
        let loss = match &mut collector {
            Some(collector) => collector.finish(sink)?,
            None => LostEvents::default(),
        };
        let end = killed.unwrap_or(ForkedEnd::Exit(exit_of(control.status.load(Ordering::Relaxed))));
        Ok(ForkedRun { end, cut, strays, loss, time: started.elapsed() })
    }

    /// Whether the run under way has one process with one thread.
    fn is_alone(&self) -> bool {
        self.tracees.others(&self.processes()).len() == 1
    }

    /// Waits for the end of a run that was cut short. Returns how many threads it left behind.
    fn settle(&mut self) -> Result<usize, ForkError> {
        let Some(server) = self.ending.take() else { return Ok(0) };
        let process = self.servers[server].ok_or_else(gone)?;
        let control = self.stage.server(server);
        while control.wait_while(turn::ORDERED, ROUND) != turn::READY {
            if !self.tracees.contains(process) {
                self.servers[server] = None;
                return Err(gone());
            }
            if is_over() {
                return Err(ForkError::Interrupted);
            }
        }
        Ok(self.kill_all_but_servers(control.child.load(Ordering::Relaxed)))
    }

    fn processes(&self) -> Vec<libc::pid_t> {
        self.servers.iter().copied().flatten().collect()
    }

    /// Makes a server fork a child that goes on to the next fork point and becomes a server there. `None` if it never got
    /// there, or there are too many servers.
    pub fn branch(&mut self, server: usize) -> Result<Option<usize>, ForkError> {
        self.settle()?;
        let Some(number) = self.servers.iter().position(Option::is_none) else { return Ok(None) };
        self.servers[server].ok_or_else(gone)?;
        let control = self.stage.server(server);
        self.stage.server(number).set_turn(turn::AWAY);
        control.give(number as u32);
        while control.wait_while(turn::ORDERED, ROUND) != turn::READY {
            if self.sandbox.is_over() {
                return Err(gone());
            }
            if is_over() {
                return Err(ForkError::Interrupted);
            }
        }
        let child = control.child.load(Ordering::Relaxed) as libc::pid_t;
        let arrived = self.arrive(number, Some(child));
        if !matches!(arrived, Ok(true)) {
            self.kill_all_but_servers(child as u32);
        }
        Ok(arrived?.then_some(number))
    }

    /// Ends a server.
    pub fn end(&mut self, server: usize) {
        // Errors show at the next run.
        let _ = self.settle();
        if let Some(process) = self.servers[server].take() {
            self.tracees.kill(process);
            self.kill_all_but_servers(process as u32);
        }
    }

    /// Kills what a run left behind. Returns how many threads that were, besides the run's own process.
    fn kill_all_but_servers(&self, child: u32) -> usize {
        let servers = self.processes();
        // The supervisor needs a moment to notice that the run has ended.
        if self.tracees.wait_for_others(&servers, ROUND) {
            return 0;
        }
        let strays = self.tracees.others(&servers).iter().filter(|&&tid| tid != child as libc::pid_t).count();
        // On shutdown the whole sandbox ends, which stops new ones from appearing.
        while self.tracees.kill_others(&servers) > 0 && !self.sandbox.is_over() && !is_over() {
            self.tracees.wait_for_others(&servers, ROUND);
        }
        strays
    }
}

/// Why a server is gone: all of them end on shutdown.
fn gone() -> ForkError {
    if is_over() { ForkError::Interrupted } else { ForkError::Died }
}

/// Modules that were loaded before the fork point: the sink of every run has to know them.
#[derive(Debug, Default)]
struct Modules(Vec<(ModuleId, u64, u64, PathBuf)>);

impl Modules {
    fn tell(&self, sink: &mut dyn Sink, places: &dyn Places) -> Result<(), CollectError> {
        let (thread, site, context) = (ThreadId(0), SiteId(0), ContextId(0));
        for (module, base, size, path) in &self.0 {
            let what = What::Module { module: *module, base: *base, size: *size, path };
            sink.event(&Event { seq: 0, thread, site, context, what }, places)?;
        }
        Ok(())
    }
}

impl Sink for Modules {
    fn event(&mut self, event: &Event<'_>, _: &dyn Places) -> Result<(), SinkError> {
        if let What::Module { module, base, size, path } = event.what {
            self.0.push((module, base, size, path.into()));
        }
        Ok(())
    }
}

/// Whether a process has used up its time. Waiting for a processor does not count, up to a bound: a process with many spinning
/// threads waits all the time, for itself.
fn is_late(process: u32, elapsed: Duration, limit: Duration) -> bool {
    elapsed > limit && elapsed > limit + waiting::of_process(process as libc::pid_t).min(limit * waiting::MOST)
}

/// How much memory a process takes.
fn resident(process: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{process}/statm")).unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok()).map_or(0, |pages| pages * 4096)
}
