use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};

use crate::client::Cancel;

/// The means to withdraw one call from any thread, before it was begun too: it then ends as soon as it begins.
#[derive(Clone, Default)]
pub struct Cancellation {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_cancelled: Arc<AtomicBool>,
    call: OnceLock<Cancel>,
}

impl Cancellation {
    /// A cancellation for a call to come.
    pub fn new() -> Self {
        Self::default()
    }

    /// Withdraws the call: it ends with `CANCELLED` unless it has ended.
    pub fn cancel(&self) {
        let was_cancelled = self.shared.is_cancelled.swap(true, Ordering::SeqCst);
        // Either the shard sees the flag when the call begins, or the call is visible here; see `attach`.
        fence(Ordering::SeqCst);
        if let Some(call) = self.shared.call.get()
            && !was_cancelled
        {
            call.send_surely();
        }
    }

    /// Whether [`Cancellation::cancel`] was called.
    pub fn is_cancelled(&self) -> bool {
        self.shared.is_cancelled.load(Ordering::SeqCst)
    }

    /// Connects this with a call that is about to be handed to its shard, which looks at the flag when it
    /// begins the call.
    pub(crate) fn attach(&self, call: Cancel) -> Arc<AtomicBool> {
        // A second call shares the flag; only the first can be withdrawn later.
        let _ = self.shared.call.set(call);
        fence(Ordering::SeqCst);
        Arc::clone(&self.shared.is_cancelled)
    }
}

impl fmt::Debug for Cancellation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cancellation")
            .field("is_cancelled", &self.is_cancelled())
            .field("call", &self.shared.call.get())
            .finish()
    }
}
