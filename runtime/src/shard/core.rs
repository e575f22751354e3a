//! Everything of a shard but its transport: the parts that own its state, and the order in which
//! they get their turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use grpcxx_memory::Arena;
use grpcxx_rpc::{Code, ConnectionLimits, Features, Reason, Status, TensorStore};
use grpcxx_transport::{LinkId, Time, Transport};

use crate::blame::{Blame, survive};
use crate::client::{Lookups, Mailbox, Mailboxes};
use crate::command::{Command, MeshMessage, Shared};
use crate::compute::Compute;
use crate::counters::ShardCounters;
use crate::function::Service;
use crate::latency::{CallTable, CountedPeers};
use crate::limits;
use crate::mesh::{Inbox, Mesh};
use crate::policy::Authority;
use crate::registry::Functions;
use crate::shard::context::ShardContext;
use crate::shard::failures::Failures;
use crate::shard::give_back::GiveBack;
use crate::shard::leaving::{Departures, DrainLimits, Why};
use crate::shard::links::Links;
use crate::shard::mail::Mail;
use crate::shard::outgoing::Outgoing;
use crate::shard::pace::{Looks, Patience};
use crate::shard::servers::Incoming;
use crate::shard::shares::{Accounts, PeerShares};
use crate::shard::short_calls::ShortCalls;
use crate::shard::steps::Steps;
use crate::shard::timers::{Subject, Timers};
use crate::staging::StagedTotal;
use crate::task::Task;

/// Everything of a shard but its transport.
pub(crate) struct Core<A> {
    pub(super) index: usize,
    pub(super) now: Time,
    pub(super) shared: SharedParts,
    pub(super) limits: ConnectionLimits,
    pub(super) announce: Features,
    pub(super) arena: Arena,
    pub(super) links: Links,
    pub(super) incoming: Incoming<A>,
    pub(super) outgoing: Outgoing,
    pub(super) steps: Steps,
    pub(super) mail: Mail<A>,
    pub(super) departures: Departures,
    pub(super) timers: Timers<Subject>,
    pub(super) looks: Looks,
    pub(super) give_back: GiveBack,
    pub(super) shares: PeerShares,
    pub(super) call_table: CallTable,
    pub(super) failures: Failures,
    pub(super) short_calls: ShortCalls,
    /// How often tasks of the cluster had moved when connections last got rights for that.
    pub(super) moves_of_tasks: u64,
    pub(super) stop_at: Option<Time>,
    /// Whether the shard has stopped and let go of all links; it then makes no more.
    pub(super) has_ended: bool,
    finished: bool,
    /// A thread that waits turns the shard, and not its own.
    is_borrowed: bool,
}

/// What all shards of an engine share.
#[derive(Clone)]
pub(crate) struct SharedParts {
    pub(crate) task: Arc<Task>,
    pub(crate) mailboxes: Arc<Mailboxes>,
    pub(crate) lookups: Lookups,
    pub(crate) functions: Shared<Functions>,
    pub(crate) store: Shared<TensorStore>,
    pub(crate) staged: Arc<StagedTotal>,
    pub(crate) service: Option<Arc<dyn Service>>,
    pub(crate) authority: Arc<Authority>,
    pub(crate) compute: Arc<dyn Compute>,
    /// Runs what takes its time of the engine itself: the program's functions may hold `compute`.
    pub(crate) chores: Arc<dyn Compute>,
    /// Whether threads of shards run functions that were short so far.
    pub(crate) runs_short_calls: bool,
    pub(crate) counters: Arc<[ShardCounters]>,
    /// Open connections from peers, by shard.
    pub(crate) loads: Arc<[AtomicUsize]>,
    /// Shards that have stopped and let go of all links.
    pub(crate) ended: Arc<AtomicUsize>,
    pub(crate) accounts: Arc<Accounts>,
    pub(crate) counted_peers: Arc<CountedPeers>,
}

impl SharedParts {
    /// What runs functions of the engine itself, or those of the program.
    pub(super) fn pool(&self, is_own: bool) -> &dyn Compute {
        match is_own {
            true => &*self.chores,
            false => &*self.compute,
        }
    }

    /// Looks up where the tasks of the cluster are: one of them may have moved.
    pub(super) fn find_tasks_again(&self) {
        self.authority.find_tasks_again(&self.lookups);
    }
}

/// What a shard is made of.
pub(crate) struct CoreParts<A> {
    pub(crate) index: usize,
    pub(crate) shared: SharedParts,
    pub(crate) connection_limits: ConnectionLimits,
    pub(crate) announce: Features,
    pub(crate) channel_options: grpcxx_rpc::ChannelOptions,
    pub(crate) rendezvous_limits: grpcxx_rpc::RendezvousLimits,
    pub(crate) drain: DrainLimits,
    pub(crate) links: usize,
    pub(crate) patience: Patience,
    pub(crate) shares: PeerShares,
    pub(crate) arena: Arena,
    pub(crate) mesh: Mesh<MeshMessage<A>>,
    pub(crate) inbox: Inbox<Command>,
}

impl<A> Core<A> {
    pub(super) fn new(parts: CoreParts<A>) -> Self {
        let shards = parts.shared.loads.len();
        let mailbox = Mailbox::new(parts.index, parts.inbox, parts.shared.mailboxes.clone());
        Self {
            index: parts.index,
            now: Time::ZERO,
            limits: parts.connection_limits,
            announce: parts.announce,
            arena: parts.arena,
            links: Links::default(),
            incoming: Incoming::new(parts.links),
            outgoing: Outgoing::new(parts.channel_options),
            steps: Steps::new(parts.rendezvous_limits),
            mail: Mail::new(parts.index, shards, parts.mesh, mailbox),
            departures: Departures::new(parts.drain, parts.links),
            timers: Timers::new(),
            looks: Looks::new(parts.patience),
            give_back: GiveBack::default(),
            shares: parts.shares,
            call_table: CallTable::new(Arc::clone(&parts.shared.counted_peers)),
            failures: Failures::default(),
            short_calls: ShortCalls::default(),
            moves_of_tasks: 0,
            stop_at: None,
            has_ended: false,
            finished: false,
            is_borrowed: false,
            shared: parts.shared,
        }
    }

    pub(super) fn begin(&mut self, now: Time) {
        self.now = now;
        self.arena.reclaim();
        let moves = self.shared.authority.moves_of_tasks();
        if moves != self.moves_of_tasks {
            self.admit_moved_tasks(moves);
        }
    }

    /// Says whether another thread than the shard's own turns it from now on.
    pub(crate) fn set_borrowed(&mut self, is_borrowed: bool) {
        self.is_borrowed = is_borrowed;
    }

    /// Whether another thread than the shard's own turns it.
    pub(super) fn is_borrowed(&self) -> bool {
        self.is_borrowed
    }

    /// Whether a command waits for the shard's own thread.
    pub(crate) fn wants_owner(&self) -> bool {
        self.mail.wants_owner()
    }

    pub(crate) fn counters(&self) -> &ShardCounters {
        &self.shared.counters[self.index]
    }

    /// Whether mesh messages or commands wait that no event of a link will announce.
    pub(crate) fn has_work(&self) -> bool {
        self.mail.has_work()
            || self.incoming.has_work()
            || !self.short_calls.is_empty()
            || !self.outgoing.dirty.is_empty()
            || self.hears_of_death()
    }

    /// Hands a command to the shard it belongs to.
    pub(super) fn route(&mut self, shard: usize, command: Command) {
        self.mail.route(shard, command);
    }

    /// Takes what other shards have handed over since the last turn.
    pub(super) fn take_commands<T: Transport<Accepted = A>>(&mut self, transport: &mut T) -> usize {
        if self.hears_of_death() {
            self.stop(Duration::ZERO);
        }
        let events = self.mail.take();
        while let Some(accepted) = self.mail.poll_accepted() {
            self.adopt(accepted, transport);
        }
        self.place_accepted(transport);
        events
    }

    /// Works off commands and what the connections have taken in, until nothing is left or the turn
    /// is long enough.
    pub(super) fn settle(&mut self) -> usize {
        self.take_inbox() + self.settle_own()
    }

    /// Works off what the shard has, and leaves what threads have handed over.
    pub(super) fn settle_own(&mut self) -> usize {
        let mut events = 0;
        loop {
            let before = events;
            while events < limits::COMMANDS_PER_TURN
                && let Some(command) = self.mail.poll_deferred()
            {
                self.execute(command);
                events += 1;
            }
            let (served, is_enough) = self.take_requests();
            events += served + self.take_results();
            if events == before || is_enough || events >= limits::COMMANDS_PER_TURN {
                return events;
            }
        }
    }

    /// Works off what threads have handed over, straight from the inbox: in a queue it would be
    /// moved twice more.
    fn take_inbox(&mut self) -> usize {
        if self.mail.wants_owner() {
            if self.is_borrowed {
                // What came behind it stays behind it.
                return 0;
            }
            while let Some(command) = self.mail.poll_for_owner() {
                self.execute(command);
            }
        }
        let limit = self.mail.commands_max();
        for count in 0..limit {
            match self.mail.poll_inbox() {
                // Most of them, and the longest: it is not to be moved into another function as a
                // whole.
                Some(Command::Send {
                    step_id,
                    key,
                    tensor,
                    origin,
                }) => self.send(step_id, key, tensor, origin),
                Some(command) => self.execute(command),
                None => return count,
            }
            if self.mail.wants_owner() {
                return count + 1;
            }
        }
        limit
    }

    /// Hands frames to the links, carries out dials, leaves connections.
    pub(super) fn flush<T: Transport<Accepted = A>>(&mut self, transport: &mut T) -> usize {
        let mut events = 0;
        // A shard that has nothing to do leaves the line of its counters to those who read it.
        if self.outgoing.calls.begun > 0 {
            let begun = std::mem::take(&mut self.outgoing.calls.begun);
            self.counters().calls.add(begun);
        }
        events += self.flush_servers(transport);
        events += self.flush_peers(transport);
        events += self.part(transport);
        self.mail.flush();
        events
    }

    pub(super) fn run_timers<T: Transport<Accepted = A>>(&mut self, transport: &mut T) -> usize {
        let mut events = 0;
        self.look_at_peers(transport);
        self.give_back.run(&mut self.arena, self.now);
        self.prune_timers();
        while let Some((subject, at)) = self.timers.poll(self.now) {
            events += 1;
            match subject {
                Subject::Peer(slot) => self.peer_timeout(slot, at),
                Subject::Server(id) => self.server_timeout(id, at),
                Subject::Call(id) => self.call_timeout(id),
                Subject::Leaving(id) => self.leaving_timeout(id, at, transport),
            }
        }
        events
    }

    /// Drops times that nobody waits for any more: most calls end long before their deadlines, and
    /// peers may change theirs as often as they like.
    fn prune_timers(&mut self) {
        let (outgoing, incoming, departures) = (&self.outgoing, &self.incoming, &self.departures);
        self.timers.prune(|subject, at| match subject {
            Subject::Call(call) => outgoing.calls.has(call),
            Subject::Peer(slot) => outgoing.peers[slot].armed == Some(at),
            Subject::Server(id) => {
                let server = incoming.servers.find(id);
                server.is_some_and(|server| server.armed() == Some(at))
            }
            Subject::Leaving(id) => {
                let leaving = departures.leaving.find(id);
                leaving.is_some_and(|leaving| leaving.armed == Some(at))
            }
        });
    }

    pub(super) fn next_timeout(&self) -> Option<Time> {
        if self.has_work() {
            return Some(self.now);
        }
        let stop = self.stop_at.map(|at| at.min(self.now + STOP_POLL));
        let has_to_look = !self.links.is_empty() || self.steps.waiters() > 0;
        let look = self.looks.next().filter(|_| has_to_look);
        let give_back = self.give_back.next(&self.arena, self.now);
        let times = [self.timers.next(), stop, look, give_back];
        times.into_iter().flatten().min()
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stop_at.is_some()
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Closes links once nothing is in flight on them or the grace is over.
    pub(super) fn wind_down<T: Transport<Accepted = A>>(&mut self, transport: &mut T) {
        let Some(stop_at) = self.stop_at else {
            return;
        };
        let overdue = self.now >= stop_at;
        let idle = self.incoming.is_idle() && self.outgoing.calls.is_empty();
        if idle || overdue {
            self.end_calls();
            let links: Vec<LinkId> = self.links.iter().map(|(link, _)| link).collect();
            for link in links {
                self.leave(link, Why::Stopping, transport);
            }
        }
        if (idle || overdue) && self.links.is_empty() && !self.has_ended {
            self.has_ended = true;
            self.shared.ended.fetch_add(1, Ordering::AcqRel);
        }
        // Shards end together: requests of one may be on their way to another.
        let patience = match self.is_leaving() {
            true => self.departures.limits.time + limits::FLUSH_TIME,
            false => limits::FLUSH_TIME,
        };
        let given_up = self.now >= stop_at + patience;
        self.finished = self.all_have_ended() || given_up;
    }

    pub(super) fn context(&mut self) -> ShardContext<'_> {
        ShardContext::new(self)
    }

    pub(super) fn execute(&mut self, command: Command) {
        if self.is_borrowed && command.needs_owner() {
            return self.mail.keep_for_owner(command);
        }
        match command {
            Command::Call(call) => self.start_call(call),
            Command::Cancel { number } => self.cancel_call(number),
            Command::Answer {
                origin,
                result,
                taken,
            } => self.answer(origin, result, taken),
            Command::Watch { origin, watch } => self.watch_if_waiting(origin, watch),
            Command::Receive {
                origin,
                step_id,
                keys,
            } => {
                self.hash_keys(&keys);
                self.receive(origin, step_id, keys);
            }
            Command::Forget { origin } => self.forget(origin),
            Command::Send {
                step_id,
                key,
                tensor,
                origin,
            } => self.send(step_id, key, tensor, origin),
            Command::Restore {
                step_id,
                keys,
                tensors,
            } => self.restore(step_id, keys, tensors),
            Command::Abort {
                step_id,
                status,
                origin,
            } => self.abort(step_id, status, origin),
            Command::AbortAll { status } => self.abort_all(status),
            Command::Cleanup { step_id, origin } => self.cleanup(step_id, origin),
            Command::GraphDone(graph_done) => self.graph_done(graph_done),
            Command::Inspect { peer, tell } => tell(self.inspect_peer(&peer)),
            Command::Calls { tell } => tell(self.count_calls()),
            Command::WaitsLong(late) => self.log_late(&late),
            Command::InspectShard { tell } => tell(self.inspect()),
            Command::Disconnect { peer } => self.disconnect_peer(&peer),
            Command::Resolved { slot, found } => self.peer_resolved(slot, found),
            Command::Stream(bells) => self.stream_rang(bells),
            Command::Run(code) | Command::RunAnywhere(code) => {
                let blame = Blame::on("code that was run on the shard");
                code(&mut self.context());
                blame.lift();
            }
            Command::Stop { grace } => self.stop(grace),
        }
    }

    fn stop(&mut self, grace: Duration) {
        let stop_at = self.now + grace;
        if self.stop_at.is_none_or(|at| stop_at < at) {
            self.stop_at = Some(stop_at);
            self.abort_all(self.stopping());
        }
    }

    /// Whether another shard has died, and this one does not end yet.
    #[inline]
    fn hears_of_death(&self) -> bool {
        self.shared.mailboxes.fate().is_dead() && self.stop_at.is_none_or(|at| at > self.now)
    }

    /// Why requests of peers are refused while the shard stops.
    pub(super) fn stopping(&self) -> Status {
        let name = self.shared.task.name();
        if self.shared.mailboxes.fate().is_dead() {
            let text = format!("{name} has failed and ends");
            return Status::new(Code::Unavailable, text).because(Reason::ShardDied);
        }
        Status::new(Code::Unavailable, format!("{name} is stopping")).because(Reason::Stopping)
    }

    /// Why calls of this process are refused while the shard stops.
    pub(super) fn ending(&self) -> Status {
        self.shared.mailboxes.fate().death().unwrap_or_else(|| {
            Status::new(Code::Unavailable, "this engine is stopping").because(Reason::Stopping)
        })
    }

    /// Ends all that waits on a shard that has panicked, whose links are gone. Any part of it may
    /// be in disorder.
    pub(super) fn die(&mut self) {
        let status = self.ending();
        self.outgoing.calls.die(&status);
        for server in self.incoming.servers.values_mut() {
            survive("requests of a peer", || server.withdraw());
        }
        self.end_arrivals();
        if !std::mem::replace(&mut self.has_ended, true) {
            self.shared.ended.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Ends what the dead shard was handed.
    pub(super) fn end_arrivals(&mut self) {
        self.mail.end(self.shared.mailboxes.fate());
    }

    pub(super) fn mailboxes(&self) -> &Mailboxes {
        &self.shared.mailboxes
    }

    /// Whether every shard of the engine has ended.
    pub(super) fn all_have_ended(&self) -> bool {
        self.shared.ended.load(Ordering::Acquire) >= self.shared.loads.len()
    }
}

/// How often a stopping shard looks whether it is done.
const STOP_POLL: Duration = Duration::from_millis(1);
