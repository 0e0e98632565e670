//! Processes that do one job after the other for a campaign.
//!
//! A worker is a fork of pmvet: it inherits all settings in memory, and receives jobs and sends results through pipes. It is a process
//! because engines have one clock, one view of files and one memory for the whole process, and because a campaign must survive an engine
//! that fails. Each worker has a keeper, a process that only restarts the worker when it has died.
//!
//! The output of a worker is captured and comes with its result, so that a campaign can pass on what an engine said.

use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeReader, PipeWriter, Read, Seek, Write};
use std::marker::PhantomData;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use pmvet_target::launch::signal_name;
use pmvet_target::sparse;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::budget;
use crate::system::{self, Fork};

/// How long to wait for the end of a killed worker.
const PATIENCE: Duration = Duration::from_millis(500);

/// What became of a job.
#[derive(Debug)]
pub(crate) enum JobEnd<R> {
    Done(R),
    /// The worker has died during it, and another one has taken its place.
    Died(WorkerDeath),
}

/// How a worker died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum WorkerDeath {
    Exit(i32),
    Signal(i32),
}

impl std::fmt::Display for WorkerDeath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Exit(status) => write!(f, "it ended with exit status {status}"),
            Self::Signal(signal) => write!(f, "it was killed by {}", signal_name(*signal)),
        }
    }
}

/// Messages of a worker, one line each.
#[derive(Debug, Serialize, Deserialize)]
enum Message<R> {
    /// The job with this number.
    Done(u64, R),
    Died(WorkerDeath),
}

/// A message with the number of its worker; nothing when the pipe has ended.
type Numbered<R> = (usize, Option<Message<R>>);

/// Workers that do jobs `J` and give results `R`.
#[derive(Debug)]
pub(crate) struct Workers<J, R> {
    all: Vec<Worker>,
    messages: Receiver<Numbered<R>>,
    /// The pipes, until the first job starts the threads that read them. There must be no threads while pmvet enters its own sandbox.
    unread: Option<(Vec<PipeReader>, Sender<Numbered<R>>)>,
    jobs: PhantomData<fn(J)>,
}

#[derive(Debug)]
struct Worker {
    keeper: Fork,
    jobs: PipeWriter,
    /// The file that captures its output.
    said: File,
    /// The number of its last job, and whether that job is under way.
    job: u64,
    busy: bool,
    gone: bool,
}

impl<J, R> Workers<J, R>
where
    J: Serialize + DeserializeOwned,
    R: Serialize + DeserializeOwned + Send + 'static,
{
    /// Starts them, while this process has one thread, which stays so until the first job. `begin` is called in each of them, and gives what does the jobs.
    pub(crate) fn start<W: FnMut(J) -> R>(count: usize, begin: impl Fn() -> W) -> io::Result<Self> {
        let mut all = Vec::new();
        let mut pipes = Vec::new();
        for _ in 0..count {
            let (worker, results) = Worker::start(&begin)?;
            all.push(worker);
            pipes.push(results);
        }
        let (sender, messages) = mpsc::channel();
        Ok(Self { all, messages, unread: Some((pipes, sender)), jobs: PhantomData })
    }

    /// Starts a thread for each worker that reads its messages.
    fn listen(&mut self) -> io::Result<()> {
        let Some((pipes, sender)) = self.unread.take() else { return Ok(()) };
        for (number, pipe) in pipes.into_iter().enumerate() {
            let sender = sender.clone();
            std::thread::Builder::new().name("pmvet-results".into()).spawn(move || read(number, pipe, &sender))?;
        }
        Ok(())
    }

    /// An idle worker, if there is one.
    pub(crate) fn idle(&self) -> Option<usize> {
        self.all.iter().position(|worker| !worker.busy && !worker.gone)
    }

    /// Gives an idle worker a job.
    pub(crate) fn give(&mut self, number: usize, job: &J) -> io::Result<()> {
        self.listen()?;
        let worker = &mut self.all[number];
        worker.job += 1;
        let mut line = serde_json::to_vec(&(worker.job, job))?;
        line.push(b'\n');
        worker.jobs.write_all(&line)?;
        worker.busy = true;
        Ok(())
    }

    /// The end of a job, with the number of the worker and what it has printed. Nothing if none ends within this time.
    pub(crate) fn next(&mut self, wait: Duration) -> io::Result<Option<(usize, JobEnd<R>, String)>> {
        let until = Instant::now() + wait;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let (number, message) = match self.messages.recv_timeout(left) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout) => return Ok(None),
                Err(RecvTimeoutError::Disconnected) => return Err(io::Error::other("all workers are gone")),
            };
            let worker = &mut self.all[number];
            let end = match message {
                // The result of a job that was given up.
                Some(Message::Done(job, _)) if job != worker.job => continue,
                Some(Message::Done(_, result)) => JobEnd::Done(result),
                Some(Message::Died(how)) => JobEnd::Died(how),
                // The keeper is gone as well, so no more messages will come.
                None => {
                    worker.gone = true;
                    JobEnd::Died(WorkerDeath::Signal(libc::SIGKILL))
                }
            };
            let said = worker.take_said();
            // A worker that dies while idle is simply replaced.
            if std::mem::take(&mut worker.busy) {
                return Ok(Some((number, end, said)));
            }
        }
    }
}

impl<J, R> Drop for Workers<J, R> {
    /// Ends the workers, and waits until they are gone, so that nothing writes any more.
    fn drop(&mut self) {
        self.all.iter_mut().for_each(|worker| worker.keeper.kill());
        if self.unread.is_some() {
            return;
        }
        let until = Instant::now() + PATIENCE;
        let mut left = self.all.iter().filter(|worker| !worker.gone).count();
        while left > 0 {
            match self.messages.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((_, None)) => left -= 1,
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
}

impl Worker {
    fn start<J: DeserializeOwned, R: Serialize, W: FnMut(J) -> R>(
        begin: &impl Fn() -> W,
    ) -> io::Result<(Self, PipeReader)> {
        let (orders, jobs) = io::pipe()?;
        let (results, answers) = io::pipe()?;
        let said = sparse::unnamed("what a worker says".as_ref())?;
        match system::fork()? {
            Some(keeper) => Ok((Self { keeper, jobs, said, job: 0, busy: false, gone: false }, results)),
            None => {
                // With pmvet's ends of the pipes open, the worker would not notice that pmvet has ended.
                drop((jobs, results));
                keep(orders, answers, &said, begin)
            }
        }
    }

    /// What it has printed since the last call. Call this only while it is idle.
    fn take_said(&mut self) -> String {
        let mut said = Vec::new();
        let _ = self.said.rewind().and_then(|()| self.said.read_to_end(&mut said));
        // The worker shares the file position, since it inherited the file, so it continues at the start.
        let _ = self.said.set_len(0).and_then(|()| self.said.rewind());
        String::from_utf8_lossy(&said).into_owned()
    }
}

/// Passes on the messages of a worker.
fn read<R: DeserializeOwned>(number: usize, pipe: PipeReader, to: &Sender<Numbered<R>>) {
    for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
        // A line that is no message was cut off when a worker died, which its keeper reports.
        if let Ok(message) = serde_json::from_slice(&line)
            && to.send((number, Some(message))).is_err()
        {
            return;
        }
    }
    let _ = to.send((number, None));
}

/// Main loop of a keeper: starts the worker, and restarts it when it has died.
fn keep<J: DeserializeOwned, R: Serialize, W: FnMut(J) -> R>(
    orders: PipeReader,
    mut answers: PipeWriter,
    said: &File,
    begin: &impl Fn() -> W,
) -> ! {
    system::wait_out_signals();
    if system::print_to(said).is_err() {
        system::end(1);
    }
    loop {
        // Waits for a job first: otherwise a worker that dies at once would be restarted for ever.
        system::wait_for_input(&orders);
        match system::fork() {
            Err(_) => system::end(1),
            Ok(None) => {
                work(orders, answers, begin());
                system::end(0)
            }
            Ok(Some(mut worker)) => {
                let how = match worker.wait() {
                    // There are no more jobs.
                    Ok(status) if status.success() => system::end(0),
                    Ok(status) => WorkerDeath::from_status(status),
                    Err(_) => system::end(1),
                };
                // The worker may have died in the middle of a line.
                let text = serde_json::to_string(&Message::<()>::Died(how)).unwrap_or_default();
                if writeln!(answers, "\n{text}").is_err() {
                    system::end(0);
                }
            }
        }
    }
}

impl WorkerDeath {
    fn from_status(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt;
        match status.code() {
            Some(code) => Self::Exit(code),
            None => Self::Signal(status.signal().unwrap_or_default()),
        }
    }
}

/// Main loop of a worker: one job after the other, until there are no more.
fn work<J: DeserializeOwned, R: Serialize>(orders: PipeReader, mut answers: PipeWriter, mut job: impl FnMut(J) -> R) {
    system::handle_signals();
    budget::watch_the_end();
    // The pipe holds one job at a time, so reading ahead loses none.
    for line in BufReader::new(orders).split(b'\n').map_while(Result::ok) {
        let Ok((number, order)) = serde_json::from_slice(&line) else { return };
        let Ok(mut text) = serde_json::to_vec(&Message::Done(number, job(order))) else { return };
        text.push(b'\n');
        if answers.write_all(&text).is_err() {
            return;
        }
    }
}
