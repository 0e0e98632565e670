//! PMDK's examples, as Debian ships them: real code, not written to be tested.
//!
//! A crash inside the creation of a pool leaves a file that no longer opens: found, explained, one finding for each
//! program. On pools made beforehand, every error was judged against the source, and the judgement is in [`JUDGED`]: an error
//! that is not in the table is a bug of the example that nobody has looked at yet, or a defect of pmvet.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use pmvet_findings::Finding;
use pmvet_fixtures::{
    CLEAN, CheckedRun, FOUND, TestPlace, both_cores, is_soak, line, make, one_of_each, repository, turn,
};
use serde::Deserialize;

/// What an error is about, and why it is right.
struct Judgement {
    workload: &'static str,
    /// Part of the title.
    title: &'static str,
    #[expect(dead_code, reason = "for readers")]
    why: &'static str,
}

const JUDGED: &[Judgement] = &[
    Judgement {
        workload: "mapcli-hashmap_tx-rebuild",
        title: "`main`, inside `pmemobj_open`",
        why: "A bug of libpmemobj 1.12.1, in its own recovery. `hm_tx_rebuild` (hashmap_tx.c:128) makes a snapshot of all \
              buckets, which is larger than a lane's undo log, so that the log is extended by an allocation. A crash there \
              makes the next `pmemobj_open` roll back and free the extension, through the lane's internal redo log. If that \
              run crashes as soon as the redo log is complete, the third one replays it in `lane_recover_and_section_boot`, \
              and `undo.next` becomes 0; but `lane_boot` has already built the lane's volatile context of the undo log, \
              with the capacity of the extension. The first large snapshot follows the null pointer: SIGSEGV in \
              `pmemobj_tx_add_range`. The run after that works. Of the same kind as what pull request 3663 of PMDK mended \
              for the recovery of undo logs themselves.",
    },
    Judgement {
        workload: "mapcli-ctree-one-key",
        title: "`ctree_map_insert`, inside `pmemobj_tx_commit`",
        why: "A bug of the example that needs no crash: mapcli's ctree dies at the insertion of a second key. The workload has \
              one key at a time; after a crash behind the insertion, the same workload inserts its key a second time.",
    },
];

/// Errors of programs that make their pool, beside the one in `pmemobj_create`.
const AFTER_CREATION: &[Judgement] = &[Judgement {
    workload: "pminvaders",
    title: "in `main` is done",
    why: "A bug of the example: it makes its player after the pool, in a step of its own (pminvaders.c:374). After a crash in \
          between the pool opens, there is no player, and the game follows a null pointer.",
}];

#[derive(Debug, Clone, Default, Deserialize)]
struct Workload {
    name: String,
    program: String,
    args: Vec<String>,
    stdin: Option<String>,
    stdin_gen: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    setup: Vec<Vec<String>>,
    make_input: Option<String>,
    client: Option<Vec<String>>,
    recover: Option<Vec<String>>,
}

fn table() -> BTreeMap<String, Workload> {
    #[derive(Deserialize)]
    struct Table {
        workload: Vec<Workload>,
    }
    let text = fs::read_to_string(repository().join("targets/pmdk/workloads.toml")).unwrap();
    let table: Table = toml::from_str(&text).unwrap();
    table.workload.into_iter().map(|workload| (workload.name.clone(), workload)).collect()
}

/// What `gen.sh` prints for "NAME N".
fn generate(generator: &str) -> Vec<u8> {
    let output = Command::new(repository().join("targets/pmdk/gen.sh")).args(generator.split(' ')).output().unwrap();
    assert!(output.status.success(), "gen.sh {generator}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn quoted(words: &[String]) -> String {
    let quote = |word: &String| format!("'{}'", word.replace('\'', "'\\''"));
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

impl Workload {
    fn check(&self, place: &TestPlace, bin: &Path, jobs: u32) -> CheckedRun {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let input = place.pools().join("input");
        if let Some(generator) = &self.make_input {
            fs::write(&input, generate(generator)).unwrap();
        }
        let fill = |words: &[String]| -> Vec<String> {
            let fill = |word: &String| {
                word.replace("{pool}", &path(&place.pool()))
                    .replace("{pool2}", &path(&place.pools().join("pool2")))
                    .replace("{input}", &path(&input))
                    .replace("{bin}", &path(bin))
            };
            words.iter().map(fill).collect()
        };
        let mut command = fill(&self.args);
        command.insert(0, path(&bin.join(&self.program)));
        let setup: Vec<String> = self.setup.iter().map(|words| quoted(&fill(words))).collect();
        let setup = setup.join(" && ");
        // Opening a pool takes long: the whole is for `make soak`.
        let less: &[&str] = if is_soak() {
            &[]
        } else if JUDGED.iter().any(|judgement| judgement.workload == self.name) {
            &["--visits", "1", "--crash-recoveries", "4"]
        } else {
            &["--visits", "1", "--crash-recoveries", "1"]
        };
        let jobs = format!("-j{jobs}");
        let mut check = place.check(&[&jobs], &command).option(less);
        if !setup.is_empty() {
            check = check.option(&["--setup", &setup]);
        }
        if let Some(recover) = &self.recover {
            let mut recover = fill(recover);
            recover[0] = path(&bin.join(&recover[0]));
            check = check.option(&["--recover", &quoted(&recover)]);
        }
        for (name, value) in &self.env {
            check = check.variable(name, value);
        }
        match (&self.stdin, &self.stdin_gen) {
            (Some(text), _) => check.input(text.as_bytes()).run(),
            (None, Some(generator)) => check.input(&generate(generator)).run(),
            (None, None) => check.run(),
        }
    }

    /// Checks it; every error must be expected, must replay, and every expected one must be there.
    fn judge(&self, bin: &Path, expected: &[&str]) -> Result<(), String> {
        let place = TestPlace::new();
        let checked = self.check(&place, bin, 1);
        let wrong = |what: String| Err(format!("--- {}: {what}\n{}", self.name, checked.text()));
        let is = |error: &Finding, title: &str| error.title.contains(title);
        for error in checked.errors() {
            if !expected.iter().any(|title| is(error, title)) {
                return wrong(format!("not judged: {}", line(error)));
            }
        }
        for title in expected {
            match checked.errors().filter(|error| is(error, title)).count() {
                1 => {}
                n => return wrong(format!("{n} errors of: {title}")),
            }
        }
        if checked.code != Some(if expected.is_empty() { CLEAN } else { FOUND }) {
            return wrong("the exit code".into());
        }
        for error in checked.errors() {
            place.replays(error).map_err(|e| format!("--- {}: {e}", self.name))?;
        }
        Ok(())
    }

    fn judged(&self) -> Vec<&'static str> {
        JUDGED.iter().filter(|judgement| judgement.workload == self.name).map(|judgement| judgement.title).collect()
    }
}

// ---- Pools that the program makes itself

/// What a program does after it has made its pool is in the other test: a few operations will do.
fn creations() -> Vec<Workload> {
    let table = table();
    let named = |name: &str| table.get(name).unwrap_or_else(|| panic!("no workload {name}")).clone();
    let mut all = Vec::new();
    for map in ["btree", "ctree", "rtree", "rbtree", "skiplist", "hashmap_tx", "hashmap_atomic", "hashmap_rp"] {
        let args = [map, "{pool}", "42"].map(String::from).into();
        let (name, program) = (format!("mapcli-{map}"), "mapcli".into());
        all.push(Workload { name, program, args, stdin: Some("p\ni 5\np\n".into()), ..Workload::default() });
    }
    for map in ["btree", "ctree", "rbtree", "skiplist"] {
        let args = [map, "{pool}", "2"].map(String::from).into();
        all.push(Workload {
            name: format!("data_store-{map}"),
            program: "data_store".into(),
            args,
            ..Workload::default()
        });
    }
    for program in ["obj_pmemlog", "obj_pmemlog_macros", "obj_pmemlog_minimal", "obj_pmemlog_simple"] {
        let args = ["c", "{pool}", "a:hello"].map(String::from).into();
        let recover = Some([program, "o", "{pool}", "n"].map(String::from).into());
        all.push(Workload { name: program.into(), program: program.into(), args, recover, ..Workload::default() });
    }
    all.push(Workload {
        args: ["-m", "f", "-n", "3", "-m", "d", "{pool}"].map(String::from).into(),
        stdin_gen: Some("art-fill 3".into()),
        ..named("arttree-fill-small")
    });
    all.push(Workload { stdin_gen: Some("invaders 4".into()), ..named("pminvaders") });
    all.push(Workload { stdin_gen: Some("invaders 4".into()), ..named("pminvaders2") });
    for name in ["btree-create", "pi-1", "string_store", "string_store_tx", "string_store_tx_type", "slab_allocator"] {
        all.push(named(name));
    }
    all.extend([named("buffons-small"), named("obj_manpage")]);
    all
}

#[test]
fn a_crash_inside_the_creation_of_a_pool() {
    let _turn = turn();
    let bin = make("targets/pmdk", "pmdk");
    // They all fail alike, but for a few.
    let fails_twice = |workload: &Workload| AFTER_CREATION.iter().any(|judgement| judgement.workload == workload.name);
    let (special, alike): (Vec<_>, Vec<_>) = creations().into_iter().partition(fails_twice);
    let workloads: Vec<_> =
        special.into_iter().chain(one_of_each(alike, |workload| workload.stdin_gen.is_some())).collect();
    both_cores(&workloads, |workload| {
        let more = AFTER_CREATION.iter().filter(|judgement| judgement.workload == workload.name);
        let expected: Vec<&str> =
            std::iter::once("inside `pmemobj_create`").chain(more.map(|judgement| judgement.title)).collect();
        workload.judge(&bin, &expected)
    });
}

#[test]
fn it_is_explained() {
    let _turn = turn();
    let bin = make("targets/pmdk", "pmdk");
    let place = TestPlace::new();
    let checked = creations()[0].check(&place, &bin, 1);
    let error = checked.errors().next().unwrap();
    assert_eq!(error.title, "recovery fails after a crash in `main`, inside `pmemobj_create`");
    let frame = error.places[0].frame().unwrap();
    assert_eq!(frame.file.as_deref().and_then(Path::file_name).unwrap(), "mapcli.c");
    let source = fs::read_to_string(frame.file.as_ref().unwrap()).unwrap();
    let shown = source.lines().nth(frame.line.unwrap() as usize - 1).unwrap();
    assert!(shown.contains("pmemobj_create("), "{shown}");
    assert!(error.fix.contains("rename"), "{}", error.fix);
    assert!(checked.stdout.contains("failed to open pool"), "the words of the recovery are shown:\n{}", checked.stdout);
    assert_eq!(place.files(), [""; 0]);
}

// ---- Pools made beforehand

/// Every example with a way to go on after a crash, on a pool that exists.
fn restarts() -> Vec<Workload> {
    let table = table();
    let named = |name: &str| table.get(name).unwrap_or_else(|| panic!("no workload {name}")).clone();
    // Small ones that would make their own pool, and the layout of it.
    let made = [
        ("mapcli-btree-small", "map"),
        ("mapcli-rtree-small", "map"),
        ("mapcli-rbtree-small", "map"),
        ("mapcli-skiplist-small", "map"),
        ("mapcli-hashmap_tx-small", "map"),
        ("mapcli-hashmap_atomic-small", "map"),
        ("mapcli-hashmap_rp-small", "map"),
        ("mapcli-hashmap_tx-rebuild", "map"),
        ("mapcli-hashmap_atomic-rebuild", "map"),
        ("mapcli-hashmap_rp-rebuild", "map"),
        ("mapcli-ctree-one-key", "map"),
        ("data_store-btree-small", "data_store"),
        ("data_store-ctree-small", "data_store"),
        ("data_store-rbtree-small", "data_store"),
        ("data_store-skiplist-small", "data_store"),
        ("arttree-fill-small", "arttree_tx"),
        ("pi-1", "pi"),
        ("buffons-small", "pi"),
        ("slab_allocator", "btree"),
        ("pminvaders2", "pminvaders2"),
    ];
    let mkpool = |layout: &str| vec![["{bin}/mkpool", layout, "{pool}"].map(String::from).into()];
    let mut all: Vec<Workload> =
        made.iter().map(|(name, layout)| Workload { setup: mkpool(layout), ..named(name) }).collect();
    // Those that come with a pool.
    let ready = table.values().filter(|w| !w.setup.is_empty() && w.client.is_none() && w.name != "advanced");
    all.extend(ready.cloned());
    all
}

/// What examples use of libpmemobj, or else their program: for `make test`, the first of each will do.
fn family(workload: &Workload) -> String {
    const FAMILIES: [(&str, &[&str]); 4] = [
        ("transactions", &["mapcli", "data_store", "arttree", "buffons_needle_problem", "queue"]),
        ("atomic operations", &["pi", "btree", "fifo", "lists", "pminvaders", "slab_allocator"]),
        ("blocks and logs", &["obj_pmemblk", "obj_pmemlog"]),
        ("strings", &["string_store"]),
    ];
    let is_in = |programs: &[&str]| programs.iter().any(|program| workload.program.starts_with(program));
    let family = FAMILIES.into_iter().find(|(_, programs)| is_in(programs)).map(|(name, _)| name);
    family.unwrap_or(&workload.program).into()
}

#[test]
fn errors_on_pools_made_beforehand_are_judged() {
    let _turn = turn();
    let bin = make("targets/pmdk", "pmdk");
    let all = restarts();
    assert!(JUDGED.iter().all(|judgement| all.iter().any(|workload| workload.name == judgement.workload)));
    let (judged, clean): (Vec<_>, Vec<_>) = all.into_iter().partition(|workload| !workload.judged().is_empty());
    let workloads: Vec<_> = judged.into_iter().chain(one_of_each(clean, family)).collect();
    both_cores(&workloads, |workload| workload.judge(&bin, &workload.judged()));
}

#[test]
fn a_pool_may_be_several_files() {
    let _turn = turn();
    let bin = make("targets/pmdk", "pmdk");
    let place = TestPlace::new();
    let part = |n: u32| format!("8M {}\n", place.pools().join(format!("part-{n}")).display());
    fs::write(place.pool(), format!("PMEMPOOLSET\n{}{}", part(0), part(1))).unwrap();
    let workload = Workload {
        setup: vec![["{bin}/mkpool", "map", "{pool}"].map(String::from).into()],
        ..table().remove("mapcli-btree-small").unwrap()
    };
    // Several at a time: PMDK locks the file that describes the pool.
    let checked = workload.check(&place, &bin, 2);
    assert_eq!(checked.code, Some(CLEAN), "{}", checked.text());
    assert!(!place.pools().join("part-0").exists());
}
