use std::cell::{RefCell, RefMut};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::connection::{Connection, Connections};
use super::dialling::{Entry, Listener};
use super::{SimOptions, SimTransport};
use crate::{Time, TransportError};

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
    pub(super) _claim: Arc<()>,
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
                queued: 0,
                connections: Connections::default(),
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

    /// Stops a host at once: its links break, at the peers a little later, its listeners are gone,
    /// and its transports can do nothing more. Transports made afterwards belong to the restarted
    /// host.
    pub fn crash(&self, host: IpAddr) {
        let mut state = self.state();
        let host = state.host(host);
        state.hosts[host].epoch += 1;
        state.listeners.retain(|(at, _), _| *at != host);
        state.count_queued();
        let ends: Vec<(u64, usize)> = (state.connections.iter())
            .flat_map(|(key, connection)| [0, 1].map(|side| (key, side, connection.hosts[side])))
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
        for connection in state.connections.iter_mut() {
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

    /// Moves the clock, never back, as a turn of any transport does.
    pub fn advance(&self, now: Time) {
        self.state().advance(now);
    }

    /// The earliest time at which a turn of some transport has something to do, if nothing is
    /// submitted until then. `None`: nothing will ever happen by itself.
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
    pub(super) hosts: Vec<Host>,
    pub(super) transports: u32,
    /// By host and port.
    pub(super) listeners: BTreeMap<(usize, u16), Listener>,
    /// Connections that wait at them.
    pub(super) queued: usize,
    pub(super) connections: Connections,
    pub(super) agenda: BinaryHeap<Reverse<(Time, u64, Entry)>>,
    pub(super) agenda_entries: u64,
    /// Pairs of hosts, the smaller index first.
    pub(super) partitions: BTreeSet<(usize, usize)>,
    /// Connections that were handed out and not adopted yet.
    pub(super) unclaimed: Vec<(u64, Weak<()>)>,
}

#[derive(Debug)]
pub(super) struct Host {
    pub(super) address: IpAddr,
    pub(super) epoch: u32,
    pub(super) next_port: u16,
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

    pub(super) fn draw_latency(&mut self) -> Duration {
        let options = &self.options;
        let spread = options.latency_mean.saturating_sub(options.latency_min);
        let ns = self.random.u64(..=2 * spread.as_nanos() as u64);
        options.latency_min + Duration::from_nanos(ns)
    }

    pub(super) fn host(&mut self, address: IpAddr) -> usize {
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

    pub(super) fn pair(&mut self, one: IpAddr, other: IpAddr) -> (usize, usize) {
        let (one, other) = (self.host(one), self.host(other));
        (one.min(other), one.max(other))
    }

    pub(super) fn is_local(&self, host: usize, address: IpAddr) -> bool {
        address.is_unspecified() || address.is_loopback() || address == self.hosts[host].address
    }

    pub(super) fn is_cut_off(&self, connection: &Connection) -> bool {
        let [one, other] = connection.hosts;
        !self.partitions.is_empty() && self.partitions.contains(&(one.min(other), one.max(other)))
    }

    fn next_event_at(&self) -> Option<Time> {
        let now = self.now;
        let at_once = self
            .unclaimed
            .iter()
            .any(|(_, claim)| claim.strong_count() == 0)
            || self.queued > 0;
        if at_once {
            return Some(now);
        }
        let mut at = self.agenda.peek().map(|Reverse((at, _, _))| *at);
        for (_, connection) in self.connections.iter() {
            let ready_at = connection.ready_at(self.is_cut_off(connection));
            at = at.into_iter().chain(ready_at.into_iter().flatten()).min();
            if at.is_some_and(|at| at <= now) {
                return Some(now);
            }
        }
        at
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
pub(super) const FIRST_FREE_PORT: u16 = 49_152;
