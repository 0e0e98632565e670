//! Signals: corrects how DynamoRIO handles those that are ignored by default, and waits for blocked ones.
//!
//! DynamoRIO catches SIGCHLD and the like even if the target does not. If several arrive while a system call waits, the call
//! may end with EINTR, which never happens without DynamoRIO. So the client has the kernel drop them, as it does natively,
//! while the target neither handles nor blocks them. The target can wait for a blocked signal, and DynamoRIO does the
//! blocking, so it must see those.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::dynamorio::{self, Global, SignalAction, Syscall};
use crate::record::thread::Thread;
use crate::record::threads::{Threads, threads};

/// The signals of this process.
pub(crate) static SIGNALS: Global<Signals> = Global::new();

/// The signals that are ignored by default and that DynamoRIO catches.
const IGNORED_BY_DEFAULT: [i32; 3] = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH];

pub(crate) struct Signals {
    /// What the target asked for, or was started with.
    asked: Mutex<[SignalAction; 3]>,
    /// DynamoRIO's own actions, which it sets when it starts the target.
    caught: OnceLock<[SignalAction; 3]>,
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

impl Signals {
    /// To be called before DynamoRIO starts the target and sets its own actions.
    pub(crate) fn new() -> Self {
        Self {
            asked: Mutex::new(IGNORED_BY_DEFAULT.map(|signal| dynamorio::swap_signal_action(signal, None))),
            caught: OnceLock::new(),
        }
    }

    /// DynamoRIO has started the target: from now on the kernel drops the signals.
    pub(crate) fn target_started(&self) {
        if self.caught.get().is_none()
            && self.caught.set(IGNORED_BY_DEFAULT.map(|signal| dynamorio::swap_signal_action(signal, None))).is_ok()
        {
            self.update_actions(&threads());
        }
    }

    fn asked(&self) -> MutexGuard<'_, [SignalAction; 3]> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The target changes the action of a signal.
    pub(crate) fn before_sigaction(&self, thread: &Thread, call: &Syscall) {
        let index = IGNORED_BY_DEFAULT.iter().position(|&signal| signal == call.fd(0));
        let (Some(index), Some(action)) = (index, SignalAction::read(call.get(1))) else { return };
        // A child of vfork has its own actions, which end when it starts a program.
        if !thread.is_vfork_child {
            self.asked()[index] = action;
            self.update_actions(&threads());
        }
    }

    /// The target changes which signals the thread blocks.
    pub(crate) fn before_sigprocmask(&self, thread: &mut Thread, call: &Syscall) {
        let (how, set) = (call.fd(0), call.get(1));
        let Some(set) = (set != 0).then(|| dynamorio::read_word(set)).flatten() else { return };
        if thread.is_vfork_child {
            return;
        }
        thread.blocked_signals = match how {
            libc::SIG_BLOCK => thread.blocked_signals | set,
            libc::SIG_UNBLOCK => thread.blocked_signals & !set,
            libc::SIG_SETMASK => set,
            _ => return,
        };
        self.update_actions(&threads());
    }

    /// The target waits for a signal. DynamoRIO does not deliver one that it has held back until now, but it does so before
    /// `ppoll`, which without descriptors waits for nothing but signals.
    pub(crate) fn before_sigsuspend(&self, thread: &mut Thread, call: &Syscall) {
        let (mask, size) = (call.get(0), call.get(1));
        for (index, value) in [0, 0, 0, mask, size].into_iter().enumerate() {
            call.replace(thread, index as i32, value);
        }
        call.set_number(libc::SYS_ppoll);
    }

    /// Tells the kernel what to do with these signals now.
    pub(crate) fn update_actions(&self, threads: &Threads) {
        // SAFETY: threads in the list are alive; a word is read as a whole.
        let blocks =
            |&thread: &usize| unsafe { (&raw const (*(thread as *const Thread)).blocked_signals).read_volatile() };
        let blocked = threads.alive.iter().map(blocks).fold(0, |all, mask| all | mask);
        let Some(caught) = self.caught.get() else { return };
        for ((&signal, caught), asked) in IGNORED_BY_DEFAULT.iter().zip(caught).zip(&*self.asked()) {
            let drops = match asked.handler {
                libc::SIG_IGN => true,
                libc::SIG_DFL => blocked & bit(signal) == 0,
                _ => false,
            };
            dynamorio::swap_signal_action(signal, Some(if drops { asked } else { caught }));
        }
    }
}
