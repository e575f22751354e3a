//! Names and values that travel beside a message.

use std::fmt;

use crate::wire::reader::Reader;
use crate::wire::{Malformed, Problem};
use crate::{Code, Status};

/// Names and values beside a message, as gRPC has them: names are of lower-case letters, digits,
/// `-`, `_` and `.`; values are printable ASCII, or any bytes where the name ends with `-bin`.
///
/// They are kept as they travel, so that those of a call without any cost nothing.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    bytes: Vec<u8>,
}

impl Metadata {
    /// The metadata in bytes of a peer.
    ///
    /// # Errors
    /// They are not what they have to be.
    pub(crate) fn decode(place: &'static str, bytes: &[u8]) -> Result<Self, Malformed> {
        check(Reader::new(place, bytes), bytes)?;
        Ok(Self {
            bytes: bytes.to_vec(),
        })
    }

    /// The bytes, as they travel.
    pub(crate) fn encoded(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Sets the value of `name`, in place of all that it had.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if name or value are not allowed.
    pub fn insert(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), Status> {
        if self.iter().any(|(found, _)| found == name) {
            let mut kept = Self::default();
            for (found, value) in self.iter().filter(|(found, _)| *found != name) {
                kept.push(found, value);
            }
            *self = kept;
        }
        self.append(name, value)
    }

    /// Adds a value of `name` to those that it has.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if name or value are not allowed.
    pub fn append(&mut self, name: &str, value: impl AsRef<[u8]>) -> Result<(), Status> {
        let value = value.as_ref();
        let invalid = |what: &str| {
            let text = format!("the metadata {:?} {what}", name.escape_debug().to_string());
            Err(Status::new(Code::InvalidArgument, text))
        };
        if !is_name(name.as_bytes()) {
            return invalid("is no name; allowed are a-z, 0-9, \"-\", \"_\" and \".\"");
        }
        if !is_value(name, value) {
            return invalid("has a value that is not printable ASCII; let its name end with -bin");
        }
        let len_bytes = self.bytes.len() + PAIR_BYTES + name.len() + value.len();
        if name.len() > NAME_BYTES_MAX || len_bytes > METADATA_BYTES_MAX {
            return invalid("is too long; all metadata have at most 32 KiB");
        }
        self.push(name, value);
        Ok(())
    }

    /// The first value of `name`, if it is text.
    pub fn get(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get_bin(name)?).ok()
    }

    /// The first value of `name`.
    pub fn get_bin(&self, name: &str) -> Option<&[u8]> {
        let mut pairs = self.iter();
        pairs.find_map(|(found, value)| (found == name).then_some(value))
    }

    /// All names and values, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let mut reader = Reader::new("metadata", &self.bytes);
        std::iter::from_fn(move || {
            if reader.is_empty() {
                return None;
            }
            // They were checked when they were made.
            pair(&mut reader, &self.bytes).ok()
        })
    }

    fn push(&mut self, name: &str, value: &[u8]) {
        self.bytes
            .extend_from_slice(&(name.len() as u16).to_le_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes
            .extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(value);
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs = self.iter();
        f.debug_map()
            .entries(pairs.map(|(name, value)| (name, value.escape_ascii().to_string())))
            .finish()
    }
}

/// Checks that what is left of `bytes` is metadata.
pub(super) fn check(mut reader: Reader<'_>, bytes: &[u8]) -> Result<(), Malformed> {
    if reader.left_bytes() > METADATA_BYTES_MAX {
        let problem = Problem::OutOfRange {
            found: reader.left_bytes() as i64,
            allowed_max: METADATA_BYTES_MAX as u64,
        };
        return Err(reader.malformed("the length of the metadata", problem));
    }
    while !reader.is_empty() {
        pair(&mut reader, bytes)?;
    }
    Ok(())
}

fn pair<'a>(reader: &mut Reader<'_>, bytes: &'a [u8]) -> Result<(&'a str, &'a [u8]), Malformed> {
    let len = u16::from_le_bytes(reader.array("the length of a name")?);
    let name = &bytes[reader.range("a name", u64::from(len))?];
    let name = match std::str::from_utf8(name) {
        Ok(text) if is_name(name) && name.len() <= NAME_BYTES_MAX => text,
        _ => return Err(reader.malformed("a name before this", Problem::Unallowed)),
    };
    let len = u32::from_le_bytes(reader.array("the length of a value")?);
    let value = &bytes[reader.range("a value", u64::from(len))?];
    match is_value(name, value) {
        true => Ok((name, value)),
        false => Err(reader.malformed("a value before this", Problem::Unallowed)),
    }
}

fn is_name(name: &[u8]) -> bool {
    let is_allowed = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.');
    !name.is_empty() && name.iter().all(is_allowed)
}

fn is_value(name: &str, value: &[u8]) -> bool {
    name.ends_with("-bin") || value.iter().all(|byte| matches!(byte, b' '..=b'~'))
}

/// Longest metadata of one message, in bytes as they travel.
pub(crate) const METADATA_BYTES_MAX: usize = 32 << 10;

/// Longest name, in bytes.
const NAME_BYTES_MAX: usize = 256;

/// The lengths of a name and of its value.
const PAIR_BYTES: usize = 2 + 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_values_in_their_order() {
        let mut metadata = Metadata::default();
        metadata.insert("user-agent", "a").unwrap();
        metadata.append("trace-bin", [0, 255]).unwrap();
        metadata.append("user-agent", "b").unwrap();
        let pairs: Vec<_> = metadata.iter().collect();
        assert_eq!(pairs[0], ("user-agent", &b"a"[..]));
        assert_eq!(pairs.len(), 3);
        assert_eq!(metadata.get("trace-bin"), None);
        assert_eq!(metadata.get_bin("trace-bin"), Some(&[0, 255][..]));
        metadata.insert("user-agent", "c").unwrap();
        assert_eq!(metadata.get("user-agent"), Some("c"));
        assert_eq!(metadata.iter().count(), 2);
        let again = Metadata::decode("metadata", metadata.encoded());
        assert_eq!(again, Ok(metadata));
    }

    #[test]
    fn what_grpc_does_not_allow_is_refused() {
        let mut metadata = Metadata::default();
        for name in ["", "Upper", "a b", "é", ":path"] {
            let status = metadata.append(name, "value").unwrap_err();
            assert_eq!(status.code, Code::InvalidArgument, "{name}");
        }
        assert!(metadata.append("text", "line\nfeed").is_err());
        assert!(
            metadata
                .append("a", "b".repeat(METADATA_BYTES_MAX))
                .is_err()
        );
        assert!(metadata.is_empty());
        for bytes in [
            &b"\x01\0A\0\0\0\0"[..],
            b"\x01\0a\x01\0\0\0\n",
            b"\x09\0a",
            b"\0",
        ] {
            assert!(Metadata::decode("metadata", bytes).is_err(), "{bytes:?}");
        }
    }
}
