//! Runs one target many times.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pmvet_events::plan::{Forks, Plan};
use pmvet_events::stage::{ForkPoint, MAP};
use pmvet_events::{Event, Places, What};
use pmvet_target::collect::SinkError;
use pmvet_target::forkserver::{FIRST, ForkServer, ForkedEnd, RunLimits};
use pmvet_target::install::Install;
use pmvet_target::launch::{Private, TargetExit};
use pmvet_target::program::Program;
use pmvet_target::sandbox::{Capture, Output, Overlay};
use pmvet_target::{Launch, Sink, sparse};

/// Counts stores.
#[derive(Default)]
struct Stores(u32);

impl Sink for Stores {
    fn event(&mut self, event: &Event<'_>, _: &dyn Places) -> Result<(), SinkError> {
        self.0 += u32::from(matches!(event.what, What::Store { .. } | What::Rmw { .. }));
        Ok(())
    }
}

struct Served {
    _folder: tempfile::TempDir,
    pool: PathBuf,
    input: Arc<File>,
    server: ForkServer,
}

fn serve(count: bool) -> Served {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = folder.path().join("served");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/served.c");
    assert!(Command::new("gcc").arg("-O1").arg(source).arg("-o").arg(&program).status().unwrap().success());
    let pool = folder.path().join("pool");
    let input = Arc::new(sparse::unnamed("/input".as_ref()).unwrap());
    let launch = Launch {
        program: Program::find(&[program.into(), pool.clone().into()]).unwrap(),
        plan: Plan { deterministic: true, pm: vec![pool.display().to_string()], ..Plan::default() },
        follow_forks: true,
        bare: false,
        sandbox: Some(Private {
            overlay: Arc::new(Mutex::new(Overlay::new(Capture::Writable))),
            input: Some(Arc::clone(&input)),
            output: Output::Tail(1024),
            driver: None,
            timeout: None,
            by_the_clock: false,
            cancel: None,
        }),
    };
    let points = Forks { files: vec![pool.clone()], count, ..Forks::default() };
    let server = ForkServer::start(&launch, points, &Install::find().unwrap()).unwrap();
    Served { _folder: folder, pool, input, server }
}

impl Served {
    /// A run on a fresh pool, or on the one that the server has open. Returns its end, stores and stray processes.
    fn run(&mut self, server: usize, input: &str) -> (ForkedEnd, u32, usize) {
        self.input.set_len(0).unwrap();
        self.input.write_all_at(input.as_bytes(), 0).unwrap();
        if server == FIRST {
            self.server.overlay().lock().unwrap().hide(self.pool.clone());
        }
        let mut stores = Stores::default();
        let limits = RunLimits { time: Duration::from_secs(if input.ends_with('h') { 1 } else { 60 }), bytes: 1 << 28 };
        let run = self.server.run(server, &limits, &mut stores).unwrap();
        assert!(run.loss.is_none(), "{run:?}");
        (run.end, stores.0, run.strays)
    }

    fn status(&mut self, server: usize, input: &str) -> i32 {
        match self.run(server, input).0 {
            ForkedEnd::Exit(TargetExit::Status(status)) => status,
            end => panic!("{input}: {end:?}"),
        }
    }
}

#[test]
fn runs_are_alike_whatever_came_before() {
    let mut served = serve(true);
    assert_eq!(served.server.point(FIRST), ForkPoint::Files);
    let start = served.server.counts();
    let counts = |served: &mut Served, input: &str| {
        served.server.set_counts(&start);
        let status = served.status(FIRST, input);
        (status, served.server.counts())
    };
    let first = counts(&mut served, "123");
    assert_eq!(first.0, 3);
    let other = counts(&mut served, "9");
    assert_ne!(first.1, other.1);
    // The first time the code was translated by the child, then by the server.
    for _ in 0..3 {
        assert_eq!(counts(&mut served, "123"), first);
    }
    assert_eq!(counts(&mut served, "9"), other);
}

/// The first access to another mapping is not for the stubs.
#[test]
fn a_call_path_has_the_same_number_however_it_is_found() {
    let mut served = serve(true);
    let start = served.server.counts();
    let [two, one] = ["t", "u"].map(|input| {
        served.server.set_counts(&start);
        assert_eq!(served.status(FIRST, input), 1);
        served.server.counts()
    });
    let taken = two[..MAP].iter().filter(|&&count| count != 0).count();
    assert!(taken >= 5, "{taken}");
    assert!(two[..MAP] == one[..MAP]);
}

#[test]
fn deaths_of_all_kinds_are_told_and_survived() {
    let mut served = serve(true);
    assert_eq!(served.run(FIRST, "1a").0, ForkedEnd::Exit(TargetExit::Signal(libc::SIGABRT)));
    assert_eq!(served.run(FIRST, "1s").0, ForkedEnd::Exit(TargetExit::Signal(libc::SIGSEGV)));
    assert_eq!(served.run(FIRST, "1h").0, ForkedEnd::Timeout);
    assert_eq!(served.run(FIRST, "1m").0, ForkedEnd::Runaway);
    let (end, _, strays) = served.run(FIRST, "12f");
    assert_eq!((end, strays), (ForkedEnd::Exit(TargetExit::Status(2)), 1));
    assert_eq!(served.status(FIRST, "1234"), 4);
}

#[test]
fn a_branch_has_the_pool_open() {
    let mut served = serve(true);
    served.server.overlay().lock().unwrap().hide(served.pool.clone());
    let second = served.server.branch(FIRST).unwrap().unwrap();
    assert_eq!(served.server.point(second), ForkPoint::Input);
    assert_eq!(served.status(second, "12"), 2);
    // The pool was not restored.
    assert_eq!(served.status(second, "12"), 4);
    assert_eq!(served.run(second, "a").0, ForkedEnd::Exit(TargetExit::Signal(libc::SIGABRT)));
    served.server.end(second);
    assert_eq!(served.status(FIRST, "12"), 2);
}

#[test]
fn runs_can_keep_to_themselves_what_they_do_to_pm() {
    let mut served = serve(true);
    served.server.overlay().lock().unwrap().hide(served.pool.clone());
    let second = served.server.branch(FIRST).unwrap().unwrap();
    assert!(served.server.can_keep_apart(second) && !served.server.can_keep_apart(FIRST));
    let start = served.server.counts();
    for _ in 0..3 {
        served.server.keep_apart(true);
        served.server.set_counts(&start);
        assert_eq!(served.status(second, "12"), 2);
        assert!(!served.server.was_left());
    }
    let apart = served.server.counts();
    // These runs end where they would access the pool in another way.
    for other_way in ["1r", "1w", "1o", "1c", "1d", "1v", "1f"] {
        served.server.keep_apart(true);
        assert_eq!(served.run(second, other_way), (ForkedEnd::Exit(TargetExit::Status(0)), 0, 0), "{other_way}");
        assert!(served.server.was_left(), "{other_way}");
    }
    served.server.keep_apart(false);
    served.server.set_counts(&start);
    assert_eq!(served.status(second, "12"), 2);
    assert!(served.server.counts() == apart);
    assert_eq!(served.status(second, "3r"), 3);
    assert!(!served.server.was_left());
}

#[test]
fn events_come_from_each_run() {
    let mut served = serve(false);
    for _ in 0..3 {
        let (end, stores, _) = served.run(FIRST, "1234");
        assert_eq!((end, stores), (ForkedEnd::Exit(TargetExit::Status(4)), 4));
    }
    assert_eq!(served.run(FIRST, "1a").0, ForkedEnd::Exit(TargetExit::Signal(libc::SIGABRT)));
    assert_eq!(served.run(FIRST, "7").1, 1);
}
