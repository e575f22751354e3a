use std::sync::Arc;

use grpcxx_memory::Buffer;
use grpcxx_transport::{Inbound, LinkHandler, LinkId, ReadTarget, TransportError};

use super::{ArenaAccess, Arriving, Channel, KnownArena, Side, Source};
use crate::ShmCounters;
use crate::garbage::Garbage;
use crate::loans::Borrowed;
use crate::record::{Loaned, RECORD_BYTES, Record, RemoteReadable, padded};
use crate::ring::LOANS_MAX;
use crate::segment::{WANTS_LOANS, WANTS_ROOM};

impl Channel {
    /// Reads what is there, as far as the link's orders and the turn allow. Returns the number of
    /// events.
    pub(crate) fn read<A>(
        &mut self,
        link: LinkId,
        staging: &mut [u8],
        handler: &mut dyn LinkHandler<A>,
        counters: &mut ShmCounters,
        events: &mut usize,
    ) -> Result<(), TransportError> {
        let enough = *events + EVENTS_ENOUGH;
        let mut budget_bytes = READ_BYTES_MAX;
        let freed_before = self.reader.read_bytes();
        while budget_bytes > 0 && *events < enough {
            let Some(inbound) = &mut self.inbound else {
                break;
            };
            if std::mem::take(&mut self.resumed) {
                *events += inbound.offer(link, &[], handler);
            }
            if inbound.is_paused() {
                break;
            }
            let arriving = match self.arriving.take() {
                Some(arriving) => arriving,
                None => {
                    let available = self.reader.available()?;
                    if available == 0 {
                        break;
                    }
                    self.expected_until = None;
                    self.begin(available)?
                }
            };
            self.note_landing();
            let (bytes, found) = match arriving {
                Arriving::Bytes { left, padding } => {
                    self.take_bytes(link, left, padding, staging, handler)
                }
                Arriving::Loaned { memory, used } => {
                    self.take_lent(link, memory, used, staging, handler, counters)
                }
                Arriving::Elsewhere {
                    source,
                    at,
                    left,
                    loan,
                } => {
                    let bytes = (source, at, left);
                    self.take_elsewhere(link, bytes, loan, staging, handler, counters)?
                }
            };
            counters.received_bytes += bytes as u64;
            budget_bytes -= bytes.min(budget_bytes);
            *events += found;
        }
        self.free(freed_before, counters);
        Ok(())
    }

    /// Tells the peer whether this end goes on with memory that it is lent, by what waits for
    /// payload.
    fn note_landing(&mut self) {
        let landing = self.inbound.as_ref().and_then(Inbound::landing);
        let Some(landing) = landing.filter(|landing| landing.filled_bytes() == 0) else {
            return;
        };
        let takes = landing.is_replaceable() && self.may_borrow();
        if landing.remaining_bytes() >= self.lend_bytes_min && self.takes != Some(takes) {
            self.takes = Some(takes);
            self.segment.say_takes(self.side as usize, takes);
        }
    }

    /// Whether this end goes on with memory that its peer may still write. Who dials has chosen its
    /// peer and asked for the bytes. Who was dialled keeps what comes, for others too, so it
    /// copies.
    fn may_borrow(&self) -> bool {
        match self.side {
            Side::Dialler => true,
            Side::Acceptor => false,
        }
    }

    /// Drops what is there, so that a peer that closes too does not wait for it to be read.
    pub(crate) fn discard(&mut self, counters: &mut ShmCounters) -> Result<(), TransportError> {
        let freed_before = self.reader.read_bytes();
        let mut dropped = self.arriving.take();
        loop {
            if let Some(Arriving::Bytes { left, padding }) = dropped {
                self.reader.consume(left + padding);
            }
            let available = self.reader.available()?;
            let freed = self.reader.read_bytes() - freed_before;
            if available == 0 || freed > self.segment.ring_bytes() as u64 {
                break;
            }
            dropped = Some(self.begin(available)?);
        }
        if self.reader.read_bytes() > freed_before {
            self.reader.publish();
            self.knock(WANTS_ROOM | WANTS_LOANS, counters);
        }
        Ok(())
    }

    /// Lets the peer have the room of what was read, and wakes it if it may wait for that: who
    /// waits has filled three quarters of the ring, so that a look for each quarter read is enough.
    fn free(&mut self, freed_before: u64, counters: &mut ShmCounters) {
        let freed_bytes = (self.reader.read_bytes() - freed_before) as usize;
        if freed_bytes == 0 {
            return;
        }
        self.reader.publish();
        self.freed_bytes += freed_bytes;
        if self.freed_bytes >= self.segment.ring_bytes() / 4 {
            self.freed_bytes = 0;
            self.knock(WANTS_ROOM, counters);
        }
    }

    /// Reads the head of the next record.
    fn begin(&mut self, available: usize) -> Result<Arriving, TransportError> {
        let mut head = [0; RECORD_BYTES];
        if available < RECORD_BYTES {
            return Err(Garbage {
                what: "length of an incomplete record",
                found: available as u64,
                allowed_max: 0,
            }
            .into());
        }
        self.reader.peek(&mut head);
        match Record::decode(head, available - RECORD_BYTES)? {
            Record::Bytes { len } => {
                self.reader.consume(RECORD_BYTES);
                Ok(Arriving::Bytes {
                    left: len,
                    padding: padded(len) - len,
                })
            }
            Record::Loaned => {
                self.reader.consume(RECORD_BYTES);
                let lent = Loaned::decode(self.reader.take());
                self.borrow(lent)
            }
            Record::RemoteReadable => {
                self.reader.consume(RECORD_BYTES);
                let RemoteReadable { slot, address, len } =
                    RemoteReadable::decode(self.reader.take());
                Garbage::check("slot of a loan", slot.into(), LOANS_MAX as u64 - 1)?;
                let most = i64::MAX as u64;
                Garbage::check("address of a payload", address, most)?;
                Garbage::check("length of a payload", len, most - address)?;
                if len == 0 || self.peer_process.is_none() {
                    return Err(super::broken("memory is shown that cannot be seen"));
                }
                Ok(Arriving::Elsewhere {
                    source: Source::Process,
                    at: address,
                    left: len,
                    loan: self.borrowed(slot),
                })
            }
        }
    }

    /// The memory that a peer has lent. All that the peer says is checked here.
    fn borrow(&mut self, lent: Loaned) -> Result<Arriving, TransportError> {
        let index = lent.arena as usize;
        if index >= self.peer_arenas.len() {
            // Its introduction was sent before the record was written.
            self.hear()?;
        }
        let arenas = self.peer_arenas.len() as u64;
        Garbage::check(
            "index of an arena",
            lent.arena.into(),
            arenas.wrapping_sub(1),
        )?;
        let Some(KnownArena { len_bytes, access }) = self.peer_arenas.get_mut(index) else {
            return Err(super::broken(
                "memory is lent of an arena that is not known",
            ));
        };
        let arena_bytes = *len_bytes as u64;
        Garbage::check("slot of a loan", lent.slot.into(), LOANS_MAX as u64 - 1)?;
        Garbage::check("offset of a loan", lent.offset, arena_bytes)?;
        Garbage::check("length of a loan", lent.len, arena_bytes - lent.offset)?;
        if lent.len == 0 {
            return Err(super::broken("no bytes are lent"));
        }
        match access {
            ArenaAccess::Mapped { leases, borrowed } => {
                let (from, len) = (lent.offset as usize, lent.len as usize);
                let place = from..from + len;
                let memory = leases
                    .borrow(lent.slot, place.clone())
                    .filter(|_| borrowed.note(lent.slot as usize, place))
                    .ok_or_else(|| super::broken("a slot has a loan already"))?;
                Ok(Arriving::Loaned { memory, used: 0 })
            }
            ArenaAccess::Unmapped(file) => Ok(Arriving::Elsewhere {
                source: Source::File(Arc::clone(file)),
                at: lent.offset,
                left: lent.len,
                loan: self.borrowed(lent.slot),
            }),
        }
    }

    /// What gives back what the peer has shown.
    fn borrowed(&self, slot: u32) -> Borrowed {
        Borrowed {
            returns: self.returns(),
            slot: slot as usize,
        }
    }

    /// Moves bytes of the ring to where the link wants them. Returns how many, and the number of
    /// events.
    fn take_bytes<A>(
        &mut self,
        link: LinkId,
        left: usize,
        padding: usize,
        staging: &mut [u8],
        handler: &mut dyn LinkHandler<A>,
    ) -> (usize, usize) {
        let Some(inbound) = &mut self.inbound else {
            return (0, 0);
        };
        let (bytes, events) = match inbound.target() {
            ReadTarget::Paused => (0, 0),
            ReadTarget::Direct(target) => {
                let bytes = left.min(target.len());
                self.reader.peek(&mut target[..bytes]);
                self.reader.consume(bytes);
                (bytes, inbound.landed_direct(link, bytes, handler))
            }
            ReadTarget::Staging => {
                let bytes = left.min(staging.len());
                self.reader.peek(&mut staging[..bytes]);
                self.reader.consume(bytes);
                (bytes, inbound.offer(link, &staging[..bytes], handler))
            }
        };
        if bytes >= PUBLISHED_BYTES {
            self.reader.publish();
        }
        if bytes == left {
            self.reader.consume(padding);
        } else {
            self.arriving = Some(Arriving::Bytes {
                left: left - bytes,
                padding,
            });
        }
        (bytes, events)
    }

    /// Hands lent memory over, or copies out of it. Returns how many bytes were copied, and the
    /// number of events.
    fn take_lent<A>(
        &mut self,
        link: LinkId,
        mut memory: Buffer,
        used: usize,
        staging: &mut [u8],
        handler: &mut dyn LinkHandler<A>,
        counters: &mut ShmCounters,
    ) -> (usize, usize) {
        let may_borrow = self.may_borrow() && memory.len() >= self.lend_bytes_min;
        let Some(inbound) = &mut self.inbound else {
            return (0, 0);
        };
        if used == 0 && may_borrow {
            let len = memory.len();
            match inbound.replace(link, memory, handler) {
                Ok(events) => {
                    counters.borrowed_bytes += len as u64;
                    return (0, events);
                }
                Err(back) => memory = back,
            }
        }
        let rest = &memory[used..];
        let (bytes, events) = match inbound.target() {
            ReadTarget::Paused => (0, 0),
            ReadTarget::Direct(target) => {
                let bytes = rest.len().min(target.len()).min(READ_BYTES_MAX);
                target[..bytes].copy_from_slice(&rest[..bytes]);
                (bytes, inbound.landed_direct(link, bytes, handler))
            }
            ReadTarget::Staging => {
                // Copied before anybody looks at them: the peer may change its mind.
                let bytes = rest.len().min(staging.len());
                staging[..bytes].copy_from_slice(&rest[..bytes]);
                (bytes, inbound.offer(link, &staging[..bytes], handler))
            }
        };
        if bytes < rest.len() {
            let used = used + bytes;
            self.arriving = Some(Arriving::Loaned { memory, used });
        }
        (bytes, events)
    }

    /// Copies memory that is not mapped here. Returns how many bytes, and the number of events.
    fn take_elsewhere<A>(
        &mut self,
        link: LinkId,
        (source, at, left): (Source, u64, u64),
        loan: Borrowed,
        staging: &mut [u8],
        handler: &mut dyn LinkHandler<A>,
        counters: &mut ShmCounters,
    ) -> Result<(usize, usize), TransportError> {
        let Some(inbound) = &mut self.inbound else {
            return Ok((0, 0));
        };
        let read = |into: &mut [u8]| match (&source, &self.peer_process) {
            (Source::File(file), _) => rustix::io::pread(file, into, at)
                .map_err(|errno| super::failure("read an arena of the peer", errno)),
            (Source::Process, Some(peer)) => (peer.read(at, into))
                .map_err(|errno| super::failure("read the memory of the peer's process", errno)),
            (Source::Process, None) => Err(super::broken("memory is shown that cannot be seen")),
        };
        let within = |len: usize| usize::try_from(left).map_or(len, |left| left.min(len));
        let (bytes, events) = match inbound.target() {
            ReadTarget::Paused => (0, 0),
            ReadTarget::Direct(target) => {
                let len = within(target.len().min(READ_BYTES_MAX));
                let bytes = read(&mut target[..len])?;
                (bytes, inbound.landed_direct(link, bytes, handler))
            }
            ReadTarget::Staging => {
                let len = within(staging.len());
                let bytes = read(&mut staging[..len])?;
                (bytes, inbound.offer(link, &staging[..bytes], handler))
            }
        };
        if matches!(source, Source::Process) {
            counters.seen_bytes += bytes as u64;
        }
        if (bytes as u64) < left {
            self.arriving = Some(Arriving::Elsewhere {
                source,
                at: at + bytes as u64,
                left: left - bytes as u64,
                loan,
            });
        } else {
            drop(loan);
            // What it was shown for may wait for the end of the loan.
            self.knock(WANTS_LOANS, counters);
        }
        Ok((bytes, events))
    }
}

/// Reading so many bytes takes long enough for the peer to want their room before the rest is read.
const PUBLISHED_BYTES: usize = 4096;

/// Bytes that one link reads in one turn.
const READ_BYTES_MAX: usize = 1 << 20;

/// A link that has had this many events lets others go on.
const EVENTS_ENOUGH: usize = 256;
