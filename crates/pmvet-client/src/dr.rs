//! The few services of DynamoRIO and the kernel that the client needs, as safe functions.

use core::ffi::c_void;
use std::ffi::CString;

use dynamorio_sys::*;
use pmvet_events::stage::Stage;

use crate::regions::{Region, regions};
use crate::thread::slot;

/// Where the segment slots are.
pub(crate) struct Tls {
    segment: reg_id_t,
    offset: u32,
}

impl Tls {
    pub(crate) fn new() -> Self {
        let (mut segment, mut offset) = (0, 0);
        // SAFETY: both out-pointers are valid.
        if unsafe { dr_raw_tls_calloc(&raw mut segment, &raw mut offset, slot::COUNT as u32, 0) } == 0 {
            fail("DynamoRIO has no thread-local slots left");
        }
        Self { segment, offset }
    }

    /// The slots of the calling thread.
    pub(crate) fn slots(&self) -> *mut u64 {
        // SAFETY: returns the segment base of the calling thread.
        unsafe { dr_get_dr_segment_base(self.segment).cast::<u8>().add(self.offset as usize).cast() }
    }

    pub(crate) fn operand(&self, dc: *mut c_void, index: usize) -> opnd_t {
        // SAFETY: builds a plain value.
        unsafe { dr_raw_tls_opnd(dc, self.segment, self.offset + index as u32 * 8) }
    }
}

/// Ends the target with a message: the client cannot do its work, and a run without events must not look like one with.
pub(crate) fn fail(message: &str) -> ! {
    if crate::CLIENT.get().is_none_or(|client| client.shared.header().fail(message)) {
        say(message);
    }
    // SAFETY: does not return.
    unsafe { dr_exit_process(FAILED) };
    unreachable!()
}

/// The exit status of a target that the client gave up on.
const FAILED: i32 = 70;

pub(crate) fn say(message: &str) {
    let line = format!("pmvet: {message}\n");
    // SAFETY: the buffer is valid for its length.
    unsafe { dr_write_file(dr_stderr(), line.as_ptr().cast(), line.len()) };
}

pub(crate) fn yield_thread() {
    // SAFETY: no state.
    unsafe { dr_thread_yield() }
}

pub(crate) fn sleep_briefly() {
    sleep(50_000);
}

/// Sleeps for less than a second.
pub(crate) fn sleep(nanoseconds: u64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds as i64 };
    // SAFETY: a plain system call with a valid argument.
    unsafe { libc::nanosleep(&raw const time, std::ptr::null_mut()) };
}

pub(crate) fn os_thread() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

pub(crate) fn process() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_getpid) as u32 }
}

pub(crate) fn parent_process() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::syscall(libc::SYS_getppid) as u32 }
}

/// Whether a process exists.
pub(crate) fn process_lives(pid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    unsafe { libc::syscall(libc::SYS_kill, pid, 0) == 0 }
}

/// Whether a thread exists, in whatever process.
pub(crate) fn thread_lives(tid: u32) -> bool {
    // SAFETY: signal 0 only asks.
    unsafe { libc::syscall(libc::SYS_tkill, tid, 0) == 0 }
}

/// How long a thread of this process has run, in nanoseconds.
pub(crate) fn thread_time(tid: u32) -> u64 {
    // The kernel's name for the clock of a thread: CPUCLOCK_PERTHREAD_MASK and CPUCLOCK_SCHED.
    clock((!(tid as i32) << 3) | 6)
}

/// The time, in nanoseconds since some moment.
pub(crate) fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

fn clock(clock: i32) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills the structure, or refuses the clock.
    match unsafe { libc::syscall(libc::SYS_clock_gettime, clock, &raw mut time) } {
        0 => time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64,
        _ => 0,
    }
}

/// Whether a thread of this process wants to run: on a processor, in a queue for one, or after a system call that pmvet looks at.
pub(crate) fn thread_is_runnable(tid: u32) -> bool {
    let Ok(path) = CString::new(format!("/proc/self/task/{tid}/stat")) else { return false };
    let mut stat = [0; 64];
    // With DynamoRIO's own functions: the thread may be gone when its file is read, and what the C library then returns is no
    // length that Rust would take for an error.
    // SAFETY: a path and a buffer of the length that is said.
    let read = unsafe {
        let file = dr_open_file(path.as_ptr(), DR_FILE_READ);
        let read = dr_read_file(file, stat.as_mut_ptr().cast(), stat.len());
        dr_close_file(file);
        usize::try_from(read).unwrap_or(0)
    };
    // The number, the name, which may hold anything but is short, and the state.
    let stat = String::from_utf8_lossy(stat.get(..read).unwrap_or_default());
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['R', 't']))
}

pub(crate) fn alloc_pages(bytes: usize) -> *mut u8 {
    // SAFETY: fresh memory.
    let memory = unsafe { dr_raw_mem_alloc(bytes, DR_MEMPROT_READ | DR_MEMPROT_WRITE, std::ptr::null_mut()) };
    if memory.is_null() {
        fail("out of memory");
    }
    memory.cast()
}

/// Memory whose address fits a 32-bit displacement.
pub(crate) fn alloc_low(bytes: usize) -> *mut u8 {
    let protection = DR_MEMPROT_READ | DR_MEMPROT_WRITE;
    let flags = dr_alloc_flags_t_DR_ALLOC_NON_HEAP | dr_alloc_flags_t_DR_ALLOC_LOW_2GB;
    // SAFETY: fresh memory.
    let memory = unsafe { dr_custom_alloc(std::ptr::null_mut(), flags, bytes, protection, std::ptr::null_mut()) };
    let memory = if memory.is_null() { map_low(bytes) } else { memory };
    if memory.is_null() || memory as usize + bytes > i32::MAX as usize {
        fail("no memory below 2 GiB is free in the target");
    }
    memory.cast()
}

/// Whether anything is mapped in an address range.
pub(crate) fn is_mapped(addr: u64, len: u64) -> bool {
    regions().iter().any(|region| region.start < addr.saturating_add(len) && region.end > addr)
}

/// Makes large pages of the target's memory where there is enough of it in one piece: a fork copies an entry for each page.
pub(crate) fn join_pages() {
    const LARGE: u64 = 1 << 21;
    const MADV_COLLAPSE: i32 = 25;
    let data = |region: &Region| {
        region.inode == (0, 0) && region.protection == libc::PROT_READ | libc::PROT_WRITE && !region.shared
    };
    for region in regions().into_iter().filter(data) {
        let (first, last) = (region.start.next_multiple_of(LARGE), region.end & !(LARGE - 1));
        if first < last {
            // SAFETY: changes nothing but the size of pages; an older kernel refuses.
            unsafe { libc::madvise(first as *mut c_void, (last - first) as usize, MADV_COLLAPSE) };
        }
    }
}

/// DynamoRIO and the kernel only look between 1 and 2 GiB. A large program may leave room elsewhere.
fn map_low(bytes: usize) -> *mut c_void {
    map_file_low(bytes, -1, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS)
}

/// Maps the stage where a 32-bit displacement reaches it, without keeping its file open.
pub(crate) fn map_stage(path: &str) -> &'static Stage {
    use std::os::fd::AsRawFd;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path);
    let file = file.unwrap_or_else(|e| fail(&format!("cannot reach pmvet's stage: {e}")));
    let at = map_file_low(Stage::BYTES, file.as_raw_fd(), libc::MAP_SHARED);
    if at.is_null() {
        fail("no memory below 2 GiB is free in the target");
    }
    // SAFETY: a mapping of this size that stays; all accesses are atomic.
    unsafe { &*at.cast::<Stage>() }
}

fn map_file_low(bytes: usize, fd: i32, how: i32) -> *mut c_void {
    let mut free_from: usize = 1 << 20;
    for region in regions() {
        // From the top of the gap: a heap may grow from its bottom.
        let top = (region.start as usize).min(i32::MAX as usize) & !0xfff;
        if top >= free_from + 2 * bytes {
            let hint = (top - bytes) as *mut c_void;
            let flags = how | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: replaces nothing.
            let at = unsafe { libc::mmap(hint, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
            if at != libc::MAP_FAILED {
                return at;
            }
        }
        free_from = region.end as usize;
        if free_from >= i32::MAX as usize {
            break;
        }
    }
    std::ptr::null_mut()
}

pub(crate) fn free_pages(memory: *mut u8, bytes: usize) {
    // SAFETY: from `alloc_pages` with the same size.
    unsafe { dr_raw_mem_free(memory.cast(), bytes) };
}

/// Drops all code that was made. Other threads leave theirs at the end of the block they are in.
pub(crate) fn flush_code() {
    // SAFETY: from an event in which this thread is outside the code cache and holds no lock.
    if unsafe { dr_unlink_flush_region(std::ptr::null_mut(), usize::MAX) } == 0 {
        fail("DynamoRIO cannot drop its code at this point");
    }
}

/// The addresses of these that hold code. DynamoRIO, asked for each, would read the whole memory map each time.
pub(crate) fn retain_code(tags: &mut Vec<app_pc>) {
    let mut code = regions();
    code.retain(|region| region.allows(libc::PROT_EXEC));
    tags.retain(|&tag| {
        let next = code.partition_point(|region| region.start <= tag as u64);
        next > 0 && (tag as u64) < code[next - 1].end
    });
}

/// Fills the code cache with the blocks at these addresses, and the tables by which returns and indirect jumps find them: a
/// child would have to ask DynamoRIO for each target once.
pub(crate) fn translate(dc: *mut c_void, tags: &mut [app_pc]) {
    use dr_indirect_branch_type_t_DR_INDIRECT_CALL as CALL;
    use dr_indirect_branch_type_t_DR_INDIRECT_JUMP as JUMP;
    use dr_indirect_branch_type_t_DR_INDIRECT_RETURN as RETURN;
    let (mut returns, mut others): (Vec<app_pc>, Vec<app_pc>) = tags.iter().partition(|&&tag| follows_call(tag as u64));
    // DynamoRIO expects to be called from the target's state and leaves in it.
    let fill = |how: &dyn Fn()| {
        // SAFETY: a change to the other state and back.
        unsafe {
            dr_switch_to_app_state(dc);
            how();
            dr_switch_to_dr_state_ex(dc, dr_state_flags_t_DR_STATE_GO_NATIVE);
        }
    };
    let count = tags.len();
    let tags = tags.as_mut_ptr();
    // SAFETY: the addresses hold code.
    fill(&|| unsafe { _ = dr_prepopulate_cache(tags, count) });
    for (kind, targets) in [(RETURN, &mut returns), (CALL, &mut others.clone()), (JUMP, &mut others)] {
        let (targets, count) = (targets.as_mut_ptr(), targets.len());
        // SAFETY: as above.
        fill(&|| unsafe { _ = dr_prepopulate_indirect_targets(kind, targets, count) });
    }
}

/// Whether the bytes before an address look like a call. If they are something else, nothing is lost.
fn follows_call(at: u64) -> bool {
    let mut before = [0; 7];
    if read_memory(at.wrapping_sub(7), &mut before) != 7 {
        return false;
    }
    // With a distance, or through a register or memory: 2, 3, 4, 6 or 7 bytes.
    before[2] == 0xe8 || [5, 4, 3, 1, 0].iter().any(|&i| before[i] == 0xff && before[i + 1] & 0x38 == 0x10)
}

/// What the kernel does with a signal.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Action {
    pub(crate) handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

impl Action {
    pub(crate) const DEFAULT: Self = Self { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };

    /// The one that the target has at `addr`.
    pub(crate) fn read(addr: u64) -> Option<Self> {
        let mut words = [0; 4];
        for (word, addr) in words.iter_mut().zip((addr..).step_by(8)) {
            *word = (addr >= 8).then(|| read_word(addr)).flatten()?;
        }
        let [handler, flags, restorer, mask] = words;
        Some(Self { handler: handler as usize, flags, restorer: restorer as usize, mask })
    }
}

/// The kernel's action for a signal, which becomes `new` if that is given.
pub(crate) fn act(signal: i32, new: Option<&Action>) -> Action {
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    let mut old = Action::DEFAULT;
    // SAFETY: a plain system call; both actions are laid out as the kernel's.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, &raw mut old, 8) };
    old
}

/// Ends the process by a signal, at once.
pub(crate) fn die_of(signal: i32) {
    act(signal, Some(&Action::DEFAULT));
    let nothing = 0u64;
    // SAFETY: plain system calls with valid arguments.
    unsafe {
        libc::syscall(libc::SYS_kill, process(), signal);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const nothing, 0, 8);
        libc::syscall(libc::SYS_exit_group, 128 + signal);
    }
}

/// Reads the target's memory, as far as it is there.
pub(crate) fn read_memory(addr: u64, into: &mut [u8]) -> usize {
    let mut read = 0;
    // SAFETY: `dr_safe_read` survives bad addresses; the destination is valid.
    unsafe { dr_safe_read(addr as *const c_void, into.len(), into.as_mut_ptr().cast(), &raw mut read) };
    read
}

pub(crate) fn read_word(addr: u64) -> Option<u64> {
    let mut word = [0; 8];
    (read_memory(addr, &mut word) == 8).then(|| u64::from_le_bytes(word))
}

/// A C string of the target, cut at 4096 bytes.
pub(crate) fn read_c_string(addr: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let mut at = addr;
    while text.len() < 4096 {
        let mut chunk = [0; 64];
        let room = (64 - at % 64) as usize;
        let got = read_memory(at, &mut chunk[..room]);
        if got == 0 {
            return None;
        }
        if let Some(end) = chunk[..got].iter().position(|&b| b == 0) {
            text.extend_from_slice(&chunk[..end]);
            return Some(text);
        }
        text.extend_from_slice(&chunk[..got]);
        at += got as u64;
    }
    Some(text)
}

/// The target's registers, from within a clean call or an event that has them.
pub(crate) fn registers() -> Box<dr_mcontext_t> {
    // SAFETY: all-zero is a valid value; size and flags are set as DynamoRIO wants them.
    unsafe {
        let mut context: Box<dr_mcontext_t> = Box::new(std::mem::zeroed());
        context.size = size_of::<dr_mcontext_t>();
        context.flags = dr_mcontext_flags_t::DR_MC_ALL;
        dr_get_mcontext(dr_get_current_drcontext(), &raw mut *context);
        context
    }
}

pub(crate) fn set_registers(registers: &mut dr_mcontext_t) {
    // SAFETY: a full machine context, from within a clean call.
    unsafe { dr_set_mcontext(dr_get_current_drcontext(), registers) };
}

/// Writes the target's memory, where that is possible.
pub(crate) fn write_memory(addr: u64, bytes: &[u8]) {
    // SAFETY: `dr_safe_write` survives bad addresses.
    unsafe { dr_safe_write(addr as *mut c_void, bytes.len(), bytes.as_ptr().cast(), std::ptr::null_mut()) };
}

/// The path of the target's executable.
pub(crate) fn executable() -> CString {
    // SAFETY: module data is valid until it is freed.
    unsafe {
        let module = dr_get_main_module();
        if module.is_null() {
            return CString::default();
        }
        let path = crate::sites::describe(&*module).2;
        dr_free_module_data(module);
        CString::new(path.into_os_string().into_encoded_bytes()).unwrap_or_default()
    }
}

/// Gives an argument register of a system call the value that the target put there.
pub(crate) fn restore_argument(index: i32, value: u64) {
    let mut registers = registers();
    match index {
        0 => registers.__bindgen_anon_1.rdi = value,
        1 => registers.__bindgen_anon_2.rsi = value,
        3 => registers.r10 = value,
        _ => return,
    }
    set_registers(&mut registers);
}
