//! Bugs that no recovery notices: each one in the zoo's folder `durable` is found by `check --durable` with a look at the content, as
//! one error of its class and at its line, and by nothing without. The clean variants keep what they acknowledge.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use pmvet_findings::Frame;
use pmvet_fixtures::zoo::{blamed, marked_in};
use pmvet_fixtures::{
    CLEAN, CheckedRun, FOUND, TestPlace, both_cores, each_kind, is_soak, make, one_of_each, repository, turn,
};
use serde::Deserialize;

/// Runs of a clean program that has threads, in `make soak` and otherwise: each is interleaved in its own way.
const THREADED_RUNS: [usize; 2] = [20, 2];
const CLASSES: [&str; 5] = ["lost", "torn", "resurrected", "duplicated", "wrong-value"];

// ---- The manifests

#[derive(Debug, Deserialize)]
struct Manifest {
    program: Program,
    bug: Vec<Bug>,
}

#[derive(Debug, Deserialize)]
struct Program {
    name: String,
    language: String,
    /// Its operations, a line each.
    ops: String,
    #[serde(default)]
    threads: bool,
    /// Its pool is made before the run: that takes libpmemobj thousands of stores.
    #[serde(default)]
    setup: bool,
    /// It is a server, which has tests of its own.
    #[serde(default)]
    server: bool,
    /// Its bug is a race, which has tests of its own.
    #[serde(default)]
    race: bool,
}

#[derive(Debug, Deserialize)]
struct Bug {
    id: u32,
    class: String,
    about: String,
    cause: String,
    /// Its own operations, if those of the program show it as something else, too.
    ops: Option<String>,
}

impl Manifest {
    fn source(&self) -> PathBuf {
        let (zoo, name) = (repository().join("zoo"), &self.program.name);
        match self.program.language.as_str() {
            "C" => zoo.join("durable").join(name).join(format!("{name}.c")),
            "C++" => zoo.join("durable").join(name).join(format!("{name}.cpp")),
            "Rust" => zoo.join("rust").join(name).join("src/main.rs"),
            other => panic!("{name}: the language {other} is not known"),
        }
    }

    /// The operations that show a bug.
    fn ops<'a>(&'a self, bug: &'a Bug) -> &'a str {
        bug.ops.as_ref().unwrap_or(&self.program.ops)
    }

    fn uses_libpmemobj(&self) -> bool {
        fs::read_to_string(self.source()).unwrap().contains("<libpmemobj.h>")
    }
}

fn manifests() -> Vec<Manifest> {
    let folders = fs::read_dir(repository().join("zoo/durable")).unwrap().map(|entry| entry.unwrap().path());
    let read = |folder: PathBuf| toml::from_str(&fs::read_to_string(folder.join("manifest.toml")).unwrap()).unwrap();
    let mut all: Vec<Manifest> = folders.map(read).collect();
    all.retain(|manifest| !manifest.program.server && !manifest.program.race);
    all.sort_by(|a, b| a.program.name.cmp(&b.program.name));
    all
}

// ---- A check

#[derive(Debug, Clone, Copy, PartialEq)]
enum Look {
    /// As a user without a dump has it: only recovery says whether all is well.
    Recovery,
    Content,
}

fn check(program: &Program, variant: &str, ops: &str, look: Look) -> CheckedRun {
    let place = TestPlace::new();
    let variant = make("zoo", "zoo").join("durable").join(&program.name).join(variant);
    let command = [variant.to_str().unwrap(), place.pool().to_str().unwrap()].map(str::to_owned);
    // The other core has a check of its own.
    let mut options = vec!["-j1".to_owned()];
    if look == Look::Content {
        options.extend(["--durable".into(), "--dump".into(), format!("{} dump", command.join(" "))]);
    }
    // Crashes in the recovery of libpmemobj are four fifths of the time. The other programs have theirs.
    if program.setup && !is_soak() {
        options.extend(["--crash-recoveries".into(), "0".into()]);
    }
    if program.setup {
        options.extend(["--setup".into(), format!("{} </dev/null", command.join(" "))]);
    }
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    place.check(&options, &command).input(ops.as_bytes()).variable("PMEM_IS_PMEM_FORCE", "1").run()
}

/// Bugs that are named somewhere else, and why. Nothing is added here.
const NAMED_ELSEWHERE: &[(&str, u32, &str)] = &[
    ("ledger", 5, "the entry becomes persistent with the next operation, whose commit is named"),
    ("playlist", 3, "the recovery is wrong; the store that would have made it right is named"),
];

// ---- The tests

#[test]
fn every_bug_is_one_error_of_its_class() {
    let _turn = turn();
    let manifests = manifests();
    let all = manifests.iter().flat_map(|m| m.bug.iter().map(move |bug| (m, bug)));
    let trials = each_kind(all, |(manifest, bug)| {
        let how = format!("threads: {}, libpmemobj: {}", manifest.program.threads, manifest.uses_libpmemobj());
        [bug.class.clone(), how]
    });
    both_cores(&trials, |(manifest, bug)| {
        let checked = check(&manifest.program, &format!("bug-{}", bug.id), manifest.ops(bug), Look::Content);
        let name = format!("{} bug {} ({})", manifest.program.name, bug.id, bug.class);
        is_found(manifest, bug, &checked).map_err(|what| format!("--- {name}: {what}\n{}", checked.text()))
    });
}

fn is_found(manifest: &Manifest, bug: &Bug, checked: &CheckedRun) -> Result<(), String> {
    if checked.code != Some(FOUND) {
        return Err("not found".into());
    }
    let rule = format!("durable-{}", bug.class);
    let marked = marked_in(&manifest.source(), bug.id);
    // Most have one error. A bug that is in two functions has one in each.
    for error in checked.errors() {
        if error.rule.0 != rule {
            return Err(format!("of {}, not of {rule}", error.rule.0));
        }
        // The store may be in a function that stores for others: then one of these is marked.
        let path: Vec<String> = error.places[0].stack.iter().filter_map(place_in_source).collect();
        let is_elsewhere = |(program, id, _): &(&str, u32, &str)| *program == manifest.program.name && *id == bug.id;
        if NAMED_ELSEWHERE.iter().any(is_elsewhere) {
            continue;
        }
        if !path.iter().any(|line| marked.contains(line)) {
            return Err(format!("named at {}, by way of {path:?}, not at {marked:?}", blamed(error)));
        }
    }
    Ok(())
}

/// `file.c:12`.
fn place_in_source(frame: &Frame) -> Option<String> {
    Some(format!("{}:{}", frame.file.as_ref()?.file_name()?.to_str()?, frame.line?))
}

#[test]
fn no_bug_is_an_error_without_a_look_at_the_content() {
    let _turn = turn();
    let manifests = manifests();
    let all = manifests.iter().flat_map(|m| m.bug.iter().map(move |bug| (m, bug)));
    let trials = one_of_each(all, |(manifest, _)| &manifest.program.name);
    both_cores(&trials, |(manifest, bug)| {
        let checked = check(&manifest.program, &format!("bug-{}", bug.id), manifest.ops(bug), Look::Recovery);
        match checked.code == Some(CLEAN) && checked.errors().next().is_none() {
            true => Ok(()),
            false => Err(format!("--- {} bug {}: {}", manifest.program.name, bug.id, checked.text())),
        }
    });
}

#[test]
fn clean_variants_keep_what_they_acknowledge() {
    let _turn = turn();
    let manifests = manifests();
    let mut trials = Vec::new();
    for manifest in &manifests {
        let threaded = THREADED_RUNS[usize::from(!is_soak())];
        let runs = if manifest.program.threads { threaded } else { 1 };
        trials.extend((0..runs).map(|_| (manifest, manifest.program.ops.as_str())));
        let of_bugs = manifest.bug.iter().filter_map(|bug| bug.ops.as_deref()).map(|ops| (manifest, ops));
        trials.extend(one_of_each(of_bugs, |_| ()));
    }
    both_cores(&trials, |(manifest, ops)| {
        let checked = check(&manifest.program, "clean", ops, Look::Content);
        // Their needless flushes would hide those of the variants.
        match checked.code == Some(CLEAN) && checked.findings.is_empty() {
            true => Ok(()),
            false => Err(format!("--- {}: {}", manifest.program.name, checked.text())),
        }
    });
}

#[test]
fn there_are_bugs_of_every_kind() {
    let manifests = manifests();
    let mut of_class: BTreeMap<&str, usize> = CLASSES.iter().map(|class| (*class, 0)).collect();
    for manifest in &manifests {
        let source = manifest.source();
        let mut ids = BTreeSet::new();
        for bug in &manifest.bug {
            let name = format!("{} bug {}", manifest.program.name, bug.id);
            *of_class.get_mut(bug.class.as_str()).unwrap_or_else(|| panic!("{name}: the class {}", bug.class)) += 1;
            assert!(ids.insert(bug.id), "{name} is there twice");
            assert!(!bug.about.is_empty() && !bug.cause.is_empty(), "{name} is not described");
            assert!(!marked_in(&source, bug.id).is_empty(), "{name} is not marked");
        }
    }
    assert!(of_class.values().sum::<usize>() >= 20 && of_class.values().all(|bugs| *bugs >= 2), "{of_class:?}");
    for language in ["C", "C++", "Rust"] {
        assert!(manifests.iter().any(|m| m.program.language == language), "none in {language}");
    }
    let kinds: BTreeSet<_> = manifests.iter().map(|m| (m.program.threads, m.uses_libpmemobj())).collect();
    assert!([(false, false), (true, false), (false, true)].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
}
