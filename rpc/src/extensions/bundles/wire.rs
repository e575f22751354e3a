//! The bytes of requests and answers that share a frame.

use crate::wire::{Malformed, Problem};

/// Method number of a frame of requests for one tensor each.
pub(crate) const BUNDLE_METHOD: i32 = 0x4758_0002;

/// Tag of a frame of answers with one tensor each; no call has it.
pub(crate) const BUNDLE_TAG: u64 = u64::MAX;

/// Longest payload of a frame of requests or answers, in bytes: it is taken as a whole.
pub(crate) const BUNDLE_BYTES_MAX: usize = 64 << 10;

/// Keys that can be numbered on one connection.
pub(crate) const NUMBERED_KEYS_MAX: usize = 16_384;

/// Longest key that can be numbered, in bytes.
pub(crate) const NUMBERED_KEY_BYTES_MAX: usize = 512;

/// Most bytes of all keys that have numbers.
pub(crate) const NUMBERED_BYTES_MAX: usize = 4 << 20;

/// How a request names a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyReference<'a> {
    /// By the number that it was given before.
    Known { number: u32 },
    /// By its bytes, for which the number stands from now on.
    New { number: u32, key: &'a [u8] },
    /// By its bytes alone.
    Whole { key: &'a [u8] },
}

/// One request of a frame of requests, but for its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BundledReceive {
    pub(crate) tag: u64,
    pub(crate) step_id: i64,
    /// Time for the answer, in milliseconds; 0 is none.
    pub(crate) timeout_ms: i32,
}

/// What stands between the tag and the data of an answer that shares a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerForm {
    /// The record.
    Whole = 0,
    /// Nothing: the record is that of the answer before.
    AsBefore = 1,
}

/// Reads requests or answers that share a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BundleReader<'a> {
    place: &'static str,
    all_bytes: usize,
    rest: &'a [u8],
}

impl BundledReceive {
    /// Appends the request.
    #[inline(always)]
    pub(crate) fn encode(&self, key: &KeyReference<'_>, out: &mut Vec<u8>) {
        let mut bytes = [0; RECEIVE_BYTES + NUMBER_BYTES];
        let (head, word) = bytes.split_at_mut(RECEIVE_BYTES);
        head[..8].copy_from_slice(&self.tag.to_le_bytes());
        head[8..16].copy_from_slice(&self.step_id.to_le_bytes());
        head[16..].copy_from_slice(&self.timeout_ms.to_le_bytes());
        word.copy_from_slice(&key.word().to_le_bytes());
        out.extend_from_slice(&bytes);
        key.encode_text(out);
    }
}

impl KeyReference<'_> {
    /// What stands in place of a number, or the number.
    #[inline(always)]
    fn word(&self) -> u32 {
        match *self {
            Self::Known { number } => number,
            Self::New { number, .. } => number | NEW,
            Self::Whole { .. } => WHOLE,
        }
    }

    /// Appends what follows the word.
    #[inline(always)]
    fn encode_text(&self, out: &mut Vec<u8>) {
        if let Self::New { key, .. } | Self::Whole { key } = *self {
            out.extend_from_slice(&(key.len() as u32).to_le_bytes());
            out.extend_from_slice(key);
        }
    }

    /// Length of the reference.
    #[inline(always)]
    pub(crate) fn len_bytes(&self) -> usize {
        match self {
            Self::Known { .. } => NUMBER_BYTES,
            Self::New { key, .. } | Self::Whole { key } => NUMBER_BYTES + 4 + key.len(),
        }
    }
}

impl<'a> BundleReader<'a> {
    pub(crate) fn new(place: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            place,
            all_bytes: bytes.len(),
            rest: bytes,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn left_bytes(&self) -> usize {
        self.rest.len()
    }

    /// Takes a request, without its key.
    #[inline]
    pub(crate) fn receive(&mut self) -> Result<BundledReceive, Malformed> {
        let bytes: &[u8; RECEIVE_BYTES] = self.chunk("a request")?;
        let (tag, rest) = bytes.split_first_chunk().expect("20 bytes are more than 8");
        let (step_id, rest) = rest.split_first_chunk().expect("12 bytes are more than 8");
        let timeout_ms = rest.first_chunk().expect("4 bytes are left");
        Ok(BundledReceive {
            tag: u64::from_le_bytes(*tag),
            step_id: i64::from_le_bytes(*step_id),
            timeout_ms: i32::from_le_bytes(*timeout_ms),
        })
    }

    /// Takes the reference to a key.
    #[inline]
    pub(crate) fn key(&mut self) -> Result<KeyReference<'a>, Malformed> {
        let word = u32::from_le_bytes(*self.chunk("the number of a key")?);
        if word & NEW == 0 {
            return Ok(KeyReference::Known { number: word });
        }
        let len = u32::from_le_bytes(*self.chunk("the length of a key")?);
        let key = self.bytes("a key", len as usize)?;
        Ok(match word {
            WHOLE => KeyReference::Whole { key },
            word => KeyReference::New {
                number: word & !NEW,
                key,
            },
        })
    }

    /// Takes the tag and the form of an answer; the first in its frame has none before it.
    #[inline]
    pub(crate) fn answer(&mut self, has_before: bool) -> Result<(u64, AnswerForm), Malformed> {
        let tag = u64::from_le_bytes(*self.chunk("a tag")?);
        let [form] = *self.chunk("the form of an answer")?;
        match form {
            0 => Ok((tag, AnswerForm::Whole)),
            1 if has_before => Ok((tag, AnswerForm::AsBefore)),
            found => {
                let problem = Problem::OutOfRange {
                    found: i64::from(found),
                    allowed_max: u64::from(has_before),
                };
                Err(self.malformed("the form of an answer", problem))
            }
        }
    }

    /// Takes an array.
    #[inline]
    pub(crate) fn chunk<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<&'a [u8; N], Malformed> {
        let Some((chunk, rest)) = self.rest.split_first_chunk() else {
            return Err(self.short(field, N));
        };
        self.rest = rest;
        Ok(chunk)
    }

    /// Takes `len` bytes.
    #[inline]
    pub(crate) fn bytes(&mut self, field: &'static str, len: usize) -> Result<&'a [u8], Malformed> {
        let Some((bytes, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.short(field, len));
        };
        self.rest = rest;
        Ok(bytes)
    }

    /// What is wrong with the part that comes next. Takes a copy, so that the reader itself need
    /// not be in memory.
    #[cold]
    pub(crate) fn malformed(self, field: &'static str, problem: Problem) -> Malformed {
        Malformed {
            place: self.place,
            field,
            at_byte: self.all_bytes - self.rest.len(),
            problem,
        }
    }

    #[cold]
    fn short(self, field: &'static str, wanted_bytes: usize) -> Malformed {
        let problem = Problem::Short {
            wanted_bytes: wanted_bytes as u64,
            left_bytes: self.rest.len(),
        };
        self.malformed(field, problem)
    }
}

/// Length of a request without its key.
pub(crate) const RECEIVE_BYTES: usize = 20;

/// Length of the number of a key.
const NUMBER_BYTES: usize = 4;

/// Bit of a number that stands for the key behind it from now on.
const NEW: u32 = 1 << 31;

/// In place of a number: the key behind it has none.
const WHOLE: u32 = u32::MAX;

const _: () = assert!(NUMBERED_KEYS_MAX < NEW as usize);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "it searches a document: a minute")]
    fn a_request_has_the_bytes_of_the_document() {
        let mut bytes = Vec::new();
        let request = BundledReceive {
            tag: 0x0807_0605_0403_0201,
            step_id: -2,
            timeout_ms: 5,
        };
        let key = KeyReference::New {
            number: 3,
            key: b"k",
        };
        request.encode(&key, &mut bytes);
        let expected = [
            1, 2, 3, 4, 5, 6, 7, 8, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 5, 0, 0, 0, 3,
            0, 0, 0x80, 1, 0, 0, 0, b'k',
        ];
        assert_eq!(bytes, expected);
        let mut reader = BundleReader::new("bundle", &bytes);
        assert_eq!(reader.receive(), Ok(request));
        assert_eq!(
            reader.key(),
            Ok(KeyReference::New {
                number: 3,
                key: b"k"
            })
        );
        assert!(reader.is_empty());
        let words: Vec<&str> = include_str!("../../../../docs/wire.md")
            .split_whitespace()
            .collect();
        let document = words.join(" ");
        for row in [
            format!("method {BUNDLE_METHOD} (`{BUNDLE_METHOD:#x}`)"),
            format!("at most {} KiB", BUNDLE_BYTES_MAX >> 10),
            format!("at most {NUMBERED_KEYS_MAX} numbers"),
            format!("at most {NUMBERED_KEY_BYTES_MAX} bytes"),
            format!(
                "all keys with numbers have at most {} MiB",
                NUMBERED_BYTES_MAX >> 20
            ),
        ] {
            assert!(document.contains(&row), "docs/wire.md lacks {row}");
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let mut reader = BundleReader::new("bundle", &[0; 25]);
        reader.receive().unwrap();
        reader.key().unwrap();
        assert_eq!(
            reader.receive().unwrap_err().to_string(),
            "bundle, byte 24: a request needs 20 bytes, 1 are left"
        );
    }

    proptest! {
        #[test]
        fn references_come_back(
            number in 0..NUMBERED_KEYS_MAX as u32,
            key in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            let all = [
                KeyReference::Known { number },
                KeyReference::New { number, key: &key },
                KeyReference::Whole { key: &key },
            ];
            let request = BundledReceive { tag: 1, step_id: 2, timeout_ms: 3 };
            let mut bytes = Vec::new();
            for reference in &all {
                let before = bytes.len();
                request.encode(reference, &mut bytes);
                prop_assert_eq!(bytes.len() - before, RECEIVE_BYTES + reference.len_bytes());
            }
            let mut reader = BundleReader::new("bundle", &bytes);
            for reference in all {
                prop_assert_eq!(reader.receive(), Ok(request));
                prop_assert_eq!(reader.key(), Ok(reference));
            }
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = BundleReader::new("bundle", &bytes);
            while !reader.is_empty() && reader.receive().is_ok() && reader.key().is_ok() {}
        }
    }
}
