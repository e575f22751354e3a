//! Frames that arrive in chunks: what a frame wants next becomes what the link shall do within the
//! present chunk of it.

use std::mem;

use grpcxx_memory::BufferMut;
use grpcxx_transport::{Landing, Next, Time};

use super::wire::{ChunkError, ChunkHeader};
use crate::connection::cursor::{Cursor, Filled};
use crate::connection::reader::{FrameReader, Side, grow, read_frames, take};
use crate::connection::{Landings, PeerViolation};
use crate::wire::HEADER_BYTES;

/// The frame that arrives in chunks, if one does.
///
/// There is at most one at a time. Inside a chunk that frame is read as any frame is, from no more
/// bytes than the chunk has; between two chunks the part of it that comes next is put aside.
///
/// Invariants: `left_bytes` is 0 outside of chunks; `aside` is there only outside of chunks; `rest`
/// is a landing or bytes to drop, and used only by the next chunk; no landing that the link has
/// gone on behind ([`Landing::then_head`]) is at the link when the chunk that it belongs to ends.
#[derive(Debug)]
pub(crate) struct ChunkReader<P> {
    stage: Stage,
    tag: u64,
    /// Bytes of the chunk that are neither taken nor ordered.
    left_bytes: u64,
    aside: Option<P>,
    /// What the frame wants first of its next chunk, if that is not to be shown.
    rest: Option<Next>,
}

/// Where in a chunk the link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Outside,
    /// The header of the frame is next.
    Opening,
    Inside,
}

impl<P> Default for ChunkReader<P> {
    fn default() -> Self {
        Self {
            stage: Stage::Outside,
            tag: 0,
            left_bytes: 0,
            aside: None,
            rest: None,
        }
    }
}

impl<P> ChunkReader<P> {
    /// Whether bytes of a frame are to come, as far as the part at hand does not say so. The link
    /// may have orders for the last of them; until it shows what is behind, the chunk is not left.
    pub(crate) fn is_begun(&self) -> bool {
        self.aside.is_some() || self.rest.is_some() || self.left_bytes > 0
    }

    /// The next part of the frame that has begun, if that is not at hand.
    pub(crate) fn aside(&self) -> Option<&P> {
        self.aside.as_ref()
    }

    /// Whether the link is inside a chunk.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        self.stage != Stage::Outside
    }

    /// Whether the frame has had its header, so that what looks like the next is behind its end.
    #[inline]
    pub(crate) fn is_opened(&self) -> bool {
        self.stage == Stage::Inside
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

    /// The part of an order that the present chunk has the bytes for, if it has any.
    fn limit(&mut self, next: Next, is_frame_over: bool) -> Result<Option<Next>, ChunkError> {
        match next {
            Next::Head { at_least_bytes } => {
                self.check_head(is_frame_over, at_least_bytes)?;
                Ok((self.left_bytes > 0).then_some(next))
            }
            Next::Land(_) if self.left_bytes == 0 => {
                self.rest = Some(next);
                Ok(None)
            }
            Next::Land(landing) => Ok(Some(Next::Land(self.limit_landing(landing)))),
            Next::Discard {
                bytes,
                mut then_at_least_bytes,
            } => {
                let part_bytes = bytes.min(self.left_bytes);
                self.left_bytes -= part_bytes;
                if part_bytes < bytes {
                    self.rest = Some(Next::Discard {
                        bytes: bytes - part_bytes,
                        then_at_least_bytes,
                    });
                } else {
                    self.check_head(is_frame_over, then_at_least_bytes)?;
                }
                if self.left_bytes == 0 {
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

    fn limit_landing(&mut self, landing: Landing) -> Landing {
        let part_bytes = (landing.remaining_bytes() as u64).min(self.left_bytes);
        let landing = match landing.missing_bytes() as u64 <= self.left_bytes {
            true => landing,
            // Memory of the link would hold more than the chunk has.
            false => landing.fixed(),
        };
        self.left_bytes -= part_bytes;
        match self.left_bytes {
            0 => landing.part(part_bytes as usize),
            _ => landing,
        }
    }

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

/// Takes the header of a chunk, if that is what the bytes are.
#[inline]
pub(crate) fn begin<S: Side>(
    reader: &mut FrameReader<S>,
    bytes: &[u8; HEADER_BYTES],
) -> Result<bool, PeerViolation> {
    match ChunkHeader::find(bytes) {
        Some(header) => enter(reader, header).map(|()| true),
        None => Ok(false),
    }
}

#[cold]
fn enter<S: Side>(reader: &mut FrameReader<S>, header: ChunkHeader) -> Result<(), PeerViolation> {
    let chunks = &mut reader.chunks;
    if chunks.is_inside() {
        return Err(ChunkError::Nested.into());
    }
    if header.payload_bytes == 0 {
        return Err(ChunkError::Empty.into());
    }
    PeerViolation::check_length("a chunk", header.payload_bytes, reader.limits.frame_bytes)?;
    chunks.stage = match chunks.aside.take() {
        Some(part) if header.tag == chunks.tag => {
            reader.part = part;
            Stage::Inside
        }
        Some(_) => {
            let (found, allowed) = (header.tag, chunks.tag);
            return Err(ChunkError::Tag { found, allowed }.into());
        }
        None => Stage::Opening,
    };
    chunks.tag = header.tag;
    chunks.left_bytes = header.payload_bytes;
    Ok(())
}

/// Reads what the cursor shows, and says what the link shall do next.
#[inline]
pub(crate) fn read<S: Side>(
    side: &mut S,
    now: Time,
    cursor: &mut Cursor<'_>,
    landings: &mut dyn Landings,
) -> Result<Next, PeerViolation> {
    if !side.reader().chunks.is_inside()
        && let Some(next) = read_frames(side, now, cursor, landings)?
    {
        return Ok(next);
    }
    read_chunks(side, now, cursor, landings)
}

/// As [`read`], from inside a chunk on.
#[cold]
fn read_chunks<S: Side>(
    side: &mut S,
    now: Time,
    cursor: &mut Cursor<'_>,
    landings: &mut dyn Landings,
) -> Result<Next, PeerViolation> {
    loop {
        let next = if side.reader().chunks.left_bytes > 0 {
            read_chunk(side, now, cursor, landings)?
        } else {
            leave(side.reader())
        };
        if let Some(next) = next {
            return Ok(next);
        }
        if !side.reader().chunks.is_inside()
            && let Some(next) = read_frames(side, now, cursor, landings)?
        {
            return Ok(next);
        }
    }
}

/// Reads what the cursor shows of the present chunk. `None` says that the link has orders for all
/// of it.
fn read_chunk<S: Side>(
    side: &mut S,
    now: Time,
    cursor: &mut Cursor<'_>,
    landings: &mut dyn Landings,
) -> Result<Option<Next>, PeerViolation> {
    let chunks = &mut side.reader().chunks;
    let mut bytes = cursor.within(chunks.left_bytes);
    let next = match chunks.rest.take() {
        Some(Next::Land(landing)) => match bytes.fill_landing(landing) {
            Filled::Whole(memory) => take(side, memory, &mut bytes, landings)?,
            Filled::Partly(landing) => Some(Next::Land(landing)),
        },
        Some(Next::Discard {
            bytes: left_bytes,
            then_at_least_bytes,
        }) => bytes.skip(left_bytes, then_at_least_bytes),
        Some(Next::Head { .. } | Next::Pause) | None => None,
    };
    let next = match next {
        Some(next) => next,
        None => read_part(side, now, &mut bytes, landings)?,
    };
    let taken_bytes = bytes.consumed_bytes();
    cursor.slice(taken_bytes);
    side.reader().chunks.left_bytes -= taken_bytes as u64;
    limit(side.reader(), next)
}

/// Takes a landing that was ordered inside a chunk, and says what the link shall do next.
pub(crate) fn landed<S: Side>(
    side: &mut S,
    now: Time,
    landing: Landing,
    landings: &mut dyn Landings,
) -> Result<Next, PeerViolation> {
    let cursor = &mut Cursor::new(&[]);
    // Memory of the link has all of the bytes, of which a window was ordered.
    let beyond_bytes = landing.replaced_beyond_bytes() as u64;
    side.reader().chunks.left_bytes -= beyond_bytes;
    if beyond_bytes == 0
        && let Some(at_least_bytes) = landing.then_head_bytes()
    {
        take(side, landing.into_shared(), cursor, landings)?;
        // What the link does anyway, if it has gone on.
        return Ok(Next::Head { at_least_bytes });
    }
    let landing = landing.whole();
    let next = if !landing.is_full() {
        Next::Land(landing)
    } else if !landing.is_complete() {
        grow(side, landing, landings)?
    } else if landing.filled_bytes() > 0 {
        match take(side, landing.into_shared(), cursor, landings)? {
            Some(next) => next,
            None => read_part(side, now, cursor, landings)?,
        }
    } else {
        return read(side, now, cursor, landings);
    };
    match limit(side.reader(), next)? {
        Some(next) => Ok(next),
        None => read(side, now, cursor, landings),
    }
}

/// Reads the frame from within one of its chunks.
fn read_part<S: Side>(
    side: &mut S,
    now: Time,
    bytes: &mut Cursor<'_>,
    landings: &mut dyn Landings,
) -> Result<Next, PeerViolation> {
    let next = read_frames(side, now, bytes, landings)?;
    Ok(next.expect("a chunk that begins in a chunk is a violation"))
}

/// The part of an order that the present chunk has the bytes for, if it has any.
fn limit<S: Side>(reader: &mut FrameReader<S>, next: Next) -> Result<Option<Next>, PeerViolation> {
    let is_frame_over = reader.is_between_frames() && reader.chunks.is_opened();
    Ok(reader.chunks.limit(next, is_frame_over)?)
}

/// Ends a chunk, and the frame if it is over; or orders what comes back after all landings that are
/// at the link.
fn leave<S: Side>(reader: &mut FrameReader<S>) -> Option<Next> {
    let is_rest_landing = matches!(reader.chunks.rest, Some(Next::Land(_)));
    if reader.landings_out() > usize::from(is_rest_landing) {
        return Some(Next::Land(Landing::new(BufferMut::new())));
    }
    let is_over = reader.is_between_frames() && reader.chunks.rest.is_none();
    let part = mem::take(&mut reader.part);
    reader.chunks.stage = Stage::Outside;
    reader.chunks.aside = (!is_over).then_some(part);
    None
}
