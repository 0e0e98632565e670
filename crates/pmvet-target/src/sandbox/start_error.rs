//! Why a process could not be started in a sandbox.

use std::ffi::OsStr;
use std::io;
use std::path::PathBuf;

/// What was being done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StartStep {
    /// A thread of pmvet that starts processes.
    Thread,
    /// Giving up rights that programs may gain.
    Privileges,
    /// The filter that stops system calls.
    Filter,
    /// The new process.
    Process,
    /// Following the new process.
    Trace,
    /// The program, by this name.
    Program(PathBuf),
}

/// A step of the start that failed, and what the kernel said.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}{}", .step.failed(), advice(.step, .source))]
pub struct StartError {
    /// What could not be done.
    pub step: StartStep,
    /// What the kernel said.
    pub source: io::Error,
}

impl StartStep {
    fn failed(&self) -> String {
        match self {
            StartStep::Thread => "cannot start a thread (clone3)".into(),
            StartStep::Privileges => "cannot give up new privileges (prctl PR_SET_NO_NEW_PRIVS)".into(),
            StartStep::Filter => "cannot filter system calls (seccomp)".into(),
            StartStep::Process => "cannot make a process (clone)".into(),
            StartStep::Trace => "cannot trace a process (ptrace)".into(),
            StartStep::Program(path) => format!("cannot run {} (execve)", pmvet_events::paths::shown(path)),
        }
    }
}

/// What to do about it.
fn advice(step: &StartStep, error: &io::Error) -> &'static str {
    const NO_PTRACE: &str = "; the sandbox needs ptrace: in a container allow it (`--cap-add=SYS_PTRACE`), and see that \
                             /proc/sys/kernel/yama/ptrace_scope is not 3";
    const NO_SECCOMP: &str = "; the sandbox needs seccomp filters: in a container allow them \
                              (`--security-opt seccomp=unconfined`)";
    const TOO_MANY: &str = "; there are too many processes or threads: see `ulimit -u` and the container's pids limit";
    match (step, error.raw_os_error()) {
        (StartStep::Trace, Some(libc::EPERM | libc::EACCES | libc::ENOSYS)) => NO_PTRACE,
        (StartStep::Filter, Some(libc::EPERM | libc::EACCES | libc::ENOSYS | libc::EINVAL)) => NO_SECCOMP,
        (StartStep::Thread | StartStep::Process, Some(libc::EAGAIN)) => TOO_MANY,
        _ => "",
    }
}

impl StartError {
    /// For `map_err`: the step that failed.
    pub(crate) fn at(step: StartStep) -> impl FnOnce(io::Error) -> io::Error {
        move |source| Self { step, source }.into()
    }

    /// The program itself could not be run.
    pub(super) fn program(executable: &OsStr, source: io::Error) -> io::Error {
        Self { step: StartStep::Program(executable.into()), source }.into()
    }

    /// The start error inside an error of the sandbox, if there is one.
    pub fn from_io(error: io::Error) -> Result<Self, io::Error> {
        error.downcast()
    }
}

/// Keeps the kind, for callers that need only that.
impl From<StartError> for io::Error {
    fn from(error: StartError) -> Self {
        io::Error::new(error.source.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_what_failed_and_what_to_do() {
        let told = |step, errno| StartError::at(step)(io::Error::from_raw_os_error(errno)).to_string();
        let ptrace = told(StartStep::Trace, libc::EPERM);
        assert!(ptrace.contains("(ptrace): Operation not permitted") && ptrace.contains("SYS_PTRACE"), "{ptrace}");
        let seccomp = told(StartStep::Filter, libc::EINVAL);
        assert!(seccomp.contains("(seccomp)") && seccomp.contains("seccomp=unconfined"), "{seccomp}");
        let clone = told(StartStep::Process, libc::EAGAIN);
        assert!(clone.contains("(clone)") && clone.contains("ulimit -u"), "{clone}");
        let program = StartError::program("./recover".as_ref(), io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(program.kind(), io::ErrorKind::NotFound);
        assert!(program.to_string().starts_with("cannot run ./recover (execve): No such file"), "{program}");
        assert!(matches!(StartError::from_io(program), Ok(StartError { step: StartStep::Program(_), .. })));
        assert!(StartError::from_io(io::ErrorKind::NotFound.into()).is_err());
    }
}
