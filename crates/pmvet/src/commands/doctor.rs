//! `pmvet doctor`: checks the host, and says what to install or set.

use std::ffi::CStr;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};

use pmvet_events::plan::Plan;
use pmvet_events::shm::SharedMemory;
use pmvet_events::{Event, Places};
use pmvet_target::collect::SinkError;
use pmvet_target::install::Install;
use pmvet_target::launch::{Private, TargetExit};
use pmvet_target::program::Program;
use pmvet_target::sandbox::{Capture, Output, Overlay};
use pmvet_target::{Launch, Sink, launch};

use crate::cli::{Color, Doctor};
use crate::exit::{Error, Exit};
use crate::isolation::{self, Backend};
use crate::summary::render::{Style, bytes};
use crate::system;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grade {
    Ok,
    Warn,
    Fail,
}

#[derive(Debug, PartialEq, Eq)]
struct Check {
    grade: Grade,
    what: &'static str,
    /// The result and, if something is wrong, what to do.
    found: String,
}

fn check(grade: Grade, what: &'static str, found: impl Into<String>) -> Check {
    Check { grade, what, found: found.into() }
}

pub(crate) fn run(arguments: &Doctor) -> Result<Exit, Error> {
    let color = match arguments.color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => std::io::stdout().is_terminal(),
    };
    let style = Style { color };
    // This check comes first, since it needs a process with one thread.
    let private = private_files();
    let mut checks = vec![processor(&read("/proc/cpuinfo")), kernel(&read("/proc/sys/kernel/osrelease"))];
    checks.push(private);
    checks.extend(tracing());
    checks.push(shared_memory());
    checks.push(pm_folder());
    checks.extend(limits(&read("/proc/self/limits")));
    checks.push(ptrace(&read("/proc/sys/kernel/yama/ptrace_scope")));
    checks.push(pmdk());
    checks.push(debug_files());
    let mut text = String::new();
    for Check { grade, what, found } in &checks {
        let mark = match grade {
            Grade::Ok => style.good("ok  "),
            Grade::Warn => style.warn("warn"),
            Grade::Fail => style.bad("FAIL"),
        };
        text.push_str(&format!("{mark}  {what:<16}  {found}\n"));
    }
    // Ignored: a closed pipe does not change the result of the checks.
    let _ = std::io::stdout().write_all(text.as_bytes());
    let failed = checks.iter().any(|c| c.grade == Grade::Fail);
    Ok(if failed { Exit::Usage } else { Exit::Ok })
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Flush instructions that the host has; targets choose among them at run time.
fn processor(cpuinfo: &str) -> Check {
    const WHAT: &str = "processor";
    if !cfg!(target_arch = "x86_64") {
        return check(Grade::Fail, WHAT, "pmvet needs an x86-64 processor");
    }
    let flags = cpuinfo.lines().find_map(|line| line.strip_prefix("flags")).unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|f| f == flag);
    let list = |wanted: &[&str]| wanted.iter().copied().filter(|f| has(f)).collect::<Vec<_>>().join(" ");
    let found = list(&["clflush", "clflushopt", "clwb", "movdiri", "movdir64b"]);
    let vector = list(&["avx", "avx2", "avx512f"]);
    if !has("clflush") {
        return check(Grade::Warn, WHAT, "the kernel does not say which flush instructions there are");
    }
    if !has("clwb") || !has("clflushopt") {
        let note = "targets fall back to other flushes here; traces from other machines may differ";
        return check(Grade::Warn, WHAT, format!("{found}; without clwb or clflushopt: {note}"));
    }
    check(Grade::Ok, WHAT, format!("{found}; vectors: {vector}"))
}

fn kernel(release: &str) -> Check {
    const WHAT: &str = "kernel";
    let release = release.trim();
    let mut parts = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    match (parts.next(), parts.next()) {
        (Some(major), Some(minor)) if (major, minor) < (4, 5) => {
            check(Grade::Fail, WHAT, format!("Linux {release}: copy_file_range and memfd need 4.5 or newer"))
        }
        (Some(_), Some(_)) => check(Grade::Ok, WHAT, format!("Linux {release}")),
        _ => check(Grade::Warn, WHAT, format!("unknown version `{release}`")),
    }
}

#[derive(Debug, Default)]
struct Count(u64);

impl Sink for Count {
    fn event(&mut self, _: &Event<'_>, _: &dyn Places) -> Result<(), SinkError> {
        self.0 += 1;
        Ok(())
    }
}

/// Changes files in a sandbox, as programs will, and checks that nothing outside has changed.
fn private_files() -> Check {
    const WHAT: &str = "private files";
    let proven = isolation::choose(Vec::new()).and_then(|backend| isolation::prove(&backend).map(|()| backend));
    match proven {
        Ok(Backend::Namespace) => check(Grade::Ok, WHAT, "each run has a view of the file system of its own"),
        Ok(Backend::Supervisor(None)) => {
            let found =
                format!("a supervisor, as {} says, which refuses what it cannot keep private", isolation::VARIABLE);
            check(Grade::Ok, WHAT, found)
        }
        Ok(Backend::Supervisor(Some(reason))) => {
            let advice = "in a container, `--cap-add=SYS_ADMIN` or a seccomp profile that allows unshare and mount";
            let found = format!(
                "a supervisor, which refuses what it cannot keep private, since there are no views: {reason} ({advice})"
            );
            check(Grade::Warn, WHAT, found)
        }
        Err(Error::Sandbox(reason)) => check(Grade::Fail, WHAT, reason),
        Err(error) => check(Grade::Fail, WHAT, error.to_string()),
    }
}

/// Finds DynamoRIO and the client, and traces a small program with them, in a sandbox.
fn tracing() -> Vec<Check> {
    const WHAT: &str = "tracing";
    let install = match Install::find() {
        Ok(install) => install,
        Err(e) => return vec![check(Grade::Fail, "DynamoRIO", e.to_string())],
    };
    let mut checks = vec![
        check(Grade::Ok, "DynamoRIO", install.dynamorio.display().to_string()),
        check(Grade::Ok, "client", install.client.display().to_string()),
    ];
    let program = match Program::find(&["true".into()]) {
        Ok(program) => program,
        Err(e) => {
            checks.push(check(Grade::Warn, WHAT, format!("not tried: {e}")));
            return checks;
        }
    };
    let sandbox = Some(Private {
        overlay: Arc::new(Mutex::new(Overlay::new(Capture::Named))),
        input: None,
        output: Output::Tail(0),
        driver: None,
        timeout: None,
        by_the_clock: false,
        cancel: None,
    });
    let how = Launch { program, plan: Plan::default(), follow_forks: true, bare: false, sandbox };
    let mut count = Count::default();
    let result = launch(&how, &install, &mut count);
    checks.push(match result {
        Ok(ending) if ending.exit != TargetExit::Status(0) => {
            check(Grade::Fail, WHAT, format!("`true` does not survive it: {}", ending.exit))
        }
        Ok(_) if count.0 == 0 => {
            check(Grade::Fail, WHAT, "`true` ran, but no events came: the client was not loaded; install pmvet again")
        }
        Ok(ending) => {
            check(Grade::Ok, WHAT, format!("`true`: {} events in {:.0} ms", count.0, ending.time.as_secs_f64() * 1e3))
        }
        Err(e) => check(Grade::Fail, WHAT, e.to_string()),
    });
    checks
}

fn shared_memory() -> Check {
    const WHAT: &str = "shared memory";
    match SharedMemory::create(b"{}") {
        Ok(_) => check(Grade::Ok, WHAT, "event buffers can be made"),
        Err(e) => {
            check(Grade::Fail, WHAT, format!("no event buffers: {e}; see `ulimit -f`, `ulimit -v` and memfd_create(2)"))
        }
    }
}

fn pm_folder() -> Check {
    const WHAT: &str = "/dev/shm";
    const FOLDER: &CStr = c"/dev/shm";
    const WANTED: u64 = 256 << 20;
    match system::file_system_space(FOLDER).filter(|_| Path::new("/dev/shm").is_dir()) {
        None => check(Grade::Warn, WHAT, "missing: mount a tmpfs there, or name PM files with --pm"),
        Some((size, free)) if free < WANTED => {
            let advice = "remove files there, or `mount -o remount,size=2G /dev/shm`";
            check(Grade::Warn, WHAT, format!("{} of {} free: {advice}", bytes(free), bytes(size)))
        }
        Some((size, free)) => check(Grade::Ok, WHAT, format!("{} of {} free", bytes(free), bytes(size))),
    }
}

fn limits(text: &str) -> Vec<Check> {
    let soft = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_whitespace().next().map(|value| value.parse().unwrap_or(u64::MAX))
    };
    let shown = |n: u64| if n == u64::MAX { "unlimited".to_owned() } else { n.to_string() };
    let rule = |what, name, least, advice: &str| {
        let value = soft(name)?;
        let (grade, advice) = if value < least { (Grade::Warn, advice) } else { (Grade::Ok, "") };
        Some(check(grade, what, format!("{}{advice}", shown(value))))
    };
    let rules = [
        rule("address space", "Max address space", u64::MAX, " bytes: DynamoRIO needs more; `ulimit -v unlimited`"),
        rule("open files", "Max open files", 256, ": targets with many threads need more; `ulimit -n 1024`"),
        rule("file size", "Max file size", u64::MAX, " bytes: too small for event buffers; `ulimit -f unlimited`"),
    ];
    rules.into_iter().flatten().collect()
}

/// pmvet traces only processes that it started; other tools need more.
fn ptrace(scope: &str) -> Check {
    match scope.trim() {
        "" | "0" | "1" => check(Grade::Ok, "ptrace", "allowed for child processes"),
        "2" => {
            check(Grade::Warn, "ptrace", "for the administrator only: gdb needs `sysctl kernel.yama.ptrace_scope=1`")
        }
        _ => check(Grade::Warn, "ptrace", "off until the next start of the machine: gdb will not work"),
    }
}

const LIBRARIES: [&str; 4] = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64"];

fn pmdk() -> Check {
    const WHAT: &str = "PMDK";
    for folder in LIBRARIES {
        let about = read(&format!("{folder}/pkgconfig/libpmem.pc"));
        if let Some(version) = package_version(&about) {
            return check(Grade::Ok, WHAT, format!("{version} in {folder}"));
        }
        if Path::new(folder).join("libpmem.so.1").exists() {
            return check(Grade::Ok, WHAT, format!("library only, in {folder}"));
        }
    }
    check(Grade::Ok, WHAT, "not installed; only its own programs need it (Debian: libpmemobj-dev)")
}

/// The version in a pkg-config file, which may be a variable.
fn package_version(text: &str) -> Option<&str> {
    let version = text.lines().find_map(|line| line.strip_prefix("Version:"))?.trim();
    match version.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) {
        Some(name) => text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::trim),
        None => Some(version),
    }
}

fn debug_files() -> Check {
    const WHAT: &str = "debug files";
    match Path::new("/usr/lib/debug/.build-id").is_dir() {
        true => check(Grade::Ok, WHAT, "/usr/lib/debug"),
        false => {
            let advice = "lines in system libraries need their debug packages (Debian: libc6-dbg)";
            check(Grade::Warn, WHAT, format!("none in /usr/lib/debug: {advice}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors() {
        assert_eq!(processor("flags\t\t: fpu clflush clflushopt clwb avx2\n").grade, Grade::Ok);
        let old = processor("model name: x\nflags\t\t: fpu clflush\n");
        assert!(old.grade == Grade::Warn && old.found.starts_with("clflush;"), "{old:?}");
        assert_eq!(processor("").grade, Grade::Warn);
    }

    #[test]
    fn kernels() {
        assert_eq!(kernel("6.1.0-18-amd64\n").grade, Grade::Ok);
        assert_eq!(kernel("3.10.0-1160.el7\n").grade, Grade::Fail);
        assert_eq!(kernel("").grade, Grade::Warn);
    }

    #[test]
    fn versions_of_packages() {
        assert_eq!(package_version("Name: x\nVersion: 1.2\n"), Some("1.2"));
        assert_eq!(package_version("prefix=/usr\nversion=1.12.1\nVersion: ${version}\n"), Some("1.12.1"));
        assert_eq!(package_version("Version: ${none}\n"), None);
    }

    #[test]
    fn limits_of_a_process() {
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max file size             unlimited            unlimited            bytes     \n\
                    Max address space         1048576              unlimited            bytes     \n\
                    Max open files            1024                 1048576              files     \n";
        let grades: Vec<_> = limits(text).into_iter().map(|c| (c.what, c.grade)).collect();
        assert_eq!(grades, [("address space", Grade::Warn), ("open files", Grade::Ok), ("file size", Grade::Ok)]);
        assert!(limits("").is_empty());
    }

    #[test]
    fn this_host_gets_an_answer_for_everything() {
        for check in [pm_folder(), pmdk(), debug_files(), ptrace("1"), ptrace("3")] {
            assert!(!check.found.is_empty() && check.grade != Grade::Fail, "{check:?}");
        }
    }
}
