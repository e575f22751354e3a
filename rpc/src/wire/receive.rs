//! The protobuf messages that ask for tensors.

use grpcxx_memory::Buffer;
use prost::encoding::{encode_varint, encoded_len_varint};
use smallvec::SmallVec;

use super::reader::{DELIMITED, Malformed, Problem, Reader, VARINT};
use crate::Text;

/// What a `RecvTensorRequest` or a `FuseRecvTensorRequest` asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReceiveRequest {
    /// The step.
    pub step_id: i64,
    /// The rendezvous keys: one, or at least one.
    pub keys: SmallVec<[Text; 1]>,
}

/// Length of the message that [`encode_receive`] appends.
pub fn receive_bytes<'a>(step_id: i64, keys: impl Iterator<Item = &'a Text>) -> u64 {
    let step = match step_id {
        0 => 0,
        step_id => 1 + encoded_len_varint(step_id as u64),
    };
    let keys: usize = keys
        .map(|key| key.as_buffer().len())
        .map(|len| 1 + encoded_len_varint(len as u64) + len)
        .sum();
    (step + keys) as u64
}

/// Appends a `RecvTensorRequest`, or a `FuseRecvTensorRequest` if there are several keys.
pub fn encode_receive<'a>(step_id: i64, keys: impl Iterator<Item = &'a Text>, out: &mut Vec<u8>) {
    if step_id != 0 {
        out.push(STEP_ID << 3 | VARINT);
        encode_varint(step_id as u64, out);
    }
    for key in keys {
        // As bytes, since a look at the text would check it once more.
        let bytes = key.as_buffer();
        out.push(RENDEZVOUS_KEY << 3 | DELIMITED);
        encode_varint(bytes.len() as u64, out);
        out.extend_from_slice(bytes);
    }
}

/// Reads a request. With a `keys_max` of 1 it is a `RecvTensorRequest`, of whose keys the last one
/// counts.
///
/// # Errors
/// The bytes are no such message, or there is no key, or there are too many.
pub fn decode_receive(message: &Buffer, keys_max: usize) -> Result<ReceiveRequest, Malformed> {
    let place = match keys_max {
        1 => "RecvTensorRequest",
        _ => "FuseRecvTensorRequest",
    };
    let mut reader = Reader::new(place, message);
    let mut request = ReceiveRequest::default();
    while !reader.is_empty() {
        match reader.field_key()? {
            (number, VARINT) if number == u64::from(STEP_ID) => {
                request.step_id = reader.varint("step_id")? as i64;
            }
            (number, DELIMITED) if number == u64::from(RENDEZVOUS_KEY) => {
                let len = reader.varint("rendezvous_key")?;
                let key = reader.text("rendezvous_key", len, message)?;
                if keys_max == 1 {
                    request.keys.clear();
                } else if request.keys.len() == keys_max {
                    return Err(reader.malformed(
                        "the number of keys",
                        Problem::OutOfRange {
                            found: keys_max as i64 + 1,
                            allowed_max: keys_max as u64,
                        },
                    ));
                }
                request.keys.push(key);
            }
            (_, wire_type) => reader.skip(wire_type)?,
        }
    }
    if request.keys.is_empty() {
        return Err(reader.malformed("rendezvous_key", Problem::Missing));
    }
    Ok(request)
}

/// The keys of a request that is written as all peers write it: the step, unless it is 0, then the
/// keys, each with a length of at most two bytes. Anything else ends it early, and is for
/// [`decode_receive`].
#[derive(Debug)]
pub(crate) struct PlainReceive<'a> {
    pub(crate) step_id: i64,
    rest: &'a [u8],
}

impl<'a> PlainReceive<'a> {
    /// Begins to read a whole message.
    pub(crate) fn read(message: &'a [u8]) -> Option<Self> {
        let (step_id, rest) = match message {
            [TAG_STEP_ID, rest @ ..] => plain_varint(rest)?,
            _ => (0, message),
        };
        Some(Self {
            step_id: step_id as i64,
            rest,
        })
    }

    /// Whether all bytes were read.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// More keys than there can be.
    pub(crate) fn keys_max(&self) -> usize {
        self.rest.len() / 2
    }
}

impl<'a> Iterator for PlainReceive<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = match *self.rest {
            [TAG_KEY, len @ ..0x80, ref rest @ ..] => (usize::from(len), rest),
            [TAG_KEY, low, high @ ..0x80, ref rest @ ..] => {
                (usize::from(high) << 7 | usize::from(low & 0x7f), rest)
            }
            _ => return None,
        };
        let key;
        (key, self.rest) = rest.split_at_checked(len)?;
        Some(key)
    }
}

/// A varint and what follows it.
fn plain_varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (index, &byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte < 0x80 {
            return Some((value, &bytes[index + 1..]));
        }
    }
    None
}

const TAG_STEP_ID: u8 = STEP_ID << 3 | VARINT;
const TAG_KEY: u8 = RENDEZVOUS_KEY << 3 | DELIMITED;

const STEP_ID: u8 = 1;
const RENDEZVOUS_KEY: u8 = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::*;
    use crate::proto;

    fn texts(keys: &[String]) -> Vec<Text> {
        keys.iter().map(|key| key.as_str().into()).collect()
    }

    #[test]
    fn unknown_fields_and_other_wire_types_are_tolerated() {
        let message = proto::RecvTensorRequest {
            step_id: 7,
            rendezvous_key: "key".into(),
            dma_ok: true,
            client_locality: Some(proto::DeviceLocality {
                bus_id: 3,
                ..Default::default()
            }),
            transport_options: vec![1, 2, 3].into(),
            request_id: 99,
            ..Default::default()
        };
        let mut bytes = message.encode_to_vec();
        bytes.extend_from_slice(&[0x0d, 1, 2, 3, 4]);
        let request = decode_receive(&bytes.into(), 1).unwrap();
        assert_eq!(request.step_id, 7);
        assert_eq!(request.keys[..], ["key"]);
    }

    #[test]
    fn the_last_key_of_a_single_request_counts() {
        let mut bytes = Vec::new();
        encode_receive(1, texts(&["a".into(), "b".into()]).iter(), &mut bytes);
        assert_eq!(decode_receive(&bytes.into(), 1).unwrap().keys[..], ["b"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        let refused = |bytes: &[u8], keys_max| {
            decode_receive(&bytes.to_vec().into(), keys_max)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            refused(&[8, 1], 1),
            "RecvTensorRequest, byte 2: rendezvous_key is missing"
        );
        assert_eq!(
            refused(&[0x12, 9, b'a'], 4),
            "FuseRecvTensorRequest, byte 2: rendezvous_key needs 9 bytes, 1 are left"
        );
        assert_eq!(
            refused(&[0x12, 1, b'a', 0x12, 1, b'b', 0x12, 0], 2),
            "FuseRecvTensorRequest, byte 8: the number of keys is 3, allowed are 0 to 2"
        );
        assert_eq!(
            refused(&[0x12, 1, 0xff], 1),
            "RecvTensorRequest, byte 2: rendezvous_key is not UTF-8 at its byte 0"
        );
    }

    proptest! {
        #[test]
        fn requests_are_what_protobuf_says(
            step_id in any::<i64>(),
            keys in proptest::collection::vec(".{0,300}", 1..4),
        ) {
            let keys_text = texts(&keys);
            let mut bytes = Vec::new();
            encode_receive(step_id, keys_text.iter(), &mut bytes);
            prop_assert_eq!(bytes.len() as u64, receive_bytes(step_id, keys_text.iter()));
            let message = proto::FuseRecvTensorRequest {
                step_id,
                rendezvous_key: keys,
                ..Default::default()
            };
            prop_assert_eq!(&bytes, &message.encode_to_vec());
            let request = decode_receive(&bytes.into(), 9).unwrap();
            prop_assert_eq!(request.step_id, step_id);
            prop_assert_eq!(&request.keys[..], &keys_text[..]);
        }

        #[test]
        fn what_is_plain_is_read_the_same(
            step_id in any::<i64>(),
            keys in proptest::collection::vec(".{0,300}", 1..4),
            change in proptest::option::of((any::<proptest::sample::Index>(), any::<u8>()))
        ) {
            let mut bytes = Vec::new();
            encode_receive(step_id, texts(&keys).iter(), &mut bytes);
            if let Some((index, byte)) = change {
                let at = index.index(bytes.len());
                bytes[at] = byte;
            }
            let Some(mut plain) = PlainReceive::read(&bytes) else {
                return Ok(());
            };
            let read: Vec<Vec<u8>> = plain.by_ref().map(<[u8]>::to_vec).collect();
            prop_assert!(plain.is_empty() || change.is_some());
            let request = decode_receive(&bytes.clone().into(), 9);
            if let (true, Ok(request)) = (plain.is_empty(), request) {
                prop_assert_eq!(plain.step_id, request.step_id);
                let keys = request.keys.iter().map(|key| key.as_bytes());
                prop_assert!(keys.eq(read.iter().map(|key| &key[..])));
            }
        }

        #[test]
        fn garbage_is_read_as_protobuf_reads_it(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            let ours = decode_receive(&bytes.clone().into(), 64);
            let theirs = proto::FuseRecvTensorRequest::decode(&bytes[..]);
            if let (Ok(ours), Ok(message)) = (ours, theirs) {
                prop_assert_eq!(ours.step_id, message.step_id);
            }
        }
    }
}
