//! `run.json`: what was run and how, so that it can be repeated.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use pmvet_engines::promises::content::ContentMask;
use pmvet_engines::promises::judge::ContentRules;
use pmvet_findings::Outcome;
use pmvet_target::sandbox::driver::Driver;
use serde::{Deserialize, Serialize};

use crate::exit::Error;

/// `run.json`: all that is needed to repeat the run.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub(crate) struct RunInfo {
    pub(crate) version: String,
    /// Seconds since 1970.
    pub(crate) started: u64,
    pub(crate) command: Vec<Text>,
    pub(crate) folder: Text,
    pub(crate) environment: BTreeMap<Text, Text>,
    /// What prepared the files, for a shell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) setup: Option<String>,
    pub(crate) recover: Vec<Text>,
    pub(crate) oracle: Option<Vec<Text>>,
    /// For servers: the client of the recovered server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<Server>,
    /// How contents are compared, for `check --durable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) durable: Option<DurableInfo>,
    /// The settings that decide which crashes are tried; a resumed run must agree with them.
    pub(crate) settings: BTreeMap<String, String>,
    /// Known once the recovery has been seen to work.
    pub(crate) usual: Option<Outcome>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) native_seconds: Option<f64>,
    pub(crate) traced_seconds: Option<f64>,
    /// For servers: the number of the next event when the client of the recorded run was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_done: Option<u64>,
    /// The whole run is recorded.
    pub(crate) recorded: bool,
    pub(crate) complete: bool,
    /// The signal that ended the run before its end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) interrupted: Option<String>,
}

impl RunInfo {
    /// A run that is about to start.
    pub(crate) fn new(command: &[OsString], recover: &[OsString]) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            started: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            command: texts(command),
            folder: Text(std::env::current_dir().unwrap_or_default().into()),
            environment: std::env::vars_os().map(|(name, value)| (Text(name), Text(value))).collect(),
            setup: None,
            recover: texts(recover),
            oracle: None,
            server: None,
            durable: None,
            settings: BTreeMap::new(),
            usual: None,
            timeout: None,
            native_seconds: None,
            traced_seconds: None,
            client_done: None,
            recorded: false,
            complete: false,
            interrupted: None,
        }
    }
}

/// What is needed to judge a content again.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub(crate) struct DurableInfo {
    /// Shows the content of a recovered image, if the recovery itself does not.
    pub(crate) dump: Option<Vec<Text>>,
    /// The questions to the program, if its answers show the content.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) asked: Vec<String>,
    pub(crate) rules: ContentRules,
    pub(crate) mask: ContentMask,
}

/// A [`Driver`], as `run.json` has it.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub(crate) struct Server {
    ready: String,
    client: Vec<Text>,
    stop: Option<Vec<Text>>,
}

impl From<&Driver> for Server {
    fn from(driver: &Driver) -> Self {
        let ready = driver.ready.to_string();
        Self { ready, client: texts(&driver.client), stop: driver.stop.as_deref().map(texts) }
    }
}

impl Server {
    pub(crate) fn driver(&self) -> Result<Driver, Error> {
        let ready = self.ready.parse().map_err(|e| Error::Run(format!("run.json: {e}")))?;
        Ok(Driver::new(ready, words(&self.client), self.stop.as_deref().map(words)))
    }
}

/// A string of the operating system, stored as text if it is valid UTF-8, otherwise as hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Text(pub(crate) OsString);

impl Serialize for Text {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.to_str().filter(|text| !text.starts_with(ESCAPED)) {
            Some(text) => serializer.serialize_str(text),
            None => serializer.serialize_str(&format!("{ESCAPED}{}", HEXLOWER.encode(self.0.as_bytes()))),
        }
    }
}

/// Prefix of a string stored as hexadecimal digits.
const ESCAPED: &str = "\u{0}hex:";

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let Some(hex) = text.strip_prefix(ESCAPED) else { return Ok(Text(text.into())) };
        let bytes = HEXLOWER_PERMISSIVE.decode(hex.as_bytes());
        let bytes = bytes.map_err(|_| serde::de::Error::custom("a damaged string"))?;
        Ok(Text(OsString::from_vec(bytes)))
    }
}

pub(crate) fn texts(words: &[OsString]) -> Vec<Text> {
    words.iter().cloned().map(Text).collect()
}

pub(crate) fn words(texts: &[Text]) -> Vec<OsString> {
    texts.iter().map(|text| text.0.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_that_are_no_text_survive() {
        for bytes in [&b"plain"[..], b"\xff\xfe", b"", "\u{0}hex:41".as_bytes()] {
            let text = Text(OsString::from_vec(bytes.to_vec()));
            let json = serde_json::to_string(&text).unwrap();
            assert_eq!(serde_json::from_str::<Text>(&json).unwrap(), text);
        }
        let json = serde_json::to_string(&Text(OsString::from_vec(vec![0xff, 0x0a]))).unwrap();
        assert_eq!(json, r#""\u0000hex:ff0a""#);
        for damaged in [r#""\u0000hex:f""#, r#""\u0000hex:+f""#, r#""\u0000hex:fg""#] {
            assert!(serde_json::from_str::<Text>(damaged).is_err(), "{damaged}");
        }
    }
}
