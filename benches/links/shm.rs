//! How far links over shared memory are from the raw ring, from our own TCP, and from a copy.
//!
//! Two threads with a transport each, spinning, as two shards with polling do; every figure of a
//! run comes from rounds that alternate between the candidates. Units: nanoseconds for one round
//! trip of 64 bytes, the least of the rounds' medians, since two spinning threads are at the mercy
//! of whatever else runs; gigabytes per second for one payload of 64 MiB, from the request until
//! the receiver has it and says so, the best of the rounds for the same reason.
//!
//! - `raw ring`: two cache-line aligned counters and 64 bytes, and nothing else: the floor of this
//!   machine.
//! - `shm`, `tcp`: links of this crate and of grpcxx-tcp, with the same handler.
//! - `shm, migrated from tcp`: the link that an engine uses, which looks at TCP now and then.
//! - `arena`: the payload lies in a shared arena and is borrowed. `foreign`: it does not, and is
//!   copied once, by the sender to where it can be borrowed. `foreign, seen`: it is copied once, by
//!   the receiver out of the sender's memory, which lies in huge pages. `foreign, ring`: it is
//!   copied twice, into the ring and out of it.
//! - `read`: the receiver also reads each byte. `memcpy`: one thread copies as much.
//!
//! `cargo bench --bench shm_links`

#![allow(
    clippy::print_stdout,
    missing_docs,
    reason = "a program that prints a table"
)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use grpcxx_memory::{Arena, ArenaOptions, Buffer, BufferMut};
use grpcxx_shm::{ShmMedium, ShmOptions, ShmTransport};
use grpcxx_tcp::{TcpOptions, TcpTransport};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migrating, Migration, Next,
    Outcome, Progress, Time, Transport,
};

fn main() {
    let quick = !std::env::args().any(|argument| argument == "--bench");
    let (rounds, trips, pulls) = if quick { (1, 200, 1) } else { (40, 500, 1) };
    if std::env::var_os("SHM_RING_BYTES").is_none() {
        latency(rounds, trips);
    }
    bandwidth(
        rounds.min(20),
        pulls,
        if quick { 1 << 20 } else { 64 << 20 },
    );
}

fn latency(rounds: usize, trips: usize) {
    let mut figures: [Vec<f64>; 4] = Default::default();
    let mut shm = Echo::start(|| ShmTransport::open(ShmOptions::default()).unwrap(), false);
    let mut tcp = Echo::start(tcp, false);
    let mut migrated = Echo::start(migrating, true);
    for _ in 0..rounds {
        figures[0].push(raw_ring(trips));
        figures[1].push(shm.round_trips(trips));
        figures[2].push(migrated.round_trips(trips));
        figures[3].push(tcp.round_trips(trips));
    }
    let [raw, shm, migrated, tcp] = figures.map(least);
    println!("64 B round trip, least p50 of {rounds} rounds of {trips}, ns");
    println!("  raw ring              {raw:8.0}");
    println!(
        "  shm                   {shm:8.0}   {:.2} x raw ring",
        shm / raw
    );
    println!(
        "  shm, migrated from tcp   {migrated:8.0}   {:.2} x raw ring",
        migrated / raw
    );
    println!(
        "  tcp                   {tcp:8.0}   {:.1} x shm, {:.1} x migrated",
        tcp / shm,
        tcp / migrated
    );
}

fn bandwidth(rounds: usize, pulls: usize, len: usize) {
    let [lent, foreign] = [true, false].map(|shared| payload(len, shared));
    let mut shm = Echo::start(|| ShmTransport::open(ring_options()).unwrap(), false);
    // Links of their own, on which the receiver has the memory of the pull before.
    let mut shown = Echo::start(|| ShmTransport::open(no_bounce()).unwrap(), false);
    let mut ring = Echo::start(|| ShmTransport::open(ring_only()).unwrap(), false);
    let mut tcp = Echo::start(tcp, false);
    let (source, mut target) = (vec![1u8; len], vec![0u8; len]);
    let mut figures: [Vec<f64>; 8] = Default::default();
    let rate = |ns: f64| len as f64 / ns;
    for _ in 0..rounds {
        figures[0].push(rate(shm.pull(&lent, pulls, false)));
        figures[1].push(rate(shm.pull(&lent, pulls, true)));
        figures[2].push(rate(shown.pull(&foreign, pulls, false)));
        figures[3].push(rate(tcp.pull(&lent, pulls, false)));
        figures[4].push(rate(tcp.pull(&lent, pulls, true)));
        let start = Instant::now();
        target.copy_from_slice(&source);
        std::hint::black_box(&target);
        figures[5].push(rate(start.elapsed().as_nanos() as f64));
        figures[6].push(rate(ring.pull(&foreign, pulls, false)));
        figures[7].push(rate(shm.pull(&foreign, pulls, false)));
    }
    let [
        arena,
        arena_read,
        seen,
        tcp,
        tcp_read,
        memcpy,
        ring,
        foreign,
    ] = figures.map(most);
    println!(
        "{} MiB pull, best of {rounds} rounds of {pulls}, GB/s",
        len >> 20
    );
    println!("  shm, arena            {arena:8.2}   no copy");
    println!(
        "  shm, arena, read      {arena_read:8.2}   {:.2} x tcp, read",
        arena_read / tcp_read
    );
    println!(
        "  shm, foreign          {foreign:8.2}   {:.2} x tcp, {:.2} x memcpy",
        foreign / tcp,
        foreign / memcpy
    );
    println!(
        "  shm, foreign, seen    {seen:8.2}   {:.2} x tcp, {:.2} x memcpy",
        seen / tcp,
        seen / memcpy
    );
    println!(
        "  shm, foreign, ring    {ring:8.2}   {:.2} x tcp, {:.2} x memcpy",
        ring / tcp,
        ring / memcpy
    );
    println!("  tcp                   {tcp:8.2}");
    println!("  tcp, read             {tcp_read:8.2}");
    println!("  memcpy                {memcpy:8.2}");
}

/// A payload in huge pages, in an arena that others can map or not.
fn payload(len: usize, shared: bool) -> Buffer {
    let mut arena = Arena::new(ArenaOptions::default().with(|options| {
        options.capacity_bytes = 256 << 20;
        options.huge_pages = true;
        options.shared = shared;
    }))
    .unwrap();
    let mut memory = arena.allocate(len).unwrap();
    memory.fill(7);
    memory.freeze()
}

/// `SHM_RING_BYTES` tries another length of the rings.
fn ring_options() -> ShmOptions {
    ShmOptions::default().with(|options| {
        if let Ok(bytes) = std::env::var("SHM_RING_BYTES") {
            options.ring_bytes = bytes.parse().unwrap();
        }
    })
}

/// Links that copy nothing to where it can be borrowed.
fn no_bounce() -> ShmOptions {
    ring_options().with(|options| options.bounce_arena_bytes = 0)
}

/// Links that, too, read nothing out of other processes.
fn ring_only() -> ShmOptions {
    no_bounce().with(|options| options.show_bytes_min = usize::MAX)
}

fn tcp() -> TcpTransport {
    TcpTransport::open(TcpOptions::default()).unwrap().0
}

fn migrating() -> Migrating<TcpTransport, ShmMedium> {
    let mut transport = Migrating::new(tcp());
    let medium = ShmMedium::open(ShmOptions::default()).unwrap();
    transport.enable(medium).unwrap();
    transport
}

/// A link between this thread and one that sends back what it gets.
struct Echo<T: Transport> {
    transport: T,
    link: LinkId,
    near: End<T::Accepted>,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
    start: Instant,
}

/// Takes messages: 8 bytes of length, then as many bytes.
struct End<A> {
    accepted: Option<A>,
    connected: bool,
    is_migrated: bool,
    /// Messages that came.
    messages: u64,
    /// Whether to look at each byte.
    reads: bool,
    checksum: u64,
    spare: Option<BufferMut>,
    #[allow(clippy::vec_box, reason = "links take boxes")]
    frames: Vec<Box<Frame>>,
}

impl<A> Default for End<A> {
    fn default() -> Self {
        Self {
            accepted: None,
            connected: false,
            is_migrated: false,
            messages: 0,
            reads: false,
            checksum: 0,
            spare: None,
            frames: Vec::new(),
        }
    }
}

impl<A> LinkHandler<A> for End<A> {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, accepted: A) {
        self.accepted = Some(accepted);
    }

    fn connected(&mut self, _: LinkId) -> Next {
        self.connected = true;
        HEAD
    }

    fn received(&mut self, _: LinkId, bytes: &[u8]) -> Progress {
        let mut consumed_bytes = 0;
        while let Some(head) = bytes[consumed_bytes..].first_chunk() {
            let len = u64::from_le_bytes(*head) as usize;
            if len < SMALL {
                if bytes.len() - consumed_bytes < 8 + len {
                    break;
                }
                consumed_bytes += 8 + len;
                self.messages += 1;
                continue;
            }
            consumed_bytes += 8;
            let spare = self.spare.take().filter(|spare| spare.len() == len);
            let memory = spare.unwrap_or_else(|| BufferMut::zeroed(len));
            let mut landing = Landing::replaceable(memory);
            consumed_bytes += landing.fill_from(&bytes[consumed_bytes..]);
            let next = Next::Land(landing);
            return Progress {
                consumed_bytes,
                next,
            };
        }
        let at_least_bytes = (bytes.len() - consumed_bytes + 1).max(8);
        Progress {
            consumed_bytes,
            next: Next::Head { at_least_bytes },
        }
    }

    fn landed(&mut self, _: LinkId, landing: Landing, outcome: Outcome) -> Next {
        if outcome == Outcome::Done {
            let payload = landing.into_shared();
            if self.reads {
                let words = payload.chunks_exact(8);
                self.checksum = words
                    .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
                    .fold(self.checksum, u64::wrapping_add);
            }
            self.spare = payload.try_into_mut().ok();
            self.messages += 1;
        }
        HEAD
    }

    fn sent(&mut self, _: LinkId, mut frame: Box<Frame>, _: Outcome) {
        frame.clear();
        self.frames.push(frame);
    }

    fn closed(&mut self, _: LinkId, _: &CloseReason) {}

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, news: Migration<'_>) {
        self.is_migrated |= matches!(news, Migration::Migrated(_));
    }
}

impl<A> End<A> {
    fn frame(&mut self, payload: &Buffer) -> Box<Frame> {
        let mut frame = self.frames.pop().unwrap_or_default();
        frame
            .bytes_mut()
            .extend_from_slice(&(payload.len() as u64).to_le_bytes());
        if payload.len() < SMALL {
            frame.bytes_mut().extend_from_slice(payload);
        } else {
            frame.attach(payload.clone());
        }
        frame
    }
}

impl<T: Transport> Echo<T> {
    fn start(open: fn() -> T, moves: bool) -> Self
    where
        T: 'static,
    {
        let (tell, told) = channel();
        let (tell_offer, told_offer) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut transport = open();
            let any = "127.0.0.1:0".parse().unwrap();
            tell.send(transport.listen(any).unwrap().1).unwrap();
            let (mut end, start) = (End::default(), Instant::now());
            let mut link = None;
            let (mut answered, small) = (0, Buffer::from(vec![1; 56]));
            let mut patience = Patience::default();
            while !stopping.load(Ordering::Relaxed) {
                patience.spin();
                if transport.turn(Time::ZERO + start.elapsed(), &mut end) > 0 {
                    patience = Patience::default();
                }
                if let Some(accepted) = end.accepted.take() {
                    let adopted = transport.adopt(accepted, HEAD).unwrap();
                    if moves {
                        tell_offer.send(transport.offer(adopted).unwrap()).unwrap();
                    }
                    link = Some(adopted);
                }
                while let (true, Some(link)) = (answered < end.messages, link) {
                    answered += 1;
                    // Large messages end at this side, and are acknowledged.
                    let frame = end.frame(&small);
                    assert!(transport.send(link, frame).is_ok());
                }
                end.reads = READS.load(Ordering::Relaxed);
            }
        });
        let address = told.recv().unwrap();
        let mut transport = open();
        let link = transport.connect(address).unwrap();
        let mut echo = Self {
            transport,
            link,
            near: End::default(),
            stop,
            thread: Some(thread),
            start: Instant::now(),
        };
        while !echo.near.connected {
            echo.turn();
        }
        if moves {
            echo.transport.upgrade(link, &told_offer.recv().unwrap());
            while !echo.near.is_migrated {
                echo.turn();
            }
        }
        echo.round_trips(100);
        echo
    }

    fn turn(&mut self) {
        let now = Time::ZERO + self.start.elapsed();
        self.transport.turn(now, &mut self.near);
    }

    fn exchange(&mut self, payload: &Buffer) {
        let frame = self.near.frame(payload);
        let before = self.near.messages;
        assert!(self.transport.send(self.link, frame).is_ok());
        let mut patience = Patience::default();
        while self.near.messages == before {
            self.turn();
            patience.spin();
        }
    }

    /// Median time of a round trip, in nanoseconds.
    fn round_trips(&mut self, count: usize) -> f64 {
        let small = Buffer::from(vec![1; 56]);
        let times = (0..count).map(|_| {
            let start = Instant::now();
            self.exchange(&small);
            start.elapsed().as_nanos() as f64
        });
        let times = times.collect();
        median(times)
    }

    /// Median time until the other side has a payload, in nanoseconds.
    fn pull(&mut self, payload: &Buffer, count: usize, reads: bool) -> f64 {
        READS.store(reads, Ordering::Relaxed);
        self.round_trips(10);
        let times = (0..count).map(|_| {
            let start = Instant::now();
            self.exchange(payload);
            start.elapsed().as_nanos() as f64
        });
        let times = times.collect();
        median(times)
    }
}

impl<T: Transport> Drop for Echo<T> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// One direction of the floor: 56 bytes, and a counter that says which message they are.
#[repr(align(128))]
#[derive(Default)]
struct Slot {
    count: AtomicU64,
    words: [AtomicU64; 7],
}

fn raw_ring(trips: usize) -> f64 {
    let slots = Arc::new([0; 2].map(|_| Slot::default()));
    let there = Arc::clone(&slots);
    let trips = trips as u64;
    let write = |slot: &Slot, count: u64| {
        for word in &slot.words {
            word.store(count, Ordering::Relaxed);
        }
        slot.count.store(count, Ordering::Release);
    };
    let read = |slot: &Slot, count: u64| {
        let mut patience = Patience::default();
        while slot.count.load(Ordering::Acquire) != count {
            std::hint::spin_loop();
            patience.spin();
        }
        let words = slot.words.iter().map(|word| word.load(Ordering::Relaxed));
        std::hint::black_box(words.sum::<u64>());
    };
    let thread = std::thread::spawn(move || {
        for count in 1..=trips {
            read(&there[0], count);
            write(&there[1], count);
        }
    });
    let times = (1..=trips).map(|count| {
        let start = Instant::now();
        write(&slots[0], count);
        read(&slots[1], count);
        start.elapsed().as_nanos() as f64
    });
    let times = times.collect();
    thread.join().unwrap();
    median(times)
}

/// Yields after a long wait: where others need the CPU too, two spinners would keep it from each
/// other. What waits for less is not touched.
#[derive(Default)]
struct Patience(u32);

impl Patience {
    fn spin(&mut self) {
        self.0 += 1;
        if self.0 > 2000 {
            self.0 = 0;
            std::thread::yield_now();
        }
    }
}

/// The round that nobody else disturbed.
fn least(figures: Vec<f64>) -> f64 {
    figures.into_iter().fold(f64::INFINITY, f64::min)
}

fn most(figures: Vec<f64>) -> f64 {
    figures.into_iter().fold(0.0, f64::max)
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Whether the thread that answers looks at each byte of a payload.
static READS: AtomicBool = AtomicBool::new(false);

const HEAD: Next = Next::Head { at_least_bytes: 8 };

/// Payloads shorter than this travel within the head.
const SMALL: usize = 1024;
