//! What the tests of all crates share: where pmvet is and where it runs, the programs it runs on, and ways to look at what came of
//! it.
//!
//! | to test | begin with |
//! |---|---|
//! | a command on a program | [`TestPlace`], which gives [`Check`] and [`CheckedRun`] |
//! | a bug of the zoo | [`zoo::manifests`] |
//! | which events a program gives | [`litmus::Litmus`], [`tracing::trace`] |
//! | that a traced program does what it does natively | [`native`] |
//! | that no file of the user's changes | [`files::Ground`] |
//! | that pmvet ends when told to | [`stops::UnrulyPlace`] |
//! | work that several machines share | [`scatter::SharedWork`] |
//! | a page of the report | [`browser::Browser`] |
//!
//! A test is `make test`'s if it is quick or the only one of its kind; [`is_soak`], [`one_of_each`] and [`each_kind`] leave the others to `make soak`.

#![deny(missing_docs)]
#![allow(clippy::unwrap_used, reason = "what fails here fails a test")]

mod built;
mod check;
mod place;
mod processes;

pub mod browser;
pub mod files;
pub mod litmus;
pub mod native;
pub mod scatter;
pub mod stops;
pub mod tracing;
pub mod zoo;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

pub use built::{Linked, compile, make, pair, program, put_in_place};
pub use check::{Check, CheckedRun, line, on_awkward_programs};
pub use place::{TestPlace, Untouched};
pub use processes::{DEADLINE, Running, finish, wait_until};

/// pmvet's exit codes, this one for a run without findings.
pub const CLEAN: i32 = 0;
/// There is a finding of the severity that fails a run.
pub const FOUND: i32 = 1;
/// The command line or the configuration is wrong, or the program cannot be run.
pub const USAGE: i32 = 2;
/// The target, or its recovery, fails without any crash.
pub const FAILS_BY_ITSELF: i32 = 3;
/// Nothing was analysed: there was no PM file, no failure point or no time.
pub const NOTHING: i32 = 4;
/// The budget ended early, or a part of the work is missing.
pub const INCOMPLETE: i32 = 5;
/// A signal asked pmvet to stop.
pub const INTERRUPTED: i32 = 130;

/// Whether everything is tried, as `make soak` does. `make test` leaves out some of what is much alike.
pub fn is_soak() -> bool {
    std::env::var_os("PMVET_SOAK").is_some()
}

/// All of them in `make soak`, otherwise the first of each kind.
pub fn one_of_each<T, K: Ord>(all: impl IntoIterator<Item = T>, kind: impl Fn(&T) -> K) -> Vec<T> {
    each_kind(all, |one| [kind(one)])
}

/// All of them in `make soak`, otherwise each that is the first of one of its kinds. A bug of a program, for instance, is of a kind by its
/// program, and of another by its class.
pub fn each_kind<T, K: Ord, I: IntoIterator<Item = K>>(
    all: impl IntoIterator<Item = T>,
    kinds: impl Fn(&T) -> I,
) -> Vec<T> {
    let mut seen = BTreeSet::new();
    let mut is_first = |one: &T| kinds(one).into_iter().map(|kind| seen.insert(kind)).filter(|new| *new).count() > 0;
    all.into_iter().filter(|one| is_first(one) || is_soak()).collect()
}

/// The pmvet that was built with the test that runs.
pub fn pmvet() -> &'static Path {
    static BUILT: LazyLock<PathBuf> = LazyLock::new(|| profile_folder().join("pmvet"));
    &BUILT
}

/// Where cargo puts what it builds: tests are in `deps`, below.
fn profile_folder() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().to_owned()
}

/// A folder for what tests make, which `cargo clean` removes.
pub fn scratch() -> &'static Path {
    static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
        let folder = profile_folder().parent().unwrap().join("tmp");
        std::fs::create_dir_all(&folder).unwrap();
        folder
    });
    &FOLDER
}

/// The folder with the sources of everything.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Tests of one file that use both cores take turns.
pub fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does all jobs, two at a time, then names those that failed.
pub fn both_cores<T: Sync>(jobs: &[T], work: impl Fn(&T) -> Result<(), String> + Sync) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(message) = work(job) {
                        failures.lock().unwrap().push(message);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {} failed\n{}", failures.len(), jobs.len(), failures.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_seen() {
        if is_soak() {
            return;
        }
        let bugs = [("list", "flush"), ("list", "fence"), ("list", "flush"), ("tree", "flush"), ("tree", "fence")];
        assert_eq!(one_of_each(bugs, |bug| *bug), [bugs[0], bugs[1], bugs[3], bugs[4]]);
        assert_eq!(each_kind(bugs, |bug| [bug.0, bug.1]), [bugs[0], bugs[1], bugs[3]]);
    }
}
