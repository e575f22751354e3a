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
    pub(crate) fn insert(&mut self, value: T) -> Result<SlotId, T> {
        if let Some(slot) = self.free.pop() {
            let entry = &mut self.entries[slot as usize];
            entry.value = Some(value);
            return Ok(SlotId {
                slot,
                generation: entry.generation,
            });
        }
        match u32::try_from(self.entries.len()) {
            Ok(slot) if self.entries.len() < self.limit => {
                self.entries.push(Entry {
                    generation: 0,
                    value: Some(value),
                });
                Ok(SlotId {
                    slot,
                    generation: 0,
                })
            }
            _ => Err(value),
        }
    }

    pub(crate) fn find(&self, id: SlotId) -> Option<&T> {
        let entry = self.entries.get(id.slot as usize)?;
        (entry.generation == id.generation).then_some(entry.value.as_ref())?
    }

    pub(crate) fn find_mut(&mut self, id: SlotId) -> Option<&mut T> {
        let entry = self.entries.get_mut(id.slot as usize)?;
        (entry.generation == id.generation).then_some(entry.value.as_mut())?
    }

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

    pub(crate) fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
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
        assert_eq!(slots.insert('b'), Err('b'));
        assert_eq!(slots.remove(first), Some('a'));
        let second = slots.insert('c').unwrap();
        assert_eq!(slots.find(first), None);
        assert_eq!(slots.remove(first), None);
        assert_eq!(slots.find(second), Some(&'c'));
        assert_eq!(slots.ids().collect::<Vec<_>>(), [second]);
        assert_eq!(slots.len(), 1);
    }
}
