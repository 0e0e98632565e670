//! Paths as text: a path is any bytes but 0, but JSON, globs and terminals need UTF-8.
//!
//! [`text`] and [`of_text`] are for programs and lossless. [`shown`] is for people.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// This character stands for the byte 0; the next 255 ones, all for private use, stand for the others.
const FIRST: u32 = 0x10_ff00;

fn stands_for(character: char) -> Option<u8> {
    u32::from(character).checked_sub(FIRST).and_then(|byte| u8::try_from(byte).ok())
}

/// The path as text that [`of_text`] takes back. UTF-8 stays as it is; any other byte becomes one character, so that a glob's `?`
/// matches it.
pub fn text<P: AsRef<OsStr> + ?Sized>(path: &P) -> Cow<'_, str> {
    let bytes = path.as_ref().as_bytes();
    let plain = std::str::from_utf8(bytes).ok().filter(|text| !text.chars().any(|c| stands_for(c).is_some()));
    if let Some(text) = plain {
        return text.into();
    }
    let mut out = String::new();
    let escape = |bytes: &[u8], out: &mut String| {
        out.extend(bytes.iter().filter_map(|&byte| char::from_u32(FIRST + u32::from(byte))));
    };
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match stands_for(character) {
                // The name contains such a character itself: its bytes are escaped one by one, or it would come back as
                // another byte.
                Some(_) => escape(character.encode_utf8(&mut [0; 4]).as_bytes(), &mut out),
                None => out.push(character),
            }
        }
        escape(chunk.invalid(), &mut out);
    }
    out.into()
}

/// The path that [`text`] was made of.
pub fn of_text(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        match stands_for(character) {
            Some(byte) => bytes.push(byte),
            None => bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    OsString::from_vec(bytes).into()
}

/// The path as people read it: bytes that are not UTF-8 as `\xff`.
pub fn shown<P: AsRef<OsStr> + ?Sized>(path: &P) -> Shown<'_> {
    Shown(path.as_ref())
}

/// The result of [`shown`]. Padding in a format counts the characters shown.
#[derive(Debug, Clone, Copy)]
pub struct Shown<'a>(&'a OsStr);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = self.0.to_str() {
            return f.pad(text);
        }
        let mut out = String::new();
        for chunk in self.0.as_bytes().utf8_chunks() {
            out.push_str(chunk.valid());
            for byte in chunk.invalid() {
                write!(out, "\\x{byte:02x}")?;
            }
        }
        f.pad(&out)
    }
}

/// For `#[serde(with = "…")]`: paths as [`text`].
pub mod as_text {
    use super::*;

    /// Writes a path, or paths, as text.
    pub fn serialize<S: Serializer, P: Paths>(paths: &P, to: S) -> Result<S::Ok, S::Error> {
        paths.texts().serialize(to)
    }

    /// Reads what [`serialize`] has written.
    pub fn deserialize<'de, D: Deserializer<'de>, P: Paths>(from: D) -> Result<P, D::Error> {
        P::Texts::deserialize(from).map(P::of_texts)
    }
}

/// What [`as_text`] can do.
pub trait Paths {
    /// The paths as text, in the same shape: a list for a list.
    type Texts: Serialize + for<'de> Deserialize<'de>;
    /// Each path as [`text`].
    fn texts(&self) -> Self::Texts;
    /// The paths that the texts stand for.
    fn of_texts(texts: Self::Texts) -> Self;
}

impl Paths for PathBuf {
    type Texts = String;

    fn texts(&self) -> String {
        text(self).into_owned()
    }

    fn of_texts(texts: String) -> Self {
        of_text(&texts)
    }
}

impl<P: Paths> Paths for Vec<P> {
    type Texts = Vec<P::Texts>;

    fn texts(&self) -> Self::Texts {
        self.iter().map(P::texts).collect()
    }

    fn of_texts(texts: Self::Texts) -> Self {
        texts.into_iter().map(P::of_texts).collect()
    }
}

impl<P: Paths> Paths for Option<P> {
    type Texts = Option<P::Texts>;

    fn texts(&self) -> Self::Texts {
        self.as_ref().map(P::texts)
    }

    fn of_texts(texts: Self::Texts) -> Self {
        texts.map(P::of_texts)
    }
}

/// A path from the target's bytes.
pub fn of_bytes(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_lost() {
        let names: [&[u8]; 9] = [
            b"",
            b"/dev/shm/pool",
            "/pm/ü/\u{fffd}".as_bytes(),
            b"/pm/\xff\xfe",
            b"\xc3",
            b"a\xe2\x82/b\x80",
            "/pm/\u{10ffff}".as_bytes(),
            "\u{10ff00}\u{10feff}".as_bytes(),
            b"\xf4\x8f\xbf",
        ];
        let mut texts = std::collections::HashSet::new();
        for name in names {
            let path = of_bytes(name);
            assert_eq!(of_text(&text(path)), path, "{name:x?}");
            assert!(texts.insert(text(path).into_owned()), "{name:x?} is mistaken for another");
        }
        assert_eq!(text("/pm/ü"), "/pm/ü");
    }

    #[test]
    fn globs_match_what_is_not_utf_8() {
        let path = of_bytes(b"/pm/\xff\xfe.pool");
        assert_eq!(text(path).chars().count(), "/pm/??.pool".len());
    }

    #[test]
    fn people_see_which_bytes() {
        assert_eq!(shown(of_bytes(b"/pm/\xff\xfe.pool")).to_string(), r"/pm/\xff\xfe.pool");
        assert_eq!(format!("{:>4}", shown("/ü")), "  /ü");
    }
}
