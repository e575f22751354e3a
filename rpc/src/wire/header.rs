//! The headers of frames.

use std::ops::Range;

/// Length of a header, in bytes.
pub const HEADER_BYTES: usize = 32;

/// Method number of the cancel extension.
pub const CANCEL_METHOD: i32 = 0x4758_0001;

/// The head of a request frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestHeader {
    /// Number of the method; any value.
    pub method: i32,
    /// What the response will carry.
    pub tag: u64,
    /// Time for the answer, in milliseconds; 0 is none. Always 0 in plain star.
    pub timeout_ms: i32,
    /// Length of the graph metadata in bytes; 0 for all methods but `StarRunGraph`.
    pub metadata_bytes: i32,
    /// Length of what follows the header, in bytes.
    pub payload_bytes: u64,
}

/// The head of a response frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResponseHeader {
    /// The tag of the request.
    pub tag: u64,
    /// Number of the status code; 0 is success.
    pub status: i32,
    /// Length of the names in bytes; 0 for all methods but `StarRunGraph`.
    pub names_bytes: i32,
    /// Length of what follows the header, in bytes.
    pub payload_bytes: u64,
}

/// A frame that does not begin as it must.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "begins with \"{}\", not \"{}\"{}",
    found.escape_ascii(),
    allowed.escape_ascii(),
    hint(*found)
)]
pub struct WrongId {
    /// The first four bytes.
    pub found: [u8; 4],
    /// What they have to be.
    pub allowed: [u8; 4],
}

impl RequestHeader {
    /// The header as it travels.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[ID].copy_from_slice(&REQUEST_ID);
        bytes[METHOD].copy_from_slice(&self.method.to_le_bytes());
        bytes[TAG].copy_from_slice(&self.tag.to_le_bytes());
        bytes[STATUS].copy_from_slice(&self.timeout_ms.to_le_bytes());
        bytes[USER_DATA].copy_from_slice(&self.metadata_bytes.to_le_bytes());
        bytes[PAYLOAD_LEN].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// The bytes do not begin with `AAAA`.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WrongId> {
        check_id(bytes, REQUEST_ID)?;
        Ok(Self {
            method: i32_at(bytes, METHOD),
            tag: u64_at(bytes, TAG),
            timeout_ms: i32_at(bytes, STATUS),
            metadata_bytes: i32_at(bytes, USER_DATA),
            payload_bytes: u64_at(bytes, PAYLOAD_LEN),
        })
    }
}

impl ResponseHeader {
    /// The header as it travels; its method field is 0.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[ID].copy_from_slice(&RESPONSE_ID);
        bytes[TAG].copy_from_slice(&self.tag.to_le_bytes());
        bytes[STATUS].copy_from_slice(&self.status.to_le_bytes());
        bytes[USER_DATA].copy_from_slice(&self.names_bytes.to_le_bytes());
        bytes[PAYLOAD_LEN].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes
    }

    /// Reads a header; its method field means nothing.
    ///
    /// # Errors
    /// The bytes do not begin with `BBBB`.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Self, WrongId> {
        check_id(bytes, RESPONSE_ID)?;
        Ok(Self {
            tag: u64_at(bytes, TAG),
            status: i32_at(bytes, STATUS),
            names_bytes: i32_at(bytes, USER_DATA),
            payload_bytes: u64_at(bytes, PAYLOAD_LEN),
        })
    }
}

fn check_id(bytes: &[u8; HEADER_BYTES], allowed: [u8; 4]) -> Result<(), WrongId> {
    let found = [bytes[0], bytes[1], bytes[2], bytes[3]];
    if found == allowed {
        Ok(())
    } else {
        Err(WrongId { found, allowed })
    }
}

fn hint(found: [u8; 4]) -> &'static str {
    match &found {
        b"DEAD" | b"CAFE" => " (the peer speaks the older grpc+seastar protocol)",
        b"PRI " => " (the peer speaks gRPC: it wants the port of the cluster specification)",
        b"GET " | b"POST" | b"HEAD" => " (the peer speaks HTTP)",
        _ => "",
    }
}

pub(crate) fn i32_at(bytes: &[u8; HEADER_BYTES], field: Range<usize>) -> i32 {
    let mut value = [0; 4];
    value.copy_from_slice(&bytes[field]);
    i32::from_le_bytes(value)
}

pub(crate) fn u64_at(bytes: &[u8; HEADER_BYTES], field: Range<usize>) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[field]);
    u64::from_le_bytes(value)
}

const REQUEST_ID: [u8; 4] = *b"AAAA";
pub(crate) const RESPONSE_ID: [u8; 4] = *b"BBBB";

pub(crate) const ID: Range<usize> = 0..4;
pub(crate) const METHOD: Range<usize> = 4..8;
pub(crate) const TAG: Range<usize> = 8..16;
const STATUS: Range<usize> = 16..20;
const USER_DATA: Range<usize> = 20..24;
pub(crate) const PAYLOAD_LEN: Range<usize> = 24..32;

const _: () = {
    assert!(ID.start == 0 && ID.end == METHOD.start && METHOD.end == TAG.start);
    assert!(TAG.end == STATUS.start && STATUS.end == USER_DATA.start);
    assert!(USER_DATA.end == PAYLOAD_LEN.start && PAYLOAD_LEN.end == HEADER_BYTES);
};

#[cfg(test)]
mod tests {
    use super::*;

    /// checklist 01
    #[test]
    fn request_fields_lie_where_star_has_them() {
        let header = RequestHeader {
            method: 0x0403_0201,
            tag: 0x0c0b_0a09_0807_0605,
            timeout_ms: 0x100f_0e0d,
            metadata_bytes: 0x1413_1211,
            payload_bytes: 0x1c1b_1a19_1817_1615,
        };
        let bytes = header.encode();
        assert_eq!(&bytes[..4], b"AAAA");
        assert!(bytes[4..].iter().copied().eq(1..=28));
        assert_eq!(RequestHeader::decode(&bytes), Ok(header));
    }

    /// checklist 01
    #[test]
    fn response_fields_lie_where_star_has_them() {
        let header = ResponseHeader {
            tag: u64::MAX,
            status: -1,
            names_bytes: 5,
            payload_bytes: 6,
        };
        let bytes = header.encode();
        assert_eq!(&bytes[..8], b"BBBB\0\0\0\0");
        assert_eq!(bytes[8..20], [0xff; 12]);
        assert_eq!(bytes[20..], [5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ResponseHeader::decode(&bytes), Ok(header));
    }

    #[test]
    fn other_protocols_are_named() {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(b"DEAD");
        let error = RequestHeader::decode(&bytes).unwrap_err();
        assert_eq!(
            error.to_string(),
            "begins with \"DEAD\", not \"AAAA\" (the peer speaks the older grpc+seastar protocol)"
        );
        assert!(ResponseHeader::decode(&RequestHeader::default().encode()).is_err());
    }
}
