//! Chooses how programs get private files, and proves that it works, before anything runs.

use std::ffi::OsString;
use std::io;

use pmvet_target::sandbox::{self, NoViews, probe};

use crate::exit::Error;

/// The variable that chooses a backend: `namespace`, `supervisor`, or whatever works.
pub(crate) const VARIABLE: &str = "PMVET_SANDBOX";

/// How programs are kept from the user's files.
#[derive(Debug)]
pub(crate) enum Backend {
    /// The kernel gives each run its own view of the file system.
    Namespace,
    /// pmvet looks at every system call that names a file, and refuses what it cannot make private. With the reason, if the user did not
    /// ask for it.
    Supervisor(Option<NoViews>),
}

/// Chooses a backend and proves that it works. The process must have one thread. `more` may name paths, besides those on the command line, that
/// programs will write to.
pub(crate) fn start(more: Vec<OsString>) -> Result<Backend, Error> {
    let backend = choose(more)?;
    prove(&backend)?;
    Ok(backend)
}

pub(crate) fn choose(more: Vec<OsString>) -> Result<Backend, Error> {
    let wanted = std::env::var_os(VARIABLE);
    let words = std::env::args_os().skip(1).chain(more).collect();
    match wanted.as_deref().and_then(|text| text.to_str()) {
        Some("supervisor") => Ok(Backend::Supervisor(None)),
        Some("namespace") => match sandbox::enter(words) {
            Ok(()) => Ok(Backend::Namespace),
            Err(reason) => Err(Error::Sandbox(format!("{VARIABLE}=namespace: {reason}"))),
        },
        None | Some("") => Ok(match sandbox::enter(words) {
            Ok(()) => Backend::Namespace,
            Err(reason) => Backend::Supervisor(Some(reason)),
        }),
        Some(other) => Err(Error::Usage(format!("{VARIABLE}={other}: write namespace or supervisor, or leave it out"))),
    }
}

pub(crate) fn prove(backend: &Backend) -> Result<(), Error> {
    probe::prove().map_err(|error: io::Error| match backend {
        Backend::Supervisor(Some(reason)) => {
            Error::Sandbox(format!("{error} (and views of the file system are not available: {reason})"))
        }
        _ => Error::Sandbox(error.to_string()),
    })
}
