//! The keeper: a thread that may mount file systems and builds views.
//!
//! At its start, while it has one thread, pmvet enters namespaces of its own ([`enter`]): of mounts and of System V memory; and of
//! users, if it may not mount otherwise. One thread keeps the right to mount; all others give it up.
//!
//! The network stays the machine's: programs may depend on services on its loopback device, and [`super::network`] blocks the rest.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};

use rustix::process::{
    DumpableBehavior, Signal, getegid, geteuid, set_dumpable_behavior, set_parent_process_death_signal,
};

use super::capabilities;
use super::ground::{Built, NoViews, ViewGround, call, mount, step};
use super::mounts;
use super::view;

/// Work for the thread that may mount.
type Work = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
pub(super) struct Keeper {
    work: Mutex<mpsc::Sender<Work>>,
    ground: ViewGround,
    layers: AtomicU64,
}

static KEEPER: OnceLock<Keeper> = OnceLock::new();

/// The keeper, if the kernel allows views.
pub(super) fn get() -> Option<&'static Keeper> {
    KEEPER.get()
}

/// Whether views replace the whole tree, as they do for the machine's administrator.
pub(super) fn replaces_all() -> bool {
    get().is_some_and(|keeper| keeper.ground.whole)
}

/// Enters the namespaces that views are made in. The process must have one thread. `words` may name paths that the programs will write to.
///
/// A child process tries it first: what fails half-way cannot be undone.
pub fn enter(words: Vec<OsString>) -> Result<(), NoViews> {
    let threads = step("/proc/self/task", std::fs::read_dir("/proc/self/task"))?.count();
    if threads != 1 {
        return Err(NoViews { step: "start".into(), error: format!("pmvet has {threads} threads already") });
    }
    // A pmvet started by root's pmvet gains rights, after which the kernel forbids tracing what shares its memory.
    let set = set_dumpable_behavior(DumpableBehavior::Dumpable);
    step("prctl(PR_SET_DUMPABLE)", set.map_err(io::Error::from))?;
    // Found with the user's own rights.
    let hints = mounts::hints(words.into_iter());
    try_out(&hints)?;
    isolate()?;
    let (ready, made) = mpsc::channel();
    let (work, received) = mpsc::channel::<Work>();
    let started = std::thread::Builder::new().name("pmvet-keeper".into()).spawn(move || {
        let ground = ViewGround::new(&hints);
        let works = ground.is_ok();
        if ready.send(ground).is_ok() && works {
            received.into_iter().for_each(|work| work());
        }
    });
    step("clone", started)?;
    let ground = made.recv().map_err(|e| NoViews { step: "start".into(), error: e.to_string() })??;
    step("capset", capabilities::drop_most())?;
    let _ = KEEPER.set(Keeper { work: Mutex::new(work), ground, layers: AtomicU64::new(0) });
    Ok(())
}

/// Does all of it in a child, and returns what failed there.
fn try_out(hints: &[PathBuf]) -> Result<(), NoViews> {
    let (mut reader, mut writer) = step("pipe", io::pipe())?;
    // SAFETY: the process has one thread, so the child may do whatever it could.
    let child = call("fork", unsafe { libc::fork() }.into())? as libc::pid_t;
    if child == 0 {
        // It ends with pmvet, or, if pmvet has ended before, by itself.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let result = isolate().and_then(|()| ViewGround::new(hints)).and_then(|ground| {
            let folder = step("getcwd", std::env::current_dir())?;
            let built = ground.build(0, &[], &folder)?;
            step("openat2", view::open_in(&built.root, Path::new("/"), libc::O_PATH, 0))
        });
        if let Err(NoViews { step, error }) = &result {
            let _ = write!(writer, "{step}\n{error}");
        }
        // SAFETY: ends the child, and runs nothing of pmvet's.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    drop(writer);
    let mut said = String::new();
    step("read", reader.read_to_string(&mut said))?;
    let mut status = 0;
    // SAFETY: our own child.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return step("waitpid", Err(error));
        }
    }
    match said.split_once('\n') {
        _ if status == 0 => Ok(()),
        Some((step, error)) => Err(NoViews { step: step.into(), error: error.into() }),
        None => Err(NoViews { step: "trial of a view".into(), error: format!("it ended with wait status {status}") }),
    }
}

/// Gives the process namespaces of its own.
fn isolate() -> Result<(), NoViews> {
    let own = libc::CLONE_NEWNS | libc::CLONE_NEWIPC;
    // SAFETY: a system call without pointers; open files stay shared.
    let unshare = |what| call("unshare", unsafe { libc::unshare(what) }.into());
    // Root needs no other users.
    if !capabilities::may_mount() || unshare(own).is_err() {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        unshare(own | libc::CLONE_NEWUSER)?;
        step("/proc/self/setgroups", std::fs::write("/proc/self/setgroups", "deny"))?;
        step("/proc/self/uid_map", std::fs::write("/proc/self/uid_map", format!("{user} {user} 1")))?;
        step("/proc/self/gid_map", std::fs::write("/proc/self/gid_map", format!("{group} {group} 1")))?;
    }
    // What is mounted outside from now on appears here, but not the other way round.
    mount(None, Path::new("/"), None, libc::MS_REC | libc::MS_SLAVE, None)
}

impl Keeper {
    pub(super) fn next_layer(&self) -> u64 {
        self.layers.fetch_add(1, Ordering::Relaxed)
    }

    /// Starts a thread that may mount.
    pub(super) fn spawn(&self, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let start: Work = Box::new(move || {
            // If it cannot be started, its caller sees the closed channel.
            let _ = std::thread::Builder::new().name("pmvet-spawner".into()).spawn(work);
        });
        let sender = self.work.lock().unwrap_or_else(|e| e.into_inner());
        sender.send(start).map_err(|_| io::Error::other("the thread that mounts file systems has ended"))
    }

    /// Does something in a thread that may mount, and waits for it.
    pub(super) fn call<T: Send + 'static>(
        &'static self,
        work: impl FnOnce(&ViewGround) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let (done, result) = mpsc::channel();
        self.spawn(move || drop(done.send(work(&self.ground))))?;
        result.recv().map_err(io::Error::other)?
    }

    /// Puts the calling thread, which [`Keeper::spawn`] started, into a new view, in a folder.
    pub(super) fn build(&self, layer: u64, lower: &[u64], folder: &Path) -> io::Result<Built> {
        self.ground.build(layer, lower, folder).map_err(io::Error::other)
    }

    /// Removes an unused layer.
    pub(super) fn remove(&self, layer: u64) {
        let folder = self.ground.layer(layer);
        let sender = self.work.lock().unwrap_or_else(|e| e.into_inner());
        // The end of the keeper removes them all.
        let _ = sender.send(Box::new(move || drop(std::fs::remove_dir_all(folder))));
    }
}
