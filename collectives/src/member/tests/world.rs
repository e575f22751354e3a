//! The ranks of a model, and the messages between them.

use std::collections::{BTreeSet, HashMap};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_rpc::{Code, DType, Reason, Shape, Status};
use grpcxx_runtime::Time;

use super::super::lane::{Entry, Lane};
use super::super::lost::{Lost, left};
use super::super::outbox::Taken;
use super::super::tokens::HELLO;
use super::super::waits::{Look, Word, look, waits_for};
use super::super::{Due, Place, State, advance, succeed};
use crate::description::Description;
use crate::machine::{Effect, Machine, Slot, Task};
use crate::operation::{Ending, Operation};
use crate::operator::Operator;
use crate::plan::Plan;

/// How a rank is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Loss {
    /// Its connections are gone at some moment.
    Dies,
    /// From some moment on it takes and sends nothing.
    Freezes,
    /// Its program does not call one of the operations.
    DoesNotCall,
    /// Its program leaves before one of the operations.
    Leaves,
}

/// All ranks, and what is on its way.
pub(super) struct World {
    /// Who is lost, and how.
    pub(super) loss: Option<(u32, Loss)>,
    /// At which event, or before which operation.
    lost_at: usize,
    /// Who calls only when nothing else can happen.
    pub(super) late: Option<u32>,
    /// How often ranks have asked others what they call.
    pub(super) hellos_asked: usize,
    random: fastrand::Rng,
    now: u64,
    program: Vec<(Operator, usize)>,
    nodes: Vec<Node>,
    /// What each rank has sent and was asked for.
    desks: Vec<Desk>,
    ready: Vec<Event>,
}

/// A rank.
struct Node {
    /// Its only lane is that of tag 0.
    state: State,
    health: Health,
    /// What its program calls, one after the other.
    program: Vec<(Operator, usize)>,
    called: usize,
    waiting: Option<Operation<Option<Vec<u8>>>>,
    results: Vec<Option<Vec<u8>>>,
    error: Option<String>,
    looks_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Well,
    Leaving,
    Frozen,
    Dead,
}

/// To whom, and what its key has behind the ranks.
type Address = (u32, String);

#[derive(Default)]
struct Desk {
    sent: HashMap<Address, Sent>,
    asked: HashMap<Address, (u64, u32)>,
    /// Whom the rank tells when it is lost.
    attended_by: BTreeSet<u32>,
}

struct Sent {
    data: Buffer,
    outlives: bool,
    _taken: Taken,
}

enum Event {
    Calls(u32),
    Comes(Receipt, Vec<u8>),
    Fails(Receipt, Status),
    /// A rank hears that another one is lost.
    Misses(u32, u32, Status),
    /// A rank is asked by another one for whom it waits.
    Asked(u32, u32),
    /// A rank hears from another one for whom that waits.
    Hears(u32, u32, Vec<u32>),
}

/// What was asked of one rank by another.
struct Receipt {
    from: u32,
    to: u32,
    number: u64,
    ticket: u32,
}

impl World {
    pub(super) fn new(size: u32, program: &[(Operator, usize)], seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let node = |rank| Node {
            state: State {
                lanes: [(0, Lane::new(0, Plan::partners(rank, size)))].into(),
                ..State::default()
            },
            health: Health::Well,
            program: program.to_vec(),
            called: 0,
            waiting: None,
            results: Vec::new(),
            error: None,
            looks_at: random.u64(..LOOK_NS),
        };
        let nodes = (0..size).map(node).collect();
        Self {
            loss: None,
            lost_at: 0,
            late: None,
            hellos_asked: 0,
            random,
            now: 0,
            program: program.to_vec(),
            nodes,
            desks: (0..size).map(|_| Desk::default()).collect(),
            ready: (0..size).map(Event::Calls).collect(),
        }
    }

    /// Lets a rank call something else than the others.
    pub(super) fn give(&mut self, rank: u32, program: &[(Operator, usize)]) {
        self.node(rank).program = program.to_vec();
    }

    /// Draws who is lost, and when.
    pub(super) fn lose_one(&mut self, loss: Loss) {
        let size = self.nodes.len();
        self.lost_at = match loss {
            Loss::Dies | Loss::Freezes => self.random.usize(..size * 12),
            Loss::DoesNotCall | Loss::Leaves => self.random.usize(..self.program.len()),
        };
        self.loss = Some((self.random.u32(..size as u32), loss));
    }

    /// Lets everything happen.
    pub(super) fn run(&mut self) {
        for rank in 0..self.nodes.len() as u32 {
            let mut due = Due::default();
            self.node(rank).lane().prepare(&mut due.effects);
            self.conclude(rank, Ok(()), due);
            for other in Plan::partners(rank, self.nodes.len() as u32) {
                self.attend(rank, other);
            }
        }
        let mut events = 0;
        loop {
            while !self.ready.is_empty() {
                if let Some((rank, Loss::Dies | Loss::Freezes)) = self.loss
                    && events == self.lost_at
                {
                    self.strike(rank);
                }
                events += 1;
                self.now += self.random.u64(1..1000);
                let event = self.next();
                self.happen(event);
            }
            if !self.look() {
                return;
            }
        }
    }

    fn next(&mut self) -> Event {
        let (mut next, count) = (self.random.usize(..self.ready.len()), self.ready.len());
        if let Event::Calls(rank) = self.ready[next]
            && self.late == Some(rank)
        {
            next = (next + 1) % count;
        }
        self.ready.swap_remove(next)
    }

    /// How many operations have ended well.
    pub(super) fn ended(&self) -> usize {
        self.nodes.iter().map(|node| node.results.len()).sum()
    }

    /// What each rank says why the group is over, but for the lost one.
    pub(super) fn errors(&self) -> impl Iterator<Item = (usize, &str)> {
        let errors = self.nodes.iter().map(|node| node.error.as_deref());
        let lost = self.loss.map(|(rank, _)| rank as usize);
        let errors = errors
            .enumerate()
            .filter(move |(rank, _)| Some(*rank) != lost);
        errors.filter_map(|(rank, error)| Some((rank, error?)))
    }

    /// Each rank has the right results, and all of them or an error.
    pub(super) fn check_results(&self, what: &str) {
        let size = self.nodes.len() as u32;
        let wanted: Vec<_> = self
            .program
            .iter()
            .map(|call| wanted(*call, size))
            .collect();
        for (rank, node) in (0..).zip(&self.nodes) {
            for (index, found) in node.results.iter().enumerate() {
                let (operator, _) = self.program[index];
                let wanted = gets(operator, rank).then_some(&wanted[index]);
                assert!(
                    found.as_ref() == wanted,
                    "{what}: {operator:?} at rank {rank}"
                );
            }
            let is_lost = self.loss.is_some_and(|(lost, _)| lost == rank);
            let has_ended = node.results.len() == self.program.len() || node.error.is_some();
            assert!(has_ended || is_lost, "{what}: rank {rank} has not ended");
        }
    }

    fn node(&mut self, rank: u32) -> &mut Node {
        &mut self.nodes[rank as usize]
    }

    fn strike(&mut self, rank: u32) {
        let is_dead = matches!(self.loss, Some((_, Loss::Dies)));
        self.node(rank).health = match is_dead {
            true => Health::Dead,
            false => Health::Frozen,
        };
        if is_dead {
            self.desks[rank as usize].sent.clear();
            self.refuse(rank, &connection_lost());
        }
    }

    fn happen(&mut self, event: Event) {
        let rank = match &event {
            Event::Calls(rank) | Event::Misses(rank, ..) => *rank,
            Event::Asked(rank, _) | Event::Hears(rank, ..) => *rank,
            Event::Comes(receipt, _) | Event::Fails(receipt, _) => receipt.to,
        };
        let now = Time::from_nanos(self.now);
        let node = self.node(rank);
        if matches!(node.health, Health::Dead | Health::Frozen) {
            return;
        }
        let mut due = Due::default();
        let (receipt, data) = match event {
            Event::Calls(_) => return self.call(rank),
            Event::Misses(_, from, status) => {
                let lost = Lost::of(&name(from), &name(rank), status);
                let ended = lost.ends_group(&node.state.outbox, from);
                return ended.unwrap_or_else(|status| self.fail(rank, status));
            }
            Event::Asked(_, by) => {
                let ranks = waits_for(&node.state);
                return self.ready.push(Event::Hears(by, rank, ranks));
            }
            Event::Hears(_, from, ranks) => {
                return node.state.words.hear(from, Word::WaitsFor(ranks));
            }
            Event::Comes(receipt, data) => (receipt, Ok(data)),
            Event::Fails(receipt, status) => (receipt, Err(status)),
        };
        let Receipt { number, ticket, .. } = receipt;
        let is_asked = node.lane().source_of(number, ticket).is_some();
        if node.state.over.is_some() || !is_asked {
            return;
        }
        let State { lanes, outbox, .. } = &mut node.state;
        let lane = lanes.get_mut(&0).unwrap();
        let outcome = match data {
            Ok(data) => {
                let memory = lane.memory(number, ticket, data.len() as u64);
                let data = match memory {
                    Some(mut memory) => {
                        memory.copy_from_slice(&data);
                        memory.freeze()
                    }
                    None => Buffer::from(data),
                };
                lane.take(number, ticket, data, now, &mut due.effects)
            }
            Err(status) => {
                let lost = Lost::of(&name(receipt.from), &name(rank), status);
                match ticket & HELLO {
                    0 => Err(lost.status),
                    _ => lane
                        .lose(number, receipt.from, lost.status.clone(), &mut due.effects)
                        .and_then(|()| advance(lane, Some(now), &mut due))
                        .and_then(|()| lost.ends_group(outbox, receipt.from)),
                }
            }
        };
        let outcome = outcome.and_then(|()| advance(lane, Some(now), &mut due));
        self.conclude(rank, outcome, due);
    }

    /// The program of a rank goes on.
    fn call(&mut self, rank: u32) {
        let size = self.nodes.len() as u32;
        let called = self.node(rank).called;
        let node = self.node(rank);
        if let Some(over) = &node.state.over {
            node.error = Some(over.message.to_string());
            return;
        }
        let loss = self
            .loss
            .filter(|(lost, _)| *lost == rank && called == self.lost_at);
        match loss {
            Some((_, Loss::DoesNotCall)) => return,
            Some((_, Loss::Leaves)) => return self.leave(rank),
            _ if called == self.node(rank).program.len() => return self.leave(rank),
            _ => {}
        }
        let call = self.node(rank).program[called];
        let (mut machine, ending, operation) = operation(call, (rank, size), false);
        let now = Time::from_nanos(self.now);
        let node = self.node(rank);
        machine.set_number(node.lane().next_number());
        node.called += 1;
        node.waiting = Some(operation);
        node.lane().push(Entry { machine, ending });
        let mut due = Due::default();
        let outcome = advance(node.lane(), Some(now), &mut due);
        self.conclude(rank, outcome, due);
    }

    fn leave(&mut self, rank: u32) {
        self.node(rank).health = Health::Leaving;
        self.close(rank);
    }

    /// Ends the membership of a rank that leaves, once nothing is on its way.
    fn close(&mut self, rank: u32) {
        let (sent, node) = (
            &self.desks[rank as usize].sent,
            &mut self.nodes[rank as usize],
        );
        let is_leaving = node.health == Health::Leaving && node.state.over.is_none();
        if !is_leaving || sent.values().any(|sent| sent.outlives) {
            return;
        }
        assert!(sent.is_empty(), "rank {rank} leaves with what others need");
        let status = Status::new(Code::Aborted, left(&name(rank)));
        node.state.over = Some(status.clone());
        self.refuse(rank, &status.because(Reason::Peer));
    }

    fn conclude(&mut self, rank: u32, outcome: Result<(), Status>, due: Due) {
        let Due { effects, ended, .. } = due;
        if let Err(status) = outcome {
            succeed(ended);
            return self.fail(rank, status);
        }
        self.hellos_asked += usize::from(effects.iter().any(|(_, _, effect)| asks_hello(effect)));
        for (_, number, effect) in effects {
            match effect {
                Effect::Send {
                    to,
                    slot,
                    data,
                    outlives,
                } => {
                    let address = address(to, number, slot);
                    self.attend(rank, to);
                    let sent = Sent {
                        data,
                        outlives,
                        _taken: self.node(rank).state.outbox.send(to),
                    };
                    let before = self.desks[rank as usize].sent.insert(address.clone(), sent);
                    assert!(before.is_none(), "{slot:?} was sent to {to} again");
                    self.carry(rank, address);
                }
                Effect::Receive { from, slot, ticket } => {
                    let receipt = Receipt {
                        from,
                        to: rank,
                        number,
                        ticket,
                    };
                    self.ask(receipt, slot);
                }
            }
        }
        succeed(ended);
        self.go_on(rank);
    }

    fn ask(&mut self, receipt: Receipt, slot: Slot) {
        let (from, address) = (receipt.from, address(receipt.to, receipt.number, slot));
        if let Some(status) = self.refusal(from) {
            return self.ready.push(Event::Fails(receipt, status));
        }
        if self.nodes[from as usize].health == Health::Frozen {
            return;
        }
        let asked = &mut self.desks[from as usize].asked;
        let before = asked.insert(address.clone(), (receipt.number, receipt.ticket));
        assert!(before.is_none(), "{slot:?} was asked of {from} again");
        self.carry(from, address);
    }

    /// Asks a rank to tell when it is lost.
    fn attend(&mut self, rank: u32, other: u32) {
        if !self.node(rank).state.attended.insert(other) {
            return;
        }
        match self.refusal(other) {
            Some(status) => self.ready.push(Event::Misses(rank, other, status)),
            None => _ = self.desks[other as usize].attended_by.insert(rank),
        }
    }

    /// What a rank answers that is lost.
    fn refusal(&self, from: u32) -> Option<Status> {
        let source = &self.nodes[from as usize];
        match (&source.state.over, source.health) {
            (_, Health::Dead) => Some(connection_lost()),
            (_, Health::Frozen) => None,
            (Some(status), _) => Some(status.clone().because(Reason::Peer)),
            (None, _) => None,
        }
    }

    /// What was both sent and asked for is on its way.
    fn carry(&mut self, from: u32, address: Address) {
        let desk = &mut self.desks[from as usize];
        if !desk.asked.contains_key(&address) {
            return;
        }
        let Some(sent) = desk.sent.remove(&address) else {
            return;
        };
        let (number, ticket) = desk.asked.remove(&address).unwrap();
        let receipt = Receipt {
            from,
            to: address.0,
            number,
            ticket,
        };
        self.ready.push(Event::Comes(receipt, sent.data.to_vec()));
        drop(sent);
        self.go_on(from);
        self.close(from);
    }

    /// The program of a rank sees whether its operation has ended.
    fn go_on(&mut self, rank: u32) {
        let node = self.node(rank);
        let Some(operation) = &mut node.waiting else {
            return;
        };
        let mut context = Context::from_waker(Waker::noop());
        let Poll::Ready(result) = Pin::new(operation).poll(&mut context) else {
            return;
        };
        node.waiting = None;
        match result {
            Ok(result) => {
                let ended = node.results.len();
                node.results.push(result);
                if let (Operator::Barrier, _) = self.program[ended] {
                    let have_called = self.nodes.iter().all(|node| node.called > ended);
                    assert!(have_called, "rank {rank} did not wait at the barrier");
                }
                self.ready.push(Event::Calls(rank));
            }
            Err(status) => node.error = Some(status.message.to_string()),
        }
    }

    fn fail(&mut self, rank: u32, status: Status) {
        let node = self.node(rank);
        if node.state.over.is_some() {
            return;
        }
        node.state.over = Some(status.clone());
        for Entry { ending, .. } in node.lane().take_all() {
            ending.fail(status.clone());
        }
        self.desks[rank as usize].sent.clear();
        self.refuse(rank, &status.because(Reason::Peer));
        self.go_on(rank);
    }

    /// All that was asked of a rank fails.
    fn refuse(&mut self, from: u32, status: &Status) {
        for rank in std::mem::take(&mut self.desks[from as usize].attended_by) {
            self.ready.push(Event::Misses(rank, from, status.clone()));
        }
        let asked = std::mem::take(&mut self.desks[from as usize].asked);
        let mut asked: Vec<_> = asked.into_iter().collect();
        // A map has an order of its own in each run.
        asked.sort_unstable();
        for ((to, ..), (number, ticket)) in asked {
            let receipt = Receipt {
                from,
                to,
                number,
                ticket,
            };
            self.ready.push(Event::Fails(receipt, status.clone()));
        }
    }

    /// Nothing is on its way, so time passes until a rank looks for those that do not answer.
    /// False if no rank waits for anything.
    fn look(&mut self) -> bool {
        let waits = |node: &mut Node| {
            let is_well = matches!(node.health, Health::Well | Health::Leaving);
            let is_busy = node.lane().is_running() || !node.state.outbox.is_even();
            is_well && node.state.over.is_none() && is_busy
        };
        let nodes = (0..).zip(&mut self.nodes);
        let waiting = nodes.filter_map(|(rank, node)| waits(node).then_some((rank, node)));
        let Some((rank, node)) = waiting.min_by_key(|(_, node)| node.looks_at) else {
            return false;
        };
        self.now = self.now.max(node.looks_at);
        node.looks_at = self.now + LOOK_NS;
        let at = (Time::from_nanos(self.now), PATIENCE);
        match look(&mut node.state, rank, at) {
            Look::GoesOn { asks } => {
                let asks = asks.into_iter();
                self.ready.extend(asks.map(|of| Event::Asked(of, rank)));
            }
            Look::Ends(silence) => {
                let names: Vec<String> = silence.ranks.iter().map(|&rank| name(rank)).collect();
                let text = silence.text(&names.join(", "), PATIENCE);
                let status = Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline);
                self.fail(rank, status);
            }
        }
        true
    }
}

impl Node {
    fn lane(&mut self) -> &mut Lane {
        self.state.lanes.get_mut(&0).unwrap()
    }
}

pub(super) fn operation(
    (operator, len): (Operator, usize),
    (rank, size): (u32, u32),
    has_boards: bool,
) -> (
    Box<Machine>,
    std::sync::Arc<Ending>,
    Operation<Option<Vec<u8>>>,
) {
    let (operation, ending) =
        Operation::new(|result: Option<BufferMut>| Ok(result.map(|bytes| bytes.to_vec())));
    let plan = Plan {
        kind: operator.kind(),
        rank,
        size,
        root: operator.root(),
        bytes: len * 4,
        element_bytes: 4,
        has_boards,
    };
    let description = Description {
        kind: plan.kind,
        op: operator.op(),
        dtype: DType::Float32,
        root: plan.root,
        number: 0,
        shape: Shape::vector(len),
    };
    let arithmetic = operator.op().map(|op| op.arithmetic(DType::Float32));
    let task = Task {
        plan,
        description,
        arithmetic: arithmetic.transpose().unwrap(),
        input: ending.lend(Buffer::from(brought(rank, plan.input_bytes() / 4))),
    };
    let output_bytes = plan.output_bytes();
    let machine = Machine::new(task, |ends| {
        let ending = std::sync::Arc::clone(&ending);
        let output = BufferMut::zeroed(output_bytes.unwrap_or(0));
        output.split(ends, move |whole| ending.give_back(whole))
    });
    (machine, ending, operation)
}

fn value(rank: u32, at: usize) -> f32 {
    ((rank as usize * 31 + at) % 1009) as f32
}

fn brought(rank: u32, len: usize) -> Vec<u8> {
    let values: Vec<f32> = (0..len).map(|at| value(rank, at)).collect();
    bytemuck::cast_slice(&values).to_vec()
}

/// What those get who get something. Sums of whole numbers are exact in any order.
fn wanted((operator, len): (Operator, usize), size: u32) -> Vec<u8> {
    let combined = |combine: fn(f32, f32) -> f32| -> Vec<u8> {
        let of = |at| {
            (0..size)
                .map(|rank| value(rank, at))
                .reduce(combine)
                .unwrap()
        };
        let values: Vec<f32> = (0..len).map(of).collect();
        bytemuck::cast_slice(&values).to_vec()
    };
    match operator {
        Operator::Broadcast { root } => brought(root, len),
        Operator::AllGather => (0..size).flat_map(|rank| brought(rank, len)).collect(),
        _ if operator.op() == Some(crate::dtype::ReduceOp::Max) => combined(f32::max),
        _ => combined(|one, other| one + other),
    }
}

/// Whether a rank gets something of an operation that it does not have already.
fn gets(operator: Operator, rank: u32) -> bool {
    match operator {
        Operator::Barrier => false,
        Operator::Broadcast { root } => rank != root,
        Operator::Reduce { root, .. } => rank == root,
        _ => true,
    }
}

fn asks_hello(effect: &Effect) -> bool {
    let slot = Slot::Hello;
    matches!(effect, Effect::Receive { slot: asked, .. } if *asked == slot)
}

/// All that ranks call has one tag.
fn address(to: u32, number: u64, slot: Slot) -> Address {
    let place = Place {
        tag: 0,
        number,
        slot,
    };
    (to, place.to_string())
}

fn name(rank: u32) -> String {
    format!("rank {rank} (host-{rank}:1)")
}

fn connection_lost() -> Status {
    Status::new(Code::Unavailable, "the connection was lost").because(Reason::ConnectionLost)
}

/// How long an operation may go on without a message.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time from look to look.
const LOOK_NS: u64 = PATIENCE.as_nanos() as u64 / super::super::LOOKS_PER_PATIENCE as u64;
