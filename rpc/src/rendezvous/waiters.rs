//! Requests that wait, and outcomes that nobody has taken yet.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use slab::Slab;
use smallvec::SmallVec;

use super::Ready;
use super::entries::NONE;
use super::room::Room;
use crate::{Status, Tensor, Text};

/// The requests that wait, and those whose outcome was not taken yet.
#[derive(Debug)]
pub(super) struct Waiters {
    slots: Slab<Waiter>,
    by_token: HashMap<u64, usize, RandomState>,
    room: Room,
    settled: VecDeque<usize>,
}

#[derive(Debug)]
struct Waiter {
    token: u64,
    step_id: i64,
    state: State,
}

#[derive(Debug)]
pub(super) enum State {
    /// At least one key has no tensor.
    Parked(Parked),
    /// All tensors were taken; in the order of the keys.
    Ready(SmallVec<[Taken; 1]>),
    /// The step ended first.
    Failed(Status),
    /// Nobody wants the outcome; the slot is freed when its turn comes.
    Forgotten,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    pub(super) first_wait: u32,
    pub(super) keys: usize,
    pub(super) missing: usize,
}

#[derive(Debug)]
pub(super) struct Taken {
    pub(super) key: Text,
    pub(super) tensor: Tensor,
}

impl Waiters {
    pub(super) fn new() -> Self {
        Self {
            slots: Slab::new(),
            by_token: HashMap::default(),
            room: Room::default(),
            settled: VecDeque::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn find(&self, token: u64) -> Option<usize> {
        self.by_token.get(&token).copied()
    }

    pub(super) fn insert(&mut self, token: u64, step_id: i64) -> usize {
        let state = State::Parked(Parked {
            first_wait: NONE,
            keys: 0,
            missing: 0,
        });
        let slot = self.slots.insert(Waiter {
            token,
            step_id,
            state,
        });
        self.by_token
            .reserve(self.room.lacking(self.by_token.len()));
        self.by_token.insert(token, slot);
        slot
    }

    /// Removes a request that has no outcome.
    pub(super) fn remove(&mut self, slot: usize) {
        let waiter = self.slots.remove(slot);
        self.by_token.remove(&waiter.token);
    }

    pub(super) fn state(&self, slot: usize) -> &State {
        &self.slots[slot].state
    }

    pub(super) fn parked(&self, slot: usize) -> Parked {
        match self.slots[slot].state {
            State::Parked(parked) => parked,
            State::Ready(_) | State::Failed(_) | State::Forgotten => {
                unreachable!("only parked requests are in the lists of keys")
            }
        }
    }

    pub(super) fn parked_mut(&mut self, slot: usize) -> &mut Parked {
        match &mut self.slots[slot].state {
            State::Parked(parked) => parked,
            State::Ready(_) | State::Failed(_) | State::Forgotten => {
                unreachable!("only parked requests are in the lists of keys")
            }
        }
    }

    /// Gives a parked request its outcome and queues it.
    pub(super) fn settle(&mut self, slot: usize, outcome: State) {
        self.slots[slot].state = outcome;
        self.settled.push_back(slot);
    }

    /// Takes the outcome of a settled request, with its step.
    pub(super) fn forget(&mut self, slot: usize) -> (i64, State) {
        let waiter = &mut self.slots[slot];
        self.by_token.remove(&waiter.token);
        let state = std::mem::replace(&mut waiter.state, State::Forgotten);
        (waiter.step_id, state)
    }

    #[inline]
    pub(super) fn has_settled(&self) -> bool {
        !self.settled.is_empty()
    }

    /// The next outcome, in the order in which they came about.
    pub(super) fn poll(&mut self) -> Option<Ready> {
        while let Some(slot) = self.settled.pop_front() {
            let waiter = self.slots.remove(slot);
            let result = match waiter.state {
                State::Ready(taken) => Ok(taken.into_iter().map(|taken| taken.tensor).collect()),
                State::Failed(status) => Err(status),
                State::Forgotten => continue,
                State::Parked(_) => unreachable!("parked requests have no outcome"),
            };
            self.by_token.remove(&waiter.token);
            return Some(Ready {
                waiter: waiter.token,
                result,
            });
        }
        None
    }
}
