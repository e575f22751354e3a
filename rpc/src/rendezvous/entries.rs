use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::table::NONE;
use crate::{Tensor, Text};

/// The keys of all steps, with what each has, and an index of those that are not alone in their step.
///
/// They stay where they are, used or not: moving them would cost as much as all the rest.
#[derive(Debug)]
pub(super) struct Entries {
    slots: Vec<Entry>,
    /// The first of the slots that are not in use, of which each names the next as the next of its step.
    free: usize,
    in_use: usize,
    by_key: HashTable<usize>,
    hasher: RandomState,
}

/// A key with a tensor, with waiting requests, or with both.
#[derive(Debug)]
pub(super) struct Entry {
    key_hash: u64,
    pub(super) step_id: i64,
    pub(super) key: Text,
    pub(super) tensor: Option<Tensor>,
    previous_in_step: usize,
    next_in_step: usize,
    pub(super) first_wait: usize,
    pub(super) last_wait: usize,
    pub(super) waits: usize,
    /// Whether a request that wants several tensors at once has found this one.
    pub(super) is_found: bool,
    /// The hash under which the index has it.
    indexed: Option<u64>,
}

impl Entries {
    pub(super) fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
            in_use: 0,
            by_key: HashTable::new(),
            hasher: RandomState::default(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.in_use
    }

    pub(super) fn hasher(&self) -> &RandomState {
        &self.hasher
    }

    #[inline]
    pub(super) fn get(&self, slot: usize) -> &Entry {
        &self.slots[slot]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: usize) -> &mut Entry {
        &mut self.slots[slot]
    }

    /// The hash under which a step is found.
    #[inline]
    pub(super) fn step_hash(&self, step_id: i64) -> u64 {
        near(step_id, 0, &self.hasher)
    }

    /// Finds a key in the index.
    pub(super) fn find(&self, step_id: i64, key_hash: u64, key: &Text) -> Option<usize> {
        let is_key = |&slot: &usize| {
            let entry = &self.slots[slot];
            entry.step_id == step_id && entry.is_of(key_hash, key)
        };
        let hash = near(step_id, key_hash, &self.hasher);
        self.by_key.find(hash, is_key).copied()
    }

    /// Adds an entry behind the last one of its step.
    pub(super) fn insert(
        &mut self,
        step_id: i64,
        key_hash: u64,
        key: Text,
        previous: usize,
    ) -> usize {
        let slot = match self.free {
            NONE => self.grow(),
            slot => slot,
        };
        let entry = &mut self.slots[slot];
        self.free = std::mem::replace(&mut entry.next_in_step, NONE);
        self.in_use += 1;
        entry.step_id = step_id;
        entry.key_hash = key_hash;
        entry.key = key;
        entry.previous_in_step = previous;
        if let Some(previous) = self.slots.get_mut(previous) {
            previous.next_in_step = slot;
        }
        slot
    }

    /// Adds a slot, which is not in use and has none after it.
    #[cold]
    fn grow(&mut self) -> usize {
        self.slots.push(Entry {
            key_hash: 0,
            step_id: 0,
            key: Text::default(),
            tensor: None,
            previous_in_step: NONE,
            next_in_step: NONE,
            first_wait: NONE,
            last_wait: NONE,
            waits: 0,
            is_found: false,
            indexed: None,
        });
        self.slots.len() - 1
    }

    /// Lets an entry be found by its key.
    pub(super) fn index(&mut self, slot: usize) {
        let entry = &mut self.slots[slot];
        if entry.indexed.is_some() {
            return;
        }
        let hash = near(entry.step_id, entry.key_hash, &self.hasher);
        entry.indexed = Some(hash);
        let slots = &self.slots;
        self.by_key.insert_unique(hash, slot, |&slot| {
            slots[slot].indexed.expect("what is in the index")
        });
    }

    #[inline(never)]
    fn unindex(&mut self, slot: usize, hash: u64) {
        if let Ok(found) = self.by_key.find_entry(hash, |&other| other == slot) {
            found.remove();
        }
    }

    /// Takes an entry out of the index and from between its neighbours, which are returned. Its key and its tensor are to
    /// be taken away before anything is added.
    #[inline(always)]
    pub(super) fn remove(&mut self, slot: usize) -> (usize, usize) {
        let entry = &mut self.slots[slot];
        let (previous, next) = (entry.previous_in_step, entry.next_in_step);
        entry.next_in_step = std::mem::replace(&mut self.free, slot);
        entry.is_found = false;
        self.in_use -= 1;
        if let Some(hash) = entry.indexed.take() {
            self.unindex(slot, hash);
        }
        if let Some(entry) = self.slots.get_mut(previous) {
            entry.next_in_step = next;
        }
        if let Some(entry) = self.slots.get_mut(next) {
            entry.previous_in_step = previous;
        }
        (previous, next)
    }
}

impl Entry {
    #[inline]
    pub(super) fn is_of(&self, key_hash: u64, key: &Text) -> bool {
        self.key_hash == key_hash && self.key == *key
    }

    /// Whether nobody waits for its tensor, or has found it.
    #[inline]
    pub(super) fn is_free(&self) -> bool {
        self.waits == 0 && !self.is_found
    }

    /// Whether it has a tensor that nobody waits for or has found.
    pub(super) fn is_there(&self) -> bool {
        self.tensor.is_some() && self.is_free()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tensor.is_none() && self.waits == 0
    }
}

/// A hash under which 64 steps in a row are neighbours in a table, in an order of their own: whoever works off many
/// steps then finds the next one in a cache line that is at hand. A table takes its place from the lower bits, and from
/// the upper ones what tells neighbours apart.
#[inline]
fn near(step_id: i64, salt: u64, hasher: &RandomState) -> u64 {
    let step = step_id as u64;
    let mut state = hasher.build_hasher();
    state.write_u64(step / NEIGHBOURS);
    state.write_u64(salt);
    let block = state.finish();
    let place = step.wrapping_add(block >> 32) % NEIGHBOURS;
    let upper = block ^ step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (upper & TAG) | (block & !TAG & !(NEIGHBOURS - 1)) | place
}

const NEIGHBOURS: u64 = 64;

/// The bits of a hash that a table compares before it looks at an entry.
const TAG: u64 = 0x7f << 57;
