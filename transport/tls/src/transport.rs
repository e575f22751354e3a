//! Links that are TLS, over links of TCP.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use grpcxx_transport::{
    CloseReason, Frame, LinkHandler, LinkId, Next, Park, PeerName, Reading, Refusal, Refused, Time,
    Transport, TransportError, forward_transport, links_stay,
};

use crate::layer::{Layer, SharedCredentials};
use crate::link::{Closing, Phase};
use crate::tap::Tap;
use crate::{LiveCounters, TlsCounters, TlsMode, TlsOptions};

/// A transport whose links are TLS, or some of them.
///
/// Links have the ids that they have in the base transport. Without [`Tls::enable`] each call is
/// passed on as it is.
pub struct Tls<T> {
    pub(crate) base: T,
    pub(crate) layer: Option<Box<Layer>>,
}

/// An accepted connection that knows where it came from.
pub trait Origin {
    /// The address that it came from.
    fn peer(&self) -> SocketAddr;
}

impl Origin for grpcxx_tcp::Accepted {
    fn peer(&self) -> SocketAddr {
        self.peer
    }
}

impl<T: Park> Tls<T> {
    /// A transport without TLS.
    pub const fn new(base: T) -> Self {
        Self { base, layer: None }
    }

    /// Lets links be TLS from now on, as the options say.
    pub fn enable(&mut self, options: TlsOptions, credentials: SharedCredentials) {
        if options.mode != TlsMode::Off {
            self.layer = Some(Box::new(Layer::new(options, credentials)));
        }
    }

    /// The transport that carries the links.
    pub const fn base(&self) -> &T {
        &self.base
    }

    /// The task that the peer of a link has proven to be.
    pub fn peer_name(&self, link: LinkId) -> Option<&PeerName> {
        match &self.layer.as_ref()?.find(link)?.phase {
            Phase::Open(open) => open.session.name.as_ref(),
            Phase::Dialling
            | Phase::Undecided { .. }
            | Phase::Plain
            | Phase::Handshaking { .. }
            | Phase::Over => None,
        }
    }

    /// Whether a link is TLS, and its handshake is over.
    pub fn is_tls(&self, link: LinkId) -> bool {
        let link = self.layer.as_ref().and_then(|layer| layer.find(link));
        link.is_some_and(|link| matches!(link.phase, Phase::Open(_)))
    }

    /// What the transport has done so far.
    pub fn counters(&self) -> TlsCounters {
        let layer = self.layer.as_ref();
        layer.map(|layer| layer.counters.read()).unwrap_or_default()
    }

    /// What other threads read while the transport counts; `None` if no link is TLS.
    pub fn live_counters(&self) -> Option<Arc<LiveCounters>> {
        let layer = self.layer.as_ref();
        layer.map(|layer| Arc::clone(&layer.counters))
    }
}

impl<T: Park> Transport for Tls<T>
where
    T::Accepted: Origin,
{
    type Accepted = T::Accepted;

    forward_transport!(base: name listen unlisten ends);
    links_stay!();

    fn adopt(&mut self, accepted: T::Accepted, next: Next) -> Result<LinkId, TransportError> {
        let Some(layer) = &mut self.layer else {
            return self.base.adopt(accepted, next);
        };
        let peer = accepted.peer();
        let may_be_plain =
            layer.options.mode.takes_plain() || (layer.options.plain_peers)(peer.ip());
        let id = self
            .base
            .adopt(accepted, Next::Head { at_least_bytes: 1 })?;
        layer.insert(id, peer, Phase::Undecided { next, may_be_plain });
        if !may_be_plain {
            layer.limit_handshake(id);
        }
        Ok(id)
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        let id = self.base.connect(peer)?;
        if let Some(layer) = &mut self.layer
            && layer.options.mode.dials()
            && !(layer.options.plain_peers)(peer.ip())
        {
            layer.insert(id, peer, Phase::Dialling);
        }
        Ok(id)
    }

    fn send(&mut self, id: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        let Some(layer) = &mut self.layer else {
            return self.base.send(id, frame);
        };
        let limit = layer.options.queued_frames;
        let Some(link) = layer.find_mut(id) else {
            return self.base.send(id, frame);
        };
        let refuse = |value, refusal| Err(Refused { value, refusal });
        if !link.takes_frames() {
            return refuse(frame, Refusal::NotOpen);
        }
        if link.outbound.len() >= limit {
            return refuse(frame, Refusal::Full);
        }
        link.outbound.push(frame);
        layer.frames += 1;
        layer.stain(id);
        Ok(())
    }

    fn resume(&mut self, id: LinkId, next: Next) -> Result<(), Refused<Next>> {
        let link = self.layer.as_mut().and_then(|layer| layer.find_mut(id));
        let Some(link) = link else {
            return self.base.resume(id, next);
        };
        let refuse = |value, refusal| Err(Refused { value, refusal });
        if !link.is_open() {
            return refuse(next, Refusal::NotOpen);
        }
        match &mut link.phase {
            Phase::Plain => return self.base.resume(id, next),
            Phase::Dialling | Phase::Handshaking { next: None, .. } | Phase::Over => {
                return refuse(next, Refusal::NotOpen);
            }
            Phase::Undecided { next: first, .. }
            | Phase::Handshaking {
                next: Some(first), ..
            } => match first {
                Next::Pause => *first = next,
                Next::Head { .. } | Next::Land(_) | Next::Discard { .. } => {
                    return refuse(next, Refusal::WrongState);
                }
            },
            Phase::Open(open) => match open.inbound.resume(next) {
                Ok(()) => {
                    if let Some(layer) = &mut self.layer {
                        layer.go_on(id);
                    }
                }
                Err(next) => return refuse(next, Refusal::WrongState),
            },
        }
        Ok(())
    }

    fn end_stream(&mut self, id: LinkId) {
        let link = self.layer.as_ref().and_then(|layer| layer.find(id));
        match link.map(|link| &link.phase) {
            None | Some(Phase::Plain) => self.base.end_stream(id),
            Some(_) => self.close(id, true),
        }
    }

    fn close(&mut self, id: LinkId, flush: bool) {
        let link = self.layer.as_mut().and_then(|layer| layer.find_mut(id));
        let Some(link) = link else {
            return self.base.close(id, flush);
        };
        if !link.is_open() {
            if !flush {
                link.over.get_or_insert(CloseReason::Local);
                self.base.close(id, false);
            }
            return;
        }
        link.closing = Some(if flush { Closing::Flush } else { Closing::Now });
        if let Phase::Plain = link.phase {
            // It is closed once it is left to the base transport.
            return;
        }
        let waits = link.owes_handshake() || (flush && matches!(link.phase, Phase::Open(_)));
        if waits {
            return self.close_in_time(id);
        }
        self.close_now(id, flush);
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        let Some(layer) = &mut self.layer else {
            return self.base.turn(now, handler);
        };
        layer.now = now;
        if layer.is_idle() {
            return self.base.turn(now, handler);
        }
        self.check_times();
        let mut events = self.go_on(handler);
        self.seal_all();
        if let Some(layer) = &mut self.layer {
            let mut tap = Tap {
                layer,
                handler,
                events,
            };
            self.base.turn(now, &mut tap);
            events = tap.events;
        }
        events += self.step_handshakes(handler);
        self.end_links();
        self.seal_all();
        events
    }

    fn submit(&mut self) {
        self.seal_all();
        self.base.submit();
    }

    fn frames_in_flight(&self) -> usize {
        let base = self.base.frames_in_flight();
        match &self.layer {
            Some(layer) => base - layer.base_frames + layer.frames,
            None => base,
        }
    }

    fn reading(&mut self, id: LinkId) -> Option<Reading> {
        let base = self.base.reading(id);
        let link = self.layer.as_ref().and_then(|layer| layer.find(id));
        let Some(link) = link else {
            return base;
        };
        let base = base.filter(|_| link.is_open())?;
        match &link.phase {
            Phase::Undecided { .. } | Phase::Plain => Some(base),
            Phase::Handshaking { .. } => Some(Reading {
                is_begun: true,
                asks: true,
                ..base
            }),
            Phase::Open(open) => {
                let inner = open.inbound.reading();
                Some(Reading {
                    taken_bytes: base.taken_bytes,
                    is_begun: inner.is_begun || (base.is_begun && inner.asks),
                    asks: inner.asks,
                })
            }
            Phase::Dialling | Phase::Over => None,
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Tls<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.layer.as_ref().map(|layer| &layer.options);
        f.debug_struct("Tls")
            .field("base", &self.base)
            .field("options", &options)
            .finish_non_exhaustive()
    }
}
