//! Traffic over TLS allocates nothing once it flows.

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_tcp::{Accepted, DriverRequest, TcpOptions, TcpTransport};
use grpcxx_tls::{Tls, TlsMode, TlsOptions};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress, Time, Transport,
};
use std::net::SocketAddr;
use std::time::Instant;

use crate::support::Authority;

/// Takes messages of one size, a head of 8 bytes in front, and uses its memory over and over.
#[derive(Default)]
struct Recycler {
    accepted: Option<Accepted>,
    is_connected: bool,
    size: usize,
    received: u64,
    memory: Vec<BufferMut>,
    #[expect(clippy::vec_box, reason = "links take boxes")]
    frames: Vec<Box<Frame>>,
}

impl LinkHandler<Accepted> for Recycler {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, accepted: Accepted) {
        self.accepted = Some(accepted);
    }

    fn connected(&mut self, _: LinkId) -> Next {
        self.is_connected = true;
        HEAD
    }

    fn received(&mut self, _: LinkId, _: &[u8]) -> Progress {
        let memory = self
            .memory
            .pop()
            .unwrap_or_else(|| BufferMut::zeroed(self.size));
        Progress {
            consumed_bytes: 8,
            next: Next::Land(Landing::new(memory)),
        }
    }

    fn landed(&mut self, _: LinkId, landing: Landing, _: Outcome) -> Next {
        self.received += 1;
        self.memory.push(landing.into_buffer());
        HEAD
    }

    fn sent(&mut self, _: LinkId, frame: Box<Frame>, _: Outcome) {
        self.frames.push(frame);
    }

    fn closed(&mut self, _: LinkId, reason: &CloseReason) {
        panic!("{reason}");
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

type Side = (Tls<TcpTransport>, Recycler);

fn turn(sides: &mut [Side; 2], start: Instant) {
    for (transport, handler) in sides {
        transport.turn(Time::ZERO + start.elapsed(), handler);
    }
}

fn exchange(sides: &mut [Side; 2], links: [LinkId; 2], payload: &Buffer, start: Instant) {
    for _ in 0..100 {
        let goals = [0, 1].map(|side: usize| sides[side].1.received + 2);
        for ((transport, handler), link) in sides.iter_mut().zip(links) {
            for _ in 0..2 {
                let mut frame = handler.frames.pop().unwrap_or_default();
                frame.clear();
                frame.bytes_mut().extend_from_slice(&[7; 8]);
                frame.attach(payload.clone());
                transport.send(link, frame).unwrap();
            }
        }
        while [0, 1].map(|side: usize| sides[side].1.received) != goals
            || sides
                .iter()
                .any(|(transport, _)| transport.frames_in_flight() > 0)
        {
            turn(sides, start);
        }
    }
}

#[test]
fn steady_state_allocates_nothing() {
    let authority = Authority::new();
    for size in [1, 60, 500, 8192, 100_000, 1 << 20] {
        let start = Instant::now();
        let mut sides = ["grpcxx://c/ps/0", "grpcxx://c/worker/0"].map(|name| {
            let tcp = TcpOptions::default().with(|options| options.driver = DriverRequest::Epoll);
            let tls = TlsOptions::default().with(|options| options.mode = TlsMode::Require);
            let mut transport = Tls::new(TcpTransport::open(tcp).unwrap().0);
            transport.enable(tls, authority.task(name));
            let handler = Recycler {
                size,
                ..Recycler::default()
            };
            (transport, handler)
        });
        let (_, address) = sides[0].0.listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let dialled = sides[1].0.connect(address).unwrap();
        while sides[0].1.accepted.is_none() {
            turn(&mut sides, start);
        }
        let accepted = sides[0].1.accepted.take().unwrap();
        let links = [sides[0].0.adopt(accepted, HEAD).unwrap(), dialled];
        while !sides[1].1.is_connected {
            turn(&mut sides, start);
        }
        let payload = Buffer::from(vec![3; size]);
        exchange(&mut sides, links, &payload, start);
        // A send that the kernel takes in more pieces than any before needs longer lists, once.
        let mut counts = Vec::with_capacity(TRIES);
        while counts.len() < TRIES && !counts.contains(&0) {
            let info = allocation_counter::measure(|| {
                exchange(&mut sides, links, &payload, start);
            });
            counts.push(info.count_total);
        }
        assert!(counts.contains(&0), "{size} bytes: {counts:?} allocations");
    }
}

const HEAD: Next = Next::Head { at_least_bytes: 8 };
const TRIES: usize = 4;
