//! `pmvet replay`: reproduces one finding from what its run has kept.

mod gdb;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use pmvet_engines::confirm::replay::Again;
use pmvet_engines::lab::{Bench, RecoveryCommand, TrialImage, room, version_at};
use pmvet_engines::promises::PromiseId;
use pmvet_findings::Evidence;
use pmvet_target::crash::Scratch;
use pmvet_target::launch::pm_variables;
use pmvet_target::mapped::MappedFile;
use pmvet_target::recording::Recording;
use pmvet_target::sandbox::{Capture, Overlay};
use pmvet_target::sparse;

use super::race;
use crate::cli;
use crate::durable;
use crate::exit::{Error, Exit};
use crate::isolation;
use crate::reporting;
use crate::run_folder::{RunFolder, words};
use crate::system;

pub(crate) fn run(arguments: &cli::Replay) -> Result<Exit, Error> {
    let (folder, finding) = RunFolder::with_finding(&arguments.chosen, &arguments.id)?;
    let Evidence::Crash { image, recovery: recorded, .. } = &finding.evidence else {
        return Err(Error::Run(format!(
            "this finding ({}) has no crash image: it follows from the order of events alone",
            finding.rule
        )));
    };
    if super::fuzz::has_case(&folder, &image.hash)? && (arguments.gdb || arguments.keep_image.is_some()) {
        return Err(Error::Usage(
            "--gdb and --keep-image are for crash images; this finding has a test case, which the corpus keeps (crashes, hangs)"
                .into(),
        ));
    }
    if let Some(exit) = super::fuzz::replay(&folder, &finding, &image.hash, recorded)? {
        return Ok(exit);
    }
    let info = folder.read_info()?;
    let witness = reporting::witness(&folder, &image.hash)?;
    system::handle_signals();
    isolation::start([&info.folder.0].into_iter().chain(info.command.iter().map(|word| &word.0)).cloned().collect())?;
    std::env::set_current_dir(&info.folder.0).map_err(|source| Error::Output {
        action: "enter",
        what: info.folder.0.display().to_string(),
        source,
    })?;
    let recording = match &witness.recording {
        Some(name) => Recording::open(&folder.file(name)),
        None => folder.recording(),
    };
    let store = MappedFile::new(folder.temporary().map_err(|e| failed("make", "a temporary file", e))?);
    let (versions, version) = version_at(&recording, witness.seq, store)?;
    let promised = match (&info.durable, &witness.promise) {
        (Some(kept), Some(promise)) => Some(durable::again(kept, promise, &folder)?),
        _ => None,
    };
    let promise = promised.as_ref().map_or(PromiseId::NONE, |promised| promised.promises.at(u64::MAX));
    let job = TrialImage { version, patches: &witness.patches, promise };
    if job.name(&versions) != image.hash {
        return Err(Error::Run("the crash image cannot be made again: the run's recording has changed".into()));
    }
    if let Some(path) = &arguments.keep_image {
        keep(path, &versions, &job)?;
    }
    if arguments.gdb {
        return gdb::run(&folder, &words(&info.recover), &versions, &job);
    }
    // A command that only shows the content reads no operations.
    let reads_input = info.durable.as_ref().is_none_or(|durable| durable.dump.is_some());
    let recovery = RecoveryCommand {
        command: words(&info.recover),
        input: File::open(folder.file("input")).ok().filter(|_| reads_input).map(Arc::new),
        variables: pm_variables().collect(),
        timeout: info.timeout.unwrap_or_default(),
        oracle: info.oracle.as_deref().map(words),
        files: folder.left()?,
        most_bytes: room(versions.get(version).iter().flat_map(|v| &v.files).map(|f| f.size).sum()),
        driver: info.server.as_ref().map(|server| server.driver().map(Arc::new)).transpose()?,
        promised,
        // It hung when it was found.
        hangs: Arc::new(true.into()),
    };
    let again = race::again(&folder, &image.hash, &info, &recovery, witness.promise.as_ref())?;
    if again == Some(Again::Interrupted) {
        return Ok(Exit::Interrupted);
    }
    let trial = recovery
        .run(&mut Bench::default(), &versions, job, info.usual.as_ref())
        .map_err(|e| failed("run", "the recovery", e))?;
    let Some(trial) = trial else { return Ok(Exit::Interrupted) };
    let command: Vec<_> = recorded.command.iter().map(String::as_str).collect();
    println!("{}: {}", finding.rule, finding.title);
    match &again {
        Some(Again::Proven { run, outcome, other_reader: false }) => {
            println!("schedule: forced again; in run {run} the threads met, and recovery {outcome}");
        }
        Some(Again::Proven { run, outcome, other_reader: true }) => {
            println!("schedule: forced again; in run {run} another reader met the store, and recovery {outcome}");
        }
        Some(Again::NotProven { runs }) => {
            println!("schedule: forced again in {runs} runs, but the race did no harm in any")
        }
        _ => {}
    }
    println!("crash image: {}", image.choice);
    println!("recovery: {}", command.join(" "));
    for line in String::from_utf8_lossy(&trial.output).lines() {
        println!("  | {}", line.escape_debug());
    }
    if trial.outcome == recorded.outcome && matches!(again, Some(Again::NotProven { .. })) {
        println!("reproduced only from the recording: recovery {}", trial.outcome);
        Ok(Exit::Findings)
    } else if trial.outcome == recorded.outcome {
        println!("reproduced: recovery {}", trial.outcome);
        Ok(Exit::Findings)
    } else if info.usual.as_ref() == Some(&trial.outcome) {
        println!("not reproduced: recovery {} now, as it should", trial.outcome);
        Ok(Exit::Ok)
    } else {
        println!("another failure: recovery {}, but {} then", trial.outcome, recorded.outcome);
        Ok(Exit::Findings)
    }
}

/// Writes the crash image where the user wants it.
fn keep(path: &std::path::Path, versions: &pmvet_target::crash::Versions, job: &TrialImage<'_>) -> Result<(), Error> {
    let mut overlay = Overlay::new(Capture::Writable);
    let made = Scratch::default().become_version(versions, job.version, job.patches, &mut overlay);
    made.map_err(|e| failed("make", "the crash image", e))?;
    let mut files: Vec<(PathBuf, Arc<File>)> =
        overlay.files().map(|(path, file)| (path.to_owned(), Arc::clone(file))).collect();
    files.sort_by(|a, b| a.0.cmp(&b.0));
    let single = files.len() == 1;
    for (i, (original, file)) in files.into_iter().enumerate() {
        let target = match single {
            true => path.to_owned(),
            false => format!("{}.{}", path.display(), i + 1).into(),
        };
        let written = File::create_new(&target).and_then(|to| sparse::copy(&file, &to));
        written.map_err(|e| failed("write", &target.display().to_string(), e))?;
        println!("crash image of {} written to {}", original.display(), target.display());
    }
    Ok(())
}

fn failed(action: &'static str, what: &str, source: io::Error) -> Error {
    Error::Output { action, what: what.into(), source }
}
