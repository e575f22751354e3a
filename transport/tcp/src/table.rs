use grpcxx_transport::LinkId;

/// Links by slot. A slot is used again only after its link was removed, with the next generation.
#[derive(Debug)]
pub(crate) struct Table<L> {
    slots: Vec<Slot<L>>,
    free: Vec<u32>,
}

#[derive(Debug)]
struct Slot<L> {
    generation: u32,
    link: Option<L>,
}

impl<L> Table<L> {
    pub(crate) const fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// All slots, in use or not.
    pub(crate) fn slots(&self) -> std::ops::Range<u32> {
        0..self.slots.len() as u32
    }

    pub(crate) fn insert(&mut self, link: L) -> LinkId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                link: None,
            });
            self.free.reserve(self.slots.len());
            u32::try_from(self.slots.len() - 1).expect("fewer links than descriptors")
        });
        let entry = &mut self.slots[slot as usize];
        entry.link = Some(link);
        LinkId {
            slot,
            generation: entry.generation,
        }
    }

    pub(crate) fn remove(&mut self, slot: u32) -> Option<L> {
        let entry = self.slots.get_mut(slot as usize)?;
        let link = entry.link.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        Some(link)
    }

    /// The link with this id, unless it is gone.
    pub(crate) fn find(&mut self, id: LinkId) -> Option<&mut L> {
        let entry = self.slots.get_mut(id.slot as usize)?;
        (entry.generation == id.generation)
            .then_some(entry.link.as_mut())
            .flatten()
    }

    /// As [`Table::find`], to look at only.
    pub(crate) fn look_up(&self, id: LinkId) -> Option<&L> {
        let entry = self.slots.get(id.slot as usize)?;
        (entry.generation == id.generation)
            .then_some(entry.link.as_ref())
            .flatten()
    }

    /// The link that now has this slot.
    pub(crate) fn at(&mut self, slot: u32) -> Option<(LinkId, &mut L)> {
        let entry = self.slots.get_mut(slot as usize)?;
        let id = LinkId {
            slot,
            generation: entry.generation,
        };
        entry.link.as_mut().map(|link| (id, link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_used_again_has_another_generation() {
        let mut table = Table::new();
        let first = table.insert('a');
        let second = table.insert('b');
        assert_eq!(table.len(), 2);
        assert_eq!(table.remove(first.slot), Some('a'));
        assert_eq!(table.remove(first.slot), None);
        assert_eq!(table.find(first), None);
        let third = table.insert('c');
        assert_eq!((third.slot, third.generation), (first.slot, 1));
        assert_eq!(table.find(first), None);
        assert_eq!(table.find(third), Some(&mut 'c'));
        assert_eq!(table.at(second.slot), Some((second, &mut 'b')));
    }
}
