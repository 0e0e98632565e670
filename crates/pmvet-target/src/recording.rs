//! A run at rest: its trace, and each PM file as it was at first contact. Together they give the content of PM at every
//! moment of the run, in any process, as often as it is needed.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmvet_events::event::{Event, What};
use pmvet_events::file::{TraceEnd, TraceError, TraceHeader, TraceReader, TraceWriter};
use pmvet_events::ids::FileId;
use pmvet_events::places::Places;

use crate::collect::{Sink, SinkError};
use crate::install::Install;
use crate::launch::{Ending, Launch, LaunchError, launch};
use crate::sandbox::Overlay;
use crate::sparse;

/// The folder that holds a recorded run.
#[derive(Debug, Clone)]
pub struct Recording {
    folder: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error(transparent)]
    Launch(#[from] LaunchError),
    #[error("cannot save the trace: {0}")]
    Trace(#[from] TraceError),
    #[error("cannot save PM file {}: {source}", .path.display())]
    Base { path: PathBuf, source: io::Error },
}

impl Recording {
    /// Runs a target and records it in `folder`, which exists. With a follower, it goes on only as fast as that reads.
    pub fn make(
        folder: &Path,
        how: &Launch,
        header: &TraceHeader,
        install: &Install,
        follower: Option<&Follower>,
    ) -> Result<(Self, Ending), RecordError> {
        let recording = Self { folder: folder.to_owned() };
        let mut recorder = Recorder {
            writer: TraceWriter::create(recording.trace(), header)?,
            recording: &recording,
            overlay: how.sandbox.as_ref().map(|s| Arc::clone(&s.overlay)),
            failure: None,
            follower,
            events: 0,
        };
        let ending = match launch(how, install, &mut recorder) {
            Ok(ending) => ending,
            Err(error) => return Err(recorder.failure.unwrap_or(RecordError::Launch(error))),
        };
        let end = TraceEnd {
            events: 0,
            exit: ending.exit.to_string(),
            complete: ending.loss.is_none() && ending.interrupted.is_none(),
        };
        recorder.writer.finish(&end)?;
        Ok((recording, ending))
    }

    /// A run that was recorded earlier. Whether it is whole shows when it is read.
    pub fn open(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// Removes what was recorded.
    pub fn remove(self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    pub fn trace(&self) -> PathBuf {
        self.folder.join("trace")
    }

    pub fn read(&self) -> Result<TraceReader<BufReader<File>>, TraceError> {
        TraceReader::open(self.trace())
    }

    /// Reads a run while it is being recorded.
    pub fn follow<'a>(&self, follower: &'a Follower) -> Result<TraceReader<BufReader<Following<'a>>>, TraceError> {
        TraceReader::new(BufReader::with_capacity(64 << 10, Following { path: self.trace(), file: None, follower }))
    }

    /// A PM file as it was when the target first touched it.
    pub fn base(&self, file: FileId) -> PathBuf {
        self.folder.join(format!("base-{file}"))
    }
}

/// What the recorder of a run and somebody who reads it meanwhile know of each other.
///
/// A target with many threads takes all cores, and whoever analyses it falls behind, only to need a core for itself
/// when the run is over. So the recorder waits, and with it the target, once it is too far ahead.
#[derive(Debug, Default)]
pub struct Follower {
    over: AtomicBool,
    read: AtomicU64,
    gone: AtomicBool,
}

/// How many bytes of the trace the recorder may be ahead: one or two million events. With less, threads that spin on a lock whose owner
/// waits for the recorder cost more than is gained.
const AHEAD: u64 = 2 << 20;
/// How many events are written between two looks at the follower.
const LOOK: u64 = 4096;

impl Follower {
    /// Nothing is written any more.
    pub fn end(&self) {
        self.over.store(true, Ordering::Release);
    }

    fn wait_for(&self, trace: &Path) {
        let Ok(written) = trace.metadata().map(|file| file.len()) else { return };
        while written > self.read.load(Ordering::Relaxed) + AHEAD && !self.gone.load(Ordering::Relaxed) {
            std::thread::sleep(ROUND);
        }
    }
}

/// A file that somebody else is still writing.
#[derive(Debug)]
pub struct Following<'a> {
    path: PathBuf,
    /// Nothing until there is one.
    file: Option<File>,
    follower: &'a Follower,
}

impl Drop for Following<'_> {
    fn drop(&mut self) {
        self.follower.gone.store(true, Ordering::Relaxed);
    }
}

impl Read for Following<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            // Asked first: what is written before it is set is there afterwards.
            let over = self.follower.over.load(Ordering::Acquire);
            if self.file.is_none() {
                match File::open(&self.path) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound && !over => {}
                    opened => self.file = Some(opened?),
                }
            }
            let read = self.file.as_mut().map_or(Ok(0), |file| file.read(into))?;
            if read > 0 || over {
                self.follower.read.fetch_add(read as u64, Ordering::Relaxed);
                return Ok(read);
            }
            std::thread::sleep(ROUND);
        }
    }
}

/// How often is looked whether there is more.
const ROUND: Duration = Duration::from_millis(1);

struct Recorder<'a> {
    writer: TraceWriter<BufWriter<File>>,
    recording: &'a Recording,
    overlay: Option<Arc<Mutex<Overlay>>>,
    failure: Option<RecordError>,
    follower: Option<&'a Follower>,
    events: u64,
}

impl Recorder<'_> {
    fn save_base(&self, file: FileId, identity: (u64, u64), path: &Path) -> io::Result<()> {
        let private = self.overlay.as_ref().and_then(|overlay| {
            let overlay = overlay.lock().unwrap_or_else(|e| e.into_inner());
            overlay.by_inode(identity.0, identity.1).map(|(_, file)| Arc::clone(file))
        });
        let original = match private {
            Some(file) => file,
            None => Arc::new(File::open(path)?),
        };
        let found = original.metadata()?;
        if (found.dev(), found.ino()) != identity {
            return Err(io::Error::other("another file has taken its place"));
        }
        sparse::copy(&original, &File::create(self.recording.base(file))?)
    }
}

impl Sink for Recorder<'_> {
    fn event(&mut self, event: &Event<'_>, places: &dyn Places) -> Result<(), SinkError> {
        if let What::File { file, device, inode, path, .. } = event.what
            && let Err(source) = self.save_base(file, (device, inode), Path::new(path))
        {
            let message = source.to_string();
            self.failure = Some(RecordError::Base { path: path.into(), source });
            return Err(SinkError(message));
        }
        self.events += 1;
        if self.events.is_multiple_of(LOOK)
            && let Some(follower) = self.follower
        {
            follower.wait_for(&self.recording.trace());
        }
        self.writer.write(event, places).map_err(|e| {
            let message = e.to_string();
            self.failure = Some(RecordError::Trace(e));
            SinkError(message)
        })
    }
}
