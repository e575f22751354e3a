use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, Next, Outcome, Park, Progress, Refusal,
    Refused, Time, Transport, TransportError, forward_events, forward_transport,
};

/// How often [`Faults`] does what. A chance is between 0 and 1.
#[derive(Clone, Copy, Debug)]
pub struct FaultOptions {
    /// All that is random follows from it.
    pub seed: u64,
    /// Chance, for each frame, that the queue is said to be full, though only while a frame is in
    /// flight whose return will say when to try again.
    pub refusal_chance: f64,
    /// Chance, for each turn, that nothing happens for a while.
    pub stall_chance: f64,
    /// Longest such while.
    pub stall_max: Duration,
    /// Chance, for each event that brings bytes, that the link is closed after the turn.
    pub close_chance: f64,
}

impl Default for FaultOptions {
    fn default() -> Self {
        Self {
            seed: 0,
            refusal_chance: 0.1,
            stall_chance: 0.01,
            stall_max: Duration::from_millis(5),
            close_chance: 0.001,
        }
    }
}

/// A transport on which things go wrong that its contracts allow: full queues, late events, lost
/// links.
#[derive(Debug)]
pub struct Faults<T> {
    inner: T,
    options: FaultOptions,
    random: fastrand::Rng,
    stalled_until: Time,
    in_flight: BTreeMap<LinkId, usize>,
    /// Links that were closed as a fault, until they are gone.
    victims: BTreeSet<LinkId>,
}

impl<T: Transport> Faults<T> {
    /// Faults over a transport that has no links yet.
    pub fn new(inner: T, options: FaultOptions) -> Self {
        Self {
            inner,
            random: fastrand::Rng::with_seed(options.seed),
            options,
            stalled_until: Time::ZERO,
            in_flight: BTreeMap::new(),
            victims: BTreeSet::new(),
        }
    }

    /// Until when nothing happens, whatever the transport behind has to say. It is not turned
    /// either, so a simulated network whose transports are all stalled has a clock that stands
    /// still: the loop around them must keep its own.
    pub fn stalled_until(&self) -> Time {
        self.stalled_until
    }

    /// The transport behind.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    /// The transport behind.
    pub fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: Transport> Transport for Faults<T> {
    type Accepted = T::Accepted;

    forward_transport!(inner: name listen unlisten adopt connect resume end_stream close submit);
    forward_transport!(inner: reading frames_in_flight ends offer upgrade);

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        let in_flight = self.in_flight.get(&link).copied().unwrap_or(0);
        if in_flight > 0 && self.random.f64() < self.options.refusal_chance {
            return Err(Refused {
                value: frame,
                refusal: Refusal::Full,
            });
        }
        self.inner.send(link, frame)?;
        self.in_flight.insert(link, in_flight + 1);
        Ok(())
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        if now < self.stalled_until {
            return 0;
        }
        if self.random.f64() < self.options.stall_chance {
            let ns = self.random.u64(..=self.options.stall_max.as_nanos() as u64);
            self.stalled_until = now + Duration::from_nanos(ns);
            return 0;
        }
        let mut interceptor = Interceptor {
            handler,
            random: &mut self.random,
            close_chance: self.options.close_chance,
            in_flight: &mut self.in_flight,
            victims: &mut self.victims,
            new_victims: Vec::new(),
        };
        let events = self.inner.turn(now, &mut interceptor);
        for link in interceptor.new_victims {
            self.inner.close(link, false);
        }
        events
    }
}

impl<T: Park> Park for Faults<T> {
    forward_transport!(inner: park park_fd patience unpark waker watch);
}

/// Sits between a transport and its handler during a turn.
struct Interceptor<'a, A> {
    handler: &'a mut dyn LinkHandler<A>,
    random: &'a mut fastrand::Rng,
    close_chance: f64,
    in_flight: &'a mut BTreeMap<LinkId, usize>,
    victims: &'a mut BTreeSet<LinkId>,
    new_victims: Vec<LinkId>,
}

impl<A> Interceptor<'_, A> {
    fn maybe_close(&mut self, link: LinkId) {
        if self.random.f64() < self.close_chance && self.victims.insert(link) {
            self.new_victims.push(link);
        }
    }
}

impl<A> LinkHandler<A> for Interceptor<'_, A> {
    forward_events!(handler<A>: accepted connected proven migration);

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        self.maybe_close(link);
        self.handler.received(link, bytes)
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        if outcome == Outcome::Done {
            self.maybe_close(link);
        }
        self.handler.landed(link, landing, outcome)
    }

    fn sent(&mut self, link: LinkId, frame: Box<Frame>, outcome: Outcome) {
        if let Some(count) = self.in_flight.get_mut(&link) {
            *count = count.saturating_sub(1);
        }
        self.handler.sent(link, frame, outcome);
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason) {
        self.in_flight.remove(&link);
        self.new_victims.retain(|victim| *victim != link);
        if self.victims.remove(&link) && *reason == CloseReason::Local {
            let reason = CloseReason::Failed(TransportError {
                operation: "use a link".to_owned(),
                errno: 0,
                message: "an injected fault closed it".to_owned(),
            });
            return self.handler.closed(link, &reason);
        }
        self.handler.closed(link, reason);
    }
}
