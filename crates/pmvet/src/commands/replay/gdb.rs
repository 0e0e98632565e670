//! `pmvet replay --gdb`: the recovery in the debugger.
//!
//! A process has only one tracer, which is the debugger here. So the supervisor cannot put the crash image in place: it becomes files in a
//! private view of the file system, which also takes what the recovery writes.

use std::ffi::OsString;
use std::io;
use std::process::Command;

use pmvet_engines::lab::TrialImage;
use pmvet_target::crash::{Scratch, Versions};
use pmvet_target::launch::pm_variables;
use pmvet_target::sandbox::Capture;

use super::failed;
use crate::exit::{Error, Exit};
use crate::run_folder::RunFolder;

pub(super) fn run(
    folder: &RunFolder,
    command: &[OsString],
    versions: &Versions,
    job: &TrialImage<'_>,
) -> Result<Exit, Error> {
    let mut files = folder.left()?.above(Capture::Named);
    let made = Scratch::default().become_version(versions, job.version, job.patches, &mut files);
    made.map_err(|e| failed("make", "the crash image", e))?;
    let input = folder.file("input");
    if input.exists() {
        eprintln!("pmvet: in the debugger, start the recovery with: run < {}", input.display());
    }
    let mut gdb = Command::new("gdb");
    gdb.args(["-q", "--args"]).args(command).envs(pm_variables());
    match files.run_alone(gdb) {
        Ok(Some(_)) => Ok(Exit::Ok),
        Ok(None) => Err(Error::Run(
            "--gdb needs a private view of the file system, which this machine does not allow (`pmvet doctor` says why); \
             use --keep-image FILE and debug the recovery on a copy of that file"
                .into(),
        )),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            Err(Error::Run("--gdb: the debugger is missing; install the package gdb".into()))
        }
        Err(e) => Err(failed("run", "the debugger", e)),
    }
}
