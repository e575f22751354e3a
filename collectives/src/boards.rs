//! Boards: what the ranks of one host show each other in shared memory, so that descriptions and
//! small arrays need no message.
//!
//! Each rank writes a board of its own and reads those of all others. A board has two slots, for
//! operations with even and with odd numbers. That is enough: a rank shows operation `n` once it
//! has taken what all show of `n - 1`, and they show that once they have taken `n - 2`.
//!
//! A rank that goes to sleep says so on its board. Who shows something then rings: it sends a bell,
//! a message without bytes, for which the rank has asked ahead. Bells are numbered, so that each is
//! rung once, whether or not it is still needed when it comes.

mod offer;

#[cfg(loom)]
use loom::sync::atomic::{Ordering, fence};
use std::ops::Range;
#[cfg(not(loom))]
use std::sync::atomic::{Ordering, fence};

use grpcxx_memory::{Board, BoardView, Buffer};
use grpcxx_rpc::Status;
use smallvec::SmallVec;

pub(crate) use self::offer::{Offer, Refused};
use crate::description::DESCRIPTION_BYTES;
use crate::plan::SHOWN_BYTES_MAX;

/// The board of this rank, and those of the others.
#[derive(Debug)]
pub(crate) struct Boards {
    own: Board,
    rank: u32,
    neighbours: Vec<Neighbour>,
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
            is_asleep: false,
        }
    }

    /// The bells that are to be asked of all at the start.
    pub(crate) fn first_bells(&self) -> impl Iterator<Item = Bell> {
        let neighbours = self.neighbours.iter();
        neighbours.map(|neighbour| (neighbour.rank, neighbour.awaited))
    }

    /// Shows what this rank calls and brings. Returns the bells to be rung.
    pub(crate) fn show(
        &mut self,
        number: u64,
        description: &[u8; DESCRIPTION_BYTES],
        input: &[u8],
    ) -> SmallVec<[Bell; 4]> {
        let at = slot(number);
        self.own.write(at, description);
        self.own.write(at + DESCRIPTION_BYTES, input);
        self.own.set_word(SHOWN, number + 1);
        // Either this sees that another rank sleeps, or that sees what was shown.
        fence(Ordering::SeqCst);
        let mut bells = SmallVec::new();
        let own_word = SLEEPS + self.rank as usize;
        for neighbour in &mut self.neighbours {
            let awaited = neighbour.board.word_value(own_word);
            if awaited == neighbour.rung + 1 {
                neighbour.rung = awaited;
                bells.push((neighbour.rank, awaited));
            }
        }
        bells
    }

    /// Whether a rank shows an operation.
    pub(crate) fn has(&self, from: u32, number: u64) -> bool {
        self.neighbour(from).board.word_value(SHOWN) > number
    }

    /// The description that a rank shows, and a part of its array.
    pub(crate) fn read(&self, from: u32, number: u64, part: Range<usize>) -> Buffer {
        let board = &self.neighbour(from).board;
        let mut bytes = vec![0; DESCRIPTION_BYTES + part.len()];
        let (description, array) = bytes.split_at_mut(DESCRIPTION_BYTES);
        board.read(slot(number), description);
        board.read(slot(number) + DESCRIPTION_BYTES + part.start, array);
        Buffer::from(bytes)
    }

    /// Asks others to ring when they show something. It must be looked at their boards once more
    /// before this rank sleeps.
    pub(crate) fn fall_asleep(&mut self, until: impl Iterator<Item = u32>) {
        for from in until {
            let word = SLEEPS + from as usize;
            self.own.set_word(word, self.neighbour(from).awaited);
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

/// Where a slot begins.
const fn slot(number: u64) -> usize {
    (number % 2) as usize * SLOT_BYTES
}

/// Length of a slot, which begins with a page.
const SLOT_BYTES: usize = (DESCRIPTION_BYTES + SHOWN_BYTES_MAX).next_multiple_of(4096);

/// Length of what is behind the words of a board.
const DATA_BYTES: usize = 2 * SLOT_BYTES;

/// The word that says how many operations a rank has shown.
const SHOWN: usize = 0;

/// The words that tell boards apart. They stay as they are, and share no cache line with others.
const NONCE: [usize; 2] = [32, 33];

/// The words that say for which bell of each rank the owner sleeps; 0 if it is awake.
const SLEEPS: usize = 64;

#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests;
