//! Bytes as hexadecimal text, for JSON.

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use serde::{Deserialize, Deserializer, Serializer, de::Error};

pub(crate) fn serialize<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&HEXLOWER.encode(bytes))
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
    let text = std::borrow::Cow::<str>::deserialize(from)?;
    let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes());
    bytes.map_err(|_| D::Error::custom("bytes must be an even number of hexadecimal digits"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, serde::Serialize, Deserialize)]
    struct Bytes(#[serde(with = "super")] Vec<u8>);

    #[test]
    fn round_trip() {
        let bytes = Bytes((0..=255).collect());
        let text = serde_json::to_string(&bytes).unwrap();
        assert!(text.starts_with("\"000102") && text.ends_with("fdfeff\""), "{text}");
        assert_eq!(serde_json::from_str::<Bytes>(&text).unwrap(), bytes);
        assert_eq!(serde_json::from_str::<Bytes>("\"FFaB\"").unwrap(), Bytes(vec![0xff, 0xab]));
        assert_eq!(serde_json::from_str::<Bytes>("\"\"").unwrap(), Bytes(Vec::new()));
        for wrong in ["0g", "123", "+1", "0x", "é0", " 00"] {
            let error = serde_json::from_str::<Bytes>(&format!("\"{wrong}\"")).unwrap_err().to_string();
            assert!(error.contains("bytes must be an even number of hexadecimal digits"), "{error}");
        }
    }
}
