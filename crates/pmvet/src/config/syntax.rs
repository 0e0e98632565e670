//! `pmvet.toml` as it is written: its tables and keys, before they are understood.

use pmvet_engines::confirm::sync_names::Declared;
use pmvet_events::plan::{AllocFunction, SyncFunction, SyncFunctionKind};
use pmvet_findings::suppress::Suppress;
use serde::de::{Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use toml::Spanned;

use super::{Config, RaceConfig};

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    #[serde(default)]
    pub(super) target: RawTarget,
    #[serde(default)]
    pub(super) sync: Vec<Spanned<RawSync>>,
    #[serde(default)]
    pub(super) alloc: Vec<Spanned<AllocFunction>>,
    #[serde(default)]
    pub(super) race: RaceConfig,
    #[serde(default)]
    pub(super) runs: RawRuns,
    // Reserved for later: a file that uses them is refused, not ignored.
    #[serde(default, rename = "oracle", deserialize_with = "later")]
    _oracle: (),
    #[serde(default)]
    pub(super) suppress: Vec<Suppress>,
    #[serde(default, rename = "profile", deserialize_with = "later")]
    _profile: (),
}

/// A function that takes or releases a lock, or a variable that stands for one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSync {
    function: Option<String>,
    kind: Option<SyncFunctionKind>,
    arg: Option<u8>,
    shared: Option<bool>,
    success: Option<i64>,
    variable: Option<String>,
    offset: Option<u64>,
    size: Option<u64>,
    init: Option<u64>,
}

impl RawSync {
    pub(super) fn check(self, config: &mut Config) -> Result<(), String> {
        match (self.function, self.variable, self.offset) {
            (Some(function), None, None) => {
                let wrong = |what: &str| Err(format!("[[sync]] `{function}`: {what}"));
                let Some(kind) = self.kind else { return wrong("kind is missing: acquire, try or release") };
                let (arg, shared, success) = (self.arg.unwrap_or(0), self.shared.unwrap_or(false), self.success);
                if function.is_empty() {
                    return wrong("function is empty");
                }
                if arg > 3 {
                    return wrong("arg must be 0, 1, 2 or 3: one of the first four arguments");
                }
                if self.size.is_some() || self.init.is_some() {
                    return wrong("size and init are for variables");
                }
                config.sync.push(SyncFunction { function, kind, arg, shared, success });
            }
            (None, variable, offset) if variable.is_some() || offset.is_some() => {
                let wrong = |what: &str| {
                    let place = offset.map(|offset| format!("the variable at {offset:#x}")).unwrap_or_default();
                    let at = variable.as_ref().map_or(place, |name| format!("`{name}`"));
                    Err(format!("[[sync]] {at}: {what}"))
                };
                if variable.as_ref().is_some_and(String::is_empty) {
                    return wrong("variable is empty");
                }
                if self.kind.is_some() || self.arg.is_some() || self.shared.is_some() || self.success.is_some() {
                    return wrong("kind, arg, shared and success are for functions");
                }
                // Variables with a name get their size from the debug information.
                if !matches!(self.size, Some(1 | 2 | 4 | 8)) && (self.size.is_some() || variable.is_none()) {
                    return wrong("size must be 1, 2, 4 or 8");
                }
                let init = self.init.unwrap_or(0);
                config.sync_variables.push(Declared { variable, offset, size: self.size, init });
            }
            _ => return Err("[[sync]] needs a function, or a variable or offset".into()),
        }
        Ok(())
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTarget {
    #[serde(default)]
    pub(super) pm: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) command: Vec<String>,
    pub(super) setup: Option<String>,
    pub(super) recover: Option<String>,
    pub(super) oracle: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRuns {
    pub(super) limit: Option<Spanned<String>>,
}

fn later<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
    IgnoredAny::deserialize(deserializer)?;
    Err(D::Error::custom("this version of pmvet does not know this table yet"))
}
