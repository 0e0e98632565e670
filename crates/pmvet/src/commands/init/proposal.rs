//! The text of a proposed `pmvet.toml`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use pmvet_events::paths;

use super::functions::Candidates;
use crate::config::toml_string;

/// What a program was seen to do.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) command: &'a [OsString],
    pub(super) setup: Option<&'a str>,
    pub(super) folder: &'a Path,
    /// PM files that do not count as PM without being named.
    pub(super) files: Vec<PathBuf>,
    pub(super) threads: usize,
    /// How often a lock was taken with a function that pmvet knows.
    pub(super) locks: u64,
    pub(super) has_input: bool,
    /// The same command line ends well on what it left.
    pub(super) recovers: bool,
    pub(super) functions: Candidates,
}

impl Seen<'_> {
    pub(super) fn proposal(&self) -> String {
        let mut text = String::from(
            "# Proposed by `pmvet init`: what one run showed, and guesses as comments. Flags of the same names win.\n\n[target]\n",
        );
        let words: Option<Vec<&str>> = self.command.iter().map(|word| word.to_str()).collect();
        match words {
            Some(words) => text.push_str(&format!("command = {}\n", list(words))),
            None => text.push_str("# command: not valid UTF-8, so it has to be given after `--`\n"),
        }
        if self.has_input {
            text.push_str("# The program read standard input; give `pmvet vet` the same.\n");
        }
        text.push_str("\n# PM: files that the program maps and stores to. Those in /mnt/pmem*, /dev/shm and /dev/dax* need no entry.\n");
        let globs = self.globs();
        let mark = if globs.is_empty() { "# " } else { "" };
        text.push_str(&format!("{mark}pm = {}\n", list(globs.iter().map(String::as_str))));
        text.push_str("\n# Runs first, and makes the files that the program starts with. They stay private.\n");
        match self.setup {
            Some(setup) => text.push_str(&format!("setup = {}\n", toml_string(setup))),
            None => text.push_str("# setup = \"./make-pool pool\"\n"),
        }
        text.push_str(match self.recovers {
            true => {
                "\n# After a crash the same command line runs again, which ended well on the files of a whole run. A command that only opens \
                 and\n# checks the data is faster, and finds more if it is strict.\n# recover = \"./program --check pool\"\n"
            }
            false => {
                "\n# After a crash the same command line would run again, but it fails on the files of a whole run. Name a command that \
                 opens\n# them; `pmvet vet` ends with 3 until then.\n# recover = \"./program --check pool\"\n"
            }
        });
        text.push_str("\n# Runs after each recovery, with the PM files as arguments; 0 means that the data is as it should be.\n# oracle = \"./check\"\n");
        self.push_threads(&mut text);
        for allocator in &self.functions.allocators {
            text.push_str(&format!("# [[alloc]]\n# function = {}\n# size = 0\n", toml_string(allocator)));
        }
        text
    }

    fn push_threads(&self, text: &mut String) {
        let Self { threads, locks, functions, .. } = self;
        let calls = if functions.locks.is_empty() && functions.allocators.is_empty() {
            ""
        } else {
            " Its own functions with such names,\n# as guesses; see `[[sync]]` and `[[alloc]]` in docs/race.md:"
        };
        text.push_str(&match (threads, locks) {
            (0 | 1, _) => format!("\n# One thread worked on PM.{calls}\n"),
            (_, 0) => format!("\n# {threads} threads ran, and no lock function that pmvet knows was called.{calls}\n"),
            _ => format!(
                "\n# {threads} threads ran, and took locks {locks} times with functions that pmvet knows.{calls}\n"
            ),
        });
        for (function, kind) in &functions.locks {
            text.push_str(&format!("# [[sync]]\n# function = {}\n# kind = \"{kind}\"\n", toml_string(function)));
        }
    }

    /// Paths as globs: relative to the folder if they are in it, and a whole folder for many files.
    fn globs(&self) -> BTreeSet<String> {
        /// Up to this many files of one folder are named one by one.
        const ONE_BY_ONE: usize = 3;
        let siblings = |path: &Path| self.files.iter().filter(|other| other.parent() == path.parent()).count();
        let shown = |path: &PathBuf| {
            let short = path.strip_prefix(self.folder).unwrap_or(path);
            let name = |path: &Path| glob::Pattern::escape(&paths::text(path));
            match (siblings(path) > ONE_BY_ONE, short.parent()) {
                (true, Some(parent)) if !parent.as_os_str().is_empty() => format!("{}/*", name(parent)),
                (true, _) => "*".into(),
                _ => name(short),
            }
        };
        self.files.iter().map(shown).collect()
    }
}

fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    format!("[{}]", words.into_iter().map(toml_string).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::config::Config;

    fn seen<'a>(command: &'a [OsString], files: &[&str]) -> Seen<'a> {
        Seen {
            command,
            setup: None,
            folder: Path::new("/home/me"),
            files: files.iter().map(PathBuf::from).collect(),
            threads: 1,
            locks: 0,
            has_input: false,
            recovers: true,
            functions: Candidates::default(),
        }
    }

    #[test]
    fn a_proposal_is_understood() {
        let command = ["./p \"x\"".into(), "-n".into(), "5".into()];
        let mut seen = seen(&command, &["/home/me/data/pool", "/srv/[a]"]);
        seen.functions.locks.push(("l_lock".into(), "acquire"));
        seen.functions.allocators.push("slab_alloc".into());
        for (recovers, threads, locks) in [(true, 1, 0), (false, 4, 0), (true, 4, 9)] {
            seen = Seen { recovers, threads, locks, has_input: true, setup: Some("make pool"), ..seen };
            let text = seen.proposal();
            let config = Config::check(&text).unwrap();
            assert_eq!(config.defaults.command, ["./p \"x\"", "-n", "5"]);
            assert_eq!(config.defaults.setup.as_deref(), Some("make pool"));
            assert!(config.pm.len() == 2 && config.pm.contains(&"/srv/[[]a[]]".into()), "{:?}", config.pm);
            // The guesses are good, too, once the marks are removed.
            let start = text.find("# [[sync]]").unwrap();
            let guesses = Config::check(&text[start..].replace("# ", "")).unwrap();
            assert_eq!((guesses.sync.len(), guesses.alloc.len()), (1, 1));
        }
    }

    #[test]
    fn files_are_named_as_one_would() {
        let one = seen(&[], &["/home/me/pool", "/srv/x"]).globs();
        assert_eq!(one.into_iter().collect::<Vec<_>>(), ["/srv/x", "pool"]);
        let many = ["/home/me/d/1", "/home/me/d/2", "/home/me/d/3", "/home/me/d/4"];
        assert_eq!(seen(&[], &many).globs().into_iter().collect::<Vec<_>>(), ["d/*"]);
        assert!(seen(&[], &[]).proposal().contains("\n# pm = []\n"));
    }
}
