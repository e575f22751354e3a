use std::os::fd::BorrowedFd;

use grpcxx_memory::Buffer;
use grpcxx_transport::{LinkHandler, LinkId, Outcome};

use super::{ARENAS_MAX, Channel, Complete};
use crate::garbage::Garbage;
use crate::loans::Access;
use crate::message::Message;
use crate::record::{LENT_BYTES, Lent, RECORD_BYTES, Record, Shown, padded};
use crate::segment::WANTS_BYTES;
use crate::{ShmCounters, sight, socket};

impl Channel {
    /// Writes what is queued, as far as there is room and the turn allows. Adds to the number of events.
    pub(crate) fn write<A>(
        &mut self,
        link: LinkId,
        handler: &mut dyn LinkHandler<A>,
        counters: &mut ShmCounters,
        events: &mut usize,
    ) -> Result<(), Garbage> {
        self.loans.take_back(&self.writer);
        if self.is_held {
            return Ok(());
        }
        let enough = *events + EVENTS_ENOUGH;
        let mut budget_bytes = WRITE_BYTES_MAX;
        self.report_sent(link, handler, events);
        while !self.outbound.is_empty() && budget_bytes > 0 && *events < enough {
            let Some(written) = self.write_record(budget_bytes, counters)? else {
                break;
            };
            budget_bytes -= written.min(budget_bytes);
            self.report_sent(link, handler, events);
        }
        Ok(())
    }

    fn report_sent<A>(
        &mut self,
        link: LinkId,
        handler: &mut dyn LinkHandler<A>,
        events: &mut usize,
    ) {
        while self.has_left()
            && let Some(Complete { frame, .. }) = self.complete.pop_front()
        {
            handler.sent(link, frame, Outcome::Done);
            *events += 1;
        }
    }

    /// Whether the next record has room.
    pub(super) fn can_write(&mut self) -> Result<bool, Garbage> {
        let Some(piece) = self.outbound.piece() else {
            return Ok(true);
        };
        let wanted = wanted_bytes(piece.bytes.len(), self.segment.ring_bytes());
        Ok(self.writer.room(wanted)? >= wanted)
    }

    /// Writes one record, if it has room. Returns how many bytes of frames left with it.
    pub(super) fn write_record(
        &mut self,
        budget_bytes: usize,
        counters: &mut ShmCounters,
    ) -> Result<Option<usize>, Garbage> {
        let Some(piece) = self.outbound.piece() else {
            // Nothing but empty frames is left.
            self.advance(0);
            return Ok(Some(0));
        };
        let ring_bytes = self.segment.ring_bytes();
        let wanted = wanted_bytes(piece.bytes.len(), ring_bytes);
        let room = self.writer.room(wanted)?;
        if room < wanted {
            return Ok(None);
        }
        let payload = piece.payload.cloned();
        if let Some(payload) = payload
            && self.write_reference(&payload, counters)
        {
            self.advance(payload.len());
            self.knock(WANTS_BYTES, counters);
            return Ok(Some(payload.len()));
        }
        let len_max = (room - RECORD_BYTES)
            .min(record_bytes_max(ring_bytes))
            .min(budget_bytes);
        let len = self.gather(len_max);
        self.writer.put(0, &Record::Bytes { len }.encode());
        self.writer.publish(RECORD_BYTES + padded(len));
        counters.copied_bytes += len as u64;
        self.knock(WANTS_BYTES, counters);
        Ok(Some(len))
    }

    /// Notes that bytes of frames are in the ring, or shown.
    fn advance(&mut self, bytes: usize) {
        let shown = self.loans.shown();
        self.outbound.advance(bytes, |frame| {
            self.complete.push_back(Complete { frame, shown });
        });
    }

    /// Says where a payload lies, if the peer can take it from there.
    fn write_reference(&mut self, payload: &Buffer, counters: &mut ShmCounters) -> bool {
        if self.is_worth_lending(payload)
            && let Some(lent) = self.lend(payload)
        {
            self.put_reference(Record::Lent, &lent.encode());
            counters.lent_bytes += payload.len() as u64;
            return true;
        }
        if !self.is_worth_showing(payload) || !sight::is_on_huge_pages(payload) {
            return false;
        }
        if !self.sight.is_seen() {
            self.ask_to_look();
            return false;
        }
        let shown = Shown {
            slot: self.loans.lend(payload.clone(), Access::Shown) as u32,
            address: payload.as_ptr().addr() as u64,
            len: payload.len() as u64,
        };
        self.put_reference(Record::Shown, &shown.encode());
        counters.shown_bytes += payload.len() as u64;
        true
    }

    /// Writes a record that says where bytes lie.
    fn put_reference(&mut self, record: Record, place: &[u8]) {
        self.writer.put(0, &record.encode());
        self.writer.put(RECORD_BYTES, place);
        self.writer.publish(RECORD_BYTES + place.len());
    }

    /// Asks the peer whether it can read the memory of this process.
    fn ask_to_look(&mut self) {
        let mark = sight::draw_mark();
        let address = self.sight.show(mark);
        // Who does not hear of it does not answer.
        let _ = self.tell(&Message::Look { address, mark });
    }

    /// Copies pieces behind the place of a record's head, until one that the peer may take. Returns how many bytes.
    fn gather(&mut self, len_max: usize) -> usize {
        // Padding fits behind it: rings and room are multiples of it.
        let mut len = 0;
        while len < len_max {
            let Some(piece) = self.outbound.piece() else {
                break;
            };
            let is_taken =
                |payload| self.is_worth_lending(payload) || self.is_worth_showing(payload);
            if len > 0 && piece.payload.is_some_and(is_taken) {
                break;
            }
            let taken = piece.bytes.len().min(len_max - len);
            self.writer.put(RECORD_BYTES + len, &piece.bytes[..taken]);
            len += taken;
            self.advance(taken);
        }
        len
    }

    fn is_worth_showing(&self, payload: &Buffer) -> bool {
        payload.len() >= self.show_bytes_min
            && self.sight.may_be_seen()
            && self.has_room_to_lend(payload)
    }

    fn has_room_to_lend(&self, payload: &Buffer) -> bool {
        self.loans.has_room()
            && payload.len() <= self.lent_bytes_max.saturating_sub(self.loans.bytes())
    }

    fn is_worth_lending(&self, payload: &Buffer) -> bool {
        payload.len() >= self.lend_bytes_min
            && payload.is_arena()
            && self.has_room_to_lend(payload)
            && payload.shared_memory().is_some_and(|memory| {
                self.arenas.len() < ARENAS_MAX || self.arenas.contains(&memory.serial)
            })
    }

    /// Keeps a payload for the peer and says where it lies; `None` if it cannot be told of the arena now.
    fn lend(&mut self, payload: &Buffer) -> Option<Lent> {
        let memory = payload.shared_memory()?;
        let offset = memory.region.offset_of(payload)?;
        let arena = match self.arenas.iter().position(|&known| known == memory.serial) {
            Some(arena) => arena,
            None => self.introduce(memory.serial, memory.descriptor)?,
        };
        Some(Lent {
            arena: arena as u32,
            slot: self.loans.lend(payload.clone(), Access::Mapped) as u32,
            offset: offset as u64,
            len: payload.len() as u64,
        })
    }

    fn introduce(&mut self, serial: u64, descriptor: BorrowedFd<'_>) -> Option<usize> {
        let message = Message::Arena.encode();
        socket::send(&*self.socket, &message, Some(descriptor)).ok()?;
        self.arenas.push(serial);
        Some(self.arenas.len() - 1)
    }
}

/// Room that is worth a record with `len` bytes to come: all of them, or a good part of the ring.
fn wanted_bytes(len: usize, ring_bytes: usize) -> usize {
    (RECORD_BYTES + padded(len))
        .max(RECORD_BYTES + LENT_BYTES)
        .min(ring_bytes / 4)
}

/// Longest record: the reader goes on with one while the writer fills the next ones.
fn record_bytes_max(ring_bytes: usize) -> usize {
    (ring_bytes / 4).min(RECORD_BYTES_MAX) - RECORD_BYTES
}

/// Longest record in a long ring.
const RECORD_BYTES_MAX: usize = 64 << 10;

/// Bytes that one link writes in one turn.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// A link that has had this many events lets others go on.
const EVENTS_ENOUGH: usize = 256;
