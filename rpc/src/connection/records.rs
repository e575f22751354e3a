//! Tensor records on their way in, each head before its data.

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_transport::Next;
use smallvec::SmallVec;

use super::cursor::{Cursor, Filled};
use super::{ConnectionLimits, Landings, PeerViolation};
use crate::wire::{HEADER_BYTES, RECORD_BYTES, RecordError, ShapeForms, decode_record};
use crate::{Code, Reason, Status, Tensor, TensorMeta, Text};

mod memory;

pub(crate) use memory::{
    beyond_share, landing, message_too_long, tensor_memory, tensor_memory_within,
};

/// The tensor records of one frame on their way in.
#[derive(Debug)]
pub(crate) struct Records {
    token: u64,
    wanted: usize,
    begun: usize,
    /// For each record the index that its memory is asked with; empty if that is its place.
    indexes: Vec<u32>,
    /// Records whose data lands, oldest first, with those between that are there already.
    landing: SmallVec<[(TensorMeta, Option<Buffer>); 1]>,
    /// Whether landings let the link show what follows before they are back.
    goes_on: bool,
    shapes: ShapeForms,
    arrived: SmallVec<[Tensor; 1]>,
    failure: Option<Failure>,
    frame_bytes: u64,
    /// What the data that is announced takes of the arena, with what other frames of the connection
    /// take.
    arena_bytes: u64,
    /// How much of that other frames take.
    beside_bytes: u64,
}

/// Why a frame has no tensors for whoever waits for them, though it is read to its end.
#[derive(Debug)]
enum Failure {
    Status(Status),
    /// The tensor with this index came without its dimensions.
    OutOfLine {
        index: usize,
        cause: RecordError,
    },
}

impl Records {
    /// `wanted` records behind `head_bytes` bytes of payload.
    pub(crate) fn new(token: u64, wanted: usize, head_bytes: u64) -> Self {
        Self {
            token,
            wanted,
            begun: 0,
            indexes: Vec::new(),
            landing: SmallVec::new(),
            goes_on: false,
            shapes: ShapeForms::Star,
            arrived: SmallVec::with_capacity(wanted.min(RESERVED_MAX)),
            failure: None,
            frame_bytes: HEADER_BYTES as u64 + head_bytes,
            arena_bytes: 0,
            beside_bytes: 0,
        }
    }

    /// The same, beside other frames of the connection that take so much of the arena.
    pub(crate) fn beside(self, arena_bytes: u64) -> Self {
        Self {
            arena_bytes,
            beside_bytes: arena_bytes,
            ..self
        }
    }

    /// The same, with the index that the memory of each record is asked with.
    pub(crate) fn with_indexes(self, indexes: Vec<u32>) -> Self {
        Self { indexes, ..self }
    }

    /// The same, whose landings let the link show what follows, also the next frame, before they
    /// are back.
    pub(crate) fn going_on(self) -> Self {
        Self {
            goes_on: true,
            ..self
        }
    }

    /// The same, with the forms in which the peer may send shapes.
    pub(crate) fn with_shapes(self, shapes: ShapeForms) -> Self {
        Self { shapes, ..self }
    }

    /// Drops the rest; the first reason counts.
    pub(crate) fn fail(&mut self, status: Status) {
        self.failure.get_or_insert(Failure::Status(status));
        self.arrived = SmallVec::new();
        self.arena_bytes = self.beside_bytes;
    }

    /// Whether all bytes of all records are there, or ordered to be dropped.
    pub(crate) fn is_complete(&self) -> bool {
        self.begun == self.wanted && self.landing.is_empty()
    }

    /// Whether all records are begun, so that what follows is the next frame.
    pub(crate) fn are_begun(&self) -> bool {
        self.begun == self.wanted
    }

    /// Whether data lands.
    pub(crate) fn is_landing(&self) -> bool {
        !self.landing.is_empty()
    }

    /// Landings that were ordered and are not back.
    pub(crate) fn landings_out(&self) -> usize {
        let out = self.landing.iter().filter(|(_, data)| data.is_none());
        out.count()
    }

    /// What the data takes of the arena.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.arena_bytes - self.beside_bytes
    }

    /// How much of that is there.
    pub(crate) fn arrived_bytes(&self) -> u64 {
        let landing = self.landing.iter().map(|(meta, _)| meta.data_bytes);
        self.arena_bytes().saturating_sub(landing.sum())
    }

    /// Drops what lands, and all that follows.
    pub(crate) fn give_up(&mut self, status: Status) {
        debug_assert_eq!(self.landing.len(), 1, "nothing is begun behind what grows");
        self.landing.clear();
        self.fail(status);
    }

    /// All tensors, with their indexes, once complete. `name` tells how the tensor with an index
    /// was asked for.
    pub(crate) fn into_result(
        self,
        name: impl FnOnce(usize) -> Option<Text>,
    ) -> Result<(SmallVec<[Tensor; 1]>, Vec<u32>), Status> {
        match self.failure {
            Some(Failure::Status(status)) => Err(status),
            Some(Failure::OutOfLine { index, cause }) => {
                Err(out_of_line(index, name(index), &cause))
            }
            None => Ok((self.arrived, self.indexes)),
        }
    }

    /// Takes the memory that was ordered to be filled first.
    pub(crate) fn landed(&mut self, buffer: Buffer) {
        let (meta, landed) = (self.landing.first_mut()).expect("a landing belongs to a record");
        if buffer.is_borrowed() {
            // The peer lends it, in place of memory of the arena.
            let arena_bytes = self.arena_bytes.saturating_sub(meta.data_bytes);
            self.arena_bytes = arena_bytes.max(self.beside_bytes);
        }
        *landed = Some(buffer);
        let there = self.landing.iter().take_while(|(_, data)| data.is_some());
        for _ in 0..there.count() {
            let (meta, data) = self.landing.remove(0);
            self.add(meta, data.unwrap_or_default());
        }
    }

    /// Takes what is there, and says what the link shall do. `None` means that all records are
    /// complete.
    pub(crate) fn advance(
        &mut self,
        cursor: &mut Cursor<'_>,
        limits: &ConnectionLimits,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        while self.begun < self.wanted {
            let Some(head) = cursor.array::<RECORD_BYTES>() else {
                return Ok(Some(Next::Head {
                    at_least_bytes: RECORD_BYTES,
                }));
            };
            let next = match decode_record(head, self.shapes) {
                Ok(meta) => {
                    self.count(meta.data_bytes, limits)?;
                    self.begun += 1;
                    self.take(meta, cursor, limits, landings)
                }
                Err(cause) => self.pass_over(cause, cursor, limits)?,
            };
            if let Some(next) = next {
                return Ok(Some(next));
            }
        }
        Ok(None)
    }

    /// Takes the data of a record.
    fn take(
        &mut self,
        meta: TensorMeta,
        cursor: &mut Cursor<'_>,
        limits: &ConnectionLimits,
        landings: &mut dyn Landings,
    ) -> Option<Next> {
        if meta.data_bytes == 0 {
            self.arrive(meta, Buffer::new());
            return None;
        }
        match self.memory(&meta, cursor, limits, landings) {
            Some(buffer) => match cursor.fill_landing(landing(buffer, &meta)) {
                Filled::Whole(buffer) => {
                    self.arrive(meta, buffer);
                    None
                }
                Filled::Partly(landing) => {
                    self.landing.push((meta, None));
                    let next_bytes = self.next_head_bytes();
                    Some(Next::Land(if self.goes_on {
                        landing.then_head(next_bytes)
                    } else {
                        landing
                    }))
                }
            },
            None => cursor.skip(meta.data_bytes, self.next_head_bytes()),
        }
    }

    /// Drops the data of a tensor whose dimensions stayed with an original; all other errors are
    /// violations.
    #[cold]
    fn pass_over(
        &mut self,
        cause: RecordError,
        cursor: &mut Cursor<'_>,
        limits: &ConnectionLimits,
    ) -> Result<Option<Next>, PeerViolation> {
        let RecordError::OutOfLine { data_bytes, .. } = cause else {
            let index = self.begun;
            return Err(PeerViolation::Record { index, cause });
        };
        self.count(data_bytes, limits)?;
        self.begun += 1;
        let index = self.index();
        self.failure
            .get_or_insert(Failure::OutOfLine { index, cause });
        Ok(cursor.skip(data_bytes, self.next_head_bytes()))
    }

    /// The index of the record that was begun last.
    fn index(&self) -> usize {
        let place = self.begun - 1;
        self.indexes.get(place).map_or(place, |&i| i as usize)
    }

    fn memory(
        &mut self,
        meta: &TensorMeta,
        cursor: &Cursor<'_>,
        limits: &ConnectionLimits,
        landings: &mut dyn Landings,
    ) -> Option<BufferMut> {
        if self.failure.is_some() {
            return None;
        }
        let there_bytes = cursor.there(meta.data_bytes);
        let (token, index) = (self.token, self.index());
        let announced_bytes = self.arena_bytes.saturating_add(meta.data_bytes);
        let place = (token, index);
        tensor_memory_within(announced_bytes, place, meta, there_bytes, limits, landings)
            .and_then(|memory| self.admit(memory, meta, limits))
            .map_err(|status| self.fail(status))
            .ok()
    }

    /// Checks that memory is within what a connection may have.
    fn admit(
        &mut self,
        memory: BufferMut,
        meta: &TensorMeta,
        limits: &ConnectionLimits,
    ) -> Result<BufferMut, Status> {
        if memory.is_arena() {
            self.arena_bytes = self.arena_bytes.saturating_add(meta.data_bytes);
        }
        if self.arena_bytes <= limits.arena_bytes || limits.goes_beyond {
            return Ok(memory);
        }
        Err(beyond_share(self.arena_bytes, limits))
    }

    fn arrive(&mut self, meta: TensorMeta, data: Buffer) {
        if self.landing.is_empty() {
            self.add(meta, data);
        } else {
            self.landing.push((meta, Some(data)));
        }
    }

    fn add(&mut self, meta: TensorMeta, data: Buffer) {
        if self.failure.is_none() {
            self.arrived.push(Tensor {
                dtype: meta.dtype,
                shape: meta.shape,
                is_dead: meta.is_dead,
                data,
            });
        }
    }

    fn count(&mut self, data_bytes: u64, limits: &ConnectionLimits) -> Result<(), PeerViolation> {
        let found = u128::from(self.frame_bytes) + RECORD_BYTES as u128 + u128::from(data_bytes);
        match u64::try_from(found) {
            Ok(frame_bytes) if frame_bytes <= limits.frame_bytes => {
                self.frame_bytes = frame_bytes;
                Ok(())
            }
            _ => Err(PeerViolation::Length {
                place: "a frame with its tensors",
                found: found as i128,
                allowed_max: limits.frame_bytes,
            }),
        }
    }

    /// What the link has to show behind the record that was begun last.
    pub(crate) fn next_head_bytes(&self) -> usize {
        if self.begun == self.wanted {
            HEADER_BYTES
        } else {
            RECORD_BYTES
        }
    }
}

/// The failure of a call whose tensor came without its dimensions.
fn out_of_line(index: usize, name: Option<Text>, cause: &RecordError) -> Status {
    let which = match name {
        Some(name) => format!("tensor {name:?}"),
        None => format!("tensor {index} of the frame"),
    };
    Status::new(
        Code::Unimplemented,
        format!("{which} cannot cross the star protocol: {cause}; reshape it before it is sent"),
    )
    .because(Reason::Limit)
}

/// Most tensors that room is made for before the first of them has come.
pub(crate) const RESERVED_MAX: usize = 1024;
