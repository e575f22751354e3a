//! Messages as bytes, without protobuf between them and the wire.

use bytes::{Buf, BufMut, Bytes};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// A message: parts that are sent one after the other.
pub(crate) type Parts = Vec<Bytes>;

#[derive(Clone, Copy, Default)]
pub(crate) struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Parts;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for BytesCodec {
    type Item = Parts;
    type Error = Status;

    fn encode(&mut self, parts: Parts, target: &mut EncodeBuf<'_>) -> Result<(), Status> {
        target.reserve(parts.iter().map(Bytes::len).sum());
        for part in parts {
            target.put(part);
        }
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}
