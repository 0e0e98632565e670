//! The DynamoRIO client: runs inside the target, reports what it does, decides nothing.
//!
//! | module | what lives there |
//! |---|---|
//! | [`instrument`], [`liveness`], [`emit`] | a basic block of the target becomes one that reports |
//! | [`stubs`], [`slow`] | the machine code of a PM access; the rest of it in Rust |
//! | [`complex`] | instructions whose addresses show only at run time |
//! | [`context`], [`sites`] | where an event happened |
//! | [`pm`] | which files and addresses are PM |
//! | [`syscalls`], [`kernel_writes`], [`processes`] | what the kernel does for the target |
//! | [`alloc`] | memory that allocators hand out |
//! | [`taken`] | spin locks in volatile memory: when they are given back |
//! | [`pace`] | threads in step |
//! | [`follow`] | the instructions of a thread that has read what another has stored and not fenced |
//! | [`signals`] | what DynamoRIO gets wrong about signals |
//! | [`schedule`] | where threads are stopped until pmvet lets them go on |
//! | [`sync`] | locks, condition variables, barriers, semaphores, joins |
//! | [`determinism`], [`startup`], [`markers`] | fixed time and randomness; the initial stack; requests of the target |
//! | [`forks`], [`counts`] | fork servers; counter maps in place of events |
//! | [`heap`] | memory that is safe to use from many threads |
//! | [`thread`] | a thread's state and its ring |
//!
//! Rust's `thread_local!` does not work under DynamoRIO's loader; thread state hangs on segment slots instead. A
//! panic cannot unwind here: what cannot be done is reported by [`dr::fail`].

mod alloc;
mod apart;
mod bytes;
mod complex;
mod context;
mod counted;
mod counts;
mod determinism;
mod dr;
mod emit;
mod ffi;
mod follow;
mod forks;
mod heap;
mod instrument;
mod kernel_writes;
mod liveness;
mod markers;
mod pace;
mod pm;
mod processes;
mod regions;
mod schedule;
mod signals;
mod sites;
mod slow;
mod startup;
mod stubs;
mod sync;
mod syscalls;
mod taken;
mod thread;

use core::ffi::{c_char, c_int, c_void};
use std::collections::HashMap;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};

use dynamorio_sys::*;
use pmvet_events::event::What;
use pmvet_events::ids::{ModuleId, ThreadId};
use pmvet_events::paths;
use pmvet_events::plan::Plan;
use pmvet_events::shm::Shared;
use pmvet_events::stage::Stage;

use crate::thread::Thread;

/// Everything that belongs to the process.
struct Client {
    shared: Shared,
    plan: Plan,
    tls: dr::Tls,
    pm: pm::Pm,
    sites: sites::Sites,
    hooks: sync::Hooks,
    schedule: schedule::Schedule,
    at_risk: follow::AtRisk,
    pace: pace::Pace,
    tree: context::Tree,
    fixed: determinism::Fixed,
    signals: signals::Signals,
    pmvet: u32,
    /// The process that this memory belongs to. A child of vfork runs in it under another number.
    process: AtomicU32,
    threads: Mutex<Threads>,
    early_modules: Mutex<Vec<(ModuleId, u64, u64, PathBuf)>>,
    /// The target's own executable.
    executable: CString,
    /// PM was mapped: from now on accesses are instrumented. Before that there is nothing they could hit.
    watching: AtomicBool,
    /// If it is a fork server, or a child of one.
    forks: Option<forks::Forks>,
    /// Where branches are counted beside events, if they are.
    branches: Option<&'static Stage>,
}

#[derive(Default)]
struct Threads {
    alive: Vec<usize>,
    /// Threads that were created and have not started, by their stack.
    expected: HashMap<u64, ThreadId>,
    /// By what `pthread_join` takes.
    handles: HashMap<u64, ThreadId>,
}

static CLIENT: OnceLock<Client> = OnceLock::new();

fn client() -> &'static Client {
    match CLIENT.get() {
        Some(client) => client,
        None => dr::fail("the client was used before it was set up"),
    }
}

impl Client {
    /// Whether operations are counted, not reported.
    fn counts(&self) -> bool {
        self.plan.forks.as_ref().is_some_and(|forks| forks.count)
    }

    /// Where branches are counted, if they are.
    fn branches(&self) -> Option<&'static Stage> {
        let forks = self.forks.as_ref().filter(|_| self.counts());
        forks.map(forks::Forks::stage).or(self.branches)
    }

    fn watches_memory(&self) -> bool {
        self.watching.load(Ordering::Relaxed)
    }

    /// PM is there. Code that was made without regard to it is made again.
    fn watch_memory(&self, near_code: bool) {
        if !self.watching.swap(true, Ordering::AcqRel) || near_code {
            dr::flush_code();
        }
    }

    fn process(&self) -> u32 {
        self.process.load(Ordering::Relaxed)
    }

    fn many_threads(&self) -> bool {
        self.shared.header().many_threads.0.load(Ordering::Relaxed) != 0
    }

    fn threads(&self) -> MutexGuard<'_, Threads> {
        self.threads.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn expect_thread(&self, stack: u64, handle: Option<u64>, child: ThreadId) {
        let mut threads = self.threads();
        threads.expected.insert(stack, child);
        if let Some(handle) = handle {
            threads.handles.insert(handle, child);
        }
    }

    fn thread_by_handle(&self, handle: u64) -> Option<ThreadId> {
        self.threads().handles.get(&handle).copied()
    }

    /// Mappings changed: no thread may rely on the one it remembers.
    fn forget_cached_mappings(&self) {
        for &thread in &self.threads().alive {
            // SAFETY: threads in the list are alive; a word is written as a whole, and a thread that reads the old
            // value did its access before the change.
            unsafe { (&raw mut (*(thread as *mut Thread)).pm_span).write_volatile(0) };
        }
    }

    fn modules_before_start(&self, id: ModuleId, start: u64, end: u64, path: &Path) {
        let mut modules = self.early_modules.lock().unwrap_or_else(|e| e.into_inner());
        modules.push((id, start, end, path.to_owned()));
    }

    /// Without pmvet nobody reads the events, and a full ring would block for ever.
    fn check_pmvet_lives(&self) {
        if !dr::process_lives(self.pmvet) {
            dr::fail("pmvet is gone; the target ends with it");
        }
    }
}

#[unsafe(no_mangle)]
pub static _USES_DR_VERSION_: c_int = 1190;

#[unsafe(no_mangle)]
extern "C" fn dr_client_main(_id: client_id_t, argc: c_int, argv: *const *const c_char) {
    // SAFETY: DynamoRIO passes as many C strings as it says.
    let arguments: Vec<String> = (1..argc as usize)
        .map(|i| unsafe { std::ffi::CStr::from_ptr(*argv.add(i)) }.to_string_lossy().into_owned())
        .collect();
    std::panic::set_hook(Box::new(|panic| dr::fail(&panic.to_string())));
    let [shared_memory, pmvet] = arguments.as_slice() else { dr::fail("the client needs two arguments") };
    let shared = Shared::attach(shared_memory.as_ref());
    let shared = shared.unwrap_or_else(|e| dr::fail(&format!("cannot reach pmvet's shared memory: {e}")));
    let plan = shared.plan().and_then(|text| Ok(serde_json::from_slice::<Plan>(&text)?));
    let plan = plan.unwrap_or_else(|e| {
        let why = format!("pmvet's plan cannot be read: {e}");
        shared.header().fail(&why);
        dr::fail(&why)
    });
    let client = Client {
        tls: dr::Tls::new(),
        pm: pm::Pm::new(&plan),
        hooks: sync::Hooks::new(&plan),
        schedule: schedule::Schedule::new(&plan),
        at_risk: follow::AtRisk::default(),
        pace: Default::default(),
        sites: Default::default(),
        tree: Default::default(),
        fixed: Default::default(),
        signals: signals::Signals::new(),
        pmvet: pmvet.parse().unwrap_or(0),
        process: AtomicU32::new(dr::process()),
        threads: Mutex::default(),
        early_modules: Mutex::default(),
        executable: dr::executable(),
        // A server's children share its code: it must not be made again when the first of them maps PM.
        watching: AtomicBool::new(plan.forks.is_some()),
        forks: plan.forks.as_ref().map(forks::Forks::new),
        branches: plan.branches.as_deref().map(dr::map_stage),
        shared,
        plan,
    };
    if CLIENT.set(client).is_err() {
        dr::fail("the client was loaded twice");
    }
    if let Some(stack) = startup::initial_stack() {
        startup::hide_environment(stack);
        if crate::client().plan.deterministic {
            determinism::fix_start(stack);
        }
    }
    // SAFETY: callbacks of the types that DynamoRIO asks for.
    unsafe {
        dr_set_client_name(c"pmvet".as_ptr(), c"pmvet".as_ptr());
        dr_register_bb_event(Some(instrument::block_event));
        dr_register_thread_init_event(Some(thread_starts));
        dr_register_thread_exit_event(Some(thread_ends));
        dr_register_fork_init_event(Some(forked));
        dr_register_module_load_event(Some(module_loaded));
        dr_register_module_unload_event(Some(module_unloaded));
        dr_register_filter_syscall_event(Some(syscalls::is_interesting));
        dr_register_pre_syscall_event(Some(syscalls::before));
        dr_register_post_syscall_event(Some(syscalls::after));
        dr_register_signal_event(Some(signalled));
        dr_register_kernel_xfer_event(Some(kernel_transfers));
    }
}

/// Tells pmvet about this process. A forked one starts with what `parent` has mapped.
fn start_process(thread: &mut Thread, parent: u32) {
    let path = paths::of_bytes(client().executable.to_bytes());
    thread.emit(What::ProcessStart { process: client().process(), parent, path });
}

unsafe extern "C" fn thread_starts(dc: *mut c_void) {
    let client = client();
    // SAFETY: an event of this thread.
    let sp = unsafe { dr::registers().__bindgen_anon_4.rsp };
    let expected = client.threads().expected.get(&sp).copied();
    let first = client.threads().alive.is_empty();
    let id = expected.unwrap_or_else(|| ThreadId(client.shared.header().next_thread.0.fetch_add(1, Ordering::AcqRel)));
    let pointer = Thread::start(id);
    let mut threads = client.threads();
    threads.expected.remove(&sp);
    threads.alive.push(pointer as usize);
    drop(threads);
    // SAFETY: just made; the field is ours.
    let thread = unsafe {
        dr_set_tls_field(dc, pointer.cast());
        &mut *pointer
    };
    if first {
        start_process(thread, 0);
        let modules = std::mem::take(&mut *client.early_modules.lock().unwrap_or_else(|e| e.into_inner()));
        for (module, start, end, path) in modules {
            thread.emit(What::Module { module, base: start, size: end - start, path: &path });
        }
    }
    thread.emit(What::ThreadStart { process: client.process(), os_thread: thread.os_thread });
}

unsafe extern "C" fn thread_ends(dc: *mut c_void) {
    // SAFETY: set by `thread_starts`.
    let pointer = unsafe { dr_get_tls_field(dc) }.cast::<Thread>();
    if pointer.is_null() {
        return;
    }
    // SAFETY: alive until `end`.
    unsafe {
        dr_set_tls_field(dc, std::ptr::null_mut());
        if (*pointer).is_copy() {
            return;
        }
    }
    let mut threads = client().threads();
    threads.alive.retain(|&t| t != pointer as usize);
    // What it blocked, nobody may block now.
    client().signals.settle(&threads);
    drop(threads);
    // SAFETY: as above.
    unsafe {
        if !(*pointer).borrowed {
            if (*pointer).mode != thread::mode::NOTHING {
                (*pointer).finish_access();
            }
            (*pointer).emit(What::ThreadExit);
            if client().threads().alive.is_empty() {
                (*pointer).emit(What::ProcessExit { process: client().process() });
            }
        }
    }
    Thread::end(pointer);
}

/// In the child of a fork: only this thread exists, and its ring is its parent's. No lock of the client is held by a thread
/// that is not there any more, since DynamoRIO brings all threads out of the client before it lets one fork.
unsafe extern "C" fn forked(dc: *mut c_void) {
    let client = client();
    // SAFETY: set by `thread_starts` in the parent.
    let pointer = unsafe { dr_get_tls_field(dc) }.cast::<Thread>();
    // SAFETY: the copy of the parent's thread, which nobody else has.
    let frame = match unsafe { pointer.as_mut() } {
        Some(thread) => thread.frame() as u64,
        None => 0,
    };
    client.process.store(dr::process(), Ordering::Relaxed);
    let id = ThreadId(client.shared.header().next_thread.0.fetch_add(1, Ordering::AcqRel));
    let fresh = Thread::start(id);
    let mut threads = client.threads();
    threads.alive = vec![fresh as usize];
    drop(threads);
    // SAFETY: both are valid; the old one is not used after this.
    unsafe {
        if !pointer.is_null() {
            // The child goes on in the middle of its parent's calls.
            std::mem::swap(&mut (*fresh).frames, &mut (*pointer).frames);
            (*fresh).blocked = (*pointer).blocked;
            (*fresh).set_slot(thread::slot::FRAME, frame);
            Thread::abandon(pointer);
        }
        dr_set_tls_field(dc, fresh.cast());
        start_process(&mut *fresh, dr::parent_process());
        (*fresh).emit(What::ThreadStart { process: client.process(), os_thread: (*fresh).os_thread });
    }
}

unsafe extern "C" fn module_loaded(_dc: *mut c_void, module: *const module_data_t, _loaded: bool_) {
    // SAFETY: valid during the event.
    let (start, end, path) = sites::describe(unsafe { &*module });
    client().schedule.loaded(start, &path);
    client().sites.loaded(start, end, &path);
    // A run that counts has no use for hooks, and the tables of a large library are long.
    if !client().counts() {
        client().hooks.search(start, end, &path);
    }
}

unsafe extern "C" fn module_unloaded(_dc: *mut c_void, module: *const module_data_t) {
    // SAFETY: valid during the event.
    let (start, end, _) = sites::describe(unsafe { &*module });
    client().sites.unloaded(start, end);
    client().hooks.forget(start, end);
}

/// A signal reached the target. If it comes from an access under way, that access did not happen.
unsafe extern "C" fn signalled(_dc: *mut c_void, info: *mut dr_siginfo_t) -> dr_signal_action_t {
    if let Some(forks) = &client().forks {
        // SAFETY: valid during the event.
        forks.signalled(unsafe { (*info).sig });
    }
    if let Some(thread) = Thread::try_current()
        && thread.mode != thread::mode::NOTHING
    {
        // SAFETY: valid during the event.
        let faulted = unsafe { (*info).raw_mcontext_valid != 0 && !(*info).raw_mcontext.is_null() };
        if faulted {
            if !thread.ranges.is_empty() {
                // SAFETY: as above; a plain integer out of a union of integers.
                let rdi = unsafe { (*(*info).mcontext).__bindgen_anon_1.rdi };
                thread.report_partial(rdi);
            }
            thread.finish_access();
        }
    }
    dr_signal_action_t_DR_SIGNAL_DELIVER
}

#[allow(non_upper_case_globals, reason = "DynamoRIO's names")]
unsafe extern "C" fn kernel_transfers(_dc: *mut c_void, info: *const dr_kernel_xfer_info_t) {
    let Some(thread) = Thread::try_current() else { return };
    // SAFETY: valid during the event.
    let info = unsafe { &*info };
    match info.type_ {
        dr_kernel_xfer_type_t_DR_XFER_SIGNAL_DELIVERY => thread.enter_signal(info.target_xsp),
        dr_kernel_xfer_type_t_DR_XFER_SIGNAL_RETURN => thread.leave_signal(),
        _ => {}
    }
}
