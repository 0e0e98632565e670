//! Starts the first process of a sandbox.
//!
//! `std` forks to run our code before a program starts, and a fork copies all of pmvet's page tables, only for the program to throw them
//! away. The kernel compiles a filter each time one is installed, and stops all processors for that. Both take longer than most
//! recoveries. So threads that already have the filter start the processes ([`Spawner`]), and a new process borrows pmvet's memory, as in
//! `posix_spawn`, which cannot run our code. Before the program starts, the thread that asked for it becomes its tracer.
//!
//! Three parties wait for each other here, and the order matters. The spawner cannot go on before the new process has started its program
//! or has ended: the process uses its memory. The process, once traced, stops at every signal until its tracer lets it go on: until it
//! has its own group, it is in pmvet's, and gets a Ctrl-C, too. So its tracer waits only for the process, answers each of its stops, and
//! waits for the spawner only when the program has started, or the process has ended, and the spawner is free.

use std::ffi::{CString, OsStr, OsString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, mpsc};

use rustix::thread::futex;

use super::capabilities;
use super::filter::Filter;
use super::start_error::{StartError, StartStep};
use super::view::View;

/// A program to start, as its own group of processes, traced by the calling thread, and stopped where it starts.
pub(super) struct Spawn<'a> {
    /// Found in `PATH` if its name has no slash.
    pub(super) executable: &'a OsStr,
    pub(super) arguments: &'a [OsString],
    /// Variables to set besides the inherited ones.
    pub(super) variables: &'a [(OsString, OsString)],
    pub(super) input: OwnedFd,
    /// Standard output, and standard error unless `errors` is set; nothing: pmvet's.
    pub(super) output: Option<OwnedFd>,
    pub(super) errors: Option<OwnedFd>,
    /// How much memory of its own it may have.
    pub(super) most_memory: Option<u64>,
    /// The view it lives in; without one it has the real files.
    pub(super) view: Option<&'a View>,
}

/// What the new process works with. It allocates and frees nothing.
struct Prepared {
    executable: CString,
    arguments: Vec<*const c_char>,
    variables: Vec<*const c_char>,
    input: c_int,
    /// What becomes standard output and error.
    outputs: [Option<c_int>; 2],
    most_memory: Option<libc::rlimit>,
    /// The new process, once it waits; or [`FAILED`].
    process: Word,
    /// [`GO`] or [`GIVE_UP`].
    order: Word,
    /// Why the program could not be started, if so.
    error: AtomicU32,
}

const FAILED: u32 = u32::MAX;
const GO: u32 = 1;
const GIVE_UP: u32 = 2;

impl Spawn<'_> {
    pub(super) fn start(self) -> io::Result<libc::pid_t> {
        if self.arguments.is_empty() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let arguments: Vec<CString> = self.arguments.iter().map(|text| text_of(text)).collect::<io::Result<_>>()?;
        let set = |name: &OsStr| self.variables.iter().any(|(own, _)| own == name);
        let inherited = std::env::vars_os().filter(|(name, _)| !set(name));
        let variables: Vec<CString> = inherited
            .chain(self.variables.iter().cloned())
            .map(|(name, value)| text_of(&[name, value].join(OsStr::new("="))))
            .collect::<io::Result<_>>()?;
        let pointers = |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect();
        let prepared = Prepared {
            executable: text_of(self.executable)?,
            arguments: pointers(&arguments),
            variables: pointers(&variables),
            input: self.input.as_raw_fd(),
            outputs: [self.output.as_ref(), self.errors.as_ref().or(self.output.as_ref())]
                .map(|to| to.map(AsRawFd::as_raw_fd)),
            most_memory: self.most_memory.map(|most| libc::rlimit { rlim_cur: most, rlim_max: most }),
            process: Word::default(),
            order: Word::default(),
            error: AtomicU32::new(0),
        };
        if let Some(view) = self.view {
            return view.spawner().start(&prepared);
        }
        let spawner = Spawner::idle_or_fresh()?;
        let result = spawner.start(&prepared);
        spawner.give_back();
        result
    }
}

fn text_of(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.to_owned().into_vec())?)
}

/// A thread with the filter, which waits for its next order. Each view has one; without views there are as many as programs were
/// ever started at the same time.
#[derive(Debug)]
pub(super) struct Spawner {
    orders: Mutex<mpsc::Sender<SpawnOrder>>,
}

#[derive(Debug)]
pub(super) struct SpawnOrder {
    prepared: *const Prepared,
    /// The program has started, or never will.
    over: mpsc::Sender<()>,
}

// SAFETY: the sender waits until it is over.
unsafe impl Send for SpawnOrder {}

static IDLE: Mutex<Vec<Spawner>> = Mutex::new(Vec::new());

/// Stack size of a new process: the C library builds paths and arguments on the stack.
const STACK: usize = 1 << 18;

impl Spawner {
    fn idle_or_fresh() -> io::Result<Self> {
        let idle = IDLE.lock().unwrap_or_else(|e| e.into_inner()).pop();
        match idle {
            Some(spawner) => Ok(spawner),
            None => Self::fresh(),
        }
    }

    fn give_back(self) {
        IDLE.lock().unwrap_or_else(|e| e.into_inner()).push(self);
    }

    fn fresh() -> io::Result<Self> {
        let (orders, received) = mpsc::channel::<SpawnOrder>();
        let (ready, installed) = mpsc::channel();
        let started = std::thread::Builder::new().name("pmvet-spawner".into()).spawn(move || {
            let confined = Self::confine(false);
            let works = confined.is_ok();
            if ready.send(confined).is_ok() && works {
                Self::serve(received);
            }
        });
        started.map_err(StartError::at(StartStep::Thread))?;
        installed.recv().map_err(io::Error::other)??;
        Ok(Self::new(orders))
    }

    /// A spawner whose thread takes its orders from the other end.
    pub(super) fn new(orders: mpsc::Sender<SpawnOrder>) -> Self {
        Self { orders: Mutex::new(orders) }
    }

    /// Puts the calling thread, and all that it starts, under the filter, and drops rights that no program in a sandbox has.
    pub(super) fn confine(in_view: bool) -> io::Result<()> {
        block_signals();
        if in_view {
            capabilities::drop_for_good()?;
        }
        Filter::new(in_view).install()
    }

    /// Starts the ordered programs, until no sender of orders is left.
    pub(super) fn serve(orders: mpsc::Receiver<SpawnOrder>) {
        let mut stack: Vec<u128> = Vec::with_capacity(STACK / size_of::<u128>());
        for order in orders {
            // SAFETY: the sender of the order waits until it is over.
            make(unsafe { &*order.prepared }, &mut stack);
            // A sender that does not wait has died.
            let _ = order.over.send(());
        }
    }

    /// Returns the process, which the calling thread traces then.
    fn start(&self, prepared: &Prepared) -> io::Result<libc::pid_t> {
        let (over, is_over) = mpsc::channel();
        let gone = || io::Error::other("the thread that starts processes has ended");
        let orders = self.orders.lock().unwrap_or_else(|e| e.into_inner());
        orders.send(SpawnOrder { prepared, over }).map_err(|_| gone())?;
        drop(orders);
        let process = match prepared.process.wait() {
            FAILED => None,
            process => Some(process as libc::pid_t),
        };
        let traced = process.map_or(Ok(()), trace);
        prepared.order.set(if traced.is_ok() { GO } else { GIVE_UP });
        // A process that is not traced does not stop, and ends by itself.
        let started = process.is_some_and(|process| follow(process).is_some());
        is_over.recv().map_err(|_| gone())?;
        match process.filter(|_| started) {
            Some(process) => Ok(process),
            None => Err(match prepared.error.load(Ordering::Acquire) {
                0 => traced.err().map_or_else(
                    || io::Error::other("the process was killed before its program started"),
                    StartError::at(StartStep::Trace),
                ),
                error if process.is_none() => {
                    StartError::at(StartStep::Process)(io::Error::from_raw_os_error(error as i32))
                }
                error => {
                    let executable = OsStr::from_bytes(prepared.executable.as_bytes());
                    StartError::program(executable, io::Error::from_raw_os_error(error as i32))
                }
            }),
        }
    }
}

/// Becomes the tracer of a process, which goes on. If pmvet dies from here on, so does the process.
///
/// Seizes rather than attaches: attaching would stop it by a signal, which a SIGCONT to pmvet's group cancels.
fn trace(process: libc::pid_t) -> io::Result<()> {
    let options = libc::c_long::from(libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACEEXEC);
    // SAFETY: a child of pmvet.
    match unsafe { libc::ptrace(libc::PTRACE_SEIZE, process, 0, options) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Follows a process until it stops because its program has started. Nothing if it ended before.
fn follow(process: libc::pid_t) -> Option<()> {
    loop {
        let mut status = 0;
        // SAFETY: the pointer is valid; the process is a child of pmvet that nobody else waits for.
        if unsafe { libc::waitpid(process, &raw mut status, libc::__WALL) } < 0 {
            match io::Error::last_os_error().kind() {
                io::ErrorKind::Interrupted => continue,
                _ => return None,
            }
        }
        if !libc::WIFSTOPPED(status) {
            return None;
        }
        if status >> 16 == libc::PTRACE_EVENT_EXEC {
            return Some(());
        }
        // A signal that came before the program started was meant for pmvet, which also gets it. SAFETY: stopped, or
        // killed meanwhile, which the next wait reports.
        unsafe { libc::ptrace(libc::PTRACE_CONT, process, 0, 0) };
    }
}

/// Makes the process. Returns when its program has started, or never will.
fn make(prepared: &Prepared, stack: &mut Vec<u128>) {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    // SAFETY: the stack is large enough, grows down, and nobody else uses it: this thread waits. The new process makes system calls
    // and does not return.
    let process = unsafe {
        let top = stack.as_mut_ptr().add(stack.capacity()).cast::<c_void>();
        libc::clone(child, top, flags, ptr::from_ref(prepared).cast_mut().cast())
    };
    if process < 0 {
        prepared.fail(&io::Error::last_os_error());
        prepared.process.set(FAILED);
    } else if prepared.process.get() == 0 {
        // Killed before it set its number itself.
        prepared.process.set(process as u32);
    }
}

impl Prepared {
    /// Keeps what the kernel said.
    fn fail(&self, error: &io::Error) {
        self.error.store(error.raw_os_error().unwrap_or(0) as u32, Ordering::Release);
    }
}

/// The new process, in pmvet's memory until the program starts.
extern "C" fn child(prepared: *mut c_void) -> c_int {
    // SAFETY: valid until its spawner goes on, which waits.
    let prepared = unsafe { &*prepared.cast::<Prepared>() };
    prepared.fail(&begin(prepared));
    // SAFETY: does not return, and runs nothing of pmvet's.
    unsafe { libc::syscall(libc::SYS_exit, 127) };
    127
}

/// Makes system calls only. Returns if the program cannot be started.
fn begin(prepared: &Prepared) -> io::Error {
    // SAFETY: system calls with valid arguments, on a process of their own.
    unsafe {
        // Until it is traced.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        reset_handlers();
        let [output, errors] = prepared.outputs;
        for (from, to) in [(Some(prepared.input), 0), (output, 1), (errors, 2)] {
            let Some(from) = from else { continue };
            if libc::dup2(from, to) < 0 {
                return io::Error::last_os_error();
            }
        }
        if let Some(limit) = &prepared.most_memory {
            libc::setrlimit(libc::RLIMIT_DATA, limit);
        }
        // Prevents core dumps into a real folder. With a limit of 0 they would still be piped to a program of the machine, if it is set
        // up so; a limit of 1 prevents that, too.
        let one_byte = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const one_byte);
        // Its own session, so that a signal it sends to a group does not reach pmvet.
        libc::setsid();
        // The same addresses in every run.
        libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
        prepared.process.set(libc::getpid() as u32);
        if prepared.order.wait() != GO {
            return io::ErrorKind::Interrupted.into();
        }
        libc::prctl(libc::PR_SET_PDEATHSIG, 0);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        libc::execvpe(prepared.executable.as_ptr(), prepared.arguments.as_ptr(), prepared.variables.as_ptr());
    }
    io::Error::last_os_error()
}

/// A handler of pmvet that ran in a new process would write to pmvet's memory.
fn block_signals() {
    // SAFETY: all-zero is a valid set of signals, and the pointers are valid.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, ptr::null_mut());
    }
}

/// Resets signals that pmvet handles to their defaults. What pmvet was told to ignore stays ignored, except SIGPIPE, which Rust
/// ignores.
unsafe fn reset_handlers() {
    for signal in 1..=libc::SIGRTMAX() {
        // SAFETY: all-zero is a valid action, and the pointers are valid.
        unsafe {
            let mut now: libc::sigaction = std::mem::zeroed();
            let known = libc::sigaction(signal, ptr::null(), &raw mut now) == 0;
            let ignored = now.sa_sigaction == libc::SIG_IGN && signal != libc::SIGPIPE;
            if known && now.sa_sigaction != libc::SIG_DFL && !ignored {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

/// A word that one process sets once and another one, in the same memory, waits for. rustix makes the system calls itself, without the
/// C library, so the new process may use it.
#[derive(Debug, Default)]
struct Word(AtomicU32);

impl Word {
    fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, value: u32) {
        self.0.store(value, Ordering::Release);
        let _ = futex::wake(&self.0, futex::Flags::empty(), i32::MAX as u32);
    }

    fn wait(&self) -> u32 {
        while self.get() == 0 {
            // Whatever woke it, the loop checks the word.
            let _ = futex::wait(&self.0, futex::Flags::empty(), 0, None);
        }
        self.get()
    }
}
