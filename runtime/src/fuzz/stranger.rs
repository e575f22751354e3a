//! Somebody who connects to a shard and sends any bytes.

use std::net::{IpAddr, SocketAddr};

use grpcxx_transport::sim::{SimAccepted, SimNetwork, SimTransport};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    PeerName, Progress, Time, Transport,
};

/// A host with at most one connection.
pub(super) struct Stranger {
    transport: SimTransport,
    target: SocketAddr,
    connection: Connection,
    has_sent: bool,
}

#[derive(Default)]
struct Connection {
    link: Option<LinkId>,
    is_connected: bool,
    /// Bytes that have not left.
    bytes: Vec<u8>,
}

impl Stranger {
    pub(super) fn new(network: &SimNetwork, host: IpAddr, target: SocketAddr) -> Self {
        Self {
            transport: network.transport(host),
            target,
            connection: Connection::default(),
            has_sent: false,
        }
    }

    /// Sends bytes behind those that were sent, on a new connection if there is none.
    pub(super) fn send(&mut self, bytes: Vec<u8>) {
        self.has_sent = true;
        self.connection.bytes.extend(bytes);
        if self.connection.link.is_none() {
            self.connection.link = self.transport.connect(self.target).ok();
        }
    }

    /// Ends the connection.
    pub(super) fn leave(&mut self) {
        if let Some(link) = self.connection.link {
            self.transport.close(link, false);
        }
    }

    pub(super) fn has_sent(&self) -> bool {
        self.has_sent
    }

    pub(super) fn next_event_at(&self) -> Option<Time> {
        self.transport.next_event_at()
    }

    /// Returns how much happened.
    pub(super) fn turn(&mut self, now: Time) -> usize {
        let events = self.transport.turn(now, &mut self.connection);
        let connection = &mut self.connection;
        if let Some(link) = connection.link
            && connection.is_connected
            && !connection.bytes.is_empty()
        {
            let mut frame = Box::<Frame>::default();
            frame.bytes_mut().append(&mut connection.bytes);
            // A link that closes refuses.
            let _ = self.transport.send(link, frame);
        }
        events
    }
}

impl LinkHandler<SimAccepted> for Connection {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, _: SimAccepted) {
        unreachable!("it listens nowhere")
    }

    fn connected(&mut self, _: LinkId) -> Next {
        self.is_connected = true;
        Next::Head { at_least_bytes: 1 }
    }

    fn received(&mut self, _: LinkId, bytes: &[u8]) -> Progress {
        Progress {
            consumed_bytes: bytes.len(),
            next: Next::Head { at_least_bytes: 1 },
        }
    }

    fn landed(&mut self, _: LinkId, _: Landing, _: Outcome) -> Next {
        Next::Pause
    }

    fn sent(&mut self, _: LinkId, _: Box<Frame>, _: Outcome) {}

    fn closed(&mut self, _: LinkId, _: &CloseReason) {
        *self = Self::default();
    }

    fn proven(&mut self, _: LinkId, _: Option<&PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}
