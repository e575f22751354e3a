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
        Self(PhantomData)
    }

    /// Whether the code that ran since the last question has waited.
    pub(super) fn has_waited(&self) -> bool {
        HAS_WAITED.take()
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        STAND_IN.set(None);
        HAS_WAITED.set(false);
    }
}

/// The thread is about to wait, perhaps for its own shard.
pub(crate) fn note_wait() {
    STAND_IN.with_borrow(|stand_in| {
        if let Some(stand_in) = stand_in {
            HAS_WAITED.set(true);
            stand_in.wake_by_ref();
        }
    });
}

thread_local! {
    static HAS_WAITED: Cell<bool> = const { Cell::new(false) };
    static STAND_IN: RefCell<Option<Waker>> = const { RefCell::new(None) };
}
