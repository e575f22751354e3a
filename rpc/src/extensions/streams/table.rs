//! The streams of a connection: which have something to send, and whose the bytes of the peer are.

use std::collections::VecDeque;
use std::ops::Range;

use grpcxx_memory::Buffer;
use grpcxx_transport::{Frame, SlotId};
use hashbrown::HashMap;

use super::stream::{
    PART_BYTES_MIN, SHARED_MESSAGE_BYTES_MAX, Stream, StreamData, StreamError, StreamEvent,
    StreamNews,
};
use super::wire::{
    Credit, Form, PART_BYTES_MAX, RECORD_HEAD_BYTES, RECORDS_BYTES_MAX, Record, RecordReader,
};
use crate::connection::{PeerViolation, encode};
use crate::extensions::services::metadata::METADATA_BYTES_MAX;
use crate::{Metadata, Response, Status};

/// The streams of a connection that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    by_number: HashMap<u32, Stream>,
    /// The first number that was never used.
    next_number: u32,
    /// Those that may have something to send, in the order of their turns.
    ready: VecDeque<u32>,
    news: VecDeque<StreamNews>,
    /// The last frame, if the link has refused it: it comes before all others.
    refused: Option<Box<Frame>>,
    /// What the link has of messages, in bytes.
    at_link_bytes: u64,
    /// Other frames that left since one of streams did.
    passed: u32,
}

/// How many streams a connection has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamCount {
    /// Those that have not ended.
    pub open: usize,
    /// Those of them on which this end has messages that the peer has given no credit for.
    pub without_credit: usize,
}

/// The answer of a stream that waits for the messages before it.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(super) id: SlotId,
    pub(super) number: u32,
    pub(super) result: Result<Response, Status>,
}

/// Which end of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Client,
    Server,
}

impl Streams {
    /// Streams that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// How many there are, and how many of them wait for their readers.
    pub(crate) fn count(&self) -> StreamCount {
        let streams = self.by_number.values();
        StreamCount {
            open: self.by_number.len(),
            without_credit: streams.filter(|stream| stream.waits_for_credit()).count(),
        }
    }

    /// Opens a stream with the next number.
    pub(crate) fn open_next(&mut self, token: u64, slot: SlotId) -> u32 {
        let mut number = self.next_number;
        // After 2^32 streams an old one may still be open.
        while self.by_number.contains_key(&number) {
            number = number.wrapping_add(1);
        }
        self.next_number = number.wrapping_add(1);
        self.by_number.insert(number, Stream::new(token, slot));
        number
    }

    /// Notes a number that the peer uses for a stream.
    pub(crate) fn use_number(&mut self, number: u32) -> Result<(), StreamError> {
        let next = self.next_number;
        if number.wrapping_sub(next) > NUMBERS_AHEAD_MAX || self.by_number.contains_key(&number) {
            return Err(StreamError::Number {
                found: number,
                next,
            });
        }
        self.next_number = number.wrapping_add(1);
        Ok(())
    }

    /// Takes in a stream that the peer has opened.
    pub(crate) fn insert(&mut self, number: u32, token: u64, slot: SlotId) {
        self.by_number.insert(number, Stream::new(token, slot));
    }

    /// Forgets a stream that has ended.
    pub(crate) fn remove(&mut self, number: u32) -> Option<Stream> {
        self.by_number.remove(&number)
    }

    pub(crate) fn mute(&mut self, number: u32) {
        if let Some(stream) = self.by_number.get_mut(&number) {
            stream.mute();
        }
    }

    /// Whether all that was to be sent on a stream has left.
    pub(crate) fn is_drained(&self, number: u32) -> bool {
        (self.by_number.get(&number)).is_none_or(Stream::is_drained)
    }

    pub(crate) fn send(&mut self, number: u32, data: StreamData) {
        self.with(number, |stream| stream.push(data));
    }

    pub(crate) fn send_head(&mut self, number: u32, metadata: &Metadata) {
        self.with(number, |stream| stream.push_head(metadata));
    }

    pub(crate) fn end(&mut self, number: u32) {
        self.with(number, Stream::end);
    }

    pub(crate) fn give(&mut self, number: u32, credit: Credit) {
        self.with(number, |stream| stream.give(credit));
    }

    /// Changes a stream, and lets it have its turn if it can send then.
    fn with(&mut self, number: u32, change: impl FnOnce(&mut Stream)) {
        if let Some(stream) = self.by_number.get_mut(&number)
            && !stream.is_muted
        {
            change(stream);
            queue(number, stream, &mut self.ready);
        }
    }

    /// Whether there are news.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// The next news.
    pub(crate) fn poll_news(&mut self) -> Option<StreamNews> {
        self.news.pop_front()
    }

    /// Whether a frame of streams is to leave now, before one of calls.
    #[inline]
    pub(crate) fn is_due(&mut self, are_calls_waiting: bool) -> bool {
        if self.ready.is_empty() || self.at_link_bytes >= AT_LINK_BYTES_MAX {
            return false;
        }
        if are_calls_waiting && self.passed < PASSING_FRAMES {
            self.passed += 1;
            return false;
        }
        self.passed = 0;
        true
    }

    /// Fills an empty frame with what may be sent. `is_open` says whether the peer knows of the
    /// stream of a call. False if there is nothing.
    pub(crate) fn fill(
        &mut self,
        frame: &mut Frame,
        is_open: impl Fn(SlotId) -> bool,
        header: impl Fn(Form, u64) -> [u8; crate::wire::HEADER_BYTES],
    ) -> bool {
        encode::reserve_header(frame);
        let empty_bytes = frame.bytes().len();
        let mut form = Form::Records;
        let mut turns = 0;
        while turns < TURNS_PER_FRAME
            && let Some(number) = self.ready.pop_front()
        {
            // Streams that have nothing left to send have no turn: with nothing but those the frame
            // would be empty, and nobody would ask for the next one.
            let Some(stream) = self.by_number.get_mut(&number) else {
                continue;
            };
            stream.is_queued = false;
            if !is_open(stream.slot) {
                continue;
            }
            if stream.has_records() {
                turns += 1;
                let had_data = !stream.is_drained();
                stream.write(number, frame.bytes_mut(), FRAME_BYTES);
                self.ended_turn(number, had_data);
            } else if stream.has_part() {
                if frame.bytes().len() > empty_bytes {
                    stream.is_queued = true;
                    self.ready.push_front(number);
                    break;
                }
                form = match stream.attach(frame) {
                    true => Form::Last { number },
                    false => Form::Part { number },
                };
                self.ended_turn(number, true);
                break;
            }
            if frame.bytes().len() >= FRAME_BYTES {
                break;
            }
        }
        let payload_bytes = frame.len_bytes() - empty_bytes as u64;
        frame.token = FRAME_TOKEN;
        self.at_link_bytes += payload_bytes;
        encode::write_header(frame, &header(form, payload_bytes));
        payload_bytes > 0
    }

    /// Lets a stream wait for its next turn, or tells that all has left.
    fn ended_turn(&mut self, number: u32, had_data: bool) {
        let Some(stream) = self.by_number.get_mut(&number) else {
            return;
        };
        queue(number, stream, &mut self.ready);
        if had_data && stream.is_drained() {
            self.news.push_back(StreamNews {
                token: stream.token,
                what: StreamEvent::Drained,
            });
        }
    }

    /// Lets a stream have its turn whose request has left.
    pub(crate) fn opened(&mut self, number: u32) {
        self.with(number, |_| {});
    }

    /// Takes back a frame that the link has refused; any other comes back.
    pub(crate) fn refused(&mut self, frame: Box<Frame>) -> Option<Box<Frame>> {
        if frame.token != FRAME_TOKEN {
            return Some(frame);
        }
        self.refused = Some(frame);
        None
    }

    /// The frame that the link has refused.
    #[inline]
    pub(crate) fn take_refused(&mut self) -> Option<Box<Frame>> {
        self.refused.take()
    }

    /// Sends nothing more, because the link is gone.
    pub(crate) fn close(&mut self) {
        self.refused = None;
        self.ready.clear();
    }

    /// Takes back a frame of streams that the link is done with.
    pub(crate) fn sent(&mut self, frame: &Frame) {
        if frame.token == FRAME_TOKEN {
            let payload_bytes = frame.len_bytes() - crate::wire::HEADER_BYTES as u64;
            self.at_link_bytes = self.at_link_bytes.saturating_sub(payload_bytes);
        }
    }

    /// Takes the fields of a frame's header that name its form, and how many bytes follow. `None`
    /// says that nobody wants these.
    pub(crate) fn begin_frame(
        &mut self,
        fields: (i32, i32),
        found: u64,
    ) -> Result<Option<(Form, usize)>, PeerViolation> {
        let form = Form::decode(fields.0, fields.1);
        let form = form.ok_or(StreamError::Form { found: fields.0 })?;
        let (place, allowed_max) = match form {
            Form::Records => ("the records of streams", RECORDS_BYTES_MAX),
            Form::Last { .. } | Form::Part { .. } => ("a part of a message", PART_BYTES_MAX),
        };
        PeerViolation::check_length(place, found, allowed_max as u64)?;
        if let (0, Form::Last { number } | Form::Part { number }) = (found, form) {
            let what = "a part without bytes";
            return Err(StreamError::Unexpected { number, what }.into());
        }
        // Each takes memory of its own beside its bytes.
        if let Form::Part { number } = form
            && found < PART_BYTES_MIN as u64
        {
            let what = "a part of less than 65536 bytes with which a message goes on";
            return Err(StreamError::Unexpected { number, what }.into());
        }
        let is_wanted = self.begin_part(form, found)?;
        Ok(is_wanted.then_some((form, found as usize)))
    }

    /// Takes the bytes of a frame.
    pub(crate) fn take_frame(
        &mut self,
        end: End,
        form: Form,
        bytes: Buffer,
    ) -> Result<(), PeerViolation> {
        let (number, is_last) = match form {
            Form::Records => return self.take_records(end, &bytes.into_private()),
            Form::Last { number } => (number, true),
            Form::Part { number } => (number, false),
        };
        self.tell(number, StreamEvent::Part { bytes, is_last });
        Ok(())
    }

    /// Takes the records of a frame.
    fn take_records(&mut self, end: End, bytes: &Buffer) -> Result<(), PeerViolation> {
        let mut reader = RecordReader::new(bytes);
        while let Some((number, record)) = reader.read()? {
            let Some(stream) = self.known(number)? else {
                continue;
            };
            match record {
                Record::Messages { at, count } => {
                    stream.take_messages(number, count, at.len())?;
                    let messages = StreamEvent::Messages(cut_out(bytes, at), count);
                    self.tell(number, messages);
                }
                Record::Credit(credit) => {
                    stream.take_credit(number, credit)?;
                    self.with(number, |_| {});
                }
                Record::End if end == End::Server => {
                    stream.take_end(number)?;
                    self.tell(number, StreamEvent::Ended);
                }
                Record::Head { at } if end == End::Client => {
                    stream.take_head(number)?;
                    let metadata = Metadata::decode("the head of a stream", &bytes[at])?;
                    self.tell(number, StreamEvent::Head(metadata));
                }
                Record::End | Record::Head { .. } => {
                    let what = "a record of the other end";
                    return Err(StreamError::Unexpected { number, what }.into());
                }
            }
        }
        Ok(())
    }

    /// Notes that a part of a message begins to come. `false` says that nobody wants it.
    fn begin_part(&mut self, form: Form, len: u64) -> Result<bool, PeerViolation> {
        let (number, is_last) = match form {
            Form::Last { number } => (number, true),
            Form::Part { number } => (number, false),
            Form::Records => return Ok(true),
        };
        let Some(stream) = self.known(number)? else {
            return Ok(false);
        };
        stream.take_part(number, len as usize, is_last)?;
        Ok(!stream.is_muted)
    }

    fn tell(&mut self, number: u32, what: StreamEvent) {
        if let Some(stream) = self.by_number.get(&number)
            && !stream.is_muted
        {
            let token = stream.token;
            self.news.push_back(StreamNews { token, what });
        }
    }

    /// The stream of this number; `None` if it has ended.
    fn known(&mut self, number: u32) -> Result<Option<&mut Stream>, StreamError> {
        let next = self.next_number;
        let stream = self.by_number.get_mut(&number);
        if stream.is_none() && next.wrapping_sub(number).wrapping_sub(1) > NUMBERS_AHEAD_MAX {
            return Err(StreamError::Unknown {
                found: number,
                next,
            });
        }
        Ok(stream)
    }
}

/// Messages of a frame. Credits count their bytes and nothing else, so few of them do not keep the
/// memory of a whole frame.
fn cut_out(frame: &Buffer, at: Range<usize>) -> Buffer {
    match at.len() < frame.len() / 2 {
        true => Buffer::from(frame[at].to_vec()),
        false => frame.slice(at),
    }
}

fn queue(number: u32, stream: &mut Stream, ready: &mut VecDeque<u32>) {
    if !stream.is_queued && stream.can_send() {
        stream.is_queued = true;
        ready.push_back(number);
    }
}

/// Mark of frames of streams, which no slot has.
pub(crate) const FRAME_TOKEN: u64 = u64::MAX - 2;

/// Length from which a frame of records gets no more, so that its first does not wait for its last.
const FRAME_BYTES: usize = 24 << 10;

const _: () = assert!(
    FRAME_BYTES + METADATA_BYTES_MAX + SHARED_MESSAGE_BYTES_MAX + 8 * RECORD_HEAD_BYTES
        <= RECORDS_BYTES_MAX
);

/// Streams that are looked at for one frame.
const TURNS_PER_FRAME: usize = 64;

/// What may wait in a link of messages, so that calls behind them do not wait for more, in bytes.
const AT_LINK_BYTES_MAX: u64 = 2 << 20;

/// After so many frames of calls one of streams goes first.
const PASSING_FRAMES: u32 = 8;

/// Half of all numbers: those are ahead, the others behind.
const NUMBERS_AHEAD_MAX: u32 = u32::MAX / 2;
