//! `pmvet replay --gdb`: the recovery in the debugger.
//!
//! A process has one tracer, and that is the debugger now. So the crash image gets to its place in another way: in a mount namespace
//! of its own an overlay is laid over the folder of each PM file, with the image on top. What the recovery writes ends up in a
//! folder of pmvet's, which is removed afterwards.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use pmvet_engines::inject::Job;
use pmvet_target::crash::{Scratch, Versions};
use pmvet_target::launch::pm_variables;
use pmvet_target::sandbox::{Capture, Overlay};
use pmvet_target::sparse;

use super::failed;
use crate::exit::{Error, Exit};
use crate::run_folder::RunFolder;

/// Lays the overlays (folder, upper, work, three words each, up to `--`) and becomes the debugger.
const SCRIPT: &str = r#"
while [ "$1" != -- ]; do
    mount -t overlay overlay -o "userxattr,lowerdir=$1,upperdir=$2,workdir=$3" "$1" || exit 125
    shift 3
done
shift
cd "$PWD" || exit 125
exec gdb -q --args "$@"
"#;

pub(super) fn run(folder: &RunFolder, command: &[OsString], versions: &Versions, job: &Job<'_>) -> Result<Exit, Error> {
    let place = tempfile::tempdir_in(&folder.path).map_err(|e| failed("make", "a temporary folder", e))?;
    let mut unshare = Command::new("unshare");
    unshare.args(["--map-root-user", "--mount", "--", "/bin/sh", "-c", SCRIPT, "pmvet"]);
    for (i, (target, files)) in images(versions, job)?.into_iter().enumerate() {
        let (upper, work) = (place.path().join(format!("upper-{i}")), place.path().join(format!("work-{i}")));
        for made in [&upper, &work] {
            std::fs::create_dir(made).map_err(|e| failed("make", &made.display().to_string(), e))?;
        }
        for (name, file) in files {
            let copied = File::create(upper.join(name)).and_then(|to| sparse::copy(&file, &to));
            copied.map_err(|e| failed("write", "the crash image", e))?;
        }
        unshare.arg(&target).arg(&upper).arg(&work);
    }
    unshare.arg("--").args(command).envs(pm_variables());
    let input = folder.file("input");
    if input.exists() {
        eprintln!("pmvet: in the debugger, start the recovery with: run < {}", input.display());
    }
    let status = unshare.status().map_err(|e| failed("start", "unshare (package util-linux)", e))?;
    match status.code() {
        Some(125) => Err(Error::Run(
            "--gdb: the crash image could not be put in place, since this machine does not let you mount an overlay; \
             use --keep-image FILE and debug the recovery on that file"
                .into(),
        )),
        Some(126 | 127) => Err(Error::Run("--gdb: the debugger is missing; install the package gdb".into())),
        _ => Ok(Exit::Ok),
    }
}

type Images = BTreeMap<PathBuf, Vec<(OsString, std::sync::Arc<File>)>>;

/// The files of the crash image, by folder.
fn images(versions: &Versions, job: &Job<'_>) -> Result<Images, Error> {
    let mut overlay = Overlay::new(Capture::Writable);
    let made = Scratch::default().become_version(versions, job.version, job.patches, &mut overlay);
    made.map_err(|e| failed("make", "the crash image", e))?;
    let mut images = Images::new();
    for (path, file) in overlay.files() {
        if let (Some(folder), Some(name)) = (path.parent().map(Path::to_path_buf), path.file_name()) {
            images.entry(folder).or_default().push((name.to_owned(), file.clone()));
        }
    }
    Ok(images)
}
