//! Commands and connections on their way between shards, and commands of threads outside.

use std::collections::VecDeque;

use crate::blame::survive;
use crate::client::Mailbox;
use crate::command::{AcceptedConnection, Command, MeshMessage};
use crate::fate::Fate;
use crate::limits;
use crate::mesh::Mesh;

/// What a shard is handed, and what it hands to other shards.
pub(super) struct Mail<A> {
    shard: usize,
    mesh: Mesh<MeshMessage<A>>,
    /// Messages that did not fit into the ring to each other shard. A request under way, of which
    /// each connection has a limit, leaves at most its receive and its withdrawal on one way, and
    /// its answer on the other.
    unsent: Vec<VecDeque<MeshMessage<A>>>,
    mailbox: Mailbox,
    /// Commands to be carried out in this turn or the next.
    deferred: VecDeque<Command>,
    /// Commands to be carried out in the next turn.
    for_next_turn: VecDeque<Command>,
    /// Commands for the thread of the shard, while another one turns it.
    for_owner: VecDeque<Command>,
    /// Connections that other shards have accepted for this one.
    accepted: VecDeque<AcceptedConnection<A>>,
}

impl<A> Mail<A> {
    pub(super) fn new(
        shard: usize,
        shards: usize,
        mesh: Mesh<MeshMessage<A>>,
        mailbox: Mailbox,
    ) -> Self {
        Self {
            shard,
            mesh,
            unsent: (0..shards).map(|_| VecDeque::new()).collect(),
            mailbox,
            deferred: VecDeque::new(),
            for_next_turn: VecDeque::new(),
            for_owner: VecDeque::new(),
            accepted: VecDeque::new(),
        }
    }

    /// Whether something waits that no event of a link will announce.
    pub(super) fn has_work(&self) -> bool {
        !self.deferred.is_empty()
            || !self.for_next_turn.is_empty()
            || !self.for_owner.is_empty()
            || !self.accepted.is_empty()
            || !self.mailbox.is_empty()
            || !self.mesh.is_empty()
            || self.unsent.iter().any(|queue| !queue.is_empty())
    }

    /// Whether a command waits to be carried out.
    #[inline]
    pub(super) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Most commands that may come in now.
    pub(super) fn commands_max(&self) -> usize {
        let room = limits::BACKLOG_COMMANDS.saturating_sub(self.deferred.len());
        room.min(limits::COMMANDS_PER_TURN)
    }

    /// Leaves a command to the thread of the shard.
    pub(super) fn keep_for_owner(&mut self, command: Command) {
        self.for_owner.push_back(command);
    }

    /// Whether a command waits for the thread of the shard.
    #[inline]
    pub(super) fn wants_owner(&self) -> bool {
        !self.for_owner.is_empty()
    }

    /// The next command that was left to the thread of the shard.
    pub(super) fn poll_for_owner(&mut self) -> Option<Command> {
        self.for_owner.pop_front()
    }

    /// Has this shard carry a command out.
    pub(super) fn defer(&mut self, command: Command) {
        self.deferred.push_back(command);
    }

    /// Has this shard carry a command out in its next turn.
    pub(super) fn defer_to_next_turn(&mut self, command: Command) {
        self.for_next_turn.push_back(command);
    }

    /// Hands a command to the shard it belongs to.
    pub(super) fn route(&mut self, shard: usize, command: Command) {
        if shard == self.shard {
            self.defer(command);
        } else {
            self.ship(shard, MeshMessage::Command(command));
        }
    }

    /// Hands something to another shard.
    pub(super) fn ship(&mut self, shard: usize, message: MeshMessage<A>) {
        let message = if self.unsent[shard].is_empty() {
            match self.mesh.send(shard, message) {
                Ok(()) => return,
                Err(refused) => refused.value,
            }
        } else {
            message
        };
        self.unsent[shard].push_back(message);
    }

    /// Lets the other shards see what was handed to them.
    pub(super) fn flush(&mut self) {
        self.mesh.flush();
    }

    /// Takes what other shards have handed over since the last turn. Returns how much that was.
    pub(super) fn take(&mut self) -> usize {
        self.ship_unsent();
        let events = self.for_next_turn.len();
        self.deferred.append(&mut self.for_next_turn);
        let limit = self.commands_max();
        let (deferred, accepted) = (&mut self.deferred, &mut self.accepted);
        events
            + self.mesh.drain(limit, |_, message| match message {
                MeshMessage::Command(command) => deferred.push_back(command),
                MeshMessage::Adopt(connection) => accepted.push_back(connection),
            })
    }

    /// The next command of a thread outside, straight from the inbox.
    #[inline]
    pub(super) fn poll_inbox(&mut self) -> Option<Command> {
        self.mailbox.pop()
    }

    /// The next command to carry out.
    #[inline]
    pub(super) fn poll_deferred(&mut self) -> Option<Command> {
        self.deferred.pop_front()
    }

    /// The next connection that another shard has accepted for this one.
    pub(super) fn poll_accepted(&mut self) -> Option<AcceptedConnection<A>> {
        self.accepted.pop_front()
    }

    /// Ends what a dead shard was handed. Others hand over until they have ended too.
    pub(super) fn end(&mut self, fate: &Fate) {
        self.mailbox.close();
        self.accepted.clear();
        let deferred = &mut self.deferred;
        let mut keep = |message| match message {
            MeshMessage::Command(command) => deferred.push_back(command),
            MeshMessage::Adopt(_) => {}
        };
        self.mesh.drain(usize::MAX, |_, message| keep(message));
        self.unsent
            .iter_mut()
            .flat_map(|queue| queue.drain(..))
            .for_each(keep);
        let queues = [
            &mut self.deferred,
            &mut self.for_next_turn,
            &mut self.for_owner,
        ];
        for command in queues.into_iter().flat_map(|queue| queue.drain(..)) {
            survive("the end of a command", || command.end(fate));
        }
    }

    fn ship_unsent(&mut self) {
        for shard in 0..self.unsent.len() {
            while let Some(message) = self.unsent[shard].pop_front() {
                if let Err(refused) = self.mesh.send(shard, message) {
                    self.unsent[shard].push_front(refused.value);
                    break;
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::client::Mailboxes;
    use crate::mesh::{doorbell, inbox, mesh};
    use std::sync::Arc;

    fn cleanup(step_id: i64) -> Command {
        Command::Cleanup {
            step_id,
            origin: None,
        }
    }

    fn step(command: Option<Command>) -> Option<i64> {
        match command? {
            Command::Cleanup { step_id, .. } => Some(step_id),
            _ => panic!("nobody has sent another command"),
        }
    }

    /// Mail of the one shard of an engine, whose inbox has room for this much.
    fn mail_of_one(capacity: usize) -> (Arc<Mailboxes>, Mail<()>) {
        let (bell, _sleeper) = doorbell();
        let (sender, inbox) = inbox(capacity, bell.clone());
        let mailboxes = Arc::new(Mailboxes::new(vec![sender], vec![bell.clone()]));
        let mesh = mesh(1, &[bell]).pop().unwrap();
        let mailbox = Mailbox::new(0, inbox, Arc::clone(&mailboxes));
        (mailboxes, Mail::new(0, 1, mesh, mailbox))
    }

    #[test]
    fn commands_of_one_sender_stay_in_order_when_the_inbox_was_full() {
        let (mailboxes, mut mail) = mail_of_one(4);
        (0..6).for_each(|step| mailboxes.deliver(0, cleanup(step)));
        assert_eq!(step(mail.poll_inbox()), Some(0));
        mailboxes.deliver(0, cleanup(6));
        mail.take();
        assert_eq!(step(mail.poll_deferred()), None);
        for next in 1..6 {
            assert_eq!(step(mail.poll_inbox()), Some(next));
        }
        mailboxes.deliver(0, cleanup(7));
        assert!(mail.has_work());
        for next in 6..8 {
            assert_eq!(step(mail.poll_inbox()), Some(next));
        }
        assert_eq!(step(mail.poll_inbox()), None);
        assert!(!mail.has_work());
    }

    #[test]
    fn what_may_be_refused_does_not_overtake_what_waits_beside_the_inbox() {
        let (mailboxes, mut mail) = mail_of_one(1);
        (0..2).for_each(|step| mailboxes.deliver(0, cleanup(step)));
        assert_eq!(step(mail.poll_inbox()), Some(0));
        let refused = mailboxes.try_deliver(0, cleanup(2));
        assert_eq!(step(refused.err()), Some(2));
        assert_eq!(step(mail.poll_inbox()), Some(1));
        assert!(mailboxes.try_deliver(0, cleanup(2)).is_ok());
        assert_eq!(step(mail.poll_inbox()), Some(2));
    }
}
