//! Cuts long frames into chunks.

use std::collections::VecDeque;

use grpcxx_memory::Buffer;
use grpcxx_transport::{Frame, FramePlace};

use crate::connection::ConnectionLimits;
use crate::wire::{ChunkHeader, HEADER_BYTES};

/// Cuts long frames into chunks, for a peer that takes them.
///
/// One frame is cut at a time, and one chunk of it is with the link: the next is made when that has
/// left, and goes behind the frames that came meanwhile. The last chunk has the token of its frame,
/// all others that of nobody.
#[derive(Debug)]
pub(crate) struct Cutter {
    /// Frames that are longer are cut.
    frame_bytes_max: u64,
    chunk_bytes: usize,
    encode: fn(&ChunkHeader) -> [u8; HEADER_BYTES],
    /// Payload that the link lends is not cut, since nobody waits for it.
    keeps_shared: bool,
    /// Long frames that have not begun.
    waiting: VecDeque<Box<Frame>>,
    cut: Option<Cut>,
    /// Token of the chunk that has not left.
    at_link: Option<u64>,
    /// Frames that have gone since the last chunk.
    passed: u32,
}

#[derive(Debug)]
struct Cut {
    frame: Box<Frame>,
    place: FramePlace,
    tag: u64,
}

impl Cutter {
    /// Cuts nothing yet.
    pub(crate) fn new(limits: &ConnectionLimits) -> Self {
        Self {
            frame_bytes_max: u64::MAX,
            chunk_bytes: limits.chunk_bytes.max(1),
            encode: ChunkHeader::encode_of_response,
            keeps_shared: false,
            waiting: VecDeque::new(),
            cut: None,
            at_link: None,
            passed: 0,
        }
    }

    /// Cuts from now on the frames that are longer, with headers for their direction.
    pub(crate) fn start(
        &mut self,
        frame_bytes_max: u64,
        encode: fn(&ChunkHeader) -> [u8; HEADER_BYTES],
    ) {
        self.frame_bytes_max = frame_bytes_max;
        self.encode = encode;
    }

    pub(crate) fn keep_shared(&mut self, keeps_shared: bool) {
        self.keeps_shared = keeps_shared;
    }

    /// Whether this is a frame to cut: it is long, has payload, and is no chunk itself.
    #[inline]
    pub(crate) fn is_long(&self, frame: &Frame) -> bool {
        frame.len_bytes() > self.frame_bytes_max
            && frame.segment_count() > 1
            && self.at_link != Some(frame.token)
    }

    /// Whether there are frames to cut, or to cut further.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.cut.is_some() || !self.waiting.is_empty()
    }

    /// Whether a long frame is to go on: the link has no chunk, and no frame waits that could go
    /// before.
    pub(crate) fn is_due(&self, is_alone: bool) -> bool {
        self.has_work() && self.at_link.is_none() && (is_alone || self.passed >= PASSED_MAX)
    }

    /// Notes that a frame goes that is not cut.
    pub(crate) fn let_pass(&mut self) {
        self.passed = self.passed.saturating_add(1);
    }

    /// Lets a long frame wait for its turn.
    pub(crate) fn push(&mut self, frame: Box<Frame>) {
        self.waiting.push_back(frame);
    }

    /// The next long frame, unless one is being cut.
    pub(crate) fn pop(&mut self) -> Option<Box<Frame>> {
        if self.cut.is_some() {
            return None;
        }
        self.waiting.pop_front()
    }

    /// Begins to cut a frame.
    pub(crate) fn begin(&mut self, frame: Box<Frame>) {
        let tag = ChunkHeader::tag_of(frame.bytes());
        self.cut = Some(Cut {
            frame,
            place: FramePlace::default(),
            tag,
        });
    }

    /// Fills an empty frame with the next chunk. Gives the frame back that is cut, if that was the
    /// last.
    pub(crate) fn cut(&mut self, chunk: &mut Frame) -> Option<Box<Frame>> {
        let cut = self.cut.as_mut().expect("the caller has begun");
        let keeps_shared = self.keeps_shared;
        let is_whole = |payload: &Buffer| keeps_shared && payload.shared_memory().is_some();
        chunk.bytes_mut().extend_from_slice(&[0; HEADER_BYTES]);
        let place = chunk.append(&cut.frame, cut.place, self.chunk_bytes, is_whole);
        let header = ChunkHeader {
            tag: cut.tag,
            payload_bytes: chunk.len_bytes() - HEADER_BYTES as u64,
        };
        chunk.bytes_mut()[..HEADER_BYTES].copy_from_slice(&(self.encode)(&header));
        chunk.token = NOBODY;
        let mut whole = None;
        match place {
            Some(place) => cut.place = place,
            None => {
                chunk.token = cut.frame.token;
                whole = self.cut.take().map(|cut| cut.frame);
            }
        }
        self.at_link = Some(chunk.token);
        self.passed = 0;
        whole
    }

    /// Notes that the link is done with a frame.
    #[inline]
    pub(crate) fn took_back(&mut self, frame: &Frame) {
        if self.at_link == Some(frame.token) {
            self.at_link = None;
        }
    }

    /// Gives back a frame that has not left as a whole.
    pub(crate) fn abandon(&mut self) -> Option<Box<Frame>> {
        let cut = self.cut.take().map(|cut| cut.frame);
        cut.or_else(|| self.waiting.pop_front())
    }
}

/// Token of a chunk behind which more of its frame follows; no slot has it.
pub(crate) const NOBODY: u64 = u64::MAX - 1;

/// After so many frames that came later, a chunk goes first: who sends small frames without end
/// does not hold up large ones for ever.
const PASSED_MAX: u32 = 256;
