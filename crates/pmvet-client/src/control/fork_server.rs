//! The fork server inside the target.
//!
//! A process that reaches a fork point stops there, in the middle of DynamoRIO's handling of the system call, and forks
//! children on request. It forks behind DynamoRIO's back: a child has one thread, as its parent does, and all of DynamoRIO's
//! state, so there is nothing to rebuild, and the fork takes a tenth of the time. DynamoRIO remembers the parent's process
//! id, so in a child it would get exit and death by signal wrong. Both are done here instead.
//!
//! Code that a child translates is lost with it. The child leaves the addresses on the stage, and the server translates
//! them for its next children.

use core::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use pmvet_events::event::What;
use pmvet_events::plan;
use pmvet_events::shm::RingState;
use pmvet_events::stage::{ForkPoint, RUN, Stage, turn};

use super::fork_point;
use super::private_mappings::PrivateMappings;
use crate::dynamorio::{self, Inode, Syscall};
use crate::record::thread::Thread;
use crate::record::threads::threads;
use crate::run::run;

/// The fork server, if this process is one or a child of one.
pub(crate) static FORK_SERVER: OnceLock<ForkServerProcess> = OnceLock::new();

pub(crate) type AfterFork = unsafe extern "C" fn(*mut c_void);

pub(crate) struct ForkServerProcess {
    stage: &'static Stage,
    /// The first call that names one of these files is a fork point.
    files: Vec<PathBuf>,
    /// The input file. Without one, standard input is the input.
    input: Option<PathBuf>,
    /// The server that this process becomes at the next fork point, or [`RUN`].
    next_server: AtomicU32,
    /// The fork point at the files was passed: the next one is at the input.
    files_passed: AtomicBool,
    /// This process was forked by a server, whose number is in `server`.
    child: AtomicBool,
    server: AtomicUsize,
    /// It has already paused at the end of the input.
    paused: AtomicBool,
    /// How many translated blocks of the stage are in this process's code cache.
    translated: AtomicUsize,
    /// It is filling its code cache with blocks of the stage.
    translating: AtomicBool,
    /// Where the C library keeps the thread's id.
    tid_address: AtomicU64,
    /// Signals that the target handles itself: bit n - 1 for signal n.
    handled_signals: AtomicU64,
    private_mappings: PrivateMappings,
    /// What a child that reports events does first, with its DynamoRIO context.
    after_fork: AfterFork,
}

impl ForkServerProcess {
    pub(crate) fn new(plan: &plan::Forks, after_fork: AfterFork) -> Self {
        let stage = dynamorio::map_stage(&plan.stage);
        Self {
            stage,
            files: plan.files.clone(),
            input: plan.input.clone(),
            // A program that a run of a server starts is part of that run.
            next_server: AtomicU32::new(if stage.server(0).process.load(Ordering::Relaxed) == 0 { 0 } else { RUN }),
            files_passed: AtomicBool::new(false),
            child: AtomicBool::new(false),
            server: AtomicUsize::new(0),
            paused: AtomicBool::new(false),
            // Earlier blocks were translated by another program, such as the shell that started this one.
            translated: AtomicUsize::new(stage.blocks_from(0).count()),
            translating: AtomicBool::new(false),
            tid_address: AtomicU64::new(0),
            handled_signals: AtomicU64::new(0),
            private_mappings: PrivateMappings::default(),
            after_fork,
        }
    }

    pub(crate) fn stage(&self) -> &'static Stage {
        self.stage
    }

    fn is_child(&self) -> bool {
        self.child.load(Ordering::Relaxed)
    }

    /// A block was translated at this address.
    pub(crate) fn translated(&self, tag: u64) {
        if !self.translating.load(Ordering::Relaxed) {
            self.stage.add_block(tag);
        }
    }

    /// A system call is about to be made.
    pub(crate) fn before(&self, dc: *mut c_void, call: &Syscall, number: i64) {
        match number {
            libc::SYS_set_tid_address => self.tid_address.store(call.get(0), Ordering::Relaxed),
            libc::SYS_rt_sigaction => self.note_handler(call),
            libc::SYS_exit_group if self.is_child() => self.exit_child(call.fd(0)),
            _ => {}
        }
        if self.private_mappings.is_active() && self.private_mappings.is_bypassed_by(call, number) {
            self.end_unfit_run();
        }
        let number = match self.next_server.load(Ordering::Relaxed) {
            RUN => return,
            server => (server, self.fork_point(call, number)),
        };
        if let (server, Some(point)) = number {
            self.serve(dc, server as usize, point);
        }
    }

    /// A system call was made.
    pub(crate) fn after(&self, number: i64, result: i64) {
        if self.private_mappings.is_active() && self.private_mappings.was_bypassed_by(number, result) {
            self.end_unfit_run();
        }
    }

    /// The target has mapped a PM file.
    pub(crate) fn mapped(&self, inode: Inode, fd: i32) {
        if run().is_coverage_run() {
            self.private_mappings.mapped(inode, fd);
        }
    }

    /// Ends a run that cannot work with private mappings. pmvet repeats it without them.
    fn end_unfit_run(&self) {
        self.stage.left.store(1, Ordering::Relaxed);
        self.end_process(0);
    }

    fn note_handler(&self, call: &Syscall) {
        let bit = 1u64.checked_shl(call.fd(0).wrapping_sub(1) as u32).unwrap_or(0);
        match call.get(1) {
            0 => {}
            action if dynamorio::read_word(action).unwrap_or(0) == libc::SIG_DFL as u64 => {
                self.handled_signals.fetch_and(!bit, Ordering::Relaxed);
            }
            _ => {
                self.handled_signals.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// The fork point that a call is, if it is one.
    fn fork_point(&self, call: &Syscall, number: i64) -> Option<ForkPoint> {
        let named = fork_point::named_file(call, number);
        let is = |path: &Path| named.as_deref().is_some_and(|named| fork_point::is_same_file(named, path));
        if !self.files_passed.load(Ordering::Relaxed) && self.files.iter().any(|path| is(path)) {
            return Some(ForkPoint::Files);
        }
        let input = match &self.input {
            Some(path) => is(path),
            None => fork_point::looks_at_stdin(call, number),
        };
        input.then_some(ForkPoint::Input)
    }

    /// Obeys pmvet's orders. Returns only in a child, which goes on from here.
    fn serve(&self, dc: *mut c_void, number: usize, point: ForkPoint) {
        let server = self.stage.server(number);
        self.server.store(number, Ordering::Relaxed);
        self.next_server.store(RUN, Ordering::Relaxed);
        if threads().alive.len() > 1 {
            server.set_turn(turn::REFUSED);
            return;
        }
        self.files_passed.store(true, Ordering::Relaxed);
        self.child.store(false, Ordering::Relaxed);
        server.set_point(point);
        server.process.store(dynamorio::process(), Ordering::Relaxed);
        self.translate(dc);
        dynamorio::join_pages();
        server.apart.store(self.private_mappings.prepare_server().into(), Ordering::Relaxed);
        server.set_turn(turn::READY);
        loop {
            if server.turn() != turn::ORDERED {
                server.wait_while(turn::READY, Duration::from_secs(3600));
                continue;
            }
            self.translate(dc);
            rewind_stdin();
            let order = server.order();
            let child = self.fork();
            if child == 0 {
                self.become_child(dc, order);
                return;
            }
            server.child.store(child as u32, Ordering::Relaxed);
            if order == RUN && child > 0 {
                server.status.store(wait_for(child), Ordering::Relaxed);
            }
            // Reap servers that have ended since. SAFETY: no status is wanted.
            while unsafe { libc::syscall(libc::SYS_wait4, -1, 0, libc::WNOHANG | libc::__WALL, 0) } > 0 {}
            server.set_turn(turn::READY);
        }
    }

    fn fork(&self) -> i64 {
        let tid_address = self.tid_address.load(Ordering::Relaxed);
        // The child sends no signal when it ends: the sandbox would stop the server for it.
        let mut flags = 0;
        // In a coverage run the C library keeps the thread id that it has: see `coverage::syscalls`.
        if tid_address != 0 && !run().is_coverage_run() {
            // As the C library's own fork does.
            flags |= libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID;
        }
        // SAFETY: a fork: no memory is shared, and the one thread of the process goes on in both.
        unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, tid_address, 0) }
    }

    fn become_child(&self, dc: *mut c_void, order: u32) {
        self.child.store(true, Ordering::Relaxed);
        self.next_server.store(order, Ordering::Relaxed);
        run().update_process();
        if run().is_coverage_run() {
            if let Some(thread) = Thread::try_current() {
                thread.set_process(dynamorio::process());
            }
        } else {
            // SAFETY: in the child of a fork, on its only thread.
            unsafe { (self.after_fork)(dc) };
        }
        if order == RUN && self.stage.apart.load(Ordering::Relaxed) != 0 && !self.private_mappings.make_private() {
            self.end_unfit_run();
        }
    }

    /// Translates the blocks that children have added to the stage.
    fn translate(&self, dc: *mut c_void) {
        let known = self.translated.load(Ordering::Relaxed);
        let mut tags: Vec<u64> = self.stage.blocks_from(known).collect();
        self.translated.store(known + tags.len(), Ordering::Relaxed);
        if tags.is_empty() {
            return;
        }
        // Code of a library that only the child loaded is missing here.
        dynamorio::retain_code(&mut tags);
        self.translating.store(true, Ordering::Relaxed);
        dynamorio::translate(dc, &tags);
        self.translating.store(false, Ordering::Relaxed);
    }

    /// Ends a child at once. DynamoRIO would spend time on freeing what ends with the process anyway.
    fn exit_child(&self, status: i32) {
        if !run().is_coverage_run()
            && let Some(thread) = Thread::try_current()
        {
            thread.emit(What::ThreadExit);
            thread.emit(What::ProcessExit { process: run().process() });
            let id = thread.id;
            run().shared.control(thread.ring).change(RingState::Active(id), RingState::Closed(id));
        }
        self.end_process(status);
    }

    /// Ends the process. With a single thread it avoids `exit_group`, at which the sandbox stops it.
    fn end_process(&self, status: i32) {
        let threads = threads();
        // A thread that was just created may not have started.
        let alone = threads.alive.len() == 1 && threads.expected.is_empty();
        let call = if alone { libc::SYS_exit } else { libc::SYS_exit_group };
        // SAFETY: does not return.
        unsafe { libc::syscall(call, status) };
    }

    /// Whether the run should pause at the end of the input and has not done so yet.
    pub(crate) fn may_pause(&self) -> bool {
        self.is_child()
            && self.next_server.load(Ordering::Relaxed) == RUN
            && self.stage.pauses.load(Ordering::Relaxed) != 0
            && !self.paused.load(Ordering::Relaxed)
    }

    /// The input has ended. Asks pmvet whether it wants the rest of the run, and ends it if not.
    pub(crate) fn pause_at_input_end(&self) {
        self.paused.store(true, Ordering::Relaxed);
        let server = self.stage.server(self.server.load(Ordering::Relaxed));
        server.set_turn(turn::PAUSED);
        while server.turn() == turn::PAUSED {
            server.wait_while(turn::PAUSED, Duration::from_secs(3600));
        }
        if self.stage.enough.load(Ordering::Relaxed) != 0 {
            self.end_process(0);
        }
    }

    /// Ends the run as a crash of the machine would.
    pub(crate) fn simulate_crash(&self) {
        if self.is_child() {
            self.stage.stop.stopped.store(1, Ordering::Relaxed);
            self.end_process(0);
        }
    }

    /// A signal has come. A child that dies of it does so here: DynamoRIO would send the signal to the server.
    pub(crate) fn signalled(&self, signal: i32) {
        use libc::{SIGABRT, SIGALRM, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGSEGV, SIGSYS, SIGTERM, SIGTRAP, SIGXFSZ};
        let deadly = [SIGABRT, SIGALRM, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGSEGV, SIGSYS, SIGTERM, SIGTRAP, SIGXFSZ];
        let handled =
            self.handled_signals.load(Ordering::Relaxed) & 1u64.checked_shl(signal as u32 - 1).unwrap_or(0) != 0;
        if self.is_child() && deadly.contains(&signal) && !handled {
            dynamorio::die_of_signal(signal);
        }
    }
}

/// Children share the position of standard input, and each must read it from the start.
fn rewind_stdin() {
    // SAFETY: fails without harm if it cannot be done.
    unsafe { libc::syscall(libc::SYS_lseek, 0, 0, libc::SEEK_SET) };
}

fn wait_for(child: i64) -> i32 {
    let mut status = 0;
    loop {
        // SAFETY: the pointer is valid.
        let ended = unsafe { libc::syscall(libc::SYS_wait4, child, &raw mut status, libc::__WALL, 0) };
        // SAFETY: asks for the error of the call just made.
        if ended == child || unsafe { *libc::__errno_location() } != libc::EINTR {
            return status;
        }
    }
}
