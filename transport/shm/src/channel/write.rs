use std::os::fd::BorrowedFd;

use grpcxx_memory::Buffer;
use grpcxx_transport::{LinkHandler, LinkId, Outcome};

use super::{ARENAS_MAX, Bouncing, Channel, Complete};
use crate::bounce::Bounce;
use crate::garbage::Garbage;
use crate::loans::Access;
use crate::message::Message;
use crate::record::{LOANED_BYTES, Loaned, RECORD_BYTES, Record, RemoteReadable, padded};
use crate::segment::WANTS_BYTES;
use crate::{ShmCounters, sight, socket};

impl Channel {
    /// Writes what is queued, as far as there is room and the turn allows. Adds to the number of
    /// events.
    pub(crate) fn write<A>(
        &mut self,
        link: LinkId,
        handler: &mut dyn LinkHandler<A>,
        bounce: &mut Bounce,
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
            let Some(written) = self.write_record(budget_bytes, bounce, counters)? else {
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

    /// Writes one record, if it has room, or comes a step nearer to it. Returns how many bytes were
    /// dealt with.
    pub(super) fn write_record(
        &mut self,
        budget_bytes: usize,
        bounce: &mut Bounce,
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
        if let Some(payload) = piece.payload().cloned()
            && let Some(written) = self.write_reference(&payload, budget_bytes, bounce, counters)
        {
            return Ok(Some(written));
        }
        let len_max = (room - RECORD_BYTES)
            .min(record_bytes_max(ring_bytes))
            .min(budget_bytes);
        let len = self.gather(len_max);
        if let Some(payload) = self.outbound.piece().and_then(|piece| piece.payload())
            && self.is_worth_bouncing(payload)
        {
            // Before the peer reads what is in front of it, and sleeps.
            self.announce(payload.len());
        }
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

    /// Says where a payload lies, if the peer can take it from there, or comes a step nearer to it.
    /// Returns how many bytes were dealt with; `None` if the payload is to pass through the ring.
    fn write_reference(
        &mut self,
        payload: &Buffer,
        budget_bytes: usize,
        bounce: &mut Bounce,
        counters: &mut ShmCounters,
    ) -> Option<usize> {
        if self.is_worth_lending(payload)
            && let Some(lent) = self.lend(payload)
        {
            self.put_lent(lent, counters);
            return Some(payload.len());
        }
        let bounced = self.write_bounced(payload, budget_bytes, bounce, counters);
        if bounced.is_some() {
            return bounced;
        }
        self.write_shown(payload, counters).then_some(payload.len())
    }

    /// Copies a part of a payload to where it can be lent, and lends it once all of it is there.
    /// Returns how many bytes were copied.
    fn write_bounced(
        &mut self,
        payload: &Buffer,
        budget_bytes: usize,
        bounce: &mut Bounce,
        counters: &mut ShmCounters,
    ) -> Option<usize> {
        let mut bouncing = match self.bouncing.take() {
            Some(bouncing) => bouncing,
            None if self.is_worth_bouncing(payload) => Bouncing {
                memory: bounce.allocate(payload.len())?,
                filled_bytes: 0,
            },
            None => return None,
        };
        let from = bouncing.filled_bytes;
        let to = payload.len().min(from + budget_bytes);
        bouncing.memory[from..to].copy_from_slice(&payload[from..to]);
        if to < payload.len() {
            bouncing.filled_bytes = to;
            self.bouncing = Some(bouncing);
            if self.announce(payload.len() - to) {
                self.knock(WANTS_BYTES, counters);
            }
            return Some(to - from);
        }
        let lent = self.lend(&bouncing.memory.freeze())?;
        counters.bounced_bytes += lent.len;
        self.put_lent(lent, counters);
        Some(to - from)
    }

    /// Lets the peer stay awake if it will not be long until a payload is lent of which
    /// `left_bytes` are to be copied. To wake it takes longer than many a copy.
    fn announce(&self, left_bytes: usize) -> bool {
        let is_soon = left_bytes <= SOON_BYTES_MAX;
        if is_soon {
            self.segment.say_soon(self.side as usize);
        }
        is_soon
    }

    /// Lets the peer copy a payload out of this process, if it can.
    fn write_shown(&mut self, payload: &Buffer, counters: &mut ShmCounters) -> bool {
        if !self.is_worth_showing(payload) || !sight::is_on_huge_pages(payload) {
            return false;
        }
        if !self.sight.is_seen() {
            self.ask_to_look();
            return false;
        }
        let shown = RemoteReadable {
            slot: self.loans.lend(payload.clone(), Access::RemoteReadable) as u32,
            address: payload.as_ptr().addr() as u64,
            len: payload.len() as u64,
        };
        counters.shown_bytes += shown.len;
        self.put_reference(Record::RemoteReadable, &shown.encode());
        self.advance(payload.len());
        self.knock(WANTS_BYTES, counters);
        true
    }

    /// Writes a record that says where the bytes that are next were lent.
    fn put_lent(&mut self, lent: Loaned, counters: &mut ShmCounters) {
        counters.lent_bytes += lent.len;
        self.put_reference(Record::Loaned, &lent.encode());
        self.advance(lent.len as usize);
        self.knock(WANTS_BYTES, counters);
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

    /// Copies pieces behind the place of a record's head, until a long one. Returns how many bytes.
    fn gather(&mut self, len_max: usize) -> usize {
        // Padding fits behind it: rings and room are multiples of it.
        let mut len = 0;
        while len < len_max {
            let Some(piece) = self.outbound.piece() else {
                break;
            };
            // It begins a record, so that the peer has a place for it before it takes the bytes.
            let is_long =
                |payload: &Buffer| payload.len() >= self.lend_bytes_min.min(self.show_bytes_min);
            if len > 0 && piece.payload().is_some_and(is_long) {
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

    fn is_worth_bouncing(&self, payload: &Buffer) -> bool {
        payload.len() >= self.lend_bytes_min
            && self.has_room_to_lend(payload)
            && self.segment.takes(self.side.other() as usize)
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
                self.arenas.len() < LENDING_ARENAS_MAX || self.arenas.contains(&memory.serial)
            })
    }

    /// Keeps a payload for the peer and says where it lies; `None` if it cannot be told of the
    /// arena now.
    fn lend(&mut self, payload: &Buffer) -> Option<Loaned> {
        let memory = payload.shared_memory()?;
        let offset = memory.region.offset_of(payload)?;
        let arena = match self.arenas.iter().position(|&known| known == memory.serial) {
            Some(arena) => arena,
            None => self.introduce(memory.serial, memory.descriptor)?,
        };
        Some(Loaned {
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

/// Arenas of which payloads are lent as they lie there. One more has the copies of others.
const LENDING_ARENAS_MAX: usize = ARENAS_MAX - 1;

/// Room that is worth a record with `len` bytes to come: all of them, or a good part of the ring.
fn wanted_bytes(len: usize, ring_bytes: usize) -> usize {
    (RECORD_BYTES + padded(len))
        .max(RECORD_BYTES + LOANED_BYTES)
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

/// Bytes that are copied in some hundred microseconds.
const SOON_BYTES_MAX: usize = 8 << 20;

/// A link that has had this many events lets others go on.
const EVENTS_ENOUGH: usize = 256;
