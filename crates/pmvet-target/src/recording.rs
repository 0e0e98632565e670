//! A recorded run: its trace, and each PM file as it was at first contact. Together they give the content of PM at
//! every moment of the run, in any process, as often as it is needed.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use pmvet_events::event::{Event, What};
use pmvet_events::file::{TraceEnd, TraceError, TraceHeader, TraceReader, TraceWriter};
use pmvet_events::ids::FileId;
use pmvet_events::places::Places;
use pmvet_events::stage::OwnStage;

use crate::collect::{Sink, SinkError};
use crate::install::Install;
use crate::launch::{Ending, Launch, LaunchError, launch};
use crate::live_events::Feed;
use crate::sandbox::Overlay;
use crate::sparse;

/// The folder that holds a recorded run.
#[derive(Debug, Clone)]
pub struct Recording {
    folder: PathBuf,
    /// The paths of PM files, of a run that was just made.
    pub pm: HashSet<PathBuf>,
}

/// Why a run was not recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The target could not be run to its end.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The trace file could not be written.
    #[error("cannot save the trace: {0}")]
    Trace(#[from] TraceError),
    /// The initial image of a PM file could not be saved.
    #[error("cannot save PM file {}: {source}", .path.display())]
    Base {
        /// The PM file.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The counts of branches could not be saved.
    #[error("cannot save the branches in {}: {source}", .path.display())]
    Branches {
        /// The file in the recording.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

impl Recording {
    /// Runs a target and records it in `folder`, which exists. With a feed, it runs only as fast as the feed is
    /// emptied.
    pub fn make(
        folder: &Path,
        how: &Launch,
        header: &TraceHeader,
        install: &Install,
        feed: Option<Feed>,
    ) -> Result<(Self, Ending), RecordError> {
        let recording = Self::open(folder);
        let mut recorder = Recorder {
            writer: TraceWriter::create(recording.trace(), header)?,
            recording: &recording,
            overlay: how.sandbox.as_ref().map(|s| Arc::clone(&s.overlay)),
            failure: None,
            feed,
            pm: HashSet::new(),
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
        if let Some(feed) = recorder.feed {
            feed.end(recorder.writer.places().clone());
        }
        recorder.writer.finish(&end)?;
        let pm = recorder.pm;
        Ok((Self { pm, ..recording }, ending))
    }

    /// The same, and its branches are counted, too.
    pub fn make_counting(
        folder: &Path,
        mut how: Launch,
        header: &TraceHeader,
        install: &Install,
        feed: Option<Feed>,
    ) -> Result<(Self, Ending), RecordError> {
        let stage = OwnStage::create().map_err(LaunchError::SharedMemory)?;
        how.plan.branches = Some(stage.path());
        let (recording, ending) = Self::make(folder, &how, header, install, feed)?;
        let taken: Vec<u8> = stage.maps.edges.iter().map(|count| count.load(Ordering::Relaxed).min(1)).collect();
        let path = recording.branches_file();
        std::fs::write(&path, taken).map_err(|source| RecordError::Branches { path, source })?;
        Ok((recording, ending))
    }

    /// The branches that the run took, as numbers that are the same in every run of the program. None if they were not counted.
    pub fn branches(&self) -> Vec<u64> {
        let taken = std::fs::read(self.branches_file()).unwrap_or_default();
        (0..).zip(taken).filter(|(_, count)| *count > 0).map(|(branch, _)| branch).collect()
    }

    fn branches_file(&self) -> PathBuf {
        self.folder.join("branches")
    }

    /// A run that was recorded earlier. Only reading it shows whether it is complete.
    pub fn open(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), pm: HashSet::new() }
    }

    /// Removes what was recorded.
    pub fn remove(self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }

    /// The path of the trace file.
    pub fn trace(&self) -> PathBuf {
        self.folder.join("trace")
    }

    /// Reads the trace from its first event.
    pub fn read(&self) -> Result<TraceReader<BufReader<File>>, TraceError> {
        TraceReader::open(self.trace())
    }

    /// A PM file as it was when the target first touched it.
    pub fn base(&self, file: FileId) -> PathBuf {
        self.folder.join(format!("base-{file}"))
    }
}

struct Recorder<'a> {
    writer: TraceWriter<BufWriter<File>>,
    recording: &'a Recording,
    overlay: Option<Arc<Mutex<Overlay>>>,
    failure: Option<RecordError>,
    feed: Option<Feed>,
    pm: HashSet<PathBuf>,
}

impl Recorder<'_> {
    fn save_base(&self, file: FileId, identity: (u64, u64), path: &Path) -> io::Result<()> {
        let original = match &self.overlay {
            Some(overlay) => {
                let overlay = overlay.lock().unwrap_or_else(|e| e.into_inner());
                match overlay.by_inode(identity.0, identity.1) {
                    Some((_, file)) => file.try_clone()?,
                    None => overlay.open_file(path).or_else(|error| open_elsewhere(identity).ok_or(error))?,
                }
            }
            None => File::open(path)?,
        };
        let found = original.metadata()?;
        if (found.dev(), found.ino()) != identity {
            return Err(io::Error::other("another file has taken its place"));
        }
        sparse::copy(&original, &File::create(self.recording.base(file))?)
    }
}

/// Opens a file without a name through a process that has it open.
fn open_elsewhere(identity: (u64, u64)) -> Option<File> {
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let descriptors =
        processes.filter_map(|process| std::fs::read_dir(process.path().join("fd")).ok()).flatten().flatten();
    let same = |path: &PathBuf| path.metadata().is_ok_and(|found| (found.dev(), found.ino()) == identity);
    File::open(descriptors.map(|fd| fd.path()).find(same)?).ok()
}

impl Sink for Recorder<'_> {
    fn event(&mut self, event: &Event<'_>, places: &dyn Places) -> Result<(), SinkError> {
        if let What::File { file, device, inode, path, .. } = event.what {
            if let Err(source) = self.save_base(file, (device, inode), path) {
                let message = source.to_string();
                self.failure = Some(RecordError::Base { path: path.into(), source });
                return Err(SinkError(message));
            }
            self.pm.insert(path.into());
        }
        if let Some(feed) = &mut self.feed {
            feed.event(event);
        }
        self.writer.write(event, places).map_err(|e| {
            let message = e.to_string();
            self.failure = Some(RecordError::Trace(e));
            SinkError(message)
        })
    }
}
