//! Links that start on TCP and go on in shared memory.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use grpcxx_memory::{Arena, ArenaOptions, Buffer};
use grpcxx_shm::{ShmMedium, ShmOptions};
use grpcxx_tcp::{Accepted, DriverRequest, TcpOptions, TcpTransport};
use grpcxx_transport::conformance::{self, Bounds, Environment, Ledger};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, LinkLimits, ListenerId, Migrating, Migration,
    Next, Outcome, Park, Progress, Time, Transport,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{private_arena, shared_arena};

type Links = Migrating<TcpTransport, ShmMedium>;

fn links(driver: DriverRequest, options: ShmOptions) -> Links {
    let tcp = TcpOptions::default().with(|changed| {
        changed.driver = driver;
        changed.limits = options.limits;
    });
    let (tcp, _) = TcpTransport::open(tcp).unwrap();
    let mut links = Migrating::new(tcp);
    links.enable(ShmMedium::open(options).unwrap()).unwrap();
    links
}

/// The drivers that work here.
fn drivers() -> Vec<DriverRequest> {
    let ring = TcpOptions::default().with(|options| options.driver = DriverRequest::IoUring);
    match TcpTransport::open(ring) {
        Ok(_) => vec![DriverRequest::Epoll, DriverRequest::IoUring],
        Err(_) => vec![DriverRequest::Epoll],
    }
}

struct Unmigrated {
    driver: DriverRequest,
    start: Instant,
}

impl Environment for Unmigrated {
    type Transport = Links;

    fn name(&self) -> String {
        format!("tcp/{}, from where links can migrate", self.driver)
    }

    fn pair(&mut self, limits: LinkLimits) -> [Links; 2] {
        [0, 1].map(|_| {
            let options = ShmOptions::default().with(|options| options.limits = limits);
            links(self.driver, options)
        })
    }

    fn address(&self, _: usize) -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    fn advance(&mut self) -> Time {
        std::thread::yield_now();
        Time::ZERO + self.start.elapsed()
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            patience: Duration::from_secs(60),
            ..Bounds::default()
        }
    }

    fn sever(&mut self, transport: &mut Links, link: LinkId) -> bool {
        let base = transport.base_link(link);
        let socket = base.and_then(|base| transport.base().socket(base));
        socket.is_some_and(|socket| rustix::net::connect_unspec(socket).is_ok())
    }
}

#[test]
fn links_that_do_not_migrate_pass_the_suites() {
    for driver in drivers() {
        let mut environment = Unmigrated {
            driver,
            start: Instant::now(),
        };
        conformance::run(&mut environment);
        conformance::park::run(&mut environment);
    }
}

/// Takes messages: 8 bytes of length, then as many bytes, each the number of the message.
#[derive(Default)]
struct Reader {
    accepted: Vec<Accepted>,
    connected: bool,
    messages: u64,
    bytes: u64,
    borrowed: bool,
    /// What was borrowed, if it is not to be given back.
    kept: Option<Vec<Buffer>>,
    sent: usize,
    lost: usize,
    /// Pause after so many messages, once.
    pause_after: Option<u64>,
    paused: bool,
    closed: Option<CloseReason>,
}

impl Reader {
    fn check(&mut self, payload: &[u8]) {
        let number = self.messages as u8;
        assert!(
            payload.iter().all(|&byte| byte == number),
            "message {}",
            self.messages
        );
        self.messages += 1;
        self.bytes += payload.len() as u64;
    }

    fn next(&mut self) -> Next {
        if self.pause_after == Some(self.messages) {
            self.pause_after = None;
            self.paused = true;
            return Next::Pause;
        }
        HEAD
    }
}

impl LinkHandler<Accepted> for Reader {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, accepted: Accepted) {
        self.accepted.push(accepted);
    }

    fn connected(&mut self, _: LinkId) -> Next {
        self.connected = true;
        HEAD
    }

    fn received(&mut self, _: LinkId, bytes: &[u8]) -> Progress {
        let mut consumed_bytes = 0;
        while let Some(head) = bytes[consumed_bytes..].first_chunk() {
            consumed_bytes += 8;
            let len = u64::from_le_bytes(*head) as usize;
            // Every seventh message is dropped unseen.
            if self.messages % 7 == 6 && len > 0 {
                self.messages += 1;
                let next = Next::Discard {
                    bytes: len as u64,
                    then_at_least_bytes: 8,
                };
                return Progress {
                    consumed_bytes,
                    next,
                };
            }
            if len > 0 {
                let memory = grpcxx_memory::BufferMut::zeroed(len);
                let mut landing = Landing::replaceable(memory);
                if self.messages.is_multiple_of(2) {
                    // As a connection does, it takes along what is there.
                    consumed_bytes += landing.fill_from(&bytes[consumed_bytes..]);
                }
                if landing.is_full() {
                    self.check(&landing.into_shared());
                    continue;
                }
                return Progress {
                    consumed_bytes,
                    next: Next::Land(landing),
                };
            }
            self.check(&[]);
            if self.pause_after == Some(self.messages) {
                break;
            }
        }
        Progress {
            consumed_bytes,
            next: self.next(),
        }
    }

    fn landed(&mut self, _: LinkId, landing: Landing, outcome: Outcome) -> Next {
        if outcome == Outcome::Lost {
            return Next::Pause;
        }
        let payload = landing.into_shared();
        self.check(&payload);
        match &mut self.kept {
            Some(kept) => kept.push(payload),
            // Memory of its own could be written.
            None => self.borrowed |= payload.try_into_mut().is_err(),
        }
        self.next()
    }

    fn sent(&mut self, _: LinkId, _: Box<Frame>, outcome: Outcome) {
        match outcome {
            Outcome::Done => self.sent += 1,
            Outcome::Lost => self.lost += 1,
        }
    }

    fn closed(&mut self, _: LinkId, reason: &CloseReason) {
        assert!(self.closed.replace(reason.clone()).is_none());
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

struct Side {
    transport: Ledger<Links>,
    reader: Reader,
    link: LinkId,
    written: u64,
    start: Instant,
}

impl Side {
    fn turn(&mut self) -> usize {
        let now = Time::ZERO + self.start.elapsed();
        self.transport.turn(now, &mut self.reader)
    }

    /// Sends the next message if the link takes it.
    fn send(&mut self, len: usize, arena: Option<&mut Arena>) -> bool {
        let byte = self.written as u8;
        let payload = match arena {
            Some(arena) => {
                let Ok(mut memory) = arena.allocate(len) else {
                    return false;
                };
                memory.fill(byte);
                memory.freeze()
            }
            None => Buffer::from(vec![byte; len]),
        };
        let mut frame = Box::new(Frame::new());
        let head = (len as u64).to_le_bytes();
        frame.bytes_mut().extend_from_slice(&head);
        frame.attach(payload);
        let sent = self.transport.send(self.link, frame).is_ok();
        self.written += u64::from(sent);
        sent
    }

    fn shm(&self) -> &ShmMedium {
        self.transport.inner().medium().unwrap()
    }
}

/// Two sides with a link; the first has dialled.
fn pair(driver: DriverRequest, options: ShmOptions) -> [Side; 2] {
    pair_over(driver, options, |address| address)
}

/// Two sides with a link; the first has dialled the address that `via` makes of the other's.
fn pair_over(
    driver: DriverRequest,
    options: ShmOptions,
    via: impl Fn(SocketAddr) -> SocketAddr,
) -> [Side; 2] {
    let mut sides = [0, 1].map(|index| Side {
        transport: Ledger::new(links(driver, options.clone()), format!("side {index}")),
        reader: Reader::default(),
        link: LinkId {
            slot: 0,
            generation: 0,
        },
        written: 0,
        start: Instant::now(),
    });
    let any = "127.0.0.1:0".parse().unwrap();
    let (_, address) = sides[1].transport.listen(any).unwrap();
    connect(&mut sides, via(address));
    sides
}

/// Lets the first side dial an address of the second.
fn connect(sides: &mut [Side; 2], address: SocketAddr) {
    sides[0].link = sides[0].transport.connect(address).unwrap();
    until(sides, "connected", |[a, b]| {
        a.reader.connected && !b.reader.accepted.is_empty()
    });
    let accepted = sides[1].reader.accepted.pop().unwrap();
    sides[1].link = sides[1].transport.adopt(accepted, HEAD).unwrap();
}

fn until(sides: &mut [Side; 2], what: &str, mut done: impl FnMut(&mut [Side; 2]) -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !done(sides) {
        assert!(Instant::now() < end, "waited too long until {what}");
        if sides[0].turn() + sides[1].turn() == 0 {
            std::thread::yield_now();
        }
    }
}

/// Lets the dialler take the acceptor's offer.
fn upgrade(sides: &mut [Side; 2]) {
    let link = sides[1].link;
    let offer = sides[1].transport.offer(link).unwrap();
    let link = sides[0].link;
    sides[0].transport.upgrade(link, &offer);
}

fn migrated(driver: DriverRequest, options: ShmOptions) -> [Side; 2] {
    let mut sides = pair(driver, options);
    upgrade(&mut sides);
    until(&mut sides, "both have migrated", |sides| {
        sides
            .iter_mut()
            .all(|side| side.shm().migrated_links() == 1)
    });
    sides
}

/// Frames in flight at the switch arrive once and in order, in both directions, wherever the switch
/// falls.
#[test]
fn streams_go_on_across_the_switch() {
    let seed =
        std::env::var("GRPCXX_SEED").map_or_else(|_| fastrand::u64(..), |s| s.parse().unwrap());
    for driver in drivers() {
        for round in 0..40 {
            let name = format!("GRPCXX_SEED={seed}, {driver}, round {round}");
            let mut random = fastrand::Rng::with_seed(seed ^ round);
            let mut sides = pair(driver, ShmOptions::default());
            let mut arena = Arena::new(ArenaOptions::default().with(|options| {
                options.capacity_bytes = 64 << 20;
                options.huge_pages = false;
                options.shared = true;
            }))
            .unwrap();
            if random.bool() {
                sides[1].reader.pause_after = Some(random.u64(..60));
            }
            let at = random.u64(..60);
            let mut asked = false;
            while sides.iter().any(|side| side.written < 120) {
                let side = random.usize(..2);
                if sides[side].written < 120 {
                    let len = match random.u8(..4) {
                        0 => 0,
                        1 => random.usize(..600),
                        2 => random.usize(..20_000),
                        _ => random.usize(..300_000),
                    };
                    let arena = random.bool().then_some(&mut arena);
                    sides[side].send(len, arena);
                }
                if sides[0].written >= at && !std::mem::replace(&mut asked, true) {
                    upgrade(&mut sides);
                }
                let side = random.usize(..2);
                for _ in 0..random.usize(..4) {
                    sides[side].turn();
                }
                resume(&mut sides[1]);
            }
            until(&mut sides, &name, |sides| {
                resume(&mut sides[1]);
                (0..2).all(|side| sides[side].written == sides[1 - side].reader.messages)
            });
            for side in &mut sides {
                assert_eq!(side.shm().counters().links, 1, "{name}");
                assert_eq!(side.shm().last_failure(), None);
                assert_eq!(side.reader.lost, 0);
            }
            let [a, b] = &mut sides;
            let link = a.link;
            a.transport.close(link, true);
            let _ = b;
            until(&mut sides, &name, |sides| {
                sides.iter().all(|side| side.reader.closed.is_some())
            });
            assert_eq!(
                sides[1].reader.closed,
                Some(CloseReason::EndOfStream),
                "{name}"
            );
            for side in &sides {
                side.transport.assert_settled();
            }
        }
    }
}

/// Who stands between two processes of a host may pass the offer of one on to the other. The two
/// would prove to each other that they run as one user, and what the third sends would count as
/// that user's.
#[test]
fn an_offer_that_somebody_passes_on_is_refused() {
    for driver in drivers() {
        let mut sides = pair_over(driver, ShmOptions::default(), forwarder);
        upgrade(&mut sides);
        until(&mut sides, "the offer is refused", |sides| {
            sides[0].shm().last_failure().is_some()
        });
        let reason = sides[0].shm().last_failure().unwrap();
        assert!(
            reason.contains("not the ends of one connection"),
            "{reason}"
        );
        assert_eq!(sides[1].shm().counters().refused, 1);
        // The stream goes on where it is.
        assert!(sides[0].send(1000, None));
        until(&mut sides, "a message has come", |sides| {
            sides[1].reader.messages == 1
        });
        for side in &sides {
            assert_eq!(side.shm().migrated_links(), 0);
        }
    }
}

/// Passes on what comes in one connection to another one, in both directions.
fn forwarder(target: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(target).unwrap();
        for (from, to) in [(&near, &far), (&far, &near)] {
            let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
            std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        }
    });
    address
}

/// A peer may end its links and keep what they lent it. Those that come then stay on TCP, where
/// nothing is lent.
#[test]
fn what_ended_links_still_lend_is_bounded() {
    for driver in drivers() {
        let options = ShmOptions::default().with(|options| options.lent_bytes_max = 150_000);
        let mut sides = pair(driver, options);
        let (_, address) = (sides[1].transport.listen("127.0.0.1:0".parse().unwrap())).unwrap();
        // So small that each loan is a good part of it, which nobody copies.
        let mut arena = Arena::new(ArenaOptions::default().with(|options| {
            options.capacity_bytes = 256 << 10;
            options.huge_pages = false;
            options.shared = true;
        }))
        .unwrap();
        sides[0].reader.kept = Some(Vec::new());
        for round in 0..2 {
            upgrade(&mut sides);
            until(&mut sides, "both have migrated", |sides| {
                sides.iter().all(|side| side.shm().migrated_links() == 1)
            });
            assert!(sides[1].send(100_000, Some(&mut arena)));
            until(&mut sides, "it came", |sides| {
                sides[0].reader.messages == round + 1
            });
            dial_again(&mut sides, address);
        }
        upgrade(&mut sides);
        until(&mut sides, "the offer is refused", |sides| {
            sides[0].shm().last_failure().is_some()
        });
        let reason = sides[0].shm().last_failure().unwrap();
        assert!(reason.contains("peers keep 200000 bytes"), "{reason}");
        sides[0].reader.kept = Some(Vec::new());
        dial_again(&mut sides, address);
        upgrade(&mut sides);
        until(&mut sides, "what is given back does not count", |sides| {
            sides.iter().all(|side| side.shm().migrated_links() == 1)
        });
    }
}

/// Closes the link and makes another one.
fn dial_again(sides: &mut [Side; 2], address: SocketAddr) {
    let link = sides[0].link;
    sides[0].transport.close(link, false);
    until(sides, "it closed", |sides| {
        sides.iter().all(|side| side.reader.closed.is_some())
    });
    for side in sides.iter_mut() {
        side.reader.closed = None;
        side.reader.connected = false;
    }
    connect(sides, address);
}

fn resume(side: &mut Side) {
    if std::mem::take(&mut side.reader.paused) {
        side.transport.resume(side.link, HEAD).unwrap();
    }
}

#[test]
fn a_link_that_has_migrated_ends_as_links_do() {
    for driver in drivers() {
        for (closer, flush) in [(0, false), (0, true), (1, false), (1, true)] {
            let mut sides = migrated(driver, ShmOptions::default());
            for _ in 0..50 {
                assert!(sides[closer].send(10_000, None));
            }
            let link = sides[closer].link;
            sides[closer].transport.close(link, flush);
            until(&mut sides, "both are closed", |sides| {
                sides.iter().all(|side| side.reader.closed.is_some())
            });
            assert_eq!(sides[closer].reader.closed, Some(CloseReason::Local));
            assert_eq!(
                sides[1 - closer].reader.closed,
                Some(CloseReason::EndOfStream)
            );
            assert_eq!(sides[closer].reader.sent + sides[closer].reader.lost, 50);
            if flush {
                assert_eq!(sides[1 - closer].reader.messages, 50);
            }
            for side in &mut sides {
                assert_eq!(side.shm().migrated_links(), 0);
                side.transport.assert_settled();
            }
        }
        let [mut a, b] = migrated(driver, ShmOptions::default());
        assert!(a.send(100, None));
        drop(b);
        let end = Instant::now() + Duration::from_secs(10);
        while a.reader.closed.is_none() {
            assert!(Instant::now() < end, "the end of the peer is not noticed");
            a.turn();
        }
        assert_ne!(a.reader.closed, Some(CloseReason::Local));
        a.transport.assert_settled();
    }
}

#[test]
fn links_that_cannot_migrate_stay_and_say_why() {
    for (spoil, expected) in [
        (0, "no such link"),
        (1, ""),
        (2, "another network namespace"),
        (3, "cannot be read"),
        (4, "all 0 links"),
        (5, "allowed are 0"),
    ] {
        let mut options = ShmOptions::default();
        match spoil {
            4 => options.limits.links = 0,
            5 => options.mapped_bytes_max = 0,
            _ => {}
        }
        let mut sides = pair(DriverRequest::Epoll, ShmOptions::default());
        if spoil >= 4 {
            let tcp = TcpOptions::default().with(|options| options.driver = DriverRequest::Epoll);
            let (tcp, _) = TcpTransport::open(tcp).unwrap();
            let link = sides[1].link;
            let offer = sides[1].transport.offer(link).unwrap();
            let mut none = Migrating::new(tcp);
            none.enable(ShmMedium::open(options).unwrap()).unwrap();
            let link = none.connect("127.0.0.1:1".parse().unwrap()).unwrap();
            none.upgrade(link, &offer);
            let failure = none.medium().unwrap().last_failure();
            assert!(failure.unwrap().contains(expected));
            continue;
        }
        let link = sides[1].link;
        let mut offer = sides[1].transport.offer(link).unwrap();
        match spoil {
            0 => offer[30] ^= 1,
            1 => offer[0] ^= 1,
            2 => offer.push(b'x'),
            _ => offer.truncate(20),
        }
        let link = sides[0].link;
        sides[0].transport.upgrade(link, &offer);
        for round in 1..20 {
            assert!(sides[0].send(1000, None) && sides[1].send(100_000, None));
            until(&mut sides, "messages go on", |sides| {
                sides.iter().all(|side| side.reader.messages == round)
            });
        }
        until(&mut sides, "the failure is noted", |sides| {
            let counters = sides[0].shm().counters();
            counters.failures + counters.elsewhere == 1
        });
        let failure = sides[0].shm().last_failure().unwrap_or_default().to_owned();
        assert!(failure.contains(expected), "{failure}");
        assert_eq!(sides[0].shm().migrated_links(), 0);
    }
}

#[test]
fn a_dialler_that_gives_up_leaves_the_link_where_it_is() {
    let mut sides = pair(DriverRequest::Epoll, ShmOptions::default());
    upgrade(&mut sides);
    // The acceptor does not turn for longer than a handshake may take.
    let end = Instant::now() + Duration::from_millis(1300);
    while Instant::now() < end {
        sides[0].turn();
        std::thread::sleep(Duration::from_millis(5));
    }
    for _ in 0..20 {
        assert!(sides[0].send(1000, None) && sides[1].send(1000, None));
    }
    until(&mut sides, "messages go on", |sides| {
        sides.iter().all(|side| side.reader.messages == 20)
    });
    assert_eq!(
        sides.each_mut().map(|side| side.shm().migrated_links()),
        [0, 0]
    );
}

#[test]
fn sleepers_are_woken_through_the_first_medium() {
    for driver in drivers() {
        let mut sides = migrated(driver, ShmOptions::default());
        for round in 1..=200 {
            for _ in 0..20 {
                sides[0].turn();
                sides[1].turn();
            }
            let by_descriptor = round % 2 == 0;
            let start = Instant::now();
            if by_descriptor {
                let fd = prepare(&mut sides[1]);
                assert!(!is_readable(&fd, Duration::from_millis(1)));
                assert!(sides[0].send(100, None));
                sides[0].turn();
                assert!(is_readable(&fd, Duration::from_secs(5)), "round {round}");
                sides[1].transport.unpark();
            } else {
                let [a, b] = &mut sides;
                assert!(a.send(100, None));
                let waker = std::thread::scope(|scope| {
                    // Sent while the other sleeps, as far as can be told.
                    let parked = scope.spawn(move || {
                        std::thread::sleep(Duration::from_millis(1));
                    });
                    a.turn();
                    b.transport.park(Some(Duration::from_secs(5))).unwrap();
                    parked.join()
                });
                waker.unwrap();
            }
            while sides[1].reader.messages < round {
                sides[1].turn();
                assert!(start.elapsed() < Duration::from_secs(4), "round {round}");
            }
        }
        // Idle, it sleeps as long as it may.
        let start = Instant::now();
        let mut parks = 0;
        while start.elapsed() < Duration::from_millis(50) {
            sides[1]
                .transport
                .park(Some(Duration::from_millis(50)))
                .unwrap();
            sides[1].turn();
            parks += 1;
        }
        assert!(parks < 20, "{parks} parks in 50 ms");
    }
}

#[test]
fn tensors_of_shared_arenas_are_borrowed_by_who_has_dialled() {
    let mut sides = migrated(DriverRequest::Epoll, ShmOptions::default());
    let mut arena = shared_arena();
    for (from, to) in [(1, 0), (0, 1)] {
        assert!(sides[from].send(8 << 20, Some(&mut arena)));
        until(&mut sides, "it came", |sides| {
            sides[to].reader.messages == 1
        });
    }
    let borrowed = |side: &Side| (side.reader.borrowed, side.shm().counters().borrowed_bytes);
    assert_eq!(borrowed(&sides[0]), (true, 8 << 20));
    assert_eq!(borrowed(&sides[1]), (false, 0));
}

#[test]
fn other_large_tensors_are_read_where_they_lie() {
    let mut sides = migrated(DriverRequest::Epoll, ShmOptions::default());
    let mut arena = private_arena();
    // The first pass through the ring, while the ends find out what they can do.
    for count in 1..=200 {
        assert!(sides[0].send(8 << 20, Some(&mut arena)));
        until(&mut sides, "it came", |sides| {
            sides[1].reader.messages == count
        });
        let [sent, got] = [0, 1].map(|side: usize| sides[side].shm().counters());
        assert_eq!(sent.shown_bytes, got.seen_bytes);
        if got.seen_bytes > 0 {
            return;
        }
    }
    #[expect(clippy::print_stderr, reason = "says what was not tested")]
    {
        eprintln!(
            "SKIPPED: no huge pages here, a kernel before 6.7, or one that lets no process read another"
        );
    }
}

/// Prepares a side for sleep; the base transport may have some turns of its own to do before.
fn prepare(side: &mut Side) -> std::os::fd::OwnedFd {
    for _ in 0..1000 {
        if let Some(fd) = side.transport.park_fd() {
            return fd.try_clone_to_owned().unwrap();
        }
        side.transport.unpark();
        side.turn();
    }
    panic!("there is always something to do");
}

fn is_readable(fd: impl std::os::fd::AsFd, timeout: Duration) -> bool {
    let fd: BorrowedFd<'_> = fd.as_fd();
    let timeout = Timespec {
        tv_sec: timeout.as_secs() as i64,
        tv_nsec: timeout.subsec_nanos().into(),
    };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

const HEAD: Next = Next::Head { at_least_bytes: 8 };
