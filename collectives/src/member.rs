//! A rank of a group on its engine: its operations, and the messages between it and the others.
//!
//! All of it runs on one shard, the home of the group's step. A message is a tensor of that step,
//! which its receiver asks for: requests for the next descriptions wait at the sender before
//! there are any, so that each comes in one way and not in two.

mod by_boards;
mod due;
mod greetings;
mod lane;
mod lost;
mod names;
mod outbox;
mod questions;
mod tokens;
mod waits;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::time::Duration;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_rpc::{Code, DType, Reason, Response, Shape, Status, Tensor, TensorMeta, Text};
use grpcxx_runtime::{CallResult, Client, CompletionHandler, Peer, ShardContext};

pub(crate) use self::by_boards::Lookout;
use self::due::{Due, advance, advance_and, succeed};
use self::lane::{Entry, Lane};
use self::lost::{Lost, is_gone, left};
use self::names::Place;
pub(crate) use self::names::{Names, Who};
use self::outbox::{Kept, Outbox, Unsent};
pub(crate) use self::questions::Answers;
use self::tokens::{
    ABSENCE, FAREWELL, HELLO, TIMER, asked_ahead, partner_of_farewell, parts_of, rank_of_absence,
    token,
};
use self::waits::Words;
use crate::boards::Boards;
use crate::machine::{Effect, Machine, Slot};
use crate::operation::{Ending, LOOK_TIME};
use crate::plan::{Partners, Plan};

/// A rank of a group, with what it needs to reach the others.
pub(crate) struct Member {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) client: Client,
    pub(crate) step_id: i64,
    /// The shard that is the home of the step.
    pub(crate) shard: usize,
    /// The other ranks; this one has no peer.
    pub(crate) peers: Vec<Option<Peer>>,
    pub(crate) own: Peer,
    pub(crate) names: Names,
    /// How long an operation may go on without a message of the ranks that it waits for.
    pub(crate) patience: Duration,
    /// Whether operations of tag 0 go by boards.
    has_boards: AtomicBool,
    /// Whether there are more ranks than CPUs for them, if all are on this host.
    is_crowded: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    over: Option<Status>,
    /// Why it is over as soon as the shard comes to that.
    doom: Option<Status>,
    lanes: BTreeMap<u16, Lane>,
    /// Whether a timer runs that looks for ranks which do not answer.
    is_watched: bool,
    /// Whether the shard is about to look at boards.
    is_looked_for: bool,
    /// What has not left yet, and no operation waits for, holds it too.
    unsent: Option<Arc<Unsent>>,
    /// Who is to hear that this rank has left, while it is about to.
    leavers: Vec<mpsc::Sender<()>>,
    /// What this rank waits for that leaves.
    leaving: Weak<Unsent>,
    /// Partners that may not have heard yet why the group is over.
    unaware: BTreeMap<u32, Arc<Unsent>>,
    outbox: Outbox,
    /// What those say that keep this rank waiting.
    words: Words,
    /// Ranks that tell this one when they are lost to the group.
    attended: BTreeSet<u32>,
    /// Ranks that hear nothing any more.
    gone: BTreeSet<u32>,
    /// Ranks that were told that this one has heard of their end.
    heard_of: BTreeSet<u32>,
}

impl Member {
    pub(crate) fn new(
        (rank, size): (u32, u32),
        client: Client,
        (step_id, shard): (i64, usize),
        (own, peers): (Peer, Vec<Option<Peer>>),
        names: Names,
        patience: Duration,
    ) -> Self {
        Self {
            rank,
            size,
            client,
            step_id,
            shard,
            peers,
            own,
            names,
            patience,
            has_boards: AtomicBool::new(false),
            is_crowded: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Why the group is over, if it is.
    pub(crate) fn failure(&self) -> Option<Status> {
        self.state().over.clone()
    }

    /// Puts an operation behind those of its tag.
    pub(crate) fn call(self: &Arc<Self>, tag: u16, mut machine: Box<Machine>, ending: Arc<Ending>) {
        if let Some(status) = self.client.inherited() {
            return ending.fail(status);
        }
        {
            let mut state = self.state();
            if let Some(status) = state.over.as_ref().or(state.doom.as_ref()) {
                return ending.fail(status.clone());
            }
            // That of the agreement comes on top.
            if !state.lanes.contains_key(&tag) && state.lanes.len() > TAGS_MAX {
                let text = format!("tag {tag} is one too many: a group has at most {TAGS_MAX}");
                let status = Status::new(Code::ResourceExhausted, text);
                return ending.fail(status.because(Reason::Limit));
            }
            let lane = state.lanes.entry(tag).or_insert_with(|| self.lane(tag));
            if lane.waiting() >= OPERATIONS_MAX {
                let text = format!(
                    "{OPERATIONS_MAX} operations wait under tag {tag}: wait for some of them \
                     before the next; the group is over, since other ranks may have begun this one"
                );
                let status = Status::new(Code::ResourceExhausted, text);
                let status = status.because(Reason::QueueFull);
                ending.fail(status.clone());
                state.doom = Some(status.clone());
                drop(state);
                return self.on_shard(move |member, shard| member.fail(status, shard));
            }
            machine.set_number(lane.next_number());
            let is_alone = !lane.is_running() && lane.waiting() == 0;
            lane.push(Entry { machine, ending });
            if lane.has_boards() {
                return self.call_by_boards(state, tag, is_alone);
            }
        }
        self.on_shard(move |member, shard| member.pump(tag, shard));
    }

    /// Goes on with this on the shard.
    fn on_shard(
        self: &Arc<Self>,
        code: impl FnOnce(&Arc<Self>, &mut ShardContext<'_>) + Send + 'static,
    ) {
        let member = Arc::clone(self);
        let run = (self.client).run_anywhere(self.shard, move |shard| code(&member, shard));
        if let Err(status) = run {
            // The others wait for what was not begun, so the group is over.
            self.close(status);
        }
    }

    /// Asks for what partners send before an operation begins, so that it comes at once. With
    /// `boards`, operations of tag 0 go by those.
    pub(crate) fn prepare(self: &Arc<Self>, boards: Option<Boards>) -> Result<(), Status> {
        let mut due = Due::default();
        let attended = match &boards {
            // Bells, which are always asked for, fail as well.
            Some(_) => Partners::new(),
            None => Plan::partners(self.rank, self.size),
        };
        {
            let mut state = self.state();
            let lane = state.lanes.entry(0).or_insert_with(|| self.lane(0));
            if let Some(boards) = boards {
                let is_crowded = boards.are_crowded();
                self.is_crowded.store(is_crowded, Ordering::Relaxed);
                // The others need the CPU of a shard that looks.
                let look_time = if is_crowded {
                    Duration::ZERO
                } else {
                    LOOK_TIME
                };
                lane.show_on(boards, look_time);
                self.has_boards.store(true, Ordering::Relaxed);
            }
            lane.prepare(&mut due.effects);
        }
        let member = Arc::clone(self);
        (self.client).run_anywhere(self.shard, move |shard| {
            member.carry_out(due, shard);
            attended.into_iter().for_each(|to| member.attend(to, shard));
        })
    }

    /// Ends the membership when all that it has sent has left and, if the group has failed, when
    /// its partners have heard of it; the receiver hears of that. What the others ask for from then
    /// on fails with the name of this rank.
    pub(crate) fn leave(self: &Arc<Self>) -> mpsc::Receiver<()> {
        let (sender, receiver) = mpsc::channel();
        let status = Status::new(Code::Aborted, left(&self.names.of(self.rank)));
        let member = Arc::clone(self);
        let close = move || {
            member.close(status);
            let leavers = std::mem::take(&mut member.state().leavers);
            for sender in leavers {
                // Whoever left may not wait any more.
                let _ = sender.send(());
            }
        };
        let mut state = self.state();
        state.leavers.push(sender);
        if state.leavers.len() > 1 {
            // Another clone of the group leaves, and waits for all that was sent.
            return receiver;
        }
        let unsent = state.unsent.take().unwrap_or_default();
        // Whoever finds that this rank leaves finds what is to be done then, too.
        unsent.then(close);
        state.leaving = Arc::downgrade(&unsent);
        drop(state);
        drop(unsent);
        receiver
    }

    /// Ends all operations, those to come too, here and for ranks that ask this one.
    fn close(self: &Arc<Self>, status: Status) {
        let member = Arc::clone(self);
        let closed = status.clone();
        let run = (self.client).run_anywhere(self.shard, move |shard| member.end(closed, shard));
        if run.is_err() {
            self.end_all(status);
        }
    }

    fn pump(self: &Arc<Self>, tag: u16, shard: &mut ShardContext<'_>) {
        let mut due = Due::default();
        let outcome = {
            let mut state = self.state();
            match state.lanes.get_mut(&tag) {
                Some(lane) => advance(lane, Some(shard.now()), &mut due),
                None => Ok(()),
            }
        };
        self.conclude(outcome, due, shard);
    }

    fn conclude(
        self: &Arc<Self>,
        outcome: Result<(), Status>,
        due: Due,
        shard: &mut ShardContext<'_>,
    ) {
        match outcome {
            Ok(()) => self.carry_out(due, shard),
            Err(status) => {
                succeed(due.ended);
                self.fail(status, shard);
            }
        }
    }

    fn carry_out(self: &Arc<Self>, due: Due, shard: &mut ShardContext<'_>) {
        let Due {
            effects,
            ended,
            looks_again,
        } = due;
        if looks_again && !std::mem::replace(&mut self.state().is_looked_for, true) {
            let member = Arc::clone(self);
            shard.run_next_turn(move |shard| {
                member.state().is_looked_for = false;
                // Only operations of tag 0 go by boards.
                member.pump(0, shard);
            });
        }
        let mut has_begun = false;
        for (tag, number, effect) in effects {
            match effect {
                Effect::Receive { from, slot, ticket } => {
                    let Some(peer) = &self.peers[from as usize] else {
                        continue;
                    };
                    let key = self.names.key(from, self.rank, Place { tag, number, slot });
                    let token = token(tag, number, ticket);
                    shard.receive(peer, self.step_id, &key, None, Arc::clone(self), token);
                }
                Effect::Send {
                    to,
                    slot,
                    data,
                    outlives,
                } => {
                    has_begun = true;
                    let key = self.names.key(self.rank, to, Place { tag, number, slot });
                    let data = match slot {
                        Slot::Bell => data,
                        Slot::Hello | Slot::Part(_) | Slot::Whole(_) => {
                            self.attend(to, shard);
                            self.kept(to, data, outlives)
                        }
                    };
                    shard.send(self.step_id, key, message(data));
                }
            }
        }
        succeed(ended);
        if has_begun {
            self.watch(shard);
        }
    }

    /// Asks a rank, once, for what it never sends: that fails as soon as the rank is gone, or the
    /// group is over for it, whether or not an operation waits for it then.
    fn attend(self: &Arc<Self>, to: u32, shard: &mut ShardContext<'_>) {
        let is_new = self.state().attended.insert(to);
        if let (true, Some(peer)) = (is_new, &self.peers[to as usize]) {
            let (key, token) = (self.names.absence(to, self.rank), ABSENCE | u64::from(to));
            shard.receive(peer, self.step_id, &key, None, Arc::clone(self), token);
        }
    }

    /// What tells when it was sent: if it outlives its operation, this rank does not leave before.
    fn kept(&self, to: u32, data: Buffer, outlives: bool) -> Buffer {
        let mut state = self.state();
        let taken = state.outbox.send(to);
        let unsent = outlives.then(|| Arc::clone(state.unsent.get_or_insert_default()));
        drop(state);
        Buffer::from_owner(Kept {
            data,
            _taken: taken,
            _unsent: unsent,
        })
    }

    /// Ends the group, here and for all who ask this rank: each of them does the same. A program
    /// that hears of it may end at once, so each partner is asked for a farewell, which comes when
    /// it has heard too: until then [`Member::leave`] waits, and for nothing else any more.
    fn fail(self: &Arc<Self>, status: Status, shard: &mut ShardContext<'_>) {
        let mut partners = Plan::partners(self.rank, self.size);
        let unsent = Arc::<Unsent>::default();
        {
            let mut state = self.state();
            if state.over.is_some() {
                return;
            }
            partners.retain(|rank| !state.gone.contains(rank));
            let unaware = partners.iter().map(|&rank| (rank, Arc::clone(&unsent)));
            state.unaware = unaware.collect();
            match state.leaving.upgrade().and_then(|before| before.take()) {
                Some(leaves) => unsent.then(leaves),
                None => state.unsent = Some(Arc::clone(&unsent)),
            }
        }
        // Whoever leaves locks the state, if nobody is to hear.
        drop(unsent);
        self.end(status, shard);
        for from in partners {
            match &self.peers[from as usize] {
                Some(peer) => {
                    let key = self.names.farewell(from, self.rank);
                    let (token, wait) = (FAREWELL | u64::from(from), Some(self.farewell_wait()));
                    shard.receive(peer, self.step_id, &key, wait, Arc::clone(self), token);
                }
                None => self.has_heard(from),
            }
        }
    }

    /// How long a rank that leaves a group which has failed waits for partners to hear of it.
    pub(crate) fn farewell_wait(&self) -> Duration {
        FAREWELL_WAIT_MAX.min(self.patience)
    }

    /// Ends the group, here and for all who ask this rank.
    fn end(&self, status: Status, shard: &mut ShardContext<'_>) {
        if self.end_all(status.clone()) {
            shard.abort_step(self.step_id, status);
        }
    }

    /// A rank that this one attends to is lost. Operations that need it hear that by themselves.
    fn miss(self: &Arc<Self>, from: u32, status: Option<Status>, shard: &mut ShardContext<'_>) {
        let Some(status) = status else {
            return;
        };
        let lost = Lost::of(&self.names.of(from), &self.names.own(), status);
        let mut due = Due::default();
        let outcome = {
            let mut state = self.state();
            let State { lanes, outbox, .. } = &mut *state;
            // What all have shown before counts.
            let looked = lanes.values_mut().try_for_each(|lane| {
                lane.look(&mut due.effects)
                    .and_then(|_| advance(lane, Some(shard.now()), &mut due))
            });
            looked.and_then(|()| lost.ends_group(outbox, from))
        };
        self.conclude(outcome, due, shard);
    }

    /// A partner knows why the group is over, or will never hear it.
    fn has_heard(&self, partner: u32) {
        let unsent = self.state().unaware.remove(&partner);
        // What waits for the last of them locks the state.
        drop(unsent);
    }

    /// Ends all operations. False if the group was over before.
    fn end_all(&self, status: Status) -> bool {
        let ended: Vec<Entry> = {
            let mut state = self.state();
            if state.over.is_some() {
                return false;
            }
            state.over = Some(status.clone());
            state.lanes.values_mut().flat_map(Lane::take_all).collect()
        };
        for Entry { machine, ending } in ended {
            ending.fail(status.clone());
            drop(machine);
        }
        true
    }

    fn take(self: &Arc<Self>, token: u64, data: Buffer, shard: &mut ShardContext<'_>) {
        let (tag, number, ticket) = parts_of(token);
        let mut due = Due::default();
        let outcome = {
            let mut state = self.state();
            match state.lanes.get_mut(&tag) {
                Some(lane) => lane
                    .take(number, ticket, data, shard.now(), &mut due.effects)
                    .and_then(|()| advance(lane, Some(shard.now()), &mut due)),
                None => Ok(()),
            }
        };
        self.conclude(outcome, due, shard);
    }

    fn lane(&self, tag: u16) -> Lane {
        Lane::new(tag, Plan::partners(self.rank, self.size))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl CompletionHandler for Member {
    fn runs_anywhere(&self) -> bool {
        true
    }

    fn on_complete(self: Arc<Self>, token: u64, result: CallResult, shard: &mut ShardContext<'_>) {
        if let (Some(from), Err(status)) = (asked_ahead(token), &result)
            && is_gone(status)
        {
            self.state().gone.insert(from);
            self.has_heard(from);
        }
        if token == TIMER {
            return self.look(shard);
        }
        if let Some(partner) = partner_of_farewell(token) {
            return self.has_heard(partner);
        }
        if let Some(from) = rank_of_absence(token) {
            return self.miss(from, result.err(), shard);
        }
        let from = {
            let state = self.state();
            if state.over.is_some() {
                return;
            }
            let (tag, number, ticket) = parts_of(token);
            let lane = state.lanes.get(&tag);
            lane.and_then(|lane| lane.source_of(number, ticket))
        };
        let Some(from) = from else {
            return;
        };
        match result {
            Ok(Response::Tensors(mut tensors)) if tensors.len() == 1 => {
                let tensor = tensors.remove(0);
                self.take(token, tensor.data, shard);
            }
            Ok(_) => {
                let text = format!("{} answered with no tensor", self.names.of(from));
                self.fail(Status::new(Code::DataLoss, text), shard);
            }
            Err(status) => {
                let lost = Lost::of(&self.names.of(from), &self.names.own(), status);
                let (tag, number, ticket) = parts_of(token);
                let mut due = Due::default();
                let lost = {
                    let mut state = self.state();
                    let State { lanes, outbox, .. } = &mut *state;
                    match lanes.get_mut(&tag) {
                        Some(lane) if ticket & HELLO != 0 => lane
                            .lose(number, from, lost.status.clone(), &mut due.effects)
                            .and_then(|()| advance(lane, Some(shard.now()), &mut due))
                            .and_then(|()| lost.ends_group(outbox, from)),
                        Some(_) | None => Err(lost.status),
                    }
                };
                if lost.is_ok() && self.state().heard_of.insert(from) {
                    // No operation fails yet, so nothing else tells that rank that it was heard.
                    let key = self.names.farewell(self.rank, from);
                    shard.send(self.step_id, key, message(Buffer::new()));
                }
                self.conclude(lost, due, shard);
            }
        }
    }

    fn on_tensor(self: Arc<Self>, token: u64, tensor: Tensor, shard: &mut ShardContext<'_>) {
        if let Some(partner) = partner_of_farewell(token) {
            return self.has_heard(partner);
        }
        if token != TIMER && rank_of_absence(token).is_none() && self.state().over.is_none() {
            self.take(token, tensor.data, shard);
        }
    }

    fn allocates(&self, token: u64) -> bool {
        token & u64::from(HELLO) == 0 && rank_of_absence(token).is_none()
    }

    fn allocate(
        &self,
        token: u64,
        _index: usize,
        meta: &TensorMeta,
    ) -> Option<Result<BufferMut, Status>> {
        if !self.allocates(token) {
            return None;
        }
        let (tag, number, ticket) = parts_of(token);
        let mut state = self.state();
        let lane = state.lanes.get_mut(&tag)?;
        lane.memory(number, ticket, meta.data_bytes).map(Ok)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn message(data: Buffer) -> Tensor {
    Tensor {
        dtype: DType::UInt8,
        shape: Shape::vector(data.len()),
        is_dead: false,
        data,
    }
}

/// Longest [`Member::farewell_wait`].
const FAREWELL_WAIT_MAX: Duration = Duration::from_secs(2);

/// How often it is looked for ranks that do not answer, in the time that they may take.
const LOOKS_PER_PATIENCE: u32 = 4;

/// Most tags of a group.
const TAGS_MAX: usize = 1024;

/// The tag under which ranks agree on how they work together, before the group is handed out.
pub(crate) const AGREEMENT_TAG: u16 = u16::MAX;

/// Most operations that wait under one tag.
const OPERATIONS_MAX: usize = 4096;

/// A key of the step.
pub(crate) type Key = Text;

#[cfg(all(test, not(loom)))]
mod tests;
