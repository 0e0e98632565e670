//! The seccomp filter of a sandboxed process: selects the system calls that the supervisor sees.
//!
//! Everything else runs at full speed. The list is short on purpose: calls that name a file or change its metadata,
//! listings, signals, the end of the process, mappings that only a DAX file system grants, and network access. Without
//! a [view](super::view), also locks.

use std::io;

use super::start_error::{StartError, StartStep};

/// Calls that take a path, each with where its paths are.
///
/// `dir` is the argument with the folder a relative path starts from, `None` for the current one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PathArgument {
    pub(super) dir: Option<u8>,
    pub(super) path: u8,
}

const fn at(dir: u8, path: u8) -> PathArgument {
    PathArgument { dir: Some(dir), path }
}

const fn cwd(path: u8) -> PathArgument {
    PathArgument { dir: None, path }
}

/// What a call does with the file it names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// Opens it; the flags are in this argument.
    Open {
        path: PathArgument,
        flags: u8,
    },
    /// Opens it; flags and more are in a structure that this argument points to.
    Open2 {
        path: PathArgument,
        how: u8,
    },
    Create {
        path: PathArgument,
    },
    /// Asks about it. `nofollow`: the argument with `AT_SYMLINK_NOFOLLOW`, if any.
    Look {
        path: PathArgument,
        nofollow: Option<u8>,
    },
    /// The same, of a symbolic link itself; with another number it follows the link.
    LookAtLink {
        path: PathArgument,
        followed: i64,
    },
    /// Changes it.
    Change {
        path: PathArgument,
    },
    Unlink {
        path: PathArgument,
        flags: Option<u8>,
    },
    Rename {
        from: PathArgument,
        to: PathArgument,
        flags: Option<u8>,
    },
    Link {
        from: PathArgument,
        to: PathArgument,
    },
    /// Makes a folder, a link, a pipe or a device, or removes a folder.
    Make {
        path: PathArgument,
    },
    /// Binds a socket, or connects one; the address is in these arguments.
    Address {
        binds: bool,
        address: u8,
        length: u8,
    },
    /// Sends to an address in a structure, or in several.
    Message,
    /// Lists an open folder.
    List,
    /// Changes the metadata of an open file.
    ChangeOpen {
        fd: u8,
    },
    Map,
    /// Locks an open file against other processes.
    Lock,
    /// Creates, or finds, shared memory and queues by number.
    Shared,
    /// Acts on a process, a group or a thread, by its number, or through a descriptor. Signal 0 only asks whether it exists.
    Signal {
        target: u8,
        signal: Option<u8>,
        of: Target,
    },
    /// Starts a process, or goes on, in namespaces that the first argument names, or a structure that it points to.
    Namespaces {
        pointed: bool,
    },
    /// Changes the machine or the sandbox itself.
    Never,
    Exit,
}

/// What a signal is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Process,
    Thread,
    Descriptor,
}

impl Call {
    /// Whether a process in a view may do it unseen: the kernel keeps it private.
    fn is_private_in_view(self) -> bool {
        matches!(self, Call::Lock | Call::Shared)
    }
}

/// The kind and the name of a system call, if the supervisor has to see it.
pub(super) fn call(number: i64) -> Option<(Call, &'static str)> {
    TABLE.iter().find(|(n, ..)| *n == number).map(|(_, name, call)| (*call, *name))
}

/// `fchmodat2`, which the C library's bindings do not know yet.
pub(super) const SYS_FCHMODAT2: i64 = 452;
pub(super) const SYS_SETXATTRAT: i64 = 463;
pub(super) const SYS_REMOVEXATTRAT: i64 = 466;
/// Newer calls are unknown, so they do not exist in the sandbox. Programs fall back to older ones.
const NEWEST_KNOWN: i64 = SYS_REMOVEXATTRAT;

const TABLE: &[(i64, &str, Call)] = &[
    (libc::SYS_open, "open", Call::Open { path: cwd(0), flags: 1 }),
    (libc::SYS_openat, "openat", Call::Open { path: at(0, 1), flags: 2 }),
    (libc::SYS_openat2, "openat2", Call::Open2 { path: at(0, 1), how: 2 }),
    (libc::SYS_creat, "creat", Call::Create { path: cwd(0) }),
    (libc::SYS_stat, "stat", Call::Look { path: cwd(0), nofollow: None }),
    (libc::SYS_lstat, "lstat", Call::LookAtLink { path: cwd(0), followed: libc::SYS_stat }),
    (libc::SYS_newfstatat, "newfstatat", Call::Look { path: at(0, 1), nofollow: Some(3) }),
    (libc::SYS_statx, "statx", Call::Look { path: at(0, 1), nofollow: Some(2) }),
    (libc::SYS_access, "access", Call::Look { path: cwd(0), nofollow: None }),
    (libc::SYS_faccessat, "faccessat", Call::Look { path: at(0, 1), nofollow: None }),
    (libc::SYS_faccessat2, "faccessat2", Call::Look { path: at(0, 1), nofollow: Some(3) }),
    (libc::SYS_getxattr, "getxattr", Call::Look { path: cwd(0), nofollow: None }),
    (libc::SYS_lgetxattr, "lgetxattr", Call::LookAtLink { path: cwd(0), followed: libc::SYS_getxattr }),
    (libc::SYS_statfs, "statfs", Call::Look { path: cwd(0), nofollow: None }),
    (libc::SYS_truncate, "truncate", Call::Change { path: cwd(0) }),
    (libc::SYS_chmod, "chmod", Call::Change { path: cwd(0) }),
    (libc::SYS_fchmodat, "fchmodat", Call::Change { path: at(0, 1) }),
    (libc::SYS_chown, "chown", Call::Change { path: cwd(0) }),
    (libc::SYS_lchown, "lchown", Call::Change { path: cwd(0) }),
    (libc::SYS_fchownat, "fchownat", Call::Change { path: at(0, 1) }),
    (libc::SYS_utime, "utime", Call::Change { path: cwd(0) }),
    (libc::SYS_utimes, "utimes", Call::Change { path: cwd(0) }),
    (libc::SYS_utimensat, "utimensat", Call::Change { path: at(0, 1) }),
    (libc::SYS_setxattr, "setxattr", Call::Change { path: cwd(0) }),
    (libc::SYS_lsetxattr, "lsetxattr", Call::Change { path: cwd(0) }),
    (libc::SYS_removexattr, "removexattr", Call::Change { path: cwd(0) }),
    (libc::SYS_unlink, "unlink", Call::Unlink { path: cwd(0), flags: None }),
    (libc::SYS_unlinkat, "unlinkat", Call::Unlink { path: at(0, 1), flags: Some(2) }),
    (libc::SYS_rename, "rename", Call::Rename { from: cwd(0), to: cwd(1), flags: None }),
    (libc::SYS_renameat, "renameat", Call::Rename { from: at(0, 1), to: at(2, 3), flags: None }),
    (libc::SYS_renameat2, "renameat2", Call::Rename { from: at(0, 1), to: at(2, 3), flags: Some(4) }),
    (libc::SYS_link, "link", Call::Link { from: cwd(0), to: cwd(1) }),
    (libc::SYS_linkat, "linkat", Call::Link { from: at(0, 1), to: at(2, 3) }),
    (libc::SYS_lremovexattr, "lremovexattr", Call::Change { path: cwd(0) }),
    (SYS_FCHMODAT2, "fchmodat2", Call::Change { path: at(0, 1) }),
    (SYS_SETXATTRAT, "setxattrat", Call::Change { path: at(0, 1) }),
    (SYS_REMOVEXATTRAT, "removexattrat", Call::Change { path: at(0, 1) }),
    (libc::SYS_futimesat, "futimesat", Call::Change { path: at(0, 1) }),
    (libc::SYS_mkdir, "mkdir", Call::Make { path: cwd(0) }),
    (libc::SYS_mkdirat, "mkdirat", Call::Make { path: at(0, 1) }),
    (libc::SYS_rmdir, "rmdir", Call::Make { path: cwd(0) }),
    (libc::SYS_symlink, "symlink", Call::Make { path: cwd(1) }),
    (libc::SYS_symlinkat, "symlinkat", Call::Make { path: at(1, 2) }),
    (libc::SYS_mknod, "mknod", Call::Make { path: cwd(0) }),
    (libc::SYS_mknodat, "mknodat", Call::Make { path: at(0, 1) }),
    (libc::SYS_bind, "bind", Call::Address { binds: true, address: 1, length: 2 }),
    (libc::SYS_connect, "connect", Call::Address { binds: false, address: 1, length: 2 }),
    (libc::SYS_sendto, "sendto", Call::Address { binds: false, address: 4, length: 5 }),
    (libc::SYS_sendmsg, "sendmsg", Call::Message),
    (libc::SYS_sendmmsg, "sendmmsg", Call::Message),
    (libc::SYS_getdents64, "getdents64", Call::List),
    (libc::SYS_getdents, "getdents", Call::List),
    (libc::SYS_fchmod, "fchmod", Call::ChangeOpen { fd: 0 }),
    (libc::SYS_fchown, "fchown", Call::ChangeOpen { fd: 0 }),
    (libc::SYS_fsetxattr, "fsetxattr", Call::ChangeOpen { fd: 0 }),
    (libc::SYS_fremovexattr, "fremovexattr", Call::ChangeOpen { fd: 0 }),
    (libc::SYS_ioctl, "ioctl", Call::ChangeOpen { fd: 0 }),
    (libc::SYS_kill, "kill", Call::Signal { target: 0, signal: Some(1), of: Target::Process }),
    (libc::SYS_rt_sigqueueinfo, "rt_sigqueueinfo", Call::Signal { target: 0, signal: Some(1), of: Target::Process }),
    (libc::SYS_tkill, "tkill", Call::Signal { target: 0, signal: Some(1), of: Target::Thread }),
    (libc::SYS_tgkill, "tgkill", Call::Signal { target: 1, signal: Some(2), of: Target::Thread }),
    (libc::SYS_rt_tgsigqueueinfo, "rt_tgsigqueueinfo", Call::Signal { target: 1, signal: Some(2), of: Target::Thread }),
    (
        libc::SYS_pidfd_send_signal,
        "pidfd_send_signal",
        Call::Signal { target: 0, signal: Some(1), of: Target::Descriptor },
    ),
    (libc::SYS_process_vm_writev, "process_vm_writev", Call::Signal { target: 0, signal: None, of: Target::Thread }),
    (libc::SYS_prlimit64, "prlimit64", Call::Signal { target: 0, signal: None, of: Target::Process }),
    (libc::SYS_fcntl, "fcntl", Call::Signal { target: 2, signal: None, of: Target::Process }),
    (libc::SYS_shmget, "shmget", Call::Shared),
    (libc::SYS_semget, "semget", Call::Shared),
    (libc::SYS_msgget, "msgget", Call::Shared),
    (libc::SYS_mq_open, "mq_open", Call::Never),
    (libc::SYS_mq_unlink, "mq_unlink", Call::Never),
    (libc::SYS_add_key, "add_key", Call::Never),
    (libc::SYS_request_key, "request_key", Call::Never),
    (libc::SYS_keyctl, "keyctl", Call::Never),
    (libc::SYS_mount, "mount", Call::Never),
    (libc::SYS_umount2, "umount2", Call::Never),
    (libc::SYS_pivot_root, "pivot_root", Call::Never),
    (libc::SYS_move_mount, "move_mount", Call::Never),
    (libc::SYS_open_tree, "open_tree", Call::Never),
    (libc::SYS_fsopen, "fsopen", Call::Never),
    (libc::SYS_fsmount, "fsmount", Call::Never),
    (libc::SYS_mount_setattr, "mount_setattr", Call::Never),
    (libc::SYS_setns, "setns", Call::Never),
    (libc::SYS_unshare, "unshare", Call::Namespaces { pointed: false }),
    (libc::SYS_clone, "clone", Call::Namespaces { pointed: false }),
    (libc::SYS_clone3, "clone3", Call::Namespaces { pointed: true }),
    (libc::SYS_chroot, "chroot", Call::Never),
    (libc::SYS_swapon, "swapon", Call::Never),
    (libc::SYS_swapoff, "swapoff", Call::Never),
    (libc::SYS_reboot, "reboot", Call::Never),
    (libc::SYS_acct, "acct", Call::Never),
    (libc::SYS_quotactl, "quotactl", Call::Never),
    (libc::SYS_settimeofday, "settimeofday", Call::Never),
    (libc::SYS_clock_settime, "clock_settime", Call::Never),
    (libc::SYS_mmap, "mmap", Call::Map),
    (libc::SYS_flock, "flock", Call::Lock),
    (libc::SYS_exit_group, "exit_group", Call::Exit),
];

/// FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR, FS_IOC_SETVERSION, TIOCSTI: they change the metadata of a file, or type into a terminal.
const CHANGING_IOCTLS: [u32; 4] = [0x4008_6602, 0x401c_5820, 0x4008_7602, 0x5412];

/// FIOSETOWN, SIOCSPGRP: they name a process to be signalled when there is something to read.
const OWNER_IOCTLS: [u32; 2] = [0x8901, 0x8902];

/// Whether an `ioctl` or `fcntl` names a process to be signalled by a pointer.
pub(super) fn names_owner(number: i64, command: u32) -> bool {
    match number {
        libc::SYS_ioctl => OWNER_IOCTLS.contains(&command),
        libc::SYS_fcntl => command == F_SETOWN_EX,
        _ => false,
    }
}

const F_SETOWN_EX: u32 = 15;

/// Calls that open files unseen by the supervisor, so they must not exist. Programs fall back to ordinary calls.
const REFUSED: &[i64] = &[libc::SYS_io_uring_setup, libc::SYS_open_by_handle_at];

/// The filter as a program for the kernel.
#[derive(Debug)]
pub(super) struct Filter(Vec<libc::sock_filter>);

impl Filter {
    /// The filter of processes that live in a view, or of those that do not.
    pub(super) fn new(in_view: bool) -> Self {
        use libc::{BPF_ABS, BPF_JEQ, BPF_JGT, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W};
        const NUMBER: u32 = 0;
        const ARCH: u32 = 4;
        const FIRST: u32 = 16;
        const X86_64: u32 = 0xc000_003e;
        const X32: u32 = 0x4000_0000;
        let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
        let load = |at: u32| op(BPF_LD | BPF_W | BPF_ABS, at, 0, 0);
        let give = |action: u32| op(BPF_RET | BPF_K, action, 0, 0);
        let refuse = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

        let mut program = vec![
            // Calls of other architectures would bypass this filter.
            load(ARCH),
            op(BPF_JMP | BPF_JEQ | BPF_K, X86_64, 1, 0),
            give(refuse),
            load(NUMBER),
            op(BPF_JMP | BPF_JSET | BPF_K, X32, 0, 1),
            give(refuse),
            op(BPF_JMP | BPF_JGT | BPF_K, NEWEST_KNOWN as u32, 0, 1),
            give(refuse),
        ];
        for &number in REFUSED {
            program.push(op(BPF_JMP | BPF_JEQ | BPF_K, number as u32, 0, 1));
            program.push(give(refuse));
        }
        let low = |argument: u32| load(FIRST + 8 * argument);
        let high = |argument: u32| load(FIRST + 8 * argument + 4);
        let trace_if = |value: u32| op(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
        let allow_if = |value: u32, rest: u8| op(BPF_JMP | BPF_JEQ | BPF_K, value, rest, 0);
        let (trace, allow) = (give(libc::SECCOMP_RET_TRACE), give(libc::SECCOMP_RET_ALLOW));
        for &(number, _, call) in TABLE.iter().filter(|(.., call)| !in_view || !call.is_private_in_view()) {
            // Some calls are frequent, and only few of them matter.
            let block = match number {
                libc::SYS_mmap => {
                    let wanted = op(BPF_JMP | BPF_JSET | BPF_K, libc::MAP_SYNC as u32, 0, 1);
                    vec![low(3), wanted, trace, allow]
                }
                libc::SYS_unshare | libc::SYS_clone => {
                    let wanted = op(BPF_JMP | BPF_JSET | BPF_K, libc::CLONE_NEWUSER as u32, 0, 1);
                    vec![low(0), wanted, trace, allow]
                }
                libc::SYS_prlimit64 => vec![low(0), allow_if(0, 1), trace, allow],
                libc::SYS_sendto => vec![low(4), allow_if(0, 1), trace, high(4), allow_if(0, 1), trace, allow],
                libc::SYS_ioctl => {
                    let seen = CHANGING_IOCTLS.iter().chain(&OWNER_IOCTLS);
                    let tests = seen.flat_map(|&command| [trace_if(command), trace]);
                    [low(1)].into_iter().chain(tests).chain([allow]).collect()
                }
                libc::SYS_fcntl => {
                    vec![low(1), trace_if(libc::F_SETOWN as u32), trace, trace_if(F_SETOWN_EX), trace, allow]
                }
                _ => vec![trace],
            };
            debug_assert!(call != Call::Map || number == libc::SYS_mmap);
            program.push(op(BPF_JMP | BPF_JEQ | BPF_K, number as u32, 0, block.len() as u8));
            program.extend(block);
        }
        program.push(give(libc::SECCOMP_RET_ALLOW));
        Self(program)
    }

    /// Puts the calling thread, and all that it starts, under the filter. For the child between fork and exec: makes system
    /// calls only.
    pub(super) fn install(&self) -> io::Result<()> {
        let program = libc::sock_fprog { len: self.0.len() as u16, filter: self.0.as_ptr().cast_mut() };
        // SAFETY: the program is valid and the kernel copies it.
        unsafe {
            // Without it an unprivileged process may not filter itself.
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 {
                return Err(StartError::at(StartStep::Privileges)(io::Error::last_os_error()));
            }
            if libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) != 0 {
                return Err(StartError::at(StartStep::Filter)(io::Error::last_os_error()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would make of a call.
    fn action(in_view: bool, number: i64, arguments: [u64; 6]) -> u32 {
        let mut data = vec![number as u32, 0xc000_003e, 0, 0];
        data.extend(arguments.iter().flat_map(|a| [*a as u32, (*a >> 32) as u32]));
        let (mut at, mut register) = (0, 0);
        let program = Filter::new(in_view).0;
        loop {
            let op = program[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { op.jt } else { op.jf });
            match u32::from(op.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => register = data[op.k as usize / 4],
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => at += jump(register == op.k),
                code if code == libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K => at += jump(register & op.k != 0),
                code if code == libc::BPF_JMP | libc::BPF_JGT | libc::BPF_K => at += jump(register > op.k),
                code if code == libc::BPF_RET | libc::BPF_K => return op.k,
                code => panic!("operation {code}"),
            }
        }
    }

    #[test]
    fn the_supervisor_sees_what_is_in_the_table_and_nothing_else() {
        for in_view in [false, true] {
            let action = |number, arguments| action(in_view, number, arguments);
            for seen in [libc::SYS_openat, libc::SYS_exit_group, libc::SYS_mkdir, libc::SYS_kill, libc::SYS_mount] {
                assert_eq!(action(seen, [0; 6]), libc::SECCOMP_RET_TRACE, "{seen}");
            }
            for unseen in [libc::SYS_write, libc::SYS_mmap, libc::SYS_prlimit64, libc::SYS_sendto, libc::SYS_ioctl] {
                assert_eq!(action(unseen, [0; 6]), libc::SECCOMP_RET_ALLOW, "{unseen}");
            }
            assert_eq!(action(libc::SYS_mmap, [0, 0, 0, libc::MAP_SYNC as u64, 0, 0]), libc::SECCOMP_RET_TRACE);
            assert_eq!(action(libc::SYS_prlimit64, [4711, 0, 0, 0, 0, 0]), libc::SECCOMP_RET_TRACE);
            assert_eq!(action(libc::SYS_ioctl, [0, CHANGING_IOCTLS[1].into(), 0, 0, 0, 0]), libc::SECCOMP_RET_TRACE);
            for call in [libc::SYS_unshare, libc::SYS_clone] {
                assert_eq!(action(call, [libc::CLONE_NEWUSER as u64, 0, 0, 0, 0, 0]), libc::SECCOMP_RET_TRACE);
                assert_eq!(action(call, [libc::CLONE_VM as u64, 0, 0, 0, 0, 0]), libc::SECCOMP_RET_ALLOW);
            }
            assert_ne!(action(libc::SYS_io_uring_setup, [0; 6]), libc::SECCOMP_RET_ALLOW);
            let refused = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
            assert_eq!(action(NEWEST_KNOWN + 1, [0; 6]), refused);
            for (command, seen) in
                [(libc::F_SETOWN as u64, true), (F_SETOWN_EX.into(), true), (libc::F_GETFL as u64, false)]
            {
                let action = action(libc::SYS_fcntl, [0, command, 0, 0, 0, 0]);
                assert_eq!(action == libc::SECCOMP_RET_TRACE, seen, "{command}");
            }
            assert_eq!(action(libc::SYS_ioctl, [0, OWNER_IOCTLS[0].into(), 0, 0, 0, 0]), libc::SECCOMP_RET_TRACE);
        }
    }

    #[test]
    fn messages_with_an_address_are_seen() {
        for (address, seen) in [(0u64, false), (1, true), (1 << 32, true)] {
            let arguments = [0, 0, 0, 0, address, 16];
            assert_eq!(action(false, libc::SYS_sendto, arguments) == libc::SECCOMP_RET_TRACE, seen, "{address}");
        }
    }

    #[test]
    fn locks_are_seen_only_where_the_kernel_does_not_keep_them_private() {
        assert_eq!(action(false, libc::SYS_flock, [0; 6]), libc::SECCOMP_RET_TRACE);
        assert_eq!(action(true, libc::SYS_flock, [0; 6]), libc::SECCOMP_RET_ALLOW);
    }
}
