use crate::mapping::PAGE_BYTES;
use crate::reclaim::{SLABS_MAX, SLOTS_PER_SLAB};

/// Hands out slots of slabs; a slab is 64 slots of one power of two of bytes.
pub(crate) struct Slabs {
    slabs: Vec<Slab>,
    count_max: u32,
    /// First slab with free slots of each class.
    partial: [u32; CLASSES],
    /// First of the numbers that no slab has now.
    unused: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slab {
    /// Bit n: slot n is free.
    free: u64,
    page: u32,
    class: u8,
    previous: u32,
    next: u32,
}

/// A size of slots: class n has slots of 64 << n bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Class(u8);

/// A slot that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) slab: u32,
    pub(crate) slot: u32,
    /// Offset in the arena.
    pub(crate) offset_bytes: usize,
}

/// Pages that held a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlabPages {
    pub(crate) page: u32,
    pub(crate) pages: u32,
}

impl Class {
    /// The smallest class whose slots hold `len` bytes.
    #[inline]
    pub(crate) fn for_len(len: usize) -> Option<Self> {
        if len > SLOT_BYTES_MAX {
            return None;
        }
        let bytes = len.max(SLOT_BYTES_MIN).next_power_of_two();
        Some(Self((bytes / SLOT_BYTES_MIN).trailing_zeros() as u8))
    }

    #[inline]
    pub(crate) fn slot_bytes(self) -> usize {
        SLOT_BYTES_MIN << self.0
    }

    /// Pages of one slab of this class.
    pub(crate) fn slab_pages(self) -> u32 {
        1 << self.0
    }
}

impl Slabs {
    pub(crate) fn new(page_count: u32) -> Self {
        let count_max = Self::count_max(page_count);
        Self {
            slabs: Vec::with_capacity(count_max as usize),
            count_max,
            partial: [NONE; CLASSES],
            unused: NONE,
        }
    }

    /// Most slabs that an arena of so many pages has.
    pub(crate) fn count_max(page_count: u32) -> u32 {
        page_count.min(SLABS_MAX)
    }

    /// A slot that nobody else has, unless all slabs of the class are full.
    #[inline]
    pub(crate) fn allocate(&mut self, class: Class) -> Option<Slot> {
        let number = self.partial[usize::from(class.0)];
        if number == NONE {
            return None;
        }
        let slab = &mut self.slabs[number as usize];
        let slot = slab.free.trailing_zeros();
        slab.free &= slab.free - 1;
        let offset_bytes = slab.page as usize * PAGE_BYTES + slot as usize * class.slot_bytes();
        if slab.free == 0 {
            self.unlink(number);
        }
        Some(Slot {
            slab: number,
            slot,
            offset_bytes,
        })
    }

    /// Whether a slab can be added.
    pub(crate) fn has_room(&self) -> bool {
        self.unused != NONE || self.slabs.len() < self.count_max as usize
    }

    /// Makes a slab of [`Class::slab_pages`] pages from `page` on.
    ///
    /// # Panics
    /// Without [`Slabs::has_room`].
    pub(crate) fn add(&mut self, class: Class, page: u32) {
        assert!(self.has_room(), "number of slabs is limited");
        let slab = Slab {
            free: ALL_FREE,
            page,
            class: class.0,
            previous: NONE,
            next: NONE,
        };
        let number = self.unused;
        if number == NONE {
            self.slabs.push(slab);
            self.link(self.slabs.len() as u32 - 1);
        } else {
            self.unused = self.slabs[number as usize].next;
            self.slabs[number as usize] = slab;
            self.link(number);
        }
    }

    /// Class of the slots of a slab.
    #[inline]
    pub(crate) fn class(&self, slab: u32) -> Class {
        Class(self.slabs[slab as usize].class)
    }

    /// Takes back a slot. If its slab is now empty and another one of the class has free slots, the
    /// slab is dissolved and its pages are returned.
    #[inline]
    pub(crate) fn free(&mut self, number: u32, slot: u32) -> Option<SlabPages> {
        let slab = &mut self.slabs[number as usize];
        let was_full = slab.free == 0;
        slab.free |= 1 << slot;
        if was_full {
            self.link(number);
            return None;
        }
        let alone = slab.previous == NONE && slab.next == NONE;
        if slab.free != ALL_FREE || alone {
            return None;
        }
        Some(self.dissolve(number))
    }

    /// Dissolves an empty slab, if there is one.
    pub(crate) fn take_empty(&mut self) -> Option<SlabPages> {
        // Emptied slabs are dissolved unless they are the only partial one, so looking at the first
        // is enough.
        let number = self
            .partial
            .into_iter()
            .find(|&number| number != NONE && self.slabs[number as usize].free == ALL_FREE)?;
        Some(self.dissolve(number))
    }

    fn dissolve(&mut self, number: u32) -> SlabPages {
        self.unlink(number);
        let slab = &mut self.slabs[number as usize];
        slab.next = self.unused;
        self.unused = number;
        SlabPages {
            page: slab.page,
            pages: Class(slab.class).slab_pages(),
        }
    }

    fn link(&mut self, number: u32) {
        let class = usize::from(self.slabs[number as usize].class);
        let next = self.partial[class];
        if next != NONE {
            self.slabs[next as usize].previous = number;
        }
        let slab = &mut self.slabs[number as usize];
        (slab.previous, slab.next) = (NONE, next);
        self.partial[class] = number;
    }

    fn unlink(&mut self, number: u32) {
        let Slab {
            previous,
            next,
            class,
            ..
        } = self.slabs[number as usize];
        if previous == NONE {
            self.partial[usize::from(class)] = next;
        } else {
            self.slabs[previous as usize].next = next;
        }
        if next != NONE {
            self.slabs[next as usize].previous = previous;
        }
    }
}

/// Smallest slot; also the alignment of all blocks.
pub(crate) const SLOT_BYTES_MIN: usize = 64;

/// Largest slot; longer requests get pages.
pub(crate) const SLOT_BYTES_MAX: usize = 2048;

const CLASSES: usize = (SLOT_BYTES_MAX / SLOT_BYTES_MIN).trailing_zeros() as usize + 1;
const ALL_FREE: u64 = u64::MAX;
const NONE: u32 = u32::MAX;

// A slab of the smallest class fills one page, and each next class twice as many.
const _: () = assert!(SLOT_BYTES_MIN * SLOTS_PER_SLAB as usize == PAGE_BYTES);
const _: () = assert!(SLOTS_PER_SLAB == u64::BITS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two() {
        let bytes = |len| Class::for_len(len).map(Class::slot_bytes);
        assert_eq!(bytes(1), Some(64));
        assert_eq!(bytes(64), Some(64));
        assert_eq!(bytes(65), Some(128));
        assert_eq!(bytes(2048), Some(2048));
        assert_eq!(bytes(2049), None);
    }

    #[test]
    fn slots_fill_a_slab_and_come_back() {
        let class = Class::for_len(100).unwrap();
        let mut slabs = Slabs::new(8);
        assert_eq!(slabs.allocate(class), None);
        slabs.add(class, 4);
        let slots: Vec<Slot> = std::iter::from_fn(|| slabs.allocate(class)).collect();
        let offsets: Vec<usize> = slots.iter().map(|slot| slot.offset_bytes).collect();
        let expected: Vec<usize> = (0..64).map(|slot| 4 * PAGE_BYTES + slot * 128).collect();
        assert_eq!(offsets, expected);
        for slot in &slots {
            assert_eq!(
                slabs.free(slot.slab, slot.slot),
                None,
                "the only slab stays"
            );
        }
        assert_eq!(slabs.take_empty(), Some(SlabPages { page: 4, pages: 2 }));
        assert_eq!(slabs.take_empty(), None);
        assert_eq!(slabs.allocate(class), None);
    }

    #[test]
    fn of_two_slabs_an_empty_one_is_dissolved() {
        let class = Class::for_len(64).unwrap();
        let mut slabs = Slabs::new(2);
        slabs.add(class, 0);
        let first: Vec<Slot> = std::iter::from_fn(|| slabs.allocate(class)).collect();
        slabs.add(class, 1);
        assert!(!slabs.has_room());
        let second = slabs.allocate(class).unwrap();
        assert_eq!(slabs.free(first[5].slab, first[5].slot), None);
        let dissolved = slabs.free(second.slab, second.slot);
        assert_eq!(dissolved, Some(SlabPages { page: 1, pages: 1 }));
        assert!(slabs.has_room());
        slabs.add(Class::for_len(2000).unwrap(), 7);
        assert_eq!(slabs.class(1).slot_bytes(), 2048);
        assert_eq!(slabs.allocate(class).unwrap().offset_bytes, 5 * 64);
    }
}
