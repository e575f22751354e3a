use crate::command::SlotId;

/// A table whose entries are named by slot and generation, so that a stale name finds nothing.
///
/// Invariants: `free` heads a list of all vacant slots; `occupied` counts the others.
#[derive(Debug)]
pub(crate) struct Slots<T> {
    entries: Vec<Entry<T>>,
    free: u32,
    occupied: usize,
    limit: usize,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    /// The next vacant slot, if this one is vacant.
    next_free: u32,
    value: Option<T>,
}

impl<T> Slots<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            entries: Vec::new(),
            free: NONE,
            occupied: 0,
            limit,
        }
    }

    /// Takes a value in, or gives it back if the table is full.
    #[inline]
    pub(crate) fn insert(&mut self, value: T) -> Result<SlotId, T> {
        if self.free == NONE {
            self.grow();
        }
        let slot = self.free;
        let Some(entry) = self.entries.get_mut(slot as usize) else {
            return Err(value);
        };
        debug_assert!(entry.value.is_none());
        // A vacant slot has nothing to drop.
        std::mem::forget(entry.value.replace(value));
        self.free = entry.next_free;
        self.occupied += 1;
        Ok(SlotId {
            slot,
            generation: entry.generation,
        })
    }

    /// Makes a slot where none is vacant, unless the table is full.
    #[cold]
    fn grow(&mut self) {
        if self.entries.len() >= self.limit {
            return;
        }
        self.free = u32::try_from(self.entries.len()).expect("limits are below 2^32");
        self.entries.push(Entry {
            generation: 0,
            next_free: NONE,
            value: None,
        });
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
        if entry.generation != id.generation || entry.value.is_none() {
            return None;
        }
        entry.generation = entry.generation.wrapping_add(1);
        entry.next_free = self.free;
        self.free = id.slot;
        self.occupied -= 1;
        entry.value.take()
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.occupied
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

const NONE: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_ids_find_nothing_and_the_limit_gives_back() {
        let mut slots = Slots::new(1);
        let first = slots.insert('a').unwrap();
        assert_eq!(slots.insert('b'), Err('b'));
        assert_eq!(slots.remove(first), Some('a'));
        assert_eq!(slots.len(), 0);
        let second = slots.insert('c').unwrap();
        assert_eq!(slots.find(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.find(second), Some(&'c'));
        assert_eq!(slots.ids().collect::<Vec<_>>(), [second]);
        assert_eq!(slots.len(), 1);
        assert_eq!(slots.remove(second), Some('c'));
        assert_eq!(slots.remove(second), None);
        assert_eq!(slots.len(), 0);
    }

    #[test]
    fn slots_are_used_again_before_there_are_more() {
        let mut slots = Slots::new(3);
        let [a, b, _] = ['a', 'b', 'c'].map(|value| slots.insert(value).unwrap());
        slots.remove(a).unwrap();
        slots.remove(b).unwrap();
        let [d, e] = ['d', 'e'].map(|value| slots.insert(value).unwrap());
        assert_eq!((d.slot, e.slot), (b.slot, a.slot));
        assert_eq!(slots.insert('f'), Err('f'));
        assert_eq!(
            slots.values_mut().map(|value| *value).collect::<String>(),
            "edc"
        );
    }
}
