use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_transport::conformance::Ledger;
use grpcxx_transport::sim::{SimAccepted, SimNetwork, SimOptions};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress, Time, Transport,
};

/// The address of a simulated host.
pub(crate) fn host(index: usize) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, index as u8 + 1))
}

/// The seed to repeat, or `count` fixed ones.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("GRPCXX_SEED") {
        Ok(seed) => vec![seed.parse().expect("GRPCXX_SEED is a number")],
        Err(_) => (1..=count).collect(),
    }
}

/// Hosts with one transport each, all turned at the same times.
pub(crate) struct World<T: Transport<Accepted = SimAccepted>> {
    pub(crate) network: SimNetwork,
    pub(crate) nodes: Vec<Node<T>>,
    /// The present. The network's clock lags behind while all transports are stalled.
    now: Time,
    /// Turns without an event since there was one.
    idle_turns: usize,
}

pub(crate) struct Node<T: Transport<Accepted = SimAccepted>> {
    pub(crate) transport: Ledger<T>,
    pub(crate) talker: Talker,
    pub(crate) address: SocketAddr,
}

/// Speaks a small protocol: a length of 4 bytes, a number that counts up of 4 bytes, and a payload.
#[derive(Default)]
pub(crate) struct Talker {
    pub(crate) accepted: VecDeque<SimAccepted>,
    pub(crate) links: BTreeMap<LinkId, Talk>,
}

#[derive(Default)]
pub(crate) struct Talk {
    pub(crate) is_open: bool,
    pub(crate) messages_sent: u32,
    pub(crate) messages_read: u32,
    pub(crate) frames_lost: u32,
    pub(crate) closed: Option<CloseReason>,
}

impl<T: Transport<Accepted = SimAccepted>> World<T> {
    pub(crate) fn new(
        options: SimOptions,
        hosts: usize,
        mut wrap: impl FnMut(&SimNetwork, usize) -> T,
    ) -> Self {
        let label = format!("GRPCXX_SEED={}", options.seed);
        let network = SimNetwork::new(options);
        let nodes = (0..hosts)
            .map(|index| {
                let transport = wrap(&network, index);
                Node::new(index, transport, &label)
            })
            .collect();
        Self {
            network,
            nodes,
            now: Time::ZERO,
            idle_turns: 0,
        }
    }

    /// Jumps to the next event, but not beyond `until`, and turns all nodes. After many turns
    /// without events it goes on by a step, since a transport behind `Faults` may be stalled.
    pub(crate) fn turn(&mut self, until: Time) {
        let next = self.network.next_event_at().unwrap_or(until);
        if self.idle_turns > IDLE_TURNS_MAX && next <= self.now {
            self.now = self.now + Duration::from_micros(50);
        }
        self.now = self.now.max(next).min(until);
        let now = self.now;
        let events: usize = self.nodes.iter_mut().map(|node| node.turn(now)).sum();
        self.idle_turns = if events == 0 { self.idle_turns + 1 } else { 0 };
    }

    pub(crate) fn run_for(&mut self, duration: Duration) {
        let until = self.now + duration;
        self.turn(until);
        while self.now < until {
            self.turn(until);
        }
    }

    /// Dials from one node to another; no time passes.
    pub(crate) fn dial(&mut self, from: usize, to: usize) -> LinkId {
        let address = self.nodes[to].address;
        let node = &mut self.nodes[from];
        let link = node.transport.connect(address).expect("a dial can start");
        node.talker.links.insert(link, Talk::default());
        link
    }

    /// An open link from one node to another, as both ends know it.
    pub(crate) fn open(&mut self, from: usize, to: usize) -> [LinkId; 2] {
        let known: Vec<LinkId> = self.nodes[to].talker.links.keys().copied().collect();
        let near = self.dial(from, to);
        self.run_for(Duration::from_millis(10));
        let far = (self.nodes[to].talker.links.keys())
            .find(|link| !known.contains(link))
            .expect("the dial was accepted");
        [near, *far]
    }

    pub(crate) fn talk(&self, node: usize, link: LinkId) -> &Talk {
        &self.nodes[node].talker.links[&link]
    }
}

impl<T: Transport<Accepted = SimAccepted>> Node<T> {
    pub(crate) fn new(index: usize, transport: T, label: &str) -> Self {
        let mut transport = Ledger::new(transport, format!("{label}, host {index}"));
        let (_, address) = transport
            .listen(SocketAddr::new(host(index), PORT))
            .expect("the port is free");
        Self {
            transport,
            talker: Talker::default(),
            address,
        }
    }

    fn turn(&mut self, now: Time) -> usize {
        let events = self.transport.turn(now, &mut self.talker);
        while let Some(accepted) = self.talker.accepted.pop_front() {
            let next = Next::Head { at_least_bytes: 8 };
            if let Ok(link) = self.transport.adopt(accepted, next) {
                let talk = Talk {
                    is_open: true,
                    ..Talk::default()
                };
                self.talker.links.insert(link, talk);
            }
        }
        events
    }

    /// Sends a message with a payload of this many bytes, and says whether the link took it.
    pub(crate) fn say(&mut self, link: LinkId, bytes: usize) -> bool {
        let Some(talk) = self.talker.links.get_mut(&link) else {
            return false;
        };
        let number = talk.messages_sent;
        let mut frame = Box::new(Frame::new());
        frame.token = u64::from(number);
        let head = [(bytes as u32).to_le_bytes(), number.to_le_bytes()];
        frame.bytes_mut().extend_from_slice(&head.concat());
        frame.attach(Buffer::from(payload(number, bytes)));
        let accepted = self.transport.send(link, frame).is_ok();
        talk.messages_sent += u32::from(accepted);
        accepted
    }
}

fn payload(number: u32, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|index| (index as u32 * 31 + number) as u8)
        .collect()
}

impl LinkHandler<SimAccepted> for Talker {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, accepted: SimAccepted) {
        self.accepted.push_back(accepted);
    }

    fn connected(&mut self, link: LinkId) -> Next {
        self.talk(link).is_open = true;
        Next::Head { at_least_bytes: 8 }
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        let field = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (len, number) = (field(0), field(4));
        assert_eq!(number, self.talk(link).messages_read, "messages in order");
        Progress {
            consumed_bytes: 8,
            next: Next::Land(Landing::new(BufferMut::zeroed(len as usize))),
        }
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        let talk = self.talk(link);
        if outcome == Outcome::Done {
            let buffer = landing.into_buffer();
            assert!(buffer[..] == payload(talk.messages_read, buffer.len()));
            talk.messages_read += 1;
        }
        Next::Head { at_least_bytes: 8 }
    }

    fn sent(&mut self, link: LinkId, _: Box<Frame>, outcome: Outcome) {
        self.talk(link).frames_lost += u32::from(outcome == Outcome::Lost);
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason) {
        self.talk(link).closed = Some(reason.clone());
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

impl Talker {
    fn talk(&mut self, link: LinkId) -> &mut Talk {
        self.links.get_mut(&link).expect("a link that was opened")
    }
}

const PORT: u16 = 2222;

const IDLE_TURNS_MAX: usize = 50;
