use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use super::SimAccepted;
use super::connection::{Connection, Interest, Side, SideState};
use super::network::{FIRST_FREE_PORT, State, error};
use super::pipe::{End, Pipe};
use crate::{ListenerId, Time, TransportError};

#[derive(Debug)]
pub(super) struct Listener {
    pub(super) owner: u32,
    pub(super) id: ListenerId,
    pub(super) queue: VecDeque<u64>,
}

/// A step of a dial, for the connection with this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Entry {
    Arrive(u64),
    Answer(u64, DialResult),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DialResult {
    Established,
    Refused,
    TimedOut,
}

impl State {
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
        self.count_queued();
        for key in refused {
            self.leave(key, 1, true);
        }
    }

    /// Counts again how many connections wait at listeners, some of which are gone.
    pub(super) fn count_queued(&mut self) {
        let queued = self.listeners.values().map(|listener| listener.queue.len());
        self.queued = queued.sum();
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
        let key = self.connections.add(Connection {
            hosts: [host, target],
            addresses: [local, peer],
            dialled_at: self.now,
            pipes,
            sides: [SideState::Dialling, SideState::Gone].map(|state| Side {
                state,
                interest: Interest::default(),
            }),
            ready_at: Cell::new(None),
        });
        let at = self.now + self.draw_latency();
        self.schedule(at, Entry::Arrive(key));
        key
    }

    /// The next connection that waits at a listener of `owner`.
    pub(super) fn accept(&mut self, owner: u32) -> Option<(ListenerId, SocketAddr, SimAccepted)> {
        if self.queued == 0 {
            return None;
        }
        let listener = self
            .listeners
            .values_mut()
            .find(|listener| listener.owner == owner && !listener.queue.is_empty())?;
        let id = listener.id;
        let connection = listener.queue.pop_front()?;
        self.queued -= 1;
        let claim = Arc::new(());
        self.unclaimed.push((connection, Arc::downgrade(&claim)));
        let peer = self.connections.get(connection)?.addresses[0];
        let accepted = SimAccepted {
            connection,
            _claim: claim,
        };
        Some((id, peer, accepted))
    }

    /// Whether a connection waits at a listener of `owner`.
    pub(super) fn has_accepted(&self, owner: u32) -> bool {
        let waits = |listener: &Listener| listener.owner == owner && !listener.queue.is_empty();
        self.queued > 0 && self.listeners.values().any(waits)
    }

    pub(super) fn claim(&mut self, host: usize, key: u64) -> Result<(), TransportError> {
        self.unclaimed.retain(|(unclaimed, _)| *unclaimed != key);
        if let Some(connection) = self.connections.get(key)
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

    pub(super) fn dial_arrives(&mut self, key: u64) {
        let later = self.now + self.draw_latency();
        let fails = self.random.f64() < self.options.connect_failure_chance;
        let backlog = self.options.backlog;
        let Some(connection) = self.connections.get(key) else {
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
                self.queued += 1;
                DialResult::Established
            }
            Some(_) | None => DialResult::Refused,
        };
        if result == DialResult::Established
            && let Some(connection) = self.connections.get_mut(key)
        {
            connection.sides[1].state = SideState::Open;
        }
        self.schedule(later, Entry::Answer(key, result));
    }

    pub(super) fn dial_answered(&mut self, key: u64, result: DialResult) {
        let timeout = self.options.connect_timeout;
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        let cut_off = self.is_cut_off(connection);
        let Some(connection) = self.connections.get_mut(key) else {
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

    pub(super) fn reap_unclaimed(&mut self) {
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

    fn schedule(&mut self, at: Time, entry: Entry) {
        self.agenda_entries += 1;
        self.agenda.push(Reverse((at, self.agenda_entries, entry)));
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

    fn draw_fault(&mut self) -> Option<(u64, End)> {
        let at = self.random.u64(..=self.options.fault_bytes_max);
        let chance = self.random.f64();
        if chance < self.options.cut_chance {
            return Some((at, End::Broken));
        }
        let half_close = chance < self.options.cut_chance + self.options.half_close_chance;
        half_close.then_some((at, End::OfStream))
    }
}
