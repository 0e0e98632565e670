//! What a campaign starts from: the target, its PM files, their content, and what is known from earlier campaigns.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use pmvet_engines::fuzz::campaign::FuzzError;
use pmvet_engines::fuzz::case::{Case, parse_file_name};
use pmvet_engines::fuzz::content::{FileContent, PmContent};
use pmvet_engines::fuzz::runner::FuzzTarget;
use pmvet_engines::fuzz::store::{ImageStore, Origin};
use pmvet_events::{Event, Places, What};
use pmvet_target::collect::{Sink, SinkError};
use pmvet_target::forkserver::RunLimits;
use pmvet_target::install::Install;
use pmvet_target::launch::{self, Launch};
use pmvet_target::sandbox::{Capture, Overlay};
use pmvet_target::shutdown;
use pmvet_target::sparse;

use super::exchange::Exchange;
use super::{say_torn, unusable};
use crate::budget;
use crate::cli;
use crate::exit::{Error, Exit};
use crate::workload;
use pmvet_target::Workload;

pub(super) struct FuzzStart {
    pub(super) workload: Workload,
    pub(super) target: FuzzTarget,
    pub(super) store: ImageStore,
    /// Test cases of earlier campaigns.
    pub(super) known: Vec<Case>,
    pub(super) corpus: PathBuf,
}

/// What stands for the input file in a command line.
pub(super) const INPUT: &str = "@@";

impl FuzzStart {
    /// Runs the target once to learn which files are PM. Returns the exit code if there is nothing to fuzz.
    pub(super) fn new(
        arguments: &cli::Fuzz,
        mut workload: Workload,
        seeds: &[Vec<u8>],
        corpus: &Path,
        install: Install,
    ) -> Result<Result<Self, Exit>, Error> {
        // First, so that nothing runs on a corpus that another campaign is using.
        let mut store = ImageStore::open(corpus).map_err(|e| unusable(corpus, e))?;
        if store.was_torn() && arguments.helper.is_none() {
            say_torn(corpus);
        }
        let input_path = corpus.join(".input");
        let mut input = None;
        for word in workload.program.arguments.iter_mut().filter(|word| *word == INPUT) {
            *word = input_path.clone().into();
            input = Some(input_path.clone());
        }
        let overlay = workload.files.above(Capture::Writable);
        let mut launch = workload.launch(false);
        launch.plan.snapshots = false;
        let found = discover(&mut launch, &overlay, seeds.first(), input.as_deref(), arguments, &install)?;
        let files = match found {
            Some((files, ended @ launch::TargetExit::Signal(_))) if files.is_empty() => {
                eprintln!("pmvet: the target ended ({ended}) on its first input before it mapped a PM file");
                return Ok(Err(Exit::TargetFailed));
            }
            Some((files, _)) if files.is_empty() => return Ok(Err(workload::no_pm(&workload))),
            Some((files, _)) => files,
            None => {
                return Ok(Err(
                    budget::exit_if_cut_short("the target, on its first input,").unwrap_or(Exit::Interrupted)
                ));
            }
        };
        let limits = RunLimits { time: arguments.timeout, bytes: arguments.memory << 20 };
        let content = start_content(&overlay, &files).map_err(FuzzError::Corpus)?;
        let target = FuzzTarget { launch, install, files, input, overlay, limits, short: !arguments.whole_runs };
        first_image(&mut store, content, arguments, corpus)?;
        let (known, lost) = known(&corpus.join("queue"), &store).map_err(FuzzError::Corpus)?;
        if lost > 0 && arguments.helper.is_none() {
            let queue = corpus.join("queue");
            eprintln!(
                "pmvet: {lost} test cases in {} are left out: the corpus does not have their images",
                queue.display()
            );
        }
        Ok(Ok(Self { workload, target, store, known, corpus: corpus.into() }))
    }
}

/// The PM files of a run on a seed, and how the run ended. Nothing if it was cut short.
fn discover(
    how: &mut Launch,
    overlay: &Overlay,
    seed: Option<&Vec<u8>>,
    input: Option<&Path>,
    arguments: &cli::Fuzz,
    install: &Install,
) -> Result<Option<(Vec<PathBuf>, launch::TargetExit)>, Error> {
    let failed = |source| Error::Output { action: "make", what: "an input".into(), source };
    let file = Arc::new(sparse::input().map_err(failed)?);
    file.write_all_at(seed.map_or(&[], Vec::as_slice), 0).map_err(failed)?;
    let Some(private) = &mut how.sandbox else { return Ok(None) };
    let mut overlay = overlay.clone();
    if let Some(path) = input {
        overlay.put(path.into(), Arc::clone(&file));
    }
    private.overlay = Arc::new(Mutex::new(overlay));
    private.input = Some(file);
    private.timeout = Some(arguments.timeout.max(std::time::Duration::from_secs(20)));
    let mut files = Files::default();
    let ending = launch::launch(how, install, &mut files).map_err(Error::Launch)?;
    if let Some(private) = &mut how.sandbox {
        private.timeout = None;
        private.input = None;
    }
    Ok((!shutdown::is_over()).then_some((files.0, ending.exit)))
}

#[derive(Default)]
struct Files(Vec<PathBuf>);

impl Sink for Files {
    fn event(&mut self, event: &Event<'_>, _: &dyn Places) -> Result<(), SinkError> {
        if let What::File { path, .. } = event.what {
            let path = PathBuf::from(path);
            if !self.0.contains(&path) {
                self.0.push(path);
            }
        }
        Ok(())
    }
}

/// The PM files as the user has them, or as the set-up made them.
fn start_content(overlay: &Overlay, files: &[PathBuf]) -> io::Result<PmContent> {
    let mut content = PmContent::default();
    for path in files {
        match overlay.open_file(path) {
            Ok(file) => drop(content.files.insert(path.clone(), FileContent::read(&file)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(content)
}

/// Makes the store start from the PM files as they are. A set-up may make different files each time, for example because of a UUID. Then
/// the store starts from the first files that it made for this corpus, or for a corpus with which this one exchanges test cases.
fn first_image(store: &mut ImageStore, content: PmContent, arguments: &cli::Fuzz, corpus: &Path) -> Result<(), Error> {
    let setup = arguments.workload.setup.clone().unwrap_or_default().into_bytes();
    let id = content.id();
    let files: BTreeSet<PathBuf> = content.files.keys().cloned().collect();
    let serves = |store: &mut ImageStore| -> io::Result<bool> {
        let Some(root) = store.root() else { return Ok(false) };
        let same_setup = !setup.is_empty() && store.origin(root).is_some_and(|origin| origin.input == setup);
        Ok(root == id || same_setup && store.get(root)?.files.keys().eq(&files))
    };
    if store.root().is_some() {
        return match serves(store).map_err(FuzzError::Corpus)? {
            true => Ok(()),
            false => Err(Error::Usage(format!(
                "the corpus in {} starts from other PM files than are there now; name another one with --corpus",
                corpus.display()
            ))),
        };
    }
    for other in Exchange::from_arguments(arguments, corpus)?.iter().flat_map(Exchange::others) {
        if let Ok(mut other) = ImageStore::open_for_reading(&other)
            && let (Ok(true), Some(root)) = (serves(&mut other), other.root())
        {
            return Ok(store.adopt(&mut other, root).map_err(FuzzError::Corpus)?);
        }
    }
    let origin = Origin { parent: None, input: setup, stop: (0, 0) };
    store.add(content, origin).map_err(FuzzError::Corpus)?;
    Ok(())
}

/// The test cases in a folder whose images are there, and how many others there are.
fn known(queue: &Path, store: &ImageStore) -> io::Result<(Vec<Case>, usize)> {
    let (mut cases, mut lost) = (Vec::new(), 0);
    for entry in std::fs::read_dir(queue)?.flatten() {
        let Some((number, image)) = entry.file_name().to_str().and_then(parse_file_name) else { continue };
        if store.contains(image) {
            cases.push((number, Case { image, input: std::fs::read(entry.path())? }));
        } else {
            lost += 1;
        }
    }
    cases.sort_by_key(|(number, _)| *number);
    Ok((cases.into_iter().map(|(_, case)| case).collect(), lost))
}
