//! How a peer can break the protocol.

use std::time::Duration;

use crate::extensions::chunks::wire::ChunkError;
use crate::extensions::streams::stream::StreamError;
use crate::extensions::token::proving::Unproven;
use crate::wire::{HeadsError, Malformed, RecordError, WrongId};

/// How a peer broke the protocol. There is no way to go on: the link has to be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerViolation {
    /// A frame does not begin as frames do.
    #[error("{place} {cause}")]
    WrongId {
        /// Which header.
        place: &'static str,
        /// How it begins.
        cause: WrongId,
    },
    /// A response to something that was not asked, or was answered before.
    #[error("response header: tag {found:#018x} belongs to no outstanding call")]
    UnknownTag {
        /// The tag.
        found: u64,
    },
    /// Two requests with one tag.
    #[error(
        "request header: tag {found:#018x} belongs to an outstanding request, allowed is an unused \
         one"
    )]
    DuplicateTag {
        /// The tag.
        found: u64,
    },
    /// A key by a number that stands for none.
    #[error("a request names key number {found}, allowed are those below {allowed}")]
    KeyNumber {
        /// The number.
        found: u64,
        /// The first one that is not allowed.
        allowed: u64,
    },
    /// More keys by number than a peer may have over all its connections.
    #[error("the connections of this peer keep as many bytes of keys as are allowed")]
    PeerKeys,
    /// A number that no list of keys has.
    #[error("request header: {found} stands for no list of keys that is kept")]
    UnknownList {
        /// The number, as it travels.
        found: i32,
    },
    /// A length beyond the limit.
    #[error("{place} is {found} bytes, allowed are 0 to {allowed_max}")]
    Length {
        /// Which length.
        place: &'static str,
        /// The length.
        found: i128,
        /// The limit.
        allowed_max: u64,
    },
    /// A tensor that contradicts itself.
    #[error("tensor record {index}: {cause}")]
    Record {
        /// Its place in the frame.
        index: usize,
        /// What is wrong.
        cause: RecordError,
    },
    /// Heads that cannot be read, so that the data behind them cannot be either.
    #[error(transparent)]
    Heads(#[from] HeadsError),
    /// Names that cannot be read, so that what follows them cannot be either.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// A frame that has begun and does not go on.
    #[error("a frame brings {found_bytes} bytes in {period:?}, allowed are at least {allowed_min}")]
    TooSlow {
        /// The bytes.
        found_bytes: u64,
        /// The fewest that are allowed.
        allowed_min: u64,
        /// The time in which they have to come.
        period: Duration,
    },
    /// A frame in chunks that is none.
    #[error(transparent)]
    Chunk(#[from] ChunkError),
    /// Something on a stream that is not allowed.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// A server that did not prove that it has the token.
    #[error(transparent)]
    Unproven(#[from] Unproven),
}

impl PeerViolation {
    /// Checks a length against its limit.
    #[inline]
    pub(crate) fn check_length(
        place: &'static str,
        found: u64,
        allowed_max: u64,
    ) -> Result<(), Self> {
        if found <= allowed_max {
            return Ok(());
        }
        Err(Self::Length {
            place,
            found: found.into(),
            allowed_max,
        })
    }

    /// Checks a length that travels with a sign against its limit.
    #[inline]
    pub(crate) fn checked_length(
        place: &'static str,
        found: i32,
        allowed_max: u64,
    ) -> Result<usize, Self> {
        match usize::try_from(found) {
            Ok(len) if len as u64 <= allowed_max => Ok(len),
            _ => Err(Self::Length {
                place,
                found: found.into(),
                allowed_max,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Problem;

    #[test]
    fn each_names_place_found_and_allowed() {
        let cases = [
            (
                PeerViolation::WrongId {
                    place: "request header",
                    cause: WrongId {
                        found: *b"GET ",
                        allowed: *b"AAAA",
                    },
                },
                "request header begins with \"GET \", not \"AAAA\" (the peer speaks HTTP)",
            ),
            (
                PeerViolation::TooSlow {
                    found_bytes: 3,
                    allowed_min: 65_536,
                    period: Duration::from_secs(30),
                },
                "a frame brings 3 bytes in 30s, allowed are at least 65536",
            ),
            (
                PeerViolation::UnknownTag { found: 7 },
                "response header: tag 0x0000000000000007 belongs to no outstanding call",
            ),
            (
                PeerViolation::DuplicateTag { found: 7 },
                "request header: tag 0x0000000000000007 belongs to an outstanding request, allowed \
                 is an unused one",
            ),
            (
                PeerViolation::Length {
                    place: "graph metadata",
                    found: -1,
                    allowed_max: 5,
                },
                "graph metadata is -1 bytes, allowed are 0 to 5",
            ),
            (
                PeerViolation::Record {
                    index: 3,
                    cause: RecordError::Form { found: 3 },
                },
                "tensor record 3: the shape has the form 3, allowed are 0 (16-bit), 1 (32-bit) and \
                 2 (out of line)",
            ),
            (
                PeerViolation::Malformed(Malformed {
                    place: "response names",
                    field: "a name",
                    at_byte: 4,
                    problem: Problem::Short {
                        wanted_bytes: 3,
                        left_bytes: 1,
                    },
                }),
                "response names, byte 4: a name needs 3 bytes, 1 are left",
            ),
        ];
        for (violation, text) in cases {
            assert_eq!(violation.to_string(), text);
        }
    }
}
