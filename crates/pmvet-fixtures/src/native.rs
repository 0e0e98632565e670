//! The same program natively and traced.

use std::ffi::{OsStr, OsString};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::{pmvet, repository};

/// Compiles `source` of the programs folder to `folder/name`.
pub fn build(folder: &Path, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let program = folder.join(name);
    let compiler = if source.ends_with(".cc") { "g++" } else { "gcc" };
    let mut command = Command::new(compiler);
    command
        .args(["-O1", "-g", "-pthread", "-o"])
        .arg(&program)
        .arg(repository().join("crates/pmvet/tests/programs").join(source));
    let built = command.args(flags).args(["-ldl", "-lm"]).output().unwrap();
    assert!(built.status.success(), "{source}: {}", String::from_utf8_lossy(&built.stderr));
    program
}

/// A command with an environment that is the same on every machine. PMDK's two variables are those that pmvet sets.
pub fn command(folder: &Path, words: &[OsString]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).current_dir(folder).stdin(Stdio::null());
    command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", folder).env("TMPDIR", folder);
    command
        .env("LC_ALL", "C.UTF-8")
        .env("TZ", "UTC")
        .env("PMEM_IS_PMEM_FORCE", "1")
        .env("PMEM_MMAP_HINT", "10000000000");
    command
}

/// `pmvet trace OPTIONS -- words`.
pub fn traced(options: &[&OsStr], words: &[OsString]) -> Vec<OsString> {
    let mut all: Vec<OsString> = vec![pmvet().into(), "trace".into()];
    all.extend(options.iter().map(|o| OsString::from(*o)));
    all.push("--".into());
    all.extend(words.iter().cloned());
    all
}

/// How a command ended, in words that do not depend on who ran it.
pub fn ended(output: &Output) -> String {
    match (output.status.code(), output.status.signal()) {
        (Some(status), _) => format!("status {status}"),
        (_, Some(signal)) => format!("signal {signal}"),
        _ => "neither".into(),
    }
}

/// What pmvet's summary says about the target's end, and the events it lost.
pub fn summary(path: &Path) -> Result<(String, u64), String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("no summary: {e}"))?;
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|e| format!("bad summary: {e}: {text}"))?;
    let lost = value["lost_events"].as_u64().ok_or("no number of lost events")?;
    let target = &value["target"];
    match (target["status"].as_i64(), target["signal"].as_i64()) {
        (Some(status), _) => Ok((format!("status {status}"), lost)),
        (_, Some(signal)) => Ok((format!("signal {signal}"), lost)),
        _ => Err(format!("the summary does not say how the target ended: {text}")),
    }
}
