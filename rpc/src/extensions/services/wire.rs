//! The bytes of a call by path: a small head, and behind it the message.

use std::ops::Range;

use grpcxx_memory::Buffer;

use super::metadata::{METADATA_BYTES_MAX, Metadata, check};
use crate::wire::reader::Reader;
use crate::wire::{Malformed, Problem};
use crate::{Code, Reason, Status};

/// Method number of a call by path.
pub const UNARY_METHOD: i32 = 0x4758_0006;

/// A message with what travels before it: in a request the path of a method and metadata, in an
/// answer metadata alone.
#[derive(Clone, Debug, PartialEq)]
pub struct Envelope {
    head_bytes: usize,
    /// The head, and behind it the message, or the beginning of it.
    bytes: Buffer,
    /// The rest of a message that was not put together.
    pieces: Vec<Buffer>,
}

/// An envelope that is being filled.
#[derive(Debug)]
pub struct EnvelopeWriter {
    head_bytes: usize,
    /// What is behind the pieces that are complete.
    last: Vec<u8>,
    complete: Vec<Buffer>,
}

impl Envelope {
    /// Begins a request of the method at `path`, which is `/package.Service/Method`, for a message
    /// of about so many bytes.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if that is no path.
    pub fn request(
        path: &str,
        metadata: &Metadata,
        message_bytes: usize,
    ) -> Result<EnvelopeWriter, Status> {
        if !is_path(path) {
            let path: String = path.chars().take(PATH_BYTES_MAX).collect();
            let text = format!("{path:?} is no path of a method; write /package.Service/Method");
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let head_bytes = PATH_LENGTH_BYTES + path.len() + metadata.encoded().len();
        let mut last = Vec::with_capacity(head_bytes + message_bytes);
        last.extend_from_slice(&(path.len() as u16).to_le_bytes());
        last.extend_from_slice(path.as_bytes());
        last.extend_from_slice(metadata.encoded());
        Ok(EnvelopeWriter::new(head_bytes, last))
    }

    /// Begins an answer, for a message of about so many bytes.
    pub fn answer(metadata: &Metadata, message_bytes: usize) -> EnvelopeWriter {
        let head_bytes = metadata.encoded().len();
        let mut last = Vec::with_capacity(head_bytes + message_bytes);
        last.extend_from_slice(metadata.encoded());
        EnvelopeWriter::new(head_bytes, last)
    }

    /// Reads a request of which so many bytes are the head.
    ///
    /// # Errors
    /// The head is not what it has to be.
    pub fn decode_request(head_bytes: usize, bytes: Buffer) -> Result<Self, Malformed> {
        let envelope = Self::received(head_bytes, bytes, REQUEST)?;
        let mut reader = Reader::new(REQUEST, envelope.head());
        let path = path_range(&mut reader)?;
        match std::str::from_utf8(&envelope.head()[path]) {
            Ok(path) if is_path(path) => {}
            _ => return Err(reader.malformed("the path before this", Problem::Unallowed)),
        }
        check(reader, envelope.head())?;
        Ok(envelope)
    }

    /// Reads an answer of which so many bytes are the head.
    ///
    /// # Errors
    /// The head is not what it has to be.
    pub fn decode_answer(head_bytes: usize, bytes: Buffer) -> Result<Self, Malformed> {
        let envelope = Self::received(head_bytes, bytes, ANSWER)?;
        check(Reader::new(ANSWER, envelope.head()), envelope.head())?;
        Ok(envelope)
    }

    fn received(head_bytes: usize, bytes: Buffer, place: &'static str) -> Result<Self, Malformed> {
        Reader::new(place, &bytes).range("the head", head_bytes as u64)?;
        Ok(Self {
            head_bytes,
            // The head is looked at more than once.
            bytes: bytes.into_private(),
            pieces: Vec::new(),
        })
    }

    /// The path of a request; empty if this is an answer without metadata.
    pub fn path(&self) -> &str {
        let range = path_range(&mut Reader::new(REQUEST, self.head()));
        let path = range.ok().map(|range| &self.head()[range]);
        path.and_then(|path| std::str::from_utf8(path).ok())
            .unwrap_or_default()
    }

    /// What a request has beside its message.
    pub fn request_metadata(&self) -> Metadata {
        let path_bytes = PATH_LENGTH_BYTES + self.path().len();
        self.metadata_from(path_bytes.min(self.head_bytes))
    }

    /// What an answer has beside its message.
    pub fn answer_metadata(&self) -> Metadata {
        self.metadata_from(0)
    }

    fn metadata_from(&self, start: usize) -> Metadata {
        // It was checked when it was made.
        Metadata::decode("metadata", &self.head()[start..]).unwrap_or_default()
    }

    /// Notes that a user has the message, who may fork ([`Buffer::expose`]).
    pub fn expose(&self) {
        self.bytes.expose();
        self.pieces.iter().for_each(Buffer::expose);
    }

    /// The message, put together if it was not.
    pub fn message(&self) -> Buffer {
        if self.pieces.is_empty() {
            return self.bytes.slice(self.head_bytes..);
        }
        let mut whole = Vec::with_capacity(self.message_bytes());
        whole.extend_from_slice(&self.bytes[self.head_bytes..]);
        for piece in &self.pieces {
            whole.extend_from_slice(piece);
        }
        Buffer::from(whole)
    }

    /// The message in the pieces in which it lies.
    pub fn into_pieces(self) -> Vec<Buffer> {
        let first = self.bytes.slice(self.head_bytes..);
        let pieces = std::iter::once(first).chain(self.pieces);
        pieces.filter(|piece| !piece.is_empty()).collect()
    }

    /// Length of the message, in bytes.
    pub fn message_bytes(&self) -> usize {
        let pieces: usize = self.pieces.iter().map(|piece| piece.len()).sum();
        self.bytes.len() - self.head_bytes + pieces
    }

    /// Length of the head, in bytes.
    pub(crate) fn head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// Head and message, in the order in which they travel.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &Buffer> {
        std::iter::once(&self.bytes).chain(&self.pieces)
    }

    fn head(&self) -> &[u8] {
        &self.bytes[..self.head_bytes]
    }
}

impl EnvelopeWriter {
    fn new(head_bytes: usize, last: Vec<u8>) -> Self {
        Self {
            head_bytes,
            last,
            complete: Vec::new(),
        }
    }

    /// Where the next bytes of the message go.
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.last
    }

    /// Adds bytes to the message that are sent from where they lie.
    pub fn attach(&mut self, piece: Buffer) {
        if !self.last.is_empty() || self.complete.is_empty() {
            let before = std::mem::take(&mut self.last);
            self.complete.push(Buffer::from(before));
        }
        self.complete.push(piece);
    }

    /// The envelope with all that was written.
    pub fn finish(self) -> Envelope {
        let mut pieces = self.complete.into_iter();
        let last = Buffer::from(self.last);
        let (bytes, pieces) = match pieces.next() {
            Some(first) => {
                let mut rest: Vec<Buffer> = pieces.collect();
                if !last.is_empty() {
                    rest.push(last);
                }
                (first, rest)
            }
            None => (last, Vec::new()),
        };
        Envelope {
            head_bytes: self.head_bytes,
            bytes,
            pieces,
        }
    }
}

fn path_range(reader: &mut Reader<'_>) -> Result<Range<usize>, Malformed> {
    let len = u16::from_le_bytes(reader.array("the length of the path")?);
    reader.range("the path", u64::from(len))
}

/// Whether a path is `/service/method`.
fn is_path(path: &str) -> bool {
    let parts = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    let is_printable = path.bytes().all(|byte| matches!(byte, b'!'..=b'~'));
    path.len() <= PATH_BYTES_MAX
        && is_printable
        && parts.is_some_and(|(service, method)| !service.is_empty() && !method.is_empty())
}

/// Why a head is refused that is longer than any may be.
pub(crate) fn head_too_long(found: u64) -> Status {
    let text =
        format!("a head of {found} bytes, allowed are 0 to {HEAD_BYTES_MAX}, in the payload");
    Status::new(Code::ResourceExhausted, text).because(Reason::Limit)
}

/// Longest path, in bytes.
const PATH_BYTES_MAX: usize = 512;

/// The length of a path.
const PATH_LENGTH_BYTES: usize = 2;

/// Longest head, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = PATH_LENGTH_BYTES + PATH_BYTES_MAX + METADATA_BYTES_MAX;

const REQUEST: &str = "the head of a unary request";
const ANSWER: &str = "the head of a unary answer";
