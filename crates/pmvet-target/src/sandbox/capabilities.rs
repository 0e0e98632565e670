//! What a sandboxed program may do as root.
//!
//! Root on the machine, or in a container, may change things that no view of the file system makes private: the clock, modules of the kernel,
//! disks. A sandboxed program keeps what belongs to files and users, and loses the rest. So does the main thread of pmvet: the
//! kernel lets a process look at another one's open files, which is how it reaches its stand-ins, only if the other has no capability
//! that it lacks.

use std::io;

/// CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID, KILL, SETGID, SETUID, SETPCAP, NET_BIND_SERVICE, IPC_LOCK, SYS_CHROOT, SYS_NICE,
/// MKNOD (device nodes do not work in a view), AUDIT_WRITE, SETFCAP.
const KEPT: u64 = 1 << 0
    | 1 << 1
    | 1 << 2
    | 1 << 3
    | 1 << 4
    | 1 << 5
    | 1 << 6
    | 1 << 7
    | 1 << 8
    | 1 << 10
    | 1 << 14
    | 1 << 18
    | 1 << 23
    | 1 << 27
    | 1 << 29
    | 1 << 31;

const SYS_ADMIN: u32 = 21;
const VERSION_3: u32 = 0x2008_0522;

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct Data {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

fn get() -> io::Result<[Data; 2]> {
    let header = Header { version: VERSION_3, pid: 0 };
    let mut data = [Data::default(); 2];
    // SAFETY: both structures are those of this version.
    match unsafe { libc::syscall(libc::SYS_capget, &raw const header, data.as_mut_ptr()) } {
        0 => Ok(data),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether the calling thread may mount file systems.
pub(super) fn may_mount() -> bool {
    get().is_ok_and(|data| data[0].effective & 1 << SYS_ADMIN != 0)
}

/// Of an ordinary user nothing is kept.
fn kept() -> u64 {
    // SAFETY: has no arguments and cannot fail.
    if unsafe { libc::geteuid() } == 0 { KEPT } else { 0 }
}

/// The calling thread keeps only what a sandboxed program may have, and no program that it starts gets more. If root's programs got
/// it back, the kernel would take them for ones that gain rights, and would not give them the same addresses in every run.
pub(super) fn drop_for_good() -> io::Result<()> {
    for capability in (0..64).filter(|capability| kept() & 1 << capability == 0) {
        // SAFETY: a system call without pointers. It fails for numbers that the kernel has no capability for.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability as libc::c_ulong, 0, 0, 0) };
    }
    drop_most()
}

/// The calling thread keeps only what a sandboxed program may have.
pub(super) fn drop_most() -> io::Result<()> {
    let kept = kept();
    let mut data = get()?;
    for (half, kept) in data.iter_mut().zip([kept as u32, (kept >> 32) as u32]) {
        half.permitted &= kept;
        half.effective &= kept;
        half.inheritable &= kept;
    }
    let header = Header { version: VERSION_3, pid: 0 };
    // SAFETY: as in `get`.
    match unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
