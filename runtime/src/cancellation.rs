use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};

use grpcxx_rpc::{Status, Tensor};
use smallvec::SmallVec;

use crate::client::Mailboxes;
use crate::command::{Cancellable, Command, Taken};
use crate::host::Turnable;

/// The means to withdraw one call from any thread, before it was begun too: it then ends as soon as
/// it begins.
#[derive(Clone, Default)]
pub struct Cancellation {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    is_cancelled: Arc<AtomicBool>,
    call: OnceLock<Cancel>,
}

/// Withdraws a call that its shard has, or is about to get.
#[derive(Clone)]
pub(crate) struct Cancel {
    mailboxes: Arc<Mailboxes>,
    shard: usize,
    number: u64,
    /// Whether the call may go on for ever if nobody withdraws it.
    is_endless: bool,
}

impl Cancellation {
    /// A cancellation for a call to come.
    pub fn new() -> Self {
        Self::default()
    }

    /// Withdraws the call: it ends with `CANCELLED` unless it has ended.
    pub fn cancel(&self) {
        let was_cancelled = self.shared.is_cancelled.swap(true, Ordering::SeqCst);
        // Either the shard sees the flag when the call begins, or the call is visible here; see
        // `attach`.
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

    /// Connects this with a call that is about to be handed to its shard, which looks at the flag
    /// when it begins the call.
    pub(crate) fn attach(&self, call: Cancel) -> Cancellable {
        let number = call.number;
        // A second call shares the flag; only the first can be withdrawn later.
        let _ = self.shared.call.set(call);
        fence(Ordering::SeqCst);
        Cancellable {
            number,
            flag: Some(Arc::clone(&self.shared.is_cancelled)),
        }
    }
}

impl Cancel {
    /// For a call to come of this shard.
    pub(crate) fn new(mailboxes: &Arc<Mailboxes>, shard: usize) -> Self {
        Self {
            mailboxes: Arc::clone(mailboxes),
            shard,
            number: mailboxes.next_call(),
            is_endless: false,
        }
    }

    /// For a call to come of this shard that may go on for ever if nobody withdraws it.
    pub(crate) fn of_stream(mailboxes: &Arc<Mailboxes>, shard: usize) -> Self {
        Self {
            is_endless: true,
            ..Self::new(mailboxes, shard)
        }
    }

    /// How the shard knows the call.
    pub(crate) fn cancellable(&self) -> Cancellable {
        Cancellable {
            number: self.number,
            flag: None,
        }
    }

    /// Whether shards have threads of their own.
    pub(crate) fn have_threads(&self) -> bool {
        self.mailboxes.have_threads()
    }

    /// The shard, if a thread that waits for the call may turn it.
    pub(crate) fn turnable(&self) -> Option<&dyn Turnable> {
        let lender = self.mailboxes.lender(self.shard)?;
        Some(lender)
    }

    /// Why the call ended that its shard let go of.
    pub(crate) fn status_of_loss(&self) -> Status {
        self.mailboxes.fate().status()
    }

    /// Withdraws the call, if the shard's inbox has room. If it has none the call runs to its end
    /// and its result is dropped, unless it has none by itself.
    pub(crate) fn send(self) {
        match self.is_endless {
            true => self.send_surely(),
            false => drop(self.mailboxes.try_deliver(self.shard, self.command())),
        }
    }

    /// Withdraws the call for certain, because a program waits for its end.
    pub(crate) fn send_surely(&self) {
        self.mailboxes.deliver(self.shard, self.command());
    }

    /// Puts tensors back that the call has taken out of a step, and nobody has got.
    pub(crate) fn restore(&self, taken: Taken, tensors: SmallVec<[Tensor; 1]>) {
        self.mailboxes.restore(taken, tensors);
    }

    fn command(&self) -> Command {
        Command::Cancel {
            number: self.number,
        }
    }
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cancel({})", self.number)
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
