//! All links of one transport that are TLS, and what is to be done for them.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use grpcxx_transport::{CloseReason, LinkHandler, LinkId, Outcome, Time};

use crate::handshake::{Handshake, HandshakeError};
use crate::link::{Pending, Phase, TlsLink};
use crate::open::{EVENTS_ENOUGH, Ending, Opener};
use crate::pool::Pool;
use crate::record::{CLOSE_NOTIFY, Fault, RECORD_BYTES_MAX};
use crate::{Credentials, LiveCounters, TlsOptions};

/// Credentials that can be replaced while links use them.
pub type SharedCredentials = Arc<ArcSwap<Credentials>>;

/// All links of one transport that are TLS, or may become it.
pub(crate) struct Layer {
    pub(crate) options: TlsOptions,
    pub(crate) credentials: SharedCredentials,
    /// By the slot that a link has in the base transport.
    links: Vec<Option<Box<TlsLink>>>,
    count: usize,
    /// Links with something to seal.
    pub(crate) dirty: Vec<LinkId>,
    /// Links that go on in the next turn.
    pub(crate) due: VecDeque<LinkId>,
    /// Links whose handshake can go on.
    pub(crate) steps: VecDeque<LinkId>,
    /// Links whose handshake may begin once fewer are under way.
    pub(crate) waiting: VecDeque<LinkId>,
    /// Links that are over, and the alert for their peers.
    pub(crate) endings: VecDeque<(LinkId, Option<u8>)>,
    /// Until when links must have finished their handshakes, in order.
    pub(crate) deadlines: VecDeque<(Time, LinkId)>,
    /// Until when links that close may take.
    pub(crate) closings: Vec<(Time, LinkId)>,
    /// Handshakes under way.
    pub(crate) handshakes: usize,
    /// Frames of users that have not left.
    pub(crate) frames: usize,
    /// Frames of ours that the base transport has.
    pub(crate) base_frames: usize,
    pub(crate) pool: Pool,
    /// Where records are opened that the base transport shows.
    pub(crate) scratch: Box<[u8]>,
    pub(crate) now: Time,
    pub(crate) counters: Arc<LiveCounters>,
}

impl Layer {
    pub(crate) fn new(options: TlsOptions, credentials: SharedCredentials) -> Self {
        Self {
            pool: Pool::new(options.staging_bytes),
            options,
            credentials,
            links: Vec::new(),
            count: 0,
            dirty: Vec::new(),
            due: VecDeque::new(),
            steps: VecDeque::new(),
            waiting: VecDeque::new(),
            endings: VecDeque::new(),
            deadlines: VecDeque::new(),
            closings: Vec::new(),
            handshakes: 0,
            frames: 0,
            base_frames: 0,
            scratch: vec![0; RECORD_BYTES_MAX].into_boxed_slice(),
            now: Time::ZERO,
            counters: Arc::default(),
        }
    }

    /// Whether no link is TLS, or may become it, and nothing is left of those that were.
    pub(crate) fn is_idle(&self) -> bool {
        self.count == 0 && !self.has_work() && !self.waits_for_time()
    }

    /// Whether the next turn has something to do that no event will tell.
    pub(crate) fn has_work(&self) -> bool {
        !(self.dirty.is_empty()
            && self.due.is_empty()
            && self.steps.is_empty()
            && self.endings.is_empty())
    }

    /// Whether a link waits for what only a clock will tell.
    pub(crate) fn waits_for_time(&self) -> bool {
        !self.deadlines.is_empty() || !self.closings.is_empty()
    }

    pub(crate) fn insert(&mut self, id: LinkId, peer: SocketAddr, phase: Phase) {
        let slot = id.slot as usize;
        if self.links.len() <= slot {
            self.links.resize_with(slot + 1, || None);
        }
        self.links[slot] = Some(TlsLink::new(id, peer, phase));
        self.count += 1;
    }

    /// The link with this id, if it is TLS or may become it.
    pub(crate) fn find(&self, id: LinkId) -> Option<&TlsLink> {
        let link = self.links.get(id.slot as usize)?.as_deref()?;
        (link.id == id).then_some(link)
    }

    /// The link with this id, to change it.
    pub(crate) fn find_mut(&mut self, id: LinkId) -> Option<&mut TlsLink> {
        let link = self.links.get_mut(id.slot as usize)?.as_deref_mut()?;
        (link.id == id).then_some(link)
    }

    /// Takes a link out.
    pub(crate) fn remove(&mut self, id: LinkId) -> Option<Box<TlsLink>> {
        self.find(id)?;
        let link = self.links[id.slot as usize].take()?;
        self.count -= 1;
        if let Phase::Handshaking { handshake, .. } = &link.phase
            && let Pending::Begun(_) = handshake
        {
            self.release_handshake();
        }
        Some(link)
    }

    /// Notes that a handshake is over; another may begin.
    pub(crate) fn release_handshake(&mut self) {
        self.handshakes -= 1;
        self.let_next_begin();
    }

    /// Lets a handshake begin that waits for room, if there is some. Whoever was let and does not
    /// take the room, since it is over or cannot begin, lets the next.
    pub(crate) fn let_next_begin(&mut self) {
        if self.handshakes >= self.options.handshakes_max {
            return;
        }
        while let Some(id) = self.waiting.pop_front() {
            if self.find(id).is_some_and(|link| link.over.is_none()) {
                return self.steps.push_back(id);
            }
        }
    }

    /// Notes that a link has something to seal.
    pub(crate) fn stain(&mut self, id: LinkId) {
        if let Some(link) = self.find_mut(id)
            && !std::mem::replace(&mut link.is_dirty, true)
        {
            self.dirty.push(id);
        }
    }

    /// Lets a link go on in the next turn.
    pub(crate) fn go_on(&mut self, id: LinkId) {
        if let Some(link) = self.find_mut(id)
            && !std::mem::replace(&mut link.is_due, true)
        {
            self.due.push_back(id);
        }
    }

    /// Gives a peer a time for its handshake.
    pub(crate) fn limit_handshake(&mut self, id: LinkId) {
        let until = self.now + self.options.handshake_time;
        self.deadlines.push_back((until, id));
    }

    /// The handshake of a link, begun now if it has not and may.
    pub(crate) fn handshake(
        &mut self,
        id: LinkId,
    ) -> Result<Option<&mut Handshake>, HandshakeError> {
        let has_room = self.handshakes < self.options.handshakes_max;
        let credentials = self.credentials.load();
        let Some(link) = self.links.get_mut(id.slot as usize) else {
            return Ok(None);
        };
        let Some(link) = link.as_deref_mut().filter(|link| link.id == id) else {
            return Ok(None);
        };
        let Phase::Handshaking { handshake, next } = &mut link.phase else {
            return Ok(None);
        };
        if let Pending::Waiting(bytes) = handshake {
            if !has_room {
                return Ok(None);
            }
            let mut begun = match next {
                Some(_) => Handshake::server(&credentials)?,
                None => Handshake::client(&credentials, link.peer.ip())?,
            };
            begun.take(bytes)?;
            *handshake = Pending::Begun(Box::new(begun));
            self.handshakes += 1;
        }
        match handshake {
            Pending::Begun(handshake) => Ok(Some(handshake)),
            Pending::Waiting(_) => Ok(None),
        }
    }

    /// Lets `opens` open records of a link, and notes how that ended. `None` if it opens none.
    pub(crate) fn open_with<A, R>(
        &mut self,
        id: LinkId,
        events: &mut usize,
        handler: &mut dyn LinkHandler<A>,
        opens: impl FnOnce(&mut Opener<'_, A>, &mut [u8]) -> R,
    ) -> Option<R> {
        let link = self.links.get_mut(id.slot as usize)?.as_deref_mut()?;
        if link.id != id || !link.is_open() {
            return None;
        }
        let Phase::Open(open) = &mut link.phase else {
            return None;
        };
        let mut over = None;
        let mut opener = Opener {
            id,
            link: open,
            over: &mut over,
            pool: &mut self.pool,
            handler,
            events,
        };
        let result = opens(&mut opener, &mut self.scratch);
        let owes_key = opener.link.session.owes_key();
        if owes_key {
            self.stain(id);
        }
        match over {
            None => {}
            Some(Ending::Closed) => self.end(id, CloseReason::EndOfStream, Some(CLOSE_NOTIFY)),
            Some(Ending::Broken(fault)) => self.break_off(id, &fault),
        }
        Some(result)
    }

    /// Ends a link, for this reason.
    pub(crate) fn end(&mut self, id: LinkId, reason: CloseReason, alert: Option<u8>) {
        if let Some(link) = self.find_mut(id) {
            link.over.get_or_insert(reason);
            self.endings.push_back((id, alert));
        }
    }

    /// Ends a link whose peer broke the rules.
    pub(crate) fn break_off(&mut self, id: LinkId, fault: &Fault) {
        self.counters.broken.add(1);
        if let Some(link) = self.find_mut(id) {
            match fault.is_of_certificates() {
                true => link.distrust("TLS records of", fault.to_string()),
                false => link.fail("TLS records of", fault.to_string()),
            }
            self.endings.push_back((id, fault.alert()));
        }
    }

    /// Gives back frames of a link that have left, as many as the turn has room for.
    pub(crate) fn tell_sent<A>(
        &mut self,
        id: LinkId,
        events: &mut usize,
        handler: &mut dyn LinkHandler<A>,
    ) {
        let Some(link) = self.links.get_mut(id.slot as usize) else {
            return;
        };
        let Some(link) = link.as_deref_mut().filter(|link| link.id == id) else {
            return;
        };
        while link.left_frames > 0
            && *events < EVENTS_ENOUGH
            && let Some(frame) = link.outbound.pop()
        {
            handler.sent(id, frame, Outcome::Done);
            link.left_frames -= 1;
            self.frames -= 1;
            *events += 1;
        }
        if link.left_frames > 0 {
            self.go_on(id);
        }
    }

    /// Gives back what a link has that is gone. Returns the number of events.
    pub(crate) fn give_back<A>(
        &mut self,
        link: &mut TlsLink,
        handler: &mut dyn LinkHandler<A>,
    ) -> usize {
        let mut events = 0;
        if let Phase::Open(open) = &mut link.phase {
            self.counters.replaced_keys.add(open.session.replaced_keys);
            events += open.inbound.lose(link.id, handler);
            if let Some(staged) = open.staged.take() {
                self.pool.put_staging(staged.buffer);
            }
        }
        while let Some(frame) = link.outbound.pop() {
            self.frames -= 1;
            let has_left = link.left_frames > 0;
            link.left_frames -= u64::from(has_left);
            let outcome = if has_left {
                Outcome::Done
            } else {
                Outcome::Lost
            };
            handler.sent(link.id, frame, outcome);
            events += 1;
        }
        events
    }
}
