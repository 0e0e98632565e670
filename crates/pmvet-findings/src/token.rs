//! Replay tokens: a word for `pmvet replay` that names a finding of a run, short enough to paste, with a checksum.
//!
//! `pmv`, then base32 (Crockford's alphabet: no `i`, `l`, `o`, `u`) of: version, kind, the finding, the run's id,
//! checksum. Readers accept capitals and dashes.

use std::{fmt, str::FromStr, sync::LazyLock};

use data_encoding::{Encoding, Specification};
use xxhash_rust::xxh3::xxh3_64;

const MAGIC: &str = "pmv";
const VERSION: u8 = 1;
const CHECKSUM: usize = 4;
const ALPHABET: &str = "0123456789abcdefghjkmnpqrstvwxyz";
const BY_FINGERPRINT: u8 = 0;
const BY_INDEX: u8 = 1;

static BASE32: LazyLock<Encoding> = LazyLock::new(|| {
    let mut base32 = Specification::new();
    base32.symbols.push_str(ALPHABET);
    base32.translate.to = ALPHABET.replace(|c: char| c.is_ascii_digit(), "");
    base32.translate.from = base32.translate.to.to_ascii_uppercase();
    base32.ignore.push('-');
    base32.encoding().expect("32 distinct letters are an alphabet")
});

/// Names a finding of a run, for a replay. Its `Display` is the word that users copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Token {
    /// Name of the run's folder.
    pub run: String,
    /// The finding.
    pub finding: Which,
}

/// Which finding of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Which {
    /// By the 32 hexadecimal digits of its fingerprint.
    Fingerprint(u128),
    /// Its position in `findings.jsonl`, from 0.
    Index(u32),
}

/// Why a word is not accepted as a token.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// It does not begin like a token.
    #[error("this is not a replay token: those begin with `{MAGIC}`")]
    NotAToken,
    /// It has a character that tokens never have, such as a space.
    #[error("`{0}` cannot be in a replay token")]
    BadCharacter(char),
    /// It is too short, or its checksum is wrong.
    #[error("the replay token is damaged or not complete; copy it again")]
    Damaged,
    /// It is of a version that this pmvet does not read.
    #[error("the replay token is of version {0}, this pmvet reads version {VERSION}; use the pmvet that printed it")]
    Version(u8),
}

impl Token {
    /// Names the finding by its fingerprint; nothing if that is not one.
    pub fn new(run: impl Into<String>, fingerprint: &str) -> Option<Self> {
        let whole = fingerprint.len() == 32 && fingerprint.bytes().all(|b| b.is_ascii_hexdigit());
        let fingerprint = whole.then(|| u128::from_str_radix(fingerprint, 16).ok()).flatten()?;
        Some(Token { run: run.into(), finding: Which::Fingerprint(fingerprint) })
    }

    /// The fingerprint as findings hold it, if the token names the finding by it.
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
        write!(f, "{MAGIC}{}", BASE32.encode(&bytes))
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

fn decode(text: &str) -> Result<Vec<u8>, TokenError> {
    let is_known = |c: char| c == '-' || ALPHABET.contains(c.to_ascii_lowercase());
    match text.chars().find(|&c| !is_known(c)) {
        Some(c) => Err(TokenError::BadCharacter(c)),
        None => BASE32.decode(text.as_bytes()).map_err(|_| TokenError::Damaged),
    }
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
            let with = ALPHABET.as_bytes()[with];
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
    fn the_digits_are_those_of_crockford() {
        let every_digit: Vec<u8> = (0..4)
            .flat_map(|group| {
                let bits = (0..8).fold(0_u64, |bits, digit| bits << 5 | (8 * group + digit));
                bits.to_be_bytes()[3..].to_vec()
            })
            .collect();
        assert_eq!(BASE32.encode(&every_digit), "0123456789abcdefghjkmnpqrstvwxyz");
        assert_eq!(decode("0123-4567-89AB-CDEF-GHJK-MNPQ-RSTV-WXYZ"), Ok(every_digit));
        assert_eq!((BASE32.encode(b""), decode("--")), (String::new(), Ok(Vec::new())));
        for letter in ['i', 'L', 'o', 'U', ' ', 'é', '\0', '='] {
            assert_eq!(decode(&format!("00{letter}00")), Err(TokenError::BadCharacter(letter)));
        }
        // A digit too many, and bits that no byte has.
        assert_eq!([decode("000"), decode("01")], [Err(TokenError::Damaged), Err(TokenError::Damaged)]);
    }

    #[test]
    fn errors_say_what_to_do() {
        assert_eq!("abc".parse::<Token>(), Err(TokenError::NotAToken));
        assert_eq!("".parse::<Token>(), Err(TokenError::NotAToken));
        assert_eq!("pmv1!".parse::<Token>(), Err(TokenError::BadCharacter('!')));
        assert_eq!("pmv".parse::<Token>(), Err(TokenError::Damaged));
        let mut other = vec![9, BY_INDEX];
        other.extend(checksum(&other.clone()));
        assert_eq!(format!("pmv{}", BASE32.encode(&other)).parse::<Token>(), Err(TokenError::Version(9)));
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
