//! `--save-trace`: saves the events of a run in a file, completely or not at all.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use pmvet_events::file::{TraceEnd, TraceError, TraceHeader, TraceReader, TraceWriter};
use pmvet_events::paths;
use pmvet_events::{Event, Places};
use pmvet_target::Ending;
use pmvet_target::collect::SinkError;

use crate::exit::Error;
use crate::summary::SavedTrace;

/// Saves the trace.
pub(super) struct Saver {
    path: PathBuf,
    writer: TraceWriter<BufWriter<File>>,
    failure: Option<TraceError>,
}

impl Saver {
    pub(super) fn create(path: &Path, command: Vec<OsString>, loads: bool) -> Result<Self, Error> {
        // A typo must not overwrite the user's pool.
        let is_filled = path.metadata().is_ok_and(|m| m.is_file() && m.len() > 0);
        if is_filled && matches!(TraceReader::open(path), Err(TraceError::NotATrace { .. })) {
            let path = path.display();
            return Err(Error::Usage(format!("--save-trace: {path} exists and is not a trace; remove it first")));
        }
        let header = TraceHeader { command, pmvet_version: env!("CARGO_PKG_VERSION").into(), loads };
        match TraceWriter::create(path, &header) {
            Ok(writer) => Ok(Self { path: path.to_owned(), writer, failure: None }),
            Err(e @ TraceError::Io { action: "create", .. }) => Err(Error::Usage(format!("--save-trace: {e}"))),
            Err(e) => {
                remove(path);
                Err(Error::Save(e))
            }
        }
    }

    pub(super) fn event(&mut self, event: &Event<'_>, places: &dyn Places) -> Result<(), SinkError> {
        self.writer.write(event, places).map_err(|e| {
            let message = e.to_string();
            self.failure = Some(e);
            SinkError(message)
        })
    }

    pub(super) fn finish(self, ending: &Ending) -> Result<SavedTrace, Error> {
        let end = TraceEnd {
            events: 0,
            complete: ending.interrupted.is_none() && ending.loss.is_none(),
            exit: ending.exit.to_string(),
        };
        let events = self.writer.events();
        match self.writer.finish(&end) {
            Ok(file) => {
                let bytes = file.get_ref().metadata().map_or(0, |m| m.len());
                Ok(SavedTrace { path: paths::shown(&self.path).to_string(), events, bytes })
            }
            Err(e) => {
                remove(&self.path);
                Err(Error::Save(e))
            }
        }
    }

    /// Why the trace is incomplete, if it is.
    pub(super) fn take_failure(&mut self) -> Option<TraceError> {
        self.failure.take()
    }

    pub(super) fn remove(self) {
        remove(&self.path);
    }
}

/// Removes only plain files; `--save-trace` may name a device.
fn remove(path: &Path) {
    if path.symlink_metadata().is_ok_and(|m| m.is_file()) {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn only_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        for path in [file.as_path(), link.as_path(), dir.path()] {
            remove(path);
        }
        assert!(!file.exists() && link.exists());
    }

    #[test]
    fn a_file_that_is_no_trace_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pool");
        std::fs::write(&path, "precious").unwrap();
        let create = |path: &Path| Saver::create(path, vec!["p".into()], false);
        assert_eq!(create(&path).err().map(|e| e.exit()), Some(Exit::Usage));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        assert!(create(&dir.path().join("new")).is_ok());
    }
}
