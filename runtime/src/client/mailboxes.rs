//! The inboxes of an engine's shards, from both ends, and what becomes of commands that nobody
//! carries out any more.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use crossbeam_queue::SegQueue;
use grpcxx_memory::forks;
use grpcxx_rpc::{Code, Reason, Status, Tensor, home_shard};
use smallvec::SmallVec;

use crate::blame::survive;
use crate::command::{Command, Taken};
use crate::fate::Fate;
use crate::host::{HostError, Turnable};
use crate::limits;
use crate::mesh::{Doorbell, Inbox, InboxSender};

/// A shard that threads may turn while they wait for what it brings.
pub(crate) trait Lender: Turnable {
    /// Has the shard begin a call on the calling thread if nobody turns the shard now. Else the
    /// command comes back.
    #[expect(
        clippy::result_large_err,
        reason = "the command comes back whole, without an allocation"
    )]
    fn begin(&self, command: Command) -> Result<(), Command>;

    /// Tells the shard's thread, if it may not know, that a command has come.
    fn stir(&self);

    /// How often threads that wait have come for the shard.
    fn comings(&self) -> usize;
}

/// The inboxes of all shards of an engine.
pub(crate) struct Mailboxes {
    inboxes: Vec<InboxSender<Command>>,
    doorbells: Vec<Doorbell>,
    /// Those of the shards that are lent.
    lenders: Vec<OnceLock<Arc<dyn Lender>>>,
    /// The program has code on shards that may rely on their threads.
    are_bound: AtomicBool,
    /// What found an inbox full and must not be lost. While there is some, all that comes to the
    /// shard goes there, or back: in the inbox it would overtake what its sender has sent before.
    overflow: Vec<SegQueue<Command>>,
    fate: Fate,
    calls: AtomicU64,
    /// Whether shards have threads, and are not turned by whoever waits for a call.
    have_threads: bool,
    /// Of the process that made them; a child of it has none of its threads and connections.
    generation: u32,
}

/// A shard's end of its inbox. What is in it when the shard ends, ends with it.
pub(crate) struct Mailbox {
    shard: usize,
    inbox: Inbox<Command>,
    all: Arc<Mailboxes>,
}

impl Mailboxes {
    pub(crate) fn new(inboxes: Vec<InboxSender<Command>>, doorbells: Vec<Doorbell>) -> Self {
        let overflow = inboxes.iter().map(|_| SegQueue::new()).collect();
        Self {
            lenders: inboxes.iter().map(|_| OnceLock::new()).collect(),
            inboxes,
            doorbells,
            are_bound: AtomicBool::new(false),
            overflow,
            fate: Fate::default(),
            calls: AtomicU64::new(0),
            have_threads: true,
            generation: forks::generation(),
        }
    }

    /// Of a shard that is turned by whoever waits for its calls.
    pub(crate) fn without_threads(self) -> Self {
        Self {
            have_threads: false,
            ..self
        }
    }

    /// Whether a thread that waits for a call can leave the shards to themselves.
    pub(crate) fn have_threads(&self) -> bool {
        self.have_threads
    }

    /// Lets threads turn a shard while they wait.
    pub(crate) fn lend(&self, shard: usize, lender: Arc<dyn Lender>) {
        let _only_once = self.lenders[shard].set(lender);
        // Whoever binds the shards finds this one, or has said so before.
        fence(Ordering::SeqCst);
        if self.are_bound() {
            self.bind(shard);
        }
    }

    /// The shard for a thread that waits for what it brings, if such a thread may turn it.
    #[inline]
    pub(crate) fn lender(&self, shard: usize) -> Option<&dyn Lender> {
        match self.are_inherited() {
            true => None,
            false => self.lenders[shard].get().map(|lender| &**lender),
        }
    }

    /// Leaves a shard to its own thread from now on: what is handed over next has to run there.
    pub(crate) fn bind(&self, shard: usize) {
        if !self.are_bound() {
            self.are_bound.store(true, Ordering::Relaxed);
        }
        // See `lend`.
        fence(Ordering::SeqCst);
        if let Some(lender) = self.lender(shard) {
            lender.bind();
        }
    }

    /// Whether one of the shards is left to its own thread.
    #[inline]
    pub(crate) fn are_bound(&self) -> bool {
        self.are_bound.load(Ordering::Relaxed)
    }

    /// Does so for all shards.
    pub(crate) fn bind_all(&self) {
        (0..self.len()).for_each(|shard| self.bind(shard));
    }

    /// Begins a call whose result nobody hears of on the shard's thread: at once if nobody turns
    /// the shard now, else as [`Mailboxes::try_deliver`] does.
    #[expect(
        clippy::result_large_err,
        reason = "the command comes back whole, without an allocation"
    )]
    pub(crate) fn begin(&self, shard: usize, command: Command) -> Result<(), Command> {
        let command = match self.lender(shard) {
            Some(lender) => match lender.begin(command) {
                Ok(()) => return Ok(()),
                Err(command) => command,
            },
            None => command,
        };
        self.try_deliver(shard, command)
    }

    pub(crate) fn len(&self) -> usize {
        self.inboxes.len()
    }

    /// # Errors
    /// `INVALID_ARGUMENT` if there is no such shard.
    pub(crate) fn check(&self, shard: usize) -> Result<(), Status> {
        let shards = self.len();
        if shard < shards {
            return Ok(());
        }
        let text = format!("there is no shard {shard}; this engine has {shards}");
        Err(Status::new(Code::InvalidArgument, text))
    }

    /// The number of the next call that can be withdrawn, unique within the engine and not 0.
    pub(crate) fn next_call(&self) -> u64 {
        self.calls.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Whether another process has made them, of which this one is a child.
    #[inline]
    pub(crate) fn are_inherited(&self) -> bool {
        self.generation != forks::generation()
    }

    /// Hands a command over, or back if the inbox is full or nobody empties it.
    #[expect(
        clippy::result_large_err,
        reason = "the command comes back whole, without an allocation"
    )]
    pub(crate) fn try_deliver(&self, shard: usize, command: Command) -> Result<(), Command> {
        if self.has_overflow(shard) || self.are_inherited() {
            return Err(command);
        }
        self.inboxes[shard]
            .push(command, |stranded| self.end(stranded))
            .map_err(|refused| refused.value)?;
        self.stir(shard);
        Ok(())
    }

    #[inline]
    fn stir(&self, shard: usize) {
        if let Some(lender) = self.lenders[shard].get() {
            lender.stir();
        }
    }

    /// Why [`Mailboxes::try_deliver`] gave a command back.
    #[cold]
    pub(crate) fn refusal(&self, shard: usize) -> Status {
        if self.inboxes[shard].is_closed() || self.are_inherited() {
            self.end_status()
        } else {
            inbox_full()
        }
    }

    /// Why no command is carried out any more.
    pub(crate) fn end_status(&self) -> Status {
        match self.are_inherited() {
            true => inherited(),
            false => self.fate.refusal(),
        }
    }

    /// Whether the shards have ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.are_inherited() || self.inboxes.iter().any(InboxSender::is_closed)
    }

    /// Whether the engine died, and of what.
    pub(crate) fn fate(&self) -> &Fate {
        &self.fate
    }

    /// A shard has died. From now on no command is taken, and the other shards end too.
    pub(crate) fn die(&self, error: &HostError) {
        if !self.fate.note(error) {
            return;
        }
        for inbox in &self.inboxes {
            inbox.close();
        }
        for doorbell in &self.doorbells {
            doorbell.ring();
        }
        survive("the log", || tracing::error!("{error}; the engine ends"));
        self.fate.tell();
    }

    /// Hands over an answer, which must not be lost. Answers that do not fit into the inbox wait
    /// beside it, behind all that is in it; there are never more of them than requests under way.
    pub(crate) fn deliver(&self, shard: usize, command: Command) {
        if let Err(command) = self.try_deliver(shard, command) {
            if self.inboxes[shard].is_closed() || self.are_inherited() {
                return self.end(command);
            }
            self.overflow[shard].push(command);
            fence(Ordering::SeqCst);
            // The shard may have looked for the last time.
            if self.inboxes[shard].is_closed() {
                self.end_overflow(shard);
            }
            self.doorbells[shard].ring();
            self.stir(shard);
        }
    }

    /// Puts tensors back into the step of which they were taken.
    pub(crate) fn restore(&self, taken: Taken, tensors: SmallVec<[Tensor; 1]>) {
        let Taken { step_id, keys } = taken;
        let home = home_shard(step_id, self.len());
        let restore = Command::Restore {
            step_id,
            keys,
            tensors,
        };
        self.deliver(home, restore);
    }

    /// Whether an answer that did not fit into the shard's inbox waits.
    #[inline]
    fn has_overflow(&self, shard: usize) -> bool {
        !self.overflow[shard].is_empty()
    }

    /// Ends a command that no shard carries out.
    #[cold]
    fn end(&self, command: Command) {
        survive("the end of a command", || command.end(&self.fate));
    }

    fn end_overflow(&self, shard: usize) {
        while let Some(command) = self.overflow[shard].pop() {
            self.end(command);
        }
    }
}

impl Mailbox {
    pub(crate) fn new(shard: usize, inbox: Inbox<Command>, all: Arc<Mailboxes>) -> Self {
        Self { shard, inbox, all }
    }

    /// Takes the command that waits longest.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Command> {
        let command = self.inbox.pop();
        if command.is_some() || !self.all.has_overflow(self.shard) {
            return command;
        }
        // What its sender has sent before the first of them is in the inbox by now, or was taken.
        self.inbox
            .pop()
            .or_else(|| self.all.overflow[self.shard].pop())
    }

    /// Whether no command waits.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.inbox.is_empty() && !self.all.has_overflow(self.shard)
    }

    /// Takes no further command, and ends those that wait.
    pub(crate) fn close(&mut self) {
        let all = &self.all;
        self.inbox.close(|command| all.end(command));
        all.end_overflow(self.shard);
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Mailboxes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailboxes")
            .field("shards", &self.inboxes.len())
            .finish_non_exhaustive()
    }
}

/// Why nothing is done with an engine in a forked child.
fn inherited() -> Status {
    let text = "this was opened before fork() and cannot be used in the child; open another there";
    Status::new(Code::FailedPrecondition, text).because(Reason::Stopping)
}

fn inbox_full() -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!(
            "the shard's inbox already holds {} commands; make fewer calls at once",
            limits::INBOX_COMMANDS
        ),
    )
    .because(Reason::QueueFull)
}
