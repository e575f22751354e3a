//! Tells a shard that a stream has something to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use super::ends::StreamEnds;
use crate::client::Mailboxes;
use crate::command::{Bells, Command};

/// Tells a shard, once until it looks.
struct Bell {
    mailboxes: Arc<Mailboxes>,
    shard: usize,
    bells: Bells,
    is_rung: Arc<AtomicBool>,
}

/// Lets a shard hear of what the user of a stream does.
pub(crate) fn hang(ends: &mut StreamEnds, mailboxes: &Arc<Mailboxes>, shard: usize, bells: Bells) {
    let is_rung = Arc::<AtomicBool>::default();
    let bell = Arc::new(Bell {
        mailboxes: Arc::clone(mailboxes),
        shard,
        bells,
        is_rung: Arc::clone(&is_rung),
    });
    ends.hang(&Waker::from(bell), is_rung);
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_rung.swap(true, Ordering::SeqCst) {
            let command = Command::Stream(self.bells);
            self.mailboxes.deliver(self.shard, command);
        }
    }
}
