use std::cell::{RefCell, RefMut};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::pipe::{End, Pipe};
use super::{SimOptions, SimTransport};
use crate::{ListenerId, Time, TransportError};

/// The hosts and connections of a simulation. Clones are handles of the same network.
#[derive(Clone, Debug)]
pub struct SimNetwork {
    state: Rc<RefCell<State>>,
}

/// A simulated connection that waits to be adopted, by any transport of the host that was dialled.
#[derive(Debug)]
pub struct SimAccepted {
    pub(super) connection: u64,
    /// Tells the network when it is dropped.
    _claim: Arc<()>,
}

impl SimNetwork {
    /// A network without hosts, at [`Time::ZERO`].
    pub fn new(options: SimOptions) -> Self {
        Self {
            state: Rc::new(RefCell::new(State {
                random: fastrand::Rng::with_seed(options.seed),
                options,
                now: Time::ZERO,
                hosts: Vec::new(),
                transports: 0,
                listeners: BTreeMap::new(),
                connections: BTreeMap::new(),
                connections_made: 0,
                agenda: BinaryHeap::new(),
                agenda_entries: 0,
                partitions: BTreeSet::new(),
                unclaimed: Vec::new(),
            })),
        }
    }

    /// A transport for one more shard of the host with this address, which is started if need be.
    pub fn transport(&self, host: IpAddr) -> SimTransport {
        let mut state = self.state();
        let host = state.host(host);
        let epoch = state.hosts[host].epoch;
        let id = state.transports;
        state.transports += 1;
        let limits = state.options.limits;
        drop(state);
        SimTransport::new(self.clone(), id, host, epoch, limits)
    }

    /// Stops a host at once: its links break, at the peers a little later, its listeners are gone, and its
    /// transports can do nothing more. Transports made afterwards belong to the restarted host.
    pub fn crash(&self, host: IpAddr) {
        let mut state = self.state();
        let host = state.host(host);
        state.hosts[host].epoch += 1;
        state.listeners.retain(|(at, _), _| *at != host);
        let ends: Vec<(u64, usize)> = (state.connections.iter())
            .flat_map(|(key, connection)| [0, 1].map(|side| (*key, side, connection.hosts[side])))
            .filter_map(|(key, side, at)| (at == host).then_some((key, side)))
            .collect();
        for (key, side) in ends {
            state.leave(key, side, false);
        }
    }

    /// Lets nothing pass between two hosts. What is on its way arrives after [`SimNetwork::heal`].
    pub fn partition(&self, one: IpAddr, other: IpAddr) {
        let mut state = self.state();
        let pair = state.pair(one, other);
        let now = state.now;
        for connection in state.connections.values_mut() {
            connection
                .pipes
                .iter_mut()
                .for_each(|pipe| pipe.settle(now));
        }
        state.partitions.insert(pair);
    }

    /// Ends a partition.
    pub fn heal(&self, one: IpAddr, other: IpAddr) {
        let mut state = self.state();
        let pair = state.pair(one, other);
        state.partitions.remove(&pair);
    }

    /// Ends all partitions.
    pub fn heal_all(&self) {
        self.state().partitions.clear();
    }

    /// The present.
    pub fn now(&self) -> Time {
        self.state().now
    }

    /// The earliest time at which a turn of some transport has something to do, if nothing is submitted
    /// until then. `None`: nothing will ever happen by itself.
    pub fn next_event_at(&self) -> Option<Time> {
        self.state().next_event_at()
    }

    /// Connections of which at least one end is there.
    pub fn connection_count(&self) -> usize {
        self.state().connections.len()
    }

    pub(super) fn state(&self) -> RefMut<'_, State> {
        self.state.borrow_mut()
    }
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) options: SimOptions,
    pub(super) random: fastrand::Rng,
    pub(super) now: Time,
    hosts: Vec<Host>,
    transports: u32,
    /// By host and port.
    listeners: BTreeMap<(usize, u16), Listener>,
    connections: BTreeMap<u64, Connection>,
    connections_made: u64,
    agenda: BinaryHeap<Reverse<(Time, u64, Entry)>>,
    agenda_entries: u64,
    /// Pairs of hosts, the smaller index first.
    partitions: BTreeSet<(usize, usize)>,
    /// Connections that were handed out and not adopted yet.
    unclaimed: Vec<(u64, Weak<()>)>,
}

#[derive(Debug)]
struct Host {
    address: IpAddr,
    epoch: u32,
    next_port: u16,
}

#[derive(Debug)]
struct Listener {
    owner: u32,
    id: ListenerId,
    queue: VecDeque<u64>,
}

/// A connection; side 0 dialled. `pipes[side]` is written by that side.
#[derive(Debug)]
struct Connection {
    hosts: [usize; 2],
    addresses: [SocketAddr; 2],
    dialled_at: Time,
    pipes: [Pipe; 2],
    sides: [Side; 2],
}

#[derive(Debug)]
struct Side {
    state: SideState,
    interest: Interest,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SideState {
    Dialling,
    Failed(TransportError),
    Open,
    Gone,
}

/// What a link waits for, so that the network knows when its transport should be turned.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Interest {
    /// It has something to do whatever the network does.
    pub(super) due: bool,
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) deadline: Option<Time>,
}

/// A step of a dial, for the connection with this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    Arrive(u64),
    Answer(u64, DialResult),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum DialResult {
    Established,
    Refused,
    TimedOut,
}

impl State {
    /// Moves the clock, never back, and plays what is due.
    pub(super) fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        self.reap_unclaimed();
        while let Some(Reverse((at, _, entry))) = self.agenda.peek().copied() {
            if at > self.now {
                break;
            }
            self.agenda.pop();
            match entry {
                Entry::Arrive(key) => self.dial_arrives(key),
                Entry::Answer(key, result) => self.dial_answered(key, result),
            }
        }
    }

    pub(super) fn is_up(&self, host: usize, epoch: u32) -> bool {
        self.hosts[host].epoch == epoch
    }

    pub(super) fn listen(
        &mut self,
        owner: u32,
        host: usize,
        id: ListenerId,
        mut address: SocketAddr,
    ) -> Result<SocketAddr, TransportError> {
        let operation = format!("listen on {address}");
        if !self.is_local(host, address.ip()) {
            return Err(error(&operation, 99, "the address is not this host's"));
        }
        if address.port() == 0 {
            address.set_port(self.free_port(host));
        }
        let key = (host, address.port());
        if self.listeners.contains_key(&key) {
            return Err(error(&operation, 98, "the address is in use"));
        }
        let queue = VecDeque::new();
        self.listeners.insert(key, Listener { owner, id, queue });
        Ok(address)
    }

    pub(super) fn unlisten(&mut self, owner: u32, id: ListenerId) {
        let mut refused = Vec::new();
        self.listeners.retain(|_, listener| {
            let keep = listener.owner != owner || listener.id != id;
            if !keep {
                refused.extend(listener.queue.drain(..));
            }
            keep
        });
        for key in refused {
            self.leave(key, 1, true);
        }
    }

    pub(super) fn dial(&mut self, host: usize, peer: SocketAddr) -> u64 {
        let target = if peer.ip().is_loopback() || peer.ip().is_unspecified() {
            host
        } else {
            self.host(peer.ip())
        };
        let local = SocketAddr::new(self.hosts[host].address, self.free_port(host));
        let pipes = [(); 2].map(|()| {
            let fault = self.draw_fault();
            Pipe::new(self.options.buffer_bytes, fault)
        });
        let key = self.connections_made;
        self.connections_made += 1;
        self.connections.insert(
            key,
            Connection {
                hosts: [host, target],
                addresses: [local, peer],
                dialled_at: self.now,
                pipes,
                sides: [SideState::Dialling, SideState::Gone].map(|state| Side {
                    state,
                    interest: Interest::default(),
                }),
            },
        );
        let at = self.now + self.draw_latency();
        self.schedule(at, Entry::Arrive(key));
        key
    }

    /// The next connection that waits at a listener of `owner`.
    pub(super) fn accept(&mut self, owner: u32) -> Option<(ListenerId, SocketAddr, SimAccepted)> {
        let listener = self
            .listeners
            .values_mut()
            .find(|listener| listener.owner == owner && !listener.queue.is_empty())?;
        let id = listener.id;
        let connection = listener.queue.pop_front()?;
        let claim = Arc::new(());
        self.unclaimed.push((connection, Arc::downgrade(&claim)));
        let peer = self.connections.get(&connection)?.addresses[0];
        let accepted = SimAccepted {
            connection,
            _claim: claim,
        };
        Some((id, peer, accepted))
    }

    pub(super) fn claim(&mut self, host: usize, key: u64) -> Result<(), TransportError> {
        self.unclaimed.retain(|(unclaimed, _)| *unclaimed != key);
        if let Some(connection) = self.connections.get(&key)
            && connection.hosts[1] == host
            && connection.sides[1].state == SideState::Open
        {
            return Ok(());
        }
        self.leave(key, 1, true);
        Err(error(
            "adopt a connection",
            104,
            "the connection is gone, or is another host's",
        ))
    }

    pub(super) fn side_state(&self, key: u64, side: usize) -> &SideState {
        match self.connections.get(&key) {
            Some(connection) => &connection.sides[side].state,
            None => &SideState::Gone,
        }
    }

    /// Whether a link has something to do now.
    pub(super) fn is_ready(&self, key: u64, side: usize) -> bool {
        let Some(connection) = self.connections.get(&key) else {
            return true;
        };
        let ready_at = connection.ready_at(side, self.is_cut_off(connection));
        ready_at.is_some_and(|at| at <= self.now)
    }

    pub(super) fn set_interest(&mut self, key: u64, side: usize, interest: Interest) {
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.sides[side].interest = interest;
        }
    }

    pub(super) fn set_due(&mut self, key: u64, side: usize) {
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.sides[side].interest.due = true;
        }
    }

    /// The pipe that `side` writes.
    pub(super) fn outgoing(&mut self, key: u64, side: usize) -> Option<&mut Pipe> {
        Some(&mut self.connections.get_mut(&key)?.pipes[side])
    }

    /// Sends the `bytes` bytes that `side` has just written on their way.
    pub(super) fn dispatch(&mut self, key: u64, side: usize, bytes: usize) {
        let (now, latency) = (self.now, self.draw_latency());
        let bytes_per_second = self.options.bytes_per_second;
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        if bytes > 0 && connection.sides[1 - side].state == SideState::Gone {
            // The peer has closed, so its host answers with a reset. Until then nothing more leaves.
            connection.pipes[1 - side].finish(now + latency, End::Broken);
            connection.pipes[side].finish(now, End::OfStream);
        }
        let struck = connection.pipes[side].dispatch(now, bytes, bytes_per_second, latency);
        if let Some((at, End::Broken)) = struck {
            connection.pipes[1 - side].finish(at, End::Broken);
        }
    }

    /// Reads what `side` may read now into `memory`, as much as chance wants, and says how much that was.
    pub(super) fn read(&mut self, key: u64, side: usize, memory: &mut [u8]) -> usize {
        let options = &self.options;
        let (min, max) = (options.read_bytes_min.max(1), options.read_bytes_max.max(1));
        let chunk = self.random.usize(min.min(max)..=max);
        let stalls = self.random.f64() < options.stall_chance;
        let stall_ns = self.random.u64(..=options.stall_max.as_nanos() as u64);
        let now = self.now;
        let Some(pipe) = self.incoming(key, side) else {
            return 0;
        };
        if pipe.stalled_until > now {
            return 0;
        }
        let count = chunk.min(memory.len()).min(pipe.arrived_bytes());
        pipe.read(&mut memory[..count]);
        if stalls && count > 0 {
            pipe.stalled_until = now + Duration::from_nanos(stall_ns);
        }
        count
    }

    /// How the stream that `side` reads has ended, if it has.
    pub(super) fn end_reached(&self, key: u64, side: usize) -> Option<End> {
        let now = self.now;
        let Some(connection) = self.connections.get(&key) else {
            return Some(End::Broken);
        };
        if self.is_cut_off(connection) {
            return None;
        }
        connection.pipes[1 - side].end_reached(now)
    }

    /// What `side` reads; arrivals are settled unless the hosts are cut off from each other.
    pub(super) fn incoming(&mut self, key: u64, side: usize) -> Option<&mut Pipe> {
        let now = self.now;
        let cut_off = self.is_cut_off(self.connections.get(&key)?);
        let pipe = &mut self.connections.get_mut(&key)?.pipes[1 - side];
        if !cut_off {
            pipe.settle(now);
        }
        Some(pipe)
    }

    /// One end lets go of the connection. If it does so with bytes unread, the peer gets a reset.
    pub(super) fn leave(&mut self, key: u64, side: usize, graceful: bool) {
        let at = self.now + self.draw_latency();
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        connection.sides[side].state = SideState::Gone;
        connection.sides[side].interest = Interest::default();
        let unread = connection.pipes[1 - side].has_bytes();
        let end = if graceful && !unread {
            End::OfStream
        } else {
            End::Broken
        };
        connection.pipes[side].finish(at, end);
        connection.pipes[1 - side].drain();
        if connection.is_over() {
            self.connections.remove(&key);
        }
    }

    /// Breaks a connection: at once for `side`, a little later for its peer.
    pub(super) fn sever(&mut self, key: u64, side: usize) {
        let later = self.now + self.draw_latency();
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.pipes[side].finish(later, End::Broken);
            connection.sides[side].state =
                SideState::Failed(error("use a link", 104, "connection reset by peer"));
            connection.sides[side].interest.due = true;
        }
    }

    /// Ends the stream that `side` writes, though it goes on reading.
    pub(super) fn half_close(&mut self, key: u64, side: usize) {
        let later = self.now + self.draw_latency();
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.pipes[side].finish(later, End::OfStream);
        }
    }

    /// Lets `side` read nothing before a time.
    pub(super) fn stall(&mut self, key: u64, side: usize, until: Time) {
        if let Some(connection) = self.connections.get_mut(&key) {
            connection.pipes[1 - side].stalled_until = until;
        }
    }

    pub(super) fn draw_latency(&mut self) -> Duration {
        let options = &self.options;
        let spread = options.latency_mean.saturating_sub(options.latency_min);
        let ns = self.random.u64(..=2 * spread.as_nanos() as u64);
        options.latency_min + Duration::from_nanos(ns)
    }

    fn draw_fault(&mut self) -> Option<(u64, End)> {
        let at = self.random.u64(..=self.options.fault_bytes_max);
        let chance = self.random.f64();
        if chance < self.options.cut_chance {
            return Some((at, End::Broken));
        }
        let half_close = chance < self.options.cut_chance + self.options.half_close_chance;
        half_close.then_some((at, End::OfStream))
    }

    fn host(&mut self, address: IpAddr) -> usize {
        let known = self.hosts.iter().position(|host| host.address == address);
        known.unwrap_or_else(|| {
            self.hosts.push(Host {
                address,
                epoch: 0,
                next_port: FIRST_FREE_PORT,
            });
            self.hosts.len() - 1
        })
    }

    fn pair(&mut self, one: IpAddr, other: IpAddr) -> (usize, usize) {
        let (one, other) = (self.host(one), self.host(other));
        (one.min(other), one.max(other))
    }

    fn is_local(&self, host: usize, address: IpAddr) -> bool {
        address.is_unspecified() || address.is_loopback() || address == self.hosts[host].address
    }

    fn is_cut_off(&self, connection: &Connection) -> bool {
        let [one, other] = connection.hosts;
        !self.partitions.is_empty() && self.partitions.contains(&(one.min(other), one.max(other)))
    }

    fn free_port(&mut self, host: usize) -> u16 {
        loop {
            let port = self.hosts[host].next_port;
            self.hosts[host].next_port = port.checked_add(1).unwrap_or(FIRST_FREE_PORT);
            if !self.listeners.contains_key(&(host, port)) {
                return port;
            }
        }
    }

    fn schedule(&mut self, at: Time, entry: Entry) {
        self.agenda_entries += 1;
        self.agenda.push(Reverse((at, self.agenda_entries, entry)));
    }

    fn dial_arrives(&mut self, key: u64) {
        let later = self.now + self.draw_latency();
        let fails = self.random.f64() < self.options.connect_failure_chance;
        let backlog = self.options.backlog;
        let Some(connection) = self.connections.get(&key) else {
            return;
        };
        if connection.sides[0].state != SideState::Dialling {
            return;
        }
        if self.is_cut_off(connection) {
            let at = connection.dialled_at + self.options.connect_timeout;
            return self.schedule(at, Entry::Answer(key, DialResult::TimedOut));
        }
        let (host, port) = (connection.hosts[1], connection.addresses[1].port());
        let listener = self.listeners.get_mut(&(host, port));
        let result = match listener {
            Some(listener) if !fails && listener.queue.len() < backlog => {
                listener.queue.push_back(key);
                DialResult::Established
            }
            Some(_) | None => DialResult::Refused,
        };
        if result == DialResult::Established
            && let Some(connection) = self.connections.get_mut(&key)
        {
            connection.sides[1].state = SideState::Open;
        }
        self.schedule(later, Entry::Answer(key, result));
    }

    fn dial_answered(&mut self, key: u64, result: DialResult) {
        let timeout = self.options.connect_timeout;
        let Some(connection) = self.connections.get(&key) else {
            return;
        };
        let cut_off = self.is_cut_off(connection);
        let Some(connection) = self.connections.get_mut(&key) else {
            return;
        };
        if connection.sides[0].state != SideState::Dialling {
            return;
        }
        let peer = connection.addresses[1];
        let failure = |errno, message| Some(error(&format!("connect to {peer}"), errno, message));
        let failed = match result {
            DialResult::TimedOut => failure(110, "timed out"),
            _ if cut_off => {
                let at = (connection.dialled_at + timeout).max(self.now);
                return self.schedule(at, Entry::Answer(key, DialResult::TimedOut));
            }
            DialResult::Established => None,
            DialResult::Refused => failure(111, "connection refused"),
        };
        connection.sides[0].interest.due = true;
        connection.sides[0].state = failed.map_or(SideState::Open, SideState::Failed);
    }

    fn reap_unclaimed(&mut self) {
        let mut dropped = Vec::new();
        self.unclaimed.retain(|(key, claim)| {
            let keep = claim.strong_count() > 0;
            if !keep {
                dropped.push(*key);
            }
            keep
        });
        for key in dropped {
            self.leave(key, 1, true);
        }
    }

    fn next_event_at(&self) -> Option<Time> {
        let now = self.now;
        let at_once = self
            .unclaimed
            .iter()
            .any(|(_, claim)| claim.strong_count() == 0)
            || self
                .listeners
                .values()
                .any(|listener| !listener.queue.is_empty());
        if at_once {
            return Some(now);
        }
        let mut at = self.agenda.peek().map(|Reverse((at, _, _))| *at);
        for connection in self.connections.values() {
            let cut_off = self.is_cut_off(connection);
            for side in [0, 1] {
                let ready_at = connection.ready_at(side, cut_off);
                at = at.into_iter().chain(ready_at).min();
            }
            if at.is_some_and(|at| at <= now) {
                return Some(now);
            }
        }
        at
    }
}

impl Connection {
    fn ready_at(&self, side: usize, cut_off: bool) -> Option<Time> {
        let (outgoing, incoming) = (&self.pipes[side], &self.pipes[1 - side]);
        let Side { state, interest } = &self.sides[side];
        if interest.due {
            return Some(Time::ZERO);
        }
        if *state != SideState::Open {
            return None;
        }
        let writable_at = outgoing.writable_at().filter(|_| interest.write);
        let readable_at = if !interest.read {
            incoming.broken_at().filter(|_| !cut_off)
        } else if cut_off {
            (incoming.arrived_bytes() > 0).then_some(incoming.stalled_until)
        } else {
            incoming.readable_at()
        };
        (readable_at
            .into_iter()
            .chain(writable_at)
            .chain(interest.deadline))
        .min()
    }

    fn is_over(&self) -> bool {
        self.sides.iter().all(|side| match side.state {
            SideState::Gone => true,
            SideState::Dialling | SideState::Open | SideState::Failed(_) => false,
        })
    }
}

pub(super) fn error(operation: &str, errno: i32, message: &str) -> TransportError {
    TransportError {
        operation: operation.to_owned(),
        errno,
        message: message.to_owned(),
    }
}

/// First of the ports that are handed out for port 0 and for dials.
const FIRST_FREE_PORT: u16 = 49_152;
