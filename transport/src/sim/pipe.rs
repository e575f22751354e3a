use std::collections::VecDeque;
use std::time::Duration;

use crate::Time;

/// One direction of a connection: bytes that were written and not read yet, and when they arrive.
///
/// `arrived_bytes <= data.len() <= capacity_bytes`; `flights` accounts for what has not arrived.
#[derive(Debug)]
pub(super) struct Pipe {
    capacity_bytes: usize,
    data: VecDeque<u8>,
    arrived_bytes: usize,
    flights: VecDeque<Flight>,
    end: Option<(Time, End)>,
    /// When the wire is free for the next byte.
    free_at: Time,
    last_arrival: Time,
    /// The fault of this direction, and how many bytes may pass before it strikes.
    fault: Option<(u64, End)>,
    /// The reader reads nothing before.
    pub(super) stalled_until: Time,
    /// Nobody reads any more; what is written vanishes.
    is_sink: bool,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    arrives_at: Time,
    bytes: usize,
}

/// How a direction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// After the bytes that were written before.
    OfStream,
    /// At once; bytes on their way are lost.
    Broken,
}

impl Pipe {
    pub(super) fn new(capacity_bytes: usize, fault: Option<(u64, End)>) -> Self {
        Self {
            capacity_bytes: capacity_bytes.max(1),
            data: VecDeque::new(),
            arrived_bytes: 0,
            flights: VecDeque::new(),
            end: None,
            free_at: Time::ZERO,
            last_arrival: Time::ZERO,
            fault,
            stalled_until: Time::ZERO,
            is_sink: false,
        }
    }

    /// Bytes that can be written now; none behind the end.
    pub(super) fn room_bytes(&self, now: Time) -> usize {
        match self.writable_at() {
            Some(at) if at <= now => self.capacity_bytes - self.data.len(),
            Some(_) | None => 0,
        }
    }

    /// When there is room, unless that depends on the reader. A sink takes bytes as fast as the
    /// wire does.
    pub(super) fn writable_at(&self) -> Option<Time> {
        if self.end.is_some() || self.data.len() >= self.capacity_bytes {
            return None;
        }
        Some(if self.is_sink {
            self.free_at
        } else {
            Time::ZERO
        })
    }

    /// Adds bytes, of which there must be room for all.
    pub(super) fn write(&mut self, bytes: &[u8]) {
        if !self.is_sink {
            self.data.extend(bytes);
        }
    }

    /// Sends the last `bytes` bytes written on their way. Returns when and how the direction ends
    /// if its fault strikes among them.
    pub(super) fn dispatch(
        &mut self,
        now: Time,
        mut bytes: usize,
        bytes_per_second: u64,
        latency: Duration,
    ) -> Option<(Time, End)> {
        if bytes == 0 {
            return None;
        }
        let wire_ns = (bytes as u128 * 1_000_000_000 / u128::from(bytes_per_second.max(1))) as u64;
        self.free_at = self.free_at.max(now) + Duration::from_nanos(wire_ns.max(1));
        if self.is_sink {
            return None;
        }
        let mut strikes = None;
        if let Some((left, end)) = &mut self.fault {
            if bytes as u64 >= *left {
                bytes = *left as usize;
                strikes = Some(*end);
            } else {
                *left -= bytes as u64;
            }
        }
        let arrives_at = (self.free_at + latency).max(self.last_arrival);
        self.last_arrival = arrives_at;
        let flying: usize = self.flights.iter().map(|flight| flight.bytes).sum();
        self.data.truncate(self.arrived_bytes + flying + bytes);
        if bytes > 0 {
            self.flights.push_back(Flight { arrives_at, bytes });
        }
        let end = strikes?;
        self.fault = None;
        self.end = Some((arrives_at, end));
        self.end
    }

    /// The reader is gone, or wants nothing more: drops what is there and what comes.
    pub(super) fn drain(&mut self) {
        self.data = VecDeque::new();
        self.flights.clear();
        self.arrived_bytes = 0;
        self.is_sink = true;
    }

    /// Ends this direction; the end arrives at `at`, behind all bytes, or in their stead.
    pub(super) fn finish(&mut self, at: Time, end: End) {
        match (&self.end, end) {
            (None, End::OfStream) => self.end = Some((at.max(self.last_arrival), end)),
            (None, End::Broken) | (Some((_, End::OfStream)), End::Broken) => {
                self.end = Some((at, end));
            }
            (Some(_), _) => {}
        }
    }

    /// Lets everything arrive that is due.
    pub(super) fn settle(&mut self, now: Time) {
        while let Some(flight) = self.flights.front() {
            if flight.arrives_at > now {
                break;
            }
            self.arrived_bytes += flight.bytes;
            self.flights.pop_front();
        }
    }

    /// Bytes that can be read now.
    pub(super) fn arrived_bytes(&self) -> usize {
        self.arrived_bytes
    }

    /// Whether nothing can be written any more.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    /// Whether bytes were written that nobody has read.
    pub(super) fn has_bytes(&self) -> bool {
        !self.data.is_empty()
    }

    /// Fills `memory` with arrived bytes, of which there must be as many.
    pub(super) fn read(&mut self, memory: &mut [u8]) {
        let count = memory.len();
        assert!(count <= self.arrived_bytes, "a read of bytes not there yet");
        let (front, back) = self.data.as_slices();
        let first = count.min(front.len());
        memory[..first].copy_from_slice(&front[..first]);
        memory[first..].copy_from_slice(&back[..count - first]);
        self.data.drain(..count);
        self.arrived_bytes -= count;
    }

    /// The end, if the reader has come to it.
    pub(super) fn end_reached(&self, now: Time) -> Option<End> {
        let (at, end) = self.end?;
        let reached = at <= now && (end == End::Broken || self.data.is_empty());
        reached.then_some(end)
    }

    /// When a reader that wants bytes has something to do next: bytes or an end.
    pub(super) fn readable_at(&self) -> Option<Time> {
        let bytes_at = if self.arrived_bytes > 0 {
            Some(Time::ZERO)
        } else {
            self.flights.front().map(|flight| flight.arrives_at)
        };
        let at = bytes_at
            .or(self.end.map(|(at, _)| at))?
            .max(self.stalled_until);
        Some(self.broken_at().map_or(at, |broken| at.min(broken)))
    }

    /// When the direction breaks, which a reader notices even if it wants nothing.
    pub(super) fn broken_at(&self) -> Option<Time> {
        match self.end {
            Some((at, End::Broken)) => Some(at),
            _ => None,
        }
    }
}
