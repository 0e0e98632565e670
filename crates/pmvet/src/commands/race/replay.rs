//! Forces the race of a finding again.

use std::fs;
use std::io;

use pmvet_engines::confirm::replay::{self, Again, Schedules};
use pmvet_engines::lab::{Lab, RecoveryCommand};
use pmvet_engines::promises::Promise;
use pmvet_findings::Outcome;
use pmvet_target::install::Install;

use crate::durable;
use crate::exit::Error;
use crate::run_folder::{RunFolder, RunInfo, words};
use crate::workload;

/// Forces the schedule that led to a crash image until its race is proven once more. Nothing if the image is not that of a race.
pub(crate) fn again(
    folder: &RunFolder,
    image: &str,
    info: &RunInfo,
    recovery: &RecoveryCommand,
    promise: Option<&Promise>,
) -> Result<Option<Again>, Error> {
    let Some(all) = read(folder)? else { return Ok(None) };
    let Some(schedule) = all.schedules.get(image) else { return Ok(None) };
    let install = Install::find()?;
    let mut workload = workload::of_earlier_run(&words(&info.command), recovery)?;
    if let Some(line) = &all.setup
        && workload::set_up(&mut workload, line)?.is_some()
    {
        return Ok(Some(Again::Interrupted));
    }
    let mut recovery = recovery.clone();
    if let (Some(kept), Some(promise)) = (&info.durable, promise) {
        let input = folder.file("input");
        workload::known_input(&mut workload, &input);
        workload::follow_operations(&mut workload, &input)?;
        recovery.promised = Some(durable::again_by(&workload, &recovery.command, kept, promise, folder)?);
    }
    let lab = Lab { workload: &workload, install: &install, folder: &folder.path };
    let usual = info.usual.clone().unwrap_or(Outcome::Exit { status: 0 });
    Ok(Some(replay::again(lab, schedule, &recovery, &usual)?))
}

/// The schedules of a run, if it has any.
fn read(folder: &RunFolder) -> Result<Option<Schedules>, Error> {
    let path = folder.file(Schedules::FILE);
    let bad = |e: &dyn std::fmt::Display| Error::Run(format!("{} cannot be used: {e}", path.display()));
    match fs::read_to_string(&path) {
        Ok(text) => serde_json::from_str(&text).map(Some).map_err(|e| bad(&e)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(bad(&e)),
    }
}
