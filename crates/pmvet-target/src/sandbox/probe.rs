//! Tests the sandbox before any program of the user runs in it.
//!
//! pmvet starts itself in a sandbox. There it reads a stand-in, makes a file and checks that it exists. Outside, that file must not
//! exist. If anything is denied, for instance by a container's rules, the error names the call.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use super::{Capture, Output, Overlay, SandboxedEnd, SandboxedProgram, Unwinder, run};
use crate::sparse;

/// The argument that makes pmvet the program in the sandbox.
pub const COMMAND: &str = "__sandbox-probe";

const CONTENT: &[u8] = b"what stands in for a file";

/// The program in the sandbox: `arguments` are a file that has a stand-in, and one to make.
pub fn inside(arguments: &[OsString]) -> u8 {
    let [image, new] = arguments else { return 1 };
    let found = std::fs::read(image).map(|found| found == CONTENT);
    let made = std::fs::write(new, CONTENT).and_then(|()| std::fs::read(new)).map(|found| found == CONTENT);
    let mut failed = 0;
    for (what, result) in [("the stand-in of a file is not in its place", found), ("a file cannot be made", made)] {
        match result {
            Ok(true) => continue,
            Ok(false) => eprint!("{what}; "),
            Err(error) => eprint!("{what}: {error}; "),
        }
        failed = 1;
    }
    failed
}

/// Runs the probe. Only for pmvet's own program, which must know [`COMMAND`].
pub fn prove() -> io::Result<()> {
    let folder = folder()?;
    let name = |what: &str| folder.join(format!(".pmvet-probe-{}-{what}", std::process::id()));
    let (image, new) = (name("image"), name("new"));
    let stand_in = sparse::unnamed(&image)?;
    stand_in.write_all_at(CONTENT, 0)?;
    let mut overlay = Overlay::new(Capture::Named);
    overlay.put(image.clone(), Arc::new(stand_in));
    let arguments = ["/proc/self/exe".into(), COMMAND.into(), image.into(), new.clone().into_os_string()];
    // Its stack is not needed.
    let usual_status = Some(0);
    let job = SandboxedProgram { output: Output::Tail(1 << 10), usual_status, ..SandboxedProgram::new(&arguments) };
    let ended = run(&job, &Mutex::new(overlay), &mut Unwinder::default());
    let leaked = new.symlink_metadata().is_ok();
    if leaked {
        let _ = std::fs::remove_file(&new);
    }
    let ended = ended?;
    let problem = match ended.end {
        _ if leaked => "a file that was made in it appeared outside".to_owned(),
        SandboxedEnd::Exit(0) => return Ok(()),
        SandboxedEnd::Interrupted => return Err(io::ErrorKind::Interrupted.into()),
        end => format!("{}its probe ended with {}", String::from_utf8_lossy(&ended.output), end.exit()),
    };
    Err(io::Error::other(format!("the sandbox does not work: {problem}")))
}

/// A folder that programs can write to.
fn folder() -> io::Result<PathBuf> {
    let places = [std::env::current_dir().unwrap_or_default(), std::env::temp_dir(), "/dev/shm".into()];
    // The root itself is read-only in views of ordinary users, and where a container takes away the right to mount.
    let writable = |place: &&PathBuf| place.parent().is_some() && super::mounts::is_writable(place);
    let found = places.iter().find(writable).map(|place| place.canonicalize());
    found.unwrap_or_else(|| {
        Err(io::Error::other("neither this folder nor the one for temporary files can be written to"))
    })
}
