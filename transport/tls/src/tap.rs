//! Stands between the base transport and the handler during a turn, and opens what comes.

use std::net::SocketAddr;

use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    PeerName, Progress, TransportError,
};

use crate::handshake::HandshakeError;
use crate::layer::Layer;
use crate::link::{Pending, Phase, Staged, TlsLink};
use crate::open::{Opener, Stop};
use crate::record::{FIRST_BYTE, Fault};

pub(crate) struct Tap<'a, A> {
    pub(crate) layer: &'a mut Layer,
    pub(crate) handler: &'a mut dyn LinkHandler<A>,
    /// Events that the handler has seen.
    pub(crate) events: usize,
}

/// What the bytes of a link are.
enum Kind {
    /// The handler's, as they are.
    Plain,
    /// To be decided by the first of them.
    Undecided,
    /// Messages of a handshake.
    Handshake,
    /// Records.
    Records,
    /// Nobody's any more.
    Nobody,
}

impl<A> Tap<'_, A> {
    fn kind(&self, id: LinkId) -> Kind {
        let Some(link) = self.layer.find(id) else {
            return Kind::Plain;
        };
        match &link.phase {
            Phase::Plain => Kind::Plain,
            _ if link.over.is_some() => Kind::Nobody,
            Phase::Undecided { .. } => Kind::Undecided,
            Phase::Handshaking { .. } => Kind::Handshake,
            Phase::Open(_) if link.is_open() => Kind::Records,
            Phase::Dialling | Phase::Open(_) | Phase::Over => Kind::Nobody,
        }
    }

    /// Looks at the first bytes of an accepted link.
    fn decide(&mut self, id: LinkId, bytes: &[u8]) -> Progress {
        let Some(link) = self.layer.find_mut(id) else {
            return all_of(bytes);
        };
        let phase = std::mem::replace(&mut link.phase, Phase::Over);
        let Phase::Undecided { next, may_be_plain } = phase else {
            link.phase = phase;
            return all_of(bytes);
        };
        if bytes.first() == Some(&FIRST_BYTE) {
            link.phase = Phase::Handshaking {
                handshake: Pending::Waiting(bytes.to_vec()),
                next: Some(next),
            };
            self.layer.steps.push_back(id);
            if may_be_plain {
                self.layer.limit_handshake(id);
            }
            return all_of(bytes);
        }
        if !may_be_plain {
            link.fail("accept", REFUSED_PLAIN.to_owned());
            self.layer.counters.plain_refused.add(1);
            self.layer.endings.push_back((id, None));
            return all_of(bytes);
        }
        link.phase = Phase::Plain;
        self.layer.counters.plain.add(1);
        self.layer.go_on(id);
        match next {
            Next::Head { at_least_bytes } if bytes.len() >= at_least_bytes => {
                self.events += 1;
                self.handler.received(id, bytes)
            }
            next => Progress {
                consumed_bytes: 0,
                next,
            },
        }
    }

    /// Takes bytes of a handshake; the step itself comes after the turn of the base transport.
    fn take_handshake(&mut self, id: LinkId, bytes: &[u8]) -> Progress {
        let Some(link) = self.layer.find_mut(id) else {
            return all_of(bytes);
        };
        let Phase::Handshaking { handshake, .. } = &mut link.phase else {
            return all_of(bytes);
        };
        let taken = match handshake {
            Pending::Waiting(waiting) => {
                waiting.extend_from_slice(bytes);
                Ok(())
            }
            Pending::Begun(handshake) => handshake.take(bytes),
        };
        match taken {
            Ok(()) => self.layer.steps.push_back(id),
            Err(error) => {
                link.fail("TLS handshake with", error.to_string());
                self.layer.counters.handshakes_failed.add(1);
                self.layer.endings.push_back((id, None));
            }
        }
        all_of(bytes)
    }

    /// Lets records of a link be opened, and remembers it for the next turn if this one is full.
    fn open<R>(
        &mut self,
        id: LinkId,
        opens: impl FnOnce(&mut Opener<'_, A>, &mut [u8]) -> (R, Stop),
    ) -> Option<R> {
        let opened = self
            .layer
            .open_with(id, &mut self.events, self.handler, opens);
        let (result, stop) = opened?;
        if stop == Stop::TurnFull {
            self.layer.go_on(id);
        }
        Some(result)
    }

    /// Takes back what the base transport has filled with records.
    fn take_landing(&mut self, id: LinkId, landing: Landing) -> Next {
        let filled_bytes = landing.filled_bytes();
        let staged = Staged {
            buffer: landing.into_buffer(),
            from: 0,
            to: filled_bytes,
        };
        let mut staged = Some(staged);
        let next = self.open(id, |opener, _| {
            opener.link.staged = staged.take();
            opener.open_staged()
        });
        if let Some(staged) = staged {
            self.layer.pool.put_staging(staged.buffer);
        }
        next.unwrap_or(Next::Pause)
    }
}

impl<A> LinkHandler<A> for Tap<'_, A> {
    fn accepted(&mut self, listener: ListenerId, peer: SocketAddr, accepted: A) {
        self.events += 1;
        self.handler.accepted(listener, peer, accepted);
    }

    fn connected(&mut self, id: LinkId) -> Next {
        let Some(link) = self.layer.find_mut(id) else {
            self.events += 1;
            return self.handler.connected(id);
        };
        link.phase = Phase::Handshaking {
            handshake: Pending::Waiting(Vec::new()),
            next: None,
        };
        self.layer.steps.push_back(id);
        self.layer.limit_handshake(id);
        Next::Pause
    }

    fn received(&mut self, id: LinkId, bytes: &[u8]) -> Progress {
        match self.kind(id) {
            Kind::Plain => {
                self.events += 1;
                self.handler.received(id, bytes)
            }
            Kind::Records => self
                .open(id, |opener, scratch| opener.show(bytes, scratch))
                .unwrap_or_else(|| all_of(bytes)),
            Kind::Undecided => self.decide(id, bytes),
            Kind::Handshake => self.take_handshake(id, bytes),
            Kind::Nobody => all_of(bytes),
        }
    }

    fn landed(&mut self, id: LinkId, landing: Landing, outcome: Outcome) -> Next {
        if let Kind::Plain = self.kind(id) {
            self.events += 1;
            return self.handler.landed(id, landing, outcome);
        }
        // What came before the end of the link is the user's also if the landing is not full.
        let next = self.take_landing(id, landing);
        match (outcome, next) {
            (Outcome::Done, next) => next,
            (Outcome::Lost, Next::Land(landing)) => {
                self.layer.pool.put_staging(landing.into_buffer());
                Next::Pause
            }
            (Outcome::Lost, _) => Next::Pause,
        }
    }

    fn sent(&mut self, id: LinkId, frame: Box<Frame>, outcome: Outcome) {
        let Some(link) = self.layer.find_mut(id) else {
            self.events += 1;
            return self.handler.sent(id, frame, outcome);
        };
        link.base_frames -= 1;
        if frame.token != CONTROL_TOKEN {
            link.base_data_frames -= 1;
            // Those of a link that died come back as lost, with the rest of it.
            if outcome == Outcome::Done {
                link.left_frames += frame.token;
            }
        }
        let has_left = link.is_leaving && link.base_frames == 0;
        let layer = &mut *self.layer;
        if has_left {
            layer.endings.push_back((id, None));
        }
        layer.base_frames -= 1;
        layer.tell_sent(id, &mut self.events, self.handler);
        layer.pool.put_frame(frame);
        layer.stain(id);
    }

    fn closed(&mut self, id: LinkId, reason: &CloseReason) {
        self.events += 1;
        let Some(mut link) = self.layer.remove(id) else {
            return self.handler.closed(id, reason);
        };
        self.events += self.layer.give_back(&mut link, self.handler);
        if let Some(unsent) = link.unsent.take() {
            self.layer.pool.put_frame(unsent);
        }
        let reason = final_reason(&link, reason);
        self.handler.closed(id, &reason);
    }

    fn proven(&mut self, id: LinkId, name: Option<&PeerName>) {
        self.handler.proven(id, name);
    }

    fn migration(&mut self, id: LinkId, news: Migration<'_>) {
        self.handler.migration(id, news);
    }
}

/// Why a link is gone that the base transport has lost.
fn final_reason(link: &TlsLink, reason: &CloseReason) -> CloseReason {
    if let Some(over) = &link.over {
        return over.clone();
    }
    if link.closing.is_some() {
        return CloseReason::Local;
    }
    let failed = |operation: &str, message: String| {
        CloseReason::Failed(TransportError {
            operation: format!("{operation} {}", link.peer),
            errno: 0,
            message,
        })
    };
    match (&link.phase, reason) {
        (Phase::Open(_), CloseReason::EndOfStream) => {
            failed("TLS records of", Fault::Truncated.to_string())
        }
        (Phase::Handshaking { .. }, CloseReason::EndOfStream) => {
            failed("TLS handshake with", HandshakeError::Left.to_string())
        }
        _ => reason.clone(),
    }
}

/// Takes bytes, and nothing more for now.
fn all_of(bytes: &[u8]) -> Progress {
    Progress {
        consumed_bytes: bytes.len(),
        next: Next::Pause,
    }
}

/// The token of frames that hold no data of users.
pub(crate) const CONTROL_TOKEN: u64 = u64::MAX;

const REFUSED_PLAIN: &str = "the peer came without TLS, which is required; set GRPCXX_TLS there, or \
                             name its address in GRPCXX_TLS_PLAIN here";
