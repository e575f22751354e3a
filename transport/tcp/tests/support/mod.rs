//! One side of a test: a transport, and a handler that takes messages with an 8-byte length in
//! front.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "each test binary uses a part"
)]

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_tcp::{Accepted, DriverRequest, TcpOptions, TcpTransport};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome, Park,
    Progress, Time, Transport,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// What a [`Side`] has been told.
#[derive(Default)]
pub struct Seen {
    pub accepted: VecDeque<Accepted>,
    pub connected: Vec<LinkId>,
    pub messages: VecDeque<(LinkId, Vec<u8>)>,
    pub sent: Vec<(u64, Outcome)>,
    pub closed: HashMap<LinkId, CloseReason>,
    pub landings_lost: usize,
    /// Landings handed out and not yet back.
    pub landings_out: usize,
    /// Pause after each message.
    pub pauses: bool,
    /// Keep no content, reuse the landing's memory.
    pub recycles: bool,
    pub received_bytes: u64,
    /// Frames that came back, if `recycles`.
    #[allow(clippy::vec_box, reason = "links take boxes")]
    pub spare_frames: Vec<Box<Frame>>,
    spare: Vec<BufferMut>,
}

impl Seen {
    fn after_message(&self) -> Next {
        if self.pauses { Next::Pause } else { HEAD }
    }
}

impl LinkHandler<Accepted> for Seen {
    fn accepted(&mut self, _: ListenerId, peer: SocketAddr, accepted: Accepted) {
        assert_eq!(peer, accepted.peer);
        self.accepted.push_back(accepted);
    }

    fn connected(&mut self, link: LinkId) -> Next {
        self.connected.push(link);
        HEAD
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        let mut consumed_bytes = 0;
        while let Some(head) = bytes[consumed_bytes..].first_chunk() {
            consumed_bytes += 8;
            let len = u64::from_le_bytes(*head) as usize;
            if len > 0 {
                self.landings_out += 1;
                let spare = self.spare.pop().filter(|spare| spare.len() == len);
                let next = Next::Land(Landing::new(
                    spare.unwrap_or_else(|| BufferMut::zeroed(len)),
                ));
                return Progress {
                    consumed_bytes,
                    next,
                };
            }
            self.messages.push_back((link, Vec::new()));
            if self.pauses {
                break;
            }
        }
        Progress {
            consumed_bytes,
            next: self.after_message(),
        }
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        assert!(!self.closed.contains_key(&link));
        self.landings_out -= 1;
        if outcome == Outcome::Lost {
            self.landings_lost += 1;
            return Next::Pause;
        }
        assert!(landing.is_full());
        let buffer = landing.into_buffer();
        self.received_bytes += buffer.len() as u64;
        if self.recycles {
            self.spare.push(buffer);
        } else {
            self.messages.push_back((link, buffer.to_vec()));
        }
        self.after_message()
    }

    fn sent(&mut self, link: LinkId, frame: Box<Frame>, outcome: Outcome) {
        assert!(!self.closed.contains_key(&link));
        if self.recycles {
            self.spare_frames.push(frame);
        } else {
            self.sent.push((frame.token, outcome));
        }
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason) {
        assert!(self.closed.insert(link, reason.clone()).is_none());
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

/// A transport with what it has told.
pub struct Side {
    pub transport: TcpTransport,
    pub seen: Seen,
    start: Instant,
}

impl Side {
    pub fn new(driver: DriverRequest) -> Self {
        Self::with(TcpOptions::default().with(|options| options.driver = driver))
    }

    pub fn with(options: TcpOptions) -> Self {
        let (transport, choice) = TcpTransport::open(options).unwrap();
        assert_eq!(transport.name(), format!("tcp/{}", choice.driver));
        Self {
            transport,
            seen: Seen::default(),
            start: Instant::now(),
        }
    }

    pub fn now(&self) -> Time {
        Time::ZERO + self.start.elapsed()
    }

    pub fn turn(&mut self) -> usize {
        let now = self.now();
        self.transport.turn(now, &mut self.seen)
    }

    /// Turns for a while, whatever happens.
    pub fn settle(&mut self, duration: Duration) {
        let end = Instant::now() + duration;
        while Instant::now() < end {
            if self.turn() == 0 {
                std::thread::yield_now();
            }
        }
    }

    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut Seen) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !done(&mut self.seen) {
            assert!(Instant::now() < end, "waited too long until {what}");
            if self.turn() == 0 {
                std::thread::yield_now();
            }
        }
    }

    pub fn listen(&mut self) -> SocketAddr {
        self.transport
            .listen("127.0.0.1:0".parse().unwrap())
            .unwrap()
            .1
    }

    pub fn adopt(&mut self) -> LinkId {
        let accepted = self.seen.accepted.pop_front().unwrap();
        self.transport.adopt(accepted, HEAD).unwrap()
    }

    /// Waits for a connection and adopts it.
    pub fn accept(&mut self) -> LinkId {
        self.until("a connection came", |seen| !seen.accepted.is_empty());
        self.adopt()
    }

    pub fn send(&mut self, link: LinkId, token: u64, payload: &Buffer) -> bool {
        self.transport.send(link, message(token, payload)).is_ok()
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

/// Two sides, and the ids that the link between them has on each.
pub fn pair(driver: DriverRequest) -> (Side, LinkId, Side, LinkId) {
    let (mut a, mut b) = (Side::new(driver), Side::new(driver));
    let (dialled, adopted) = join(&mut a, &mut b, 1);
    (a, dialled[0], b, adopted[0])
}

/// Joins two sides by so many links; returns those that `a` has dialled, and those that `b` has
/// adopted.
pub fn join(a: &mut Side, b: &mut Side, count: usize) -> (Vec<LinkId>, Vec<LinkId>) {
    let address = b.listen();
    let dialled: Vec<_> = (0..count)
        .map(|_| a.transport.connect(address).unwrap())
        .collect();
    both(a, b, "all are connected", |a, b| {
        a.connected.len() == count && b.accepted.len() == count
    });
    let adopted = (0..count).map(|_| b.adopt()).collect();
    (dialled, adopted)
}

/// Whether a descriptor is readable by then.
pub fn is_readable(fd: BorrowedFd<'_>, timeout: Duration) -> bool {
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: i64::from(timeout.subsec_nanos()),
    };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

/// The descriptor that a side lends once a turn has nothing left to do; going to sleep may itself
/// leave some.
pub fn lent(side: &mut Side) -> OwnedFd {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(fd) = side.transport.park_fd() {
            return fd.try_clone_to_owned().unwrap();
        }
        assert!(Instant::now() < end, "there is always something left to do");
        side.turn();
    }
}

pub fn message(token: u64, payload: &Buffer) -> Box<Frame> {
    let mut frame = Box::new(Frame::new());
    frame.token = token;
    let head = (payload.len() as u64).to_le_bytes();
    frame.bytes_mut().extend_from_slice(&head);
    frame.attach(payload.clone());
    frame
}

/// Bytes that differ from their neighbours.
pub fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|i| ((i * 31 + seed * 7) ^ (i >> 8)) as u8)
        .collect()
}

/// Runs each test with each driver.
#[macro_export]
macro_rules! for_each_driver {
    ($($(#[$meta:meta])* fn $name:ident($driver:ident) $body:block)*) => { $(
        mod $name {
            use super::*;

            fn run($driver: DriverRequest) $body

            $(#[$meta])*
            #[test]
            fn epoll() {
                run(DriverRequest::Epoll);
            }

            $(#[$meta])*
            #[test]
            fn io_uring() {
                if has_io_uring() {
                    run(DriverRequest::IoUring);
                }
            }
        }
    )* };
}

/// Whether the ring works here; says so if not.
#[allow(clippy::print_stderr)]
pub fn has_io_uring() -> bool {
    let options = TcpOptions::default().with(|options| options.driver = DriverRequest::IoUring);
    match TcpTransport::open(options) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("skipped: {error}");
            false
        }
    }
}

pub const HEAD: Next = Next::Head { at_least_bytes: 8 };

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);
