use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use grpcxx_memory::{Arena, BufferMut};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome, Park,
    Progress, Time, Transport, TransportError, forward_transport, links_stay,
};

use crate::adapter::Adapter;
use crate::blob::BLOB_BYTES;
use crate::counters::RdmaCounters;
use crate::links::RdmaLinks;

/// RDMA links as a transport of their own: another transport finds peers, carries the set-up data,
/// and tells when a peer is gone.
///
/// Two of these speak to each other and to nothing else. A process that speaks star upgrades its
/// connections with [`RdmaLinks`] instead.
pub struct RdmaTransport<A: Adapter, T: Transport> {
    links: RdmaLinks<A>,
    side: T,
    registry: LinkRegistry,
}

/// Which connection of the side belongs to which link.
#[derive(Default)]
struct LinkRegistry {
    /// By the side's link.
    calls: BTreeMap<LinkId, Call>,
    /// The side's link of each link.
    sides: BTreeMap<LinkId, LinkId>,
    commands: VecDeque<Command>,
    /// Links that are gone on both sides.
    gone: Vec<(LinkId, CloseReason)>,
}

/// A connection of the side.
#[derive(Debug)]
struct Call {
    link: LinkId,
    state: CallState,
    /// Why the link is gone, once it is; its end is told when the connection is gone too.
    over: Option<CloseReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallState {
    /// The dial is on its way.
    Dialling,
    /// The offer is sent.
    Offered,
    /// An offer is to come.
    Expecting,
    /// Both know each other; the connection only tells of the end.
    Joined,
}

/// What is to be done with the side after its turn.
enum Command {
    Send(LinkId, Box<Frame>),
}

impl<A: Adapter, T: Transport> RdmaTransport<A, T> {
    /// Links over `links` between peers that `side` finds.
    pub fn new(links: RdmaLinks<A>, side: T) -> Self {
        Self {
            links,
            side,
            registry: LinkRegistry::default(),
        }
    }

    /// The links, without their way to find peers.
    pub fn links_mut(&mut self) -> &mut RdmaLinks<A> {
        &mut self.links
    }

    /// The transport beside the links, with its link that belongs to this one.
    pub fn side_mut(&mut self, link: LinkId) -> (&mut T, Option<LinkId>) {
        (&mut self.side, self.registry.sides.get(&link).copied())
    }

    /// What the links have done so far.
    pub fn counters(&self) -> RdmaCounters {
        self.links.counters()
    }

    /// As [`RdmaLinks::register_arena`].
    ///
    /// # Errors
    /// As of [`RdmaLinks::register_arena`].
    pub fn register_arena(&mut self, arena: &mut Arena) -> Result<usize, TransportError> {
        self.links.register_arena(arena)
    }

    /// Lets the side close what belonged to links that are gone, and reports those it has no more.
    /// Returns the number of events.
    fn part(&mut self, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        while let Some(gone) = self.links.next_gone() {
            let (link, reason) = (gone.id, gone.reason);
            match self.registry.sides.remove(&link) {
                Some(side) => {
                    self.side.close(side, false);
                    if let Some(call) = self.registry.calls.get_mut(&side) {
                        call.over = Some(reason);
                    }
                }
                None => self.registry.gone.push((link, reason)),
            }
        }
        let events = self.registry.gone.len();
        for (link, reason) in self.registry.gone.drain(..) {
            self.links.free(link);
            handler.closed(link, &reason);
        }
        events
    }

    fn carry_out_orders(&mut self) {
        while let Some(Command::Send(side, frame)) = self.registry.commands.pop_front() {
            if self.side.send(side, frame).is_err()
                && let Some(call) = self.registry.calls.get(&side)
            {
                let reason = failure("the set-up data could not be sent");
                self.links.peer_gone(call.link, reason);
            }
        }
    }
}

impl<A: Adapter, T: Transport> Transport for RdmaTransport<A, T> {
    type Accepted = T::Accepted;

    forward_transport!(side: listen unlisten);
    forward_transport!(links: send resume close submit reading frames_in_flight);
    links_stay!();

    fn end_stream(&mut self, link: LinkId) {
        self.links.close(link, true);
    }

    fn name(&self) -> &'static str {
        "rdma"
    }

    fn adopt(&mut self, accepted: T::Accepted, next: Next) -> Result<LinkId, TransportError> {
        let link = self.links.expect(next)?;
        match self.side.adopt(accepted, Next::Land(blob_landing())) {
            Ok(side) => {
                self.registry.enter(side, link, CallState::Expecting);
                Ok(link)
            }
            Err(error) => {
                self.links.forget(link);
                Err(error)
            }
        }
    }

    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError> {
        let link = self.links.prepare()?;
        match self.side.connect(peer) {
            Ok(side) => {
                self.registry.enter(side, link, CallState::Dialling);
                Ok(link)
            }
            Err(error) => {
                self.links.forget(link);
                Err(error)
            }
        }
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<T::Accepted>) -> usize {
        let mut events = self.links.turn(now, handler);
        let mut side_events = SideEvents {
            links: &mut self.links,
            registry: &mut self.registry,
            handler,
            events: 0,
        };
        self.side.turn(now, &mut side_events);
        events += side_events.events;
        self.carry_out_orders();
        events + self.part(handler)
    }
}

impl<A: Adapter, T: Park> RdmaTransport<A, T> {
    /// As [`RdmaTransport::new`], for a thread that can sleep: the device's events end the side's
    /// sleep too.
    ///
    /// # Errors
    /// The system refused to watch the device.
    pub fn watching(links: RdmaLinks<A>, mut side: T) -> Result<Self, TransportError> {
        for descriptor in links.descriptors().into_iter().flatten() {
            side.watch(descriptor)?;
        }
        Ok(Self::new(links, side))
    }
}

impl<A: Adapter, T: Park> Park for RdmaTransport<A, T> {
    forward_transport!(side: unpark waker watch);

    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError> {
        if !self.links.arm() {
            return Ok(());
        }
        let timeout = [timeout, self.links.patience()].into_iter().flatten().min();
        self.side.park(timeout)
    }

    fn park_fd(&mut self) -> Option<BorrowedFd<'_>> {
        if !self.links.arm() {
            return None;
        }
        self.side.park_fd()
    }

    fn patience(&mut self) -> Option<Duration> {
        let both = [self.side.patience(), self.links.patience()];
        both.into_iter().flatten().min()
    }
}

impl LinkRegistry {
    fn enter(&mut self, side: LinkId, link: LinkId, state: CallState) {
        let call = Call {
            link,
            state,
            over: None,
        };
        self.calls.insert(side, call);
        self.sides.insert(link, side);
    }
}

/// Takes the events of the side.
struct SideEvents<'a, A: Adapter, H> {
    links: &'a mut RdmaLinks<A>,
    registry: &'a mut LinkRegistry,
    handler: &'a mut dyn LinkHandler<H>,
    events: usize,
}

impl<A: Adapter, H> SideEvents<'_, A, H> {
    /// The peer's set-up data is there.
    fn landed_blob(&mut self, side: LinkId, blob: &[u8]) {
        let Some(call) = self.registry.calls.get_mut(&side) else {
            return;
        };
        let link = call.link;
        let result = match call.state {
            CallState::Offered => {
                call.state = CallState::Joined;
                self.open(link, blob)
            }
            CallState::Expecting => {
                call.state = CallState::Joined;
                self.answer(side, link, blob)
            }
            CallState::Dialling | CallState::Joined => return,
        };
        if let Err(error) = result {
            self.links.peer_gone(link, CloseReason::Failed(error));
        }
    }

    fn open(&mut self, link: LinkId, blob: &[u8]) -> Result<(), TransportError> {
        if self.links.connect(link, blob)? {
            let next = self.handler.connected(link);
            self.events += 1;
            self.links.open(link, next);
        }
        Ok(())
    }

    fn answer(&mut self, side: LinkId, link: LinkId, blob: &[u8]) -> Result<(), TransportError> {
        let blob = self.links.answer(link, blob)?;
        let command = Command::Send(side, frame_of(&blob));
        self.registry.commands.push_back(command);
        Ok(())
    }
}

impl<A: Adapter, H> LinkHandler<H> for SideEvents<'_, A, H> {
    fn accepted(&mut self, listener: ListenerId, peer: SocketAddr, accepted: H) {
        self.handler.accepted(listener, peer, accepted);
        self.events += 1;
    }

    fn connected(&mut self, side: LinkId) -> Next {
        if let Some(call) = self.registry.calls.get_mut(&side) {
            match self.links.introduce(call.link) {
                Ok(blob) => {
                    call.state = CallState::Offered;
                    let command = Command::Send(side, frame_of(&blob));
                    self.registry.commands.push_back(command);
                }
                Err(error) => self.links.peer_gone(call.link, CloseReason::Failed(error)),
            }
        }
        Next::Land(blob_landing())
    }

    fn received(&mut self, side: LinkId, bytes: &[u8]) -> Progress {
        if let Some(call) = self.registry.calls.get(&side) {
            let reason = failure("the peer sent bytes beside an RDMA link");
            self.links.peer_gone(call.link, reason);
        }
        Progress {
            consumed_bytes: bytes.len(),
            next: Next::Pause,
        }
    }

    fn landed(&mut self, side: LinkId, landing: Landing, outcome: Outcome) -> Next {
        if outcome == Outcome::Done {
            self.landed_blob(side, &landing.into_buffer());
        }
        Next::Head { at_least_bytes: 1 }
    }

    fn sent(&mut self, _: LinkId, _: Box<Frame>, _: Outcome) {}

    fn closed(&mut self, side: LinkId, reason: &CloseReason) {
        if let Some(call) = self.registry.calls.remove(&side) {
            match call.over {
                Some(reason) => self.registry.gone.push((call.link, reason)),
                None => {
                    self.registry.sides.remove(&call.link);
                    self.links.peer_gone(call.link, reason.clone());
                }
            }
        }
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

fn blob_landing() -> Landing {
    Landing::new(BufferMut::zeroed(BLOB_BYTES))
}

fn frame_of(blob: &[u8]) -> Box<Frame> {
    let mut frame = Box::new(Frame::new());
    frame.bytes_mut().extend_from_slice(blob);
    frame
}

fn failure(message: &str) -> CloseReason {
    CloseReason::Failed(TransportError {
        operation: "set up an RDMA link".to_owned(),
        errno: 0,
        message: message.to_owned(),
    })
}
