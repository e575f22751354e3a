//! When a link lets its shard sleep, and what its peer has to wake it for.

use std::time::Duration;

use grpcxx_transport::Time;

use super::Channel;
use crate::garbage::Garbage;
use crate::segment::{WANTS_BYTES, WANTS_LOANS, WANTS_ROOM};

impl Channel {
    /// Stays awake for a while if the peer has said that a record follows soon.
    pub(crate) fn note_soon(&mut self, now: Time) {
        let soon = self.segment.soon(self.side.other() as usize);
        if std::mem::replace(&mut self.soon, soon) != soon {
            self.expected_until = Some(now + SOON_TIME_MAX);
        }
        self.expected_until = self.expected_until.filter(|until| now < *until);
    }

    /// Announces a sleep; false if there is work already, or something that only a turn can deal
    /// with. A link that closes takes nothing in.
    pub(crate) fn fall_asleep(&mut self, is_closing: bool) -> bool {
        let mut wants = WANTS_BYTES;
        if !self.outbound.is_empty() {
            wants |= WANTS_ROOM;
        }
        if self.loans.is_showing() {
            wants |= WANTS_LOANS;
        }
        self.segment.fall_asleep(self.side as usize, wants);
        if self.has_work(is_closing).unwrap_or(true) {
            self.wake_up();
            return false;
        }
        true
    }

    /// Ends [`Channel::fall_asleep`].
    pub(crate) fn wake_up(&mut self) {
        self.segment.wake_up(self.side as usize);
    }

    fn has_work(&mut self, is_closing: bool) -> Result<bool, Garbage> {
        if self.has_left() || self.loans.is_showing() && self.writer.has_returned() {
            return Ok(true);
        }
        if !self.outbound.is_empty() && !self.is_held && self.can_write()? {
            return Ok(true);
        }
        if is_closing {
            return Ok(self.reader.available()? > 0 || self.is_abandoned());
        }
        let Some(inbound) = &self.inbound else {
            return Ok(false);
        };
        if self.resumed {
            return Ok(true);
        }
        if inbound.is_paused() {
            return Ok(false);
        }
        Ok(self.arriving.is_some()
            || self.reader.available()? > 0
            || self.reader.end().is_some()
            || self.expected_until.is_some()
            || self.segment.soon(self.side.other() as usize) != self.soon
            || self.peer_gone)
    }
}

/// How long somebody who has said that a record follows soon is waited for. He says it again for
/// each MiB.
const SOON_TIME_MAX: Duration = Duration::from_micros(100);
