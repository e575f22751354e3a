use crate::garbage::Garbage;

/// What stands in a ring: bytes of the stream, or where in the memory of the writer they lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// This many bytes follow, then padding.
    Bytes { len: usize },
    /// A [`Loaned`] follows.
    Loaned,
    /// A [`RemoteReadable`] follows.
    RemoteReadable,
}

/// Bytes of the stream that the writer lends instead of copying them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loaned {
    /// Index of the arena in the order in which the writer has introduced them.
    pub(crate) arena: u32,
    /// Bit in the table of what was given back.
    pub(crate) slot: u32,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// Bytes of the stream that the reader copies out of the writer's process itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RemoteReadable {
    /// Bit in the table of what was given back.
    pub(crate) slot: u32,
    pub(crate) address: u64,
    pub(crate) len: u64,
}

impl Record {
    pub(crate) const fn encode(self) -> [u8; RECORD_BYTES] {
        let word = match self {
            Self::Bytes { len } => KIND_BYTES << KIND_SHIFT | len as u64,
            Self::Loaned => KIND_LOANED << KIND_SHIFT | LOANED_BYTES as u64,
            Self::RemoteReadable => {
                KIND_REMOTE_READABLE << KIND_SHIFT | REMOTE_READABLE_BYTES as u64
            }
        };
        word.to_le_bytes()
    }

    /// Reads a record of which no more than `available` bytes can follow.
    pub(crate) fn decode(bytes: [u8; RECORD_BYTES], available: usize) -> Result<Self, Garbage> {
        let word = u64::from_le_bytes(bytes);
        let len = word & LEN_MASK;
        match word >> KIND_SHIFT {
            KIND_BYTES => {
                let len = Garbage::check("length of a record", len, available as u64)? as usize;
                Garbage::check(
                    "length of a record with its padding",
                    padded(len) as u64,
                    available as u64,
                )?;
                if len == 0 {
                    return Err(Garbage {
                        what: "length of a record, which must not be empty,",
                        found: 0,
                        allowed_max: available as u64,
                    });
                }
                Ok(Self::Bytes { len })
            }
            KIND_LOANED if len == LOANED_BYTES as u64 && available >= LOANED_BYTES => {
                Ok(Self::Loaned)
            }
            KIND_REMOTE_READABLE
                if len == REMOTE_READABLE_BYTES as u64 && available >= REMOTE_READABLE_BYTES =>
            {
                Ok(Self::RemoteReadable)
            }
            kind => Err(Garbage {
                what: "kind and length of a record",
                found: kind << KIND_SHIFT | len,
                allowed_max: KIND_REMOTE_READABLE << KIND_SHIFT | REMOTE_READABLE_BYTES as u64,
            }),
        }
    }
}

impl Loaned {
    pub(crate) fn encode(self) -> [u8; LOANED_BYTES] {
        let mut bytes = [0; LOANED_BYTES];
        bytes[..4].copy_from_slice(&self.arena.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Reads what the writer says; whether it can be is for the caller to check.
    pub(crate) fn decode(bytes: [u8; LOANED_BYTES]) -> Self {
        let [first, offset, len] = words(bytes);
        Self {
            arena: first as u32,
            slot: (first >> 32) as u32,
            offset,
            len,
        }
    }
}

impl RemoteReadable {
    pub(crate) fn encode(self) -> [u8; REMOTE_READABLE_BYTES] {
        let mut bytes = [0; REMOTE_READABLE_BYTES];
        bytes[4..8].copy_from_slice(&self.slot.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        bytes[16..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// Reads what the writer says; whether it can be is for the caller to check.
    pub(crate) fn decode(bytes: [u8; REMOTE_READABLE_BYTES]) -> Self {
        let [first, address, len] = words(bytes);
        Self {
            slot: (first >> 32) as u32,
            address,
            len,
        }
    }
}

fn words(bytes: [u8; 24]) -> [u64; 3] {
    let mut words = [0; 3];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    words
}

/// Length with the padding behind it.
pub(crate) const fn padded(len: usize) -> usize {
    len.next_multiple_of(RECORD_BYTES)
}

/// Length of the head of a record, and what all lengths are multiples of.
pub(crate) const RECORD_BYTES: usize = 8;

/// Length of a [`Loaned`].
pub(crate) const LOANED_BYTES: usize = 24;

/// Length of a [`RemoteReadable`].
pub(crate) const REMOTE_READABLE_BYTES: usize = 24;

const KIND_SHIFT: u32 = 32;
const LEN_MASK: u64 = (1 << KIND_SHIFT) - 1;
const KIND_BYTES: u64 = 1;
const KIND_LOANED: u64 = 2;
const KIND_REMOTE_READABLE: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_were() {
        for record in [
            Record::Bytes { len: 1 },
            Record::Bytes { len: 4000 },
            Record::Loaned,
            Record::RemoteReadable,
        ] {
            assert_eq!(Record::decode(record.encode(), 4000), Ok(record));
        }
        let loaned = Loaned {
            arena: 1,
            slot: 2,
            offset: u64::MAX,
            len: 4,
        };
        assert_eq!(Loaned::decode(loaned.encode()), loaned);
        let readable = RemoteReadable {
            slot: 3,
            address: u64::MAX,
            len: 5,
        };
        assert_eq!(RemoteReadable::decode(readable.encode()), readable);
    }

    #[test]
    fn records_beyond_what_is_there_are_refused() {
        for (record, available) in [
            (Record::Bytes { len: 0 }, 100),
            (Record::Bytes { len: 9 }, 8),
            (Record::Bytes { len: 9 }, 15),
            (Record::Loaned, 16),
            (Record::RemoteReadable, 16),
        ] {
            assert!(Record::decode(record.encode(), available).is_err());
        }
        assert!(Record::decode([0xff; 8], 100).is_err());
        let error = Record::decode(Record::Bytes { len: 9 }.encode(), 8).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the peer wrote 9 as length of a record, at most 8 is allowed"
        );
    }
}
