//! What is kept of a run: `.pmvet/runs/<id>/`, and `latest`, which points at the newest.

mod info;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use pmvet_findings::token::Token;
use pmvet_findings::{Finding, Run, jsonl};
use pmvet_target::launch;
use pmvet_target::recording::Recording;
use pmvet_target::sandbox::{Capture, Overlay};
use pmvet_target::sparse;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub(crate) use self::info::{DurableInfo, RunInfo, Text, texts, words};
use crate::cli;
use crate::exit::Error;
use crate::files;
use crate::recovery::{self, Identity};

pub(crate) const LATEST: &str = "latest";
/// Archive of the files that are not PM, as the recorded run left them, if they differ from the user's own.
pub(crate) const LEFT: &str = "left.tar";

/// The folder of one run.
#[derive(Debug, Clone)]
pub(crate) struct RunFolder {
    pub(crate) id: String,
    pub(crate) path: PathBuf,
    /// Errors of what could not be kept, printed after the findings.
    unsaved: Arc<Unsaved>,
    /// Locked, so that nobody removes it to make room.
    _in_use: Option<Arc<File>>,
}

#[derive(Debug, Default)]
struct Unsaved(Mutex<Vec<Error>>);

impl Unsaved {
    fn errors(&self) -> MutexGuard<'_, Vec<Error>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Drop for Unsaved {
    /// If a run ends without a report, its errors are printed here.
    fn drop(&mut self) {
        for error in self.errors().iter() {
            eprintln!("pmvet: {error}");
        }
    }
}

impl RunFolder {
    pub(crate) fn create(runs: &Path) -> Result<Self, Error> {
        let failed = |what: &Path, source| Error::Output { action: "make", what: what.display().to_string(), source };
        std::fs::create_dir_all(runs).map_err(|e| failed(runs, e))?;
        // Keeps runs out of version control.
        if let Some(parent) = runs.parent().filter(|p| p.file_name().is_some_and(|n| n == ".pmvet")) {
            let _ = std::fs::write(parent.join(".gitignore"), "*\n");
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let stamp = rfc3339(seconds).replace([':', '-'], "").replace('T', "-").replace('Z', "");
        for attempt in 0.. {
            let id = match attempt {
                0 => stamp.clone(),
                n => format!("{stamp}-{n}"),
            };
            let path = runs.join(&id);
            match std::fs::create_dir(&path) {
                Ok(()) => {
                    let path = path.canonicalize().map_err(|e| failed(&path, e))?;
                    let folder = Self { id, _in_use: in_use(&path), path, unsaved: Arc::default() };
                    folder.become_latest(runs).map_err(|e| failed(&runs.join(LATEST), e))?;
                    return Ok(folder);
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(failed(&path, e)),
            }
        }
        unreachable!("there are infinitely many names")
    }

    /// Replaces the link in one step, since other processes may be reading it.
    fn become_latest(&self, runs: &Path) -> io::Result<()> {
        let fresh = runs.join(format!(".{LATEST}-{}", std::process::id()));
        let _ = std::fs::remove_file(&fresh);
        std::os::unix::fs::symlink(&self.id, &fresh)?;
        std::fs::rename(&fresh, runs.join(LATEST))
    }

    /// The run with this name, or the newest.
    pub(crate) fn open(runs: &Path, id: Option<&str>) -> Result<Self, Error> {
        let path = runs.join(id.unwrap_or(LATEST)).canonicalize().map_err(|_| {
            Error::Run(match id {
                Some(id) => format!("there is no run `{id}` in {}", runs.display()),
                None => format!("there is no run in {}; `pmvet check` makes one", runs.display()),
            })
        })?;
        let id = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Self { id, _in_use: None, path, unsaved: Arc::default() })
    }

    /// The run with this name, or in this folder, or the newest in this folder of runs.
    pub(crate) fn named(runs: &Path, name: &str) -> Result<Self, Error> {
        let folder = Path::new(name);
        for place in [runs.join(name), folder.to_owned(), folder.join(LATEST)] {
            if place.join("run.json").is_file()
                && let Ok(path) = place.canonicalize()
            {
                let id = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
                return Ok(Self { id, _in_use: in_use(&path), path, unsaved: Arc::default() });
            }
        }
        Err(Error::Run(format!("`{name}` is neither a run in {} nor the folder of a run", runs.display())))
    }

    /// The run that a finding's id or the command line refers to, and the finding.
    pub(crate) fn with_finding(chosen: &cli::ChosenRun, id: &str) -> Result<(Self, Finding), Error> {
        let token: Option<Token> = id.parse().ok();
        let run = token.as_ref().map(|token| token.run.as_str()).or(chosen.run.as_deref());
        let folder = Self::open(&chosen.runs, run)?;
        let fingerprint = token.and_then(|token| token.fingerprint());
        let finding = folder.finding(fingerprint.as_deref().unwrap_or(id))?;
        Ok((folder, finding))
    }

    /// The finding with this number or fingerprint.
    fn finding(&self, id: &str) -> Result<Finding, Error> {
        let findings = self.findings()?;
        if let Ok(number) = id.parse::<usize>()
            && let Some(finding) = number.checked_sub(1).and_then(|i| findings.get(i))
        {
            return Ok(finding.clone());
        }
        let mut named = findings.iter().filter(|f| id.len() >= 4 && f.fingerprint.starts_with(id));
        match (named.next(), named.next()) {
            (Some(finding), None) => Ok(finding.clone()),
            (Some(_), Some(_)) => {
                Err(Error::Run(format!("`{id}` is the start of several fingerprints; write more of it")))
            }
            (None, _) => {
                Err(Error::Run(format!("run {} has no finding `{id}`; it has {} in all", self.id, findings.len())))
            }
        }
    }

    pub(crate) fn findings(&self) -> Result<Vec<Finding>, Error> {
        let path = self.file("findings.jsonl");
        let bad = |e: &dyn std::fmt::Display| Error::Run(format!("{} cannot be used: {e}", path.display()));
        let file = File::open(&path).map_err(|e| bad(&e))?;
        jsonl::read(io::BufReader::new(file)).collect::<Result<Vec<_>, _>>().map_err(|e| bad(&e))
    }

    /// All data for reports.
    pub(crate) fn report(&self) -> Result<Run, Error> {
        let path = self.file("report.json");
        let bad = |e: &dyn std::fmt::Display| {
            Error::Run(format!("{} cannot be used: {e}; the run may not have come to its end", path.display()))
        };
        let bytes = std::fs::read(&path).map_err(|e| bad(&e))?;
        serde_json::from_slice(&bytes).map_err(|e| bad(&e))
    }

    pub(crate) fn recording(&self) -> Recording {
        Recording::open(&self.path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens the last run to resume it, if it had the same command and settings.
    pub(crate) fn resume(runs: &Path, command: &[OsString], settings: &Identity) -> Result<(Self, RunInfo), Error> {
        let folder = Self::open(runs, None)?;
        let info = folder.read_info()?;
        match other_than(&info, command, settings) {
            None => Ok((folder, info)),
            Some(what) => Err(Error::Run(format!(
                "--resume: the last run ({}) had {what}; start a new run without --resume",
                folder.id
            ))),
        }
    }

    /// Makes a run on the recording of another: the same command, with the same settings except for its part of the work.
    pub(crate) fn on_recording(
        runs: &Path,
        recorded: &Path,
        command: &[OsString],
        settings: &Identity,
    ) -> Result<(Self, RunInfo), Error> {
        let from = Self::named(runs, &recorded.to_string_lossy())?;
        let mut info = from.read_info()?;
        let mut whole = settings.clone();
        [&mut whole, &mut info.settings].into_iter().for_each(|settings| drop(settings.remove(recovery::SHARD)));
        if let Some(what) = other_than(&info, command, &whole) {
            return Err(Error::Run(format!("the recording in {} had {what}; make another one", from.path.display())));
        }
        if !info.recorded {
            return Err(Error::Run(format!("the run in {} is not recorded to its end", from.path.display())));
        }
        let folder = Self::create(runs)?;
        for name in ["input", LEFT] {
            files::link(&from.file(name), &folder.file(name), true)?;
        }
        files::bring_recording(&from.path, &folder.path)?;
        info.settings = settings.clone();
        (info.complete, info.interrupted) = (false, None);
        // Written last: a run without this file has not begun.
        folder.write_info(&info)?;
        Ok((folder, info))
    }

    pub(crate) fn read_info(&self) -> Result<RunInfo, Error> {
        self.read_json("run.json")
    }

    pub(crate) fn read_json<T: DeserializeOwned>(&self, name: &str) -> Result<T, Error> {
        let path = self.file(name);
        let bad = |e: &dyn std::fmt::Display| Error::Run(format!("{} cannot be used: {e}", path.display()));
        let bytes = std::fs::read(&path).map_err(|e| bad(&e))?;
        serde_json::from_slice(&bytes).map_err(|e| bad(&e))
    }

    pub(crate) fn write_info(&self, info: &RunInfo) -> Result<(), Error> {
        let interrupted = launch::stopped_by().map(|signal| launch::signal_name(signal).into());
        self.write_json("run.json", &RunInfo { interrupted, ..info.clone() })
    }

    /// Writes a file in one step, so that it is there as a whole or not at all.
    pub(crate) fn write_json(&self, name: &str, value: &impl Serialize) -> Result<(), Error> {
        self.written(name, files::replace_json(&self.file(name), value))
    }

    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        self.written(name, files::replace(&self.file(name), |out| out.write_all(bytes)))
    }

    fn written(&self, name: &str, done: io::Result<()>) -> Result<(), Error> {
        done.map_err(|source| Error::Output { action: "write", what: self.file(name).display().to_string(), source })
    }

    /// Writes a file that the run can do without. Returns whether that worked; if not, the error is printed after the findings.
    pub(crate) fn keep_json(&self, name: &str, value: &impl Serialize) -> bool {
        self.kept(self.write_json(name, value))
    }

    pub(crate) fn keep_info(&self, info: &RunInfo) -> bool {
        self.kept(self.write_info(info))
    }

    /// Keeps what the recorded run left in files that are not PM, for `replay` and `--resume`.
    pub(crate) fn keep_left(&self, left: &Overlay, pm: &HashSet<PathBuf>) {
        let path = self.file(LEFT);
        let saved = File::create(&path).and_then(|file| left.save(file, pm));
        if !matches!(saved, Ok(true)) {
            let _ = std::fs::remove_file(&path);
        }
        let what = "the files that the recorded run left".into();
        self.kept(saved.map(drop).map_err(|source| Error::Output { action: "keep", what, source }));
    }

    /// What the recorded run left in files that are not PM.
    pub(crate) fn left(&self) -> Result<Overlay, Error> {
        let loaded = match File::open(self.file(LEFT)) {
            Ok(file) => Overlay::load(file, Capture::Named),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Overlay::new(Capture::Named)),
            Err(e) => Err(e),
        };
        let what = "the files that the recorded run left".into();
        loaded.map_err(|source| Error::Output { action: "bring back", what, source })
    }

    /// Notes an error about something that could not be kept, or done for that reason.
    pub(crate) fn kept(&self, done: Result<(), Error>) -> bool {
        let saved = done.is_ok();
        self.unsaved.errors().extend(done.err());
        saved
    }

    /// All that could not be kept so far.
    pub(crate) fn take_unsaved(&self) -> Vec<Error> {
        std::mem::take(&mut *self.unsaved.errors())
    }

    /// A file without a name: in the run's folder, or in memory if there is no room for one.
    pub(crate) fn temporary(&self) -> io::Result<File> {
        sparse::temporary(&self.path)
    }
}

/// How a run differs from one with this command and these settings, if at all.
fn other_than(info: &RunInfo, command: &[OsString], settings: &Identity) -> Option<String> {
    let other = recovery::differences(&info.settings, settings);
    match () {
        () if info.command != texts(command) => Some("another command line".into()),
        () if !other.is_empty() => Some(format!("other options: {}", other.join(", "))),
        () if info.version != env!("CARGO_PKG_VERSION") => Some("another version of pmvet".into()),
        () => None,
    }
}

/// Locks a folder as long as the file is open. On a file system without locks, nothing keeps the run from being removed.
fn in_use(path: &Path) -> Option<Arc<File>> {
    let folder = File::open(path).ok()?;
    folder.try_lock_shared().ok()?;
    Some(Arc::new(folder))
}

/// A time, given as seconds since 1970, in a form that sorts: `2026-11-15T05:12:26Z`.
pub(crate) fn rfc3339(seconds: u64) -> String {
    /// The last one whose year has four digits.
    const LAST_SECOND: u64 = 253_402_300_799;
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_SECOND))).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(rfc3339(1_794_719_546), "2026-11-15T05:12:26Z");
        assert_eq!(rfc3339(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!([253_402_300_799, u64::MAX].map(rfc3339), ["9999-12-31T23:59:59Z"; 2]);
    }
}
