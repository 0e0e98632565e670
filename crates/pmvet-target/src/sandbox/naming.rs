//! Calls that name files: how the overlay answers them.

use std::io;
use std::path::Path;

use super::filter::{self, Call, PathArgument};
use super::overlay::{Answer, CallEffect, Overlay};
use super::resolve::{Named, PathAccess, resolve};
use super::tracee::{Tracee, TraceeRegisters, argument, set_argument};

/// How a call that names files is handled.
pub(super) struct Decision {
    /// Where a stand-in's path goes.
    pub(super) place: PathArgument,
    pub(super) answer: Answer,
    /// What follows if the kernel carries it out.
    pub(super) effect: Option<CallEffect>,
}

/// Decides on a call, and adapts its registers. Nothing if it names no file.
pub(super) fn decide(
    tracee: Tracee,
    now: &mut TraceeRegisters,
    call: Call,
    overlay: &mut Overlay,
) -> io::Result<Option<Decision>> {
    let Some((place, access)) = first(tracee, now, call)? else { return Ok(None) };
    let named = resolve(tracee, now, place, access, overlay.view())?;
    let other = match second(call) {
        Some(to) => Some(resolve(tracee, now, to, PathAccess { follow: false, writes: true }, overlay.view())?),
        None => None,
    };
    let (answer, effect) = match (named, other) {
        (Named::Outside, _) | (_, Some(Named::Outside)) => (Answer::Refused, None),
        // The kernel will report the error itself; but the call might still find, and change, a file.
        (Named::Nothing, _) | (_, Some(Named::Nothing | Named::Open(..))) => (overlay.unknown(access.writes), None),
        (Named::Path(from), Some(Named::Path(to))) => on_two(now, call, &from, &to, overlay),
        (Named::Path(path), None) => on_one(tracee, now, call, &path, overlay)?,
        (Named::Open(device, inode), Some(Named::Path(to))) => {
            let by_kernel = overlay.view().is_some() && !overlay.is_own(device, inode);
            let answer = if by_kernel { overlay.change_view(&to) } else { overlay.link_nameless(device, inode, &to) };
            (answer, None)
        }
        (Named::Open(device, inode), None) => match call {
            Call::Change { .. } if !overlay.is_own(device, inode) => (overlay.change_view(Path::new("/")), None),
            _ => (Answer::Real, None),
        },
    };
    Ok(Some(Decision { place, answer, effect }))
}

/// The first path of a call, and what the call is about to do there.
fn first(tracee: Tracee, now: &TraceeRegisters, call: Call) -> io::Result<Option<(PathArgument, PathAccess)>> {
    let opens = |flags: i32| PathAccess {
        follow: flags & libc::O_NOFOLLOW == 0 && flags & (libc::O_CREAT | libc::O_EXCL) != libc::O_CREAT | libc::O_EXCL,
        writes: flags & libc::O_ACCMODE != libc::O_RDONLY || flags & (libc::O_TRUNC | libc::O_CREAT) != 0,
    };
    let looks = |follow| PathAccess { follow, writes: false };
    let writes = |follow| PathAccess { follow, writes: true };
    Ok(Some(match call {
        Call::Open { path, flags } => (path, opens(argument(now, flags) as i32)),
        Call::Open2 { path, how } => (path, opens(open_how(tracee, argument(now, how))?.0)),
        Call::Create { path } | Call::Change { path } => (path, writes(follows(now))),
        Call::Look { path, nofollow } => {
            let follow = nofollow.is_none_or(|n| argument(now, n) & libc::AT_SYMLINK_NOFOLLOW as u64 == 0);
            (path, looks(follow))
        }
        Call::LookAtLink { path, .. } => (path, looks(false)),
        Call::Unlink { path, .. } | Call::Make { path } => (path, writes(false)),
        Call::Rename { from, .. } => (from, writes(false)),
        Call::Link { from, .. } => (from, writes(true)),
        _ => return Ok(None),
    }))
}

fn second(call: Call) -> Option<PathArgument> {
    match call {
        Call::Rename { to, .. } | Call::Link { to, .. } => Some(to),
        _ => None,
    }
}

fn on_two(
    now: &TraceeRegisters,
    call: Call,
    from: &Path,
    to: &Path,
    overlay: &mut Overlay,
) -> (Answer, Option<CallEffect>) {
    match call {
        Call::Rename { flags, .. } => overlay.rename(from, to, flags.map_or(0, |n| argument(now, n))),
        _ => overlay.link(from, to),
    }
}

fn on_one(
    tracee: Tracee,
    now: &mut TraceeRegisters,
    call: Call,
    path: &Path,
    overlay: &mut Overlay,
) -> io::Result<(Answer, Option<CallEffect>)> {
    let answer = match call {
        Call::Unlink { flags, .. } if flags.is_some_and(|n| argument(now, n) & libc::AT_REMOVEDIR as u64 != 0) => {
            overlay.change_view(path)
        }
        Call::Unlink { .. } => return Ok(overlay.unlink(path)),
        Call::Make { .. } => overlay.change_view(path),
        Call::Open { flags, .. } => {
            let asked = argument(now, flags) as i32;
            let answer = overlay.open(path, asked, || new_mode(tracee, argument(now, flags + 1)));
            if matches!(answer, Answer::Instead(_)) {
                set_argument(now, flags, u64::from(reopen(asked) as u32));
            }
            answer
        }
        Call::Open2 { how, .. } => {
            let (asked, mode) = open_how(tracee, argument(now, how))?;
            let answer = overlay.open(path, asked, || new_mode(tracee, mode));
            if matches!(answer, Answer::Instead(_)) {
                // The rules of `openat2` about paths do not suit the stand-in.
                now.orig_rax = libc::SYS_openat as u64;
                now.rdx = u64::from(reopen(asked) as u32);
            }
            answer
        }
        Call::Create { .. } => {
            let asked = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            let answer = overlay.open(path, asked, || new_mode(tracee, now.rsi));
            if matches!(answer, Answer::Instead(_)) {
                now.orig_rax = libc::SYS_open as u64;
                now.rsi = (libc::O_WRONLY | libc::O_TRUNC) as u64;
            }
            answer
        }
        Call::Look { nofollow, .. } => {
            let answer = overlay.look(path);
            if let (Answer::Instead(_), Some(n)) = (&answer, nofollow) {
                set_argument(now, n, argument(now, n) & !(libc::AT_SYMLINK_NOFOLLOW as u64));
            }
            answer
        }
        Call::LookAtLink { followed, .. } => {
            let answer = overlay.look(path);
            if matches!(answer, Answer::Instead(_)) {
                now.orig_rax = followed as u64;
            }
            answer
        }
        Call::Change { .. } => {
            let answer = overlay.change(path);
            if matches!(answer, Answer::Instead(_)) {
                follow_stand_in(now);
            }
            answer
        }
        _ => Answer::Real,
    };
    Ok((answer, None))
}

/// The flags and the mode in the structure that `openat2` takes.
fn open_how(tracee: Tracee, at: u64) -> io::Result<(i32, u64)> {
    let mut words = [0; 16];
    match tracee.read(at, &mut words) {
        Ok(_) => {
            let word = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |all, &byte| all << 8 | u64::from(byte));
            Ok((word(&words[..8]) as i32, word(&words[8..])))
        }
        // The kernel will say so itself.
        Err(e) if e.raw_os_error() == Some(libc::EFAULT) => Ok((0, 0)),
        Err(e) => Err(e),
    }
}

/// The mode that a new file gets.
fn new_mode(tracee: Tracee, asked: u64) -> u32 {
    asked as u32 & !tracee.umask()
}

/// Whether a call that changes a file follows a link at the end of its path.
fn follows(registers: &TraceeRegisters) -> bool {
    let flags = match registers.orig_rax as i64 {
        libc::SYS_lchown | libc::SYS_lsetxattr | libc::SYS_lremovexattr => return false,
        libc::SYS_fchownat => registers.r8,
        libc::SYS_utimensat | filter::SYS_FCHMODAT2 => registers.r10,
        filter::SYS_SETXATTRAT | filter::SYS_REMOVEXATTRAT => registers.rdx,
        _ => 0,
    };
    flags & libc::AT_SYMLINK_NOFOLLOW as u64 == 0
}

/// A stand-in is reached through a link, so calls that change a link itself have to follow it.
fn follow_stand_in(now: &mut TraceeRegisters) {
    match now.orig_rax as i64 {
        libc::SYS_lchown => now.orig_rax = libc::SYS_chown as u64,
        libc::SYS_lsetxattr => now.orig_rax = libc::SYS_setxattr as u64,
        libc::SYS_lremovexattr => now.orig_rax = libc::SYS_removexattr as u64,
        libc::SYS_utimensat | filter::SYS_FCHMODAT2 => now.r10 &= !(libc::AT_SYMLINK_NOFOLLOW as u64),
        filter::SYS_SETXATTRAT | filter::SYS_REMOVEXATTRAT => now.rdx &= !(libc::AT_SYMLINK_NOFOLLOW as u64),
        libc::SYS_fchownat => now.r8 &= !(libc::AT_SYMLINK_NOFOLLOW as u64),
        _ => {}
    }
}

/// The flags to open a stand-in with, which exists and is reached through a link.
fn reopen(flags: i32) -> i32 {
    flags & !(libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_DIRECT | libc::O_TMPFILE)
}
