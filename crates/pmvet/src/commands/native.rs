//! Runs the target once more, without pmvet, to compare the traced run with.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pmvet_target::launch;
use pmvet_target::program::Program;

use crate::system;

/// Standard input, as far as it can be read a second time.
#[derive(Debug)]
pub(crate) enum Input {
    /// A file, and where the target started to read.
    File(u64),
    Nothing,
    /// A pipe or a terminal.
    Once,
}

impl Input {
    /// To be called before the target reads any of it.
    pub(crate) fn of_this_process() -> Self {
        let Ok(mut file) = io::stdin().as_fd().try_clone_to_owned().map(File::from) else { return Input::Nothing };
        match file.metadata() {
            Ok(found) if found.is_file() => file.stream_position().map_or(Input::Once, Input::File),
            Ok(found) if found.file_type().is_char_device() && is_null(&file) => Input::Nothing,
            _ => Input::Once,
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        matches!(self, Input::Once)
    }

    fn again(&self) -> io::Result<Stdio> {
        match self {
            Input::File(start) => {
                // Opened again, since the old descriptor shares its position with other processes.
                let mut file = File::open("/proc/self/fd/0")?;
                file.seek(SeekFrom::Start(*start))?;
                Ok(file.into())
            }
            Input::Nothing | Input::Once => Ok(Stdio::null()),
        }
    }
}

fn is_null(file: &File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let device = |m: std::fs::Metadata| m.rdev();
    let null = std::fs::metadata("/dev/null").map(device).ok();
    null.is_some() && file.metadata().map(device).ok() == null
}

/// How the second run went.
#[derive(Debug)]
pub(crate) struct NativeRun {
    pub(crate) wall: Duration,
    pub(crate) cpu: Duration,
    pub(crate) ended: String,
}

/// Runs `program` to its end, or until pmvet is asked to stop.
pub(crate) fn run(program: &Program, input: &Input) -> io::Result<NativeRun> {
    let mut command = Command::new(&program.executable);
    if let Some((name, rest)) = program.arguments.split_first() {
        command.arg0(name).args(rest);
    }
    command.stdin(input.again()?).stdout(Stdio::null()).stderr(Stdio::null());
    // As in the traced run.
    command.envs(launch::pm_variables());
    system::die_with_us(&mut command);
    let cpu = system::children_cpu_time();
    let started = Instant::now();
    let mut child = command.spawn()?;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if launch::stopped_by().is_some() {
            child.kill()?;
        }
        std::thread::sleep(Duration::from_micros(500));
    };
    let wall = started.elapsed();
    Ok(NativeRun { wall, cpu: system::children_cpu_time().saturating_sub(cpu), ended: status.to_string() })
}
