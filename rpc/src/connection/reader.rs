//! How both ends read frames: what the next bytes are, and what the link shall do with them.
//!
//! A [`Side`] says what a frame of its peer is and takes what it has; the order in which the parts
//! of a frame come, memory for them, and giving up for want of memory are the same for both and lie
//! here. Frames in chunks come through [`chunks`], between the link and the functions of this file.

use std::fmt::Debug;
use std::mem;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_transport::{Landing, Next, Progress, Time};

use super::body::Body;
use super::cursor::{Cursor, Filled};
use super::landings::{grown, message};
use super::{ConnectionLimits, Landings, PeerViolation};
use crate::Status;
use crate::extensions::chunks::reader::{self as chunks, ChunkReader};
use crate::wire::{HEADER_BYTES, RecordCache};

/// An end of a connection, as far as its frames are read.
///
/// What its methods answer is what the link shall do next; `None` says that the reader goes on.
pub(crate) trait Side: Sized {
    /// The header of a frame.
    type Header;
    /// What bytes are for that are wanted as a whole.
    type Whole: Debug;
    /// Whom tensors belong to.
    type Tensors: Debug;

    fn reader(&mut self) -> &mut FrameReader<Self>;

    /// Reads a header. Returns its tag too.
    fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<(Self::Header, u64), PeerViolation>;

    /// Whether the peer may send frames in chunks.
    fn takes_chunks(&self) -> bool;

    /// Whether another frame may begin, whatever it is.
    fn may_begin(&self) -> bool;

    /// Whether a frame with this header may begin although others may not, because what has begun
    /// may wait for it. If not, the link pauses.
    fn must_begin(&mut self, bytes: &[u8; HEADER_BYTES]) -> bool;

    /// Begins a frame.
    fn begin(
        &mut self,
        now: Time,
        header: Self::Header,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation>;

    /// Takes bytes that were wanted as a whole.
    fn take_whole(
        &mut self,
        whole: Whole<Self::Whole>,
        bytes: Buffer,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation>;

    /// Ends what bytes were for that are dropped, with the bytes of the frame behind them.
    fn drop_whole(&mut self, what: Self::Whole, status: Status);

    /// Lets tensors fail that are on their way in and that nobody waits for any more.
    fn drop_unwanted(&mut self);

    /// Takes tensors that are complete.
    fn take_tensors(&mut self, of: Self::Tensors, body: Body);

    /// Puts tensors aside whose data still lands while the link shows the next frame.
    fn set_aside(&mut self, of: Self::Tensors, body: Body);

    /// Takes a landing for tensors that were set aside. Any other comes back.
    fn take_aside(&mut self, landing: Landing) -> Option<Landing>;

    /// Notes how much memory frames have that are not complete, beyond what each has at first.
    fn note_arriving(&mut self, _bytes: u64) {}

    /// Whether frames that are not complete may have so much memory.
    ///
    /// # Errors
    /// Why not; the frame at hand fails.
    fn check_arriving(
        &self,
        _wanted: ArrivingBytes,
        _landings: &mut dyn Landings,
    ) -> Result<(), Status> {
        Ok(())
    }
}

/// Memory of frames that are not complete, beyond what each landing has at first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ArrivingBytes {
    /// Of the frame at hand.
    pub(crate) frame: u64,
    /// Of all frames of the connection.
    pub(crate) all: u64,
}

/// What an end reads next.
#[derive(Debug)]
pub(crate) struct FrameReader<S: Side> {
    /// What is taken from the peer. Originals send frames that they cannot take.
    pub(crate) limits: ConnectionLimits,
    pub(crate) part: Part<S>,
    pub(crate) chunks: ChunkReader<Part<S>>,
    pub(crate) records: RecordCache,
    /// Frames that have begun.
    frames: u64,
    /// Memory that has grown, of what lands of a frame that comes whole, and of one in chunks.
    grown_bytes: [u64; 2],
}

/// What the next bytes from the peer are.
#[derive(Debug, Default)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one in each connection, and a box would be allocated for each frame"
)]
pub(crate) enum Part<S: Side> {
    /// The header of a frame.
    #[default]
    Header,
    /// Bytes that are wanted as a whole, for which the link has the memory.
    Whole(Whole<S::Whole>),
    /// Tensors.
    Tensors { of: S::Tensors, body: Body },
}

/// Bytes of a frame that are wanted as a whole.
#[derive(Debug)]
pub(crate) struct Whole<W> {
    pub(crate) what: W,
    pub(crate) len_bytes: usize,
    /// What the header says of the length of the frame behind them.
    pub(crate) behind_bytes: u64,
}

/// What the link shall do before the first frame, and between two.
pub(crate) const HEADER_ORDER: Next = Next::Head {
    at_least_bytes: HEADER_BYTES,
};

impl<S: Side> FrameReader<S> {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Self {
            limits,
            part: Part::Header,
            chunks: ChunkReader::default(),
            records: RecordCache::default(),
            frames: 0,
            grown_bytes: [0; 2],
        }
    }

    /// Forgets what has begun, because the link is gone.
    pub(crate) fn close(&mut self) {
        self.part = Part::Header;
        self.chunks = ChunkReader::default();
        self.grown_bytes = [0; 2];
    }

    /// Frames of the peer that have begun.
    pub(crate) fn frames(&self) -> u64 {
        self.frames
    }

    /// Whether the next bytes are a header.
    pub(crate) fn is_between_frames(&self) -> bool {
        matches!(self.part, Part::Header)
    }

    /// Whether a frame has begun that is not complete.
    pub(crate) fn is_within_frame(&self) -> bool {
        !self.is_between_frames() || self.chunks.is_begun()
    }

    /// What the frame that arrives in chunks takes of the arena, while another is at hand.
    pub(crate) fn beside_bytes(&self) -> u64 {
        match self.chunks.aside() {
            Some(Part::Tensors { body, .. }) => body.arena_bytes(),
            Some(Part::Header | Part::Whole(_)) | None => 0,
        }
    }

    /// How much memory frames have that are not complete.
    #[inline]
    fn arriving_bytes(&self) -> ArrivingBytes {
        if !self.is_within_frame() {
            return ArrivingBytes::default();
        }
        let arrived = |part: &Part<S>| match part {
            Part::Tensors { body, .. } => body.arrived_bytes(),
            Part::Header | Part::Whole(_) => 0,
        };
        let is_inside = usize::from(self.chunks.is_inside());
        let frame = arrived(&self.part) + self.grown_bytes[is_inside];
        let aside = self.chunks.aside().map_or(0, arrived);
        ArrivingBytes {
            frame,
            all: frame + aside + self.grown_bytes[1 - is_inside],
        }
    }

    /// The memory that has grown of what lands now.
    #[inline]
    fn grown_bytes(&mut self) -> &mut u64 {
        &mut self.grown_bytes[usize::from(self.chunks.is_inside())]
    }

    /// Landings of the frame at hand that were ordered and are not back.
    pub(crate) fn landings_out(&self) -> usize {
        match &self.part {
            Part::Tensors { body, .. } => body.landings_out(),
            Part::Header | Part::Whole(_) => 0,
        }
    }

    /// Whether tensors still land, behind which the link shows the next frame.
    fn is_landing(&self) -> bool {
        matches!(&self.part, Part::Tensors { body, .. } if body.are_begun() && body.is_landing())
    }
}

/// Takes bytes that the link shows.
pub(crate) fn received<S: Side>(
    side: &mut S,
    now: Time,
    bytes: &[u8],
    landings: &mut dyn Landings,
) -> Result<Progress, PeerViolation> {
    let mut cursor = Cursor::new(bytes);
    if side.reader().is_landing() {
        leave_tensors(side);
    }
    let next = chunks::read(side, now, &mut cursor, landings)?;
    note_arriving(side);
    Ok(Progress {
        consumed_bytes: cursor.consumed_bytes(),
        next,
    })
}

#[inline]
fn note_arriving<S: Side>(side: &mut S) {
    let bytes = side.reader().arriving_bytes().all;
    side.note_arriving(bytes);
}

/// Takes memory that the link has filled.
pub(crate) fn landed<S: Side>(
    side: &mut S,
    now: Time,
    landing: Landing,
    landings: &mut dyn Landings,
) -> Result<Next, PeerViolation> {
    let next = take_landing(side, now, landing, landings);
    note_arriving(side);
    next
}

fn take_landing<S: Side>(
    side: &mut S,
    now: Time,
    landing: Landing,
    landings: &mut dyn Landings,
) -> Result<Next, PeerViolation> {
    if !landing.is_full() {
        // The link died; that it is gone comes as an event of its own.
        return Ok(Next::Pause);
    }
    let is_in_chunk = side.reader().chunks.is_inside();
    if !landing.is_complete() && !is_in_chunk {
        return grow(side, landing, landings);
    }
    let Some(landing) = side.take_aside(landing) else {
        // The link has gone on, so this does not count.
        return Ok(Next::Pause);
    };
    if is_in_chunk {
        return chunks::landed(side, now, landing, landings);
    }
    let cursor = &mut Cursor::new(&[]);
    match take(side, landing.into_shared(), cursor, landings)? {
        Some(next) => Ok(next),
        // The link has gone on: some memory that it fills is not back yet.
        None if side.reader().landings_out() > 0 => Ok(Next::Pause),
        None => chunks::read(side, now, cursor, landings),
    }
}

/// Reads what the cursor shows, and says what the link shall do. `None` says that a chunk has
/// begun.
pub(crate) fn read_frames<S: Side>(
    side: &mut S,
    now: Time,
    cursor: &mut Cursor<'_>,
    landings: &mut dyn Landings,
) -> Result<Option<Next>, PeerViolation> {
    loop {
        let next = match side.reader().part {
            Part::Header => {
                if side.reader().chunks.is_opened() {
                    return Ok(Some(HEADER_ORDER));
                }
                if !side.may_begin()
                    && let Some(bytes) = cursor.peek_rest().first_chunk()
                    && !side.must_begin(bytes)
                {
                    return Ok(Some(Next::Pause));
                }
                let Some(bytes) = cursor.array::<HEADER_BYTES>() else {
                    return Ok(Some(HEADER_ORDER));
                };
                let (header, tag) = S::decode(bytes)?;
                if side.takes_chunks() && chunks::begin(side.reader(), bytes)? {
                    return Ok(None);
                }
                side.reader().chunks.open(tag)?;
                side.reader().frames += 1;
                side.begin(now, header, cursor, landings)?
            }
            Part::Tensors { .. } => read_tensors(side, cursor, landings)?,
            Part::Whole(_) => unreachable!("the link shows bytes only when its landing is done"),
        };
        if next.is_some() {
            return Ok(next);
        }
    }
}

fn read_tensors<S: Side>(
    side: &mut S,
    cursor: &mut Cursor<'_>,
    landings: &mut dyn Landings,
) -> Result<Option<Next>, PeerViolation> {
    side.drop_unwanted();
    let arriving = side.reader().arriving_bytes();
    let FrameReader { part, .. } = side.reader();
    let takes_more = matches!(part, Part::Tensors { body, .. } if !body.are_begun());
    let refused = match takes_more {
        true => side.check_arriving(arriving, landings).err(),
        false => None,
    };
    let FrameReader { part, limits, .. } = side.reader();
    let Part::Tensors { body, .. } = part else {
        unreachable!("the caller has looked");
    };
    if let Some(status) = refused {
        body.fail(status);
    }
    let next = body.advance(cursor, limits, landings)?;
    // Those that are dropped are complete before the link has dropped them.
    if next.is_none() || body.is_complete() {
        leave_tensors(side);
    }
    Ok(next)
}

/// Hands over tensors that have all begun, or sets them aside if their data still lands.
fn leave_tensors<S: Side>(side: &mut S) {
    if let Part::Tensors { of, body } = mem::take(&mut side.reader().part) {
        if body.is_complete() {
            side.take_tensors(of, body);
        } else {
            side.set_aside(of, body);
        }
    }
}

/// Reads bytes that are wanted as a whole, in memory of the owner of the connection.
pub(crate) fn read_whole<S: Side>(
    side: &mut S,
    whole: Whole<S::Whole>,
    cursor: &mut Cursor<'_>,
    landings: &mut dyn Landings,
) -> Result<Option<Next>, PeerViolation> {
    if whole.len_bytes == 0 {
        return side.take_whole(whole, Buffer::new(), cursor, landings);
    }
    let there_bytes = cursor.there(whole.len_bytes as u64);
    let memory = message(landings, whole.len_bytes, there_bytes);
    read_into(side, whole, memory, cursor, landings)
}

/// Reads bytes that are wanted as a whole into this memory, which may be for the first of them.
/// Without memory they are dropped, with those of the frame behind them.
pub(crate) fn read_into<S: Side>(
    side: &mut S,
    whole: Whole<S::Whole>,
    memory: Result<BufferMut, Status>,
    cursor: &mut Cursor<'_>,
    landings: &mut dyn Landings,
) -> Result<Option<Next>, PeerViolation> {
    let memory = match memory {
        Ok(memory) => memory,
        Err(status) => {
            let bytes = drop_whole(side, whole, status)?;
            return Ok(cursor.skip(bytes, HEADER_BYTES));
        }
    };
    match cursor.fill(memory, whole.len_bytes) {
        Filled::Whole(bytes) => side.take_whole(whole, bytes, cursor, landings),
        Filled::Partly(landing) => {
            side.reader().part = Part::Whole(whole);
            Ok(Some(Next::Land(landing)))
        }
    }
}

/// Takes memory that is filled.
pub(crate) fn take<S: Side>(
    side: &mut S,
    memory: Buffer,
    cursor: &mut Cursor<'_>,
    landings: &mut dyn Landings,
) -> Result<Option<Next>, PeerViolation> {
    *side.reader().grown_bytes() = 0;
    match &mut side.reader().part {
        // The link is gone, and this was on its way.
        Part::Header => {}
        Part::Tensors { body, .. } => body.landed(memory),
        part @ Part::Whole(_) => {
            if let Part::Whole(whole) = mem::take(part) {
                return side.take_whole(whole, memory, cursor, landings);
            }
        }
    }
    Ok(None)
}

/// Lets a landing that is full and not complete go on with more memory.
pub(crate) fn grow<S: Side>(
    side: &mut S,
    landing: Landing,
    landings: &mut dyn Landings,
) -> Result<Next, PeerViolation> {
    let there_bytes = landing.filled_bytes() as u64;
    let left_bytes = landing.missing_bytes() as u64;
    *side.reader().grown_bytes() = 0;
    let others = side.reader().arriving_bytes();
    let longer = landing.grow(|memory, whole_len| {
        let longer = grown(landings, memory, whole_len)?;
        let wanted = ArrivingBytes {
            frame: others.frame + longer.len() as u64,
            all: others.all + longer.len() as u64,
        };
        side.check_arriving(wanted, landings)?;
        *side.reader().grown_bytes() = longer.len() as u64;
        Ok(longer)
    });
    match longer {
        Ok(landing) => Ok(Next::Land(landing)),
        Err(status) => give_up(side, there_bytes, left_bytes, status),
    }
}

/// Drops what landed for want of memory, and orders to be dropped what is still to come for it and
/// what is behind it and has no head.
#[cold]
fn give_up<S: Side>(
    side: &mut S,
    there_bytes: u64,
    left_bytes: u64,
    status: Status,
) -> Result<Next, PeerViolation> {
    match &mut side.reader().part {
        Part::Tensors { body, .. } => {
            let (behind_bytes, then_at_least_bytes) = body.give_up(status);
            if body.is_complete() {
                leave_tensors(side);
            }
            Ok(Next::Discard {
                bytes: left_bytes.saturating_add(behind_bytes),
                then_at_least_bytes,
            })
        }
        part => {
            let Part::Whole(whole) = mem::take(part) else {
                unreachable!("memory that grows belongs to what has begun");
            };
            Ok(Next::Discard {
                bytes: drop_whole(side, whole, status)? - there_bytes,
                then_at_least_bytes: HEADER_BYTES,
            })
        }
    }
}

/// Ends what bytes were for that there is no memory for. Returns how many bytes are to be dropped,
/// with those of the frame behind them.
#[cold]
fn drop_whole<S: Side>(
    side: &mut S,
    whole: Whole<S::Whole>,
    status: Status,
) -> Result<u64, PeerViolation> {
    let bytes = (whole.len_bytes as u64).saturating_add(whole.behind_bytes);
    let allowed_max = side.reader().limits.payload_bytes();
    PeerViolation::check_length("a frame that there is no memory for", bytes, allowed_max)?;
    side.drop_whole(whole.what, status);
    Ok(bytes)
}
