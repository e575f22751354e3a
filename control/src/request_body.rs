//! Requests on their way to what reads them.

use std::collections::VecDeque;
use std::error::Error as _;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use grpcxx_rpc::Code;
use http_body::{Body as _, Frame};
use thiserror::Error;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;

use crate::calls::Arrival;
use crate::frames::MESSAGE_PREFIX_BYTES;
use crate::status::{from_grpc, to_grpc};

/// A request of which a message goes on once all of it has come, or all messages at once where the
/// caller may send one only. What reads it takes memory for a whole message at once, which shall
/// not be more than has come.
pub(crate) struct RequestBody {
    inner: Body,
    arrival: Arc<Arrival>,
    framing: Framing,
    kept_back: Pieces,
    /// What of `kept_back` may go on.
    whole_bytes: usize,
    /// The rest of it.
    partial_bytes: usize,
    /// When a message of a stream that has begun must be there. A request with one message has its
    /// time as a whole.
    late: Option<Pin<Box<Sleep>>>,
    /// What has gone on and still counts, because it may lie where it went.
    unread_bytes: usize,
    /// That it has ended, and how unless that was said.
    ended: Option<Result<(), Status>>,
}

impl RequestBody {
    pub(crate) fn new(inner: Body, arrival: Arc<Arrival>) -> Self {
        Self {
            inner,
            arrival,
            framing: Framing::default(),
            kept_back: Pieces::default(),
            whole_bytes: 0,
            partial_bytes: 0,
            late: None,
            unread_bytes: 0,
            ended: None,
        }
    }

    /// Takes what may go on.
    fn take_whole(&mut self) -> Option<Bytes> {
        let data = self.kept_back.pop(self.whole_bytes)?;
        self.whole_bytes -= data.len();
        self.unread_bytes += data.len();
        Some(data)
    }

    /// Waits for more of the request. Returns whether that was all.
    fn poll_more(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, Status>> {
        let frame = match ready!(Pin::new(&mut self.inner).poll_frame(context)) {
            Some(Ok(frame)) => Some(frame),
            None if self.inner.is_end_stream() => None,
            Some(Err(_)) | None => return Poll::Ready(Err(CutOff.into())),
        };
        // What is no data is behind all data.
        let more = frame.and_then(|frame| frame.into_data().ok());
        let is_last = more.is_none() || self.inner.is_end_stream();
        let kept = more.map_or(Ok(()), |data| self.keep(data));
        kept.map_err(|refused| to_grpc(&refused))?;
        if is_last {
            self.end()?;
        }
        Poll::Ready(Ok(is_last))
    }

    /// Waits until a message of a stream has taken too long.
    fn poll_late(&mut self, context: &mut Context<'_>) -> Poll<Status> {
        if self.partial_bytes == 0 || !self.arrival.is_stream() {
            return Poll::Pending;
        }
        let time = self.arrival.request_time();
        let late = (self.late).get_or_insert_with(|| Box::pin(tokio::time::sleep(time)));
        ready!(late.as_mut().poll(context));
        let text = format!("a message had not come after {} ms", time.as_millis());
        Poll::Ready(Status::deadline_exceeded(text))
    }

    /// Keeps bytes that have come.
    fn keep(&mut self, data: Bytes) -> Result<(), grpcxx_rpc::Status> {
        self.arrival.came(data.len())?;
        self.partial_bytes += data.len();
        let announced = |bytes| self.arrival.announced(bytes);
        let rest_bytes = self.framing.pass(&data, announced)?;
        self.kept_back.push(data);
        if let Some(rest_bytes) = rest_bytes
            && self.arrival.is_stream()
        {
            self.late = None;
            self.whole_bytes += self.partial_bytes - rest_bytes;
            self.partial_bytes = rest_bytes;
        }
        Ok(())
    }

    /// Lets all go on: nothing follows.
    fn end(&mut self) -> Result<(), Status> {
        if !self.framing.is_between_messages() {
            return Err(Status::internal("the request ends within a message"));
        }
        self.whole_bytes += mem::take(&mut self.partial_bytes);
        self.arrival.complete().map_err(|refused| to_grpc(&refused))
    }
}

impl http_body::Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            if let Some(data) = self.take_whole() {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
            if let Some(ended) = &mut self.ended {
                let failed = mem::replace(ended, Ok(())).err();
                return Poll::Ready(failed.map(Err));
            }
            // Who asks for more has done with the messages of before.
            let read_bytes = mem::take(&mut self.unread_bytes);
            self.arrival.left(read_bytes);
            self.ended = match self.poll_more(context) {
                Poll::Ready(Ok(false)) => None,
                Poll::Ready(Ok(true)) => Some(Ok(())),
                Poll::Ready(Err(status)) => Some(Err(status)),
                Poll::Pending => Some(Err(ready!(self.poll_late(context)))),
            };
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.ended, Some(Ok(()))) && self.whole_bytes == 0
    }
}

/// Bytes in pieces, of which those that are short lie together: each costs the same beside what it
/// holds.
#[derive(Debug, Default)]
struct Pieces {
    whole: VecDeque<Bytes>,
    /// What is behind those, in short pieces.
    short: BytesMut,
}

impl Pieces {
    fn push(&mut self, data: Bytes) {
        if self.is_empty() || data.len() >= SHORT_BYTES {
            self.close();
            self.whole.push_back(data);
            return;
        }
        self.short.extend_from_slice(&data);
        if self.short.len() >= SHORT_BYTES {
            self.close();
        }
    }

    /// Makes one piece of the short ones.
    fn close(&mut self) {
        if !self.short.is_empty() {
            self.whole.push_back(self.short.split().freeze());
        }
    }

    /// Takes the first piece, or what of it is among the first `bytes_max` bytes.
    fn pop(&mut self, bytes_max: usize) -> Option<Bytes> {
        if bytes_max == 0 {
            return None;
        }
        if self.whole.is_empty() {
            self.close();
        }
        let first = self.whole.front_mut()?;
        match first.len() <= bytes_max {
            true => self.whole.pop_front(),
            false => Some(first.split_to(bytes_max)),
        }
    }

    fn is_empty(&self) -> bool {
        self.whole.is_empty() && self.short.is_empty()
    }
}

/// Pieces that are shorter lie together.
const SHORT_BYTES: usize = 1024;

/// The client has withdrawn its call, or is gone, before the end of its request.
#[derive(Debug, Error)]
#[error("the client has gone in mid-stream")]
struct CutOff;

impl From<CutOff> for Status {
    /// Its code is not CANCELLED, which tonic takes for the regular end of a request.
    fn from(cut_off: CutOff) -> Self {
        Self::from_error(Box::new(cut_off))
    }
}

/// Why a method gets no more of the messages of a request.
pub(crate) fn failure(status: &Status) -> grpcxx_rpc::Status {
    match status.source().and_then(|source| source.downcast_ref()) {
        Some(cut_off @ CutOff) => grpcxx_rpc::Status::new(Code::Cancelled, cut_off.to_string()),
        None => from_grpc(status),
    }
}

/// Where the messages of a request end.
#[derive(Debug, Default)]
struct Framing {
    prefix: [u8; MESSAGE_PREFIX_BYTES],
    /// What of the prefix of the next message has come.
    prefix_bytes: usize,
    /// What of the message behind its prefix is to come.
    missing_bytes: usize,
}

impl Framing {
    /// Passes over what has come. Returns how much of it is behind the last message that is whole,
    /// if one is. `announced` hears how long each message is going to be.
    fn pass<E>(
        &mut self,
        data: &[u8],
        announced: impl Fn(usize) -> Result<(), E>,
    ) -> Result<Option<usize>, E> {
        let mut rest = data;
        let mut behind = None;
        loop {
            if let missing @ 1.. = MESSAGE_PREFIX_BYTES - self.prefix_bytes {
                let (part, further) = rest.split_at(missing.min(rest.len()));
                self.prefix[self.prefix_bytes..][..part.len()].copy_from_slice(part);
                self.prefix_bytes += part.len();
                if self.prefix_bytes < MESSAGE_PREFIX_BYTES {
                    return Ok(behind);
                }
                rest = further;
                let [_, length @ ..] = self.prefix;
                self.missing_bytes = u32::from_be_bytes(length) as usize;
                announced(self.missing_bytes)?;
            }
            let part_bytes = self.missing_bytes.min(rest.len());
            self.missing_bytes -= part_bytes;
            rest = &rest[part_bytes..];
            if self.missing_bytes > 0 {
                return Ok(behind);
            }
            self.prefix_bytes = 0;
            behind = Some(rest.len());
        }
    }

    fn is_between_messages(&self) -> bool {
        self.prefix_bytes == 0
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use tonic::Streaming;

    use super::*;
    use crate::ControlLimits;
    use crate::calls::{Call, Calls};
    use crate::connections::Caller;
    use crate::methods::{self, Method};
    use crate::metrics::Metrics;
    use crate::registered::Untouched;

    /// Frames that have come, and what is behind them.
    struct Came {
        frames: VecDeque<Result<Frame<Bytes>, Status>>,
        end: End,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum End {
        /// Nothing yet.
        ToCome,
        Regular,
        /// The client has reset the stream.
        Reset(tonic::Code),
        /// It has reset the stream with NO_ERROR, which hyper passes over.
        Silent,
    }

    impl http_body::Body for Came {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            match (self.frames.pop_front(), self.end) {
                (None, End::ToCome) => Poll::Pending,
                (None, End::Reset(code)) => Poll::Ready(Some(Err(Status::new(code, "reset")))),
                (frame, _) => Poll::Ready(frame),
            }
        }

        fn is_end_stream(&self) -> bool {
            self.end == End::Regular && self.frames.is_empty()
        }
    }

    fn message(bytes: usize) -> Vec<u8> {
        let length = (bytes as u32).to_be_bytes();
        [&[0], &length[..], &vec![7; bytes]].concat()
    }

    /// What has come in pieces, and the end behind it.
    fn came<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, end: End) -> Came {
        let frames = pieces
            .into_iter()
            .map(|piece| Ok(Frame::data(Bytes::copy_from_slice(piece))));
        Came {
            frames: frames.collect(),
            end,
        }
    }

    /// The request of a call, as the method reads it.
    fn request(method: &'static Method, came: Came) -> (Arc<Calls>, Call, RequestBody) {
        let calls = Calls::new(Metrics::new(), &ControlLimits::default());
        let call = calls.begin(method, Caller::unknown()).unwrap();
        call.begin_stream().unwrap();
        let arrival = call.arrival().unwrap();
        (calls, call, RequestBody::new(Body::new(came), arrival))
    }

    /// What goes on now, up to the end, if it is there, or a failure.
    async fn taken(body: &mut RequestBody) -> (Vec<u8>, Option<Result<(), Status>>) {
        let mut all = Vec::new();
        loop {
            let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut *body).poll_frame(context)));
            match polled.await {
                Poll::Ready(Some(Ok(frame))) => all.extend(frame.into_data().unwrap()),
                Poll::Ready(Some(Err(status))) => return (all, Some(Err(status))),
                Poll::Ready(None) => return (all, Some(Ok(()))),
                Poll::Pending => return (all, None),
            }
        }
    }

    #[tokio::test]
    async fn messages_of_a_stream_go_on_one_by_one_and_a_single_one_at_the_end() {
        let sent = [message(300), message(0), message(70_000), message(9)].concat();
        for piece_bytes in [1, 4, 5, 6, 304, 4096, sent.len()] {
            for cut in [0, 4, 305, 310, 315, 70_314, 70_315, 70_328] {
                let came = came(sent[..cut].chunks(piece_bytes), End::ToCome);
                let (_, _call, mut body) = request(&methods::REGISTERED_STREAM, came);
                let whole = [0, 305, 310, 70_315, 70_329];
                let whole = *whole.iter().rfind(|end| **end <= cut).unwrap();
                let (gone_on, ended) = taken(&mut body).await;
                assert_eq!(gone_on.len(), whole, "{cut} in pieces of {piece_bytes}");
                assert!(gone_on == sent[..whole] && ended.is_none());
            }
            for method in [&methods::REGISTERED_STREAM, &methods::REGISTERED] {
                let came = came(sent.chunks(piece_bytes), End::Regular);
                let (_, _call, mut body) = request(method, came);
                let (gone_on, ended) = taken(&mut body).await;
                assert!(gone_on == sent && ended.unwrap().is_ok() && body.is_end_stream());
            }
        }
        let came = came([&sent[..]], End::ToCome);
        let (_, _call, mut body) = request(&methods::REGISTERED, came);
        let (gone_on, ended) = taken(&mut body).await;
        assert!(gone_on.is_empty() && ended.is_none());
    }

    #[tokio::test]
    async fn what_a_stream_has_read_does_not_count() {
        let mut came = came([&message(1 << 20)[..]; 3], End::ToCome);
        let half = Bytes::from(message(1 << 20)).slice(..1 << 19);
        came.frames.push_back(Ok(Frame::data(half)));
        let (calls, call, mut body) = request(&methods::REGISTERED_STREAM, came);
        let mut next = async || {
            let next = poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            next.await.unwrap().unwrap()
        };
        for _ in 0..3 {
            next().await;
            assert!(calls.request_bytes() <= 1 << 20);
        }
        taken(&mut body).await;
        assert!(calls.request_bytes() <= 1 << 19);
        drop((call, body));
        assert_eq!(calls.request_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_of_a_stream_that_has_begun_must_come_in_time() {
        let sent = [message(3), message(1 << 20)[..100].to_vec()].concat();
        let (calls, _call, mut body) =
            request(&methods::REGISTERED_STREAM, came([&sent[..]], End::ToCome));
        let (gone_on, ended) = taken(&mut body).await;
        assert!(gone_on.len() == 8 && ended.is_none());
        tokio::time::sleep(ControlLimits::default().request_time).await;
        let (_, ended) = taken(&mut body).await;
        assert_eq!(
            ended.unwrap().unwrap_err().code(),
            tonic::Code::DeadlineExceeded
        );
        drop(body);
        assert_eq!(calls.request_bytes(), 0);
        // What waits for the begin of a message waits for as long as it likes.
        let whole = message(3);
        let (_, _call, mut body) =
            request(&methods::REGISTERED_STREAM, came([&whole[..]], End::ToCome));
        assert!(taken(&mut body).await.1.is_none());
        tokio::time::sleep(10 * ControlLimits::default().request_time).await;
        assert!(taken(&mut body).await.1.is_none());
    }

    #[tokio::test]
    async fn short_pieces_are_kept_together() {
        let sent = message(100_000);
        let unfinished = &sent[..100_000];
        for method in [&methods::REGISTERED_STREAM, &methods::REGISTERED] {
            let came = came(unfinished.chunks(1), End::ToCome);
            let (_, _call, mut body) = request(method, came);
            assert!(taken(&mut body).await.1.is_none());
            assert!(body.kept_back.whole.len() < 200);
        }
    }

    #[tokio::test]
    async fn a_request_that_ends_within_a_message_does_not_go_on() {
        let sent = [message(3), message(60 << 20)[..9].to_vec()].concat();
        for method in [&methods::REGISTERED_STREAM, &methods::REGISTERED] {
            let (_, _call, mut body) = request(method, came([&sent[..]], End::Regular));
            let (gone_on, ended) = taken(&mut body).await;
            assert_eq!(gone_on.len(), if method.is_stream { 8 } else { 0 });
            assert_eq!(ended.unwrap().unwrap_err().code(), tonic::Code::Internal);
            let (gone_on, ended) = taken(&mut body).await;
            assert!(gone_on.is_empty() && ended.unwrap().is_ok());
        }
    }

    #[tokio::test]
    async fn a_request_that_is_cut_off_does_not_end() {
        let resets = [tonic::Code::Cancelled, tonic::Code::Unknown].map(End::Reset);
        for end in resets.into_iter().chain([End::Silent]) {
            let sent = message(3);
            let (_, _call, body) = request(&methods::REGISTERED_STREAM, came([&sent[..]], end));
            let mut messages = Streaming::new_request(Untouched, body, None, None);
            assert_eq!(messages.message().await.unwrap().unwrap().len(), 3);
            let status = failure(&messages.message().await.unwrap_err());
            assert_eq!(status.code, Code::Cancelled);
            assert_eq!(status.message, "the client has gone in mid-stream");
        }
    }

    #[tokio::test]
    async fn a_request_without_bytes_has_come_when_it_is_read() {
        let (_, call, body) = request(&methods::REGISTERED, came([], End::Regular));
        // It is not taken for one that was read.
        let mut body = Body::new(body);
        let end = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        assert!(end.is_none() && call.has_arrived());
    }
}
