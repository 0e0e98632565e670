//! What the tests share that prove that pmvet touches no file of the user's: a folder with all kinds of files, a program that does
//! to them whatever can be done (`tests/fileops/`), and ways to run it in each role of each engine.

pub mod outcome;
pub mod snapshot;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use outcome::{FileOutcome, Reports};
use snapshot::Snapshot;
use tempfile::TempDir;

use crate::{finish, pmvet, put_in_place, repository, scratch};

/// Who does it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// `pmvet check`
    Check,
    /// `pmvet race`
    Race,
    /// `pmvet verify`
    Verify,
    /// `pmvet fuzz`
    Fuzz,
}

/// As what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRole {
    /// What prepares the files of all runs.
    SetUp,
    /// The target itself.
    Workload,
    /// What runs on crash images.
    Recovery,
    /// What judges a recovered image.
    Oracle,
}

/// How pmvet keeps it from the user's files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backend {
    /// Mounts of its own, that the user does not see.
    Namespace,
    /// A tracer that answers its system calls.
    Supervisor,
    /// Whatever pmvet chooses.
    Any,
}

/// All engines.
pub const ENGINES: [Engine; 4] = [Engine::Check, Engine::Race, Engine::Verify, Engine::Fuzz];
/// All roles.
pub const ROLES: [FileRole; 4] = [FileRole::SetUp, FileRole::Workload, FileRole::Recovery, FileRole::Oracle];

impl Engine {
    /// The command's name.
    pub fn name(self) -> &'static str {
        match self {
            Engine::Check => "check",
            Engine::Race => "race",
            Engine::Verify => "verify",
            Engine::Fuzz => "fuzz",
        }
    }
}

impl FileRole {
    /// For messages.
    pub fn name(self) -> &'static str {
        match self {
            FileRole::SetUp => "set-up",
            FileRole::Workload => "workload",
            FileRole::Recovery => "recovery",
            FileRole::Oracle => "oracle",
        }
    }
}

impl Backend {
    fn variable(self) -> Option<&'static str> {
        match self {
            Backend::Namespace => Some("namespace"),
            Backend::Supervisor => Some("supervisor"),
            Backend::Any => None,
        }
    }
}

/// One operation, or `all` of them, done in one role of one engine.
#[derive(Debug, Clone)]
pub struct FileCase {
    /// The sandbox that is forced on pmvet.
    pub backend: Backend,
    /// The engine that runs it.
    pub engine: Engine,
    /// What the engine takes it for.
    pub role: FileRole,
    /// A name that [`operations`] knows, or `all`.
    pub operation: String,
}

impl fmt::Display for FileCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let backend = self.backend.variable().unwrap_or("any sandbox");
        write!(f, "{backend}, {}, {}, {}", self.engine.name(), self.role.name(), self.operation)
    }
}

/// An operation that `fileops` knows.
#[derive(Debug)]
pub struct Operation {
    /// System calls of which one is to blame if it is refused.
    pub calls: Vec<String>,
    /// Not every sandbox has to do it.
    pub optional: bool,
}

/// Compiles `fileops`, if its source is newer.
pub fn fileops() -> PathBuf {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _lock = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let program = scratch().join("fileops");
    let folder = repository().join("crates/pmvet/tests/fileops");
    let sources: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()).collect();
    let newest = |path: &Path| path.metadata().and_then(|m| m.modified()).ok();
    if newest(&program) < sources.iter().filter_map(|path| newest(path)).max() {
        put_in_place(&program, |to| {
            let mut command = Command::new("gcc");
            command.args(["-O1", "-g", "-Wall", "-Wextra", "-pthread", "-o"]).arg(to);
            command.args(sources.iter().filter(|path| path.extension() == Some(OsStr::new("c"))));
            let output = command.output().unwrap();
            assert!(output.status.success(), "gcc: {}", String::from_utf8_lossy(&output.stderr));
        });
    }
    program
}

/// All operations, by name, as `fileops` lists them.
pub fn operations() -> &'static BTreeMap<String, Operation> {
    static ALL: OnceLock<BTreeMap<String, Operation>> = OnceLock::new();
    ALL.get_or_init(|| {
        let output = Command::new(fileops()).arg("--list").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let operation = |line: &str| {
            let [name, calls, optional] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let calls = calls.split(',').map(String::from).collect();
            (name.to_owned(), Operation { calls, optional: optional == "2" })
        };
        text.lines().map(operation).collect()
    })
}

/// The user's files, and a folder that pmvet is started in. They go when the value does.
#[derive(Debug)]
pub struct Ground {
    files: TempDir,
    work: TempDir,
    /// Operations that the file system does not have.
    skip: Vec<String>,
    /// Something has changed in it.
    spoilt: Cell<bool>,
}

/// Grounds that were used and are as they were at first: to make one takes longer than some runs.
#[derive(Debug)]
pub struct Grounds<'a> {
    below: &'a Path,
    user: Option<u32>,
    free: Mutex<Vec<Ground>>,
}

impl<'a> Grounds<'a> {
    /// Below this folder, for this user.
    pub fn new(below: &'a Path, user: Option<u32>) -> Self {
        Self { below, user, free: Mutex::default() }
    }

    /// Does some work on a ground. It is kept for others, unless the work has changed something in it.
    pub fn with<T>(&self, work: impl FnOnce(&Ground) -> T) -> T {
        let free = self.free.lock().unwrap().pop();
        let ground = free.unwrap_or_else(|| Ground::new(self.below, self.user));
        let result = work(&ground);
        if !ground.spoilt.get() {
            self.free.lock().unwrap().push(ground);
        }
        result
    }
}

impl Ground {
    /// Below this folder, for this user.
    pub fn new(below: &Path, user: Option<u32>) -> Self {
        let folder = |parent: &Path| tempfile::Builder::new().prefix("pmvet-files-").tempdir_in(parent).unwrap();
        let mut ground =
            Self { files: folder(below), work: folder(scratch()), skip: Vec::new(), spoilt: Cell::new(false) };
        fs::create_dir(ground.work.path().join("seeds")).unwrap();
        fs::write(ground.work.path().join("seeds/seed"), "a\nb\n").unwrap();
        for path in [ground.files.path(), ground.work.path()] {
            std::os::unix::fs::chown(path, user, user).unwrap();
        }
        ground.skip = ground.unknown_to_file_system(user);
        ground.prepare(&ground.folder(), user);
        let words = ["none".into()];
        ground.natively(user, &[ground.pool().into(), ground.folder().into()], &words).expect("fileops makes a pool");
        ground
    }

    /// All of the user's files, the two below included.
    pub fn files(&self) -> &Path {
        self.files.path()
    }

    /// The PM file.
    pub fn pool(&self) -> PathBuf {
        self.files.path().join("pool")
    }

    /// The folder with files of all kinds.
    pub fn folder(&self) -> PathBuf {
        self.files.path().join("folder")
    }

    /// The folder that pmvet is started in.
    pub fn work(&self) -> &Path {
        self.work.path()
    }

    fn prepare(&self, folder: &Path, user: Option<u32>) {
        let output = as_user(user, &fileops()).arg("--prepare").arg(folder).output().unwrap();
        assert!(output.status.success(), "fileops --prepare: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn natively(&self, user: Option<u32>, first: &[OsString], then: &[OsString]) -> Result<String, String> {
        let mut command = as_user(user, &fileops());
        // A mount would be seen by all, even if only for a moment.
        command.args(first).args(then).stdin(Stdio::null()).env("FILEOPS_SKIP", "by_mount");
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() { Ok(text) } else { Err(text) }
    }

    /// Does everything without pmvet: what fails then cannot be asked of pmvet.
    fn unknown_to_file_system(&self, user: Option<u32>) -> Vec<String> {
        let place = self.work.path().join("native");
        let (folder, pool) = (self.files.path().join("native"), &place);
        self.prepare(&folder, user);
        let (Ok(text) | Err(text)) = self.natively(user, &[pool.into(), folder.clone().into()], &["all".into()]);
        fs::remove_dir_all(&folder).unwrap();
        fs::remove_file(pool).unwrap();
        let optional = |name: &str| {
            let output = Command::new(fileops()).arg("--list").output().unwrap();
            let list = String::from_utf8(output.stdout).unwrap();
            list.lines().any(|line| line.starts_with(&format!("{name} ")) && !line.ends_with(" 0"))
        };
        let mut skip = Vec::new();
        for line in text.lines() {
            let mut words = line.split(' ');
            if let (Some("refused" | "missing"), Some(name)) = (words.next(), words.next()) {
                assert!(optional(name), "fileops fails by itself: {line}");
                skip.push(name.to_owned());
            }
        }
        skip
    }

    /// The command line of `pmvet` for a case.
    pub fn words(&self, case: &FileCase) -> Vec<OsString> {
        let (program, pool, folder) = (fileops(), self.pool(), self.folder());
        let line = |role: FileRole| {
            let operation = if role == case.role { &case.operation } else { "none" };
            format!("{} {} {} {operation}", program.display(), pool.display(), folder.display())
        };
        let recovers = matches!(case.role, FileRole::Recovery | FileRole::Oracle);
        let options: &[&str] = match case.engine {
            // Whatever a recovery maps there is PM, and stays as the crash of that recovery left it.
            Engine::Check if folder.starts_with("/dev/shm") => {
                &["check", "--jobs", "2", "--visits", "1", "--crash-recoveries", "0"]
            }
            Engine::Check => &["check", "--jobs", "2", "--visits", "1", "--crash-recoveries", "1"],
            Engine::Verify => &["verify", "--jobs", "2"],
            Engine::Race if recovers => &["race", "--confirm", "--rounds", "3", "--jobs", "2"],
            Engine::Race => &["race"],
            Engine::Fuzz if recovers => {
                &["fuzz", "--corpus", "corpus", "--seeds", "seeds", "--interleave", "--executions", "1"]
            }
            Engine::Fuzz => {
                &["fuzz", "--corpus", "corpus", "--seeds", "seeds", "--executions", "1", "--timeout", "60s"]
            }
        };
        let mut words: Vec<OsString> = options.iter().map(OsString::from).collect();
        words.extend(["--color".into(), "never".into(), "--pm".into(), pool.clone().into()]);
        words.extend(["--setup".into(), line(FileRole::SetUp).into()]);
        if recovers || matches!(case.engine, Engine::Check | Engine::Verify) {
            words.extend(["--recover".into(), line(FileRole::Recovery).into()]);
            words.extend(["--oracle".into(), line(FileRole::Oracle).into()]);
        }
        words.push("--".into());
        words.extend(line(FileRole::Workload).split(' ').map(OsString::from));
        if case.engine == Engine::Race || case.engine == Engine::Fuzz && recovers {
            words.push("race".into());
        }
        words
    }

    /// Runs a case, behind a command that starts what it is given, and says what is wrong.
    pub fn run(&self, case: &FileCase, before: &[OsString]) -> Result<FileOutcome, String> {
        let mut words: Vec<OsString> = before.to_vec();
        words.push(pmvet().into());
        words.extend(self.words(case));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).current_dir(self.work()).stdin(Stdio::null());
        command.env("TMPDIR", self.work()).env_remove("PMVET_SANDBOX");
        command.env("FILEOPS_SKIP", self.left_out(case).join(","));
        if let Some(backend) = case.backend.variable() {
            command.env("PMVET_SANDBOX", backend);
        }
        if case.backend != Backend::Namespace {
            command.env("FILEOPS_REFUSALS", "1");
        }
        let reports = Reports::new();
        command.env("FILEOPS_REPORT", reports.port().to_string());
        let snapshot = Snapshot::new(self.files());
        let output = finish(command, None).ok_or_else(|| format!("{case}: pmvet hangs"))?;
        let _ = fs::remove_dir_all(self.work().join("corpus"));
        let outcome = FileOutcome::new(output, reports.end());
        let mut wrong = changes(case, &snapshot);
        self.spoilt.set(self.spoilt.get() || !wrong.is_empty());
        wrong.extend(outcome.judge(case));
        if wrong.is_empty() { Ok(outcome) } else { Err(wrong.join("\n")) }
    }

    /// The operations that this case leaves out. Where all are done at once, the workload of `check` does those of a shell; elsewhere one
    /// stands for them, since the code of each program that they start would be translated again in each run.
    fn left_out(&self, case: &FileCase) -> Vec<&str> {
        let is_left_out = |name: &str| {
            let by_shell = name.starts_with("sh_") && name != "sh_write";
            by_shell && case.operation == "all" && (case.engine, case.role) != (Engine::Check, FileRole::Workload)
        };
        let names = operations().keys().map(String::as_str).filter(|name| is_left_out(name));
        self.skip.iter().map(String::as_str).chain(names).collect()
    }

    /// The case has a single operation, which cannot be asked for here.
    pub fn leaves_out(&self, case: &FileCase) -> bool {
        self.skip.contains(&case.operation)
    }
}

/// A program, to be run as this user.
pub fn as_user(user: Option<u32>, program: &Path) -> Command {
    let mut command = match user {
        None => return Command::new(program),
        Some(_) => Command::new("setpriv"),
    };
    command.args(&user_words(user)[1..]).arg(program);
    command
}

/// What starts a command as this user, without any privileges.
pub fn user_words(user: Option<u32>) -> Vec<OsString> {
    let Some(user) = user else { return Vec::new() };
    [
        "setpriv",
        &format!("--reuid={user}"),
        &format!("--regid={user}"),
        "--clear-groups",
        "--inh-caps=-all",
        "--bounding-set=-all",
    ]
    .map(OsString::from)
    .into()
}

/// What the user would find changed, a line for each operation.
pub fn changes(case: &FileCase, snapshot: &Snapshot) -> Vec<String> {
    let told = |(operation, changes): (Option<String>, Vec<String>)| {
        let case = FileCase { operation: operation.unwrap_or_else(|| case.operation.clone()), ..case.clone() };
        let more = if changes.len() > 1 { format!(" (and {} more changes)", changes.len() - 1) } else { String::new() };
        format!("{case}: {}{more}", changes[0])
    };
    snapshot.changes().into_iter().map(told).collect()
}
