//! `pmvet.toml`: settings that belong to a target, with the same names as the flags.

mod syntax;

use std::fmt;
use std::path::{Path, PathBuf};

use pmvet_engines::confirm::sync_names::Declared;
use pmvet_events::plan::{AllocFunction, SyncFunction};
use pmvet_findings::suppress::Suppress;
use serde::Deserialize;

use self::syntax::{Raw, RawTarget};
use crate::cli::Command;
use crate::pm;
use crate::retention::DEFAULT_LIMIT_BYTES;

/// The file that is read by default.
pub(crate) const DEFAULT_FILE: &str = "pmvet.toml";

/// What the configuration says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Config {
    /// Absolute globs.
    pub(crate) pm: Vec<String>,
    pub(crate) sync: Vec<SyncFunction>,
    pub(crate) sync_variables: Vec<Declared>,
    pub(crate) alloc: Vec<AllocFunction>,
    pub(crate) race: RaceConfig,
    pub(crate) suppress: Vec<Suppress>,
    /// Settings for which flags take precedence.
    pub(crate) defaults: WorkloadDefaults,
    pub(crate) runs_limit: RunsLimit,
}

/// The workload, as far as the command line does not describe it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct WorkloadDefaults {
    pub(crate) command: Vec<String>,
    pub(crate) setup: Option<String>,
    pub(crate) recover: Option<String>,
    pub(crate) oracle: Option<String>,
}

/// How much room runs may take, in bytes. Nothing: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunsLimit(pub(crate) Option<u64>);

impl Default for RunsLimit {
    fn default() -> Self {
        Self(Some(DEFAULT_LIMIT_BYTES))
    }
}

impl RunsLimit {
    /// `500 MiB`, `4GiB`, `none`.
    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no size; write 500MiB, 4GiB or none");
        if text.trim() == "none" {
            return Ok(Self(None));
        }
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim() {
            "KiB" => 10,
            "MiB" => 20,
            "GiB" => 30,
            "TiB" => 40,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        number.checked_mul(1 << shift).map(|bytes| Self(Some(bytes))).ok_or_else(wrong)
    }
}

/// What the user tells `pmvet race` about inferred locks.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
// Messages about a wrong type show this name.
#[serde(rename = "Race", deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct RaceConfig {
    #[serde(default)]
    pub(crate) deny_lock: Vec<String>,
    #[serde(default)]
    pub(crate) declare_lock: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("cannot read the configuration {}: {source}", .path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{}{}", .path.display(), AtLine(.line, .message))]
    Wrong { path: PathBuf, line: Option<usize>, message: String },
}

/// `:LINE: message`, as editors understand it.
struct AtLine<'a>(&'a Option<usize>, &'a str);

impl fmt::Display for AtLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(line) => write!(f, ":{line}: {}", self.1),
            None => write!(f, ": {}", self.1),
        }
    }
}

impl Config {
    /// Reads `asked`, or the default file if there is one.
    pub(crate) fn load(asked: Option<&Path>) -> Result<Self, ConfigError> {
        let path = asked.unwrap_or(Path::new(DEFAULT_FILE));
        match std::fs::read(path) {
            Ok(bytes) => {
                let wrong = |line, message| ConfigError::Wrong { path: path.to_owned(), line, message };
                let text = String::from_utf8(bytes).map_err(|e| {
                    let valid = &e.as_bytes()[..e.utf8_error().valid_up_to()];
                    let line = 1 + valid.iter().filter(|&&b| b == b'\n').count();
                    wrong(Some(line), "the text is not UTF-8".into())
                })?;
                let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
                Self::parse(&text, &folder).map_err(|(line, message)| wrong(line, message))
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && asked.is_none() => Ok(Self::default()),
            Err(source) => Err(ConfigError::Unreadable { path: path.to_owned(), source }),
        }
    }

    /// Checks that a text would be understood, before it is written.
    pub(crate) fn check(text: &str) -> Result<Self, String> {
        Self::parse(text, Path::new(".")).map_err(|(_, message)| message)
    }

    /// Parses `text`; relative globs are relative to `folder`. An error has a line, from 1, and a message.
    fn parse(text: &str, folder: &Path) -> Result<Self, (Option<usize>, String)> {
        let line = |at: usize| 1 + text.bytes().take(at).filter(|&b| b == b'\n').count();
        let raw: Raw = toml::from_str(text).map_err(|e| {
            // The key helps more than the message alone: "[oracle]", "pm = 3".
            let span = e.span();
            let quoted = span.clone().and_then(|s| text.get(..s.start)).map(|before| {
                let from = before.rfind('\n').map_or(0, |at| at + 1);
                text[from..].lines().next().unwrap_or_default().trim()
            });
            let message = match quoted.filter(|q| !q.is_empty()) {
                Some(quoted) => format!("{} (`{quoted}`)", e.message().trim_end()),
                None => e.message().trim_end().to_owned(),
            };
            (span.map(|s| line(s.start)), message)
        })?;
        let RawTarget { pm, command, setup, recover, oracle } = raw.target;
        let defaults = WorkloadDefaults { command, setup, recover, oracle };
        let mut config = Self { suppress: raw.suppress, race: raw.race, defaults, ..Self::default() };
        if let Some(limit) = raw.runs.limit {
            let at = limit.span().start;
            config.runs_limit =
                RunsLimit::parse(limit.get_ref()).map_err(|e| (Some(line(at)), format!("limit: {e}")))?;
        }
        for glob in pm {
            let at = glob.span().start;
            config.pm.push(pm::glob(glob.get_ref(), folder).map_err(|e| (Some(line(at)), format!("pm: {e}")))?);
        }
        for sync in raw.sync {
            let at = sync.span().start;
            sync.into_inner().check(&mut config).map_err(|message| (Some(line(at)), message))?;
        }
        for alloc in raw.alloc {
            let at = alloc.span().start;
            let alloc = alloc.into_inner();
            let wrong = |what: &str| Err((Some(line(at)), format!("[[alloc]] `{}`: {what}", alloc.function)));
            if alloc.function.is_empty() {
                return wrong("function is empty");
            }
            if alloc.size.is_none() && alloc.bytes.is_none() {
                return wrong("neither size nor bytes says how much it hands out");
            }
            if [alloc.size, alloc.out, alloc.base].into_iter().flatten().any(|arg| arg > 3) {
                return wrong("size, out and base must be 0, 1, 2 or 3: one of the first four arguments");
            }
            config.alloc.push(alloc);
        }
        Ok(config)
    }
}

/// Fills in parts of the workload that the command line leaves to the configuration.
pub(crate) fn fill_in(command: &mut Command) -> Result<(), ConfigError> {
    let (workload, recover, oracle) = match command {
        Command::Vet(a) => (&mut a.workload, Some(&mut a.recovering.recover), Some(&mut a.recovering.oracle)),
        Command::Check(a) => (&mut a.workload, Some(&mut a.recovering.recover), Some(&mut a.recovering.oracle)),
        Command::Verify(a) => (&mut a.workload, Some(&mut a.recovering.recover), Some(&mut a.recovering.oracle)),
        // Without `--confirm` an oracle has nothing to judge.
        Command::Race(a) => {
            let oracle = a.confirm.confirm.then_some(&mut a.confirm.oracle);
            (&mut a.workload, Some(&mut a.confirm.recover), oracle)
        }
        Command::Fuzz(a) if a.interleave => (&mut a.workload, Some(&mut a.recover), Some(&mut a.oracle)),
        Command::Fuzz(a) => (&mut a.workload, None, None),
        _ => return Ok(()),
    };
    let known = Config::load(workload.config.as_deref())?.defaults;
    if workload.command.is_empty() {
        workload.command = known.command.into_iter().map(Into::into).collect();
    }
    if !workload.in_place {
        workload.setup = workload.setup.take().or(known.setup);
    }
    for (flag, known) in [(recover, known.recover), (oracle, known.oracle)] {
        if let Some(flag) = flag {
            *flag = flag.take().or(known);
        }
    }
    Ok(())
}

/// A string in TOML syntax.
pub(crate) fn toml_string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.push_str(&format!("\\u{:04X}", u32::from(c))),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use pmvet_events::plan::SyncFunctionKind;

    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Config, (Option<usize>, String)> {
        Config::parse(text, Path::new("/no/such"))
    }

    #[test]
    fn understands_target_and_sync() {
        let config = parse(
            "[target]\npm = [\"/x/*\", \"pools/*\"]\n[[sync]]\nfunction = \"my_lock\"\nkind = \"acquire\"\n\
             [[sync]]\nfunction = \"my_try\"\nkind = \"try\"\narg = 1\nshared = true\nsuccess = 1\n",
        )
        .unwrap();
        assert_eq!(config.pm, ["/x/*", "/no/such/pools/*"]);
        assert_eq!(config.sync.len(), 2);
        assert_eq!(config.sync[0].kind, SyncFunctionKind::Acquire);
        assert_eq!((config.sync[1].arg, config.sync[1].shared, config.sync[1].success), (1, true, Some(1)));
        assert_eq!(parse("").unwrap(), Config::default());
    }

    #[test]
    fn understands_variables() {
        let text = "[[sync]]\nvariable = \"bucket.lock\"\nsize = 8\ninit = 2\n[[sync]]\noffset = 64\nsize = 4\n";
        let text = text.to_owned() + "[[sync]]\nvariable = \"lock\"\noffset = 64\n";
        let named = |name: &str| Declared { variable: Some(name.into()), ..Declared::default() };
        let expected = [
            Declared { size: Some(8), init: 2, ..named("bucket.lock") },
            Declared { offset: Some(64), size: Some(4), ..Declared::default() },
            Declared { offset: Some(64), ..named("lock") },
        ];
        assert_eq!(parse(&text).unwrap().sync_variables, expected);
    }

    #[test]
    fn understands_alloc_and_race() {
        let config = parse(
            "[[alloc]]\nfunction = \"slab_new\"\nsize = 1\nbytes = 64\nout = 2\nbase = 0\n\
             [race]\ndeny-lock = [\"next\"]\ndeclare-lock = [\"take\", \"grab\"]\n",
        )
        .unwrap();
        let expected =
            AllocFunction { function: "slab_new".into(), size: Some(1), bytes: Some(64), out: Some(2), base: Some(0) };
        assert_eq!(config.alloc, [expected]);
        assert_eq!((config.race.deny_lock.len(), config.race.declare_lock.len()), (1, 2));
    }

    #[test]
    fn understands_workloads_and_limits() {
        let config = parse(
            "[target]\ncommand = [\"./p\", \"-n 5\"]\nsetup = \"a\"\nrecover = \"b\"\noracle = \"c\"\n[runs]\nlimit = \"2 MiB\"\n",
        )
        .unwrap();
        let text = |text: &str| Some(text.to_owned());
        let expected = WorkloadDefaults {
            command: vec!["./p".into(), "-n 5".into()],
            setup: text("a"),
            recover: text("b"),
            oracle: text("c"),
        };
        assert_eq!((config.defaults, config.runs_limit), (expected, RunsLimit(Some(2 << 20))));
        assert_eq!(parse("[runs]\nlimit = \"none\"").unwrap().runs_limit, RunsLimit(None));
        assert_eq!(parse("").unwrap().runs_limit, RunsLimit(Some(DEFAULT_LIMIT_BYTES)));
    }

    #[test]
    fn flags_win_over_the_file() {
        use clap::Parser;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pmvet.toml");
        std::fs::write(&path, "[target]\ncommand = [\"./p\"]\nsetup = \"s\"\nrecover = \"r\"\noracle = \"o\"\n")
            .unwrap();
        let filled = |words: &[&str]| {
            let start = ["pmvet", "vet", "--config", path.to_str().unwrap()];
            let mut command = crate::cli::Cli::parse_from(start.iter().chain(words)).command;
            fill_in(&mut command).unwrap();
            let Command::Vet(vet) = command else { panic!() };
            (vet.workload.command, vet.workload.setup, vet.recovering.recover, vet.recovering.oracle)
        };
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(filled(&[]), (vec!["./p".into()], text("s"), text("r"), text("o")));
        let words = ["--setup", "S", "--recover", "R", "--oracle", "O", "--", "./q", "1"];
        assert_eq!(filled(&words), (vec!["./q".into(), "1".into()], text("S"), text("R"), text("O")));
        assert_eq!(filled(&["--in-place"]).1, None, "private files are not for it");
    }

    #[test]
    fn strings_are_quoted_as_toml_reads_them() {
        for text in ["", "plain", "a \"b\" \\ c", "line\nline\ttab\u{7f}\u{1}", "é…"] {
            let file = format!("[target]\nsetup = {}\n", toml_string(text));
            assert_eq!(parse(&file).unwrap().defaults.setup.as_deref(), Some(text), "{file}");
        }
    }

    #[test]
    fn errors_name_line_and_key() {
        let cases = [
            ("\n[targets]\n", 2, "targets"),
            ("[target]\npm = []\npn = 1\n", 3, "pn"),
            ("[target]\npm = 3\n", 2, "pm"),
            ("[target]\npm = [\"/a\",\n\"/[b\"]\n", 3, "/[b"),
            ("[[sync]]\nfunction = \"f\"\nkind = \"grab\"\n", 3, "grab"),
            ("[[sync]]\nfunction = \"f\"\nkind = \"try\"\nlock = 1\n", 4, "lock"),
            ("\n[[sync]]\nfunction = \"f\"\nkind = \"try\"\narg = 4\n", 2, "arg"),
            ("[[sync]]\nfunction = \"\"\nkind = \"try\"\n", 1, "function"),
            ("[[sync]]\nkind = \"try\"\n", 1, "function"),
            ("[[sync]]\nfunction = \"f\"\n", 1, "kind"),
            ("[[sync]]\nfunction = \"f\"\nkind = \"try\"\ninit = 1\n", 1, "init"),
            ("[[sync]]\noffset = 3\n", 1, "size"),
            ("[[sync]]\nvariable = \"b.lock\"\nsize = 3\n", 1, "size"),
            ("[[sync]]\nvariable = \"b.lock\"\nfunction = \"f\"\nsize = 8\n", 1, "needs a function"),
            ("[[sync]]\nvariable = \"b.lock\"\nkind = \"try\"\n", 1, "kind"),
            ("[[sync]]\nvariable = \"\"\nsize = 8\n", 1, "variable"),
            ("[[alloc]]\nsize = 0\n", 1, "function"),
            ("[[alloc]]\nfunction = \"\"\nsize = 0\n", 1, "function"),
            ("\n[[alloc]]\nfunction = \"f\"\n", 2, "bytes"),
            ("[[alloc]]\nfunction = \"f\"\nsize = 4\n", 1, "size"),
            ("[[alloc]]\nfunction = \"f\"\nsize = 0\nlen = 1\n", 4, "len"),
            ("[race]\ndeny = []\n", 2, "deny"),
            ("[race]\ndeny-lock = \"f\"\n", 2, "deny-lock"),
            ("[runs]\nlimit = \"4\"\n", 2, "limit"),
            ("[runs]\nlimit = \"99999999999999 TiB\"\n", 2, "limit"),
            ("[runs]\nlimit = 4\n", 2, "limit"),
            ("[runs]\nkeep = 4\n", 2, "keep"),
            ("[target]\ncommand = \"./p\"\n", 2, "command"),
            ("x = \n", 1, "x"),
        ];
        for (text, line, key) in cases {
            let (found, message) = parse(text).unwrap_err();
            assert_eq!(found, Some(line), "{text:?}: {message}");
            assert!(message.contains(key), "{text:?}: {message}");
        }
    }

    #[test]
    fn tables_of_later_versions_are_refused() {
        for text in ["[oracle]\n", "[profile.ci]\nseed = 1\n"] {
            let (line, message) = parse(text).unwrap_err();
            assert!(message.contains("does not know this table yet"), "{message}");
            assert_eq!(line, Some(1), "{text}: {message}");
            assert!(message.contains(text.trim_matches(['[', '\n']).split([']', '.']).next().unwrap()), "{message}");
        }
    }

    #[test]
    fn files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("my.toml");
        assert!(matches!(Config::load(Some(&path)), Err(ConfigError::Unreadable { .. })));
        std::fs::write(&path, "[target]\npm = [\"*.pool\"]\nx = 1").unwrap();
        let error = Config::load(Some(&path)).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}:3: ", path.display())) && error.contains('x'), "{error}");
        std::fs::write(&path, b"# caf\xe9\n").unwrap();
        assert!(Config::load(Some(&path)).unwrap_err().to_string().contains("UTF-8"));
        std::fs::write(&path, "[target]\npm = [\"*.pool\"]").unwrap();
        let expected = dir.path().canonicalize().unwrap().join("*.pool");
        assert_eq!(Config::load(Some(&path)).unwrap().pm, [expected.to_str().unwrap()]);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".*") {
            let _ = parse(&text);
        }

        #[test]
        fn no_almost_right_text_makes_it_panic(parts in prop::collection::vec(prop::sample::select(vec![
            "[target]", "\n", "pm", " = ", "[", "]", "\"/x/*\"", "\"[\"", "[[sync]]", "function", "\"f\"", "kind",
            "\"try\"", "[[alloc]]", "size", "[race]", "deny-lock", "arg", "-1", "9", "success", "shared", "true", "[oracle]", "é", "\"", "'''", "{", "}", ",", ".", "#",
        ]), 0..40)) {
            let _ = parse(&parts.concat());
        }
    }
}
