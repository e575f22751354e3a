//! Question: what do links over verbs cost beside the device itself, and beside TCP? Both ends turn
//! on one thread, so a round trip is four turns. Baselines of the same machine: TCP here,
//! `ib_send_lat` and `ib_read_bw` of perftest.
#![allow(clippy::print_stdout)]

use std::net::SocketAddr;

use grpcxx_memory::{Arena, ArenaOptions, Buffer, BufferMut};
use grpcxx_rdma::{RdmaLinks, RdmaOptions, RdmaTransport, VerbsAdapter};
use grpcxx_tcp::{TcpOptions, TcpTransport};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress, Time, Transport,
};
use quanta::Instant;

/// Counts what comes; large frames land in memory that is used again and again.
struct Reader<A> {
    accepted: Option<A>,
    link: Option<LinkId>,
    landing: Option<BufferMut>,
    landing_bytes: usize,
    read: u64,
    spare: Option<Box<Frame>>,
}

impl<A> Reader<A> {
    fn next(&mut self) -> Next {
        match self.landing.take() {
            Some(memory) if self.landing_bytes > 0 => Next::Land(Landing::new(memory)),
            memory => {
                self.landing = memory;
                Next::Head { at_least_bytes: 64 }
            }
        }
    }
}

impl<A> LinkHandler<A> for Reader<A> {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, accepted: A) {
        self.accepted = Some(accepted);
    }
    fn connected(&mut self, link: LinkId) -> Next {
        self.link = Some(link);
        self.next()
    }
    fn received(&mut self, _: LinkId, bytes: &[u8]) -> Progress {
        self.read += 1;
        Progress {
            consumed_bytes: bytes.len().min(64),
            next: Next::Head { at_least_bytes: 64 },
        }
    }
    fn landed(&mut self, _: LinkId, landing: Landing, outcome: Outcome) -> Next {
        if outcome == Outcome::Lost {
            return Next::Pause;
        }
        self.read += 1;
        self.landing = Some(landing.into_buffer());
        self.next()
    }
    fn sent(&mut self, _: LinkId, frame: Box<Frame>, _: Outcome) {
        self.spare = Some(frame);
    }
    fn closed(&mut self, _: LinkId, _: &CloseReason) {}

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

/// A link between two transports of one kind.
struct Pair<T: Transport> {
    transports: [T; 2],
    readers: [Reader<T::Accepted>; 2],
    start: Instant,
}

impl<T: Transport> Pair<T> {
    fn new(mut transports: [T; 2], landings: [Option<BufferMut>; 2], landing_bytes: usize) -> Self {
        let readers = landings.map(|landing| Reader {
            accepted: None,
            link: None,
            landing,
            landing_bytes,
            read: 0,
            spare: None,
        });
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let (_, address) = transports[1].listen(address).expect("a free port");
        transports[0].connect(address).expect("a dial");
        let mut pair = Self {
            transports,
            readers,
            start: Instant::now(),
        };
        while pair.readers.iter().any(|reader| reader.link.is_none()) {
            pair.turn();
            if let Some(accepted) = pair.readers[1].accepted.take() {
                let next = pair.readers[1].next();
                let link = pair.transports[1].adopt(accepted, next).expect("room");
                pair.readers[1].link = Some(link);
            }
        }
        pair
    }

    fn turn(&mut self) {
        let now = Time::ZERO + self.start.elapsed();
        for (transport, reader) in self.transports.iter_mut().zip(&mut self.readers) {
            transport.turn(now, reader);
        }
    }

    fn send(&mut self, side: usize, payload: Option<&Buffer>) {
        let reader = &mut self.readers[side];
        let mut frame = reader.spare.take().unwrap_or_default();
        frame.clear();
        match payload {
            Some(payload) => frame.attach(payload.clone()),
            None => frame.bytes_mut().extend_from_slice(&[7; 64]),
        }
        let link = reader.link.expect("the link is open");
        assert!(self.transports[side].send(link, frame).is_ok());
    }

    fn into_timer(self) -> Box<dyn Timer>
    where
        T: 'static,
    {
        Box::new(self)
    }
}

/// What is measured of a pair, whatever its transport.
trait Timer {
    /// Median round trip of 64 bytes in microseconds.
    fn latency_us(&mut self) -> f64;

    /// GB/s one way, several frames on their way.
    fn bandwidth(&mut self, payload: &Buffer) -> f64;
}

impl<T: Transport> Timer for Pair<T> {
    fn latency_us(&mut self) -> f64 {
        let mut times: Vec<f64> = (0..ROUND_TRIPS)
            .map(|_| {
                let start = Instant::now();
                for side in [0, 1] {
                    let read = self.readers[1 - side].read;
                    self.send(side, None);
                    while self.readers[1 - side].read == read {
                        self.turn();
                    }
                }
                start.elapsed().as_secs_f64() * 1e6
            })
            .collect();
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    }

    fn bandwidth(&mut self, payload: &Buffer) -> f64 {
        let count = FRAMES;
        let start = Instant::now();
        let mut sent = 0;
        self.readers[1].read = 0;
        while self.readers[1].read < count {
            if sent < count && sent < self.readers[1].read + FRAMES_AHEAD {
                self.send(0, Some(payload));
                sent += 1;
            }
            self.turn();
        }
        count as f64 * payload.len() as f64 / start.elapsed().as_secs_f64() / 1e9
    }
}

fn rdma() -> Option<RdmaTransport<VerbsAdapter, TcpTransport>> {
    let options = RdmaOptions::default();
    match VerbsAdapter::open(&options) {
        Ok(adapter) => Some(RdmaTransport::new(RdmaLinks::new(adapter, options), tcp())),
        Err(reason) => {
            println!("skipped: {reason}");
            None
        }
    }
}

fn tcp() -> TcpTransport {
    TcpTransport::open(TcpOptions::default())
        .expect("TCP can be had everywhere")
        .0
}

fn arena() -> Arena {
    let options = ArenaOptions::default().with(|options| {
        options.capacity_bytes = 32 << 20;
        options.huge_pages = false;
    });
    Arena::new(options).expect("an arena")
}

fn main() {
    let (mut sources, mut targets) = (arena(), arena());
    let mut payload = sources.allocate(SIZE).expect("room");
    payload.fill(3);
    let payload = payload.freeze();
    let mut landing = || Some(targets.allocate(SIZE).expect("room"));
    let landings = [landing(), landing()];
    let mut ends = Vec::new();
    for _ in 0..4 {
        match rdma() {
            Some(end) => ends.push(end),
            None => return,
        }
    }
    for end in &mut ends {
        end.register_arena(&mut sources).expect("an anchor");
        end.register_arena(&mut targets).expect("an anchor");
    }
    let ends: [_; 4] = ends
        .try_into()
        .unwrap_or_else(|_| unreachable!("four were made"));
    let [first, second, third, fourth] = ends;
    let [rdma_landing, tcp_landing] = landings;
    let mut small = [
        Pair::new([first, second], [None, None], 0).into_timer(),
        Pair::new([tcp(), tcp()], [None, None], 0).into_timer(),
    ];
    let mut large = [
        Pair::new([third, fourth], [None, rdma_landing], SIZE).into_timer(),
        Pair::new([tcp(), tcp()], [None, tcp_landing], SIZE).into_timer(),
    ];
    for round in 0..ROUNDS {
        let [rdma_us, tcp_us] = small.each_mut().map(|pair| pair.latency_us());
        let [rdma_gb, tcp_gb] = large.each_mut().map(|pair| pair.bandwidth(&payload));
        println!(
            "{{\"round\":{round},\"rdma_us\":{rdma_us:.1},\"tcp_us\":{tcp_us:.1},\"rdma_gb_per_s\":{rdma_gb:.4},\"tcp_gb_per_s\":{tcp_gb:.4}}}"
        );
    }
}

/// Of a large frame.
const SIZE: usize = 1 << 20;
const ROUNDS: usize = 5;
const ROUND_TRIPS: usize = 2000;
const FRAMES: u64 = 50;
const FRAMES_AHEAD: u64 = 8;
