//! What the kernel does with a signal.

use super::{process, read_word};

/// An action as the kernel lays it out.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct SignalAction {
    pub(crate) handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

impl SignalAction {
    pub(crate) const DEFAULT: Self = Self { handler: libc::SIG_DFL, flags: 0, restorer: 0, mask: 0 };

    /// Reads an action from the target's memory.
    pub(crate) fn read(addr: u64) -> Option<Self> {
        let mut words = [0; 4];
        for (word, addr) in words.iter_mut().zip((addr..).step_by(8)) {
            *word = (addr >= 8).then(|| read_word(addr)).flatten()?;
        }
        let [handler, flags, restorer, mask] = words;
        Some(Self { handler: handler as usize, flags, restorer: restorer as usize, mask })
    }
}

/// Sets the kernel's action for a signal if `new` is given. Returns the one it had.
pub(crate) fn swap_signal_action(signal: i32, new: Option<&SignalAction>) -> SignalAction {
    let new = new.map_or(std::ptr::null(), std::ptr::from_ref);
    let mut old = SignalAction::DEFAULT;
    // SAFETY: a plain system call; both actions are laid out as the kernel's.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, new, &raw mut old, 8) };
    old
}

/// Ends the process by a signal, at once.
pub(crate) fn die_of_signal(signal: i32) {
    swap_signal_action(signal, Some(&SignalAction::DEFAULT));
    let nothing = 0u64;
    // SAFETY: plain system calls with valid arguments.
    unsafe {
        libc::syscall(libc::SYS_kill, process(), signal);
        libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const nothing, 0, 8);
        libc::syscall(libc::SYS_exit_group, 128 + signal);
    }
}
