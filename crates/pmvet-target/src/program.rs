//! What to run: finds it as a shell would, and refuses what cannot be traced, before anything starts.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A program that can be run under DynamoRIO.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The ELF file to run: the program itself, or the interpreter of a script.
    pub executable: PathBuf,
    /// What it is called with, its own name first.
    pub arguments: Vec<OsString>,
}

/// Why a command cannot be traced. All but the first name the program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The command is empty.
    #[error("no program given: what is to be traced follows `--`")]
    None,
    /// There is no file at this path.
    #[error("{}: no such program", .0.display())]
    NotFound(PathBuf),
    /// No folder of `PATH` has a program of this name.
    #[error("{}: not found in PATH; to run a file in this folder, write ./{}", .0.display(), .0.display())]
    NotInPath(PathBuf),
    /// It is a folder.
    #[error("{}: is a directory, not a program", .0.display())]
    Directory(PathBuf),
    /// It has no permission to execute.
    #[error("{}: not executable; set the permission with `chmod +x`", .0.display())]
    NotExecutable(PathBuf),
    /// It may be executed, but not read.
    #[error("{}: cannot be read: {source}", .path.display())]
    Unreadable {
        /// The program.
        path: PathBuf,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// It is an ELF file for 32-bit machines.
    #[error("{}: a 32-bit program; pmvet traces x86-64 programs only", .0.display())]
    Bits32(PathBuf),
    /// It is an ELF file for another 64-bit machine.
    #[error("{}: a program for another machine (ELF machine {machine}); pmvet traces x86-64 programs only", .path.display())]
    OtherMachine {
        /// The program.
        path: PathBuf,
        /// The machine's number in the ELF header.
        machine: u16,
    },
    /// It starts neither as an ELF file nor with `#!`, or scripts are nested too deep.
    #[error("{}: neither an ELF program nor a script with an interpreter (#!)", .0.display())]
    NotAProgram(PathBuf),
    /// It is a script whose interpreter cannot be traced.
    #[error("{}: the interpreter of this script: {source}", .path.display())]
    Interpreter {
        /// The script.
        path: PathBuf,
        /// What is wrong with its interpreter.
        source: Box<ProgramError>,
    },
    /// It would run with rights that tracing takes away.
    #[error("{}: runs with another user's rights (setuid or setgid), which cannot be traced", .0.display())]
    SetUid(PathBuf),
}

impl Program {
    /// Finds `command[0]` and checks that it can be traced.
    pub fn find(command: &[OsString]) -> Result<Self, ProgramError> {
        let (name, rest) = command.split_first().ok_or(ProgramError::None)?;
        let path = locate(name)?;
        let mut program = Self::check(&path, 0)?;
        if program.arguments.is_empty() {
            program.arguments.push(name.clone());
        } else {
            // A script is passed to its interpreter by path.
            program.arguments.push(path.into_os_string());
        }
        program.arguments.extend(rest.iter().cloned());
        Ok(program)
    }

    fn check(path: &Path, depth: u32) -> Result<Self, ProgramError> {
        let found = path.metadata().map_err(|_| ProgramError::NotFound(path.to_owned()))?;
        if found.is_dir() {
            return Err(ProgramError::Directory(path.to_owned()));
        }
        if found.permissions().mode() & 0o111 == 0 {
            return Err(ProgramError::NotExecutable(path.to_owned()));
        }
        let foreign = found.mode() & libc::S_ISUID != 0 && found.uid() != user();
        if foreign {
            return Err(ProgramError::SetUid(path.to_owned()));
        }
        let mut start = Vec::new();
        let unreadable = |source| ProgramError::Unreadable { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(unreadable)?;
        file.by_ref().take(256).read_to_end(&mut start).map_err(unreadable)?;
        if let Some(line) = start.strip_prefix(b"#!") {
            return Self::script(path, line, depth);
        }
        const ELF: &[u8] = b"\x7fELF";
        const X86_64: u16 = 62;
        if !start.starts_with(ELF) || start.len() < 20 {
            return Err(ProgramError::NotAProgram(path.to_owned()));
        }
        if start[4] != 2 {
            return Err(ProgramError::Bits32(path.to_owned()));
        }
        let machine = u16::from_le_bytes([start[18], start[19]]);
        if machine != X86_64 {
            return Err(ProgramError::OtherMachine { path: path.to_owned(), machine });
        }
        Ok(Self { executable: path.to_owned(), arguments: Vec::new() })
    }

    /// `#!interpreter argument`, at most one argument, as the kernel takes it.
    fn script(path: &Path, line: &[u8], depth: u32) -> Result<Self, ProgramError> {
        let line = line.split(|&b| b == b'\n').next().unwrap_or_default().trim_ascii();
        let split = line.iter().position(|b| b.is_ascii_whitespace()).unwrap_or(line.len());
        let (interpreter, argument) = (&line[..split], line[split..].trim_ascii());
        let interpreter = PathBuf::from(OsStr::from_bytes(interpreter));
        const NESTED: u32 = 4;
        if depth == NESTED || interpreter.as_os_str().is_empty() {
            return Err(ProgramError::NotAProgram(path.to_owned()));
        }
        let mut program = Self::check(&interpreter, depth + 1)
            .map_err(|e| ProgramError::Interpreter { path: path.to_owned(), source: Box::new(e) })?;
        program.arguments.push(interpreter.into_os_string());
        if !argument.is_empty() {
            program.arguments.push(OsString::from_vec(argument.to_vec()));
        }
        Ok(program)
    }
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn locate(name: &OsStr) -> Result<PathBuf, ProgramError> {
    if name.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    let runnable = |p: &PathBuf| p.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    std::env::split_paths(&path)
        .map(|folder| folder.join(name))
        .find(runnable)
        .ok_or_else(|| ProgramError::NotInPath(PathBuf::from(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &Path, name: &str, content: &[u8], mode: u32) -> OsString {
        let path = dir.join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path.into_os_string()
    }

    fn elf(class: u8, machine: u16) -> Vec<u8> {
        let mut bytes = b"\x7fELF".to_vec();
        bytes.extend([class, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0]);
        bytes.extend(machine.to_le_bytes());
        bytes.resize(64, 0);
        bytes
    }

    #[test]
    fn takes_programs_and_refuses_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let good = file(dir, "good", &elf(2, 62), 0o755);
        let found = Program::find(&[good.clone(), "x".into()]).unwrap();
        assert_eq!(found, Program { executable: good.clone().into(), arguments: vec![good, "x".into()] });

        type Check = fn(&ProgramError) -> bool;
        let cases: [(OsString, Check); 8] = [
            (dir.join("none").into(), |e| matches!(e, ProgramError::NotFound(_))),
            ("surely-not-a-program".into(), |e| matches!(e, ProgramError::NotInPath(_))),
            (dir.into(), |e| matches!(e, ProgramError::Directory(_))),
            (file(dir, "plain", &elf(2, 62), 0o644), |e| matches!(e, ProgramError::NotExecutable(_))),
            (file(dir, "bits", &elf(1, 3), 0o755), |e| matches!(e, ProgramError::Bits32(_))),
            (file(dir, "arm", &elf(2, 183), 0o755), |e| matches!(e, ProgramError::OtherMachine { machine: 183, .. })),
            (file(dir, "text", b"hello", 0o755), |e| matches!(e, ProgramError::NotAProgram(_))),
            (file(dir, "lost", b"#!/no/such/sh\n", 0o755), |e| matches!(e, ProgramError::Interpreter { .. })),
        ];
        for (command, expected) in cases {
            let error = Program::find(&[command]).unwrap_err();
            assert!(expected(&error), "{error}");
        }
    }

    #[test]
    fn scripts_go_through_their_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let inner = file(dir.path(), "inner", &elf(2, 62), 0o755);
        let line = format!("#! {} -a b \n", Path::new(&inner).display());
        let script = file(dir.path(), "script", line.as_bytes(), 0o755);
        let found = Program::find(&[script.clone(), "x".into()]).unwrap();
        assert_eq!(found.executable, PathBuf::from(&inner));
        assert_eq!(found.arguments, [inner, "-a b".into(), script, "x".into()]);
    }

    #[test]
    fn a_script_that_is_its_own_interpreter_ends() {
        let dir = tempfile::tempdir().unwrap();
        let line = format!("#!{}\n", dir.path().join("script").display());
        let script = file(dir.path(), "script", line.as_bytes(), 0o755);
        assert!(Program::find(&[script]).is_err());
    }
}
