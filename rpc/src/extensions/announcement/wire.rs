//! The bytes of an announcement, and the set of features that it names.

use std::fmt;
use std::ops::{BitAnd, BitOr};

use prost::encoding::{encode_varint, encoded_len_varint};

use crate::wire::reader::{DELIMITED, Malformed, Reader, VARINT};
use crate::{Nonce, Proof, Text};

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
    /// The connection may go on in shared memory.
    pub const SHARED_MEMORY: Self = Self(1 << 2);
    /// The connection may go on over RDMA.
    pub const RDMA: Self = Self(1 << 3);
    /// Frames may be longer than originals can say.
    pub const LONG_FRAMES: Self = Self(1 << 4);
    /// Long frames may travel in chunks.
    pub const CHUNKS: Self = Self(1 << 5);
    /// What the tensors of a response are may come before all of their data.
    pub const HEADS_FIRST: Self = Self(1 << 6);
    /// Small requests and answers may share frames, and name keys by numbers.
    pub const BUNDLES: Self = Self(1 << 7);
    /// A request may have a number in the place of a list of keys that the server keeps.
    pub const KEY_LISTS: Self = Self(1 << 8);
    /// Both ends prove to each other that they have the token of their cluster.
    pub const TOKEN: Self = Self(1 << 9);
    /// Methods of services are called by their path.
    pub const SERVICES: Self = Self(1 << 10);
    /// Methods of services take and answer with any number of messages.
    pub const STREAMS: Self = Self(1 << 11);
    /// A graph call may say which span of which trace it was made in.
    pub const TRACES: Self = Self(1 << 12);
    /// Tensors may have element types that originals do not know.
    pub const ELEMENT_TYPES: Self = Self(1 << 13);
    /// A graph call may have more tensors than originals can answer with.
    pub const MANY_TENSORS: Self = Self(1 << 14);
    /// Shapes that no form of star holds travel packed.
    pub const PACKED_SHAPES: Self = Self(1 << 15);
    /// A failure may have bytes behind its text.
    pub const STATUS_DETAILS: Self = Self(1 << 16);
    /// What lets a connection move to another medium.
    pub const MEDIA: Self = Self(Self::SHARED_MEMORY.0 | Self::RDMA.0);
    /// What lets a client keep keys at the server.
    pub const OF_KEYS: Self = Self(Self::BUNDLES.0 | Self::KEY_LISTS.0);
    /// All extensions that this version knows and that need nothing to be set.
    pub const ALL: Self = Self(
        Self::CANCEL.0
            | Self::DEADLINE.0
            | Self::MEDIA.0
            | Self::LONG_FRAMES.0
            | Self::CHUNKS.0
            | Self::HEADS_FIRST.0
            | Self::BUNDLES.0
            | Self::KEY_LISTS.0
            | Self::SERVICES.0
            | Self::STREAMS.0
            | Self::TRACES.0
            | Self::ELEMENT_TYPES.0
            | Self::MANY_TENSORS.0
            | Self::PACKED_SHAPES.0
            | Self::STATUS_DETAILS.0,
    );

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

    /// The features of this set that are not in `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether any of `other` is in this set.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
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
        for (feature, name) in [
            (Self::CANCEL, "cancel"),
            (Self::DEADLINE, "deadline"),
            (Self::SHARED_MEMORY, "shared memory"),
            (Self::RDMA, "RDMA"),
            (Self::LONG_FRAMES, "long frames"),
            (Self::CHUNKS, "chunks"),
            (Self::HEADS_FIRST, "heads first"),
            (Self::BUNDLES, "bundles"),
            (Self::KEY_LISTS, "key lists"),
            (Self::TOKEN, "token"),
            (Self::SERVICES, "services"),
            (Self::STREAMS, "streams"),
            (Self::TRACES, "traces"),
            (Self::ELEMENT_TYPES, "element types"),
            (Self::MANY_TENSORS, "many tensors"),
            (Self::PACKED_SHAPES, "packed shapes"),
            (Self::STATUS_DETAILS, "status details"),
        ] {
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
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcement {
    /// The extensions it knows.
    pub features: Features,
    /// What links need to move to another medium, which is for them to understand; empty if there
    /// is none.
    pub offer: Vec<u8>,
    /// The number that proofs of this connection are made over.
    pub nonce: Option<Nonce>,
    /// What proves that the sender has the token.
    pub proof: Option<Proof>,
    /// The incarnation of the server that the proofs are made over.
    pub incarnation: Option<u64>,
    /// Which task of the cluster the sender says that it is, as in `ps/0`.
    pub task: Option<Text>,
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
    pub fn len_bytes(&self) -> usize {
        let content_bytes = self.content_bytes();
        encoded_len_varint(FIELD << 3) + encoded_len_varint(content_bytes as u64) + content_bytes
    }

    /// Appends the announcement to a serialized message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_varint(FIELD << 3 | u64::from(DELIMITED), out);
        encode_varint(self.content_bytes() as u64, out);
        encode_varint(VERSION_FIELD << 3 | u64::from(VARINT), out);
        encode_varint(VERSION, out);
        encode_varint(FEATURES_FIELD << 3 | u64::from(VARINT), out);
        encode_varint(self.features.bits(), out);
        if !self.offer.is_empty() {
            encode_varint(OFFER_FIELD << 3 | u64::from(DELIMITED), out);
            encode_varint(self.offer.len() as u64, out);
            out.extend_from_slice(&self.offer);
        }
        for (field, bytes) in [(NONCE_FIELD, &self.nonce), (PROOF_FIELD, &self.proof)] {
            if let Some(bytes) = bytes {
                encode_varint(field << 3 | u64::from(DELIMITED), out);
                encode_varint(bytes.len() as u64, out);
                out.extend_from_slice(bytes);
            }
        }
        if let Some(incarnation) = self.incarnation {
            encode_varint(INCARNATION_FIELD << 3 | u64::from(VARINT), out);
            encode_varint(incarnation, out);
        }
        if let Some(task) = &self.task {
            encode_varint(TASK_FIELD << 3 | u64::from(DELIMITED), out);
            encode_varint(task.len() as u64, out);
            out.extend_from_slice(task.as_bytes());
        }
    }

    fn content_bytes(&self) -> usize {
        let delimited = |len: usize| 1 + encoded_len_varint(len as u64) + len;
        let offer_bytes = match self.offer.len() {
            0 => 0,
            len => delimited(len),
        };
        let task_bytes = self.task.as_ref().map_or(0, |task| delimited(task.len()));
        let of_32_bytes = usize::from(self.nonce.is_some()) + usize::from(self.proof.is_some());
        let incarnation_bytes =
            (self.incarnation).map_or(0, |number| 1 + encoded_len_varint(number));
        2 + encoded_len_varint(VERSION)
            + encoded_len_varint(self.features.bits())
            + offer_bytes
            + of_32_bytes * (2 + size_of::<Nonce>())
            + incarnation_bytes
            + task_bytes
    }

    fn decode(content: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader::new("announcement", content);
        let mut found = Self::default();
        while !reader.is_empty() {
            match reader.field_key()? {
                (FEATURES_FIELD, VARINT) => {
                    found.features = Features::from_bits(reader.varint("the features")?);
                }
                (OFFER_FIELD, DELIMITED) => {
                    let offer = &content[reader.delimited("the offer")?];
                    // A longer one is of a medium that this version does not know.
                    if offer.len() <= OFFER_BYTES_MAX {
                        found.offer = offer.to_vec();
                    }
                }
                (NONCE_FIELD, DELIMITED) => {
                    found.nonce = content[reader.delimited("the nonce")?].try_into().ok();
                }
                (PROOF_FIELD, DELIMITED) => {
                    found.proof = content[reader.delimited("the proof")?].try_into().ok();
                }
                (INCARNATION_FIELD, VARINT) => {
                    found.incarnation = Some(reader.varint("the incarnation")?);
                }
                (TASK_FIELD, DELIMITED) => {
                    let task = &content[reader.delimited("the task")?];
                    // A longer one names no task, and its beginning does not either.
                    let kept = &task[..task.len().min(TASK_BYTES_MAX)];
                    found.task = Some(Text::from(&*String::from_utf8_lossy(kept)));
                }
                (_, wire_type) => reader.skip(wire_type)?,
            }
        }
        Ok(found)
    }
}

/// Field number in both messages: far from those in use, and outside of protobuf's reserved range.
const FIELD: u64 = 23_117;
const VERSION_FIELD: u64 = 1;
const FEATURES_FIELD: u64 = 2;
const OFFER_FIELD: u64 = 3;
const NONCE_FIELD: u64 = 4;
const PROOF_FIELD: u64 = 5;
const INCARNATION_FIELD: u64 = 6;
const TASK_FIELD: u64 = 7;
const VERSION: u64 = 1;

/// Longest offer that is kept.
const OFFER_BYTES_MAX: usize = 256;

/// Most bytes that are kept of the name of a task: more than any name in a certificate has.
const TASK_BYTES_MAX: usize = 160;

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
            features: Features::from_bits(0x5ff),
            ..Announcement::default()
        };
        announcement.encode(&mut bytes);
        assert_eq!(bytes.len(), plain.len() + announcement.len_bytes());
        assert_eq!(
            bytes[plain.len()..],
            [0xea, 0xa4, 0x0b, 5, 8, 1, 0x10, 0xff, 0x0b]
        );
        assert_eq!(Announcement::find(&bytes), Ok(Some(announcement)));
        assert_eq!(GetStatusResponse::decode(&bytes[..]), Ok(status));
        assert!(GetStatusRequest::decode(&bytes[plain.len()..]).is_ok());
    }

    #[test]
    fn an_offer_comes_back_as_it_was() {
        let announcement = Announcement {
            features: Features::SHARED_MEMORY,
            offer: vec![7; 200],
            ..Announcement::default()
        };
        let mut bytes = Vec::new();
        announcement.encode(&mut bytes);
        assert_eq!(bytes.len(), announcement.len_bytes());
        assert_eq!(Announcement::find(&bytes), Ok(Some(announcement)));
        let long = Announcement {
            features: Features::SHARED_MEMORY,
            offer: vec![7; 300],
            ..Announcement::default()
        };
        let mut bytes = Vec::new();
        long.encode(&mut bytes);
        let found = Announcement::find(&bytes).unwrap().unwrap();
        assert!(found.offer.is_empty() && found.features == Features::SHARED_MEMORY);
    }

    #[test]
    fn a_proof_comes_back_as_it_was_and_counts_in_full_only() {
        let announcement = Announcement {
            features: Features::TOKEN,
            nonce: Some([1; 32]),
            proof: Some([2; 32]),
            incarnation: Some(u64::MAX),
            ..Announcement::default()
        };
        let mut bytes = Vec::new();
        announcement.encode(&mut bytes);
        assert_eq!(bytes.len(), announcement.len_bytes());
        assert_eq!(Announcement::find(&bytes), Ok(Some(announcement)));
        let short = [0xea, 0xa4, 0x0b, 7, 0x10, 0x80, 4, 0x22, 2, 1, 1];
        let found = Announcement::find(&short).unwrap().unwrap();
        assert_eq!((found.nonce, found.features), (None, Features::TOKEN));
    }

    #[test]
    fn the_name_of_a_task_comes_back_as_it_was_and_a_long_one_cut() {
        let of = |task: &str| Announcement {
            features: Features::CANCEL,
            task: Some(task.into()),
            ..Announcement::default()
        };
        let mut bytes = Vec::new();
        of("ps/0").encode(&mut bytes);
        assert_eq!(bytes.len(), of("ps/0").len_bytes());
        assert_eq!(
            bytes[3..],
            [10, 8, 1, 0x10, 1, 0x3a, 4, b'p', b's', b'/', b'0']
        );
        assert_eq!(Announcement::find(&bytes), Ok(Some(of("ps/0"))));
        let mut bytes = Vec::new();
        of(&"x".repeat(5000)).encode(&mut bytes);
        let found = Announcement::find(&bytes).unwrap().unwrap();
        assert_eq!(found, of(&"x".repeat(TASK_BYTES_MAX)));
        let no_text = [0xea, 0xa4, 0x0b, 6, 0x10, 1, 0x3a, 2, 0xff, b'x'];
        let found = Announcement::find(&no_text).unwrap().unwrap();
        assert_eq!(found, of("\u{fffd}x"));
    }

    #[test]
    fn later_versions_are_understood_as_far_as_known() {
        let bytes = [0xea, 0xa4, 0x0b, 9, 8, 2, 0x10, 0x85, 0x80, 8, 0x1a, 1, 7];
        let found = Announcement::find(&bytes).unwrap().unwrap();
        assert_eq!(found.features.bits(), 0x2_0005);
        assert_eq!(found.features.to_string(), "cancel, shared memory, 0x20000");
        assert!(Announcement::find(&bytes[..9]).is_err());
    }
}
