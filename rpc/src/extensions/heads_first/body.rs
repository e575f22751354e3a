//! The tensors of a response with all heads first, on their way in.

use grpcxx_memory::{Buffer, BufferMut, Parts};
use grpcxx_transport::{Landing, Next};
use smallvec::SmallVec;

use crate::connection::cursor::{Cursor, Filled};
use crate::connection::landings::whole;
use crate::connection::records::{RESERVED_MAX, beyond_share, landing, tensor_memory_within};
use crate::connection::{ConnectionLimits, Landings};
use crate::wire::{DATA_ALIGNMENT_BYTES, HEADER_BYTES, Heads, filled_up};
use crate::{DTypeClass, Status, Tensor, TensorMeta};

/// The data of a response whose heads are known, on its way in.
#[derive(Debug)]
pub(crate) struct HeadsFirst {
    token: u64,
    heads: Heads,
    wanted: usize,
    begun: usize,
    /// The next tensor to begin.
    next: Place,
    /// The next tensor to arrive.
    arriving: Place,
    /// Pieces whose bytes land, oldest first, with those between that are there already.
    landing: SmallVec<[Piece; 1]>,
    /// Whether small tensors share memory.
    shares: bool,
    /// What fills up the tensor that was begun last.
    fill_bytes: usize,
    /// Those that have arrived, made in their places: they are many.
    arrived: Vec<Tensor>,
    failure: Option<Status>,
    /// What the data that is announced takes of the arena, with what other frames of the connection
    /// take.
    arena_bytes: u64,
    /// How much of that other frames take.
    beside_bytes: u64,
}

/// A tensor, by its run.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    run: usize,
    of_run: u32,
}

/// Tensors that follow each other in one piece of memory.
#[derive(Debug)]
struct Piece {
    tensors: usize,
    memory: Option<Buffer>,
}

impl HeadsFirst {
    /// `wanted` tensors, beside other frames of the connection that take so much of the arena.
    pub(crate) fn new(token: u64, heads: Heads, wanted: usize, beside_bytes: u64) -> Self {
        Self {
            token,
            heads,
            wanted,
            begun: 0,
            next: Place::default(),
            arriving: Place::default(),
            landing: SmallVec::new(),
            shares: true,
            fill_bytes: 0,
            arrived: Vec::with_capacity(wanted.min(RESERVED_MAX)),
            failure: None,
            arena_bytes: beside_bytes,
            beside_bytes,
        }
    }

    /// Drops the rest; the first reason counts.
    pub(crate) fn fail(&mut self, status: Status) {
        self.failure.get_or_insert(status);
    }

    /// Whether all bytes of all tensors are there, or ordered to be dropped.
    pub(crate) fn is_complete(&self) -> bool {
        self.are_begun() && self.landing.is_empty()
    }

    /// Whether what follows is the next frame.
    pub(crate) fn are_begun(&self) -> bool {
        self.begun == self.wanted && self.fill_bytes == 0
    }

    /// Whether data lands.
    pub(crate) fn is_landing(&self) -> bool {
        !self.landing.is_empty()
    }

    /// Landings that were ordered and are not back.
    pub(crate) fn landings_out(&self) -> usize {
        let out = self.landing.iter().filter(|piece| piece.memory.is_none());
        out.count()
    }

    /// What the data takes of the arena.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.arena_bytes - self.beside_bytes
    }

    /// Drops what lands, and all that follows. Returns how long the rest is behind what lands.
    pub(crate) fn give_up(&mut self, status: Status) -> u64 {
        debug_assert_eq!(self.landings_out(), 1, "nothing is begun behind what grows");
        self.landing.clear();
        self.fail(status);
        std::mem::take(&mut self.fill_bytes) as u64 + self.take_rest()
    }

    /// All tensors, once complete.
    pub(crate) fn into_result(self) -> Result<SmallVec<[Tensor; 1]>, Status> {
        match self.failure {
            Some(status) => Err(status),
            None => Ok(SmallVec::from_vec(self.arrived)),
        }
    }

    /// Takes the memory that was ordered to be filled first.
    pub(crate) fn landed(&mut self, memory: Buffer) {
        let piece = self.landing.first_mut();
        piece.expect("a landing belongs to a piece").memory = Some(memory);
        let there = self
            .landing
            .iter()
            .take_while(|piece| piece.memory.is_some());
        for _ in 0..there.count() {
            let piece = self.landing.remove(0);
            self.add(piece.tensors, piece.memory.unwrap_or_default());
        }
    }

    /// Takes what is there, and says what the link shall do. `None` means that all data is
    /// complete.
    pub(crate) fn advance(
        &mut self,
        cursor: &mut Cursor<'_>,
        limits: &ConnectionLimits,
        landings: &mut dyn Landings,
    ) -> Option<Next> {
        loop {
            self.take_empty();
            let fill_bytes = std::mem::take(&mut self.fill_bytes) as u64;
            if self.failure.is_some() {
                let left_bytes = fill_bytes + self.take_rest();
                return cursor.skip(left_bytes, HEADER_BYTES);
            }
            if let Some(next) = cursor.skip(fill_bytes, self.next_head_bytes()) {
                return Some(next);
            }
            if self.begun == self.wanted {
                return None;
            }
            if let Some(next) = self.take(cursor, limits, landings) {
                return Some(next);
            }
        }
    }

    /// Takes the data of the next tensors.
    fn take(
        &mut self,
        cursor: &mut Cursor<'_>,
        limits: &ConnectionLimits,
        landings: &mut dyn Landings,
    ) -> Option<Next> {
        let (tensors, len_bytes) = self.next_piece();
        if tensors > 0 && len_bytes > 0 {
            match landings.block(self.token, len_bytes) {
                Some(memory) => match self.admit(
                    whole(Ok(memory), len_bytes as u64),
                    len_bytes as u64,
                    limits,
                ) {
                    Ok(memory) => {
                        for _ in 0..tensors {
                            self.begin();
                        }
                        return self.fill(cursor, tensors, shared(memory));
                    }
                    Err(status) => self.fail(status),
                },
                None => self.shares = false,
            }
            return None;
        }
        let index = self.begun;
        let meta = self.begin().clone();
        let there_bytes = cursor.there(meta.data_bytes);
        let announced_bytes = self.arena_bytes.saturating_add(meta.data_bytes);
        let memory = tensor_memory_within(
            announced_bytes,
            (self.token, index),
            &meta,
            there_bytes,
            limits,
            landings,
        );
        match self.admit(memory, meta.data_bytes, limits) {
            Ok(memory) => {
                self.fill_bytes = (filled_up(meta.data_bytes) - meta.data_bytes) as usize;
                self.fill(cursor, 1, landing(memory, &meta))
            }
            Err(status) => {
                self.fail(status);
                let left_bytes = filled_up(meta.data_bytes) + self.take_rest();
                cursor.skip(left_bytes, HEADER_BYTES)
            }
        }
    }

    /// Checks that memory is within what a connection may have.
    fn admit(
        &mut self,
        memory: Result<BufferMut, Status>,
        announced_bytes: u64,
        limits: &ConnectionLimits,
    ) -> Result<BufferMut, Status> {
        let memory = memory?;
        if memory.is_arena() {
            self.arena_bytes = self.arena_bytes.saturating_add(announced_bytes);
        }
        if self.arena_bytes <= limits.arena_bytes || limits.goes_beyond {
            return Ok(memory);
        }
        Err(beyond_share(self.arena_bytes, limits))
    }

    /// Fills memory for tensors that were begun with what is there, and orders the rest.
    fn fill(&mut self, cursor: &mut Cursor<'_>, tensors: usize, landing: Landing) -> Option<Next> {
        match cursor.fill_landing(landing) {
            Filled::Whole(memory) => {
                self.arrive(tensors, memory);
                None
            }
            Filled::Partly(landing) => {
                self.landing.push(Piece {
                    tensors,
                    memory: None,
                });
                self.take_empty();
                // Behind other landings the next is ordered, and a link that has gone on would take
                // no notice.
                Some(Next::Land(if self.are_begun() {
                    landing.then_head(HEADER_BYTES)
                } else {
                    landing
                }))
            }
        }
    }

    /// How many of the next tensors share memory, and its length; none if the next one has its own.
    fn next_piece(&self) -> (usize, usize) {
        let (mut tensors, mut len_bytes) = (0, 0);
        if !self.shares {
            return (0, 0);
        }
        let mut of_run = self.next.of_run;
        for (count, meta) in &self.heads.runs()[self.next.run..] {
            if meta.data_bytes > SHARED_TENSOR_BYTES_MAX || meta.dtype.class() == DTypeClass::Proto
            {
                break;
            }
            let each_bytes = filled_up(meta.data_bytes) as usize;
            let left = (count - of_run) as usize;
            let room = match each_bytes {
                0 => left,
                each_bytes => (BLOCK_BYTES_MAX - len_bytes) / each_bytes,
            };
            let taken = left.min(room);
            tensors += taken;
            len_bytes += taken * each_bytes;
            if taken < left {
                break;
            }
            of_run = 0;
        }
        (tensors, len_bytes)
    }

    /// Begins the next tensor.
    fn begin(&mut self) -> &TensorMeta {
        self.begun += 1;
        self.next.advance(&self.heads)
    }

    /// Takes the next tensors as long as they have no data: no byte will come that tells of them.
    fn take_empty(&mut self) {
        while let Some((_, meta)) = self.heads.runs().get(self.next.run)
            && meta.data_bytes == 0
        {
            self.begin();
            self.arrive(1, Buffer::new());
        }
    }

    /// Begins all tensors that are left. Returns the length of their data.
    fn take_rest(&mut self) -> u64 {
        let mut left_bytes = 0_u64;
        while self.begun < self.wanted {
            left_bytes = left_bytes.saturating_add(filled_up(self.begin().data_bytes));
        }
        left_bytes
    }

    fn arrive(&mut self, tensors: usize, memory: Buffer) {
        if self.landing.is_empty() {
            self.add(tensors, memory);
        } else {
            self.landing.push(Piece {
                tensors,
                memory: Some(memory),
            });
        }
    }

    /// Makes tensors of their memory.
    fn add(&mut self, tensors: usize, memory: Buffer) {
        // Those without data have no part.
        let with_data = (memory.len() as u64).div_ceil(DATA_ALIGNMENT_BYTES) as usize;
        let mut memory = Parts::new(memory, tensors.min(with_data) as u32);
        let (arriving, heads) = (&mut self.arriving, &self.heads);
        let mut begin = 0;
        self.arrived.extend((0..tensors).map(|_| {
            let meta = arriving.advance(heads);
            let end = begin + meta.data_bytes as usize;
            let data = memory.cut(begin..end);
            begin = filled_up(end as u64) as usize;
            meta.tensor(data)
        }));
    }

    /// What the link has to show behind the tensors that were begun last and what fills them up.
    fn next_head_bytes(&self) -> usize {
        if self.begun == self.wanted {
            HEADER_BYTES
        } else {
            1
        }
    }
}

impl Place {
    /// Goes to the next tensor, and returns what the one before it is.
    fn advance<'a>(&mut self, heads: &'a Heads) -> &'a TensorMeta {
        let (count, meta) = &heads.runs()[self.run];
        self.of_run += 1;
        if self.of_run == *count {
            *self = Self {
                run: self.run + 1,
                of_run: 0,
            };
        }
        meta
    }
}

/// A landing for the data of several tensors, none of which is parsed.
fn shared(memory: BufferMut) -> Landing {
    if memory.is_arena() {
        Landing::replaceable(memory)
    } else {
        Landing::new(memory)
    }
}

/// Longest data of a tensor that shares memory with others.
const SHARED_TENSOR_BYTES_MAX: u64 = 32 << 10;

/// Longest memory that tensors share. It stays as long as one of them does.
const BLOCK_BYTES_MAX: usize = 1 << 20;

const _: () = assert!(
    SHARED_TENSOR_BYTES_MAX < BLOCK_BYTES_MAX as u64
        && BLOCK_BYTES_MAX / DATA_ALIGNMENT_BYTES as usize <= Parts::COUNT_MAX as usize
);
