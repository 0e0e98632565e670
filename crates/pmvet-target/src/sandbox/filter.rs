//! The seccomp filter of a sandboxed process: which of its system calls the supervisor gets to see.
//!
//! Everything else runs at full speed. The list is short on purpose: calls that name a file, locks, the end of the process,
//! and mappings that only a DAX file system grants. A signal to every process there is, which is none of the sandbox's, is refused.

use std::io;

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
    Map,
    /// Locks an open file against other processes.
    Lock,
    Exit,
}

/// What the supervisor makes of a system call, if it is one that it has to see.
pub(super) fn call(number: i64) -> Option<Call> {
    TABLE.iter().find(|(n, _)| *n == number).map(|(_, call)| *call)
}

const TABLE: &[(i64, Call)] = &[
    (libc::SYS_open, Call::Open { path: cwd(0), flags: 1 }),
    (libc::SYS_openat, Call::Open { path: at(0, 1), flags: 2 }),
    (libc::SYS_openat2, Call::Open2 { path: at(0, 1), how: 2 }),
    (libc::SYS_creat, Call::Create { path: cwd(0) }),
    (libc::SYS_stat, Call::Look { path: cwd(0), nofollow: None }),
    (libc::SYS_lstat, Call::LookAtLink { path: cwd(0), followed: libc::SYS_stat }),
    (libc::SYS_newfstatat, Call::Look { path: at(0, 1), nofollow: Some(3) }),
    (libc::SYS_statx, Call::Look { path: at(0, 1), nofollow: Some(2) }),
    (libc::SYS_access, Call::Look { path: cwd(0), nofollow: None }),
    (libc::SYS_faccessat, Call::Look { path: at(0, 1), nofollow: None }),
    (libc::SYS_faccessat2, Call::Look { path: at(0, 1), nofollow: Some(3) }),
    (libc::SYS_getxattr, Call::Look { path: cwd(0), nofollow: None }),
    (libc::SYS_lgetxattr, Call::LookAtLink { path: cwd(0), followed: libc::SYS_getxattr }),
    (libc::SYS_statfs, Call::Look { path: cwd(0), nofollow: None }),
    (libc::SYS_truncate, Call::Change { path: cwd(0) }),
    (libc::SYS_chmod, Call::Change { path: cwd(0) }),
    (libc::SYS_fchmodat, Call::Change { path: at(0, 1) }),
    (libc::SYS_chown, Call::Change { path: cwd(0) }),
    (libc::SYS_lchown, Call::Change { path: cwd(0) }),
    (libc::SYS_fchownat, Call::Change { path: at(0, 1) }),
    (libc::SYS_utime, Call::Change { path: cwd(0) }),
    (libc::SYS_utimes, Call::Change { path: cwd(0) }),
    (libc::SYS_utimensat, Call::Change { path: at(0, 1) }),
    (libc::SYS_setxattr, Call::Change { path: cwd(0) }),
    (libc::SYS_lsetxattr, Call::Change { path: cwd(0) }),
    (libc::SYS_removexattr, Call::Change { path: cwd(0) }),
    (libc::SYS_unlink, Call::Unlink { path: cwd(0), flags: None }),
    (libc::SYS_unlinkat, Call::Unlink { path: at(0, 1), flags: Some(2) }),
    (libc::SYS_rename, Call::Rename { from: cwd(0), to: cwd(1), flags: None }),
    (libc::SYS_renameat, Call::Rename { from: at(0, 1), to: at(2, 3), flags: None }),
    (libc::SYS_renameat2, Call::Rename { from: at(0, 1), to: at(2, 3), flags: Some(4) }),
    (libc::SYS_link, Call::Link { from: cwd(0), to: cwd(1) }),
    (libc::SYS_linkat, Call::Link { from: at(0, 1), to: at(2, 3) }),
    (libc::SYS_mmap, Call::Map),
    (libc::SYS_flock, Call::Lock),
    (libc::SYS_exit_group, Call::Exit),
];

/// Opens files behind the supervisor's back, so it must not exist. Programs fall back to ordinary calls.
const REFUSED: &[i64] = &[libc::SYS_io_uring_setup, libc::SYS_open_by_handle_at];

/// The filter as a program for the kernel.
#[derive(Debug)]
pub(super) struct Filter(Vec<libc::sock_filter>);

impl Filter {
    pub(super) fn new() -> Self {
        use libc::{BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W};
        const NUMBER: u32 = 0;
        const ARCH: u32 = 4;
        const FIRST: u32 = 16;
        const FLAGS_OF_MMAP: u32 = FIRST + 3 * 8;
        const EVERY_PROCESS: u32 = u32::MAX;
        const X86_64: u32 = 0xc000_003e;
        const X32: u32 = 0x4000_0000;
        let op = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
        let load = |at: u32| op(BPF_LD | BPF_W | BPF_ABS, at, 0, 0);
        let give = |action: u32| op(BPF_RET | BPF_K, action, 0, 0);
        let refuse = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

        let mut program = vec![
            // Other system-call tables would go around this one.
            load(ARCH),
            op(BPF_JMP | BPF_JEQ | BPF_K, X86_64, 1, 0),
            give(refuse),
            load(NUMBER),
            op(BPF_JMP | BPF_JSET | BPF_K, X32, 0, 1),
            give(refuse),
        ];
        for &number in REFUSED {
            program.push(op(BPF_JMP | BPF_JEQ | BPF_K, number as u32, 0, 1));
            program.push(give(refuse));
        }
        program.extend([
            op(BPF_JMP | BPF_JEQ | BPF_K, libc::SYS_kill as u32, 0, 4),
            load(FIRST),
            op(BPF_JMP | BPF_JEQ | BPF_K, EVERY_PROCESS, 0, 1),
            give(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
            give(libc::SECCOMP_RET_ALLOW),
        ]);
        for &(number, call) in TABLE {
            if call == Call::Map {
                // Mappings are many; only those that ask for MAP_SYNC matter.
                program.push(op(BPF_JMP | BPF_JEQ | BPF_K, number as u32, 0, 5));
                program.push(load(FLAGS_OF_MMAP));
                program.push(op(BPF_ALU | BPF_AND | BPF_K, libc::MAP_SYNC as u32, 0, 0));
                program.push(op(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1));
                program.push(give(libc::SECCOMP_RET_ALLOW));
                program.push(give(libc::SECCOMP_RET_TRACE));
            } else {
                program.push(op(BPF_JMP | BPF_JEQ | BPF_K, number as u32, 0, 1));
                program.push(give(libc::SECCOMP_RET_TRACE));
            }
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
            if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) != 0
            {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the kernel would make of a call.
    fn action(number: i64, arguments: [u64; 6]) -> u32 {
        let mut data = vec![number as u32, 0xc000_003e, 0, 0];
        data.extend(arguments.iter().flat_map(|a| [*a as u32, (*a >> 32) as u32]));
        let (mut at, mut register) = (0, 0);
        let program = Filter::new().0;
        loop {
            let op = program[at];
            at += 1;
            let jump = |taken: bool| usize::from(if taken { op.jt } else { op.jf });
            match u32::from(op.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => register = data[op.k as usize / 4],
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => at += jump(register == op.k),
                code if code == libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K => at += jump(register & op.k != 0),
                code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => register &= op.k,
                code if code == libc::BPF_RET | libc::BPF_K => return op.k,
                code => panic!("operation {code}"),
            }
        }
    }

    #[test]
    fn a_signal_to_every_process_is_refused() {
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        for everyone in [u64::MAX, u64::from(u32::MAX)] {
            assert_eq!(action(libc::SYS_kill, [everyone, 9, 0, 0, 0, 0]), refused);
        }
        for one in [0, 1, 4711, (-4711i64) as u64] {
            assert_eq!(action(libc::SYS_kill, [one, 9, 0, 0, 0, 0]), libc::SECCOMP_RET_ALLOW);
        }
    }

    #[test]
    fn the_supervisor_sees_what_is_in_the_table_and_nothing_else() {
        assert_eq!(action(libc::SYS_openat, [0; 6]), libc::SECCOMP_RET_TRACE);
        assert_eq!(action(libc::SYS_exit_group, [0; 6]), libc::SECCOMP_RET_TRACE);
        assert_eq!(action(libc::SYS_write, [0; 6]), libc::SECCOMP_RET_ALLOW);
        assert_eq!(action(libc::SYS_mmap, [0; 6]), libc::SECCOMP_RET_ALLOW);
        let sync = [0, 0, 0, libc::MAP_SYNC as u64, 0, 0];
        assert_eq!(action(libc::SYS_mmap, sync), libc::SECCOMP_RET_TRACE);
        assert_ne!(action(libc::SYS_io_uring_setup, [0; 6]), libc::SECCOMP_RET_ALLOW);
    }
}
