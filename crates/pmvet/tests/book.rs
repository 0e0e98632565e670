//! The reference chapters of the book have every command, flag, key, rule and exit code, and no link of a document leads nowhere.
//!
//! The pages of commands are made from `--help`, and three lists of the table of contents from what there is. With `PMVET_BLESS=1` they
//! are written, otherwise compared.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::{env, fs};

use regex::Regex;

/// Held by tests that may write the table of contents.
static SUMMARY: Mutex<()> = Mutex::new(());

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn book() -> PathBuf {
    root().join("docs/book/src")
}

/// What pmvet prints, wherever it prints it.
fn pmvet(folder: &Path, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pmvet"));
    let output = command.current_dir(folder).args(words).stdin(Stdio::null()).output().unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
}

/// Compares a file with what it should be, or writes it.
fn assert_file(path: &Path, expected: &str) {
    if env::var_os("PMVET_BLESS").is_some() {
        fs::write(path, expected).unwrap();
    }
    let found = fs::read_to_string(path).unwrap_or_default();
    assert!(found == expected, "{} is not up to date: PMVET_BLESS=1 writes it\n{expected}", path.display());
}

/// Compares the entries below `folder` in the table of contents with what they should be, or writes them behind their chapter.
fn assert_listed(folder: &str, chapter: &str, entries: &[String]) {
    let _guard = SUMMARY.lock().unwrap_or_else(|e| e.into_inner());
    let path = book().join("SUMMARY.md");
    let text = fs::read_to_string(&path).unwrap();
    let mut expected = String::new();
    for line in text.lines().filter(|line| !line.starts_with(' ') || !line.contains(&format!("({folder}"))) {
        expected += &format!("{line}\n");
        if line.ends_with(&format!("({chapter})")) {
            expected.extend(entries.iter().map(|entry| format!("  - {entry}\n")));
        }
    }
    assert_file(&path, &expected);
}

/// The entries of a list in a help text, below a heading: what is to the left, and the text.
fn entries(help: &str, heading: &str) -> Vec<(String, String)> {
    let start = Regex::new(r"^ {2,6}(\S.*?)(?: {2,}(\S.*))?$").unwrap();
    let mut all: Vec<(String, String)> = Vec::new();
    let lines = help.lines().skip_while(|line| *line != heading).skip(1);
    for line in lines.take_while(|line| line.is_empty() || line.starts_with(' ')) {
        match start.captures(line) {
            Some(found) => all.push((found[1].into(), found.get(2).map_or(String::new(), |text| text.as_str().into()))),
            None => {
                let (words, text) = (line.trim(), &mut all.last_mut().unwrap().1);
                if words.is_empty() || words.starts_with("- ") {
                    text.push('\n');
                }
                if !words.is_empty() {
                    text.push_str(if text.is_empty() || text.ends_with('\n') { "" } else { " " });
                    text.push_str(words);
                }
            }
        }
    }
    for (_, text) in &mut all {
        *text = text.lines().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    }
    all
}

/// Text of the program as Markdown, in a cell of a table.
fn cell(text: &str) -> String {
    Regex::new(r"[*_<>|\[\]]").unwrap().replace_all(text, r"\$0").replace('\n', "<br>")
}

/// The chapter that shows a command at work.
fn chapter_of(command: &str) -> Option<&'static str> {
    Some(match command {
        "vet" => "[Getting started](../../getting-started.md)",
        "check" => "[Does it survive a crash?](../../questions/crash.md)",
        "verify" => "[What states can a crash leave?](../../questions/states.md)",
        "race" => "[Are my threads safe?](../../questions/threads.md)",
        "fuzz" => "[Which inputs break it?](../../questions/inputs.md)",
        "scatter" | "gather" => "[How do I use many machines?](../../questions/machines.md)",
        "trace" | "events" => "[What does my program do to PM?](../../questions/trace.md)",
        "show" | "explain" | "replay" | "report" => "[How do I read a report?](../../questions/report.md)",
        _ => return None,
    })
}

/// The commands below one, or all of pmvet's.
fn commands(above: &[&str]) -> Vec<(String, String)> {
    let mut all = entries(&pmvet(&root(), &[above, &["--help"]].concat()), "Commands:");
    all.retain(|(name, _)| name != "help");
    all
}

fn page_of(command: &str) -> String {
    let mut page = format!("# `pmvet {command}`\n\n{}", usage_of(&[command], chapter_of(command), "##"));
    for (below, _) in commands(&[command]) {
        page += &format!("\n## `pmvet {command} {below}`\n\n{}", usage_of(&[command, &below], None, "###"));
    }
    page
}

/// What the help of a command says, below headings of this level.
fn usage_of(command: &[&str], chapter: Option<&str>, level: &str) -> String {
    let help = pmvet(&root(), &[command, &["--help"]].concat());
    let (about, rest) = help.split_once("Usage: ").unwrap();
    let usage = rest.lines().next().unwrap();
    let about: Vec<String> = about.trim_end().split("\n\n").map(|lines| cell(&lines.replace('\n', " "))).collect();
    let mut text = format!("{}\n\n    {usage}\n", about.join("\n\n"));
    if let Some(chapter) = chapter {
        text += &format!("\nAt work: {chapter}\n");
    }
    for (list, heading, title) in [("Arguments:", "Arguments", "argument"), ("Options:", "Flags", "flag")] {
        let rows = entries(&help, list);
        if !rows.is_empty() {
            text += &format!("\n{level} {heading}\n\n| {title} | meaning |\n|---|---|\n");
            let rows = rows.iter().map(|(name, text)| format!("| `{}` | {} |\n", name.replace('|', "\\|"), cell(text)));
            text.extend(rows);
        }
    }
    text
}

#[test]
fn every_command_and_flag_is_there() {
    let commands = commands(&[]);
    assert!(commands.len() > 10, "{commands:?}");
    let mut overview = "# Commands\n\nEach command has a page here, made from its `--help`. What follows `--` is the \
                        program and its arguments, and is\npassed on untouched.\n\n| command | what it does |\n|---|---|\n"
        .to_owned();
    let folder = book().join("reference/commands");
    for (name, about) in &commands {
        overview += &format!("| [`pmvet {name}`](commands/{name}.md) | {} |\n", cell(about));
        let page = page_of(name);
        assert!(page.contains("`-h, --help`"), "{page}");
        assert_file(&folder.join(format!("{name}.md")), &page);
    }
    assert_file(&book().join("reference/commands.md"), &overview);
    let link = |(name, _): &(String, String)| format!("[`{name}`](reference/commands/{name}.md)");
    assert_listed("reference/commands/", "reference/commands.md", &commands.iter().map(link).collect::<Vec<_>>());
}

/// The keys that are known in a table of `pmvet.toml`, by what pmvet says about one that is not.
fn keys(folder: &Path, opened_by: &str) -> BTreeSet<String> {
    fs::write(folder.join("pmvet.toml"), format!("{opened_by}\nno-such-key = 1\n")).unwrap();
    let said = pmvet(folder, &["check", "--", "/bin/true"]);
    let (_, expected) = said.split_once(", expected ").unwrap_or_else(|| panic!("{opened_by}: {said}"));
    let (expected, _) = expected.rsplit_once(" (`").unwrap();
    Regex::new("`([a-z-]+)`").unwrap().captures_iter(expected).map(|found| found[1].to_owned()).collect()
}

#[test]
fn every_key_of_the_configuration_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let page = fs::read_to_string(book().join("reference/configuration.md")).unwrap();
    let mut documented: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for section in page.split("\n## `").skip(1) {
        let (table, text) = section.split_once('`').unwrap();
        let rows = text.lines().filter_map(|line| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned()));
        documented.insert(table.into(), rows.collect());
    }
    let mut tables = keys(folder.path(), "");
    for table in ["oracle", "profile"] {
        assert!(tables.remove(table) && page.contains(&format!("`{table}`")), "{table}");
    }
    assert_eq!(documented.keys().cloned().collect::<BTreeSet<_>>(), tables);
    for (table, rows) in documented {
        let is_list = ["sync", "alloc", "suppress"].contains(&table.as_str());
        let opened_by = if is_list { format!("[[{table}]]") } else { format!("[{table}]") };
        assert_eq!(rows, keys(folder.path(), &opened_by), "{table}");
    }
}

#[test]
fn every_rule_is_there() {
    let listed = pmvet(&root(), &["explain"]);
    let rules: Vec<&str> = listed.lines().map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(rules.len() > 10, "{listed}");
    for rule in &rules {
        let include = format!("{{{{#include ../../../../../crates/pmvet-findings/src/explain/{rule}.md}}}}\n");
        assert_file(&book().join(format!("reference/rules/{rule}.md")), &include);
    }
    let links: Vec<String> = rules.iter().map(|rule| format!("[`{rule}`](reference/rules/{rule}.md)")).collect();
    assert_listed("reference/rules/", "reference/rules.md", &links);
}

#[test]
fn every_decision_is_listed() {
    let folder = book().join("decisions");
    let names = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with('0')).collect();
    names.sort_unstable();
    let link = |name: &String| {
        let text = fs::read_to_string(folder.join(name)).unwrap();
        format!("[{}](decisions/{name})", text.lines().next().unwrap().trim_start_matches("# "))
    };
    assert_listed("decisions/0", "decisions/README.md", &names.iter().map(link).collect::<Vec<_>>());
}

#[test]
fn every_exit_code_is_there() {
    let code = Regex::new(r"(?m)^ +(\d+)  \S").unwrap();
    let help = pmvet(&root(), &["--help"]);
    let (_, listed) = help.split_once("Exit codes:").unwrap();
    let known: Vec<String> = code.captures_iter(listed).map(|found| found[1].to_owned()).collect();
    let page = fs::read_to_string(book().join("reference/exit-codes.md")).unwrap();
    let row = Regex::new(r"(?m)^\| (\d+) \|").unwrap();
    let rows: Vec<String> = row.captures_iter(&page).map(|found| found[1].to_owned()).collect();
    assert_eq!(rows, known);
}

/// The Markdown files below a folder, also behind links.
fn pages(folder: &Path, into: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            pages(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "md") {
            into.push(path);
        }
    }
}

/// A page with the pages that it includes.
fn whole(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let include = Regex::new(r"\{\{#include ([^}:]+)(?::\d+:\d+)?\}\}").unwrap();
    let mut all = text.clone();
    for found in include.captures_iter(&text) {
        let included = path.parent().unwrap().join(&found[1]);
        assert!(included.is_file(), "{} includes {}, which does not exist", path.display(), &found[1]);
        if found[1].ends_with(".md") {
            all = all.replace(&found[0], &fs::read_to_string(included).unwrap());
        }
    }
    all
}

/// What a link to a heading of the page has after `#`.
fn anchors(page: &str) -> BTreeSet<String> {
    let slug = |heading: &str| -> String {
        let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
    };
    page.lines().filter(|line| line.starts_with('#')).map(|line| slug(line.trim_start_matches('#'))).collect()
}

#[test]
fn no_link_leads_nowhere() {
    let root = root();
    let mut all: Vec<PathBuf> = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "zoo/README.md"]
        .iter()
        .map(|name| root.join(name))
        .collect();
    pages(&root.join("docs"), &mut all);
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    for page in all {
        let text = whole(&page);
        for found in link.captures_iter(&text) {
            let (file, anchor) = found[1].split_once('#').unwrap_or((&found[1], ""));
            if file.contains("://") {
                continue;
            }
            let target = if file.is_empty() { page.clone() } else { page.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {} leads nowhere", page.display(), &found[1]);
            let is_there = anchor.is_empty() || anchors(&whole(&target)).contains(anchor);
            assert!(is_there, "{}: {} has no such heading", page.display(), &found[1]);
        }
    }
}

#[test]
fn every_page_of_the_book_is_in_its_table_of_contents() {
    let mut all = Vec::new();
    pages(&book(), &mut all);
    let summary = fs::read_to_string(book().join("SUMMARY.md")).unwrap();
    for page in all {
        let name = page.strip_prefix(book()).unwrap().to_str().unwrap().to_owned();
        assert!(name == "SUMMARY.md" || summary.contains(&format!("({name})")), "{name} is not listed");
    }
}

#[test]
fn the_book_builds() {
    let ours = root().join("target/tools/bin/mdbook");
    let mdbook = if ours.is_file() { ours } else { "mdbook".into() };
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(mdbook).arg("build").arg(root().join("docs/book")).arg("-d").arg(folder.path()).output();
    let Ok(output) = output else {
        eprintln!("not built: there is no mdbook (make book installs it)");
        return;
    };
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !said.contains("WARN") && !said.contains("ERROR"), "{said}");
    assert!(folder.path().join("index.html").is_file());
}

/// What documents show as code: lines that are indented, and spans between backticks.
fn code(page: &str) -> Vec<String> {
    let span = Regex::new("`([^`]+)`").unwrap();
    let mut all = Vec::new();
    let mut fenced = false;
    for paragraph in page.split("\n\n") {
        for line in paragraph.lines() {
            fenced ^= line.trim_start().starts_with("```");
            if let Some(line) = line.strip_prefix("    ").filter(|_| !fenced) {
                all.push(line.trim().to_owned());
            }
        }
        if !fenced && !paragraph.contains("```") {
            let text = paragraph.replace('\n', " ");
            all.extend(span.captures_iter(&text).map(|found| found[1].to_owned()));
        }
    }
    all
}

/// Commands with programs that do not exist are not run, but their flags do exist.
#[test]
fn every_flag_that_is_shown_exists() {
    const OF_OTHERS: &[&str] = &["--flush-check", "--cap-add", "--security-opt", "--shm-size"];
    let flag = Regex::new(r"--[a-z][a-z-]*").unwrap();
    let quoted = Regex::new("'[^']*'").unwrap();
    let flags_of = |command: &str| -> BTreeSet<String> {
        let below = commands(&[command]).into_iter().map(|(name, _)| pmvet(&root(), &[command, &name, "--help"]));
        let helps = below.chain([pmvet(&root(), &[command, "--help"])]).collect::<String>();
        flag.find_iter(&helps).map(|found| found.as_str().to_owned()).collect()
    };
    let known: BTreeMap<String, BTreeSet<String>> =
        commands(&[]).into_iter().map(|(name, _)| (name.clone(), flags_of(&name))).collect();
    let mut all = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    pages(&root().join("docs"), &mut all);
    // Decisions also speak of flags that there are not, and of other programs.
    all.retain(|path| !path.components().any(|part| part.as_os_str() == "decisions"));
    let mut seen = 0;
    for page in all {
        for code in code(&fs::read_to_string(&page).unwrap()) {
            let ours = quoted.replace_all(code.split(" -- ").next().unwrap(), "");
            let command = ours.strip_prefix("pmvet ").and_then(|rest| rest.split(' ').next());
            let ours_alone = ours.starts_with("--");
            let Some(command) = command.or(ours_alone.then_some("")) else { continue };
            for found in flag.find_iter(&ours).map(|found| found.as_str()) {
                let exists = match known.get(command) {
                    Some(flags) => flags.contains(found),
                    None => known.values().any(|flags| flags.contains(found)),
                };
                assert!(exists || OF_OTHERS.contains(&found), "{}: no flag {found}: {code}", page.display());
                seen += 1;
            }
        }
    }
    assert!(seen > 200, "only {seen} flags were found");
}
