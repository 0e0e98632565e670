//! Processes that end with the test, whatever they do.

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Far longer than anything here needs, even on a busy machine; only a hang gets there.
pub const DEADLINE: Duration = Duration::from_secs(600);

/// A pmvet that does not outlive the test.
#[derive(Debug)]
pub struct Running(Option<Child>);

impl Running {
    pub(crate) fn new(command: Command, input: Option<&[u8]>) -> Self {
        Self(Some(spawn(command, input)))
    }

    /// Sends pmvet a signal. Panics if it has ended.
    #[track_caller]
    pub fn signal(&mut self, number: i32) {
        assert!(!self.has_ended(), "pmvet has ended already");
        let pid = self.0.as_ref().unwrap().id();
        // SAFETY: a child of ours that has not been waited for.
        assert_eq!(unsafe { libc::kill(pid as i32, number) }, 0);
    }

    /// Whether pmvet has ended, by now.
    pub fn has_ended(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Waits for the end.
    pub fn end(mut self) -> Output {
        self.0.take().unwrap().wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn spawn(mut command: Command, input: Option<&[u8]>) -> Child {
    if input.is_some() {
        command.stdin(Stdio::piped());
    }
    let mut child = command.spawn().expect("pmvet must start");
    if let (Some(mut pipe), Some(bytes)) = (child.stdin.take(), input) {
        // pmvet may end before it has read all.
        let _ = pipe.write_all(bytes);
    }
    child
}

/// Runs a command until nobody writes to its output any more. `None`: it had to be killed.
pub fn finish(mut command: Command, input: Option<&[u8]>) -> Option<Output> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = spawn(command, input);
    let pid = child.id();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    match receiver.recv_timeout(DEADLINE) {
        Ok(output) => Some(output.unwrap()),
        Err(_) => {
            // SAFETY: a child of ours that has not been waited for; pmvet's guard kills what is below it.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            None
        }
    }
}

/// Looks until the condition holds; fails if it never does.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < DEADLINE, "not within {DEADLINE:?}: {what}");
        // Looks again, not too often: the processes it waits for need the processor.
        std::thread::sleep(Duration::from_millis(2));
    }
}
