//! One side of a test: a transport, and a handler that takes messages with an 8-byte length in
//! front.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::print_stderr,
    reason = "each test binary uses a part, and says what it leaves out"
)]

pub mod dialled;
pub mod hostile;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use grpcxx_memory::{Arena, ArenaOptions, Buffer, BufferMut};
use grpcxx_shm::{Accepted, ShmOptions, ShmTransport};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress, Time, Transport,
};

/// What a [`Side`] has been told.
#[derive(Default)]
pub struct Seen {
    pub accepted: VecDeque<Accepted>,
    pub connected: Vec<LinkId>,
    pub messages: VecDeque<Buffer>,
    pub sent: Vec<Outcome>,
    pub closed: Vec<CloseReason>,
    /// Whether landings may be replaced.
    pub borrows: bool,
}

impl LinkHandler<Accepted> for Seen {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, accepted: Accepted) {
        self.accepted.push_back(accepted);
    }

    fn connected(&mut self, link: LinkId) -> Next {
        self.connected.push(link);
        HEAD
    }

    fn received(&mut self, _: LinkId, bytes: &[u8]) -> Progress {
        let mut consumed_bytes = 0;
        while let Some(head) = bytes[consumed_bytes..].first_chunk() {
            consumed_bytes += 8;
            let len = u64::from_le_bytes(*head) as usize;
            if len > 0 {
                let memory = BufferMut::zeroed(len);
                let landing = if self.borrows {
                    Landing::replaceable(memory)
                } else {
                    Landing::new(memory)
                };
                return Progress {
                    consumed_bytes,
                    next: Next::Land(landing),
                };
            }
            self.messages.push_back(Buffer::new());
        }
        Progress {
            consumed_bytes,
            next: HEAD,
        }
    }

    fn landed(&mut self, _: LinkId, landing: Landing, outcome: Outcome) -> Next {
        if outcome == Outcome::Lost {
            return Next::Pause;
        }
        self.messages.push_back(landing.into_shared());
        HEAD
    }

    fn sent(&mut self, _: LinkId, _: Box<Frame>, outcome: Outcome) {
        self.sent.push(outcome);
    }

    fn closed(&mut self, _: LinkId, reason: &CloseReason) {
        self.closed.push(reason.clone());
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

/// A transport with what it has told.
pub struct Side {
    pub transport: ShmTransport,
    pub seen: Seen,
    start: Instant,
}

impl Side {
    pub fn new(options: ShmOptions) -> Self {
        Self {
            transport: ShmTransport::open(options).unwrap(),
            seen: Seen::default(),
            start: Instant::now(),
        }
    }

    pub fn turn(&mut self) -> usize {
        let now = Time::ZERO + self.start.elapsed();
        self.transport.turn(now, &mut self.seen)
    }

    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            assert!(Instant::now() < end, "waited too long until {what}");
            if self.turn() == 0 {
                std::thread::yield_now();
            }
        }
    }

    pub fn listen(&mut self) -> SocketAddr {
        let any = "127.0.0.1:0".parse().unwrap();
        self.transport.listen(any).unwrap().1
    }

    /// Waits for a connection and adopts it.
    pub fn accept(&mut self) -> LinkId {
        self.until("a connection came", |side| !side.seen.accepted.is_empty());
        let accepted = self.seen.accepted.pop_front().unwrap();
        self.transport.adopt(accepted, HEAD).unwrap()
    }

    pub fn dial(&mut self, address: SocketAddr) -> LinkId {
        let link = self.transport.connect(address).unwrap();
        self.until("the dial succeeds", |side| !side.seen.connected.is_empty());
        link
    }

    pub fn send(&mut self, link: LinkId, payload: &Buffer) {
        assert!(self.transport.send(link, message(payload)).is_ok());
    }
}

/// Turns both sides until `done`.
pub fn both(
    a: &mut Side,
    b: &mut Side,
    what: &str,
    mut done: impl FnMut(&mut Seen, &mut Seen) -> bool,
) {
    let end = Instant::now() + PATIENCE;
    while !done(&mut a.seen, &mut b.seen) {
        assert!(Instant::now() < end, "waited too long until {what}");
        if a.turn() + b.turn() == 0 {
            std::thread::yield_now();
        }
    }
}

/// Two sides, and the ids that the link between them has on each. The second has dialled, so it may
/// borrow what the first lends.
pub fn pair(options: &ShmOptions) -> (Side, LinkId, Side, LinkId) {
    let (mut a, mut b) = (Side::new(options.clone()), Side::new(options.clone()));
    let address = a.listen();
    let far = b.dial(address);
    let near = a.accept();
    (a, near, b, far)
}

pub fn message(payload: &Buffer) -> Box<Frame> {
    let mut frame = Box::new(Frame::new());
    let head = (payload.len() as u64).to_le_bytes();
    frame.bytes_mut().extend_from_slice(&head);
    frame.attach(payload.clone());
    frame
}

/// An arena that other processes can map.
pub fn shared_arena() -> Arena {
    Arena::new(ArenaOptions::default().with(|options| {
        options.capacity_bytes = 64 << 20;
        options.huge_pages = false;
        options.shared = true;
    }))
    .unwrap()
}

/// An arena that other processes cannot map, with huge pages where the system has them.
pub fn private_arena() -> Arena {
    Arena::new(ArenaOptions::default().with(|options| {
        options.capacity_bytes = 256 << 20;
        options.huge_pages = true;
    }))
    .unwrap()
}

/// Whether this process gets huge pages, can ask about them (Linux 6.7), and may read processes
/// that are not its children. Says so if not.
pub fn can_show_memory() -> bool {
    let mut arena = private_arena();
    let mut memory = arena.allocate(32 << 20).unwrap();
    memory.fill(1);
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let huge = (rollup.lines()).find_map(|line| line.strip_prefix("AnonHugePages:"));
    let huge_kib = huge.and_then(|size| size.trim().trim_end_matches(" kB").parse().ok());
    let has_huge_pages = huge_kib.is_some_and(|kib: u64| kib >= 16 << 10);
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || (numbers.next().and_then(|part| part.parse().ok())).unwrap_or(0);
    let is_new = (number(), number()) >= (6, 7);
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let may_read = scope.map_or(true, |scope| scope.trim() == "0");
    let can = has_huge_pages && is_new && may_read;
    if !can {
        eprintln!(
            "SKIPPED in part: huge pages {huge_kib:?} KiB, Linux {}, may read others: {may_read}",
            release.trim()
        );
    }
    can
}

/// A payload in an arena, with bytes that differ from their neighbours.
pub fn payload(arena: &mut Arena, len: usize, seed: usize) -> Buffer {
    let mut memory = arena.allocate(len).unwrap();
    memory.copy_from_slice(&pattern(len, seed));
    memory.freeze()
}

pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| ((i * 31 + seed * 7) ^ (i >> 8)) as u8)
        .collect()
}

pub const HEAD: Next = Next::Head { at_least_bytes: 8 };

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);
