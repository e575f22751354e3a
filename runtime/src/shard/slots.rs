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

/// A vacant slot, which has a name before it has a value.
#[derive(Debug)]
pub(crate) struct Vacant<'a, T> {
    slot: u32,
    entry: &'a mut Entry<T>,
    free: &'a mut u32,
    occupied: &'a mut usize,
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
        match self.vacant() {
            Some(vacant) => {
                let id = vacant.id();
                vacant.fill(|| value);
                Ok(id)
            }
            None => Err(value),
        }
    }

    /// The slot of the next value, unless the table is full.
    #[inline]
    pub(crate) fn vacant(&mut self) -> Option<Vacant<'_, T>> {
        if self.free == NONE {
            self.grow();
        }
        let slot = self.free;
        Some(Vacant {
            slot,
            entry: self.entries.get_mut(slot as usize)?,
            free: &mut self.free,
            occupied: &mut self.occupied,
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
        self.vacate(id, Option::take)?
    }

    /// Takes out what is wanted of a value, which leaves nothing of it to drop. Inlined, so that nothing else is moved.
    #[inline(always)]
    pub(crate) fn dissolve<R>(&mut self, id: SlotId, take: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.vacate(id, |value| {
            let taken = value.as_mut().map(take);
            std::mem::forget(value.take());
            taken
        })?
    }

    #[inline(always)]
    fn vacate<R>(&mut self, id: SlotId, take: impl FnOnce(&mut Option<T>) -> R) -> Option<R> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        if entry.generation != id.generation || entry.value.is_none() {
            return None;
        }
        entry.generation = entry.generation.wrapping_add(1);
        entry.next_free = self.free;
        self.free = id.slot;
        self.occupied -= 1;
        Some(take(&mut entry.value))
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.occupied
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

impl<T> Vacant<'_, T> {
    /// The name of the value that the slot gets.
    #[inline]
    pub(crate) fn id(&self) -> SlotId {
        SlotId {
            slot: self.slot,
            generation: self.entry.generation,
        }
    }

    /// Makes the value where it stays. Inlined, so that its parts are not put together elsewhere first: a move waits until
    /// they are written.
    #[inline(always)]
    pub(crate) fn fill(self, make: impl FnOnce() -> T) {
        debug_assert!(self.entry.value.is_none());
        // A vacant slot has nothing to drop.
        std::mem::forget(self.entry.value.replace(make()));
        *self.free = self.entry.next_free;
        *self.occupied += 1;
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
        assert!(slots.vacant().is_none());
        assert_eq!(slots.insert('b'), Err('b'));
        assert_eq!(slots.remove(first), Some('a'));
        assert!(slots.is_empty());
        let vacant = slots.vacant().unwrap();
        let second = vacant.id();
        assert_eq!(slots.find(second), None);
        slots.vacant().unwrap().fill(|| 'c');
        assert_eq!(slots.find(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.find(second), Some(&'c'));
        assert_eq!(slots.ids().collect::<Vec<_>>(), [second]);
        assert_eq!(slots.len(), 1);
        assert_eq!(slots.dissolve(first, |value| *value), None);
        assert_eq!(slots.dissolve(second, |value| *value), Some('c'));
        assert_eq!(slots.dissolve(second, |value| *value), None);
        assert_eq!(slots.remove(second), None);
        assert!(slots.is_empty());
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
