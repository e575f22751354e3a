//! The bytes of streams: records that share frames, and parts of long messages.

use std::ops::Range;

use crate::wire::reader::Reader;
use crate::wire::{Malformed, Problem};

/// Method number of a request that opens a stream.
pub const STREAM_OPEN_METHOD: i32 = 0x4758_0007;

/// Method number of a client's frame of what goes on in streams.
pub const STREAM_METHOD: i32 = 0x4758_0008;

/// The tag of a server's frame of what goes on in streams.
pub const STREAM_TAG: u64 = u64::MAX - 1;

/// How many messages and bytes a receiver takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credit {
    /// Messages.
    pub messages: u32,
    /// What they are long, in bytes, with the lengths of those that share records.
    pub bytes: u32,
}

/// What a frame of streams is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    Records,
    /// A message of this stream, or the last part of one.
    Last {
        number: u32,
    },
    /// A part of a message that goes on.
    Part {
        number: u32,
    },
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// So many messages, each behind its length, at this place of the frame.
    Messages {
        at: Range<usize>,
        count: u32,
    },
    Credit(Credit),
    End,
    /// Metadata at this place of the frame.
    Head {
        at: Range<usize>,
    },
}

impl Credit {
    pub(crate) const NONE: Self = Self {
        messages: 0,
        bytes: 0,
    };

    /// What a stream begins with in each direction.
    pub const FIRST: Self = Self {
        messages: 64,
        bytes: 64 << 10,
    };

    pub(crate) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// Both sums, unless one does not fit.
    pub(crate) fn plus(self, other: Self) -> Option<Self> {
        Some(Self {
            messages: self.messages.checked_add(other.messages)?,
            bytes: self.bytes.checked_add(other.bytes)?,
        })
    }

    /// What is left, unless there is less of one.
    pub(crate) fn minus(self, other: Self) -> Option<Self> {
        Some(Self {
            messages: self.messages.checked_sub(other.messages)?,
            bytes: self.bytes.checked_sub(other.bytes)?,
        })
    }
}

impl Form {
    /// Reads the fields of a header that say the form.
    pub(crate) fn decode(form: i32, number: i32) -> Option<Self> {
        let number = number as u32;
        match form {
            0 => Some(Self::Records),
            1 => Some(Self::Last { number }),
            2 => Some(Self::Part { number }),
            _ => None,
        }
    }

    /// The fields of the header.
    pub(crate) fn encode(self) -> (i32, i32) {
        match self {
            Self::Records => (0, 0),
            Self::Last { number } => (1, number as i32),
            Self::Part { number } => (2, number as i32),
        }
    }
}

/// Reads the records of a frame, with the number of the stream of each.
pub(crate) struct RecordReader<'a> {
    bytes: &'a [u8],
    reader: Reader<'a>,
}

impl<'a> RecordReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            reader: Reader::new(PLACE, bytes),
        }
    }

    /// The next record.
    pub(crate) fn read(&mut self) -> Result<Option<(u32, Record)>, Malformed> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        let reader = &mut self.reader;
        let number = u32::from_le_bytes(reader.array("the number of a stream")?);
        let kind_at = reader.left_bytes();
        let [kind] = reader.array("the kind of a record")?;
        let record = match kind {
            MESSAGES => {
                let len = u32::from_le_bytes(reader.array("the length of messages")?);
                let at = reader.range("messages", u64::from(len))?;
                let count = count_messages(&self.bytes[at.clone()])?;
                Record::Messages { at, count }
            }
            CREDIT => Record::Credit(Credit {
                messages: u32::from_le_bytes(reader.array("credits for messages")?),
                bytes: u32::from_le_bytes(reader.array("credits for bytes")?),
            }),
            END => Record::End,
            HEAD => {
                let len = u32::from_le_bytes(reader.array("the length of a head")?);
                let at = reader.range("the head", u64::from(len))?;
                Record::Head { at }
            }
            _ => {
                let problem = Problem::OutOfRange {
                    found: i64::from(kind),
                    allowed_max: u64::from(HEAD),
                };
                let mut malformed = reader.malformed("the kind of a record", problem);
                malformed.at_byte = self.bytes.len() - kind_at;
                return Err(malformed);
            }
        };
        Ok(Some((number, record)))
    }
}

/// Counts messages that lie one behind the other, each behind its length.
pub(crate) fn count_messages(messages: &[u8]) -> Result<u32, Malformed> {
    let mut rest = messages;
    let mut count = 0;
    while let Some((len, behind)) = rest.split_first_chunk() {
        let len = u32::from_le_bytes(*len) as usize;
        let Some(behind) = behind.get(len..) else {
            break;
        };
        rest = behind;
        count += 1;
    }
    if rest.is_empty() && count > 0 {
        return Ok(count);
    }
    let mut malformed = Reader::new(PLACE, rest).malformed("a message", Problem::Missing);
    if !rest.is_empty() {
        malformed.problem = Problem::Short {
            wanted_bytes: (rest.first_chunk()).map_or(MESSAGE_LENGTH_BYTES as u64, |len| {
                MESSAGE_LENGTH_BYTES as u64 + u64::from(u32::from_le_bytes(*len))
            }),
            left_bytes: rest.len(),
        };
    }
    malformed.at_byte = messages.len() - rest.len();
    Err(malformed)
}

/// Takes the first of messages that lie one behind the other.
pub fn split_first_message(messages: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = messages.split_first_chunk()?;
    rest.split_at_checked(u32::from_le_bytes(*len) as usize)
}

pub(crate) fn encode_messages(bytes: &mut Vec<u8>, number: u32, messages: &[u8]) {
    begin_record(bytes, number, MESSAGES);
    bytes.extend_from_slice(&(messages.len() as u32).to_le_bytes());
    bytes.extend_from_slice(messages);
}

pub(crate) fn encode_credit(bytes: &mut Vec<u8>, number: u32, credit: Credit) {
    begin_record(bytes, number, CREDIT);
    bytes.extend_from_slice(&credit.messages.to_le_bytes());
    bytes.extend_from_slice(&credit.bytes.to_le_bytes());
}

pub(crate) fn encode_end(bytes: &mut Vec<u8>, number: u32) {
    begin_record(bytes, number, END);
}

pub(crate) fn encode_head(bytes: &mut Vec<u8>, number: u32, metadata: &[u8]) {
    begin_record(bytes, number, HEAD);
    bytes.extend_from_slice(&(metadata.len() as u32).to_le_bytes());
    bytes.extend_from_slice(metadata);
}

fn begin_record(bytes: &mut Vec<u8>, number: u32, kind: u8) {
    bytes.extend_from_slice(&number.to_le_bytes());
    bytes.push(kind);
}

const MESSAGES: u8 = 0;
const CREDIT: u8 = 1;
const END: u8 = 2;
const HEAD: u8 = 3;

/// Number, kind and length.
pub(crate) const RECORD_HEAD_BYTES: usize = 4 + 1 + 4;

/// The length of a message among others.
pub(crate) const MESSAGE_LENGTH_BYTES: usize = 4;

/// The number of a stream behind the head of the request that opens it.
pub(crate) const NUMBER_BYTES: usize = 4;

/// Longest payload of records, in bytes.
pub(crate) const RECORDS_BYTES_MAX: usize = 64 << 10;

/// Longest part of a message, in bytes: a field of a mebibyte and what is around it.
pub(crate) const PART_BYTES_MAX: usize = (1 << 20) + 1024;

const PLACE: &str = "records of streams";
