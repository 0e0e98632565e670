//! The CI examples work as written: each of their shell lines runs, on the program of the tutorial.
//!
//! Only what installs pmvet is left out, since the built one is there, and what the CI system does by itself (checkout, uploads).

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use serde_yaml_ng::Value;
use tempfile::TempDir;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A project of its own: the ledger with its first bug.
fn project() -> TempDir {
    let folder = tempfile::Builder::new().prefix("pmvet-test-").tempdir().unwrap();
    for name in ["ledger.c", "Makefile", "first-fix.diff", "second-fix.diff"] {
        fs::copy(root().join("docs/book/src/tutorial").join(name), folder.path().join(name)).unwrap();
    }
    fs::copy(root().join("docs/ci/pmvet.mk"), folder.path().join("pmvet.mk")).unwrap();
    folder
}

/// Runs lines as a CI system does: in one shell, up to the first that fails. The exit code, and what was printed.
fn run(folder: &Path, lines: &str) -> (i32, String) {
    let built = Path::new(env!("CARGO_BIN_EXE_pmvet")).parent().unwrap().as_os_str().to_owned();
    let path =
        env::join_paths([built.into()].into_iter().chain(env::split_paths(&env::var_os("PATH").unwrap()))).unwrap();
    let mut command = Command::new("bash");
    command.args(["--noprofile", "--norc", "-eo", "pipefail", "-c", &format!("exec 2>&1\n{lines}")]);
    let output = command.current_dir(folder).env("PATH", path).env_remove("MAKEFLAGS").stdin(Stdio::null()).output();
    let output = output.unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

fn repair(folder: &Path) {
    let (code, said) = run(folder, "patch -s ledger.c first-fix.diff; patch -s ledger.c second-fix.diff");
    assert_eq!(code, 0, "{said}");
}

fn accept(folder: &Path) {
    let (code, said) = run(folder, "pmvet baseline write");
    assert_eq!(code, 0, "{said}");
}

fn example(name: &str) -> Value {
    serde_yaml_ng::from_str(&fs::read_to_string(root().join("docs/ci").join(name)).unwrap()).unwrap()
}

/// The steps of the GitHub example that run a shell, by name.
fn github(name: &str) -> String {
    let workflow = example("github-actions.yml");
    let steps = workflow["jobs"]["check"]["steps"].as_sequence().unwrap();
    let mut shells = steps.iter().filter(|step| step.get("run").is_some() && step["name"] != "Install pmvet");
    assert_eq!(shells.clone().count(), 4, "a step that no test runs: {steps:?}");
    shells.find(|step| step["name"] == name).unwrap()["run"].as_str().unwrap().to_owned()
}

#[test]
fn the_example_for_github_works() {
    let project = project();
    let (build, look, annotate) =
        (github("Build with debug information"), github("Look for bugs"), github("Annotate lines"));
    assert_eq!(run(project.path(), &build).0, 0);
    let (code, said) = run(project.path(), &look);
    assert!(code == 1 && said.contains("error[recovery-failure]"), "{said}");
    for export in ["pmvet.sarif", "pmvet.xml", "pmvet.html"] {
        assert!(project.path().join(export).is_file(), "{export}");
    }
    let (code, said) = run(project.path(), &annotate);
    let annotations: Vec<&str> = said.lines().collect();
    assert!(code == 0 && annotations.len() == 1, "{said}");
    assert!(said.starts_with("::error file=ledger.c,line=41,title=recovery-failure::recovery fails"), "{said}");

    accept(project.path());
    let (code, said) = run(project.path(), &look);
    assert!(code == 0 && said.contains("1 finding is in the baseline"), "{said}");
    assert_eq!(run(project.path(), &annotate), (0, String::new()), "what is known is not annotated");

    fs::remove_file(project.path().join("pmvet-baseline.json")).unwrap();
    repair(project.path());
    let (code, said) = run(project.path(), &format!("{build}\n{look}\n{annotate}"));
    assert!(code == 0 && !said.contains("::error"), "{said}");
}

/// The key under which a job keeps the pmvet that it has compiled.
#[test]
fn the_example_for_github_knows_the_version_of_pmvet() {
    let folder = project();
    let lines = "git init -q pmvet; git -C pmvet -c user.name=n -c user.email=e commit -q --allow-empty -m first
        export PMVET_REPOSITORY=pmvet GITHUB_OUTPUT=output";
    let (code, said) = run(folder.path(), &format!("{lines}\n{}", github("Which pmvet")));
    assert_eq!((code, said.as_str()), (0, ""));
    let (_, commit) = run(folder.path(), "git -C pmvet rev-parse HEAD");
    assert_eq!(fs::read_to_string(folder.path().join("output")).unwrap(), format!("commit={commit}"));
}

#[test]
fn the_example_for_gitlab_works() {
    let project = project();
    let job = &example("gitlab-ci.yml")["pmvet"];
    let lines = |part: &str| -> String {
        let lines = job[part].as_sequence().unwrap().iter().map(|line| line.as_str().unwrap());
        lines.collect::<Vec<_>>().join("\n")
    };
    for line in ["git clone", "make -C /tmp/pmvet install"] {
        assert!(lines("before_script").contains(line), "{line}");
    }
    let (code, said) = run(project.path(), &lines("script"));
    assert!(code == 1 && said.contains("error[recovery-failure]"), "{said}");
    let (code, said) = run(project.path(), &lines("after_script"));
    assert_eq!(code, 0, "{said}");
    for report in [&job["artifacts"]["reports"]["junit"], &job["artifacts"]["reports"]["codequality"]] {
        assert!(project.path().join(report.as_str().unwrap()).is_file(), "{report:?}");
    }
    let report = fs::read_to_string(project.path().join("gl-code-quality-report.json")).unwrap();
    let report: Value = serde_yaml_ng::from_str(&report).unwrap();
    assert_eq!(report.as_sequence().unwrap().len(), 1);
    assert_eq!(report[0]["severity"], "critical");
    assert_eq!(report[0]["location"]["path"], "ledger.c");
    assert_eq!(report[0]["location"]["lines"]["begin"], 41);
    assert_eq!(report[0]["fingerprint"].as_str().unwrap().len(), 32);

    accept(project.path());
    let (code, said) = run(project.path(), &lines("script"));
    assert!(code == 0 && said.contains("1 finding is in the baseline"), "{said}");
}

#[test]
fn the_example_for_make_works() {
    let project = project();
    let (code, said) = run(project.path(), "make vet");
    assert!(code == 2 && said.contains("error[recovery-failure]"), "{said}");
    let (code, said) = run(project.path(), "make vet-baseline vet");
    assert!(code == 0 && said.contains("1 finding is in the baseline"), "{said}");
    fs::remove_file(project.path().join("pmvet-baseline.json")).unwrap();
    repair(project.path());
    let (code, said) = run(project.path(), "make vet");
    assert!(code == 0 && said.contains("no findings"), "{said}");
}
