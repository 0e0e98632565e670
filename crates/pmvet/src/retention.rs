//! Decides which runs are kept and which are removed: for `pmvet runs`, and after the run of every engine.
//!
//! Never removed are runs that somebody may still want: the newest, pinned ones (such as the source of a baseline), those whose folder the
//! user renamed, shards that may not be joined yet, and those that another pmvet has open.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::exit::Error;
use crate::run_folder::{LATEST, RunFolder, RunInfo};
use crate::summary::render::bytes;

/// A file with this name in a run's folder pins the run. It says why.
const PINNED: &str = "pinned";
/// Prefix of a folder that is being removed. If pmvet was interrupted, the next removal finishes it.
const REMOVED: &str = ".removed-";
/// Default of `[runs] limit`, the room for all runs of a folder: enough for hundreds of usual runs, and little beside a source tree with
/// its builds.
pub(crate) const DEFAULT_LIMIT_BYTES: u64 = 4 << 30;

/// A run that is kept.
#[derive(Debug)]
pub(crate) struct KeptRun {
    pub(crate) folder: RunFolder,
    /// Nothing if `run.json` cannot be read.
    pub(crate) info: Option<RunInfo>,
    pub(crate) size_bytes: u64,
    /// Why it must not be removed to make room, if so.
    pub(crate) protected: Option<String>,
}

impl KeptRun {
    fn read(folder: RunFolder, newest: bool) -> Self {
        let info = folder.read_info().ok();
        let pinned = std::fs::read_to_string(folder.file(PINNED)).ok();
        let is_shard = info.as_ref().and_then(|info| info.settings.get("shard")).is_some_and(|shard| shard != "None");
        let protected = if newest {
            Some("the last".into())
        } else if let Some(reason) = pinned {
            Some(format!("pinned: {}", reason.trim()))
        } else if !is_stamp(&folder.id) {
            Some("named by you".into())
        } else {
            is_shard.then(|| "a shard".into())
        };
        Self { size_bytes: disk_usage(&folder.path), folder, info, protected }
    }

    /// How long ago it was started; nothing if unknown.
    pub(crate) fn age(&self, now: SystemTime) -> Option<Duration> {
        let started = UNIX_EPOCH.checked_add(Duration::from_secs(self.info.as_ref()?.started))?;
        now.duration_since(started).ok()
    }
}

/// Whether pmvet gave this name: `20261115-051226`, and `-1` for the second in a second.
fn is_stamp(id: &str) -> bool {
    let mut parts = id.split('-');
    let mut digits =
        |count: usize| parts.next().is_some_and(|p| p.len() == count && p.bytes().all(|b| b.is_ascii_digit()));
    let (day, time) = (digits(8), digits(6));
    day && time && parts.next().is_none_or(|n| n.parse::<u32>().is_ok()) && parts.next().is_none()
}

/// All runs in a folder, oldest first. A folder that does not exist has none.
pub(crate) fn list(runs: &Path) -> Result<Vec<KeptRun>, Error> {
    let latest = runs.join(LATEST).canonicalize().ok();
    let kept = |folder: RunFolder| {
        let newest = latest.as_ref() == Some(&folder.path);
        KeptRun::read(folder, newest)
    };
    let mut found: Vec<KeptRun> = folders(runs)?.into_iter().map(kept).collect();
    found.sort_by_key(|run| (run.info.as_ref().map_or(0, |info| info.started), run.folder.id.clone()));
    Ok(found)
}

/// The folders of the runs that are kept, in no order.
pub(crate) fn folders(runs: &Path) -> Result<Vec<RunFolder>, Error> {
    let failed = |source| Error::Output { action: "list", what: runs.display().to_string(), source };
    let entries = match std::fs::read_dir(runs) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        // `latest` is a link.
        if hidden || !entry.file_type().is_ok_and(|kind| kind.is_dir()) || !entry.path().join("run.json").exists() {
            continue;
        }
        found.extend(RunFolder::open(runs, entry.file_name().to_str()));
    }
    Ok(found)
}

/// The disk space of a folder. Files that vanish meanwhile count nothing.
fn disk_usage(folder: &Path) -> u64 {
    let mut sum = 0;
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            // `blocks` counts 512 bytes each on every file system. The length would be wrong, since images have holes.
            sum += metadata.blocks() * 512;
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    sum
}

/// Pins a run, so that it is never removed to make room.
pub(crate) fn pin(folder: &RunFolder, reason: &str) -> Result<(), Error> {
    folder.write(PINNED, format!("{reason}\n").as_bytes())
}

pub(crate) fn unpin(folder: &RunFolder) -> Result<(), Error> {
    match std::fs::remove_file(folder.file(PINNED)) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(Error::Output { action: "remove", what: folder.file(PINNED).display().to_string(), source })
        }
        _ => Ok(()),
    }
}

/// What to remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prune {
    /// The oldest, until the rest takes no more than this.
    ToBytes(u64),
    /// All but the newest `keep`, and only those that are older.
    Beyond { keep: usize, older_than: Duration },
}

/// Runs that were removed, and the room that they took.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Removed {
    pub(crate) names: Vec<String>,
    pub(crate) size_bytes: u64,
}

/// The runs that have to go, oldest first.
fn chosen(runs: &[KeptRun], how: Prune, now: SystemTime) -> Vec<&KeptRun> {
    let may_go = |run: &&KeptRun| run.protected.is_none();
    match how {
        Prune::ToBytes(limit) => {
            let mut left: u64 = runs.iter().map(|run| run.size_bytes).sum();
            let too_much = |run: &&KeptRun| {
                let over = left > limit;
                left -= if over { run.size_bytes } else { 0 };
                over
            };
            runs.iter().filter(may_go).take_while(too_much).collect()
        }
        Prune::Beyond { keep, older_than } => {
            // A run of unknown age, or from the future, is not old.
            let old = |run: &&KeptRun| older_than.is_zero() || run.age(now).is_some_and(|age| age >= older_than);
            runs.iter().rev().skip(keep).filter(may_go).filter(old).collect::<Vec<_>>().into_iter().rev().collect()
        }
    }
}

/// Removes what `how` says from `folder`.
pub(crate) fn prune(folder: &Path, how: Prune) -> Result<Removed, Error> {
    finish_removals(folder);
    let runs = list(folder)?;
    let mut removed = Removed::default();
    for run in chosen(&runs, how, SystemTime::now()) {
        if remove(&run.folder.path)? {
            removed.names.push(run.folder.id.clone());
            removed.size_bytes += run.size_bytes;
        }
    }
    Ok(removed)
}

/// Removes one run. Says whether it could: not while another pmvet has it open.
fn remove(path: &Path) -> Result<bool, Error> {
    let failed = |source| Error::Output { action: "remove", what: path.display().to_string(), source };
    let folder = File::open(path).map_err(failed)?;
    if folder.try_lock().is_err() {
        return Ok(false);
    }
    // The rename removes it in one step, also for other processes.
    let gone = match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => parent.join(format!("{REMOVED}{}", name.to_string_lossy())),
        _ => PathBuf::from(path),
    };
    std::fs::rename(path, &gone).and_then(|()| std::fs::remove_dir_all(&gone)).map_err(failed)?;
    Ok(true)
}

/// Removes folders that an interrupted pmvet left half removed.
fn finish_removals(runs: &Path) {
    for entry in std::fs::read_dir(runs).into_iter().flatten().flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(REMOVED.as_bytes()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Makes room after a run, and says what was removed. A failure is no error of the run.
pub(crate) fn make_room(runs: &Path, limit: Option<u64>, quiet: bool) {
    let Some(limit) = limit else { return };
    match prune(runs, Prune::ToBytes(limit)) {
        Ok(removed) if removed.names.is_empty() => {}
        Ok(removed) if quiet => drop(removed),
        Ok(removed) => eprintln!(
            "pmvet: removed {} from {}, to stay below {} ([runs] limit in pmvet.toml; `pmvet runs --pin RUN` keeps a run)",
            removed.shown(),
            runs.display(),
            bytes(limit)
        ),
        Err(error) => eprintln!("pmvet: no room could be made: {error}"),
    }
}

impl Removed {
    /// `3 runs, 20261115-051226 to 20261116-081500 (1.2 GiB)`
    pub(crate) fn shown(&self) -> String {
        let size = bytes(self.size_bytes);
        match self.names.as_slice() {
            [] => "no run".into(),
            [one] => format!("run {one} ({size})"),
            [first, .., last] => format!("{} runs, {first} to {last} ({size})", self.names.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    /// A folder with runs, each of which takes some room.
    fn runs(ids: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (second, id) in ids.iter().enumerate() {
            let path = folder.path().join(id);
            std::fs::create_dir(&path).unwrap();
            let info = RunInfo { started: 1000 + second as u64, ..RunInfo::new(&["p".into()], &[]) };
            std::fs::write(path.join("run.json"), serde_json::to_vec(&info).unwrap()).unwrap();
            std::fs::write(path.join("trace"), vec![1; 64 << 10]).unwrap();
        }
        std::os::unix::fs::symlink(ids.last().unwrap(), folder.path().join(LATEST)).unwrap();
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        list(folder).unwrap().into_iter().map(|run| run.folder.id).collect()
    }

    const IDS: [&str; 4] = ["20260101-000001", "20260101-000002", "20260101-000002-1", "20260101-000003"];

    #[test]
    fn stamps_are_those_of_pmvet() {
        assert!(IDS.iter().all(|id| is_stamp(id)));
        for name in ["before-the-change", "2026", "20260101-000001-x", "20260101-000001-1-1", "20260101-00001é", ""] {
            assert!(!is_stamp(name), "{name}");
        }
    }

    #[test]
    fn the_oldest_make_room() {
        let folder = runs(&IDS);
        let (one, all) = (
            list(folder.path()).unwrap()[0].size_bytes,
            list(folder.path()).unwrap().iter().map(|r| r.size_bytes).sum(),
        );
        assert!(one >= 64 << 10, "{one}");
        assert_eq!(prune(folder.path(), Prune::ToBytes(all)).unwrap(), Removed::default());
        let removed = prune(folder.path(), Prune::ToBytes(all - 1)).unwrap();
        assert_eq!(removed.names, [IDS[0]]);
        assert_eq!(removed.shown(), format!("run {} ({})", IDS[0], bytes(one)));
        let removed = prune(folder.path(), Prune::ToBytes(0)).unwrap();
        assert_eq!((removed.names.len(), names(folder.path())), (2, vec![IDS[3].to_owned()]), "the last one stays");
    }

    #[test]
    fn what_somebody_wants_stays() {
        let folder = runs(&["20260101-000001", "before", "20260101-000002", "20260101-000003", "20260101-000004"]);
        pin(&RunFolder::open(folder.path(), Some("20260101-000001")).unwrap(), "why not").unwrap();
        let busy = File::open(folder.path().join("20260101-000002")).unwrap();
        busy.lock_shared().unwrap();
        let removed = prune(folder.path(), Prune::Beyond { keep: 0, older_than: Duration::ZERO }).unwrap();
        assert_eq!(removed.names, ["20260101-000003"]);
        drop(busy);
        unpin(&RunFolder::open(folder.path(), Some("20260101-000001")).unwrap()).unwrap();
        let removed = prune(folder.path(), Prune::ToBytes(0)).unwrap();
        assert_eq!(removed.names, ["20260101-000001", "20260101-000002"]);
        assert_eq!(names(folder.path()), ["before", "20260101-000004"]);
    }

    #[test]
    fn the_newest_are_counted_and_the_young_stay() {
        let folder = runs(&IDS);
        let prune = |keep, older_than| prune(folder.path(), Prune::Beyond { keep, older_than }).unwrap().names;
        assert!(prune(0, Duration::from_secs(u64::MAX / 2)).is_empty());
        assert_eq!(prune(3, Duration::from_secs(60)), [IDS[0]]);
        assert_eq!(prune(1, Duration::ZERO), [IDS[1], IDS[2]]);
    }

    #[test]
    fn what_an_interrupted_removal_left_goes_with_the_next() {
        let folder = runs(&IDS);
        let half = folder.path().join(format!("{REMOVED}20250101-000000"));
        std::fs::create_dir(&half).unwrap();
        std::fs::write(half.join("trace"), "x").unwrap();
        assert_eq!(names(folder.path()).len(), 4);
        prune(folder.path(), Prune::ToBytes(u64::MAX)).unwrap();
        assert!(!half.exists());
    }

    #[test]
    fn a_folder_that_is_not_there_has_no_runs() {
        assert!(list(Path::new("/no/such/folder")).unwrap().is_empty());
        assert!(list(Path::new("/dev/null")).is_err());
    }
}
