//! Links that begin on one transport and migrate to another medium, between two frames of their
//! stream.
//!
//! A stream is cut in each direction by itself. Its sender says where, in a record behind a frame
//! or as a number of bytes, and sends what follows over the medium; its receiver reads the medium
//! once it is done with all bytes before the cut. Nothing is sent twice, and whoever uses the link
//! notices nothing. The link of the base transport stays, without a byte, until the link ends.
//!
//! [`Migrating`] is this flow. How two ends agree, and what carries the bytes then, is a
//! [`Medium`].

mod link;
mod medium;
mod park;
mod registry;
mod tap;

pub use link::MigratingLink;
pub use medium::{Medium, MediumKind};
pub use registry::LinkRegistry;

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use self::link::{Closing, Question, Stage};
use self::tap::BaseTap;
use crate::{
    CloseReason, Ends, Frame, LinkHandler, LinkId, Next, Outcome, Park, Reading, Refusal, Refused,
    Time, Transport, TransportError, forward_transport,
};

/// A transport whose links begin on `T` and migrate to `M` where both ends can.
pub struct Migrating<T, M: Medium> {
    base: T,
    medium: Option<M>,
    registry: LinkRegistry<M>,
    /// When the medium had an event.
    stirred: Option<Time>,
    turns_without_base: u32,
}

impl<T: Park, M: Medium> Migrating<T, M> {
    /// A transport that has no links yet. They stay on `base` until [`Migrating::enable`].
    pub fn new(base: T) -> Self {
        Self {
            base,
            medium: None,
            registry: LinkRegistry::new(),
            stirred: None,
            turns_without_base: 0,
        }
    }

    /// Lets links migrate from now on.
    ///
    /// # Errors
    /// The system refused to watch the medium. Links stay where they are.
    pub fn enable(&mut self, medium: M) -> Result<(), TransportError> {
        for descriptor in medium.descriptors().into_iter().flatten() {
            self.base.watch(descriptor)?;
        }
        self.medium = Some(medium);
        Ok(())
    }

    /// The transport that links begin on.
    pub fn base(&self) -> &T {
        &self.base
    }

    /// The transport that links begin on, to change it.
    pub fn base_mut(&mut self) -> &mut T {
        &mut self.base
    }

    /// The medium that links migrate to, if there is one.
    pub fn medium(&self) -> Option<&M> {
        self.medium.as_ref()
    }

    /// The medium that links migrate to, to change it.
    pub fn medium_mut(&mut self) -> Option<&mut M> {
        self.medium.as_mut()
    }

    /// The link of the base transport that a link began on, as long as that is there.
    pub fn base_link(&mut self, id: LinkId) -> Option<LinkId> {
        self.registry.links.find_mut(id)?.base
    }

    /// The medium's end of a link that has migrated.
    pub fn migrated_link(&mut self, id: LinkId) -> Option<&mut M::Link> {
        self.registry.links.find_mut(id)?.migrated()
    }

    /// Whether a link waits for what only a clock will tell.
    pub fn is_waiting(&self) -> bool {
        let LinkRegistry { asked, closing, .. } = &self.registry;
        let waits = self.medium.as_ref().is_some_and(M::is_waiting);
        waits || !asked.is_empty() || !closing.is_empty()
    }

    /// Whether the base transport has its turn: always, but while the medium is busy only now and
    /// then, since each look costs a system call.
    fn is_turn_of_base(&mut self, now: Time) -> bool {
        self.turns_without_base += 1;
        let is_busy = (self.stirred).is_some_and(|stirred| now.since(stirred) < M::BUSY_TIME);
        if is_busy && self.turns_without_base < TURNS_PER_BASE {
            return false;
        }
        self.turns_without_base = 0;
        true
    }

    /// Notes between which addresses a link runs, for the medium to compare.
    fn note_ends(&mut self, id: LinkId) {
        if self.medium.is_some()
            && let Some(link) = self.registry.links.find_mut(id)
        {
            link.ends = link.base.and_then(|base| self.base.ends(base));
        }
    }

    /// Lets what waits in a link go to the base transport, if it belongs there now.
    fn forward(&mut self, id: LinkId) {
        let Some(link) = self.registry.links.find_mut(id) else {
            return;
        };
        let Some(base) = link.base else {
            return;
        };
        if link.over.is_some() {
            return self.base.close(base, false);
        }
        if let Some(record) = link.record.take() {
            match self.base.send(base, record) {
                Ok(()) => {
                    link.record_after = Some(link.base_frames);
                    link.base_frames += 1;
                    self.registry.records_in_flight += 1;
                }
                Err(refused) if refused.refusal == Refusal::Full && link.base_frames > 0 => {
                    link.record = Some(refused.value);
                    return;
                }
                Err(_) => {
                    if let Some(medium) = &mut self.medium {
                        (self.registry).fail(id, "the record could not be sent", medium);
                    }
                    return;
                }
            }
        }
        if !matches!(link.stage, Stage::Base(_)) || link.holds_frames() {
            return;
        }
        while let Some(frame) = link.held.pop_front() {
            let bytes = frame.len_bytes();
            if let Err(refused) = self.base.send(base, frame) {
                link.held.push_front(refused.value);
                return;
            }
            link.sent_bytes += bytes;
            link.base_frames += 1;
            self.registry.held_frames -= 1;
        }
        if link.closing == Some(Closing::Flush) {
            self.base.close(base, true);
        }
    }

    /// Reports a link that is gone on both sides. Returns the number of events.
    fn report(&mut self, id: LinkId, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        let is_gone =
            self.registry.links.find_mut(id).is_some_and(|link| {
                link.base.is_none() && !matches!(link.stage, Stage::Migrated(_))
            });
        if !is_gone {
            return 0;
        }
        let Some(mut link) = self.registry.links.remove(id) else {
            return 0;
        };
        if let (Stage::Base(handshake), Some(medium)) = (link.stage, &mut self.medium) {
            medium.abandon(handshake);
        }
        let mut events = 1;
        while let Some(frame) = link.held.pop_front() {
            self.registry.held_frames -= 1;
            handler.sent(id, frame, Outcome::Lost);
            events += 1;
        }
        let reason = link.over.unwrap_or(CloseReason::EndOfStream);
        handler.closed(id, &reason);
        events
    }

    /// Gives links up whose peers do not answer.
    fn check_asked(&mut self) {
        let registry = &mut self.registry;
        let mut index = 0;
        while let Some(&id) = registry.asked.get(index) {
            if let Some(link) = registry.links.find_mut(id)
                && let Question::Asked { since } = &mut link.question
            {
                let since = *since.get_or_insert(registry.now);
                if registry.now.since(since) <= M::ANSWER_TIME_MAX {
                    index += 1;
                    continue;
                }
                if let Some(medium) = &mut self.medium {
                    medium.give_up(registry, id);
                }
            }
            registry.asked.swap_remove(index);
        }
    }

    /// Closes links whose held frames did not leave in time.
    fn check_closing(&mut self) {
        let now = self.registry.now;
        let mut index = 0;
        while let Some(&(id, until)) = self.registry.closing.get(index) {
            if now < until {
                index += 1;
                continue;
            }
            self.registry.closing.swap_remove(index);
            if let Some(link) = self.registry.links.find_mut(id)
                && let Stage::Base(_) = link.stage
            {
                link.over.get_or_insert(CloseReason::Local);
                self.registry.due.push_back(id);
            }
        }
    }

    /// Does what the turns of both sides have left to do. Returns the number of events.
    fn settle(&mut self, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        if !self.registry.asked.is_empty() {
            self.check_asked();
        }
        if !self.registry.closing.is_empty() {
            self.check_closing();
        }
        // Before the end of a link is told.
        self.registry.tell(handler);
        let mut events = 0;
        while let Some(id) = self.registry.due.pop_front() {
            self.forward(id);
            events += self.report(id, handler);
        }
        events
    }
}

impl<T: Park, M: Medium> Transport for Migrating<T, M> {
    type Accepted = T::Accepted;

    forward_transport!(base: name listen unlisten);

    fn adopt(&mut self, accepted: T::Accepted, next: Next) -> Result<LinkId, TransportError> {
        let mut link = MigratingLink::new();
        link.note(&next);
        let base = self.base.adopt(accepted, next)?;
        Ok(self.registry.insert(base, link))
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        let base = self.base.connect(peer)?;
        Ok(self.registry.insert(base, MigratingLink::new()))
    }

    fn send(&mut self, id: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let Some(link) = self.registry.links.find_mut(id) else {
            return refuse(frame, Refusal::NotOpen);
        };
        if !link.is_open() {
            return refuse(frame, Refusal::NotOpen);
        }
        let waits = link.holds_frames() || !link.held.is_empty();
        let base = match (&mut link.stage, &mut self.medium, link.base) {
            (Stage::Migrated(migrated), Some(medium), _) => {
                return match medium.check_room(migrated) {
                    Ok(()) => {
                        medium.push(migrated, frame);
                        Ok(())
                    }
                    Err(refusal) => refuse(frame, refusal),
                };
            }
            (Stage::Base(_), _, Some(base)) => base,
            (Stage::Base(_) | Stage::Migrated(_) | Stage::Left, ..) => {
                return refuse(frame, Refusal::NotOpen);
            }
        };
        if waits && link.held.len() >= HELD_FRAMES_MAX {
            return refuse(frame, Refusal::Full);
        }
        let frame = if waits {
            frame
        } else {
            let bytes = frame.len_bytes();
            match self.base.send(base, frame) {
                Ok(()) => {
                    link.sent_bytes += bytes;
                    link.base_frames += 1;
                    return Ok(());
                }
                // Its place is taken by a record, of whose end nobody is told.
                Err(Refused {
                    value,
                    refusal: Refusal::Full,
                }) if link.record_after.is_some() => value,
                Err(refused) => return Err(refused),
            }
        };
        link.held.push_back(frame);
        self.registry.held_frames += 1;
        Ok(())
    }

    fn resume(&mut self, id: LinkId, next: Next) -> Result<(), Refused<Next>> {
        let refuse = |value, refusal| Err(Refused { value, refusal });
        let Some(link) = self.registry.links.find_mut(id) else {
            return refuse(next, Refusal::NotOpen);
        };
        if !link.is_open() {
            return refuse(next, Refusal::NotOpen);
        }
        if link.reads_medium {
            return match (&mut link.stage, &mut self.medium) {
                (Stage::Migrated(migrated), Some(medium)) => medium.resume(migrated, next),
                _ => refuse(next, Refusal::NotOpen),
            };
        }
        let Some(base) = link.base else {
            return refuse(next, Refusal::NotOpen);
        };
        let next = if link.is_paused() {
            link.steer(next, self.medium.as_mut())
        } else {
            next
        };
        self.base.resume(base, next)
    }

    fn end_stream(&mut self, id: LinkId) {
        let Some(link) = self.registry.links.find_mut(id) else {
            return;
        };
        let stays = link.is_open() && !link.is_asked() && link.held.is_empty();
        match (&mut link.stage, link.base) {
            (Stage::Base(handshake), Some(base)) if stays => {
                // Who takes the offer now finds that it is gone.
                let handshake = std::mem::take(handshake);
                if let Some(medium) = &mut self.medium {
                    medium.abandon(handshake);
                }
                self.base.end_stream(base);
            }
            (Stage::Base(_) | Stage::Migrated(_) | Stage::Left, _) => self.close(id, true),
        }
    }

    fn close(&mut self, id: LinkId, flush: bool) {
        let Some(link) = self.registry.links.find_mut(id) else {
            return;
        };
        if !link.is_open() {
            if let (Stage::Base(_), Some(base), false) = (&link.stage, link.base, flush) {
                // After the end of its stream a link may wait for its peer without a bound of its
                // own.
                self.base.close(base, false);
            }
            return;
        }
        link.closing = Some(if flush { Closing::Flush } else { Closing::Now });
        if flush && (link.holds_frames() || !link.held.is_empty()) {
            let until = self.registry.now + CLOSE_TIME_MAX;
            return self.registry.closing.push((id, until));
        }
        let is_read_by_medium = link.reads_medium;
        if let (Stage::Migrated(migrated), Some(medium)) = (&mut link.stage, &mut self.medium) {
            medium.close(migrated, flush);
            if is_read_by_medium {
                return;
            }
        }
        if let Some(base) = link.base {
            self.base.close(base, flush);
        }
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        self.registry.now = now;
        let mut events = 0;
        if let Some(medium) = &mut self.medium {
            medium.listen(&mut self.registry, now);
            self.registry.tell(handler);
            events += medium.turn(&mut self.registry, now, handler);
        }
        if events > 0 {
            self.stirred = Some(now);
        }
        if events < EVENTS_ENOUGH && self.is_turn_of_base(now) {
            let mut tap = BaseTap {
                registry: &mut self.registry,
                medium: &mut self.medium,
                handler,
                events: 0,
            };
            self.base.turn(now, &mut tap);
            events += tap.events;
        }
        events + self.settle(handler)
    }

    fn submit(&mut self) {
        if let Some(medium) = &mut self.medium {
            medium.submit();
        }
        self.base.submit();
    }

    fn frames_in_flight(&self) -> usize {
        let migrated = self.medium.as_ref().map_or(0, M::frames_in_flight);
        let base = self.base.frames_in_flight() - self.registry.records_in_flight;
        base + self.registry.held_frames + migrated
    }

    fn reading(&mut self, id: LinkId) -> Option<Reading> {
        let link = (self.registry.links.find_mut(id)).filter(|link| link.is_open())?;
        if !link.reads_medium {
            return self.base.reading(link.base?);
        }
        match (&mut link.stage, &mut self.medium) {
            (Stage::Migrated(migrated), Some(medium)) => medium.reading(migrated),
            _ => None,
        }
    }

    fn ends(&mut self, id: LinkId) -> Option<Ends> {
        let base = self.base_link(id)?;
        self.base.ends(base)
    }

    fn offer(&mut self, id: LinkId) -> Option<Vec<u8>> {
        self.note_ends(id);
        let link = self.registry.links.find_mut(id)?;
        let lower = link.base.and_then(|base| self.base.offer(base));
        let mut offer = lower.unwrap_or_default();
        if let (Some(medium), Some(handshake)) = (&mut self.medium, link.handshake()) {
            medium.offer(id, handshake, &mut offer);
        }
        (!offer.is_empty()).then_some(offer)
    }

    fn upgrade(&mut self, id: LinkId, offer: &[u8]) {
        self.note_ends(id);
        let (lower, offer) = M::split_offer(offer);
        let Some(link) = self
            .registry
            .links
            .find_mut(id)
            .filter(|link| link.is_open())
        else {
            return;
        };
        if let (Some(base), false) = (link.base, lower.is_empty()) {
            self.base.upgrade(base, lower);
        }
        if let (Some(medium), false) = (&mut self.medium, offer.is_empty()) {
            medium.ask(&mut self.registry, id, lower, offer);
            self.forward(id);
        }
    }
}

impl<T: Park, M: Medium + fmt::Debug> fmt::Debug for Migrating<T, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Migrating")
            .field("base", &self.base.name())
            .field("medium", &self.medium)
            .finish_non_exhaustive()
    }
}

/// Frames of one link that wait for the peer's answer.
const HELD_FRAMES_MAX: usize = 1024;

/// How long a link that closes waits for an answer before it closes without its held frames.
const CLOSE_TIME_MAX: Duration = Duration::from_millis(250);

/// Turns of which the base transport has one while the medium is busy.
const TURNS_PER_BASE: u32 = 16;

/// A turn that has had this many events begins nothing more.
const EVENTS_ENOUGH: usize = 1024;
