use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table;
use slab::Slab;

use crate::{Tensor, Text};

/// The keys for which something waits, found by step and key, and listed by step.
///
/// All lists are threaded through the entries and the slab, so that every insertion and removal takes constant time
/// and memory that was freed is used again. Entries stay where they are, used or not: moving them would cost as much
/// as all the rest.
#[derive(Debug)]
pub(super) struct Table {
    entries: Vec<Entry>,
    /// The first of the entries that are not in use, of which each names the next as the next of its step.
    free: usize,
    in_use: usize,
    by_key: HashTable<usize>,
    steps: HashTable<Step>,
    waits: Slab<Wait>,
    hasher: RandomState,
}

/// A key with a tensor, with waiting requests, or with both.
#[derive(Debug)]
pub(super) struct Entry {
    hash: u64,
    step_id: i64,
    pub(super) key: Text,
    pub(super) tensor: Option<Tensor>,
    previous_in_step: usize,
    next_in_step: usize,
    first_wait: usize,
    last_wait: usize,
    waits: usize,
    /// Whether a request that wants several tensors at once has found this one.
    pub(super) is_found: bool,
}

#[derive(Debug)]
struct Step {
    id: i64,
    entries: usize,
    first_entry: usize,
    last_entry: usize,
}

/// One request that waits for one key.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) waiter: usize,
    pub(super) entry: usize,
    previous_at_entry: usize,
    next_at_entry: usize,
    /// The wait of the same request for its next key.
    pub(super) next_of_waiter: usize,
}

/// The end of a list.
pub(super) const NONE: usize = usize::MAX;

impl Table {
    pub(super) fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: NONE,
            in_use: 0,
            by_key: HashTable::new(),
            steps: HashTable::new(),
            waits: Slab::new(),
            hasher: RandomState::default(),
        }
    }

    pub(super) fn key_hasher(&self) -> RandomState {
        self.hasher.clone()
    }

    pub(super) fn hash_key(&self, key: &Text) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key.as_buffer());
        hasher.finish()
    }

    /// The hash of a key in a step, from that of the key, so that those of long keys are computed once.
    pub(super) fn hash(&self, step_id: i64, key_hash: u64) -> u64 {
        near(step_id, key_hash, &self.hasher)
    }

    fn step_hash(&self, step_id: i64) -> u64 {
        near(step_id, 0, &self.hasher)
    }

    #[inline]
    pub(super) fn find(&self, hash: u64, step_id: i64, key: &Text) -> Option<usize> {
        let is_key = |&slot: &usize| self.entries[slot].is_of(hash, step_id, key);
        self.by_key.find(hash, is_key).copied()
    }

    /// The entry of a key if it has a tensor, which nobody waits for and nobody has found yet; it is found now.
    #[inline]
    pub(super) fn find_tensor(&mut self, hash: u64, step_id: i64, key: &Text) -> Option<usize> {
        let slot = self.find(hash, step_id, key)?;
        let entry = &mut self.entries[slot];
        if entry.tensor.is_none() || !entry.is_free() {
            return None;
        }
        entry.is_found = true;
        Some(slot)
    }

    /// Takes the tensor of a key with the key, and removes its entry, if nobody waits for it or has found it, and if its
    /// data is not longer than this.
    #[inline]
    pub(super) fn take_tensor(
        &mut self,
        hash: u64,
        step_id: i64,
        key: &Text,
        data_bytes_max: usize,
    ) -> Option<(Text, Tensor)> {
        let entries = &self.entries;
        let is_key = |&slot: &usize| entries[slot].is_of(hash, step_id, key);
        let found = self.by_key.find_entry(hash, is_key).ok()?;
        let slot = *found.get();
        let entry = &mut self.entries[slot];
        let is_free = entry.is_free();
        let tensor =
            (entry.tensor).take_if(|tensor| is_free && tensor.data.len() <= data_bytes_max)?;
        found.remove();
        Some((self.unlink(slot), tensor))
    }

    /// Adds an entry that [`Table::find`] did not find. It is not kept empty: the caller gives it a tensor or
    /// a wait, or removes it.
    pub(super) fn insert(&mut self, hash: u64, step_id: i64, key: Text) -> usize {
        let slot = match self.free {
            NONE => self.entries.len(),
            free => std::mem::replace(&mut self.free, self.entries[free].next_in_step),
        };
        self.in_use += 1;
        let previous = self.append_to_step(step_id, slot);
        if let Some(entry) = self.entries.get_mut(previous) {
            entry.next_in_step = slot;
        }
        let entry = Entry {
            hash,
            step_id,
            key,
            tensor: None,
            previous_in_step: previous,
            next_in_step: NONE,
            first_wait: NONE,
            last_wait: NONE,
            waits: 0,
            is_found: false,
        };
        match self.entries.get_mut(slot) {
            Some(unused) => *unused = entry,
            None => self.entries.push(entry),
        }
        let entries = &self.entries;
        self.by_key
            .insert_unique(hash, slot, |&slot| entries[slot].hash);
        slot
    }

    /// Removes an entry, and its step with the last of its entries. Returns its key.
    pub(super) fn remove(&mut self, slot: usize) -> Text {
        let entry = &self.entries[slot];
        debug_assert!(entry.is_empty(), "something still waits for {}", entry.key);
        if let Ok(found) = self.by_key.find_entry(entry.hash, |&other| other == slot) {
            found.remove();
        }
        self.unlink(slot)
    }

    /// Takes an entry that is not found by its key any more out of its step. Returns its key.
    #[inline]
    fn unlink(&mut self, slot: usize) -> Text {
        let entry = &mut self.entries[slot];
        let key = std::mem::take(&mut entry.key);
        let step_id = entry.step_id;
        let (previous, next) = (entry.previous_in_step, entry.next_in_step);
        entry.next_in_step = std::mem::replace(&mut self.free, slot);
        self.in_use -= 1;
        if let Some(entry) = self.entries.get_mut(previous) {
            entry.next_in_step = next;
        }
        if let Some(entry) = self.entries.get_mut(next) {
            entry.previous_in_step = previous;
        }
        self.remove_from_step(step_id, previous, next);
        key
    }

    /// Takes the tensor of an entry and removes the entry.
    #[inline]
    pub(super) fn remove_tensor(&mut self, slot: usize) -> Option<Tensor> {
        let tensor = self.entries[slot].tensor.take();
        self.remove(slot);
        tensor
    }

    pub(super) fn entry(&self, slot: usize) -> &Entry {
        &self.entries[slot]
    }

    pub(super) fn entry_mut(&mut self, slot: usize) -> &mut Entry {
        &mut self.entries[slot]
    }

    pub(super) fn first_entry(&self, step_id: i64) -> Option<usize> {
        Some(self.step(step_id)?.first_entry)
    }

    pub(super) fn entries_of(&self, step_id: i64) -> usize {
        self.step(step_id).map_or(0, |step| step.entries)
    }

    pub(super) fn step_ids(&self) -> impl Iterator<Item = i64> {
        self.steps.iter().map(|step| step.id)
    }

    pub(super) fn steps(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn entries(&self) -> usize {
        self.in_use
    }

    /// Appends a request to those that wait for a key.
    pub(super) fn insert_wait(&mut self, slot: usize, waiter: usize) -> usize {
        let entry = &mut self.entries[slot];
        let wait = self.waits.insert(Wait {
            waiter,
            entry: slot,
            previous_at_entry: entry.last_wait,
            next_at_entry: NONE,
            next_of_waiter: NONE,
        });
        match self.waits.get_mut(entry.last_wait) {
            Some(last) => last.next_at_entry = wait,
            None => entry.first_wait = wait,
        }
        entry.last_wait = wait;
        entry.waits += 1;
        wait
    }

    pub(super) fn remove_wait(&mut self, slot: usize) -> Wait {
        let wait = self.waits.remove(slot);
        let entry = &mut self.entries[wait.entry];
        match self.waits.get_mut(wait.previous_at_entry) {
            Some(previous) => previous.next_at_entry = wait.next_at_entry,
            None => entry.first_wait = wait.next_at_entry,
        }
        match self.waits.get_mut(wait.next_at_entry) {
            Some(next) => next.previous_at_entry = wait.previous_at_entry,
            None => entry.last_wait = wait.previous_at_entry,
        }
        entry.waits -= 1;
        wait
    }

    pub(super) fn wait_mut(&mut self, slot: usize) -> &mut Wait {
        &mut self.waits[slot]
    }

    /// The requests that wait for a key, first come first.
    pub(super) fn waiters_at(&self, slot: usize) -> impl Iterator<Item = usize> {
        let mut next = self.entries[slot].first_wait;
        std::iter::from_fn(move || {
            let wait = self.waits.get(next)?;
            next = wait.next_at_entry;
            Some(wait.waiter)
        })
    }

    pub(super) fn last_waiter_at(&self, slot: usize) -> Option<usize> {
        let wait = self.waits.get(self.entries[slot].last_wait)?;
        Some(wait.waiter)
    }

    fn step(&self, step_id: i64) -> Option<&Step> {
        let hash = self.step_hash(step_id);
        self.steps.find(hash, |step| step.id == step_id)
    }

    /// Adds an entry to the end of its step, which begins with its first. Returns the entry before it.
    fn append_to_step(&mut self, step_id: i64, slot: usize) -> usize {
        let hasher = &self.hasher;
        let found = self.steps.entry(
            near(step_id, 0, hasher),
            |step| step.id == step_id,
            |step| near(step.id, 0, hasher),
        );
        match found {
            hash_table::Entry::Occupied(mut step) => {
                let step = step.get_mut();
                step.entries += 1;
                std::mem::replace(&mut step.last_entry, slot)
            }
            hash_table::Entry::Vacant(place) => {
                place.insert(Step {
                    id: step_id,
                    entries: 1,
                    first_entry: slot,
                    last_entry: slot,
                });
                NONE
            }
        }
    }

    /// Takes an entry between two others out of its step, which ends with its last.
    fn remove_from_step(&mut self, step_id: i64, previous: usize, next: usize) {
        let hash = self.step_hash(step_id);
        let Ok(mut found) = self.steps.find_entry(hash, |step| step.id == step_id) else {
            unreachable!("a step is there as long as its entries");
        };
        let step = found.get_mut();
        step.entries -= 1;
        if step.entries == 0 {
            found.remove();
            return;
        }
        if previous == NONE {
            step.first_entry = next;
        }
        if next == NONE {
            step.last_entry = previous;
        }
    }
}

/// A hash under which 64 steps in a row are neighbours in a table, in an order of their own: whoever works off many
/// steps then finds the next one in a cache line that is at hand. A table takes its place from the lower bits, and from
/// the upper ones what tells neighbours apart.
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

impl Entry {
    pub(super) fn waits(&self) -> usize {
        self.waits
    }

    #[inline]
    fn is_of(&self, hash: u64, step_id: i64, key: &Text) -> bool {
        self.hash == hash && self.step_id == step_id && self.key == *key
    }

    /// Whether nobody waits for its tensor, or has found it.
    #[inline]
    fn is_free(&self) -> bool {
        self.waits == 0 && !self.is_found
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tensor.is_none() && self.waits == 0
    }
}
