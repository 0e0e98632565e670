//! Findings that the user does not want to see, and why.
//!
//! ```toml
//! [[suppress]]
//! rule = "flush-clean"            # any of these four; all that are given must hold at one place of the finding
//! function = "log_*"              # the user's function the place is in
//! file = "src/log.c"              # its file, from any folder on
//! stack = ["memcpy*", "...", "main"]  # from the innermost frame outwards; `...` stands for any number of frames
//! reason = "the log is rebuilt at every start"
//! ```

use serde::{Deserialize, Serialize};

use crate::{
    finding::{Finding, Place},
    pattern::{matches, matches_path},
    rules,
};

/// One entry of the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Suppress {
    /// A pattern of the rule's id; nothing for any rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// A pattern of the user's function that the place is in; nothing for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// A pattern of that function's file, from any folder on; nothing for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Patterns of functions, from the innermost frame outwards; none for any stack.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stack: Vec<String>,
    /// Why it is suppressed. Must not be empty.
    #[serde(default)]
    pub reason: String,
}

/// What is wrong with an entry. Entries are numbered by position, from 1.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SuppressError {
    /// It gives no reason.
    #[error("suppression {0} gives no reason; add `reason = \"…\"`")]
    NoReason(usize),
    /// It gives a reason, but nothing that a finding could match.
    #[error("suppression {0} would hide everything; give it a rule, function, file or stack")]
    Everything(usize),
    /// Its pattern matches no id of the catalogue.
    #[error("suppression {number}: no rule is called `{rule}`; `pmvet explain` lists them")]
    NoSuchRule {
        /// The entry's position, from 1.
        number: usize,
        /// The pattern.
        rule: String,
    },
}

/// A suppression that was used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suppressed {
    /// The reason that its entry gives.
    pub reason: String,
    /// How many findings it has hidden.
    pub findings: u64,
}

/// A suppression that nothing matched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unused {
    /// Its position, from 1.
    pub number: usize,
    /// The reason that its entry gives.
    pub reason: String,
}

/// All suppressions of a run, with how often each was used.
#[derive(Debug, Default)]
pub struct Suppressions {
    entries: Vec<(Suppress, u64)>,
}

impl Suppressions {
    /// Takes the entries in the order of the configuration, or returns what is wrong with one.
    pub fn new(entries: impl IntoIterator<Item = Suppress>) -> Result<Self, SuppressError> {
        let entries = entries.into_iter().enumerate().map(|(index, entry)| {
            entry.check(index + 1)?;
            Ok((entry, 0))
        });
        Ok(Suppressions { entries: entries.collect::<Result<_, _>>()? })
    }

    /// Whether to hide the finding. Counted for the first entry that matches.
    pub fn hides(&mut self, finding: &Finding) -> bool {
        let entry = self.entries.iter_mut().find(|(entry, _)| entry.matches(finding));
        entry.map(|(_, uses)| *uses += 1).is_some()
    }

    /// Keeps only findings that no entry hides.
    pub fn apply(&mut self, findings: &mut Vec<Finding>) {
        findings.retain(|finding| !self.hides(finding));
    }

    /// The suppressions that have hidden a finding, in their order.
    pub fn used(&self) -> Vec<Suppressed> {
        let used = self.entries.iter().filter(|(_, uses)| *uses > 0);
        used.map(|(entry, uses)| Suppressed { reason: entry.reason.clone(), findings: *uses }).collect()
    }

    /// The suppressions that have hidden none, in their order.
    pub fn unused(&self) -> Vec<Unused> {
        let unused = self.entries.iter().enumerate().filter(|(_, (_, uses))| *uses == 0);
        unused.map(|(index, (entry, _))| Unused { number: index + 1, reason: entry.reason.clone() }).collect()
    }
}

impl Suppress {
    fn check(&self, number: usize) -> Result<(), SuppressError> {
        if self.reason.trim().is_empty() {
            return Err(SuppressError::NoReason(number));
        }
        if self.rule.is_none() && self.function.is_none() && self.file.is_none() && self.stack.is_empty() {
            return Err(SuppressError::Everything(number));
        }
        match &self.rule {
            Some(rule) if !rules::ALL.iter().any(|known| matches(rule, known.id)) => {
                Err(SuppressError::NoSuchRule { number, rule: rule.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Whether it would hide the finding.
    pub fn matches(&self, finding: &Finding) -> bool {
        let rule = self.rule.as_ref().is_none_or(|rule| matches(rule, &finding.rule.0));
        let anywhere = self.function.is_none() && self.file.is_none() && self.stack.is_empty();
        rule && (anywhere || finding.places.iter().any(|place| self.matches_place(place)))
    }

    fn matches_place(&self, place: &Place) -> bool {
        let frame = place.frame();
        let function = self.function.as_ref().is_none_or(|pattern| {
            frame.and_then(|frame| frame.function.as_ref()).is_some_and(|name| matches(pattern, name))
        });
        let file = self.file.as_ref().is_none_or(|pattern| {
            let file = frame.and_then(|frame| frame.file.as_ref());
            file.is_some_and(|file| matches_path(pattern, &file.to_string_lossy()))
        });
        let names = || place.stack.iter().map(|frame| frame.function.as_deref().unwrap_or("")).collect::<Vec<_>>();
        function && file && (self.stack.is_empty() || stack_matches(&self.stack, &names()))
    }
}

/// The frames that follow the last pattern do not matter.
fn stack_matches(patterns: &[String], names: &[&str]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to resume if the last `...` has to match one more frame.
    let mut retry = None;
    while let Some(pattern) = patterns.get(p) {
        if pattern == "..." {
            retry = Some((p, n));
            p += 1;
        } else if names.get(n).is_some_and(|name| matches(pattern, name)) {
            p += 1;
            n += 1;
        } else {
            match retry {
                Some((dots, from)) if from < names.len() => {
                    retry = Some((dots, from + 1));
                    p = dots + 1;
                    n = from + 1;
                }
                _ => return false,
            }
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Config {
        suppress: Vec<Suppress>,
    }

    fn parse(text: &str) -> Result<Suppressions, SuppressError> {
        Suppressions::new(toml::from_str::<Config>(text).unwrap().suppress)
    }

    #[test]
    fn stacks() {
        let pattern = |text: &str| text.split_whitespace().map(String::from).collect::<Vec<_>>();
        let names = ["memcpy", "put", "put", "main"];
        for (text, expected) in [
            ("memcpy", true),
            ("mem* put", true),
            ("put", false),
            ("... main", true),
            ("memcpy ... put main", true),
            ("memcpy ... get", false),
            ("...", true),
            ("memcpy put put main start", false),
            ("memcpy put put main ...", true),
        ] {
            assert_eq!(stack_matches(&pattern(text), &names), expected, "{text}");
        }
    }

    #[test]
    fn entries_are_checked() {
        assert_eq!(parse("[[suppress]]\nrule = 'flush-*'").unwrap_err(), SuppressError::NoReason(1));
        assert_eq!(parse("[[suppress]]\nreason = 'x'").unwrap_err(), SuppressError::Everything(1));
        let unknown = parse("[[suppress]]\nrule = 'flush-cleam'\nreason = 'x'").unwrap_err();
        assert_eq!(unknown.to_string(), "suppression 1: no rule is called `flush-cleam`; `pmvet explain` lists them");
        assert!(toml::from_str::<Config>("[[suppress]]\nrul = 'x'\nreason = 'x'").is_err());
    }
}
