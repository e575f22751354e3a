//! The bytes of a call by path: a small head, and behind it the message.

use std::cell::Cell;
use std::ops::Range;

use grpcxx_memory::Buffer;

use super::metadata::{METADATA_BYTES_MAX, Metadata, check};
use crate::connection::COALESCE_BYTES_MAX;
use crate::wire::reader::Reader;
use crate::wire::{Malformed, Problem};
use crate::{Code, Reason, Status};

/// Method number of a call by path.
pub const UNARY_METHOD: i32 = 0x4758_0006;

/// A message with what travels before it: in a request the path of a method and metadata, in an
/// answer metadata alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Envelope {
    head_bytes: usize,
    /// How much of the head is the path of a request, with its length; nothing in an answer.
    path_bytes: usize,
    /// The head, and behind it the message, or the beginning of it.
    bytes: Bytes,
    /// The rest of a message that was not put together.
    pieces: Vec<Buffer>,
}

/// The first bytes of an envelope.
#[derive(Clone, Debug)]
enum Bytes {
    /// At most [`COALESCE_BYTES_MAX`], which are copied into a frame.
    Own(Vec<u8>),
    Shared(Buffer),
}

/// An envelope that is being filled.
#[derive(Debug)]
pub struct EnvelopeWriter {
    head_bytes: usize,
    path_bytes: usize,
    /// What is behind the pieces that are complete.
    last: Vec<u8>,
    complete: Vec<Buffer>,
    complete_bytes: usize,
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
        let path_bytes = PATH_LENGTH_BYTES + path.len();
        Ok(EnvelopeWriter {
            path_bytes,
            ..EnvelopeWriter::new(head_bytes, last)
        })
    }

    /// Begins an answer, for a message of about so many bytes.
    pub fn answer(metadata: &Metadata, message_bytes: usize) -> EnvelopeWriter {
        let head_bytes = metadata.encoded().len();
        let mut last = spare();
        last.reserve(head_bytes + message_bytes);
        last.extend_from_slice(metadata.encoded());
        EnvelopeWriter::new(head_bytes, last)
    }

    /// Reads a request of which so many bytes are the head.
    ///
    /// # Errors
    /// The head is not what it has to be.
    pub fn decode_request(head_bytes: usize, bytes: Buffer) -> Result<Self, Malformed> {
        let mut envelope = Self::received(head_bytes, bytes, REQUEST)?;
        envelope.path_bytes = check_request_head(envelope.head())?;
        Ok(envelope)
    }

    /// The same, of a request whose head may be the last that was read.
    pub(crate) fn decode_next(
        head_bytes: usize,
        bytes: Buffer,
        last: &mut LastHead,
    ) -> Result<Self, Malformed> {
        let mut envelope = Self::received(head_bytes, bytes, REQUEST)?;
        envelope.path_bytes = last.check(envelope.head())?;
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
            path_bytes: 0,
            // The head is looked at more than once.
            bytes: Bytes::Shared(bytes.into_private()),
            pieces: Vec::new(),
        })
    }

    /// The path of a request; empty if this is an answer.
    pub fn path(&self) -> &str {
        let path = self.head().get(PATH_LENGTH_BYTES..self.path_bytes);
        path.and_then(|path| std::str::from_utf8(path).ok())
            .unwrap_or_default()
    }

    /// What a request has beside its message.
    pub fn request_metadata(&self) -> Metadata {
        self.metadata_from(self.path_bytes)
    }

    /// What an answer has beside its message.
    pub fn answer_metadata(&self) -> Metadata {
        self.metadata_from(0)
    }

    fn metadata_from(&self, start: usize) -> Metadata {
        match &self.head()[start..] {
            [] => Metadata::default(),
            // It was checked when it was made.
            bytes => Metadata::decode("metadata", bytes).unwrap_or_default(),
        }
    }

    /// Notes that a user has the message, who may fork ([`Buffer::expose`]).
    pub fn expose(&self) {
        if let Bytes::Shared(buffer) = &self.bytes {
            buffer.expose();
        }
        self.pieces.iter().for_each(Buffer::expose);
    }

    /// The message, put together if it was not. Its place in memory is then the one that it has
    /// behind its head where it lands at a peer.
    pub fn message(&self) -> Buffer {
        match (&self.bytes, &self.pieces[..]) {
            (Bytes::Shared(bytes), []) => return bytes.slice(self.head_bytes..),
            (bytes, [whole]) if bytes.all().len() == self.head_bytes => return whole.clone(),
            _ => {}
        }
        let mut whole = Vec::with_capacity(self.head_bytes + self.message_bytes());
        whole.extend_from_slice(self.bytes.all());
        for piece in &self.pieces {
            whole.extend_from_slice(piece);
        }
        Buffer::from(whole).slice(self.head_bytes..)
    }

    /// The message in the pieces in which it lies.
    pub fn into_pieces(self) -> Vec<Buffer> {
        let first = self.bytes.into_buffer().slice(self.head_bytes..);
        let pieces = std::iter::once(first).chain(self.pieces);
        pieces.filter(|piece| !piece.is_empty()).collect()
    }

    /// Length of the message, in bytes.
    pub fn message_bytes(&self) -> usize {
        let pieces: usize = self.pieces.iter().map(|piece| piece.len()).sum();
        self.bytes.all().len() - self.head_bytes + pieces
    }

    /// Length of the head, in bytes.
    pub(crate) fn head_bytes(&self) -> usize {
        self.head_bytes
    }

    /// Head and message, in the order in which they travel: bytes that are short, and buffers.
    pub(crate) fn parts(&self) -> (&[u8], impl Iterator<Item = &Buffer>) {
        let (own, first) = match &self.bytes {
            Bytes::Own(bytes) => (&bytes[..], None),
            Bytes::Shared(buffer) => (&[][..], Some(buffer)),
        };
        (own, first.into_iter().chain(&self.pieces))
    }

    fn head(&self) -> &[u8] {
        &self.bytes.all()[..self.head_bytes]
    }

    /// Keeps the memory of a short envelope that has been sent, for the next of this thread.
    pub(crate) fn recycle(self) {
        if let Bytes::Own(bytes) = self.bytes {
            give_back(bytes);
        }
    }
}

impl Bytes {
    fn all(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared(buffer) => buffer,
        }
    }

    fn into_buffer(self) -> Buffer {
        match self {
            Self::Own(bytes) => Buffer::from(bytes),
            Self::Shared(buffer) => buffer,
        }
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Self::Shared(Buffer::new())
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        self.all() == other.all()
    }
}

thread_local! {
    /// Memory of the last answer that a connection of this thread has sent. Code of services fills
    /// answers, which no connection hands its memory to.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

fn spare() -> Vec<u8> {
    SPARE.try_with(Cell::take).unwrap_or_default()
}

fn give_back(mut bytes: Vec<u8>) {
    if bytes.capacity() <= SPARE_BYTES_MAX {
        bytes.clear();
        // A thread that ends keeps none.
        let _has_ended = SPARE.try_with(|spare| spare.set(bytes));
    }
}

/// Most memory that a thread keeps for its next answer.
const SPARE_BYTES_MAX: usize = 2 * COALESCE_BYTES_MAX;

impl EnvelopeWriter {
    fn new(head_bytes: usize, last: Vec<u8>) -> Self {
        Self {
            head_bytes,
            path_bytes: 0,
            last,
            complete: Vec::new(),
            complete_bytes: 0,
        }
    }

    /// Length of head and message so far, in bytes.
    pub fn len_bytes(&self) -> usize {
        self.complete_bytes + self.last.len()
    }

    /// Where the next bytes of the message go.
    pub fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.last
    }

    /// Adds bytes to the message that are sent from where they lie.
    pub fn attach(&mut self, piece: Buffer) {
        self.complete_bytes = self.len_bytes() + piece.len();
        if !self.last.is_empty() || self.complete.is_empty() {
            let before = std::mem::take(&mut self.last);
            self.complete.push(Buffer::from(before));
        }
        self.complete.push(piece);
    }

    /// The envelope with all that was written.
    pub fn finish(self) -> Envelope {
        let mut pieces = self.complete.into_iter();
        let (bytes, pieces) = match pieces.next() {
            Some(first) => {
                let mut rest: Vec<Buffer> = pieces.collect();
                if !self.last.is_empty() {
                    rest.push(Buffer::from(self.last));
                }
                (Bytes::Shared(first), rest)
            }
            None if self.last.len() <= COALESCE_BYTES_MAX => (Bytes::Own(self.last), Vec::new()),
            None => (Bytes::Shared(Buffer::from(self.last)), Vec::new()),
        };
        Envelope {
            head_bytes: self.head_bytes,
            path_bytes: self.path_bytes,
            bytes,
            pieces,
        }
    }
}

/// The last head of a request that was read and found right, for the next is often the same.
#[derive(Debug, Default)]
pub(crate) struct LastHead {
    bytes: Vec<u8>,
    path_bytes: usize,
}

impl LastHead {
    /// How much of a head is its path, if it is what it has to be.
    fn check(&mut self, head: &[u8]) -> Result<usize, Malformed> {
        if *head == self.bytes[..] && !head.is_empty() {
            return Ok(self.path_bytes);
        }
        let path_bytes = check_request_head(head)?;
        if head.len() <= LAST_BYTES_MAX {
            self.bytes.clear();
            self.bytes.extend_from_slice(head);
            self.path_bytes = path_bytes;
        }
        Ok(path_bytes)
    }
}

/// How much of the head of a request is its path, if it is what it has to be.
fn check_request_head(head: &[u8]) -> Result<usize, Malformed> {
    let mut reader = Reader::new(REQUEST, head);
    let path = path_range(&mut reader)?;
    let path_bytes = path.end;
    match std::str::from_utf8(&head[path]) {
        Ok(path) if is_path(path) => {}
        _ => return Err(reader.malformed("the path before this", Problem::Unallowed)),
    }
    check(reader, head)?;
    Ok(path_bytes)
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

/// Longest head that a connection remembers.
const LAST_BYTES_MAX: usize = 512;

/// The length of a path.
const PATH_LENGTH_BYTES: usize = 2;

/// Longest head, in bytes.
pub(crate) const HEAD_BYTES_MAX: usize = PATH_LENGTH_BYTES + PATH_BYTES_MAX + METADATA_BYTES_MAX;

const REQUEST: &str = "the head of a unary request";
const ANSWER: &str = "the head of a unary answer";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_in_one_piece_is_not_copied() {
        let piece = Buffer::from(vec![7; 100]);
        let mut metadata = Metadata::default();
        metadata.insert("name", "value").unwrap();
        for metadata in [Metadata::default(), metadata] {
            let request = Envelope::request("/a.B/C", &metadata, 0).unwrap();
            for mut writer in [request, Envelope::answer(&metadata, 0)] {
                writer.attach(piece.clone());
                assert_eq!(writer.finish().message().as_ptr(), piece.as_ptr());
            }
        }
    }
}
