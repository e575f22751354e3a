//! Messages of gRPC as HTTP carries them: what is short together, what is long from where it lies.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::Stream;
use grpcxx_rpc::{Code, Status};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame};

use crate::limits::MESSAGE_BYTES_MAX;
use crate::status::to_grpc;

/// Messages, each in the pieces in which it lies, and last how the call ended if more is to be said
/// than OK.
pub(crate) type Messages = Pin<Box<dyn Stream<Item = Result<Vec<Bytes>, tonic::Status>> + Send>>;

/// The body of an answer with these messages. The generated types of tonic would copy each message.
pub(crate) struct MessageBody {
    messages: Option<Messages>,
    parts: VecDeque<Bytes>,
    /// What follows the parts.
    short: BytesMut,
    trailers: Option<HeaderMap>,
}

impl MessageBody {
    pub(crate) fn new(messages: Messages) -> Self {
        Self {
            messages: Some(messages),
            parts: VecDeque::new(),
            short: BytesMut::new(),
            trailers: None,
        }
    }

    /// Takes a message.
    fn add(&mut self, pieces: Vec<Bytes>) -> Result<(), Status> {
        let message_bytes = pieces.iter().map(Bytes::len).sum();
        self.short.put_slice(&prefix(message_bytes)?);
        for piece in pieces {
            if piece.len() < PART_BYTES_MIN {
                self.short.put_slice(&piece);
            } else {
                self.parts.push_back(self.short.split().freeze());
                self.parts.push_back(piece);
            }
        }
        Ok(())
    }

    fn end(&mut self, status: &tonic::Status) {
        self.messages = None;
        let mut trailers = HeaderMap::new();
        if status.add_header(&mut trailers).is_err() {
            trailers.clear();
        }
        self.trailers = Some(trailers);
    }

    /// What may leave.
    fn pop(&mut self) -> Option<Bytes> {
        self.parts.pop_front().or_else(|| {
            let rest = self.short.split().freeze();
            (!rest.is_empty()).then_some(rest)
        })
    }
}

impl Body for MessageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let mut waits = false;
        while self.parts.is_empty() && self.short.len() < TOGETHER_BYTES && !waits {
            let Some(messages) = &mut self.messages else {
                break;
            };
            match messages.as_mut().poll_next(context) {
                Poll::Ready(Some(Ok(pieces))) => {
                    if let Err(status) = self.add(pieces) {
                        self.end(&to_grpc(&status));
                    }
                }
                Poll::Ready(Some(Err(status))) => self.end(&status),
                Poll::Ready(None) => {
                    self.messages = None;
                    self.trailers = Some(ok());
                }
                Poll::Pending => waits = true,
            }
        }
        match self.pop().map(Frame::data) {
            None if waits => Poll::Pending,
            None => Poll::Ready(self.trailers.take().map(Frame::trailers).map(Ok)),
            data => Poll::Ready(data.map(Ok)),
        }
    }
}

/// What stands before a message of so many bytes.
///
/// # Errors
/// `RESOURCE_EXHAUSTED`: no message is that long.
pub(crate) fn prefix(message_bytes: usize) -> Result<[u8; MESSAGE_PREFIX_BYTES], Status> {
    let len = u32::try_from(message_bytes).ok();
    let Some(len) = len.filter(|_| message_bytes <= MESSAGE_BYTES_MAX) else {
        let text = format!(
            "the answer has {message_bytes} bytes, one gRPC message at most {MESSAGE_BYTES_MAX}: \
             fetch it over the star port"
        );
        return Err(Status::new(Code::ResourceExhausted, text));
    };
    let [a, b, c, d] = len.to_be_bytes();
    Ok([NOT_COMPRESSED, a, b, c, d])
}

/// What says that a call ended well.
pub(crate) fn ok() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, HeaderValue::from_static("0"));
    trailers
}

/// Where gRPC puts the code of the status.
pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// A compression flag and a length stand before each gRPC message.
pub(crate) const MESSAGE_PREFIX_BYTES: usize = 5;

pub(crate) const NOT_COMPRESSED: u8 = 0;

/// Shorter pieces are copied: a frame of its own costs more.
const PART_BYTES_MIN: usize = 4096;

/// Short messages leave together once they are this long.
const TOGETHER_BYTES: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use futures_util::{StreamExt, stream};

    use super::*;

    fn frames(messages: Vec<Result<Vec<Bytes>, tonic::Status>>) -> (Vec<Bytes>, HeaderMap) {
        let mut body = MessageBody::new(Box::pin(stream::iter(messages)));
        let mut parts = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        loop {
            match Pin::new(&mut body).poll_frame(&mut context) {
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => parts.push(data),
                    Err(trailers) => {
                        let end = Pin::new(&mut body).poll_frame(&mut context);
                        assert!(matches!(end, Poll::Ready(None)));
                        return (parts, trailers.into_trailers().unwrap());
                    }
                },
                _ => panic!("the body waits or ends without trailers"),
            }
        }
    }

    #[test]
    fn long_pieces_leave_from_where_they_lie_and_short_ones_together() {
        let long = Bytes::from(vec![7; PART_BYTES_MIN]);
        let short = Bytes::from_static(b"short");
        let messages = [vec![short.clone()], vec![], vec![short, long.clone()]];
        let (parts, trailers) = frames(messages.into_iter().map(Ok).collect());
        let head = b"\0\0\0\0\x05short\0\0\0\0\0\0\0\0\x10\x05short";
        assert_eq!(parts, [Bytes::from_static(head), long.clone()]);
        assert_eq!(parts[1].as_ptr(), long.as_ptr());
        assert_eq!(trailers, ok());
    }

    #[test]
    fn short_messages_do_not_gather_without_end() {
        let message = Bytes::from(vec![7; 1000]);
        let (parts, _) = frames((0..100).map(|_| Ok(vec![message.clone()])).collect());
        assert_eq!(parts.iter().map(Bytes::len).sum::<usize>(), 100 * 1005);
        assert!(parts.iter().all(|part| part.len() < TOGETHER_BYTES + 1005));
    }

    #[test]
    fn what_is_there_leaves_while_the_next_message_is_awaited() {
        let message = Ok(vec![Bytes::from_static(b"m")]);
        let messages = stream::iter([message]).chain(stream::pending());
        let mut body = MessageBody::new(Box::pin(messages));
        let mut context = Context::from_waker(Waker::noop());
        let frame = Pin::new(&mut body).poll_frame(&mut context);
        assert!(matches!(frame, Poll::Ready(Some(Ok(frame))) if frame.is_data()));
        assert!(Pin::new(&mut body).poll_frame(&mut context).is_pending());
    }

    #[test]
    fn a_failure_follows_the_messages_before_it() {
        let message = Ok(vec![Bytes::from_static(b"m")]);
        let failure = Err(tonic::Status::not_found("gone"));
        let (parts, trailers) = frames(vec![message, failure]);
        assert_eq!(parts, [&b"\0\0\0\0\x01m"[..]]);
        assert_eq!(trailers[GRPC_STATUS], "5");
    }

    #[test]
    fn messages_that_are_too_long_end_the_answer() {
        let piece = Bytes::from(vec![0; 1 << 20]);
        let (parts, trailers) = frames(vec![Ok(vec![piece; 2048]), Ok(vec![])]);
        assert!(parts.is_empty());
        assert_eq!(trailers[GRPC_STATUS], "8");
    }
}
