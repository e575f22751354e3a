//! Peers that hold what they can get, and bring nothing for it: they announce and do not send,
//! never read, abandon steps, and flood tasks with receives.

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
use crate::STORE_PULL;

/// A host with connections to tasks that all do harm.
pub(super) struct Hostile {
    transport: SimTransport,
    links: Links,
}

/// What is done on each link.
#[derive(Default)]
struct Links {
    attacks: BTreeMap<LinkId, Attack>,
    connected: Vec<LinkId>,
}

/// What is sent once a link is there, and whether anything is ever read.
#[derive(Debug)]
struct Attack {
    bytes: Vec<u8>,
    reads: bool,
    /// Whether the other end closes the link by itself.
    must_be_closed: bool,
}

impl Hostile {
    pub(super) fn new(network: &SimNetwork) -> Self {
        Self {
            transport: network.transport(IpAddr::V4(Ipv4Addr::new(10, 0, 1, 1))),
            links: Links::default(),
        }
    }

    /// Connections on which a frame has begun, and that nobody has closed.
    pub(super) fn links(&self) -> usize {
        let attacks = self.links.attacks.values();
        attacks.filter(|attack| attack.must_be_closed).count()
    }

    /// Leaves the connections that no task needs to close.
    pub(super) fn leave(&mut self) {
        for (&link, attack) in &self.links.attacks {
            if !attack.must_be_closed {
                self.transport.close(link, false);
            }
        }
    }

    pub(super) fn next_event_at(&self) -> Option<Time> {
        self.transport.next_event_at()
    }

    pub(super) fn turn(&mut self, now: Time) {
        self.transport.turn(now, &mut self.links);
        while let Some(link) = self.links.connected.pop() {
            let attack = self.links.attacks.get_mut(&link);
            let mut frame = Box::<Frame>::default();
            let bytes = &mut attack.expect("a link that was dialled").bytes;
            frame.bytes_mut().append(bytes);
            // A link that closed in this very turn refuses.
            let _ = self.transport.send(link, frame);
        }
    }

    fn attack(&mut self, target: SocketAddr, attack: Attack) {
        if let Ok(link) = self.transport.connect(target) {
            self.links.attacks.insert(link, attack);
        }
    }
}

impl Cluster {
    /// Does harm to some task.
    pub(super) fn attack(&mut self) {
        let Some(index) = self.any_running() else {
            return;
        };
        let epoch = self.watcher.model().tasks[index].epoch;
        let (what, attack) = match self.random.u32(..4) {
            0 => {
                let announced_max = self.profile.connection_limits.arena_bytes;
                let bytes = beginning(&mut self.random, announced_max);
                let attack = Attack {
                    bytes,
                    reads: true,
                    must_be_closed: true,
                };
                ("announces much to", attack)
            }
            1 => {
                let Some(task) = self.running(index) else {
                    return;
                };
                // Its tensors are numbered from 0, and never so high.
                let key = task.key(usize::MAX);
                let bytes = flood(&mut self.random, &key);
                ("floods", Attack::kept(bytes, true))
            }
            2 => {
                let bytes = abandoned_steps(&mut self.random);
                ("abandons steps of", Attack::kept(bytes, true))
            }
            _ => {
                let bytes = questions(&mut self.random);
                ("never reads the answers of", Attack::kept(bytes, false))
            }
        };
        self.note(format_args!("somebody {what} task {index}"));
        self.hostile.attack(address_of(index, epoch), attack);
    }
}

impl Attack {
    /// Whole frames, after which the connection stays.
    fn kept(bytes: Vec<u8>, reads: bool) -> Self {
        Self {
            bytes,
            reads,
            must_be_closed: false,
        }
    }
}

/// Receives, each in a step of its own, that no tensor will ever be there for.
fn flood(random: &mut Rng, key: &str) -> Vec<u8> {
    let steps = random.i64(..i64::MAX / 2);
    let receives = (0..random.u64(1..=FLOOD_MAX)).flat_map(|index| {
        let mut body = vec![0x08];
        varint(&mut body, steps as u64 + index);
        body.push(0x12);
        varint(&mut body, key.len() as u64);
        body.extend(key.as_bytes());
        request(Method::RecvTensor, index, 0, &body)
    });
    receives.collect()
}

/// Graph calls of steps that announce more calls than will ever come.
fn abandoned_steps(random: &mut Rng) -> Vec<u8> {
    let steps = random.u64(..);
    let calls = (0..random.u64(1..=FLOOD_MAX)).flat_map(|index| {
        let mut metadata = vec![0; 8];
        metadata.extend((STORE_PULL.len() as u16).to_le_bytes());
        metadata.extend(STORE_PULL.as_bytes());
        metadata.extend(steps.wrapping_add(index).to_le_bytes());
        metadata.extend(2_i32.to_le_bytes());
        metadata.extend([0; 5]);
        request(
            Method::StarRunGraph,
            index,
            metadata.len() as i32,
            &metadata,
        )
    });
    calls.collect()
}

/// Requests that are longer when they are answered.
fn questions(random: &mut Rng) -> Vec<u8> {
    let count = random.u64(1..=FLOOD_MAX);
    let requests = (0..count).flat_map(|index| request(Method::GetStatus, index, 0, &[]));
    requests.collect()
}

fn request(method: Method, tag: u64, metadata_bytes: i32, payload: &[u8]) -> Vec<u8> {
    let header = RequestHeader {
        method: method.number(),
        tag,
        metadata_bytes,
        payload_bytes: payload.len() as u64,
        ..RequestHeader::default()
    };
    [&header.encode()[..], payload].concat()
}

fn varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
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
        match self.attacks.get(&link) {
            Some(attack) if !attack.reads => Next::Pause,
            Some(_) | None => Next::Head { at_least_bytes: 1 },
        }
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
        self.attacks.remove(&link);
        self.connected.retain(|&connected| connected != link);
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

/// Most requests that come at once.
const FLOOD_MAX: u64 = 600;
