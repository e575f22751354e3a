//! Boards: what the ranks of one host show each other in shared memory, so that descriptions and
//! small arrays need no message.
//!
//! Each rank writes a board of its own and reads those of all others, in steps, of which an
//! operation has one or more. A board has two slots, for even and for odd steps. That is enough: a
//! rank shows step `n` once it has taken what all show in `n - 1`, and they show that once they
//! have taken `n - 2`.
//!
//! A rank that goes to sleep says so on its board. Who shows something then rings: it sends a bell,
//! a message without bytes, for which the rank has asked ahead. Bells are numbered, so that each is
//! rung once, whether or not it is still needed when it comes.
//!
//! A rank that has just begun an operation dozes: whoever called it will look next, and if nobody
//! does, the bell wakes the shard. So who shows something gives a rank that dozes a moment to look
//! by itself.

mod cpus;
mod offer;

#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};
use std::ops::Range;
#[cfg(not(loom))]
use std::sync::atomic::{Ordering, fence};

use grpcxx_memory::{Board, BoardView, Buffer};
use grpcxx_rpc::Status;
use grpcxx_runtime::own_cpu;
use smallvec::SmallVec;

pub(crate) use self::offer::{Offer, Refused};
use crate::description::DESCRIPTION_BYTES;
use crate::machine::SEGMENT_BYTES;
use crate::plan::SHOWN_BYTES_MAX;

/// The board of this rank, and those of the others.
#[derive(Debug)]
pub(crate) struct Boards {
    own: Board,
    rank: u32,
    neighbours: Vec<Neighbour>,
    /// Steps that this rank has begun.
    steps: u64,
    /// Waits in a row that found another rank on the CPU of this one.
    meetings: u32,
    is_asleep: bool,
}

/// Another rank.
#[derive(Debug)]
struct Neighbour {
    rank: u32,
    board: BoardView,
    /// The bell that was asked of it.
    awaited: u64,
    /// The last bell that was rung for it.
    rung: u64,
    /// Why no bell comes any more.
    lost: Option<Status>,
}

/// A bell to be rung: for whom, and which one.
pub(crate) type Bell = (u32, u64);

/// How a rank sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// Nobody looks until a bell is rung.
    Deep = 0,
    /// Somebody is about to look, and if not, the bell has to be rung.
    Doze = 1,
}

impl Neighbour {
    /// The bell for which it sleeps, 0 if it is awake.
    fn awaited_by(&self, own: u32) -> u64 {
        for _ in 0..DOZE_LOOKS {
            let word = self.board.word_value(SLEEPS + own as usize);
            if word % 2 == Sleep::Deep as u64 {
                return word / 2;
            }
            std::hint::spin_loop();
        }
        self.board.word_value(SLEEPS + own as usize) / 2
    }
}

impl Boards {
    /// `boards` are those of all ranks but this one.
    fn new(rank: u32, own: Board, boards: Vec<(u32, BoardView)>) -> Self {
        let neighbour = |(rank, board)| Neighbour {
            rank,
            board,
            awaited: 1,
            rung: 0,
            lost: None,
        };
        Self {
            own,
            rank,
            neighbours: boards.into_iter().map(neighbour).collect(),
            steps: 0,
            meetings: 0,
            is_asleep: false,
        }
    }

    /// The bells that are to be asked of all at the start.
    pub(crate) fn first_bells(&self) -> impl Iterator<Item = Bell> {
        let neighbours = self.neighbours.iter();
        neighbours.map(|neighbour| (neighbour.rank, neighbour.awaited))
    }

    /// Begins a step, with what this rank calls and what it shows of its array. Returns the bells
    /// to be rung.
    pub(crate) fn show(
        &mut self,
        description: &[u8; DESCRIPTION_BYTES],
        array: &[(usize, &[u8])],
    ) -> SmallVec<[Bell; 4]> {
        let slot = slot(self.steps);
        self.own.write(slot, description);
        for (at, bytes) in array {
            self.own.write(slot + DESCRIPTION_BYTES + at, bytes);
        }
        self.steps += 1;
        self.own
            .set_word(CPU, own_cpu().map_or(0, |cpu| cpu as u64 + 1));
        self.own.set_word(SHOWN, self.steps);
        // Either this sees that another rank sleeps, or that sees what was shown.
        fence(Ordering::SeqCst);
        let mut bells = SmallVec::new();
        for neighbour in &mut self.neighbours {
            let awaited = neighbour.awaited_by(self.rank);
            if awaited == neighbour.rung + 1 {
                neighbour.rung = awaited;
                bells.push((neighbour.rank, awaited));
            }
        }
        bells
    }

    /// Whether a rank has come as far as this one.
    pub(crate) fn has(&self, from: u32) -> bool {
        self.neighbour(from).board.word_value(SHOWN) >= self.steps
    }

    /// The description that a rank shows in the present step, and a part of its array.
    pub(crate) fn read(&self, from: u32, part: Range<usize>) -> Buffer {
        let mut bytes = vec![0; DESCRIPTION_BYTES + part.len()];
        let (description, array) = bytes.split_at_mut(DESCRIPTION_BYTES);
        let board = &self.neighbour(from).board;
        board.read(slot(self.steps - 1), description);
        self.read_into(from, part.start, array);
        Buffer::from(bytes)
    }

    /// Copies what a rank shows of its array in the present step.
    pub(crate) fn read_into(&self, from: u32, at: usize, into: &mut [u8]) {
        let at = slot(self.steps - 1) + DESCRIPTION_BYTES + at;
        self.neighbour(from).board.read(at, into);
    }

    /// The CPU that the calling thread, which waits for others, had better leave: a rank before
    /// this one runs there too, so that they take turns instead of working at the same time.
    pub(crate) fn shared_cpu(&mut self) -> Option<usize> {
        let cpu = own_cpu()?;
        let before = self
            .neighbours
            .iter()
            .filter(|other| other.rank < self.rank);
        let mut cpus = before.map(|other| other.board.word_value(CPU));
        let is_shared = cpus.any(|other| other == cpu as u64 + 1);
        self.meetings = if is_shared { self.meetings + 1 } else { 0 };
        if self.meetings < MEETINGS_MAX {
            return None;
        }
        self.meetings = 0;
        Some(cpu)
    }

    /// Asks others to ring when they show something. It must be looked at their boards once more
    /// before this rank sleeps.
    pub(crate) fn fall_asleep(&mut self, sleep: Sleep, until: impl Iterator<Item = u32>) {
        for from in until {
            let word = SLEEPS + from as usize;
            let awaited = self.neighbour(from).awaited;
            self.own.set_word(word, 2 * awaited + sleep as u64);
            self.is_asleep = true;
        }
        fence(Ordering::SeqCst);
    }

    /// Ends [`Boards::fall_asleep`].
    pub(crate) fn wake_up(&mut self) {
        if std::mem::take(&mut self.is_asleep) {
            for neighbour in &self.neighbours {
                self.own.set_word(SLEEPS + neighbour.rank as usize, 0);
            }
        }
    }

    /// A rank has rung. Returns the next bell that is to be asked of it.
    pub(crate) fn rung_by(&mut self, from: u32) -> u64 {
        let neighbour = self.neighbour_mut(from);
        neighbour.awaited += 1;
        neighbour.awaited
    }

    /// A rank is gone.
    pub(crate) fn lose(&mut self, from: u32, status: Status) {
        self.neighbour_mut(from).lost = Some(status);
    }

    /// Why a rank is gone, if it is.
    pub(crate) fn loss_of(&self, from: u32) -> Option<&Status> {
        self.neighbour(from).lost.as_ref()
    }

    fn neighbour(&self, rank: u32) -> &Neighbour {
        &self.neighbours[self.index_of(rank)]
    }

    fn neighbour_mut(&mut self, rank: u32) -> &mut Neighbour {
        let index = self.index_of(rank);
        &mut self.neighbours[index]
    }

    /// Neighbours are in the order of their ranks, without this one.
    fn index_of(&self, rank: u32) -> usize {
        debug_assert!(rank != self.rank);
        rank as usize - usize::from(rank > self.rank)
    }
}

/// Where the slot of a step begins.
const fn slot(step: u64) -> usize {
    (step % 2) as usize * SLOT_BYTES
}

/// Length of a slot, which begins with a page.
const SLOT_BYTES: usize = (DESCRIPTION_BYTES + ARRAY_BYTES_MAX).next_multiple_of(4096);

/// Most that a rank shows of an array in one step.
const ARRAY_BYTES_MAX: usize = match SEGMENT_BYTES > SHOWN_BYTES_MAX {
    true => SEGMENT_BYTES,
    false => SHOWN_BYTES_MAX,
};

/// Length of what is behind the words of a board.
const DATA_BYTES: usize = 2 * SLOT_BYTES;

/// The word that says how many steps a rank has begun.
const SHOWN: usize = 0;

/// The word that says on which CPU the owner was when it showed something last, counted from 1.
const CPU: usize = 1;

/// Waits in a row with another rank on the same CPU, after which this one leaves it.
const MEETINGS_MAX: u32 = 4;

/// Looks at a rank that dozes before it is rung for: about two microseconds, in which a thread that
/// goes on with its call begins to look.
const DOZE_LOOKS: usize = if cfg!(loom) { 1 } else { 60 };

/// The words that tell boards apart. They stay as they are, and share no cache line with others.
const NONCE: [usize; 2] = [32, 33];

/// The words that say for which bell of each rank the owner sleeps, twice its number and one more
/// if it dozes; 0 if it is awake.
const SLEEPS: usize = 64;

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests;
