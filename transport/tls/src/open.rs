//! From records that came to the bytes that the user of a link sees.

use grpcxx_memory::BufferMut;
use grpcxx_transport::{HEAD_BYTES_MAX, Landing, LinkHandler, LinkId, Next, Progress};

use crate::link::{OpenLink, Staged};
use crate::pool::Pool;
use crate::record::{Fault, HEADER_BYTES, RECORD_BYTES_MAX, bytes_to_come, record_bytes};
use crate::session::Opened;

/// Opens records of one link.
pub(crate) struct Opener<'a, A> {
    pub(crate) id: LinkId,
    pub(crate) link: &'a mut OpenLink,
    pub(crate) over: &'a mut Option<Ending>,
    pub(crate) pool: &'a mut Pool,
    pub(crate) handler: &'a mut dyn LinkHandler<A>,
    /// Events so far of this turn, all links together.
    pub(crate) events: &'a mut usize,
}

/// How a link ends by what its peer sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The peer said that it is done.
    Closed,
    /// The peer broke the rules.
    Broken(Fault),
}

/// Where opening has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The next record is not whole.
    Short,
    /// The user has paused the link, or it is over.
    Held,
    /// The turn has had its share of events.
    TurnFull,
}

impl<A> Opener<'_, A> {
    /// Takes bytes that the base transport shows: opens what is whole in `scratch`.
    pub(crate) fn show(&mut self, bytes: &[u8], scratch: &mut [u8]) -> (Progress, Stop) {
        let mut used = 0;
        let stop = loop {
            let rest = &bytes[used..];
            match self.next_record(rest) {
                Ok(len) => {
                    let record = &mut scratch[..len];
                    record.copy_from_slice(&rest[..len]);
                    used += len;
                    self.open(record);
                }
                Err(stop) => break stop,
            }
        };
        let rest = &bytes[used..];
        let next = match stop {
            Stop::Short => self.order_head(rest),
            Stop::Held | Stop::TurnFull => Next::Pause,
        };
        let progress = Progress {
            // Nobody will ask for what is behind the end.
            consumed_bytes: if self.over.is_some() {
                bytes.len()
            } else {
                used
            },
            next,
        };
        (progress, stop)
    }

    /// Opens what the link has in memory of its own, and says what the base transport shall do.
    pub(crate) fn open_staged(&mut self) -> (Next, Stop) {
        let Some(mut staged) = self.link.staged.take() else {
            let stop = match self.next_record(&[]) {
                Ok(_) | Err(Stop::Short) => Stop::Short,
                Err(stop) => return (Next::Pause, stop),
            };
            return (self.order_head(&[]), stop);
        };
        let stop = loop {
            match self.next_record(&staged.buffer[staged.from..staged.to]) {
                Ok(len) => {
                    let record = &mut staged.buffer[staged.from..][..len];
                    staged.from += len;
                    self.open(record);
                }
                Err(stop) => break stop,
            }
        };
        if stop != Stop::Short {
            self.link.staged = Some(staged);
            return (Next::Pause, stop);
        }
        if staged.from == staged.to {
            self.pool.put_staging(staged.buffer);
            return (self.order_head(&[]), stop);
        }
        (self.order_rest(staged), stop)
    }

    /// Length of the record that `bytes` begin with, if it may be opened now.
    fn next_record(&mut self, bytes: &[u8]) -> Result<usize, Stop> {
        if self.over.is_some() || self.link.inbound.is_paused() {
            return Err(Stop::Held);
        }
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(Stop::Short);
        };
        match record_bytes(header) {
            Ok(len) if len > bytes.len() => Err(Stop::Short),
            Ok(_) if *self.events >= EVENTS_ENOUGH => Err(Stop::TurnFull),
            Ok(len) => Ok(len),
            Err(fault) => {
                *self.over = Some(Ending::Broken(fault));
                Err(Stop::Held)
            }
        }
    }

    fn open(&mut self, record: &mut [u8]) {
        match self.link.session.open(record) {
            Ok(Opened::Data(text)) => {
                let inbound = &mut self.link.inbound;
                *self.events += inbound.offer(self.id, text, self.handler);
            }
            Ok(Opened::Nothing) => {}
            Ok(Opened::Closed) => *self.over = Some(Ending::Closed),
            Err(fault) => *self.over = Some(Ending::Broken(fault)),
        }
    }

    /// What the base transport shall do where it keeps `rest`, the begin of a record.
    fn order_head(&mut self, rest: &[u8]) -> Next {
        let Some(wanted_bytes) = self.wanted_bytes(rest) else {
            return Next::Pause;
        };
        let is_short =
            wanted_bytes <= HEAD_BYTES_MAX || (rest.is_empty() && wanted_bytes < LANDING_BYTES_MIN);
        if is_short {
            let at_least_bytes = wanted_bytes.min(HEAD_BYTES_MAX);
            return Next::Head { at_least_bytes };
        }
        let buffer = self.pool.staging(wanted_bytes);
        let bytes = wanted_bytes.min(buffer.len());
        Next::Land(Landing::new(buffer).part(bytes))
    }

    /// What the base transport shall do where the link keeps the begin of a record itself.
    fn order_rest(&mut self, staged: Staged) -> Next {
        let Staged { buffer, from, to } = staged;
        let Some(wanted_bytes) = self.wanted_bytes(&buffer[from..to]) else {
            self.pool.put_staging(buffer);
            return Next::Pause;
        };
        let begun_bytes = to - from;
        let mut buffer = buffer;
        if wanted_bytes > buffer.len() && buffer.len() <= RECORD_BYTES_MAX {
            let mut longer = self.pool.staging(wanted_bytes);
            longer[..begun_bytes].copy_from_slice(&buffer[from..to]);
            self.pool
                .put_staging(std::mem::replace(&mut buffer, longer));
        } else {
            buffer.copy_within(from..to, 0);
        }
        let bytes = wanted_bytes.min(buffer.len()) - begun_bytes;
        landing_behind(buffer, begun_bytes, bytes)
    }

    /// Bytes of records worth waiting for, those included that are there.
    fn wanted_bytes(&mut self, begun: &[u8]) -> Option<usize> {
        let landing = self.link.inbound.landing();
        let text_bytes = landing.map_or(0, Landing::remaining_bytes);
        match bytes_to_come(text_bytes, begun) {
            Ok(bytes) => Some(begun.len() + bytes),
            Err(fault) => {
                *self.over = Some(Ending::Broken(fault));
                None
            }
        }
    }
}

/// A landing of so many bytes behind those that the memory has already.
fn landing_behind(buffer: BufferMut, begun_bytes: usize, bytes: usize) -> Next {
    let mut landing = Landing::new(buffer);
    landing.advance(begun_bytes);
    Next::Land(landing.part(bytes))
}

/// A turn that has had this many events begins nothing more.
pub(crate) const EVENTS_ENOUGH: usize = 1024;

/// Fewer bytes are read through the memory that all links of the base transport share.
const LANDING_BYTES_MIN: usize = 4096;
