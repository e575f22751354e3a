//! Reads fields and protobuf from bytes of any origin.

use std::fmt;
use std::ops::Range;

use grpcxx_memory::Buffer;

use crate::{Code, Status, Text};

/// A cursor over bytes of a peer. Each read names what it wants, so that a failure can say what was
/// missing.
#[derive(Debug)]
pub struct Reader<'a> {
    place: &'static str,
    bytes: &'a [u8],
    at_byte: usize,
}

/// Bytes that are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}, byte {at_byte}: {field} {problem}")]
pub struct Malformed {
    /// What was being read.
    pub place: &'static str,
    /// The part of it that is wrong.
    pub field: &'static str,
    /// Where that part begins.
    pub at_byte: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a part of some bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// It ends too early.
    Short {
        /// Bytes it needs.
        wanted_bytes: u64,
        /// Bytes there are.
        left_bytes: usize,
    },
    /// A number outside its range.
    OutOfRange {
        /// The number.
        found: i64,
        /// The largest number allowed; the smallest is 0.
        allowed_max: u64,
    },
    /// A varint of more than ten bytes.
    EndlessVarint,
    /// Text that is not UTF-8.
    NotUtf8 {
        /// Offset in the text.
        at_byte: usize,
    },
    /// A protobuf field with number 0, or a group that ends without a beginning.
    NoField,
    /// A wire type that protobuf does not have.
    UnknownWireType {
        /// The type.
        found: u8,
    },
    /// Groups in groups beyond sense.
    TooDeep,
    /// More bytes than belong to it.
    Trailing {
        /// How many more.
        bytes: usize,
    },
    /// It occurs twice.
    Duplicate {
        /// The value.
        found: Text,
    },
    /// It does not occur.
    Missing,
    /// It has what is not allowed there.
    Unallowed,
}

impl<'a> Reader<'a> {
    /// A cursor at the start of `bytes`, which hold `place`.
    pub fn new(place: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            place,
            bytes,
            at_byte: 0,
        }
    }

    /// Whether all bytes are read.
    pub fn is_empty(&self) -> bool {
        self.at_byte == self.bytes.len()
    }

    /// Bytes not read yet.
    pub fn left_bytes(&self) -> usize {
        self.bytes.len() - self.at_byte
    }

    /// A failure at the cursor.
    pub fn malformed(&self, field: &'static str, problem: Problem) -> Malformed {
        Malformed {
            place: self.place,
            field,
            at_byte: self.at_byte,
            problem,
        }
    }

    /// Takes `len` bytes and returns where they lie.
    ///
    /// # Errors
    /// So many are not left.
    pub fn range(&mut self, field: &'static str, len: u64) -> Result<Range<usize>, Malformed> {
        let left_bytes = self.left_bytes();
        match usize::try_from(len) {
            Ok(len) if len <= left_bytes => {
                let start = self.at_byte;
                self.at_byte += len;
                Ok(start..self.at_byte)
            }
            _ => Err(self.malformed(
                field,
                Problem::Short {
                    wanted_bytes: len,
                    left_bytes,
                },
            )),
        }
    }

    /// Takes an array of bytes.
    ///
    /// # Errors
    /// So many are not left.
    pub fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Malformed> {
        let range = self.range(field, N as u64)?;
        let mut array = [0; N];
        array.copy_from_slice(&self.bytes[range]);
        Ok(array)
    }

    /// Takes an i32 that counts something.
    ///
    /// # Errors
    /// It is not there, negative, or larger than `max`.
    pub fn count(&mut self, field: &'static str, max: usize) -> Result<usize, Malformed> {
        let start = self.at_byte;
        let found = i32::from_le_bytes(self.array(field)?);
        match usize::try_from(found) {
            Ok(count) if count <= max => Ok(count),
            _ => {
                self.at_byte = start;
                Err(self.malformed(
                    field,
                    Problem::OutOfRange {
                        found: i64::from(found),
                        allowed_max: max as u64,
                    },
                ))
            }
        }
    }

    /// Takes text of `len` bytes out of `buffer`, which must be what this reader reads.
    ///
    /// # Errors
    /// It is not there, or not UTF-8.
    pub fn text(
        &mut self,
        field: &'static str,
        len: u64,
        buffer: &Buffer,
    ) -> Result<Text, Malformed> {
        let range = self.range(field, len)?;
        let start = range.start;
        Text::try_from(buffer.slice(range)).map_err(|error| Malformed {
            place: self.place,
            field,
            at_byte: start,
            problem: Problem::NotUtf8 {
                at_byte: error.at_byte,
            },
        })
    }

    /// Takes text behind its u16 length.
    ///
    /// # Errors
    /// It is not there, or not UTF-8.
    pub fn short_text(&mut self, field: &'static str, buffer: &Buffer) -> Result<Text, Malformed> {
        let len = u16::from_le_bytes(self.array(field)?);
        self.text(field, u64::from(len), buffer)
    }

    /// Checks that nothing is left.
    ///
    /// # Errors
    /// Something is.
    pub fn finish(&self) -> Result<(), Malformed> {
        match self.left_bytes() {
            0 => Ok(()),
            bytes => Err(self.malformed("the end", Problem::Trailing { bytes })),
        }
    }

    /// Takes a varint.
    ///
    /// # Errors
    /// It has no end.
    pub fn varint(&mut self, field: &'static str) -> Result<u64, Malformed> {
        let start = self.at_byte;
        let mut value = 0u64;
        for (index, &byte) in self.bytes[start..].iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                self.at_byte = start + index + 1;
                return Ok(value);
            }
        }
        let left_bytes = self.left_bytes();
        Err(self.malformed(
            field,
            if left_bytes < 10 {
                Problem::Short {
                    wanted_bytes: left_bytes as u64 + 1,
                    left_bytes,
                }
            } else {
                Problem::EndlessVarint
            },
        ))
    }

    /// Takes the key of a protobuf field: its number and its wire type.
    ///
    /// # Errors
    /// It is no key.
    pub fn field_key(&mut self) -> Result<(u64, u8), Malformed> {
        let start = self.at_byte;
        let key = self.varint("a field key")?;
        let number = key >> 3;
        if number == 0 {
            self.at_byte = start;
            return Err(self.malformed("a field key", Problem::NoField));
        }
        Ok((number, (key & 7) as u8))
    }

    /// Takes a length-delimited protobuf value and returns where it lies.
    ///
    /// # Errors
    /// It is not there.
    pub fn delimited(&mut self, field: &'static str) -> Result<Range<usize>, Malformed> {
        let len = self.varint(field)?;
        self.range(field, len)
    }

    /// Takes the value of a protobuf field that means nothing here.
    ///
    /// # Errors
    /// It is no value of that type.
    pub fn skip(&mut self, wire_type: u8) -> Result<(), Malformed> {
        const FIELD: &str = "an unknown field";
        let mut open_groups = 0;
        let mut wire_type = wire_type;
        loop {
            match wire_type {
                VARINT => {
                    self.varint(FIELD)?;
                }
                FIXED64 => {
                    self.range(FIELD, 8)?;
                }
                DELIMITED => {
                    self.delimited(FIELD)?;
                }
                GROUP_START if open_groups == GROUP_DEPTH_MAX => {
                    return Err(self.malformed(FIELD, Problem::TooDeep));
                }
                GROUP_START => open_groups += 1,
                GROUP_END if open_groups == 0 => {
                    return Err(self.malformed(FIELD, Problem::NoField));
                }
                GROUP_END => open_groups -= 1,
                FIXED32 => {
                    self.range(FIELD, 4)?;
                }
                found => {
                    return Err(self.malformed(FIELD, Problem::UnknownWireType { found }));
                }
            }
            if open_groups == 0 {
                return Ok(());
            }
            wire_type = self.field_key()?.1;
        }
    }
}

impl From<Malformed> for Status {
    fn from(malformed: Malformed) -> Self {
        Self::new(Code::InvalidArgument, malformed.to_string())
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short {
                wanted_bytes,
                left_bytes,
            } => write!(f, "needs {wanted_bytes} bytes, {left_bytes} are left"),
            Self::OutOfRange { found, allowed_max } => {
                write!(f, "is {found}, allowed are 0 to {allowed_max}")
            }
            Self::EndlessVarint => f.write_str("is a varint of more than 10 bytes"),
            Self::NotUtf8 { at_byte } => write!(f, "is not UTF-8 at its byte {at_byte}"),
            Self::NoField => f.write_str("belongs to no field"),
            Self::UnknownWireType { found } => write!(f, "has the unknown wire type {found}"),
            Self::TooDeep => write!(f, "nests more than {GROUP_DEPTH_MAX} groups"),
            Self::Trailing { bytes } => write!(f, "is {bytes} bytes too late"),
            Self::Duplicate { found } => write!(f, "has {found:?} twice, allowed is once"),
            Self::Missing => f.write_str("is missing"),
            Self::Unallowed => f.write_str("has a character that is not allowed"),
        }
    }
}

/// Wire type of a varint.
pub(crate) const VARINT: u8 = 0;
const FIXED64: u8 = 1;
/// Wire type of a value behind its length.
pub(crate) const DELIMITED: u8 = 2;
const GROUP_START: u8 = 3;
const GROUP_END: u8 = 4;
const FIXED32: u8 = 5;

/// Protobuf's own parsers stop at this depth.
const GROUP_DEPTH_MAX: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_place_found_and_allowed() {
        let mut reader = Reader::new("graph metadata", &[1, 2]);
        assert_eq!(
            reader
                .count("the number of feeds", 3)
                .unwrap_err()
                .to_string(),
            "graph metadata, byte 0: the number of feeds needs 4 bytes, 2 are left"
        );
        let mut reader = Reader::new("graph metadata", &[0xff; 4]);
        assert_eq!(
            reader
                .count("the number of feeds", 3)
                .unwrap_err()
                .to_string(),
            "graph metadata, byte 0: the number of feeds is -1, allowed are 0 to 3"
        );
        let buffer = Buffer::from(&[1, 0, 0xc3][..]);
        let mut reader = Reader::new("names", &buffer);
        assert_eq!(
            reader
                .short_text("a name", &buffer)
                .unwrap_err()
                .to_string(),
            "names, byte 2: a name is not UTF-8 at its byte 0"
        );
    }

    #[test]
    fn varints_end() {
        for value in [0, 1, 127, 128, u64::from(u32::MAX), u64::MAX] {
            let mut bytes = Vec::new();
            prost::encoding::encode_varint(value, &mut bytes);
            let mut reader = Reader::new("test", &bytes);
            assert_eq!(reader.varint("number"), Ok(value));
            assert!(reader.is_empty());
            let mut short = Reader::new("test", &bytes[..bytes.len() - 1]);
            assert!(short.varint("number").is_err());
        }
        let error = Reader::new("test", &[0x80; 11])
            .varint("number")
            .unwrap_err();
        assert_eq!(error.problem, Problem::EndlessVarint);
    }

    #[test]
    fn unknown_fields_of_every_type_are_skipped() {
        let bytes = [
            0x08, 0x96, 0x01, // varint
            0x11, 1, 2, 3, 4, 5, 6, 7, 8, // fixed64
            0x1a, 2, 9, 9, // delimited
            0x23, 0x08, 1, 0x2b, 0x2c, 0x24, // group with a field and a group
            0x35, 1, 2, 3, 4, // fixed32
        ];
        let mut reader = Reader::new("test", &bytes);
        let mut numbers = Vec::new();
        while !reader.is_empty() {
            let (number, wire_type) = reader.field_key().unwrap();
            numbers.push(number);
            reader.skip(wire_type).unwrap();
        }
        assert_eq!(numbers, [1, 2, 3, 4, 6]);
    }

    #[test]
    fn groups_are_bounded() {
        let mut reader = Reader::new("test", &[0x0b; 1000]);
        let error = reader.skip(GROUP_START).unwrap_err();
        assert_eq!(error.problem, Problem::TooDeep);
        assert!(Reader::new("test", &[]).skip(GROUP_END).is_err());
        assert!(Reader::new("test", &[]).skip(7).is_err());
    }
}
