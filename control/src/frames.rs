//! Messages of gRPC as HTTP carries them: what is short together, what is long from where it lies.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::Stream;
use grpcxx_rpc::{Account, Code, Status};
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::{Body, Frame};

use crate::limits::MESSAGE_BYTES_MAX;
use crate::lock::lock;
use crate::status::to_grpc;
use crate::unsent::{Owed, Unsent};

/// Messages, each in the pieces in which it lies, and last how the call ended if more is to be said
/// than OK.
pub(crate) type Messages = Pin<Box<dyn Stream<Item = Result<Vec<Bytes>, tonic::Status>> + Send>>;

/// Messages that take the place of those that tonic would encode, once there is an answer. Its
/// generated types would copy each.
#[derive(Clone, Default)]
pub(crate) struct Answered(Arc<Mutex<Option<Messages>>>);

impl Answered {
    pub(crate) fn set(&self, messages: Messages) {
        *lock(&self.0) = Some(messages);
    }

    pub(crate) fn take(&self) -> Option<Messages> {
        lock(&self.0).take()
    }
}

/// The body of an answer with such messages. Each counts as a whole for its caller until the last
/// of it has left.
pub(crate) struct MessageBody {
    messages: Option<Messages>,
    debts: Option<(Arc<Unsent>, Account)>,
    parts: VecDeque<Bytes>,
    /// What follows the parts.
    short: BytesMut,
    trailers: Option<HeaderMap>,
}

impl MessageBody {
    pub(crate) fn new(messages: Messages, debts: Option<(Arc<Unsent>, Account)>) -> Self {
        Self {
            messages: Some(messages),
            debts,
            parts: VecDeque::new(),
            short: BytesMut::new(),
            trailers: None,
        }
    }

    /// Takes a message.
    fn add(&mut self, pieces: Vec<Bytes>) -> Result<(), Status> {
        let message_bytes = pieces.iter().map(Bytes::len).sum();
        let prefix = prefix(message_bytes)?;
        let owed = match &self.debts {
            Some((unsent, account)) => unsent.owe_bytes(*account, message_bytes)?,
            None => None,
        };
        if owed.is_some() {
            self.end_short(None);
        }
        self.short.put_slice(&prefix);
        for piece in pieces {
            if piece.len() < PART_BYTES_MIN {
                self.short.put_slice(&piece);
            } else {
                self.end_short(owed.as_ref());
                self.parts.push_back(part(piece, owed.as_ref()));
            }
        }
        if owed.is_some() {
            self.end_short(owed.as_ref());
        }
        Ok(())
    }

    /// Lets nothing more come to the short pieces that are there.
    fn end_short(&mut self, owed: Option<&Arc<Owed>>) {
        if !self.short.is_empty() {
            let short = self.short.split().freeze();
            self.parts.push_back(part(short, owed));
        }
    }

    fn end(&mut self, status: &tonic::Status) {
        self.messages = None;
        self.trailers = Some(trailers(status));
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

fn part(data: Bytes, owed: Option<&Arc<Owed>>) -> Bytes {
    match owed {
        Some(owed) => owed.part(data),
        None => data,
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

/// What says how a call ended.
pub(crate) fn trailers(status: &tonic::Status) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    if status.add_header(&mut trailers).is_err() {
        trailers.clear();
    }
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
        let mut body = MessageBody::new(Box::pin(stream::iter(messages)), None);
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
        let mut body = MessageBody::new(Box::pin(messages), None);
        let mut context = Context::from_waker(Waker::noop());
        let frame = Pin::new(&mut body).poll_frame(&mut context);
        assert!(matches!(frame, Poll::Ready(Some(Ok(frame))) if frame.is_data()));
        assert!(Pin::new(&mut body).poll_frame(&mut context).is_pending());
    }

    /// A message alone is sent however long it is, and never cut in its middle.
    #[test]
    fn messages_count_as_a_whole_until_the_last_of_them_has_left() {
        let unsent = Unsent::new(1 << 20);
        let piece = Bytes::from(vec![7; 1 << 20]);
        let parts_of_60_kib = vec![Bytes::from(vec![7; 60 << 10]); 40];
        for message in [vec![piece.clone(), piece.clone()], parts_of_60_kib] {
            let debts = Some((Arc::clone(&unsent), Account::OWN));
            let messages = [message.clone(), message.clone()].map(Ok);
            let mut body = MessageBody::new(Box::pin(stream::iter(messages)), debts);
            let mut context = Context::from_waker(Waker::noop());
            let mut sent = Vec::new();
            for _ in 0..message.len() + 1 {
                let frame = Pin::new(&mut body).poll_frame(&mut context);
                let Poll::Ready(Some(Ok(frame))) = frame else {
                    panic!("the message is cut");
                };
                sent.push(frame.into_data().unwrap());
            }
            let bytes: usize = message.iter().map(Bytes::len).sum();
            assert_eq!(sent.iter().map(Bytes::len).sum::<usize>(), 5 + bytes);
            // As long as one part of it is held, the next one is refused, before its prefix.
            sent.drain(..message.len());
            let frame = Pin::new(&mut body).poll_frame(&mut context);
            assert!(matches!(frame, Poll::Ready(Some(Ok(frame)))
                if frame.trailers_ref().is_some_and(|trailers| trailers[GRPC_STATUS] == "8")));
            drop((sent, body));
            assert!(unsent.owe_bytes(Account::OWN, 2 << 20).unwrap().is_some());
        }
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
