//! What `pmvet replay` takes: one word that names a finding of a run, short enough to paste and checked when read.
//!
//! `pmv`, then base32 (Crockford's alphabet: no `i`, `l`, `o`, `u`) of: version, kind, the finding, the run's id,
//! checksum. Readers accept capitals and dashes.

use std::{fmt, str::FromStr};

use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &str = "pmv";
const VERSION: u8 = 1;
const CHECKSUM: usize = 4;
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const BY_FINGERPRINT: u8 = 0;
const BY_INDEX: u8 = 1;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Token {
    /// Name of the run's folder.
    pub run: String,
    pub finding: Which,
}

/// Which finding of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Which {
    Fingerprint(u128),
    /// Its position in `findings.jsonl`, from 0.
    Index(u32),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    #[error("this is not a replay token: those begin with `{MAGIC}`")]
    NotAToken,
    #[error("`{0}` cannot be in a replay token")]
    BadCharacter(char),
    #[error("the replay token is damaged or not complete; copy it again")]
    Damaged,
    #[error("the replay token is of version {0}, this pmvet reads version {VERSION}; use the pmvet that printed it")]
    Version(u8),
}

impl Token {
    /// Names the finding by its fingerprint; nothing if that is none.
    pub fn new(run: impl Into<String>, fingerprint: &str) -> Option<Self> {
        let whole = fingerprint.len() == 32 && fingerprint.bytes().all(|b| b.is_ascii_hexdigit());
        let fingerprint = whole.then(|| u128::from_str_radix(fingerprint, 16).ok()).flatten()?;
        Some(Token { run: run.into(), finding: Which::Fingerprint(fingerprint) })
    }

    /// As findings hold it, if the token names one by that.
    pub fn fingerprint(&self) -> Option<String> {
        match self.finding {
            Which::Fingerprint(fingerprint) => Some(format!("{fingerprint:032x}")),
            Which::Index(_) => None,
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = vec![VERSION];
        match self.finding {
            Which::Fingerprint(fingerprint) => {
                bytes.push(BY_FINGERPRINT);
                bytes.extend(fingerprint.to_be_bytes());
            }
            Which::Index(index) => {
                bytes.push(BY_INDEX);
                bytes.extend(index.to_be_bytes());
            }
        }
        bytes.extend(self.run.as_bytes());
        bytes.extend(checksum(&bytes));
        write!(f, "{MAGIC}{}", encode(&bytes))
    }
}

impl FromStr for Token {
    type Err = TokenError;

    fn from_str(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        let magic = text.get(..MAGIC.len()).ok_or(TokenError::NotAToken)?;
        if !magic.eq_ignore_ascii_case(MAGIC) {
            return Err(TokenError::NotAToken);
        }
        let bytes = decode(&text[MAGIC.len()..])?;
        let (body, sum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(TokenError::Damaged)?;
        if checksum(body) != *sum {
            return Err(TokenError::Damaged);
        }
        let (&version, body) = body.split_first().ok_or(TokenError::Damaged)?;
        if version != VERSION {
            return Err(TokenError::Version(version));
        }
        let (&kind, body) = body.split_first().ok_or(TokenError::Damaged)?;
        let (finding, run) = match kind {
            BY_FINGERPRINT => {
                let (bytes, run) = body.split_first_chunk().ok_or(TokenError::Damaged)?;
                (Which::Fingerprint(u128::from_be_bytes(*bytes)), run)
            }
            BY_INDEX => {
                let (bytes, run) = body.split_first_chunk().ok_or(TokenError::Damaged)?;
                (Which::Index(u32::from_be_bytes(*bytes)), run)
            }
            _ => return Err(TokenError::Damaged),
        };
        let run = String::from_utf8(run.into()).map_err(|_| TokenError::Damaged)?;
        Ok(Token { run, finding })
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM] {
    (xxh3_64(bytes) as u32).to_be_bytes()
}

fn encode(bytes: &[u8]) -> String {
    let bits = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let digits = (bytes.len() * 8).div_ceil(5);
    let digit = |index: usize| {
        let (byte, shift) = (index * 5 / 8, index * 5 % 8);
        let pair = u16::from_be_bytes([bits(byte), bits(byte + 1)]);
        char::from(ALPHABET[usize::from(pair >> (11 - shift) & 31)])
    };
    (0..digits).map(digit).collect()
}

fn decode(text: &str) -> Result<Vec<u8>, TokenError> {
    let mut bytes = Vec::with_capacity(text.len() * 5 / 8);
    let (mut pending, mut bits) = (0_u32, 0);
    for c in text.chars().filter(|&c| c != '-') {
        let lower = c.to_ascii_lowercase();
        let digit = ALPHABET.iter().position(|&d| char::from(d) == lower).ok_or(TokenError::BadCharacter(c))?;
        pending = (pending << 5 | digit as u32) & 0xfff;
        bits += 5;
        if bits >= 8 {
            bits -= 8;
            bytes.push((pending >> bits) as u8);
        }
    }
    // What is left over was padding.
    if bits >= 5 || pending & ((1 << bits) - 1) != 0 {
        return Err(TokenError::Damaged);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn token() -> impl Strategy<Value = Token> {
        let which = prop_oneof![any::<u128>().prop_map(Which::Fingerprint), any::<u32>().prop_map(Which::Index)];
        ("\\PC{0,40}", which).prop_map(|(run, finding)| Token { run, finding })
    }

    proptest! {
        #[test]
        fn round_trip(token in token()) {
            let text = token.to_string();
            prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric()));
            prop_assert_eq!(text.parse::<Token>().unwrap(), token.clone());
            prop_assert_eq!(text.to_uppercase().parse::<Token>().unwrap(), token);
        }

        #[test]
        fn one_wrong_character_is_noticed(token in token(), at in any::<prop::sample::Index>(), with in 0_usize..32) {
            let mut text = token.to_string().into_bytes();
            let at = MAGIC.len() + at.index(text.len() - MAGIC.len());
            let with = ALPHABET[with];
            prop_assume!(text[at] != with);
            text[at] = with;
            let text = String::from_utf8(text).unwrap();
            prop_assert!(text.parse::<Token>().is_err());
            prop_assert!(text[..at].parse::<Token>().is_err());
        }

        #[test]
        fn garbage_is_refused(text in "\\PC*") {
            let _ = text.parse::<Token>();
            let _ = format!("pmv{text}").parse::<Token>();
        }
    }

    #[test]
    fn errors_say_what_to_do() {
        assert_eq!("abc".parse::<Token>(), Err(TokenError::NotAToken));
        assert_eq!("".parse::<Token>(), Err(TokenError::NotAToken));
        assert_eq!("pmv1!".parse::<Token>(), Err(TokenError::BadCharacter('!')));
        assert_eq!("pmv".parse::<Token>(), Err(TokenError::Damaged));
        let mut other = vec![9, BY_INDEX];
        other.extend(checksum(&other.clone()));
        assert_eq!(format!("pmv{}", encode(&other)).parse::<Token>(), Err(TokenError::Version(9)));
    }

    #[test]
    fn fingerprints_go_in_and_out() {
        let fingerprint = "00112233445566778899aabbccddeeff";
        let token = Token::new("2026-01-01-1", fingerprint).unwrap();
        assert_eq!(token.fingerprint().as_deref(), Some(fingerprint));
        assert!(Token::new("r", "").is_none());
        assert!(Token::new("r", "+0112233445566778899aabbccddeeff").is_none());
    }
}
