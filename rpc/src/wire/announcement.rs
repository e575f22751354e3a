use std::fmt;
use std::ops::{BitAnd, BitOr};

use prost::encoding::{encode_varint, encoded_len_varint};

use super::reader::{DELIMITED, Malformed, Reader, VARINT};

/// A set of extensions of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(u64);

impl Features {
    /// Plain star.
    pub const NONE: Self = Self(0);
    /// A client may give up a call.
    pub const CANCEL: Self = Self(1 << 0);
    /// A request may carry the time it has for its answer.
    pub const DEADLINE: Self = Self(1 << 1);
    /// All extensions that this version knows.
    pub const ALL: Self = Self(Self::CANCEL.0 | Self::DEADLINE.0);

    /// The features with these bits, known or not.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The bits.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` are in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitAnd for Features {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

impl BitOr for Features {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        let mut separator = "";
        let mut unknown = self.0;
        for (feature, name) in [(Self::CANCEL, "cancel"), (Self::DEADLINE, "deadline")] {
            if self.contains(feature) {
                write!(f, "{separator}{name}")?;
                separator = ", ";
                unknown &= !feature.0;
            }
        }
        if unknown != 0 {
            write!(f, "{separator}{unknown:#x}")?;
        }
        Ok(())
    }
}

/// What a peer says about itself in an unknown field of `GetStatus` messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The extensions it knows.
    pub features: Features,
}

impl Announcement {
    /// The announcement in a serialized `GetStatusRequest` or `GetStatusResponse`, if there is one.
    ///
    /// # Errors
    /// The bytes are no protobuf message.
    pub fn find(message: &[u8]) -> Result<Option<Self>, Malformed> {
        let mut reader = Reader::new("GetStatus message", message);
        let mut found = None;
        while !reader.is_empty() {
            match reader.field_key()? {
                (FIELD, DELIMITED) => {
                    let range = reader.delimited("the announcement")?;
                    found = Some(Self::decode(&message[range])?);
                }
                (_, wire_type) => reader.skip(wire_type)?,
            }
        }
        Ok(found)
    }

    /// Length of what [`Announcement::encode`] appends.
    pub fn len_bytes(self) -> usize {
        let content_bytes = self.content_bytes();
        encoded_len_varint(FIELD << 3) + encoded_len_varint(content_bytes as u64) + content_bytes
    }

    /// Appends the announcement to a serialized message.
    pub fn encode(self, out: &mut Vec<u8>) {
        encode_varint(FIELD << 3 | u64::from(DELIMITED), out);
        encode_varint(self.content_bytes() as u64, out);
        encode_varint(VERSION_FIELD << 3 | u64::from(VARINT), out);
        encode_varint(VERSION, out);
        encode_varint(FEATURES_FIELD << 3 | u64::from(VARINT), out);
        encode_varint(self.features.bits(), out);
    }

    fn content_bytes(self) -> usize {
        2 + encoded_len_varint(VERSION) + encoded_len_varint(self.features.bits())
    }

    fn decode(content: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("announcement", content);
        let mut features = Features::NONE;
        while !reader.is_empty() {
            match reader.field_key()? {
                (FEATURES_FIELD, VARINT) => {
                    features = Features::from_bits(reader.varint("the features")?);
                }
                (_, wire_type) => reader.skip(wire_type)?,
            }
        }
        Ok(Self { features })
    }
}

/// Field number in both messages: far from those in use, and outside of protobuf's reserved range.
const FIELD: u64 = 23_117;
const VERSION_FIELD: u64 = 1;
const FEATURES_FIELD: u64 = 2;
const VERSION: u64 = 1;

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::proto::{DeviceAttributes, GetStatusRequest, GetStatusResponse};

    #[test]
    fn an_announcement_is_an_unknown_field() {
        let status = GetStatusResponse {
            device_attributes: vec![DeviceAttributes {
                name: "/job:ps/replica:0/task:0/device:CPU:0".into(),
                incarnation: 5,
                ..Default::default()
            }],
        };
        let plain = status.encode_to_vec();
        assert_eq!(Announcement::find(&plain), Ok(None));

        let mut bytes = plain.clone();
        let announcement = Announcement {
            features: Features::ALL,
        };
        announcement.encode(&mut bytes);
        assert_eq!(bytes.len(), plain.len() + announcement.len_bytes());
        assert_eq!(bytes[plain.len()..], [0xea, 0xa4, 0x0b, 4, 8, 1, 0x10, 3]);
        assert_eq!(Announcement::find(&bytes), Ok(Some(announcement)));
        assert_eq!(GetStatusResponse::decode(&bytes[..]), Ok(status));
        assert!(GetStatusRequest::decode(&bytes[plain.len()..]).is_ok());
    }

    #[test]
    fn later_versions_are_understood_as_far_as_known() {
        let bytes = [0xea, 0xa4, 0x0b, 9, 8, 2, 0x10, 0x85, 0x80, 1, 0x1a, 1, 7];
        let found = Announcement::find(&bytes).unwrap().unwrap();
        assert_eq!(found.features.bits(), 0x4005);
        assert_eq!(found.features.to_string(), "cancel, 0x4004");
        assert!(Announcement::find(&bytes[..9]).is_err());
    }
}
