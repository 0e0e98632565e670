//! How long a process has waited for a processor: on a busy machine, a slow run need not hang.

use std::fs;
use std::path::Path;
use std::time::Duration;

/// The waiting time of a run.
#[derive(Debug)]
pub(super) struct Waiting {
    first: libc::pid_t,
    /// The thread that answers its system calls, and how long it had waited when the run began.
    supervisor: (libc::pid_t, Duration),
}

/// On a busy machine a process may take up to this many times its limit in addition.
pub(crate) const MOST: u32 = 3;

impl Waiting {
    /// For a process that starts now and that this thread of pmvet supervises.
    pub(super) fn new(first: libc::pid_t, supervisor: libc::pid_t) -> Self {
        Self { first, supervisor: (supervisor, of_thread(of_ours(supervisor))) }
    }

    /// How much of its time so far the run could not use.
    pub(super) fn so_far(&self) -> Duration {
        let (supervisor, before) = self.supervisor;
        of_process(self.first) + of_thread(of_ours(supervisor)).saturating_sub(before)
    }
}

fn of_ours(thread: libc::pid_t) -> String {
    format!("/proc/self/task/{thread}")
}

/// The longest wait of all threads of a process and of those that it has started: they wait at the same time.
/// A process that starts others forever has too many to check them all.
pub(crate) fn of_process(process: libc::pid_t) -> Duration {
    const MOST_LOOKED_AT: usize = 64;
    let (mut longest, mut family, mut next) = (Duration::ZERO, vec![process], 0);
    while let Some(&process) = family.get(next).filter(|_| next < MOST_LOOKED_AT) {
        next += 1;
        let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
        for thread in threads.take(MOST_LOOKED_AT) {
            longest = longest.max(of_thread(thread.path()));
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            family.extend(children.split_whitespace().filter_map(|child| child.parse::<libc::pid_t>().ok()));
        }
    }
    longest
}

fn of_thread(folder: impl AsRef<Path>) -> Duration {
    times(folder)[1]
}

/// How long a thread has run.
pub(crate) fn ran(process: u32, os_thread: u32) -> Duration {
    times(format!("/proc/{process}/task/{os_thread}"))[0]
}

/// How long the threads of a process have run or were ready to run.
pub(super) fn used_by(process: libc::pid_t) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    threads.map(|thread| times(thread.path()).into_iter().sum::<Duration>()).sum()
}

/// How long a thread has run, and how long it was ready to and did not. No time if it is gone.
fn times(folder: impl AsRef<Path>) -> [Duration; 2] {
    let text = fs::read_to_string(folder.as_ref().join("schedstat")).unwrap_or_default();
    let mut nanoseconds = text.split_whitespace().map(|number| number.parse().unwrap_or_default());
    [(); 2].map(|()| Duration::from_nanos(nanoseconds.next().unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_waits_less_than_it_lives() {
        let started = std::time::Instant::now();
        let mut command = std::process::Command::new("/bin/sh");
        command.args(["-c", "read x; /bin/true"]).stdin(std::process::Stdio::piped());
        let mut child = command.spawn().unwrap();
        let waiting = Waiting::new(child.id() as libc::pid_t, rustix::thread::gettid().as_raw_pid());
        let waited = waiting.so_far();
        drop(child.stdin.take());
        child.wait().unwrap();
        assert!(waited <= 2 * started.elapsed());
        assert!(waiting.so_far() <= 2 * started.elapsed(), "an ended process has no waits of its own");
    }
}
