//! What names memory to a driver where it gives bytes in place of a descriptor.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// 64 bytes of a driver's that name memory of another process: a legacy CUDA IPC handle (`CUipcMemHandle`), or memory of a
/// pool (`CUmemPoolPtrExportData`). As text, 128 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token(pub [u8; 64]);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Who has all of it may open the memory.
        let [a, b, c, d, ..] = self.0;
        write!(f, "{a:02x}{b:02x}{c:02x}{d:02x}..")
    }
}

impl Serialize for Token {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        serializer.serialize_str(&text)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Token, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits: Option<Vec<u8>> =
            text.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
        let bytes: Option<[u8; 64]> = digits
            .map(|digits| {
                digits.chunks(2).map(|pair| pair.iter().fold(0, |sum, digit| sum << 4 | digit)).collect()
            })
            .and_then(|bytes: Vec<u8>| bytes.try_into().ok());
        match bytes {
            Some(bytes) if text.len() == 128 => Ok(Token(bytes)),
            _ => Err(D::Error::custom(format!(
                "a token has 128 hexadecimal digits, and this is {} bytes of text",
                text.len()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_holds_64_bytes_and_nothing_else() {
        let token = Token(std::array::from_fn(|i| i as u8 * 3));
        let text = serde_json::to_string(&token).unwrap();
        assert_eq!(text.len(), 130);
        assert_eq!(serde_json::from_str::<Token>(&text).unwrap(), token);
        let bad = ["", "00", &"0".repeat(127), &"0".repeat(130), &"g".repeat(128), &"\u{e9}".repeat(64)];
        for text in bad {
            assert!(serde_json::from_str::<Token>(&format!("\"{text}\"")).is_err(), "{text}");
        }
    }

    #[test]
    fn a_log_does_not_give_the_memory_away() {
        assert_eq!(format!("{:?}", Token([0xab; 64])), "abababab..");
    }
}
