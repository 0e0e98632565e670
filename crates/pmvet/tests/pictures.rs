//! Pictures of the report of real runs, by headless Chromium: an overview, a crash, a race that is predicted and one that is proven,
//! a clean run; 1280 and 800 pixels wide, light and dark. They go to `target/pictures`, for people to look at.
//!
//! The book shows some of them. `PMVET_BLESS=1` writes these; otherwise they have to be there, and of the page as it is. Pixels are not
//! compared, since fonts differ from machine to machine: `pictures.txt` has a hash of all of the page but the data.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs};

use pmvet_fixtures::browser::{Browser, Theme};
use xxhash_rust::xxh3::xxh3_64;

const PMVET: &str = env!("CARGO_BIN_EXE_pmvet");
const CLEAN: i32 = 0;
const FOUND: i32 = 1;

/// A run of pmvet, how it ends, and pictures of its report: whether each is of the first finding, or of the overview.
struct Pictured {
    command: &'static str,
    code: i32,
    pictures: &'static [(&'static str, bool)],
}

const RUNS: [Pictured; 4] = [
    Pictured {
        command: "vet --quiet EXPORTS -- ./ledger /dev/shm/ledger 5",
        code: FOUND,
        pictures: &[("overview", false), ("crash", true)],
    },
    Pictured {
        command: "race --quiet EXPORTS -- ./mailbox /dev/shm/mailbox 20",
        code: CLEAN,
        pictures: &[("race", true)],
    },
    Pictured {
        command: "race --quiet --confirm EXPORTS -- ./mailbox /dev/shm/mailbox 20",
        code: FOUND,
        pictures: &[("proven-race", true)],
    },
    Pictured {
        command: "vet --quiet EXPORTS -- ./fixed /dev/shm/ledger 5",
        code: CLEAN,
        pictures: &[("clean", false)],
    },
];
const EXPORTS: &str = "--export-html report.html --export-json report.json";

/// The pictures of the book: what they show, width, theme, and their names there.
const BOOK: [(&str, u32, &str, &str); 5] = [
    ("crash", 1280, "light", "report.png"),
    ("overview", 1280, "light", "report-overview.png"),
    ("race", 1280, "light", "report-race.png"),
    ("clean", 1280, "light", "report-clean.png"),
    ("proven-race", 800, "dark", "report-dark.png"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Runs lines of a shell, and returns how the last of them ends.
fn shell(folder: &Path, lines: &str) -> i32 {
    let output = Command::new("sh").args(["-ec", lines]).current_dir(folder).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.code().unwrap_or_else(|| panic!("{lines}: {said}"))
}

/// The programs of the book, built: the ledger with its bug, and without, and the mailbox.
fn programs(folder: &Path) {
    let sources = root().join("docs/book/src");
    let script = format!(
        "cp {0}/tutorial/* {0}/programs/mailbox.c .
        cc -g -O2 -o ledger ledger.c
        cc -g -O2 -pthread -o mailbox mailbox.c
        patch -s -o fixed.c ledger.c first-fix.diff
        patch -s fixed.c second-fix.diff
        cc -g -O2 -o fixed fixed.c",
        sources.display()
    );
    assert_eq!(shell(folder, &script), 0);
}

/// All of a page but its data.
fn frame_of(page: &str) -> String {
    let (before, rest) = page.split_once("id=\"data\">").unwrap();
    let (_, after) = rest.split_once("</script>").unwrap();
    format!("{before}{after}")
}

#[test]
fn reports_of_real_runs_look_right_and_the_book_shows_them() {
    let Some(browser) = Browser::find() else { return };
    let folder = tempfile::Builder::new().prefix("pmvet-pictures-").tempdir().unwrap();
    let here = folder.path();
    programs(here);
    let target = root().join("target/pictures");
    fs::create_dir_all(&target).unwrap();
    let mut frame = String::new();
    for Pictured { command, code, pictures } in RUNS {
        let line = format!("exec {PMVET} {}", command.replace("EXPORTS", EXPORTS));
        assert_eq!(shell(here, &line), code, "{line}");
        let page = here.join("report.html");
        let text = fs::read_to_string(&page).unwrap();
        for size in [(1280, 900), (800, 900)] {
            browser.results(&text, include_str!("look.js"), size);
        }
        frame = frame_of(&text);
        let run: serde_json::Value = serde_json::from_slice(&fs::read(here.join("report.json")).unwrap()).unwrap();
        for &(subject, is_finding) in pictures {
            let hash = if is_finding { run["findings"][0]["fingerprint"].as_str().unwrap() } else { "overview" };
            // Down to the timeline, which comes after the source.
            let sizes = if is_finding { [(1280, 1300), (800, 1700)] } else { [(1280, 900), (800, 1100)] };
            for (width, height) in sizes {
                for (name, theme) in [("light", Theme::Light), ("dark", Theme::Dark)] {
                    let picture = target.join(format!("{subject}-{width}-{name}.png"));
                    browser.picture(&page, hash, (width, height), theme, &picture);
                }
            }
        }
    }
    let (shown, recorded) = (root().join("docs/book/src/pictures"), root().join("crates/pmvet/tests/pictures.txt"));
    let expected = format!("{:016x}\n", xxh3_64(frame.as_bytes()));
    if env::var_os("PMVET_BLESS").is_some() {
        for (subject, width, theme, name) in BOOK {
            fs::copy(target.join(format!("{subject}-{width}-{theme}.png")), shown.join(name)).unwrap();
        }
        fs::write(&recorded, &expected).unwrap();
    }
    for (.., name) in BOOK {
        assert!(shown.join(name).is_file(), "{name} is missing: PMVET_BLESS=1 makes it");
    }
    let found = fs::read_to_string(&recorded).unwrap_or_default();
    assert!(
        found == expected,
        "the page has changed, its pictures have not: PMVET_BLESS=1 makes them anew; look at them"
    );
}
