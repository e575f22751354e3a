//! Answers of shared frames that a client has read, until their caller takes them.

use std::ops::Range;

use grpcxx_memory::{Buffer, BufferMut, Parts};

use crate::connection::calls::CallId;
use crate::wire::{DATA_ALIGNMENT_BYTES, RECORD_BYTES, filled_up};
use crate::{Tensor, TensorMeta};

/// Successful answers of one tensor each, until their caller takes them.
///
/// What neighbours have in common is there once. Tensors are made when they are taken: moving them
/// from place to place would cost more than all else.
#[derive(Debug)]
pub(crate) struct Answers {
    /// All since none was left, of which those before `next` are taken.
    queue: Vec<Answer>,
    next: usize,
    /// What answers are. The last one stays, with its record, for what comes next is often the
    /// same.
    metas: Vec<TensorMeta>,
    last_record: [u8; RECORD_BYTES],
    memory: Vec<Memory>,
    /// Memory that is being filled with the data of several tensors, its index in `memory`, and how
    /// much of it is taken by how many of them.
    block: BufferMut,
    block_index: usize,
    taken_bytes: usize,
    takers: u32,
}

/// The answer to a call: one tensor, which is made when it is taken.
#[derive(Debug)]
pub struct ReadyAnswer<'a> {
    answers: &'a mut Answers,
    answer: Answer,
}

/// The data of one tensor, or of several.
#[derive(Debug)]
enum Memory {
    Own(Buffer),
    Shared(Parts),
}

#[derive(Clone, Copy, Debug)]
struct Answer {
    call: CallId,
    token: u64,
    /// Indexes in `metas` and `memory`.
    meta: u32,
    memory: u32,
    begin_byte: u32,
    len_bytes: u32,
}

impl Default for Answers {
    fn default() -> Self {
        Self {
            queue: Vec::new(),
            next: 0,
            metas: Vec::new(),
            last_record: [0; RECORD_BYTES],
            memory: Vec::new(),
            block: BufferMut::new(),
            block_index: 0,
            taken_bytes: 0,
            takers: 0,
        }
    }
}

impl Answers {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.queue.len() - self.next
    }

    /// Whether this record says of the next answers what is known of the last ones.
    pub(crate) fn knows(&self, record: &[u8; RECORD_BYTES]) -> bool {
        !self.metas.is_empty() && self.last_record == *record
    }

    /// What the tensors of the next answers are, and the record that says so.
    pub(crate) fn cache(&mut self, record: &[u8; RECORD_BYTES], meta: TensorMeta) {
        if self.len() == 0 {
            self.forget();
        }
        self.last_record = *record;
        self.metas.push(meta);
    }

    /// What was cached last.
    #[inline]
    pub(crate) fn meta(&self) -> &TensorMeta {
        let meta = self.metas.last();
        meta.expect("only an answer behind one with a record has none")
    }

    /// Takes an answer whose data is in memory of its own.
    pub(crate) fn push(&mut self, call: CallId, token: u64, data: Buffer) {
        let len_bytes = data.len();
        self.memory.push(Memory::Own(data));
        self.push_part(call, token, self.memory.len() - 1, 0, len_bytes);
    }

    /// Whether data fits into the block.
    #[inline]
    pub(crate) fn has_room(&self, data_bytes: usize) -> bool {
        self.taken_bytes + data_bytes <= self.block.len()
    }

    /// Takes an answer whose data fits into the block.
    #[inline]
    pub(crate) fn push_shared(&mut self, call: CallId, token: u64, data: &[u8]) {
        let begin = self.taken_bytes;
        let end = begin + data.len();
        self.taken_bytes = filled_up(end as u64) as usize;
        self.takers += 1;
        self.push_part(call, token, self.block_index, begin, data.len());
        // Last, for what is needed behind it would have to be put aside.
        copy(data, &mut self.block[begin..end]);
    }

    /// Uses this memory for the data of the next answers.
    pub(crate) fn open(&mut self, block: BufferMut) {
        self.close();
        self.block = block;
        self.block_index = self.memory.len();
        self.memory.push(Memory::Own(Buffer::new()));
    }

    /// Ends the use of the block, without which no answer in it can be taken.
    #[inline]
    pub(crate) fn close(&mut self) {
        // Tensors without data find a place where there is no block too.
        let takers = std::mem::take(&mut self.takers);
        self.taken_bytes = 0;
        if !self.block.is_empty() {
            let block = std::mem::take(&mut self.block).freeze();
            self.memory[self.block_index] = Memory::Shared(Parts::new(block, takers));
        }
    }

    /// The next answer.
    #[inline(always)]
    pub(crate) fn poll(&mut self) -> Option<ReadyAnswer<'_>> {
        let Some(&answer) = self.queue.get(self.next) else {
            if !self.queue.is_empty() {
                self.forget();
            }
            return None;
        };
        self.next += 1;
        Some(ReadyAnswer {
            answers: self,
            answer,
        })
    }

    #[inline]
    fn push_part(&mut self, call: CallId, token: u64, memory: usize, begin: usize, len: usize) {
        self.queue.push(Answer {
            call,
            token,
            meta: self.metas.len() as u32 - 1,
            memory: memory as u32,
            begin_byte: begin as u32,
            len_bytes: len as u32,
        });
    }

    /// The answer with a tensor like this, whose data is in this place.
    #[inline(never)]
    fn take(&mut self, meta: u32, memory: u32, place: Range<usize>) -> Tensor {
        let data = match place.len() {
            0 => Buffer::new(),
            _ => match &mut self.memory[memory as usize] {
                Memory::Shared(parts) => parts.cut(place),
                Memory::Own(data) => std::mem::take(data),
            },
        };
        tensor(&self.metas[meta as usize], data)
    }

    /// Lets go of what answers that are all taken had in common.
    fn forget(&mut self) {
        self.queue.clear();
        self.next = 0;
        self.memory.clear();
        if let Some(last) = self.metas.len().checked_sub(1) {
            self.metas.swap(0, last);
            self.metas.truncate(1);
        }
    }
}

impl Answer {
    /// Where its data lies in its memory.
    #[inline]
    fn place(&self) -> Range<usize> {
        let begin = self.begin_byte as usize;
        begin..begin + self.len_bytes as usize
    }
}

impl ReadyAnswer<'_> {
    /// The call.
    pub fn call(&self) -> CallId {
        self.answer.call
    }

    /// The caller's mark.
    #[inline]
    pub fn token(&self) -> u64 {
        self.answer.token
    }

    /// The tensor that was asked for. Inlined, and on a way of its own where it is like most, so
    /// that it is made where it is wanted: a move waits until its parts are written.
    #[inline(always)]
    pub fn take(self) -> Tensor {
        let Self { answers, answer } = self;
        let meta = &answers.metas[answer.meta as usize];
        if let Some(Memory::Shared(parts)) = answers.memory.get_mut(answer.memory as usize)
            && let Some(data) = parts.cut_counted(answer.place())
        {
            let Some(shape) = meta.shape.copied() else {
                return tensor(meta, data);
            };
            return Tensor {
                dtype: meta.dtype,
                shape,
                is_dead: meta.is_dead,
                data,
            };
        }
        answers.take(answer.meta, answer.memory, answer.place())
    }
}

// Apart, so that shapes of many dimensions take no room where tensors are made of others.
#[inline(never)]
fn tensor(meta: &TensorMeta, data: Buffer) -> Tensor {
    meta.tensor(data)
}

/// Copies data to a place of the same length. Most of it is as long as a line of a cache, for which
/// a call costs more than to copy what lies in the middle twice.
#[inline(always)]
fn copy(data: &[u8], place: &mut [u8]) {
    const HALF: usize = DATA_ALIGNMENT_BYTES as usize / 2;
    if data.len() <= 2 * HALF
        && let (Some(head), Some(tail)) = (data.first_chunk::<HALF>(), data.last_chunk::<HALF>())
    {
        place[..HALF].copy_from_slice(head);
        place[data.len() - HALF..].copy_from_slice(tail);
    } else {
        place.copy_from_slice(data);
    }
}

/// Length of a block for the data of so many more bytes of answers, of which each has as much data
/// as the next.
pub(crate) fn block_bytes(data_bytes: usize, left_bytes: usize) -> Option<usize> {
    let each_bytes = filled_up(data_bytes as u64) as usize;
    let count = 1 + left_bytes / (data_bytes + ANSWER_BYTES);
    (count > 1).then(|| (count * each_bytes).min(BLOCK_BYTES_MAX))
}

/// Longest data that shares memory with that of other answers.
pub(crate) const SHARED_DATA_BYTES_MAX: usize = 512;

/// Longest memory that answers share. It stays as long as one of their tensors does.
const BLOCK_BYTES_MAX: usize = 2 << 10;

/// Length of an answer without its data.
const ANSWER_BYTES: usize = 9;

const _: () = assert!(
    SHARED_DATA_BYTES_MAX < BLOCK_BYTES_MAX
        && BLOCK_BYTES_MAX.is_multiple_of(DATA_ALIGNMENT_BYTES as usize)
);

#[cfg(test)]
mod tests {
    use grpcxx_memory::{Arena, ArenaOptions};

    use grpcxx_transport::SlotId;

    use super::*;
    use crate::{DType, Shape};

    #[test]
    fn data_of_any_length_is_copied() {
        let data: Vec<u8> = (0..=255).collect();
        for len in 0..=2 * DATA_ALIGNMENT_BYTES as usize + 1 {
            let mut place = vec![0; len];
            copy(&data[1..][..len], &mut place);
            assert_eq!(place, data[1..][..len]);
        }
    }

    /// A peer may send them without end.
    #[test]
    fn tensors_without_data_count_for_no_block() {
        let mut arena = Arena::new(ArenaOptions::default().with(|options| {
            options.capacity_bytes = 1 << 20;
            options.huge_pages = false;
        }))
        .unwrap();
        let call = CallId(SlotId {
            slot: 0,
            generation: 1,
        });
        let meta = |len: usize| TensorMeta {
            dtype: DType::UInt8,
            shape: Shape::new(&[len as u64]).unwrap(),
            is_dead: false,
            data_bytes: len as u64,
        };
        let record = |len: u8| [len; RECORD_BYTES];
        let mut answers = Answers::default();
        assert!(!answers.knows(&record(0)));
        answers.cache(&record(0), meta(0));
        // More than references that are counted at once, but for Miri, which would take minutes.
        let count = if cfg!(miri) {
            100
        } else {
            Parts::COUNT_MAX + 1
        };
        for _ in 0..count {
            assert!(answers.has_room(0));
            answers.push_shared(call, 0, &[]);
        }
        answers.close();
        while let Some(answer) = answers.poll() {
            drop(answer.take());
        }
        assert!(answers.knows(&record(0)) && !answers.knows(&record(3)));
        answers.cache(&record(3), meta(3));
        answers.open(arena.allocate(64).unwrap());
        assert!(!answers.has_room(65));
        answers.push_shared(call, 0, &[1, 2, 3]);
        answers.close();
        let tensor = answers.poll().unwrap().take();
        assert_eq!(tensor.data[..], [1, 2, 3]);
        assert!(answers.poll().is_none());
        assert!(answers.knows(&record(3)));
        assert_eq!(*answers.meta(), meta(3));
        drop(tensor);
        assert_eq!(arena.reclaim(), 1);
    }
}
