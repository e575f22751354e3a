#![expect(
    unsafe_code,
    reason = "references to a borrowed part count as one to its lender"
)]

use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering, fence};

use crate::{Buffer, together};

/// Somebody else, whose memory is borrowed part by part and given back.
///
/// It may be another process, which has promised to write nothing that is borrowed. Nobody can hold
/// it to that, so buffers over such memory say that they are [borrowed](Buffer::is_borrowed): what
/// must stay as it was when it was checked is made of [`Buffer::into_private`].
pub trait Lender: Send + Sync + 'static {
    /// A part of the memory.
    ///
    /// # Panics
    /// If it reaches beyond.
    fn part(&self, place: Range<usize>) -> &[u8];

    /// The last buffer over what was borrowed under this number is gone. Called on the thread that
    /// dropped it.
    fn give_back(&self, number: usize);
}

/// What is borrowed of one [`Lender`]: one part under each number. Unlike [`Buffer::from_owner`],
/// this allocates nothing for a part.
#[derive(Clone)]
pub struct Leases {
    table: Arc<Table>,
}

struct Table {
    lender: Box<dyn Lender>,
    /// Buffers over the part that is borrowed under each number.
    counts: Box<[AtomicUsize]>,
}

/// One of several references to a borrowed part. All of them together hold one to the table.
pub(crate) struct Lease {
    table: NonNull<Table>,
    number: u32,
}

// SAFETY: the lender and the counts may be used by any thread, and whoever drops the last reference
// to a part may be any.
unsafe impl Send for Lease {}
// SAFETY: a shared reference to it reads the table only, and clones touch an atomic.
unsafe impl Sync for Lease {}

impl Leases {
    /// Nothing is borrowed yet, and what will be is under numbers below `count`.
    pub fn new(lender: impl Lender, count: u32) -> Self {
        Self {
            table: Arc::new(Table {
                lender: Box::new(lender),
                counts: (0..count).map(|_| AtomicUsize::new(0)).collect(),
            }),
        }
    }

    /// Borrows a part; [`Lender::give_back`] is called once the last buffer over it is dropped. The
    /// lender lives as long. `None` if a part is borrowed under that number, or if there is no such
    /// number.
    ///
    /// # Panics
    /// If the part reaches beyond the lender's memory.
    pub fn borrow(&self, number: u32, place: Range<usize>) -> Option<Buffer> {
        let count = self.table.counts.get(number as usize)?;
        // After all that the former borrowers did.
        count
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .ok()?;
        let table = Arc::into_raw(Arc::clone(&self.table)).cast_mut();
        let lease = Lease {
            // SAFETY: a pointer out of an `Arc` is not null.
            table: unsafe { NonNull::new_unchecked(table) },
            number,
        };
        Some(Buffer::from_lease(lease, place))
    }
}

impl Lease {
    /// A part of the memory that it is a reference to.
    pub(crate) fn part(&self, place: Range<usize>) -> &[u8] {
        // SAFETY: references to the part keep the table.
        unsafe { self.table.as_ref() }.lender.part(place)
    }

    /// Counts so many references more.
    #[inline]
    pub(crate) fn retain(&self, count: u32) {
        // Whoever calls has a reference, so that nobody can find that it was the last.
        if self.count().fetch_add(count as usize, Ordering::Relaxed) > isize::MAX as usize {
            // As in `Arc`: only clones that were forgotten can get here, and the next step would be
            // memory that is given back while it is in use.
            std::process::abort();
        }
    }

    /// Takes back the count of references that nobody has, so that the last one cannot be among
    /// them.
    #[inline]
    pub(crate) fn discount(&self, count: u32) {
        // Relaxed, since this reference goes later, and shows then what was done before.
        self.count().fetch_sub(count as usize, Ordering::Relaxed);
    }

    #[inline]
    fn count(&self) -> &AtomicUsize {
        // SAFETY: references to the part keep the table.
        let counts = unsafe { &self.table.as_ref().counts };
        &counts[self.number as usize]
    }
}

impl Clone for Lease {
    #[inline]
    fn clone(&self) -> Self {
        self.retain(1);
        Self {
            table: self.table,
            number: self.number,
        }
    }
}

impl Drop for Lease {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: this is a reference, and going. All that wait together are to this part, and keep
        // the table.
        unsafe { together::release(self.table.cast(), self.number, release) };
    }
}

/// # Safety
/// The caller has so many references to the part of this table with this number, and uses them no
/// more.
#[inline(always)]
unsafe fn release(table: NonNull<()>, number: u32, count: u32) {
    let table = table.cast::<Table>();
    // SAFETY: references to the part keep the table.
    let references = unsafe { &table.as_ref().counts[number as usize] };
    // After this nothing of the table is touched, unless they were the last references.
    if references.fetch_sub(count as usize, Ordering::Release) == count as usize {
        // SAFETY: these were the last references, and are going.
        unsafe { give_back(table, number) };
    }
}

/// Not inlined, as for blocks.
///
/// # Safety
/// The caller is the last reference to the part and does not use it, nor the table, after the call.
#[inline(never)]
unsafe fn give_back(table: NonNull<Table>, number: u32) {
    // What others did with the part is over before it is given back.
    fence(Ordering::Acquire);
    // SAFETY: out of `Arc::into_raw` when the part was borrowed, and taken back by its last
    // reference alone.
    let table = unsafe { Arc::from_raw(table.as_ptr()) };
    table.lender.give_back(number as usize);
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = self.table.counts.iter();
        let borrowed = counts.filter(|count| count.load(Ordering::Relaxed) > 0);
        write!(f, "Leases({} borrowed)", borrowed.count())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::Parts;

    struct Library {
        text: Box<[u8]>,
        returned: Arc<Mutex<Vec<usize>>>,
    }

    impl Lender for Library {
        fn part(&self, place: Range<usize>) -> &[u8] {
            &self.text[place]
        }

        fn give_back(&self, number: usize) {
            self.returned.lock().unwrap().push(number);
        }
    }

    fn library() -> (Leases, Arc<Mutex<Vec<usize>>>) {
        let returned = Arc::default();
        let library = Library {
            text: b"0123456789".as_slice().into(),
            returned: Arc::clone(&returned),
        };
        (Leases::new(library, 3), returned)
    }

    #[test]
    fn the_last_buffer_gives_a_part_back_wherever_it_is_dropped() {
        let (leases, returned) = library();
        let part = leases.borrow(1, 2..6).unwrap();
        assert_eq!(&part[..], b"2345");
        assert!(!part.is_arena() && !part.is_unique() && part.region().is_none());
        assert!(leases.borrow(1, 0..1).is_none(), "it has the number");
        assert!(leases.borrow(3, 0..1).is_none(), "no such number");
        let other = leases.borrow(2, 0..10).unwrap();
        assert_eq!(format!("{leases:?}"), "Leases(2 borrowed)");
        let inner = part.slice(1..3);
        drop(leases);
        let part = part.try_into_mut().unwrap_err();
        drop(part);
        assert_eq!(*returned.lock().unwrap(), []);
        std::thread::spawn(move || assert_eq!(&inner.clone()[..], b"34"))
            .join()
            .unwrap();
        assert_eq!(*returned.lock().unwrap(), [1]);
        assert_eq!(&other[..], b"0123456789", "the lender lives as long");
        drop(other);
        assert_eq!(*returned.lock().unwrap(), [1, 2]);
    }

    #[test]
    fn parts_that_are_counted_at_once_give_back_with_the_last_of_them() {
        for (count, cut) in [(0, 0), (0, 2), (3, 0), (3, 1), (3, 3), (3, 5)] {
            let (leases, returned) = library();
            let mut parts = Parts::new(leases.borrow(1, 2..9).unwrap(), count);
            drop(leases);
            let kept: Vec<Buffer> = (0..cut).map(|at| parts.cut(at..at + 2)).collect();
            drop(parts);
            for (at, part) in kept.into_iter().enumerate() {
                assert_eq!(part[..], b"23456789"[at..at + 2]);
                assert_eq!(*returned.lock().unwrap(), [], "{count} {cut}");
            }
            assert_eq!(*returned.lock().unwrap(), [1], "{count} {cut}");
            assert_eq!(Arc::strong_count(&returned), 1, "the lender is gone");
        }
    }

    #[test]
    fn what_is_made_private_is_a_copy_of_what_is_borrowed() {
        let (leases, returned) = library();
        let part = leases.borrow(1, 2..6).unwrap();
        assert!(part.is_borrowed());
        let private = part.into_private();
        assert!(!private.is_borrowed() && &private[..] == b"2345");
        assert_eq!(*returned.lock().unwrap(), [1]);
        let place = private.as_ptr();
        assert_eq!(private.into_private().as_ptr(), place, "once is enough");
    }

    #[test]
    fn a_number_can_be_had_again() {
        let (leases, returned) = library();
        for round in 0..10 {
            let part = leases.borrow(0, round..10).unwrap();
            let clones: Vec<_> = (0..4).map(|_| part.clone()).collect();
            drop(part);
            assert!(leases.borrow(0, 0..1).is_none());
            drop(clones);
            assert_eq!(returned.lock().unwrap().len(), round + 1);
        }
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_part_beyond_the_memory_is_a_fault_of_the_caller() {
        library().0.borrow(0, 5..11);
    }
}
