use grpcxx_rpc::proto::TensorProto;
use grpcxx_rpc::{Code, DType, DTypeClass, Shape, Status, Tensor};
use prost::Message;

use crate::limits::{FILLED_BYTES_MAX, MESSAGE_BYTES_MAX};

/// The tensor that a peer sent as a message, whichever of its forms the peer has chosen.
pub(crate) fn decode(message: TensorProto, is_dead: bool) -> Result<Tensor, Status> {
    if is_dead {
        return Ok(Tensor::dead());
    }
    let dtype = DType::from_number(message.dtype)
        .filter(|dtype| dtype.is_tensorflow())
        .ok_or_else(|| bad(format!("element type {} is unknown", message.dtype)))?;
    let shape = shape(&message)?;
    match dtype.class() {
        DTypeClass::Proto => Tensor::new(dtype, shape, message.encode_to_vec()),
        DTypeClass::Memory { element_bytes } if message.tensor_content.is_empty() => {
            let data = elements(&message, dtype, &shape, element_bytes)?;
            Tensor::new(dtype, shape, data)
        }
        DTypeClass::Memory { .. } | DTypeClass::Packed { .. } => {
            Tensor::new(dtype, shape, message.tensor_content)
        }
    }
    .map_err(|status| bad(status.message))
}

fn shape(message: &TensorProto) -> Result<Shape, Status> {
    let Some(shape) = &message.tensor_shape else {
        return Ok(Shape::SCALAR);
    };
    if shape.unknown_rank {
        return Err(bad("its rank is unknown"));
    }
    let dims = shape
        .dim
        .iter()
        .map(|dim| u64::try_from(dim.size).map_err(|_| bad(format!("a dimension is {}", dim.size))))
        .collect::<Result<Vec<_>, _>>()?;
    Shape::new(&dims).map_err(|error| bad(error.to_string()))
}

/// The memory image of values that were sent one by one. The last one stands for all that are
/// missing, and zero if there is none.
fn elements(
    message: &TensorProto,
    dtype: DType,
    shape: &Shape,
    element_bytes: usize,
) -> Result<Vec<u8>, Status> {
    let data_bytes = usize::try_from(shape.num_elements())
        .ok()
        .and_then(|count| count.checked_mul(element_bytes))
        .filter(|&bytes| bytes <= MESSAGE_BYTES_MAX)
        .ok_or_else(|| {
            bad(format!(
                "{dtype} of shape {shape} has more than {MESSAGE_BYTES_MAX} bytes"
            ))
        })?;
    let mut data = values(message, dtype, data_bytes)?;
    if data.len() % element_bytes != 0 {
        return Err(bad(format!("its last {dtype} is not whole")));
    }
    if data_bytes > data.len().max(FILLED_BYTES_MAX) {
        return Err(bad(format!(
            "{} bytes of values stand for {data_bytes}, at most {FILLED_BYTES_MAX} may be filled",
            data.len()
        )));
    }
    let last = match data.len() {
        0 => vec![0; element_bytes],
        len => data[len - element_bytes..].to_vec(),
    };
    while data.len() < data_bytes {
        data.extend_from_slice(&last);
    }
    Ok(data)
}

fn values(message: &TensorProto, dtype: DType, data_bytes: usize) -> Result<Vec<u8>, Status> {
    use DType::*;
    let ints = &message.int_val;
    match dtype {
        Float32 => image(&message.float_val, data_bytes, |v| v.to_le_bytes()),
        Complex64 => image(&message.scomplex_val, data_bytes, |v| v.to_le_bytes()),
        Float64 => image(&message.double_val, data_bytes, |v| v.to_le_bytes()),
        Complex128 => image(&message.dcomplex_val, data_bytes, |v| v.to_le_bytes()),
        Int64 => image(&message.int64_val, data_bytes, |v| v.to_le_bytes()),
        UInt64 => image(&message.uint64_val, data_bytes, |v| v.to_le_bytes()),
        UInt32 => image(&message.uint32_val, data_bytes, |v| v.to_le_bytes()),
        Bool => image(&message.bool_val, data_bytes, |v| [u8::from(*v)]),
        Int32 | QInt32 => image(ints, data_bytes, |v| v.to_le_bytes()),
        // Narrow types travel in the low bits of an int32.
        Int16 | UInt16 | QInt16 | QUInt16 => image(ints, data_bytes, |v| low_half(*v)),
        Int8 | UInt8 | QInt8 | QUInt8 | Int4 | UInt4 | Int2 | UInt2 => {
            image(ints, data_bytes, |v| [v.to_le_bytes()[0]])
        }
        Float8E5M2 | Float8E4M3Fn | Float8E4M3FnUz | Float8E4M3B11FnUz | Float8E5M2FnUz
        | Float4E2M1Fn => image(&message.float8_val, data_bytes, |v| [*v]),
        Float16 | BFloat16 => image(&message.half_val, data_bytes, |v| low_half(*v)),
        _ => Err(bad(format!("{dtype} is not sent as values"))),
    }
}

fn low_half(value: i32) -> [u8; 2] {
    let [low, high, ..] = value.to_le_bytes();
    [low, high]
}

fn image<V, const N: usize>(
    values: &[V],
    data_bytes: usize,
    bytes: impl Fn(&V) -> [u8; N],
) -> Result<Vec<u8>, Status> {
    if values.len() * N > data_bytes {
        return Err(bad(format!(
            "{} values of {N} bytes are more than the shape's {data_bytes} bytes",
            values.len()
        )));
    }
    let mut data = Vec::with_capacity(values.len() * N);
    for value in values {
        data.extend_from_slice(&bytes(value));
    }
    Ok(data)
}

fn bad(what: impl std::fmt::Display) -> Status {
    Status::new(
        Code::Internal,
        format!("the peer sent a tensor that cannot be read: {what}"),
    )
}

#[cfg(test)]
mod tests {
    use grpcxx_rpc::proto::{TensorShapeProto, tensor_shape_proto::Dim};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn message(dtype: DType, dims: &[i64]) -> TensorProto {
        TensorProto {
            dtype: dtype.number().into(),
            tensor_shape: Some(TensorShapeProto {
                dim: dims
                    .iter()
                    .map(|&size| Dim {
                        size,
                        name: std::string::String::new(),
                    })
                    .collect(),
                unknown_rank: false,
            }),
            ..Default::default()
        }
    }

    #[test]
    fn values_one_by_one_become_an_image() {
        let mut floats = message(DType::Float32, &[2]);
        floats.float_val = vec![1.0, 2.0];
        let tensor = decode(floats, false).unwrap();
        assert_eq!(tensor.data[..], [0, 0, 128, 63, 0, 0, 0, 64]);

        let mut complex = message(DType::Complex64, &[1]);
        complex.scomplex_val = vec![1.0, 2.0];
        assert_eq!(decode(complex, false).unwrap().data, tensor.data);

        let mut halves = message(DType::BFloat16, &[2]);
        halves.half_val = vec![0x3f80, 0x4000];
        assert_eq!(
            decode(halves, false).unwrap().data[..],
            [0x80, 0x3f, 0, 0x40]
        );

        let mut eighths = message(DType::Float8E5M2, &[3]);
        eighths.float8_val = vec![1, 0x7b].into();
        assert_eq!(decode(eighths, false).unwrap().data[..], [1, 0x7b, 0x7b]);
        let mut nibbles = message(DType::Int4, &[2]);
        nibbles.int_val = vec![-8, 7];
        assert_eq!(decode(nibbles, false).unwrap().data[..], [0xf8, 7]);
        let ours = message(DType::Float8E3M4, &[1]);
        assert!(decode(ours, false).unwrap_err().message.contains("unknown"));

        let mut small = message(DType::Int8, &[2]);
        small.int_val = vec![-1, 2];
        assert_eq!(decode(small, false).unwrap().data[..], [255, 2]);
    }

    #[test]
    fn the_last_value_fills_the_rest() {
        let mut bools = message(DType::Bool, &[4]);
        bools.bool_val = vec![false, true];
        assert_eq!(decode(bools, false).unwrap().data[..], [0, 1, 1, 1]);
        let none = message(DType::Int16, &[2]);
        assert_eq!(decode(none, false).unwrap().data[..], [0; 4]);
        let scalar = TensorProto {
            dtype: DType::UInt64.number().into(),
            uint64_val: vec![7],
            ..Default::default()
        };
        assert_eq!(decode(scalar, false).unwrap().shape, Shape::SCALAR);
    }

    #[test]
    fn a_few_bytes_do_not_become_a_tensor_without_bound() {
        let elements = (FILLED_BYTES_MAX / 4) as i64;
        let mut filled = message(DType::Float32, &[elements]);
        filled.float_val = vec![1.5];
        assert_eq!(decode(filled, false).unwrap().data.len(), FILLED_BYTES_MAX);
        let beyond = message(DType::Float32, &[elements + 1]);
        let refused = decode(beyond, false).unwrap_err();
        assert!(refused.message.contains("may be filled"), "{refused}");
    }

    #[test]
    fn strings_stay_messages() {
        let mut strings = message(DType::String, &[1]);
        strings.string_val = vec!["x".into()];
        let wire = strings.encode_to_vec();
        assert_eq!(decode(strings, false).unwrap().data[..], wire);
    }

    #[test]
    fn unreadable_tensors_are_refused() {
        let mut too_many = message(DType::Int32, &[1]);
        too_many.int_val = vec![1, 2];
        let mut short = message(DType::Int32, &[2]);
        short.tensor_content = vec![0; 4].into();
        let mut half_a_complex = message(DType::Complex128, &[1]);
        half_a_complex.dcomplex_val = vec![1.0];
        let mut rank = message(DType::Int32, &[]);
        rank.tensor_shape = Some(TensorShapeProto {
            dim: vec![],
            unknown_rank: true,
        });
        for bad in [
            too_many,
            short,
            half_a_complex,
            rank,
            message(DType::Int32, &[-1]),
            // One value must not stand for more than a message could hold.
            message(DType::Int32, &[1 << 40]),
            message(DType::Int32, &[1 << 40, 1 << 40]),
            TensorProto {
                dtype: 99,
                ..Default::default()
            },
        ] {
            assert_eq!(decode(bad, false).unwrap_err().code, Code::Internal);
        }
        assert!(decode(TensorProto::default(), true).unwrap().is_dead);
    }

    proptest! {
        #[test]
        fn what_a_peer_sends_is_a_whole_tensor_or_refused(
            dtype in -1..30,
            dims in vec(-1..5_i64, 0..4),
            content in vec(any::<u8>(), 0..9),
            values in vec(any::<i32>(), 0..9),
        ) {
            let floats = values.iter().map(|&value| value as f32).collect();
            let doubles = values.iter().map(|&value| value.into()).collect();
            let sent = TensorProto {
                dtype,
                tensor_content: content.into(),
                int_val: values.clone(),
                half_val: values.clone(),
                bool_val: values.iter().map(|&value| value > 0).collect(),
                scomplex_val: floats,
                dcomplex_val: doubles,
                ..message(DType::Float32, &dims)
            };
            if let Ok(tensor) = decode(sent, false)
                && let Some(element_bytes) = tensor.dtype.element_bytes()
            {
                let whole = tensor.shape.num_elements() * element_bytes as u64;
                prop_assert_eq!(tensor.data.len() as u64, whole);
            }
        }
    }
}
