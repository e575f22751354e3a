//! References that one thread drops in a row, taken off their count at once.
#![expect(
    unsafe_code,
    reason = "references wait here for what takes them off their count"
)]

use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// While there is one, the thread that made it takes references to the same memory that it drops
/// one after another off their count together: the count is shared with all threads, which makes
/// each change of it dear.
///
/// What is dropped meanwhile counts until other memory is dropped, or this is settled or dropped:
/// so long its memory does not come home, and other threads do not find theirs the only reference
/// to it ([`Buffer::is_unique`](crate::Buffer)). For a scope that ends soon, therefore, and not to
/// be forgotten. One inside of another has no effect.
#[derive(Debug)]
#[must_use = "it ends where it is dropped"]
pub struct DropBatch {
    is_outermost: bool,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

/// References to one memory that were dropped, and are still counted.
struct Dropped {
    is_open: Cell<bool>,
    /// What counts the references; none if nothing waits.
    owner: Cell<*const ()>,
    number: Cell<u32>,
    count: Cell<u32>,
    release: Cell<Option<Release>>,
}

/// Takes so many references off the count of the memory with this number.
///
/// # Safety
/// The caller has as many references, which it does not use after the call.
pub(crate) type Release = unsafe fn(owner: NonNull<()>, number: u32, count: u32);

#[cfg(not(loom))]
thread_local! {
    static DROPPED: Dropped = const { Dropped::new() };
}

#[cfg(loom)]
loom::thread_local! {
    static DROPPED: Dropped = Dropped::new();
}

impl DropBatch {
    /// Begins.
    #[inline]
    pub fn begin() -> Self {
        let is_outermost = DROPPED.with(|dropped| !dropped.is_open.replace(true));
        Self {
            is_outermost,
            _thread: PhantomData,
        }
    }

    /// Takes off their count what was dropped so far.
    #[inline]
    pub fn settle(&self) {
        settle();
    }
}

impl Drop for DropBatch {
    #[inline]
    fn drop(&mut self) {
        if self.is_outermost {
            DROPPED.with(|dropped| dropped.is_open.set(false));
            settle();
        }
    }
}

/// Drops one reference to the memory with this number, now or together with others.
///
/// # Safety
/// The caller has the reference and does not use it after the call. `owner` and `number` stand for
/// the same memory and the same `release` as long as there are references to it, which any thread
/// may take off their count.
#[inline(always)]
pub(crate) unsafe fn release(owner: NonNull<()>, number: u32, release: Release) {
    DROPPED.with(|dropped| {
        if dropped.owner.get() == owner.as_ptr() && dropped.number.get() == number {
            dropped.count.set(dropped.count.get() + 1);
        } else if dropped.is_open.get() {
            dropped.begin(owner, number, release);
        } else {
            // SAFETY: stated by the caller.
            unsafe { release(owner, number, 1) };
        }
    });
}

/// Takes off their count what this thread has dropped.
#[inline]
pub(crate) fn settle() {
    DROPPED.with(|dropped| {
        // Memory that is given back may drop other memory.
        while let Some(waiting) = dropped.take() {
            // SAFETY: so many references were handed over to wait.
            unsafe { waiting.release() };
        }
    });
}

/// References that were taken out of what waits.
struct Waiting {
    owner: NonNull<()>,
    number: u32,
    count: u32,
    release: Release,
}

impl Waiting {
    /// # Safety
    /// The references are the caller's.
    #[inline(never)]
    unsafe fn release(self) {
        // SAFETY: stated by the caller.
        unsafe { (self.release)(self.owner, self.number, self.count) };
    }
}

impl Dropped {
    const fn new() -> Self {
        Self {
            is_open: Cell::new(false),
            owner: Cell::new(std::ptr::null()),
            number: Cell::new(0),
            count: Cell::new(0),
            release: Cell::new(None),
        }
    }

    #[inline]
    fn take(&self) -> Option<Waiting> {
        let owner = NonNull::new(self.owner.replace(std::ptr::null()).cast_mut())?;
        Some(Waiting {
            owner,
            number: self.number.get(),
            count: self.count.get(),
            release: self.release.get()?,
        })
    }

    #[inline(never)]
    fn begin(&self, owner: NonNull<()>, number: u32, release: Release) {
        let before = self.take();
        self.owner.set(owner.as_ptr());
        self.number.set(number);
        self.count.set(1);
        self.release.set(Some(release));
        if let Some(before) = before {
            // Last, for this may drop other memory, or panic.
            // SAFETY: so many references were handed over to wait.
            unsafe { before.release() };
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::ops::Range;
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::{Arena, ArenaOptions, Buffer, Leases, Lender};

    fn arena(pages: usize) -> Arena {
        Arena::new(ArenaOptions {
            capacity_bytes: pages * 4096,
            ..ArenaOptions::default()
        })
        .expect("address space")
    }

    fn frozen(arena: &mut Arena, len: usize) -> Buffer {
        arena.allocate(len).expect("room").freeze()
    }

    #[test]
    fn memory_comes_home_with_the_end_or_with_other_memory() {
        let mut arena = arena(4);
        let (first, second) = (frozen(&mut arena, 4096), frozen(&mut arena, 4096));
        let together = DropBatch::begin();
        let inner = DropBatch::begin();
        drop((first.clone(), first.slice(1..2), first));
        drop(inner);
        assert_eq!(DROPPED.with(|dropped| dropped.count.get()), 3);
        drop(second);
        assert_eq!(DROPPED.with(|dropped| dropped.count.get()), 1);
        drop(together);
        assert!(DROPPED.with(|dropped| dropped.owner.get().is_null()));
        assert_eq!(arena.reclaim(), 2);
        drop(frozen(&mut arena, 4096));
        assert_eq!(arena.reclaim(), 1, "at once, outside of the scope");
    }

    #[test]
    fn what_was_dropped_is_nobodys_and_is_there_for_the_next() {
        let mut arena = arena(1);
        let _together = DropBatch::begin();
        for _ in 0..3 {
            let buffer = frozen(&mut arena, 4096);
            drop(buffer.clone());
            assert!(buffer.is_unique());
            drop(buffer.clone());
            let buffer = buffer.try_into_mut().expect("nobody else has it").freeze();
            let other = buffer.clone();
            std::thread::spawn(move || drop(other)).join().unwrap();
            drop(buffer);
        }
    }

    #[test]
    fn memory_outlives_its_arena_until_it_is_dropped() {
        let together = DropBatch::begin();
        let mut arena = arena(2);
        let (first, second) = (frozen(&mut arena, 4096), frozen(&mut arena, 64));
        drop(first.clone());
        drop(arena);
        drop(first);
        drop(second);
        drop(together);
    }

    /// Gives back by dropping what it lent of others.
    struct Chain {
        bytes: [u8; 4],
        held: Mutex<Vec<Buffer>>,
        returned: Arc<Mutex<Vec<usize>>>,
    }

    impl Lender for Chain {
        fn part(&self, place: Range<usize>) -> &[u8] {
            &self.bytes[place]
        }

        fn give_back(&self, number: usize) {
            self.returned.lock().unwrap().push(number);
            self.held.lock().unwrap().clear();
        }
    }

    #[test]
    fn giving_back_may_drop_other_memory() {
        let returned: Arc<Mutex<Vec<usize>>> = Arc::default();
        let lend = |number, held| {
            let chain = Chain {
                bytes: [7; 4],
                held: Mutex::new(held),
                returned: Arc::clone(&returned),
            };
            Leases::new(chain, 9).borrow(number, 0..4).expect("is free")
        };
        let last = lend(3, Vec::new());
        let middle = lend(2, vec![last.clone(), last]);
        let first = lend(1, vec![middle]);
        let other = lend(4, Vec::new());
        let together = DropBatch::begin();
        drop(first);
        assert_eq!(*returned.lock().unwrap(), []);
        drop(other);
        assert_eq!(returned.lock().unwrap().first(), Some(&1));
        together.settle();
        let mut returned = std::mem::take(&mut *returned.lock().unwrap());
        returned.sort_unstable();
        assert_eq!(returned, [1, 2, 3, 4]);
        drop(together);
    }
}
