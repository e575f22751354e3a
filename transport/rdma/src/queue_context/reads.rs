//! Reads of what the peer has offered: each of one stretch, into one place, in chunks that are
//! requests.

use grpcxx_transport::{Inbound, Landing, ReadTarget};

use super::{Kind, QueueContext};
use crate::adapter::{Queue, Work};
use crate::wire::Offer;

/// What a read goes into.
#[derive(Debug)]
pub(crate) enum Target {
    /// The landing of a link's receiving half, which goes with it: nothing else is read meanwhile.
    Inbound(Inbound),
    /// A landing behind which the link goes on.
    Landing(Landing),
    /// Staging memory, for the receiving half.
    Staging(Inbound),
}

/// A read of one stretch of an offer into one place, in chunks.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) into: Target,
    ends_offer: bool,
    offer: Offer,
    target: usize,
    key: u32,
    len_bytes: usize,
    chunk_bytes: usize,
    queued_bytes: usize,
    pub(super) outstanding: usize,
}

/// A read that is over.
#[derive(Debug)]
pub(crate) struct Read {
    /// Staged bytes are [`QueueContext::staged`].
    pub(crate) into: Target,
    pub(crate) len_bytes: usize,
    /// Whether it was the last of its offer.
    pub(crate) ends_offer: bool,
}

impl<Q: Queue> QueueContext<Q> {
    /// Begins to read `len_bytes` of `offer` straight into a landing.
    ///
    /// # Panics
    /// If there is no landing, it wants less, or a read has the receiving half.
    pub(crate) fn read_direct(
        &mut self,
        mut into: Target,
        offer: Offer,
        len_bytes: usize,
        key: u32,
        chunk_bytes: usize,
    ) {
        let target = match &mut into {
            Target::Inbound(inbound) => match inbound.target() {
                ReadTarget::Direct(target) => target,
                ReadTarget::Staging | ReadTarget::Paused => panic!("a direct read needs a landing"),
            },
            Target::Landing(landing) => landing.unfilled(),
            Target::Staging(_) => panic!("a direct read needs a landing"),
        };
        assert!(
            len_bytes <= target.len(),
            "a landing wants what is read into it"
        );
        let target = target.as_mut_ptr().expose_provenance();
        self.read(Reading {
            into,
            ends_offer: len_bytes as u64 == offer.len_bytes,
            offer,
            target,
            key,
            len_bytes,
            chunk_bytes,
            queued_bytes: 0,
            outstanding: 0,
        });
    }

    /// Begins to read the first bytes of `offer` into staging memory, as many as fit, and returns
    /// their number.
    ///
    /// # Panics
    /// If a read has the receiving half.
    pub(crate) fn read_staged(&mut self, inbound: Inbound, offer: Offer) -> usize {
        let len_bytes = usize::try_from(offer.len_bytes)
            .unwrap_or(usize::MAX)
            .min(self.memory.layout.staging_bytes);
        self.read(Reading {
            into: Target::Staging(inbound),
            ends_offer: len_bytes as u64 == offer.len_bytes,
            offer,
            target: self.memory.staging().expose_provenance(),
            key: self.memory.key,
            len_bytes,
            chunk_bytes: len_bytes,
            queued_bytes: 0,
            outstanding: 0,
        });
        len_bytes
    }

    /// Keeps a landing that is full back until the reads before it are over.
    pub(crate) fn hold_back(&mut self, landing: Landing) {
        self.read(Reading {
            into: Target::Landing(landing),
            ends_offer: false,
            offer: Offer {
                address: 0,
                len_bytes: 0,
                key: 0,
            },
            target: 0,
            key: 0,
            len_bytes: 0,
            chunk_bytes: 0,
            queued_bytes: 0,
            outstanding: 0,
        });
    }

    /// Reads that are not over.
    pub(crate) fn reading_count(&self) -> usize {
        self.readings.len()
    }

    /// Bytes of reads that are not over.
    pub(crate) fn reading_bytes(&self) -> usize {
        self.readings.iter().map(|reading| reading.len_bytes).sum()
    }

    /// Takes the oldest read, if it is over.
    pub(crate) fn finished_read(&mut self) -> Option<Read> {
        self.readings.front().filter(|reading| {
            reading.outstanding == 0 && reading.queued_bytes == reading.len_bytes
        })?;
        let reading = self.readings.pop_front()?;
        Some(Read {
            into: reading.into,
            len_bytes: reading.len_bytes,
            ends_offer: reading.ends_offer,
        })
    }

    fn read(&mut self, reading: Reading) {
        assert!(
            (self.readings.back()).is_none_or(|last| matches!(last.into, Target::Landing(_))),
            "a link goes on only behind landings that let it"
        );
        self.readings.push_back(reading);
    }

    /// Turns as much of the reads into requests as may be on its way.
    pub(super) fn queue_reads(&mut self) {
        while self.reads_outstanding < self.reads_max && self.posted.len() < self.depth {
            let mut readings = self.readings.iter_mut();
            let Some(reading) = readings.find(|reading| reading.queued_bytes < reading.len_bytes)
            else {
                return;
            };
            let left = reading.len_bytes - reading.queued_bytes;
            let len_bytes = left.min(reading.chunk_bytes);
            let work = Work::Read {
                address: reading.target + reading.queued_bytes,
                len_bytes: len_bytes as u32,
                key: reading.key,
                remote_address: reading.offer.address + reading.queued_bytes as u64,
                remote_key: reading.offer.key,
            };
            reading.queued_bytes += len_bytes;
            reading.outstanding += 1;
            self.reads_outstanding += 1;
            self.request(Kind::Read, work, true);
        }
    }
}
