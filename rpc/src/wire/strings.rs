//! String tensors, whose data is a serialized TensorProto.

use grpcxx_memory::Buffer;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType};
use prost::encoding::{decode_key, decode_varint, encode_varint, encoded_len_varint, skip_field};

use crate::{Code, DType, Shape, Status, Tensor};

impl Tensor {
    /// A live string tensor with a copy of these elements, row-major, as a serialized TensorProto.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if there are not as many elements as the shape asks for,
    /// `RESOURCE_EXHAUSTED` if they have 2 GiB or more together, the most that a protobuf message
    /// may have.
    pub fn from_strings<'a>(
        shape: Shape,
        elements: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Self, Status> {
        let (mut texts, mut content_bytes) = (Vec::new(), 0);
        for element in elements {
            texts.push(element);
            content_bytes += encoded_len_varint(element.len() as u64) + element.len();
            if content_bytes > CONTENT_BYTES_MAX {
                let count = texts.len();
                return Err(Status::new(
                    Code::ResourceExhausted,
                    format!(
                        "the first {count} strings have more than {CONTENT_BYTES_MAX} bytes, the \
                         most a string tensor can carry; split the tensor"
                    ),
                ));
            }
        }
        if texts.len() as u64 != shape.num_elements() {
            return Err(Status::new(
                Code::InvalidArgument,
                format!(
                    "a string tensor of shape {shape} needs {} elements, not {}",
                    shape.num_elements(),
                    texts.len()
                ),
            ));
        }
        let mut data = encode(&shape, content_bytes);
        for text in &texts {
            encode_varint(text.len() as u64, &mut data);
        }
        for text in texts {
            data.extend_from_slice(text);
        }
        Ok(Self {
            dtype: DType::String,
            shape,
            is_dead: false,
            data: Buffer::from(data),
        })
    }

    /// The elements of a string tensor, row-major, sharing the tensor's data.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if this is no live string tensor, or its data is no TensorProto of as
    /// many strings as its shape asks for; `RESOURCE_EXHAUSTED` if it stands for too many equal
    /// strings.
    pub fn strings(&self) -> Result<Vec<Buffer>, Status> {
        if self.dtype != DType::String || self.is_dead {
            let found = if self.is_dead {
                "dead"
            } else {
                self.dtype.name()
            };
            return Err(bad(format_args!("the tensor is {found}")));
        }
        let proto = decode(&self.data)?;
        if proto.dtype != u64::from(DType::String.number()) {
            return Err(bad(format_args!(
                "the TensorProto says dtype {}, not {}",
                proto.dtype,
                DType::String.number()
            )));
        }
        if let Some(dims) = &proto.dims
            && dims != self.shape.dims()
        {
            return Err(bad(format_args!(
                "the TensorProto says shape {dims:?}, the record {}",
                self.shape
            )));
        }
        let count = self.shape.num_elements();
        match proto.content {
            Some(content) if !content.is_empty() => split_content(&content, count),
            _ => fill(proto.string_vals, count),
        }
    }
}

struct StringsProto {
    dtype: u64,
    dims: Option<Vec<u64>>,
    content: Option<Buffer>,
    string_vals: Vec<Buffer>,
}

/// A TensorProto up to the bytes of its content, and room for these.
fn encode(shape: &Shape, content_bytes: usize) -> Vec<u8> {
    let mut dims = Vec::new();
    for &dim in shape.dims() {
        let mut body = Vec::new();
        if dim != 0 {
            body.push(key(DIM_SIZE, WireType::Varint));
            encode_varint(dim, &mut body);
        }
        dims.push(key(SHAPE_DIM, WireType::LengthDelimited));
        encode_varint(body.len() as u64, &mut dims);
        dims.extend_from_slice(&body);
    }
    let mut proto = Vec::with_capacity(
        4 + encoded_len_varint(dims.len() as u64)
            + dims.len()
            + encoded_len_varint(content_bytes as u64)
            + content_bytes,
    );
    proto.extend_from_slice(&[key(DTYPE, WireType::Varint), DType::String.number()]);
    proto.push(key(TENSOR_SHAPE, WireType::LengthDelimited));
    encode_varint(dims.len() as u64, &mut proto);
    proto.extend_from_slice(&dims);
    if content_bytes > 0 {
        proto.push(key(TENSOR_CONTENT, WireType::LengthDelimited));
        encode_varint(content_bytes as u64, &mut proto);
    }
    proto
}

const fn key(field: u32, wire_type: WireType) -> u8 {
    ((field << 3) | wire_type as u32) as u8
}

fn decode(data: &Buffer) -> Result<StringsProto, Status> {
    let mut proto = StringsProto {
        dtype: 0,
        dims: None,
        content: None,
        string_vals: Vec::new(),
    };
    let mut rest: &[u8] = data;
    while !rest.is_empty() {
        let (field, wire_type) = decode_key(&mut rest).map_err(unreadable)?;
        match (field, wire_type) {
            (DTYPE, WireType::Varint) => {
                proto.dtype = decode_varint(&mut rest).map_err(unreadable)?;
            }
            (TENSOR_SHAPE, WireType::LengthDelimited) => {
                let body = take_part(data, &mut rest)?;
                decode_shape(&body, proto.dims.get_or_insert_default())?;
            }
            (TENSOR_CONTENT, WireType::LengthDelimited) => {
                proto.content = Some(take_part(data, &mut rest)?);
            }
            (STRING_VAL, WireType::LengthDelimited) => {
                proto.string_vals.push(take_part(data, &mut rest)?);
            }
            _ => skip(wire_type, field, &mut rest)?,
        }
    }
    Ok(proto)
}

fn decode_shape(body: &Buffer, dims: &mut Vec<u64>) -> Result<(), Status> {
    let mut rest: &[u8] = body;
    while !rest.is_empty() {
        let (field, wire_type) = decode_key(&mut rest).map_err(unreadable)?;
        match (field, wire_type) {
            (SHAPE_DIM, WireType::LengthDelimited) => {
                let dim = take_part(body, &mut rest)?;
                dims.push(decode_dim(&dim)?);
            }
            _ => skip(wire_type, field, &mut rest)?,
        }
    }
    Ok(())
}

fn decode_dim(body: &Buffer) -> Result<u64, Status> {
    let (mut rest, mut size): (&[u8], u64) = (body, 0);
    while !rest.is_empty() {
        let (field, wire_type) = decode_key(&mut rest).map_err(unreadable)?;
        match (field, wire_type) {
            (DIM_SIZE, WireType::Varint) => size = decode_varint(&mut rest).map_err(unreadable)?,
            _ => skip(wire_type, field, &mut rest)?,
        }
    }
    Ok(size)
}

/// The length-delimited part at the start of `rest`, which is the end of `whole`.
fn take_part(whole: &Buffer, rest: &mut &[u8]) -> Result<Buffer, Status> {
    let len = decode_varint(rest).map_err(unreadable)?;
    if len > rest.len() as u64 {
        return Err(bad(format_args!(
            "a part of the TensorProto claims {len} bytes, {} are left",
            rest.len()
        )));
    }
    let (start, len) = (whole.len() - rest.len(), len as usize);
    rest.advance(len);
    Ok(whole.slice(start..start + len))
}

fn skip(wire_type: WireType, field: u32, rest: &mut &[u8]) -> Result<(), Status> {
    skip_field(wire_type, field, rest, DecodeContext::default()).map_err(unreadable)
}

/// The strings of a tensor_content: all lengths, then all bytes.
fn split_content(content: &Buffer, count: u64) -> Result<Vec<Buffer>, Status> {
    // Each length takes a byte at least, so the vector is no larger than the content calls for.
    if count > content.len() as u64 {
        return Err(bad(format_args!(
            "{count} strings do not fit into {} bytes",
            content.len()
        )));
    }
    let mut lengths: &[u8] = content;
    let mut total = 0u64;
    for _ in 0..count {
        total = total.saturating_add(decode_varint(&mut lengths).map_err(unreadable)?);
    }
    if total != lengths.len() as u64 {
        return Err(bad(format_args!(
            "the lengths of {count} strings add up to {total} bytes, but {} follow",
            lengths.len()
        )));
    }
    let mut start = content.len() - lengths.len();
    let mut lengths: &[u8] = content;
    let mut strings = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let len = decode_varint(&mut lengths).map_err(unreadable)? as usize;
        strings.push(content.slice(start..start + len));
        start += len;
    }
    Ok(strings)
}

/// The strings of a list of string_val: the last stands for all that are missing, an absent one is
/// empty.
fn fill(mut strings: Vec<Buffer>, count: u64) -> Result<Vec<Buffer>, Status> {
    if strings.len() as u64 > count {
        return Err(bad(format_args!(
            "{} strings for a shape of {count} elements",
            strings.len()
        )));
    }
    if count > (strings.len() as u64).max(FILLED_ELEMENTS_MAX) {
        return Err(Status::new(
            Code::ResourceExhausted,
            format!(
                "{} string(s) stand for {count}, at most {FILLED_ELEMENTS_MAX} are allowed; send \
                 each of them",
                strings.len()
            ),
        ));
    }
    let last = strings.last().cloned().unwrap_or_default();
    strings.resize(count as usize, last);
    Ok(strings)
}

fn bad(fault: std::fmt::Arguments<'_>) -> Status {
    Status::new(
        Code::InvalidArgument,
        format!("not a string tensor: {fault}"),
    )
}

fn unreadable(error: prost::DecodeError) -> Status {
    bad(format_args!("{error}"))
}

/// Most bytes of tensor_content; the rest of 2 GiB is left to the fields around it.
const CONTENT_BYTES_MAX: usize = (1 << 31) - 4096;
/// Most elements for which fewer strings may stand.
const FILLED_ELEMENTS_MAX: u64 = 1 << 20;

// Fields of TensorProto, TensorShapeProto and its Dim.
const DTYPE: u32 = 1;
const TENSOR_SHAPE: u32 = 2;
const TENSOR_CONTENT: u32 = 4;
const STRING_VAL: u32 = 8;
const SHAPE_DIM: u32 = 2;
const DIM_SIZE: u32 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tensor(dims: &[u64], data: &[u8]) -> Tensor {
        Tensor::new(
            DType::String,
            Shape::new(dims).unwrap(),
            Buffer::from(data.to_vec()),
        )
        .unwrap()
    }

    fn strings(tensor: &Tensor) -> Vec<Vec<u8>> {
        let strings = tensor.strings().unwrap();
        strings.iter().map(|s| s.to_vec()).collect()
    }

    #[test]
    fn two_strings_are_the_bytes_of_the_worked_frame() {
        let proto = b"\x08\x07\x12\x04\x12\x02\x08\x02\x22\x07\x02\x03abxyz";
        let shape = Shape::new(&[2]).unwrap();
        let tensor = Tensor::from_strings(shape, [&b"ab"[..], b"xyz"]).unwrap();
        assert_eq!(&tensor.data[..], proto);
        assert_eq!(strings(&tensor), [&b"ab"[..], b"xyz"]);
    }

    #[test]
    fn scalars_and_empty_tensors_are_protos_too() {
        let scalar = Tensor::from_strings(Shape::SCALAR, [&b""[..]]).unwrap();
        assert_eq!(&scalar.data[..], b"\x08\x07\x12\x00\x22\x01\x00");
        assert_eq!(strings(&scalar), [b""]);
        let empty = Tensor::from_strings(Shape::new(&[0, 300]).unwrap(), []).unwrap();
        assert_eq!(
            &empty.data[..],
            b"\x08\x07\x12\x07\x12\x00\x12\x03\x08\xac\x02"
        );
        assert!(empty.strings().unwrap().is_empty());
        assert!(Tensor::from_strings(Shape::SCALAR, []).is_err());
    }

    #[test]
    fn string_vals_are_read_and_the_last_one_fills() {
        let two = b"\x08\x07\x12\x04\x12\x02\x08\x02\x42\x02ab\x42\x03xyz";
        assert_eq!(strings(&tensor(&[2], two)), [&b"ab"[..], b"xyz"]);
        let one = b"\x08\x07\x12\x04\x12\x02\x08\x03\x42\x02ab";
        assert_eq!(strings(&tensor(&[3], one)), [b"ab", b"ab", b"ab"]);
        let none = b"\x08\x07\x12\x04\x12\x02\x08\x02";
        assert_eq!(strings(&tensor(&[2], none)), [b"", b""]);
        assert!(tensor(&[1], two).strings().is_err());
        let fill = tensor(&[1 << 40], b"\x08\x07").strings().unwrap_err();
        assert_eq!(fill.code, Code::ResourceExhausted);
    }

    #[test]
    fn fields_that_are_not_known_are_skipped() {
        let data =
            b"\x18\x01\x08\x07\x12\x09\x12\x05\x08\x01\x12\x01x\x18\x00\x22\x02\x01a\xa2\x06\x01z";
        assert_eq!(strings(&tensor(&[1], data)), [b"a"]);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let cases: [(&[u64], &[u8]); 8] = [
            (&[1], b"\x08\x01\x12\x04\x12\x02\x08\x01\x22\x02\x01a"),
            (&[2], b"\x08\x07\x12\x04\x12\x02\x08\x01\x22\x02\x01a"),
            (&[1], b"\x08\x07\x12\x04\x12\x02\x08\x01\x22\x02\x02a"),
            (&[1], b"\x08\x07\x12\x04\x12\x02\x08\x01\x22\x03\x01ab"),
            (&[1], b"\x08\x07\x12\x04\x12\x02\x08\x01\x22\x7f\x01a"),
            (
                &[2],
                b"\x08\x07\x22\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            ),
            (&[1], b"\x08\x07\x12"),
            (&[1 << 40], b"\x08\x07\x22\x02\x01a"),
        ];
        for (dims, data) in cases {
            let status = tensor(dims, data).strings().unwrap_err();
            assert_eq!(status.code, Code::InvalidArgument, "{data:?}");
        }
        assert!(Tensor::dead().strings().is_err());
        assert!(Tensor::scalar(1u8).strings().is_err());
    }

    proptest! {
        #[test]
        fn strings_survive(
            elements in proptest::collection::vec(
                proptest::collection::vec(any::<u8>(), 0..200),
                0..20,
            )
        ) {
            let shape = Shape::new(&[elements.len() as u64]).unwrap();
            let tensor = Tensor::from_strings(shape, elements.iter().map(Vec::as_slice)).unwrap();
            prop_assert_eq!(strings(&tensor), elements);
        }

        #[test]
        fn no_bytes_panic(
            dims in proptest::collection::vec(0u64..5, 0..3),
            mut data in proptest::collection::vec(any::<u8>(), 0..60),
            with_head in any::<bool>()
        ) {
            if with_head {
                data.splice(0..0, *b"\x08\x07");
            }
            let _ = tensor(&dims, &data).strings();
        }
    }
}
