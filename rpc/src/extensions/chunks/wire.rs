//! The bytes of chunks, and what a peer can do wrong with them.

use crate::wire::header::{ID, METHOD, PAYLOAD_LEN, RESPONSE_ID, TAG, i32_at, u64_at};
use crate::wire::{HEADER_BYTES, RequestHeader};

/// Method number of chunks.
pub const CHUNK_METHOD: i32 = 0x4758_0005;

/// The head of a chunk, which is part of a request or of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The tag of the frame.
    pub tag: u64,
    /// Length of the part of the frame that follows, in bytes.
    pub payload_bytes: u64,
}

/// How a peer broke the rules of frames in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// A chunk without bytes.
    #[error("chunk header: 0 bytes, allowed are chunks with bytes")]
    Empty,
    /// A chunk of another frame than the one that has begun.
    #[error(
        "chunk header: tag {found:#018x}, allowed is {allowed:#018x}, whose frame is not complete"
    )]
    Tag {
        /// The tag.
        found: u64,
        /// The tag of the frame that has begun.
        allowed: u64,
    },
    /// A frame that has another tag than its chunks.
    #[error(
        "a frame in chunks with tag {allowed:#018x} has the tag {found:#018x}, allowed is the same"
    )]
    FrameTag {
        /// The tag of the frame.
        found: u64,
        /// The tag of its chunks.
        allowed: u64,
    },
    /// A chunk in a chunk.
    #[error("the frame in a chunk begins as a chunk does, allowed are frames of star")]
    Nested,
    /// A chunk that is longer than what its frame lacks.
    #[error("a chunk has {found_bytes} bytes behind the end of its frame, allowed are 0")]
    Beyond {
        /// How much longer.
        found_bytes: u64,
    },
    /// A chunk that ends where no chunk may.
    #[error(
        "a chunk ends {found_bytes} bytes into a head of {wanted_bytes}, allowed is an end in \
         payload"
    )]
    CutHead {
        /// What there is of the head.
        found_bytes: u64,
        /// Its length.
        wanted_bytes: usize,
    },
}

impl ChunkHeader {
    /// The header of part of a request, as it travels.
    pub fn encode_of_request(&self) -> [u8; HEADER_BYTES] {
        let header = RequestHeader {
            method: CHUNK_METHOD,
            tag: self.tag,
            payload_bytes: self.payload_bytes,
            ..RequestHeader::default()
        };
        header.encode()
    }

    /// The header of part of a response, as it travels.
    pub fn encode_of_response(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = self.encode_of_request();
        bytes[ID].copy_from_slice(&RESPONSE_ID);
        bytes
    }

    /// Reads the header of a request or of a response, if it is that of a chunk.
    #[inline]
    pub fn find(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        (i32_at(bytes, METHOD) == CHUNK_METHOD).then(|| Self {
            tag: u64_at(bytes, TAG),
            payload_bytes: u64_at(bytes, PAYLOAD_LEN),
        })
    }

    /// The tag of a frame that begins with these bytes; 0 if they are too few.
    pub(crate) fn tag_of(frame: &[u8]) -> u64 {
        frame.first_chunk().map_or(0, |bytes| u64_at(bytes, TAG))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ResponseHeader;

    #[test]
    fn chunks_are_told_by_their_method() {
        let chunk = ChunkHeader {
            tag: 7,
            payload_bytes: 8,
        };
        let request = chunk.encode_of_request();
        let header = RequestHeader::decode(&request).unwrap();
        assert_eq!((header.method, header.tag), (CHUNK_METHOD, 7));
        assert_eq!(ChunkHeader::find(&request), Some(chunk));
        assert_eq!(ChunkHeader::tag_of(&request), 7);
        let response = chunk.encode_of_response();
        assert_eq!(ResponseHeader::decode(&response).unwrap().payload_bytes, 8);
        assert_eq!(ChunkHeader::find(&response), Some(chunk));
        let other = ResponseHeader::default().encode();
        assert_eq!(ChunkHeader::find(&other), None);
    }
}
