//! Peers that announce and do not send: they hold what they can get, and bring nothing for it.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use fastrand::Rng;
use grpcxx_rpc::Method;
use grpcxx_rpc::wire::RequestHeader;
use grpcxx_transport::sim::{SimAccepted, SimNetwork, SimTransport};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress, Time, Transport,
};

use super::cluster::Cluster;
use super::task::address_of;

/// A host with connections to tasks on which a frame has begun and does not go on.
pub(super) struct Hostile {
    transport: SimTransport,
    links: Links,
}

/// What is sent on each link once it is there; nothing, once that was done.
#[derive(Default)]
struct Links {
    beginnings: BTreeMap<LinkId, Vec<u8>>,
    connected: Vec<LinkId>,
}

impl Hostile {
    pub(super) fn new(network: &SimNetwork) -> Self {
        Self {
            transport: network.transport(IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1))),
            links: Links::default(),
        }
    }

    /// Connections that nobody has closed.
    pub(super) fn links(&self) -> usize {
        self.links.beginnings.len()
    }

    pub(super) fn next_event_at(&self) -> Option<Time> {
        self.transport.next_event_at()
    }

    pub(super) fn turn(&mut self, now: Time) {
        self.transport.turn(now, &mut self.links);
        while let Some(link) = self.links.connected.pop() {
            let beginning = self.links.beginnings.get_mut(&link);
            let mut frame = Box::<Frame>::default();
            (frame.bytes_mut()).append(beginning.expect("a link that was dialled"));
            // A link that closed in this very turn refuses.
            let _ = self.transport.send(link, frame);
        }
    }

    fn attack(&mut self, target: SocketAddr, beginning: Vec<u8>) {
        if let Ok(link) = self.transport.connect(target) {
            self.links.beginnings.insert(link, beginning);
        }
    }
}

impl Cluster {
    /// Begins a frame at some task that never ends.
    pub(super) fn attack(&mut self) {
        let Some(index) = self.any_running() else {
            return;
        };
        let epoch = self.watcher.model().tasks[index].epoch;
        let announced_max = self.profile.connection_limits.arena_bytes;
        let beginning = beginning(&mut self.random, announced_max);
        self.note(format_args!("somebody announces much to task {index}"));
        self.hostile.attack(address_of(index, epoch), beginning);
    }
}

/// The beginning of a frame that announces up to so many bytes.
fn beginning(random: &mut Rng, announced_max: u64) -> Vec<u8> {
    let payload_bytes = random.u64(1000..=announced_max);
    let mut header = RequestHeader {
        method: Method::RegisterGraph.number(),
        tag: random.u64(..),
        payload_bytes,
        ..RequestHeader::default()
    };
    let there_bytes = random.usize(..500);
    match random.u32(..3) {
        0 => header.encode()[..random.usize(1..32)].to_vec(),
        1 => {
            let mut bytes = header.encode().to_vec();
            bytes.resize(bytes.len() + there_bytes, 0);
            bytes
        }
        _ => {
            header.method = Method::StarRunGraph.number();
            header.metadata_bytes = 400 + there_bytes as i32;
            let mut bytes = header.encode().to_vec();
            bytes.resize(bytes.len() + there_bytes, 0);
            bytes
        }
    }
}

impl LinkHandler<SimAccepted> for Links {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, _: SimAccepted) {
        unreachable!("it listens nowhere")
    }

    fn connected(&mut self, link: LinkId) -> Next {
        self.connected.push(link);
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

    fn closed(&mut self, link: LinkId, _: &CloseReason) {
        self.beginnings.remove(&link);
        self.connected.retain(|&connected| connected != link);
    }

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}
