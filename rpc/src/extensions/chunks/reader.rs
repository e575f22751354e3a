use std::mem;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_transport::{Landing, Next, Time};

use crate::Status;
use crate::connection::cursor::{Cursor, Filled};
use crate::connection::landings::grown;
use crate::connection::{Landings, PeerViolation};
use crate::wire::{ChunkHeader, HEADER_BYTES};

/// The frame that arrives in chunks, if one does.
///
/// There is at most one at a time. Inside a chunk the connection reads that frame as it reads any, from no more bytes than
/// the chunk has; between two chunks what it was about to do is put aside. Invariants: `left_bytes` is 0 outside of
/// chunks; `aside` is there only outside of chunks; `rest` is used only by the next chunk; no landing that the link has
/// gone on behind ([`Landing::then_head`]) is at the link when the chunk that it belongs to ends.
#[derive(Debug)]
pub(crate) struct Chunks<I> {
    stage: Stage,
    tag: u64,
    /// Bytes of the chunk that are neither taken nor ordered.
    left_bytes: u64,
    aside: Option<I>,
    rest: Rest,
}

/// Where in a chunk the link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Outside,
    /// The header of the frame is next.
    Opening,
    Inside,
}

/// What the frame wants first of its next chunk.
#[derive(Debug, Default)]
enum Rest {
    #[default]
    Bytes,
    Landing(Landing),
    Discard {
        bytes: u64,
        then_at_least_bytes: usize,
    },
}

/// How a peer broke the rules of frames in chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChunkError {
    /// A chunk without bytes.
    #[error("chunk header: 0 bytes, allowed are chunks with bytes")]
    Empty,
    /// A chunk of another frame than the one that has begun.
    #[error(
        "chunk header: tag {found:#018x}, allowed is {allowed:#018x}, whose frame is not complete"
    )]
    Tag {
        /// The tag.
        found: u64,
        /// That of the frame that has begun.
        allowed: u64,
    },
    /// A frame that has another tag than its chunks.
    #[error(
        "a frame in chunks with tag {allowed:#018x} has the tag {found:#018x}, allowed is the same"
    )]
    FrameTag {
        /// That of the frame.
        found: u64,
        /// That of its chunks.
        allowed: u64,
    },
    /// A chunk in a chunk.
    #[error("the frame in a chunk begins as a chunk does, allowed are frames of star")]
    Nested,
    /// A chunk that is longer than what its frame lacks.
    #[error("a chunk has {found_bytes} bytes behind the end of its frame, allowed are 0")]
    Beyond {
        /// How much longer.
        found_bytes: u64,
    },
    /// A chunk that ends where no chunk may.
    #[error(
        "a chunk ends {found_bytes} bytes into a head of {wanted_bytes}, allowed is an end in payload"
    )]
    CutHead {
        /// What there is of the head.
        found_bytes: u64,
        /// Its length.
        wanted_bytes: usize,
    },
}

/// An end of a connection that takes frames in chunks.
pub(crate) trait TakesChunks {
    /// What the next bytes are; the default is the header of a frame.
    type Inbound: Default;

    fn chunks(&mut self) -> &mut Chunks<Self::Inbound>;

    fn inbound(&mut self) -> &mut Self::Inbound;

    fn is_between_frames(&self) -> bool;

    /// Landings of the frame at hand that were ordered and are not back.
    fn landings_out(&self) -> usize;

    /// Reads what the cursor shows, and says what the link shall do; if a chunk has begun, that means nothing.
    fn read_frames(
        &mut self,
        now: Time,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Next, PeerViolation>;

    /// Takes memory that is filled.
    fn land(
        &mut self,
        memory: Buffer,
        cursor: &mut Cursor<'_>,
    ) -> Result<Option<Next>, PeerViolation>;

    /// Drops what landed for want of memory, with its call, and orders so many bytes to be dropped
    /// that are still to come for it, and those behind them that belong to the call and have no
    /// head.
    fn give_up(&mut self, left_bytes: u64, status: Status) -> Next;

    /// Lets a landing that is full and not complete go on with more memory.
    fn grow(&mut self, landing: Landing, landings: &mut dyn Landings) -> Next {
        let left_bytes = landing.missing_bytes() as u64;
        match landing.grow(|memory, whole_len| grown(landings, memory, whole_len)) {
            Ok(landing) => Next::Land(landing),
            Err(status) => self.give_up(left_bytes, status),
        }
    }

    /// Takes memory that is filled, and reads on.
    fn land_and_read(
        &mut self,
        now: Time,
        memory: Buffer,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Next, PeerViolation> {
        match self.land(memory, cursor)? {
            Some(next) => Ok(next),
            None => self.read_frames(now, cursor, landings),
        }
    }
}

impl<I> Default for Chunks<I> {
    fn default() -> Self {
        Self {
            stage: Stage::Outside,
            tag: 0,
            left_bytes: 0,
            aside: None,
            rest: Rest::Bytes,
        }
    }
}

impl<I: Default> Chunks<I> {
    /// Whether a frame has begun that is not complete.
    pub(crate) fn is_begun(&self) -> bool {
        self.aside.is_some() || self.is_inside()
    }

    /// What the frame that has begun wants next, if that is not at hand.
    pub(crate) fn aside(&self) -> Option<&I> {
        self.aside.as_ref()
    }

    /// Whether the link is inside a chunk.
    pub(crate) fn is_inside(&self) -> bool {
        self.stage != Stage::Outside
    }

    /// Whether the frame has had its header, so that what looks like the next is behind its end.
    #[inline]
    pub(crate) fn is_opened(&self) -> bool {
        self.stage == Stage::Inside
    }

    /// Takes the header of a chunk, if that is what the bytes are.
    #[inline]
    pub(crate) fn begin(
        &mut self,
        bytes: &[u8; HEADER_BYTES],
        inbound: &mut I,
        frame_bytes_max: u64,
    ) -> Result<bool, PeerViolation> {
        match ChunkHeader::find(bytes) {
            Some(header) => self.enter(header, inbound, frame_bytes_max).map(|()| true),
            None => Ok(false),
        }
    }

    #[cold]
    fn enter(
        &mut self,
        header: ChunkHeader,
        inbound: &mut I,
        frame_bytes_max: u64,
    ) -> Result<(), PeerViolation> {
        if self.is_inside() {
            return Err(ChunkError::Nested.into());
        }
        if header.payload_bytes == 0 {
            return Err(ChunkError::Empty.into());
        }
        PeerViolation::check_length("a chunk", header.payload_bytes, frame_bytes_max)?;
        self.stage = match self.aside.take() {
            Some(aside) if header.tag == self.tag => {
                *inbound = aside;
                Stage::Inside
            }
            Some(_) => {
                return Err(ChunkError::Tag {
                    found: header.tag,
                    allowed: self.tag,
                }
                .into());
            }
            None => Stage::Opening,
        };
        self.tag = header.tag;
        self.left_bytes = header.payload_bytes;
        Ok(())
    }

    /// Notes the header of a frame, in a chunk or not.
    #[inline]
    pub(crate) fn open(&mut self, tag: u64) -> Result<(), ChunkError> {
        if self.stage == Stage::Opening {
            if tag != self.tag {
                return Err(ChunkError::FrameTag {
                    found: tag,
                    allowed: self.tag,
                });
            }
            self.stage = Stage::Inside;
        }
        Ok(())
    }
}

/// Reads what the cursor shows, and says what the link shall do next.
#[inline]
pub(crate) fn read<E: TakesChunks>(
    end: &mut E,
    now: Time,
    cursor: &mut Cursor<'_>,
    landings: &mut dyn Landings,
) -> Result<Next, PeerViolation> {
    if !end.chunks().is_inside() {
        let next = end.read_frames(now, cursor, landings);
        if !end.chunks().is_inside() {
            return next;
        }
        next?;
    }
    read_chunks(end, now, cursor, landings)
}

/// As [`read`], from inside a chunk on.
#[cold]
fn read_chunks<E: TakesChunks>(
    end: &mut E,
    now: Time,
    cursor: &mut Cursor<'_>,
    landings: &mut dyn Landings,
) -> Result<Next, PeerViolation> {
    loop {
        let next = if end.chunks().left_bytes > 0 {
            read_chunk(end, now, cursor, landings)?
        } else {
            leave(end)
        };
        if let Some(next) = next {
            return Ok(next);
        }
        if !end.chunks().is_inside() {
            let next = end.read_frames(now, cursor, landings)?;
            if !end.chunks().is_inside() {
                return Ok(next);
            }
        }
    }
}

/// Takes a landing that was ordered inside a chunk, and says what the link shall do next.
pub(crate) fn landed<E: TakesChunks>(
    end: &mut E,
    now: Time,
    landing: Landing,
    landings: &mut dyn Landings,
) -> Result<Next, PeerViolation> {
    let cursor = &mut Cursor::new(&[]);
    // Memory of the link has all of the bytes, of which a window was ordered.
    let beyond_bytes = landing.replaced_beyond_bytes() as u64;
    end.chunks().left_bytes -= beyond_bytes;
    if beyond_bytes == 0
        && let Some(at_least_bytes) = landing.then_head_bytes()
    {
        end.land(landing.into_shared(), cursor)?;
        // What the link does anyway, if it has gone on.
        return Ok(Next::Head { at_least_bytes });
    }
    let landing = landing.whole();
    if !landing.is_full() {
        end.chunks().rest = Rest::Landing(landing);
    } else if !landing.is_complete() {
        let next = end.grow(landing, landings);
        if let Some(next) = order(end, next)? {
            return Ok(next);
        }
    } else if landing.filled_bytes() > 0 {
        let next = end.land_and_read(now, landing.into_shared(), cursor, landings)?;
        if let Some(next) = order(end, next)? {
            return Ok(next);
        }
    }
    read(end, now, cursor, landings)
}

/// Reads what the cursor shows of the present chunk. `None` says that the link has orders for all of it.
fn read_chunk<E: TakesChunks>(
    end: &mut E,
    now: Time,
    cursor: &mut Cursor<'_>,
    landings: &mut dyn Landings,
) -> Result<Option<Next>, PeerViolation> {
    let mut bytes = cursor.within(end.chunks().left_bytes);
    let next = match mem::take(&mut end.chunks().rest) {
        Rest::Bytes => end.read_frames(now, &mut bytes, landings)?,
        Rest::Landing(landing) => match bytes.fill_landing(landing) {
            Filled::Whole(memory) => end.land_and_read(now, memory, &mut bytes, landings)?,
            Filled::Partly(landing) => Next::Land(landing),
        },
        Rest::Discard {
            bytes: left_bytes,
            then_at_least_bytes,
        } => match bytes.skip(left_bytes, then_at_least_bytes) {
            Some(next) => next,
            None => end.read_frames(now, &mut bytes, landings)?,
        },
    };
    let taken_bytes = bytes.consumed_bytes();
    cursor.slice(taken_bytes);
    end.chunks().left_bytes -= taken_bytes as u64;
    order(end, next)
}

/// The part of an order that the present chunk has the bytes for, if it has any.
fn order<E: TakesChunks>(end: &mut E, next: Next) -> Result<Option<Next>, PeerViolation> {
    let is_frame_over = end.is_between_frames() && end.chunks().is_opened();
    let chunks = end.chunks();
    match next {
        Next::Head { at_least_bytes } => {
            chunks.check_head(is_frame_over, at_least_bytes)?;
            Ok((chunks.left_bytes > 0).then_some(next))
        }
        Next::Land(landing) if chunks.left_bytes == 0 => {
            chunks.rest = Rest::Landing(landing);
            Ok(None)
        }
        Next::Land(landing) => {
            let part_bytes = landing.remaining_bytes() as u64;
            let part_bytes = part_bytes.min(chunks.left_bytes);
            let landing = match landing.missing_bytes() as u64 <= chunks.left_bytes {
                true => landing,
                // Memory of the link would hold more than the chunk has.
                false => landing.fixed(),
            };
            chunks.left_bytes -= part_bytes;
            Ok(Some(Next::Land(if chunks.left_bytes == 0 {
                landing.part(part_bytes as usize)
            } else {
                landing
            })))
        }
        Next::Discard {
            bytes,
            mut then_at_least_bytes,
        } => {
            let part_bytes = bytes.min(chunks.left_bytes);
            chunks.left_bytes -= part_bytes;
            if part_bytes < bytes {
                chunks.rest = Rest::Discard {
                    bytes: bytes - part_bytes,
                    then_at_least_bytes,
                };
            } else {
                chunks.check_head(is_frame_over, then_at_least_bytes)?;
            }
            if chunks.left_bytes == 0 {
                then_at_least_bytes = HEADER_BYTES;
            }
            Ok((part_bytes > 0).then_some(Next::Discard {
                bytes: part_bytes,
                then_at_least_bytes,
            }))
        }
        Next::Pause => Ok(Some(next)),
    }
}

/// Ends a chunk, and the frame if it is over; or orders what comes back after all landings that are at the link.
fn leave<E: TakesChunks>(end: &mut E) -> Option<Next> {
    let rest_landings = usize::from(matches!(end.chunks().rest, Rest::Landing(_)));
    if end.landings_out() > rest_landings {
        return Some(Next::Land(Landing::new(BufferMut::new())));
    }
    let is_between_frames = end.is_between_frames();
    let inbound = mem::take(end.inbound());
    let chunks = end.chunks();
    let is_over = is_between_frames && matches!(chunks.rest, Rest::Bytes);
    chunks.stage = Stage::Outside;
    chunks.aside = (!is_over).then_some(inbound);
    None
}

impl<I: Default> Chunks<I> {
    /// Checks that what is left of the chunk begins with a head, if the frame is not over.
    fn check_head(&self, is_frame_over: bool, wanted_bytes: usize) -> Result<(), ChunkError> {
        let found_bytes = self.left_bytes;
        if is_frame_over && found_bytes > 0 {
            return Err(ChunkError::Beyond { found_bytes });
        }
        if (1..wanted_bytes as u64).contains(&found_bytes) {
            return Err(ChunkError::CutHead {
                found_bytes,
                wanted_bytes,
            });
        }
        Ok(())
    }
}
