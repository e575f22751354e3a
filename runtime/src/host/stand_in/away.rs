//! Whether the calling thread owns a shard, and runs a function while that lies on its seat.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::task::Waker;

/// For as long as the thread is away from its shard.
pub(super) struct Away(PhantomData<*const ()>);

impl Away {
    /// Begins. `stand_in` wakes the thread that takes the shard.
    pub(super) fn begin(stand_in: Waker) -> Self {
        STAND_IN.set(Some(stand_in));
        IS_AWAY.set(true);
        Self(PhantomData)
    }

    /// Whether the code that ran since the last question has waited.
    pub(super) fn has_waited(&self) -> bool {
        HAS_WAITED.take()
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        IS_AWAY.set(false);
        STAND_IN.set(None);
        HAS_WAITED.set(false);
    }
}

/// Whether the thread is away: what it runs is not on its shard.
#[inline]
pub(crate) fn is_away() -> bool {
    IS_AWAY.get()
}

/// The thread is about to wait, perhaps for its own shard.
#[inline]
pub(crate) fn note_wait() {
    if is_away() {
        HAS_WAITED.set(true);
        STAND_IN.with_borrow(|stand_in| {
            if let Some(stand_in) = stand_in {
                stand_in.wake_by_ref();
            }
        });
    }
}

thread_local! {
    static IS_AWAY: Cell<bool> = const { Cell::new(false) };
    static HAS_WAITED: Cell<bool> = const { Cell::new(false) };
    static STAND_IN: RefCell<Option<Waker>> = const { RefCell::new(None) };
}
