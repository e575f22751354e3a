use crate::command::SlotId;

/// A table whose entries are named by slot and generation, so that a stale name finds nothing.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
    limit: usize,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            limit,
        }
    }

    /// Takes a value in, or gives it back if the table is full.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Result<SlotId, T> {
        if self.is_full() {
            return Err(value);
        }
        Ok(self.make(|| value))
    }

    /// Makes a value where the table is not full. It is inlined and the last that can fail is behind it when it does, so
    /// that the parts of the value are not put together elsewhere first: a move waits until they are written.
    #[inline(always)]
    pub(crate) fn make(&mut self, make: impl FnOnce() -> T) -> SlotId {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.grow(),
        };
        let entry = &mut self.entries[slot as usize];
        if entry.value.is_some() {
            unreachable!("the list of free slots holds vacant ones");
        }
        // A vacant slot has nothing to drop.
        std::mem::forget(entry.value.replace(make()));
        SlotId {
            slot,
            generation: entry.generation,
        }
    }

    /// Makes a slot where none is free.
    #[cold]
    fn grow(&mut self) -> u32 {
        debug_assert!(self.entries.len() < self.limit);
        let slot = u32::try_from(self.entries.len()).expect("limits are below 2^32");
        self.entries.push(Entry {
            generation: 0,
            value: None,
        });
        slot
    }

    #[inline]
    pub(crate) fn find(&self, id: SlotId) -> Option<&T> {
        let entry = self.entries.get(id.slot as usize)?;
        (entry.generation == id.generation).then_some(entry.value.as_ref())?
    }

    #[inline]
    pub(crate) fn find_mut(&mut self, id: SlotId) -> Option<&mut T> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        (entry.generation == id.generation).then_some(entry.value.as_mut())?
    }

    #[inline]
    pub(crate) fn remove(&mut self, id: SlotId) -> Option<T> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        let value = entry.value.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(value)
    }

    /// The name of the next value, if it is taken in.
    #[inline]
    pub(crate) fn next(&self) -> SlotId {
        let slot = self.free.last().copied();
        let slot = slot.unwrap_or(self.entries.len() as u32);
        let entry = self.entries.get(slot as usize);
        SlotId {
            slot,
            generation: entry.map_or(0, |entry| entry.generation),
        }
    }

    /// Whether the next value would be given back.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.free.is_empty() && self.entries.len() >= self.limit
    }

    /// Takes what is needed of a value, and drops the rest where it is.
    #[inline(always)]
    pub(crate) fn dissolve<R>(&mut self, id: SlotId, take: impl FnOnce(&mut T) -> R) -> Option<R> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        if entry.generation != id.generation {
            return None;
        }
        let taken = take(entry.value.as_mut()?);
        entry.value = None;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(id.slot);
        Some(taken)
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let values = self.entries.iter_mut().map(|entry| &mut entry.value);
        values.flatten()
    }

    /// The ids in use, in order of slots.
    pub(crate) fn ids(&self) -> impl Iterator<Item = SlotId> {
        self.entries.iter().enumerate().filter_map(|(slot, entry)| {
            entry.value.as_ref().map(|_| SlotId {
                slot: slot as u32,
                generation: entry.generation,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_ids_find_nothing_and_the_limit_gives_back() {
        let mut slots = Slots::new(1);
        let first = slots.insert('a').unwrap();
        assert!(slots.is_full());
        assert_eq!(slots.insert('b'), Err('b'));
        assert_eq!(slots.remove(first), Some('a'));
        let next = slots.next();
        let second = slots.insert('c').unwrap();
        assert_eq!(second, next);
        assert_eq!(slots.find(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.find(second), Some(&'c'));
        assert_eq!(slots.ids().collect::<Vec<_>>(), [second]);
        assert_eq!(slots.len(), 1);
        assert_eq!(slots.dissolve(first, |value| *value), None);
        assert_eq!(slots.dissolve(second, |value| *value), Some('c'));
        assert_eq!(slots.dissolve(second, |value| *value), None);
        assert!(slots.is_empty() && !slots.is_full());
    }
}
