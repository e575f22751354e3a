//! One link in shared memory: its life around its channel.

use std::time::Duration;

use grpcxx_transport::{
    CloseReason, LinkHandler, LinkId, Next, Reading, Refusal, Refused, Time, TransportError,
};

use crate::ShmCounters;
use crate::bounce::Bounce;
use crate::channel::{Channel, Ending};

/// A link in shared memory.
#[derive(Debug)]
pub struct Link {
    pub(crate) phase: Phase,
    /// None if the dial failed.
    pub(crate) channel: Option<Channel>,
}

/// The life of a link. `Ended` is followed by its removal.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The dial was answered, and nobody was told.
    Dialled,
    Open,
    /// Accepted frames leave; nothing is read.
    Flushing {
        /// When patience ends; set in the turn after the close.
        until: Option<Time>,
    },
    Ended(CloseReason),
}

impl Link {
    pub(crate) fn queued_frames(&self) -> usize {
        self.channel.as_ref().map_or(0, Channel::queued_frames)
    }

    /// Does what the state asks for. Returns the number of events.
    pub(crate) fn advance<A>(
        &mut self,
        id: LinkId,
        now: Time,
        staging: &mut [u8],
        handler: &mut dyn LinkHandler<A>,
        bounce: &mut Bounce,
        counters: &mut ShmCounters,
    ) -> usize {
        let Some(channel) = &mut self.channel else {
            return 0;
        };
        let mut events = 0;
        if let Phase::Dialled = self.phase {
            channel.open(handler.connected(id));
            self.phase = Phase::Open;
            events += 1;
        }
        let done = match &mut self.phase {
            Phase::Dialled | Phase::Ended(_) => return events,
            Phase::Open => {
                channel.note_soon(now);
                exchange(channel, id, staging, handler, bounce, counters, &mut events)
            }
            Phase::Flushing { until } => {
                let until = *until.get_or_insert(now + FLUSH_TIME_MAX);
                let written = channel.discard(counters).and_then(|()| {
                    channel
                        .write(id, handler, bounce, counters, &mut events)
                        .map_err(Into::into)
                });
                if channel.queued_frames() == 0 || now >= until || channel.is_abandoned() {
                    self.phase.end(CloseReason::Local);
                }
                written
            }
        };
        match done {
            Err(error) => self.phase.end(CloseReason::Failed(error)),
            Ok(()) if matches!(self.phase, Phase::Open) => match channel.ending() {
                Ok(Ending::None) => {}
                Ok(Ending::Over(reason)) => self.phase.end(reason),
                Err(garbage) => self.phase.end(CloseReason::Failed(garbage.into())),
            },
            Ok(()) => {}
        }
        events
    }

    /// Takes the peer's messages. Returns whether there may be more of them.
    pub(crate) fn hear(&mut self) -> bool {
        let Some(channel) = &mut self.channel else {
            return false;
        };
        if let Err(error) = channel.hear() {
            self.phase.end(CloseReason::Failed(error));
        }
        channel.has_unheard()
    }

    /// Where the peer's stream goes on here, if it has said so.
    pub(crate) fn cut(&self) -> Option<u64> {
        self.channel.as_ref()?.cut()
    }

    /// Ends a pause.
    pub(crate) fn resume(&mut self, next: Next) -> Result<(), Refused<Next>> {
        let (value, refusal) = match (&self.phase, &mut self.channel) {
            (Phase::Open, Some(channel)) => match channel.resume(next) {
                Ok(()) => return Ok(()),
                Err(next) => (next, Refusal::WrongState),
            },
            _ => (next, Refusal::NotOpen),
        };
        Err(Refused { value, refusal })
    }

    /// How far reading has come, if the link reads.
    pub(crate) fn reading(&self) -> Option<Reading> {
        let channel = (self.channel.as_ref()).filter(|_| matches!(self.phase, Phase::Open))?;
        channel.reading()
    }

    /// Closes the link, unless that has happened before.
    pub(crate) fn close(&mut self, flush: bool) {
        match self.phase {
            Phase::Open if flush => self.phase = Phase::Flushing { until: None },
            Phase::Open | Phase::Dialled => self.phase = Phase::Ended(CloseReason::Local),
            Phase::Flushing { .. } | Phase::Ended(_) => {}
        }
    }

    /// Announces sleep; false if there is work.
    pub(crate) fn fall_asleep(&mut self) -> bool {
        match (&self.phase, &mut self.channel) {
            // Flushing is not finished before there is room or patience ends.
            (Phase::Open, Some(channel)) => channel.fall_asleep(false),
            (Phase::Flushing { until: Some(_) }, Some(channel)) => channel.fall_asleep(true),
            _ => false,
        }
    }

    /// Ends [`Link::fall_asleep`].
    pub(crate) fn wake_up(&mut self) {
        if let Some(channel) = &mut self.channel {
            channel.wake_up();
        }
    }
}

impl Phase {
    /// Ends the link, unless that has happened already.
    pub(crate) fn end(&mut self, reason: CloseReason) {
        if !matches!(self, Self::Ended(_)) {
            *self = Self::Ended(reason);
        }
    }
}

/// Reads and writes what there is.
fn exchange<A>(
    channel: &mut Channel,
    id: LinkId,
    staging: &mut [u8],
    handler: &mut dyn LinkHandler<A>,
    bounce: &mut Bounce,
    counters: &mut ShmCounters,
    events: &mut usize,
) -> Result<(), TransportError> {
    channel.read(id, staging, handler, counters, events)?;
    channel.write(id, handler, bounce, counters, events)?;
    Ok(())
}

/// How long a link that closes may take to get its frames to where the peer finds them.
const FLUSH_TIME_MAX: Duration = Duration::from_secs(2);
