//! The folder that all machines see.
//!
//! ```text
//! scatter.json    what is to be done; written last, so that a folder without it holds no work
//! job.sh          the array job
//! recording/      the run that tasks work on
//! seed            what campaigns start from
//! tasks/K/        the run of task K, task.json when it is over, and its log
//! corpora/K/      the test cases of task K
//! corpus/         those of all tasks, when they are gathered
//! ```

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::cli::ScatterEngine;
use crate::exit::{Error, Exit};
use crate::files;
use crate::run_folder::{LATEST, Text};

pub(crate) const SEED: &str = "seed";
const WORK: &str = "scatter.json";
const STATE: &str = "task.json";

/// `scatter.json`
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ScatteredWork {
    pub(crate) version: String,
    pub(crate) engine: ScatterEngine,
    pub(crate) tasks: u32,
    /// What follows the name of the engine.
    pub(crate) command: Vec<Text>,
    /// Where it was typed.
    pub(crate) folder: Text,
    /// The run that was recorded.
    pub(crate) recording: Option<String>,
}

/// `task.json`: how a task ended. A task that is running or was killed has none.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum TaskState {
    /// The task did its part, or as much as its budget allowed.
    Done(Exit),
    Failed(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CreatedByUs {
    Folder,
    Content,
}

#[derive(Debug)]
pub(crate) struct SharedFolder {
    path: PathBuf,
    /// Set while the folder was created, or found empty, and holds no work yet.
    created: Option<CreatedByUs>,
}

impl SharedFolder {
    /// Creates the folder. It may exist if it is empty.
    pub(crate) fn create(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Output { action: "make", what: path.display().to_string(), source };
        if path.to_str().is_none() {
            return Err(Error::Usage(format!("--shared: {} is no text, and scripts have to name it", path.display())));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // A share that is not mounted must not pass for an empty folder; the default folder is not on a share.
        if parent != Path::new(".pmvet") && !parent.is_dir() {
            return Err(Error::Usage(format!(
                "--shared: there is no folder {}; is the share mounted here?",
                parent.display()
            )));
        }
        let created = if path.is_dir() { CreatedByUs::Content } else { CreatedByUs::Folder };
        match fs::create_dir_all(path) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(e)),
            _ => {}
        }
        if fs::read_dir(path).map_err(failed)?.next().is_some() {
            return Err(Error::Usage(format!(
                "--shared: {} is not empty; `pmvet gather` joins what was scattered there. Name another folder for other work",
                path.display()
            )));
        }
        Ok(Self { path: path.canonicalize().map_err(failed)?, created: Some(created) })
    }

    pub(crate) fn existing(path: &Path) -> Result<Self, Error> {
        match path.canonicalize() {
            Ok(path) if path.join(WORK).is_file() => Ok(Self { path, created: None }),
            _ => Err(Error::Usage(format!(
                "there is no scattered work in {}; `pmvet scatter --shared` puts it there",
                path.display()
            ))),
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Its path. `create` has checked that it is valid text.
    pub(crate) fn text(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    pub(crate) fn recordings(&self) -> PathBuf {
        self.file("recording")
    }

    pub(crate) fn corpora(&self) -> PathBuf {
        self.file("corpora")
    }

    /// The runs of a task.
    pub(crate) fn task(&self, number: u32) -> PathBuf {
        self.path.join("tasks").join(number.to_string())
    }

    /// The run of a task, if it has begun.
    pub(crate) fn run_of(&self, number: u32) -> Option<PathBuf> {
        let run = self.task(number).join(LATEST);
        run.join("run.json").is_file().then_some(run)
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let path = self.file(name);
        let written = files::replace(&path, |out| out.write_all(bytes));
        written.map_err(|source| Error::Output { action: "write", what: path.display().to_string(), source })
    }

    /// Writes the work to do; from now on the folder is complete.
    pub(crate) fn finish(&mut self, work: &ScatteredWork) -> Result<(), Error> {
        let path = self.file(WORK);
        let written = files::replace_json(&path, work);
        written.map_err(|source| Error::Output { action: "write", what: path.display().to_string(), source })?;
        self.created = None;
        Ok(())
    }

    pub(crate) fn work(&self) -> Result<ScatteredWork, Error> {
        let path = self.file(WORK);
        let bad = |e: &dyn std::fmt::Display| Error::Run(format!("{} cannot be used: {e}", path.display()));
        let bytes = fs::read(&path).map_err(|e| bad(&e))?;
        let work: ScatteredWork = serde_json::from_slice(&bytes).map_err(|e| bad(&e))?;
        match work.version == env!("CARGO_PKG_VERSION") {
            true => Ok(work),
            false => Err(bad(&format!("it was written by pmvet {}; use that version on all machines", work.version))),
        }
    }

    pub(crate) fn state(&self, number: u32) -> Option<TaskState> {
        let bytes = fs::read(self.task(number).join(STATE)).ok()?;
        let damaged = |e| TaskState::Failed(format!("its {STATE} is damaged: {e}"));
        Some(serde_json::from_slice(&bytes).unwrap_or_else(damaged))
    }

    pub(crate) fn set_state(&self, number: u32, state: &TaskState) -> Result<(), Error> {
        let path = self.task(number).join(STATE);
        let written = files::replace_json(&path, state);
        written.map_err(|source| Error::Output { action: "write", what: path.display().to_string(), source })
    }

    /// Creates the folder of a task, and locks it for as long as the file is open.
    pub(crate) fn claim(&self, number: u32) -> Result<File, Error> {
        let folder = self.task(number);
        let failed = |source| Error::Output { action: "make", what: folder.display().to_string(), source };
        fs::create_dir_all(&folder).map_err(failed)?;
        let lock = File::create(folder.join("lock")).map_err(failed)?;
        if let Err(fs::TryLockError::WouldBlock) = lock.try_lock() {
            // A machine that was given up may still work on it, and processes of a killed task may live a moment longer.
            eprintln!("pmvet: task {number} is under way already, maybe on another machine; waiting for its end");
            lock.lock().map_err(failed)?;
        }
        // Some file systems have no locks.
        Ok(lock)
    }
}

impl Drop for SharedFolder {
    /// Removes a folder that got no work.
    fn drop(&mut self) {
        let Some(created) = self.created else { return };
        for name in ["recording", SEED, "job.sh"] {
            let path = self.file(name);
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
        }
        if created == CreatedByUs::Folder {
            let _ = fs::remove_dir(&self.path);
        }
    }
}
