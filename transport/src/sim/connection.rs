use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use super::network::{State, error};
use super::pipe::{End, Pipe};
use crate::{Time, TransportError};

/// A connection; side 0 dialled. `pipes[side]` is written by that side.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) hosts: [usize; 2],
    pub(super) addresses: [SocketAddr; 2],
    pub(super) dialled_at: Time,
    pub(super) pipes: [Pipe; 2],
    pub(super) sides: [Side; 2],
    /// When each side has something to do, cut off or not, if that was asked since the last change.
    pub(super) ready_at: Cell<Option<(bool, [Option<Time>; 2])>>,
}

/// The connections that are there. Their keys count up.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// By key; one that is gone leaves its place empty.
    places: Vec<Option<Box<Connection>>>,
    count: usize,
}

impl Connections {
    /// Returns its key.
    pub(super) fn add(&mut self, connection: Connection) -> u64 {
        self.places.push(Some(Box::new(connection)));
        self.count += 1;
        self.places.len() as u64 - 1
    }

    pub(super) fn remove(&mut self, key: u64) {
        let place = self.places.get_mut(key as usize);
        self.count -= usize::from(place.and_then(Option::take).is_some());
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn get(&self, key: u64) -> Option<&Connection> {
        self.places.get(key as usize)?.as_deref()
    }

    /// For a change of it.
    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut Connection> {
        let connection = self.places.get_mut(key as usize)?.as_deref_mut()?;
        connection.ready_at.set(None);
        Some(connection)
    }

    /// In the order of their keys.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &Connection)> {
        let places = (0..).zip(&self.places);
        places.filter_map(|(key, place)| Some((key, place.as_deref()?)))
    }

    /// For a change of all.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Connection> {
        (self.places.iter_mut().flatten()).map(|connection| {
            connection.ready_at.set(None);
            &mut **connection
        })
    }
}

#[derive(Debug)]
pub(super) struct Side {
    pub(super) state: SideState,
    pub(super) interest: Interest,
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

impl Connection {
    /// When each side has something to do, if ever.
    pub(super) fn ready_at(&self, cut_off: bool) -> [Option<Time>; 2] {
        let known = self.ready_at.get().filter(|&(when, _)| when == cut_off);
        let find = || (cut_off, [0, 1].map(|side| self.find_ready(side, cut_off)));
        let known = known.unwrap_or_else(find);
        self.ready_at.set(Some(known));
        known.1
    }

    fn find_ready(&self, side: usize, cut_off: bool) -> Option<Time> {
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

impl State {
    pub(super) fn side_state(&self, key: u64, side: usize) -> &SideState {
        match self.connections.get(key) {
            Some(connection) => &connection.sides[side].state,
            None => &SideState::Gone,
        }
    }

    /// Whether a link has something to do now.
    pub(super) fn is_ready(&self, key: u64, side: usize) -> bool {
        self.ready_at(key, side).is_some_and(|at| at <= self.now)
    }

    /// When a link has something to do, if ever.
    pub(super) fn ready_at(&self, key: u64, side: usize) -> Option<Time> {
        match self.connections.get(key) {
            Some(connection) => connection.ready_at(self.is_cut_off(connection))[side],
            None => Some(self.now),
        }
    }

    pub(super) fn set_interest(&mut self, key: u64, side: usize, interest: Interest) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.sides[side].interest = interest;
        }
    }

    pub(super) fn set_due(&mut self, key: u64, side: usize) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.sides[side].interest.due = true;
        }
    }

    /// The pipe that `side` writes.
    pub(super) fn outgoing(&mut self, key: u64, side: usize) -> Option<&mut Pipe> {
        Some(&mut self.connections.get_mut(key)?.pipes[side])
    }

    /// Sends the `bytes` bytes that `side` has just written on their way.
    pub(super) fn dispatch(&mut self, key: u64, side: usize, bytes: usize) {
        let (now, latency) = (self.now, self.draw_latency());
        let bytes_per_second = self.options.bytes_per_second;
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if bytes > 0 && connection.sides[1 - side].state == SideState::Gone {
            // The peer has closed, so its host answers with a reset. Until then nothing more
            // leaves.
            connection.pipes[1 - side].finish(now + latency, End::Broken);
            connection.pipes[side].finish(now, End::OfStream);
        }
        let struck = connection.pipes[side].dispatch(now, bytes, bytes_per_second, latency);
        if let Some((at, End::Broken)) = struck {
            connection.pipes[1 - side].finish(at, End::Broken);
        }
    }

    /// Reads what `side` may read now into `memory`, as much as chance wants, and says how much
    /// that was.
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
        let Some(connection) = self.connections.get(key) else {
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
        let cut_off = self.is_cut_off(self.connections.get(key)?);
        let pipe = &mut self.connections.get_mut(key)?.pipes[1 - side];
        if !cut_off {
            pipe.settle(now);
        }
        Some(pipe)
    }

    /// One end lets go of the connection. If it does so with bytes unread, or to come, the peer
    /// gets a reset.
    pub(super) fn leave(&mut self, key: u64, side: usize, graceful: bool) {
        let at = self.now + self.draw_latency();
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        connection.sides[side].state = SideState::Gone;
        connection.sides[side].interest = Interest::default();
        let unread = connection.pipes[1 - side].has_bytes();
        // What the peer cannot send any more will not find anybody; it need not be reading to learn
        // that.
        let is_cut_short = connection.pipes[1 - side].has_ended();
        let end = if graceful && !unread && !is_cut_short {
            End::OfStream
        } else {
            End::Broken
        };
        connection.pipes[side].finish(at, end);
        connection.pipes[1 - side].drain();
        if connection.is_over() {
            self.connections.remove(key);
        }
    }

    /// Breaks a connection: at once for `side`, a little later for its peer.
    pub(super) fn sever(&mut self, key: u64, side: usize) {
        let later = self.now + self.draw_latency();
        if let Some(connection) = self.connections.get_mut(key) {
            connection.pipes[side].finish(later, End::Broken);
            connection.sides[side].state =
                SideState::Failed(error("use a link", 104, "connection reset by peer"));
            connection.sides[side].interest.due = true;
        }
    }

    /// Ends the stream that `side` writes, though it goes on reading.
    pub(super) fn half_close(&mut self, key: u64, side: usize) {
        let later = self.now + self.draw_latency();
        if let Some(connection) = self.connections.get_mut(key) {
            connection.pipes[side].finish(later, End::OfStream);
            if connection.sides[1 - side].state == SideState::Gone {
                connection.pipes[1 - side].finish(later, End::Broken);
            }
        }
    }

    /// Lets `side` read nothing before a time.
    pub(super) fn stall(&mut self, key: u64, side: usize, until: Time) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.pipes[1 - side].stalled_until = until;
        }
    }
}
