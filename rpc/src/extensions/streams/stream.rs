//! One stream, as each end knows it: what it may send and take, and what waits to be sent.

use std::collections::VecDeque;

use grpcxx_memory::Buffer;
use grpcxx_transport::{Frame, SlotId};

use super::wire::{
    Credit, MESSAGE_LENGTH_BYTES, PART_BYTES_MAX, RECORD_HEAD_BYTES, encode_credit, encode_end,
    encode_head, encode_messages, split_first_message,
};
use crate::Metadata;

/// Messages on their way out.
#[derive(Clone, Debug, PartialEq)]
pub enum StreamData {
    /// Messages one behind the other, each behind its length as a u32, and none with more than
    /// [`SHARED_MESSAGE_BYTES_MAX`].
    Messages(Buffer),
    /// One message, in pieces that are sent from where they lie.
    Message(Vec<Buffer>),
}

/// What is new of a stream.
#[derive(Debug, PartialEq)]
pub struct StreamNews {
    /// The token of the call, or of the request.
    pub token: u64,
    /// What it is.
    pub what: StreamEvent,
}

/// What happens on a stream.
#[derive(Debug, PartialEq)]
pub enum StreamEvent {
    /// So many messages came, one behind the other, each behind its length.
    Messages(Buffer, u32),
    /// A part of a message came.
    Part {
        /// The part.
        bytes: Buffer,
        /// Whether the message is complete with it.
        is_last: bool,
    },
    /// The client sends no more messages.
    Ended,
    /// What the server says before its messages.
    Head(Metadata),
    /// All has left that was to be sent.
    Drained,
}

/// A stream that has not ended.
#[derive(Debug)]
pub(crate) struct Stream {
    /// Whom its news are for.
    pub(crate) token: u64,
    /// The call or the request.
    pub(crate) slot: SlotId,
    outbox: VecDeque<Outgoing>,
    /// How much the peer takes.
    may_send: Credit,
    /// What the peer gets of credits with the next frame.
    to_give: Credit,
    head: Option<Metadata>,
    end: SendEnd,
    /// How much the peer may send, as far as this end has said so.
    given: Credit,
    receives: Receives,
    has_head: bool,
    /// Whether it is among those that may have something to send.
    pub(super) is_queued: bool,
    /// Whether its user still wants it.
    pub(super) is_muted: bool,
}

/// What waits to be sent of messages.
#[derive(Debug)]
enum Outgoing {
    Messages {
        bytes: Buffer,
        at_byte: usize,
    },
    Message {
        pieces: VecDeque<Buffer>,
        left_bytes: usize,
    },
}

/// How far this end has come with saying that it sends no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendEnd {
    Open,
    Wanted,
    Sent,
}

/// What may come from the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receives {
    Anything,
    /// The rest of a message.
    Parts,
    /// No messages.
    Nothing,
}

/// How a peer breaks the rules of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// A stream that was never opened.
    #[error("a frame of streams names stream {found}, which was never opened; the next is {next}")]
    Unknown {
        /// Its number.
        found: u32,
        /// The first number that was never used.
        next: u32,
    },
    /// A number that does not ascend.
    #[error("a request opens stream {found}, allowed are numbers from {next} on")]
    Number {
        /// The number.
        found: u32,
        /// The first one that is allowed.
        next: u32,
    },
    /// More than the receiver takes.
    #[error(
        "stream {number}: {messages} messages of {bytes} bytes, allowed are {} of {}",
        allowed.messages,
        allowed.bytes
    )]
    Credit {
        /// Its number.
        number: u32,
        /// The messages.
        messages: u32,
        /// The bytes.
        bytes: u32,
        /// What is allowed.
        allowed: Credit,
    },
    /// Credits that cannot be counted.
    #[error("stream {number}: more credits than 32 bits count")]
    TooMuchCredit {
        /// Its number.
        number: u32,
    },
    /// Something at a time when it is not allowed.
    #[error("stream {number}: {what} is not allowed there")]
    Unexpected {
        /// Its number.
        number: u32,
        /// What came.
        what: &'static str,
    },
    /// A frame that is neither records nor a part of a message.
    #[error("a frame of streams has the form {found}, allowed are 0 to 2")]
    Form {
        /// The form.
        found: i32,
    },
}

impl Stream {
    pub(super) fn new(token: u64, slot: SlotId) -> Self {
        Self {
            token,
            slot,
            outbox: VecDeque::new(),
            may_send: Credit::FIRST,
            to_give: Credit::NONE,
            head: None,
            end: SendEnd::Open,
            given: Credit::FIRST,
            receives: Receives::Anything,
            has_head: false,
            is_queued: false,
            is_muted: false,
        }
    }

    /// Forgets all that waits, because nobody wants the stream any more.
    pub(super) fn mute(&mut self) {
        self.is_muted = true;
        self.outbox.clear();
        self.to_give = Credit::NONE;
        self.head = None;
        self.end = SendEnd::Sent;
    }

    pub(super) fn push(&mut self, data: StreamData) {
        if self.end != SendEnd::Open {
            return;
        }
        self.outbox.push_back(match data {
            StreamData::Messages(bytes) => Outgoing::Messages { bytes, at_byte: 0 },
            StreamData::Message(pieces) => match pieces.iter().map(|piece| piece.len()).sum() {
                0 => Outgoing::Messages {
                    bytes: Buffer::from(vec![0; MESSAGE_LENGTH_BYTES]),
                    at_byte: 0,
                },
                left_bytes => Outgoing::Message {
                    left_bytes,
                    pieces: pieces.into(),
                },
            },
        });
    }

    pub(super) fn push_head(&mut self, metadata: &Metadata) {
        self.head = Some(metadata.clone());
    }

    pub(super) fn end(&mut self) {
        if self.end == SendEnd::Open {
            self.end = SendEnd::Wanted;
        }
    }

    /// Whether all messages have left.
    pub(super) fn is_drained(&self) -> bool {
        self.outbox.is_empty() && self.head.is_none()
    }

    /// Lets the peer send so much more.
    pub(super) fn give(&mut self, credit: Credit) {
        if let (Some(given), Some(to_give)) = (self.given.plus(credit), self.to_give.plus(credit)) {
            self.given = given;
            self.to_give = to_give;
        }
    }

    /// Whether there is something that may be sent.
    pub(super) fn can_send(&self) -> bool {
        self.head.is_some() || !self.to_give.is_none() || self.can_end() || self.can_send_data()
    }

    fn can_end(&self) -> bool {
        self.end == SendEnd::Wanted && self.outbox.is_empty()
    }

    fn can_send_data(&self) -> bool {
        let wanted_bytes = match self.outbox.front() {
            None => return false,
            Some(Outgoing::Messages { bytes, at_byte }) => match first_message(bytes, *at_byte) {
                Some(message) => message.len(),
                None => return false,
            },
            Some(Outgoing::Message { left_bytes, .. }) => (*left_bytes).min(PART_BYTES_MIN),
        };
        self.may_send.messages > 0 && self.may_send.bytes as usize >= wanted_bytes
    }

    /// Whether messages wait for the peer's leave.
    pub(super) fn waits_for_credit(&self) -> bool {
        !self.outbox.is_empty() && !self.can_send_data()
    }

    /// Whether what is next has a frame of its own.
    pub(super) fn has_part(&self) -> bool {
        self.can_send_data() && matches!(self.outbox.front(), Some(Outgoing::Message { .. }))
    }

    /// Whether there is something for a frame of records.
    pub(super) fn has_records(&self) -> bool {
        self.can_send() && !(self.has_part() && self.head.is_none() && self.to_give.is_none())
    }

    /// Adds records to a frame that shall not become longer than this.
    pub(super) fn write(&mut self, number: u32, bytes: &mut Vec<u8>, bytes_max: usize) {
        if let Some(head) = self.head.take() {
            encode_head(bytes, number, head.encoded());
        }
        if !self.to_give.is_none() {
            encode_credit(bytes, number, std::mem::take(&mut self.to_give));
        }
        while bytes.len() < bytes_max
            && let Some(Outgoing::Messages {
                bytes: messages,
                at_byte,
            }) = self.outbox.front_mut()
        {
            let room = bytes_max.saturating_sub(bytes.len() + RECORD_HEAD_BYTES);
            let (taken, count) = fitting(&messages[*at_byte..], room, self.may_send);
            if taken == 0 {
                break;
            }
            encode_messages(bytes, number, &messages[*at_byte..][..taken]);
            self.may_send.messages -= count;
            self.may_send.bytes -= taken as u32;
            *at_byte += taken;
            if *at_byte < messages.len() {
                break;
            }
            self.outbox.pop_front();
        }
        if self.can_end() {
            encode_end(bytes, number);
            self.end = SendEnd::Sent;
        }
    }

    /// Attaches the next part of a message to a frame. Returns whether it is the last one.
    pub(super) fn attach(&mut self, frame: &mut Frame) -> bool {
        let Some(Outgoing::Message { pieces, left_bytes }) = self.outbox.front_mut() else {
            return true;
        };
        let len = (*left_bytes)
            .min(PART_BYTES_MAX)
            .min(self.may_send.bytes as usize);
        let mut missing = len;
        while missing > 0
            && let Some(piece) = pieces.pop_front()
        {
            let taken = piece.len().min(missing);
            if taken < piece.len() {
                pieces.push_front(piece.slice(taken..));
            }
            missing -= taken;
            frame.attach(piece.slice(..taken));
        }
        *left_bytes -= len;
        self.may_send.bytes -= len as u32;
        let is_last = *left_bytes == 0;
        if is_last {
            self.may_send.messages -= 1;
            self.outbox.pop_front();
        }
        is_last
    }

    /// The peer lets us send so much more.
    pub(super) fn take_credit(&mut self, number: u32, credit: Credit) -> Result<(), StreamError> {
        let sum = self.may_send.plus(credit);
        self.may_send = sum.ok_or(StreamError::TooMuchCredit { number })?;
        Ok(())
    }

    /// Messages that share a record have come.
    pub(super) fn take_messages(
        &mut self,
        number: u32,
        messages: u32,
        bytes: usize,
    ) -> Result<(), StreamError> {
        if self.receives != Receives::Anything {
            let what = "a message";
            return Err(StreamError::Unexpected { number, what });
        }
        self.pay(number, messages, bytes)
    }

    /// A part of a message has begun to come.
    pub(super) fn take_part(
        &mut self,
        number: u32,
        bytes: usize,
        is_last: bool,
    ) -> Result<(), StreamError> {
        if self.receives == Receives::Nothing {
            let what = "a part of a message";
            return Err(StreamError::Unexpected { number, what });
        }
        self.pay(number, u32::from(is_last), bytes)?;
        self.receives = match is_last {
            true => Receives::Anything,
            false => Receives::Parts,
        };
        Ok(())
    }

    /// The peer sends no more messages.
    pub(super) fn take_end(&mut self, number: u32) -> Result<(), StreamError> {
        if self.receives != Receives::Anything {
            let what = "an end";
            return Err(StreamError::Unexpected { number, what });
        }
        self.receives = Receives::Nothing;
        Ok(())
    }

    /// The head of a server has come.
    pub(super) fn take_head(&mut self, number: u32) -> Result<(), StreamError> {
        if std::mem::replace(&mut self.has_head, true) {
            let what = "a head";
            return Err(StreamError::Unexpected { number, what });
        }
        Ok(())
    }

    fn pay(&mut self, number: u32, messages: u32, bytes: usize) -> Result<(), StreamError> {
        // What comes first decides whether a head may follow.
        self.has_head = true;
        let bytes = bytes as u32;
        let left = self.given.minus(Credit { messages, bytes });
        self.given = left.ok_or(StreamError::Credit {
            number,
            messages,
            bytes,
            allowed: self.given,
        })?;
        Ok(())
    }
}

/// The first message from here on, with its length.
fn first_message(messages: &[u8], at_byte: usize) -> Option<&[u8]> {
    let rest = messages.get(at_byte..)?;
    let (message, _) = split_first_message(rest)?;
    Some(&rest[..MESSAGE_LENGTH_BYTES + message.len()])
}

/// How many bytes and messages fit into so much room and credit, at least one message if the credit
/// is there.
fn fitting(messages: &[u8], room: usize, credit: Credit) -> (usize, u32) {
    let (mut taken, mut count) = (0, 0);
    while count < credit.messages
        && let Some(message) = first_message(messages, taken)
    {
        let with = taken + message.len();
        if with > credit.bytes as usize || (with > room && count > 0) {
            break;
        }
        taken = with;
        count += 1;
    }
    (taken, count)
}

/// Longest message that may share a record with others, in bytes.
pub const SHARED_MESSAGE_BYTES_MAX: usize = 4 << 10;

/// Shortest part with which a message goes on, in bytes.
pub(super) const PART_BYTES_MIN: usize = 64 << 10;

const _: () = assert!(PART_BYTES_MIN <= Credit::FIRST.bytes as usize);
const _: () = assert!(SHARED_MESSAGE_BYTES_MAX + MESSAGE_LENGTH_BYTES <= PART_BYTES_MIN);
