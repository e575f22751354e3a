use std::fmt;

use crossbeam_queue::SegQueue;
use grpcxx_rpc::{Code, Reason, Status};

use crate::command::Command;
use crate::limits;
use crate::mesh::{Doorbell, InboxSender};

/// The inboxes of all shards of an engine.
pub(crate) struct Mailboxes {
    inboxes: Vec<InboxSender<Command>>,
    doorbells: Vec<Doorbell>,
    overflow: Vec<SegQueue<Command>>,
}

impl Mailboxes {
    pub(crate) fn new(inboxes: Vec<InboxSender<Command>>, doorbells: Vec<Doorbell>) -> Self {
        let overflow = inboxes.iter().map(|_| SegQueue::new()).collect();
        Self {
            inboxes,
            doorbells,
            overflow,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.inboxes.len()
    }

    /// Hands a command over, or back if the inbox is full.
    #[expect(
        clippy::result_large_err,
        reason = "the command comes back whole, without an allocation"
    )]
    pub(crate) fn try_deliver(&self, shard: usize, command: Command) -> Result<(), Command> {
        self.inboxes[shard]
            .push(command)
            .map_err(|refused| refused.value)
    }

    /// Whether the shards have ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.inboxes.iter().any(InboxSender::is_closed)
    }

    /// Hands over an answer, which must not be lost. Answers that do not fit into the inbox wait beside it;
    /// there are never more of them than requests under way.
    pub(crate) fn deliver(&self, shard: usize, command: Command) {
        if let Err(command) = self.try_deliver(shard, command) {
            if self.inboxes[shard].is_closed() {
                return;
            }
            self.overflow[shard].push(command);
            self.doorbells[shard].ring();
        }
    }

    /// Whether an answer that did not fit into the shard's inbox waits.
    pub(crate) fn has_overflow(&self, shard: usize) -> bool {
        !self.overflow[shard].is_empty()
    }

    /// The next answer that did not fit into the shard's inbox.
    pub(crate) fn overflow(&self, shard: usize) -> Option<Command> {
        // A look costs less than an attempt, which is a full fence, and there is nearly never one.
        if self.overflow[shard].is_empty() {
            return None;
        }
        self.overflow[shard].pop()
    }
}

impl fmt::Debug for Mailboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailboxes")
            .field("shards", &self.inboxes.len())
            .finish_non_exhaustive()
    }
}

pub(crate) fn inbox_full() -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!(
            "the shard's inbox already holds {} commands; make fewer calls at once",
            limits::INBOX_COMMANDS
        ),
    )
    .because(Reason::QueueFull)
}
