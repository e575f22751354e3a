//! Entries by step and key, with the requests that wait for each.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use slab::Slab;

use super::by_step::ByStep;
use super::entries::{Entries, Entry, NONE};
use crate::{Tensor, Text};

/// The keys for which something waits, found by step and key, and listed by step.
///
/// All lists are threaded through the entries and the slab, so that every insertion and removal
/// takes constant time and memory that was freed is used again.
///
/// Invariant: where a step has several entries, all of them are in the index of entries. An only
/// one need not be, so that a step with one key takes one look.
#[derive(Debug)]
pub(super) struct Table {
    steps: ByStep,
    entries: Entries,
    waits: Slab<Wait>,
}

/// Where the entry of a key is, or would be, until an entry is added or removed.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) step_id: i64,
    /// The first entry of the step.
    first: Option<u32>,
    key_hash: u64,
    pub(super) entry: Option<u32>,
    /// How many its step has.
    pub(super) entries_of_step: u32,
}

/// One request that waits for one key.
#[derive(Debug)]
pub(super) struct Wait {
    pub(super) waiter: usize,
    pub(super) entry: u32,
    previous_at_entry: u32,
    next_at_entry: u32,
    /// The wait of the same request for its next key.
    pub(super) next_of_waiter: u32,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            steps: ByStep::new(),
            entries: Entries::new(),
            waits: Slab::new(),
        }
    }

    pub(super) fn key_hasher(&self) -> RandomState {
        self.entries.hasher().clone()
    }

    pub(super) fn hash_key(&self, key: &Text) -> u64 {
        let mut hasher = self.entries.hasher().build_hasher();
        hasher.write(key.as_buffer());
        hasher.finish()
    }

    #[inline]
    pub(super) fn find(&self, step_id: i64, key_hash: u64, key: &Text) -> Place {
        let first = self.first_entry(step_id);
        Place {
            step_id,
            first,
            key_hash,
            entry: first.and_then(|first| self.entries.find(first, key_hash, key)),
            entries_of_step: first.map_or(0, |first| self.entries.get(first).entries_of_step),
        }
    }

    /// Finds the entries of several keys, with their hashes, if each has a tensor, which nobody
    /// waits for and nobody has found yet. Returns whether it did.
    pub(super) fn find_tensors<'a>(
        &mut self,
        step_id: i64,
        keys: impl Iterator<Item = (&'a Text, u64)>,
        found: &mut Vec<u32>,
    ) -> bool {
        found.clear();
        let Some(first) = self.first_entry(step_id) else {
            return false;
        };
        for (key, key_hash) in keys {
            let slot = self.entries.find(first, key_hash, key);
            let slot = slot.filter(|&slot| self.entries.get(slot).is_there());
            let Some(slot) = slot else {
                for &slot in &*found {
                    self.entries.get_mut(slot).is_found = false;
                }
                return false;
            };
            self.entries.get_mut(slot).is_found = true;
            found.push(slot);
        }
        true
    }

    /// Holds the entry of a key, out of its step, if nobody waits for its tensor or has found it,
    /// and if the data of that is not longer than this.
    #[inline]
    pub(super) fn hold_tensor(
        &mut self,
        step_id: i64,
        key_hash: u64,
        key: &Text,
        data_bytes_max: usize,
    ) -> Option<(u32, &Tensor)> {
        let entries = &mut self.entries;
        let first = (self.steps).find(step_id, |first| entries.get(first).step_id)?;
        let slot = entries.find(first, key_hash, key)?;
        let entry = entries.get(slot);
        if !entry.is_free() || entry.tensor.as_ref()?.data.len() > data_bytes_max {
            return None;
        }
        let left = entries.detach(slot, first);
        self.steps.replace(step_id, first, left);
        entries.expect_next(slot);
        Some((slot, self.entries.get(slot).tensor.as_ref()?))
    }

    /// Drops an entry that is held.
    #[inline]
    pub(super) fn release(&mut self, slot: u32) {
        self.entries.release(slot);
    }

    /// Takes out what an entry has that is held: the step that it was of, its key and its tensor.
    pub(super) fn take_held(&mut self, slot: u32) -> Option<(i64, Text, Tensor)> {
        let entry = self.entries.held_mut(slot)?;
        let (step_id, key) = (entry.step_id, std::mem::take(&mut entry.key));
        let tensor = entry.tensor.take();
        self.entries.release(slot);
        Some((step_id, key, tensor?))
    }

    /// Adds an entry where there is none. It is not kept empty: the caller gives it a tensor or a
    /// wait, or removes it.
    pub(super) fn insert(&mut self, place: &Place, key: Text) -> u32 {
        let entries = &mut self.entries;
        if let Some(first) = place.first {
            return entries.insert_last(first, place.key_hash, key);
        }
        let slot = entries.insert_first(place.step_id, place.key_hash, key);
        (self.steps).insert(place.step_id, slot, |first| entries.get(first).step_id);
        slot
    }

    /// Removes an entry, and its step with the last of its entries. Returns its key.
    pub(super) fn remove(&mut self, slot: u32) -> Text {
        let entries = &mut self.entries;
        let entry = entries.get_mut(slot);
        debug_assert!(entry.is_empty(), "something still waits for {}", entry.key);
        let key = std::mem::take(&mut entry.key);
        let step_id = entry.step_id;
        let first = (self.steps).find(step_id, |first| entries.get(first).step_id);
        let first = first.expect("a step is there as long as its entries");
        let left = entries.detach(slot, first);
        self.steps.replace(step_id, first, left);
        entries.release(slot);
        key
    }

    /// Takes the tensor of an entry and removes the entry.
    #[inline]
    pub(super) fn remove_tensor(&mut self, slot: u32) -> Option<Tensor> {
        let tensor = self.entries.get_mut(slot).tensor.take();
        self.remove(slot);
        tensor
    }

    pub(super) fn parked(&self, places: usize) -> impl Iterator<Item = (i64, &Text, &Tensor)> {
        self.entries.parked(places)
    }

    pub(super) fn entry(&self, slot: u32) -> &Entry {
        self.entries.get(slot)
    }

    pub(super) fn entry_mut(&mut self, slot: u32) -> &mut Entry {
        self.entries.get_mut(slot)
    }

    #[inline]
    pub(super) fn first_entry(&self, step_id: i64) -> Option<u32> {
        (self.steps).find(step_id, |first| self.entries.get(first).step_id)
    }

    pub(super) fn step_ids(&self) -> impl Iterator<Item = i64> {
        (self.steps.iter()).map(|first| self.entries.get(first).step_id)
    }

    pub(super) fn steps(&self) -> usize {
        self.steps.len()
    }

    pub(super) fn entries(&self) -> u32 {
        self.entries.len()
    }

    /// Whether there is no place for another key.
    pub(super) fn is_full(&self) -> bool {
        self.entries.is_full()
    }

    /// How often a request waits for a key.
    pub(super) fn waits(&self) -> usize {
        self.waits.len()
    }

    /// Appends a request to those that wait for a key.
    pub(super) fn insert_wait(&mut self, slot: u32, waiter: usize) -> u32 {
        let entry = self.entries.get_mut(slot);
        let wait = self.waits.insert(Wait {
            waiter,
            entry: slot,
            previous_at_entry: entry.last_wait,
            next_at_entry: NONE,
            next_of_waiter: NONE,
        }) as u32;
        match self.waits.get_mut(entry.last_wait as usize) {
            Some(last) => last.next_at_entry = wait,
            None => entry.first_wait = wait,
        }
        entry.last_wait = wait;
        entry.waits += 1;
        wait
    }

    pub(super) fn remove_wait(&mut self, slot: u32) -> Wait {
        let wait = self.waits.remove(slot as usize);
        let entry = self.entries.get_mut(wait.entry);
        match self.waits.get_mut(wait.previous_at_entry as usize) {
            Some(previous) => previous.next_at_entry = wait.next_at_entry,
            None => entry.first_wait = wait.next_at_entry,
        }
        match self.waits.get_mut(wait.next_at_entry as usize) {
            Some(next) => next.previous_at_entry = wait.previous_at_entry,
            None => entry.last_wait = wait.previous_at_entry,
        }
        entry.waits -= 1;
        wait
    }

    pub(super) fn wait_mut(&mut self, slot: u32) -> &mut Wait {
        &mut self.waits[slot as usize]
    }

    /// The requests that wait for a key, first come first.
    pub(super) fn waiters_at(&self, slot: u32) -> impl Iterator<Item = usize> {
        let mut next = self.entries.get(slot).first_wait;
        std::iter::from_fn(move || {
            let wait = self.waits.get(next as usize)?;
            next = wait.next_at_entry;
            Some(wait.waiter)
        })
    }

    pub(super) fn last_waiter_at(&self, slot: u32) -> Option<usize> {
        let wait = self.waits.get(self.entries.get(slot).last_wait as usize)?;
        Some(wait.waiter)
    }
}

/// Most waits of all requests together.
pub(super) const WAITS_MAX: usize = NONE as usize;
