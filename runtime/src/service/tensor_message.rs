//! Tensors as fields of messages.

use bytes::{Buf, BufMut, Bytes};
use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, DType, Shape, Status, Tensor};
use prost::encoding::{
    self, DecodeContext, WireType, bool, encode_key, encode_varint, encoded_len_varint, int32,
    key_len, merge_loop, skip_field, uint64,
};
use prost::{DecodeError, Message};

/// A tensor in a message: what `grpcxx.v1.Tensor` of `grpcxx/tensor.proto` is in Rust.
///
/// It is made of a [`Tensor`] with `from`, and becomes one with `try_from`, both without a copy but
/// of what another process lends.
/// Data of 4 KiB and more are sent from where they lie. They share the memory that their message
/// landed in, and lie there as elements have to, so [`Tensor::as_slice`] finds them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct TensorMessage {
    /// The number of the type, which may be one that nobody has.
    dtype: i32,
    /// The dimensions, or one more than there may be.
    dims: Vec<u64>,
    data: Bytes,
    is_dead: bool,
}

impl From<Tensor> for TensorMessage {
    fn from(mut tensor: Tensor) -> Self {
        // Nobody sees of a message that another process may write what it holds.
        tensor.make_private();
        Self {
            dtype: tensor.dtype.number().into(),
            dims: tensor.shape.dims().to_vec(),
            data: Bytes::from(tensor.data),
            is_dead: tensor.is_dead,
        }
    }
}

/// Fails with `INVALID_ARGUMENT` if no tensor is like this, as that of a field which was not set.
impl TryFrom<TensorMessage> for Tensor {
    type Error = Status;

    fn try_from(message: TensorMessage) -> Result<Self, Status> {
        let invalid = |text| Status::new(Code::InvalidArgument, text);
        let dtype = DType::from_number(message.dtype).ok_or_else(|| {
            invalid(match message.dtype {
                0 => "a tensor without a type; set its field, with the type among the rest".into(),
                number => format!("a tensor of type {number}, which is none of grpcxx.v1.Tensor"),
            })
        })?;
        if message.dims.len() > RANK_MAX {
            return Err(invalid(format!(
                "a tensor of more than {RANK_MAX} dimensions"
            )));
        }
        let shape = Shape::new(&message.dims)?;
        if message.is_dead {
            return Ok(Self {
                dtype,
                shape,
                is_dead: true,
                data: Buffer::from(message.data),
            });
        }
        Self::new(dtype, shape, message.data)
    }
}

impl Message for TensorMessage {
    fn encode_raw(&self, buf: &mut impl BufMut) {
        if self.dtype != 0 {
            int32::encode(DTYPE, &self.dtype, buf);
        }
        uint64::encode_packed(DIMS, &self.dims, buf);
        if self.is_dead {
            bool::encode(IS_DEAD, &self.is_dead, buf);
        }
        match self.data.len() {
            0 => {}
            1..ALIGNED_BYTES_MIN => encoding::bytes::encode(DATA, &self.data, buf),
            len => {
                let head_bytes = key_len(DATA) + encoded_len_varint(len as u64);
                let start = position(buf) + PADDING_HEAD_BYTES + head_bytes;
                let before_bytes = start.next_multiple_of(ALIGNMENT) - start;
                encode_padding(before_bytes, buf);
                encoding::bytes::encode(DATA, &self.data, buf);
                encode_padding(PADDING_BYTES - before_bytes, buf);
            }
        }
    }

    fn encoded_len(&self) -> usize {
        let dtype_bytes = match self.dtype {
            0 => 0,
            _ => int32::encoded_len(DTYPE, &self.dtype),
        };
        let dead_bytes = match self.is_dead {
            true => bool::encoded_len(IS_DEAD, &true),
            false => 0,
        };
        let data_bytes = match self.data.len() {
            0 => 0,
            1..ALIGNED_BYTES_MIN => encoding::bytes::encoded_len(DATA, &self.data),
            _ => {
                encoding::bytes::encoded_len(DATA, &self.data)
                    + 2 * PADDING_HEAD_BYTES
                    + PADDING_BYTES
            }
        };
        dtype_bytes + uint64::encoded_len_packed(DIMS, &self.dims) + dead_bytes + data_bytes
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: WireType,
        buf: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        match tag {
            DTYPE => int32::merge(wire_type, &mut self.dtype, buf, context),
            DIMS if wire_type == WireType::LengthDelimited => {
                merge_loop(&mut self.dims, buf, context, |dims, buf, context| {
                    merge_dim(dims, WireType::Varint, buf, context)
                })
            }
            DIMS => merge_dim(&mut self.dims, wire_type, buf, context),
            DATA => encoding::bytes::merge(wire_type, &mut self.data, buf, context),
            IS_DEAD => bool::merge(wire_type, &mut self.is_dead, buf, context),
            _ => skip_field(wire_type, tag, buf, context),
        }
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Adds a dimension. Of too many only as many are kept as tell that: each takes eight times the
/// memory here that it took in the message.
fn merge_dim(
    dims: &mut Vec<u64>,
    wire_type: WireType,
    buf: &mut impl Buf,
    context: DecodeContext,
) -> Result<(), DecodeError> {
    let mut dim = 0;
    uint64::merge(wire_type, &mut dim, buf, context)?;
    if dims.len() <= RANK_MAX {
        dims.push(dim);
    }
    Ok(())
}

/// Where the next byte goes, counted from the begin of the memory, but for a multiple of
/// [`ALIGNMENT`]: what vectors and the like still take is what is left of a power of two.
fn position(buf: &impl BufMut) -> usize {
    (usize::MAX - buf.remaining_mut()) % ALIGNMENT
}

fn encode_padding(len: usize, buf: &mut impl BufMut) {
    encode_key(PADDING, WireType::LengthDelimited, buf);
    encode_varint(len as u64, buf);
    buf.put_bytes(0, len);
}

// The fields of grpcxx.v1.Tensor.
const DTYPE: u32 = 1;
const DIMS: u32 = 2;
const DATA: u32 = 3;
const IS_DEAD: u32 = 4;
const PADDING: u32 = 15;

/// Most dimensions of a tensor, as in a record of star that has them out of line.
const RANK_MAX: usize = 254;

/// Shorter data are copied, and may lie anywhere.
const ALIGNED_BYTES_MIN: usize = 4096;

/// What the place of long data is a multiple of, in the memory that begins with the message and
/// what travels before it.
const ALIGNMENT: usize = 64;

/// How much padding long data have before and behind them: always as much, since the length of a
/// message is wanted before it is known where that lies.
const PADDING_BYTES: usize = ALIGNMENT - 1;

/// Key and length of padding.
const PADDING_HEAD_BYTES: usize = 2;

#[cfg(test)]
mod tests {
    use grpcxx_rpc::Metadata;

    use super::*;
    use crate::service::codec;

    /// What the .proto file of a user becomes.
    #[derive(Clone, PartialEq, Eq, Hash, Message)]
    struct Weights {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(message, optional, tag = "2")]
        one: Option<TensorMessage>,
        #[prost(message, repeated, tag = "3")]
        more: Vec<TensorMessage>,
    }

    fn floats(len: usize) -> Tensor {
        Tensor::vector((0..len).map(|at| at as f32).collect())
    }

    fn weights(name: &str, tensors: &[Tensor]) -> Weights {
        let mut tensors = tensors.iter().cloned().map(TensorMessage::from);
        Weights {
            name: name.to_owned(),
            one: tensors.next(),
            more: tensors.collect(),
        }
    }

    fn refused(message: TensorMessage) -> String {
        let status = Tensor::try_from(message).unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument);
        status.message.into_owned()
    }

    #[test]
    fn tensors_of_all_types_come_back() {
        for &dtype in DType::ALL {
            let dims = [3, 0, 70_000];
            for dims in [&dims[..], &[1; RANK_MAX], &[]] {
                let shape = Shape::new(dims).unwrap();
                let len = dtype.data_bytes(shape.num_elements()).unwrap_or(5) as usize;
                let sent = Tensor::new(dtype, shape, vec![7; len]).unwrap();
                let bytes = TensorMessage::from(sent.clone()).encode_to_vec();
                let received = TensorMessage::decode(&bytes[..]).unwrap();
                assert_eq!(Tensor::try_from(received).unwrap(), sent, "{dtype}");
            }
        }
        let bytes = TensorMessage::from(Tensor::dead()).encode_to_vec();
        let received = TensorMessage::decode(&bytes[..]).unwrap();
        assert_eq!(Tensor::try_from(received).unwrap(), Tensor::dead());
    }

    /// What the .proto file has as its types are those that there are.
    #[test]
    fn the_description_has_all_types() {
        let proto = include_str!("../../../build/proto/grpcxx/tensor.proto");
        let (_, types) = proto.split_once("UNKNOWN = 0;\n").unwrap();
        let (types, _) = types.split_once("  }").unwrap();
        let line = |dtype: &DType| {
            let name = dtype.name().to_uppercase();
            format!("    {name} = {};\n", dtype.number())
        };
        let all: String = DType::ALL.iter().map(line).collect();
        assert_eq!(types, all);
    }

    #[test]
    fn long_data_are_sent_from_where_they_lie_and_shared_where_they_land() {
        for name_bytes in 0..70 {
            let sent = [floats(5000), floats(1), floats(1024), floats(1023)];
            let message = weights(&"n".repeat(name_bytes), &sent);
            let metadata = Metadata::default();
            let pieces = codec::answer(&metadata, &message).unwrap().into_pieces();
            for long in [&sent[0], &sent[2]] {
                let of_it = |piece: &&Buffer| piece.as_ptr() == long.data.as_ptr();
                assert_eq!(pieces.iter().filter(of_it).count(), 1);
            }
            let landed = Buffer::from(
                pieces
                    .iter()
                    .flat_map(|piece| piece.to_vec())
                    .collect::<Vec<_>>(),
            );
            assert_eq!(landed.len(), message.encoded_len());
            let received: Weights = codec::decode(landed.clone()).unwrap();
            assert_eq!(received, message);
            for (tensor, sent) in received.one.into_iter().chain(received.more).zip(&sent) {
                let tensor = Tensor::try_from(tensor).unwrap();
                assert_eq!(&tensor, sent);
                let offset = tensor.data.as_ptr() as usize - landed.as_ptr() as usize;
                assert!(offset < landed.len());
                let is_long = tensor.data.len() >= ALIGNED_BYTES_MIN;
                assert!(!is_long || offset.is_multiple_of(ALIGNMENT), "{offset}");
            }
        }
    }

    #[test]
    fn the_head_of_an_envelope_counts_for_the_place_of_data() {
        for path in ["/a.B/C", "/package.Service/Method"] {
            let sent = floats(5000);
            let message = TensorMessage::from(sent.clone());
            let envelope = codec::request(path, &Metadata::default(), &message).unwrap();
            let received: TensorMessage = codec::decode(envelope.message()).unwrap();
            let received = Tensor::try_from(received).unwrap();
            assert_eq!(received.as_slice::<f32>(), sent.as_slice());
        }
    }

    #[test]
    fn what_is_no_tensor_is_refused_by_name() {
        assert!(refused(TensorMessage::default()).contains("without a type"));
        let known = TensorMessage::from(floats(6));
        let dtype = 99;
        assert!(
            refused(TensorMessage {
                dtype,
                ..known.clone()
            })
            .contains("type 99")
        );
        let dims = vec![u64::MAX, 2];
        assert!(
            refused(TensorMessage {
                dims,
                ..known.clone()
            })
            .contains("63 bits")
        );
        let dims = vec![7];
        let text = refused(TensorMessage {
            dims,
            ..known.clone()
        });
        assert!(text.contains("needs 28 bytes of data, not 24"), "{text}");
        let dims = vec![1; RANK_MAX + 1];
        assert!(refused(TensorMessage { dims, ..known }).contains("more than 254 dimensions"));
    }

    #[test]
    fn dimensions_without_end_take_no_memory() {
        let mut bytes = Vec::new();
        uint64::encode_packed(DIMS, &[1; 100_000], &mut bytes);
        uint64::encode(DIMS, &1, &mut bytes);
        let received = TensorMessage::decode(&bytes[..]).unwrap();
        assert_eq!(received.dims.len(), RANK_MAX + 1);
        assert!(received.dims.capacity() <= 2 * RANK_MAX + 2);
    }
}
