//! pmvet on programs that do not end, told to end.

use std::fs;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::{pmvet, repository, scratch};

/// A pmvet that takes so long hangs.
const HANGS: Duration = Duration::from_secs(120);
/// A process that is still there so long after pmvet was left behind.
const GONE: Duration = Duration::from_secs(1);

/// Where pmvet runs. It finds its own mark in the environment of all that it starts.
#[derive(Debug)]
pub struct UnrulyPlace {
    /// PM files; and where pmvet is started and keeps its runs.
    pools: TempDir,
    work: TempDir,
    program: PathBuf,
}

/// How a run of pmvet went.
#[derive(Debug)]
pub struct StoppedRun {
    /// How pmvet itself ended.
    pub status: ExitStatus,
    /// What it printed.
    pub output: String,
    /// Since it was started, or told to end.
    pub time: Duration,
}

impl UnrulyPlace {
    /// Makes both folders, and compiles the program if need be.
    #[expect(clippy::new_without_default, reason = "it makes folders")]
    pub fn new() -> Self {
        let pools = tempfile::Builder::new().prefix("pmvet-stops-").tempdir_in("/dev/shm").unwrap();
        let work = tempfile::Builder::new().prefix("pmvet-stops-").tempdir().unwrap();
        fs::create_dir(work.path().join("tmp")).unwrap();
        Self { pools, work, program: unruly() }
    }

    /// `pmvet WORDS -- unruly TARGET`. In all words `RECOVER` stands for the program, and `POOL` for its pool.
    pub fn pmvet(&self, words: &str, target: &str) -> Command {
        let pool = self.pools.path().join("pool");
        let fill = |word: &str| {
            let word = word.replace("POOL", pool.to_str().unwrap());
            word.replace("RECOVER", self.program.to_str().unwrap()).replace('+', " ")
        };
        let mut command = Command::new(pmvet());
        command.args(words.split_whitespace().map(fill)).arg("--").arg(&self.program);
        command.args(target.split_whitespace().map(fill));
        command.current_dir(self.work.path()).env("TMPDIR", self.work.path().join("tmp"));
        command.env("PMVET_STOPS_MARK", self.pools.path()).stdin(Stdio::null());
        command
    }

    /// Processes with the mark.
    fn running(&self) -> Vec<String> {
        let mark = format!("PMVET_STOPS_MARK={}", self.pools.path().display());
        let all = fs::read_dir("/proc").unwrap().flatten();
        let marked = all.filter(|process| {
            let environment = fs::read(process.path().join("environ")).unwrap_or_default();
            environment.split(|&b| b == 0).any(|variable| variable == mark.as_bytes())
        });
        marked.map(|process| fs::read_to_string(process.path().join("cmdline")).unwrap_or_default()).collect()
    }

    /// Nothing runs any more, and there are no files but those of the run.
    pub fn assert_clean(&self, what: &str) {
        // What dies with pmvet does so a moment later.
        let ended = Instant::now();
        while !self.running().is_empty() && ended.elapsed() < GONE {
            std::thread::yield_now();
        }
        assert_eq!(self.running(), [""; 0], "{what}: processes are left");
        for folder in [self.pools.path(), &self.work.path().join("tmp")] {
            let left: Vec<PathBuf> = fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).collect();
            assert!(left.is_empty(), "{what}: files are left: {left:?}");
        }
    }

    /// Whether pmvet came as far as to make folders of its own.
    pub fn has_begun(&self) -> bool {
        [".pmvet", "corpus"].iter().any(|folder| self.work.path().join(folder).exists())
    }

    /// Runs pmvet to its end.
    pub fn run(&self, mut command: Command) -> StoppedRun {
        let output = self.work.path().join("output");
        let file = File::create(&output).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let started = Instant::now();
        let mut child = command.spawn().unwrap();
        let status = wait(&mut child);
        let time = started.elapsed();
        let output = String::from_utf8_lossy(&fs::read(output).unwrap()).into_owned();
        StoppedRun { status, output, time }
    }

    /// Sends SIGTERM to pmvet after a while; nothing if it ends before.
    pub fn terminate(&self, mut command: Command, after: Duration) -> Option<StoppedRun> {
        let output = self.work.path().join("output");
        let file = File::create(&output).unwrap();
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let mut child = command.spawn().unwrap();
        std::thread::sleep(after);
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        let told = Instant::now();
        // SAFETY: a child that was not waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        let status = wait(&mut child);
        let time = told.elapsed();
        let output = String::from_utf8_lossy(&fs::read(output).unwrap()).into_owned();
        Some(StoppedRun { status, output, time })
    }

    /// Runs pmvet on a terminal of its own and presses Ctrl-C, so often, after a while; nothing if it ends before.
    pub fn press_ctrl_c(&self, mut command: Command, after: Duration, times: usize) -> Option<StoppedRun> {
        let (mut terminal, other) = terminal();
        let copy = || Stdio::from(other.try_clone().unwrap());
        command.stdin(copy()).stdout(copy()).stderr(copy());
        drop(other);
        // SAFETY: system calls between fork and exec, which makes the terminal that of the new session.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let mut child = command.spawn().unwrap();
        // It has the other end of the terminal.
        drop(command);
        let mut screen = terminal.try_clone().unwrap();
        let reading = std::thread::spawn(move || {
            let (mut all, mut some) = (Vec::new(), [0; 4096]);
            while let Ok(n @ 1..) = screen.read(&mut some) {
                all.extend_from_slice(&some[..n]);
            }
            String::from_utf8_lossy(&all).into_owned()
        });
        std::thread::sleep(after);
        if child.try_wait().unwrap().is_some() {
            return None;
        }
        let told = Instant::now();
        for _ in 0..times {
            terminal.write_all(b"\x03").unwrap();
        }
        let status = wait(&mut child);
        let time = told.elapsed();
        Some(StoppedRun { status, output: reading.join().unwrap(), time })
    }
}

fn unruly() -> PathBuf {
    static BUILT: std::sync::OnceLock<PathBuf> = std::sync::OnceLock::new();
    let build = || {
        let program = scratch().join("unruly");
        let source = repository().join("crates/pmvet/tests/programs/unruly.c");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O1", "-g", "-Wall", "-pthread", "-o"]).arg(&program).arg(source);
        assert!(gcc.status().unwrap().success());
        program
    };
    BUILT.get_or_init(build).clone()
}

fn wait(child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > HANGS {
            let stuck = child.id();
            let threads = fs::read_dir(format!("/proc/{stuck}/task")).into_iter().flatten().flatten();
            let read = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
            let threads: Vec<String> = threads
                .map(|t| format!("{} {}", read(t.path().join("comm")).trim(), read(t.path().join("wchan"))))
                .collect();
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("pmvet hangs: {threads:#?}");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Both ends of a new terminal.
fn terminal() -> (File, OwnedFd) {
    let (mut here, mut there) = (0, 0);
    // SAFETY: the pointers are valid, or null where they may be; both descriptors are new.
    unsafe {
        let (name, settings, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
        assert_eq!(libc::openpty(&raw mut here, &raw mut there, name, settings, size), 0);
        for fd in [here, there] {
            libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        (File::from_raw_fd(here), OwnedFd::from_raw_fd(there))
    }
}

/// Keeps processors busy.
#[derive(Debug)]
pub struct Load {
    stop: Arc<AtomicBool>,
}

impl Load {
    /// Starts so many threads, which spin until the value goes.
    pub fn new(threads: usize) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..threads {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self { stop }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
