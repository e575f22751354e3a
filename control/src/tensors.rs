use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use grpcxx_rpc::proto::{TensorShapeProto, tensor_shape_proto::Dim};
use grpcxx_rpc::{Code, DTypeClass, Shape, Status, Tensor};
use http_body::{Body, Frame};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint};

use crate::TakenTensors;
use crate::frames::{ok, prefix};

/// An answered message of tensors as it goes out: heads in memory of their own, data from where it
/// lies.
///
/// Writing the message through the generated types would copy each tensor once.
#[derive(Clone, Debug)]
pub(crate) struct TensorFrames {
    parts: VecDeque<Bytes>,
    /// Bytes of all tensors.
    pub(crate) tensor_bytes: u64,
    taken: Option<Arc<TakenTensors>>,
}

impl TensorFrames {
    /// A `RecvTensorResponse`.
    pub(crate) fn single(tensor: &Tensor, send_start_micros: i64) -> Result<Self, Status> {
        let mut writer = Writer::default();
        if tensor.is_dead {
            writer.varint_field(FIELD_IS_DEAD, 1);
        }
        writer.varint_field(FIELD_SEND_START_MICROS, send_start_micros as u64);
        writer.tensor(tensor)?;
        writer.finish()
    }

    /// A `FuseRecvTensorResponse`.
    pub(crate) fn fused(tensors: &[Tensor], send_start_micros: i64) -> Result<Self, Status> {
        let mut writer = Writer::default();
        encode_key(FIELD_IS_DEAD, WireType::LengthDelimited, &mut writer.head);
        encode_varint(tensors.len() as u64, &mut writer.head);
        for tensor in tensors {
            writer.head.put_u8(tensor.is_dead.into());
        }
        writer.varint_field(FIELD_SEND_START_MICROS, send_start_micros as u64);
        for tensor in tensors {
            writer.tensor(tensor)?;
        }
        writer.finish()
    }

    /// Holds the tensors for their step until the first part leaves.
    pub(crate) fn holding(self, taken: TakenTensors) -> Self {
        Self {
            taken: Some(Arc::new(taken)),
            ..self
        }
    }

    /// The HTTP body that carries the message and the status OK.
    pub(crate) fn into_body(self) -> TensorBody {
        TensorBody {
            parts: self.parts,
            taken: self.taken,
            ended: false,
        }
    }
}

/// The body of a successful answer.
#[derive(Debug)]
pub(crate) struct TensorBody {
    parts: VecDeque<Bytes>,
    taken: Option<Arc<TakenTensors>>,
    ended: bool,
}

impl Body for TensorBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(taken) = self.taken.take() {
            taken.leave();
        }
        if let Some(part) = self.parts.pop_front() {
            return Poll::Ready(Some(Ok(Frame::data(part))));
        }
        if self.ended {
            return Poll::Ready(None);
        }
        self.ended = true;
        Poll::Ready(Some(Ok(Frame::trailers(ok()))))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }
}

#[derive(Default)]
struct Writer {
    head: BytesMut,
    parts: VecDeque<Bytes>,
    parts_bytes: usize,
    tensor_bytes: u64,
}

impl Writer {
    fn varint_field(&mut self, number: u32, value: u64) {
        encode_key(number, WireType::Varint, &mut self.head);
        encode_varint(value, &mut self.head);
    }

    fn tensor(&mut self, tensor: &Tensor) -> Result<(), Status> {
        let (head, data) = tensor_message(tensor)?;
        encode_key(FIELD_TENSOR, WireType::LengthDelimited, &mut self.head);
        encode_varint((head.len() + data.len()) as u64, &mut self.head);
        self.head.extend_from_slice(&head);
        self.tensor_bytes += data.len() as u64;
        if !data.is_empty() {
            self.push_head();
            self.push(data);
        }
        Ok(())
    }

    fn push_head(&mut self) {
        let head = self.head.split().freeze();
        if !head.is_empty() {
            self.push(head);
        }
    }

    fn push(&mut self, part: Bytes) {
        self.parts_bytes += part.len();
        self.parts.push_back(part);
    }

    fn finish(mut self) -> Result<TensorFrames, Status> {
        self.push_head();
        let prefix = prefix(self.parts_bytes)?;
        self.parts.push_front(Bytes::copy_from_slice(&prefix));
        Ok(TensorFrames {
            parts: self.parts,
            tensor_bytes: self.tensor_bytes,
            taken: None,
        })
    }
}

/// A `TensorProto` in two parts: what comes before the data, and the data.
fn tensor_message(tensor: &Tensor) -> Result<(Vec<u8>, Bytes), Status> {
    if !tensor.dtype.is_tensorflow() {
        let text = format!(
            "a tensor of {} cannot be sent over gRPC: TensorFlow has no such type; convert the \
             tensor, or send its bytes as uint8",
            tensor.dtype
        );
        return Err(Status::new(Code::Unimplemented, text));
    }
    let head = |shape: &Shape| {
        let mut head = Vec::new();
        encode_key(FIELD_DTYPE, WireType::Varint, &mut head);
        encode_varint(u64::from(tensor.dtype.number()), &mut head);
        let shape = shape_message(shape)?;
        encode_key(FIELD_SHAPE, WireType::LengthDelimited, &mut head);
        encode_varint(shape.encoded_len() as u64, &mut head);
        shape.encode_raw(&mut head);
        Ok::<_, Status>(head)
    };
    if tensor.is_dead {
        // Its data means nothing, and an empty tensor is valid for every type.
        let empty = Shape::new(&[0]).expect("an empty dimension overflows nothing");
        return Ok((head(&empty)?, Bytes::new()));
    }
    let data = Bytes::from(tensor.data.clone());
    match tensor.dtype.class() {
        // The data is the whole message already.
        DTypeClass::Proto => Ok((Vec::new(), data)),
        DTypeClass::Memory { .. } | DTypeClass::Packed { .. } => {
            let mut head = head(&tensor.shape)?;
            if !data.is_empty() {
                encode_key(FIELD_CONTENT, WireType::LengthDelimited, &mut head);
                encode_varint(data.len() as u64, &mut head);
            }
            Ok((head, data))
        }
    }
}

fn shape_message(shape: &Shape) -> Result<TensorShapeProto, Status> {
    let dim = shape
        .dims()
        .iter()
        .map(|&size| {
            Ok(Dim {
                size: i64::try_from(size).map_err(|_| {
                    Status::new(
                        Code::Internal,
                        format!("dimension {size} of shape {shape} does not fit into 63 bits"),
                    )
                })?,
                name: String::new(),
            })
        })
        .collect::<Result<_, Status>>()?;
    Ok(TensorShapeProto {
        dim,
        unknown_rank: false,
    })
}

// Fields of RecvTensorResponse and FuseRecvTensorResponse.
const FIELD_TENSOR: u32 = 1;
const FIELD_IS_DEAD: u32 = 2;
const FIELD_SEND_START_MICROS: u32 = 3;

// Fields of TensorProto.
const FIELD_DTYPE: u32 = 1;
const FIELD_SHAPE: u32 = 2;
const FIELD_CONTENT: u32 = 4;

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::task::Waker;

    use grpcxx_rpc::DType;
    use grpcxx_rpc::proto::{FuseRecvTensorResponse, RecvTensorResponse, TensorProto};

    use super::*;
    use crate::frames::{MESSAGE_PREFIX_BYTES, NOT_COMPRESSED};

    fn message(frames: TensorFrames) -> Bytes {
        let mut all = BytesMut::new();
        for part in &frames.parts {
            all.extend_from_slice(part);
        }
        let message = all.split_off(MESSAGE_PREFIX_BYTES).freeze();
        assert_eq!(all[0], NOT_COMPRESSED);
        assert_eq!(all[1..], (message.len() as u32).to_be_bytes());
        message
    }

    fn tensor(dtype: DType) -> Tensor {
        match dtype.element_bytes() {
            Some(bytes) => Tensor::new(
                dtype,
                Shape::new(&[2, 3]).unwrap(),
                (0..6 * bytes as u8).collect::<Vec<_>>(),
            ),
            None => Tensor::new(
                dtype,
                Shape::new(&[1]).unwrap(),
                TensorProto {
                    dtype: dtype.number().into(),
                    tensor_shape: Some(shape_message(&Shape::new(&[1]).unwrap()).unwrap()),
                    string_val: vec![Bytes::from_static(b"text")],
                    ..Default::default()
                }
                .encode_to_vec(),
            ),
        }
        .unwrap()
    }

    #[test]
    fn every_type_is_readable_through_the_generated_messages() {
        for &dtype in DType::ALL.iter().filter(|dtype| dtype.is_tensorflow()) {
            let sent = tensor(dtype);
            let frames = TensorFrames::single(&sent, -7).unwrap();
            assert_eq!(frames.tensor_bytes, sent.data.len() as u64);
            let response = RecvTensorResponse::decode(message(frames)).unwrap();
            assert!(!response.is_dead && response.send_start_micros == -7);
            let received = response.tensor.unwrap();
            assert_eq!(received.dtype, i32::from(dtype.number()));
            match dtype.class() {
                DTypeClass::Memory { .. } | DTypeClass::Packed { .. } => {
                    let dims: Vec<_> = received.tensor_shape.unwrap().dim;
                    assert_eq!(dims.iter().map(|d| d.size).collect::<Vec<_>>(), [2, 3]);
                    assert_eq!(received.tensor_content[..], sent.data[..]);
                }
                DTypeClass::Proto => assert_eq!(received.string_val, ["text"]),
            }
        }
    }

    #[test]
    fn types_that_tensorflow_lacks_are_refused_by_name() {
        for &dtype in DType::ALL.iter().filter(|dtype| !dtype.is_tensorflow()) {
            let shape = Shape::new(&[1]).unwrap();
            let bytes = dtype.data_bytes(1).unwrap() as usize;
            let sent = Tensor::new(dtype, shape, vec![0; bytes]).unwrap();
            let refused = TensorFrames::single(&sent, 0).unwrap_err();
            assert_eq!(refused.code, Code::Unimplemented);
            assert!(refused.message.contains(dtype.name()), "{refused}");
        }
    }

    #[test]
    fn empty_scalar_and_dead_tensors_are_readable() {
        let scalar = Tensor::new(DType::Int32, Shape::SCALAR, vec![1, 0, 0, 0]).unwrap();
        let empty = Tensor::new(DType::Int32, Shape::new(&[0, 4]).unwrap(), vec![]).unwrap();
        let sent = [scalar, empty, Tensor::dead()];
        let frames = TensorFrames::fused(&sent, 9).unwrap();
        let response = FuseRecvTensorResponse::decode(message(frames)).unwrap();
        assert_eq!(response.is_dead, [false, false, true]);
        assert_eq!(response.send_start_micros, 9);
        assert_eq!(response.tensor.len(), 3);
        assert_eq!(response.tensor[0].tensor_content[..], [1, 0, 0, 0]);
        assert!(response.tensor[1].tensor_content.is_empty());

        let frames = TensorFrames::single(&Tensor::dead(), 0).unwrap();
        assert!(RecvTensorResponse::decode(message(frames)).unwrap().is_dead);
    }

    #[test]
    fn data_is_sent_from_where_it_lies() {
        let sent = tensor(DType::Float32);
        let frames = TensorFrames::single(&sent, 0).unwrap();
        assert!(
            frames
                .parts
                .iter()
                .any(|part| part.as_ptr() == sent.data.as_ptr())
        );
    }

    #[test]
    fn tensors_go_back_unless_they_have_begun_to_leave() {
        for parts in 0..3 {
            let (tell, told) = mpsc::channel();
            let sent = tensor(DType::Float32);
            let taken = TakenTensors::new(vec![sent.clone()], move |back| {
                tell.send(back).unwrap();
            });
            let frames = TensorFrames::single(&sent, 0).unwrap().holding(taken);
            let mut body = frames.clone().into_body();
            drop(frames);
            for _ in 0..parts {
                let part = Pin::new(&mut body).poll_frame(&mut Context::from_waker(Waker::noop()));
                assert!(matches!(part, Poll::Ready(Some(Ok(_)))));
            }
            drop(body);
            let back = told.try_iter().next();
            assert_eq!(back, (parts == 0).then(|| vec![sent]), "{parts} parts");
        }
    }

    #[test]
    fn answers_beyond_one_message_are_refused() {
        let large = Bytes::from(vec![0; 1 << 20]);
        let tensors: Vec<_> = (0..2048)
            .map(|_| {
                Tensor::new(DType::UInt8, Shape::new(&[1 << 20]).unwrap(), large.clone()).unwrap()
            })
            .collect();
        let refused = TensorFrames::fused(&tensors, 0).unwrap_err();
        assert_eq!(refused.code, Code::ResourceExhausted);
        assert!(TensorFrames::fused(&tensors[..2000], 0).is_ok());
    }
}
