//! How close do links come to bare sockets? Two threads, one CPU each, both ends spinning, over
//! loopback; the baseline is a pair of spinning non-blocking sockets in the same run.
//!
//! `cargo bench --bench tcp_links` prints a table: `cargo bench --bench tcp_links -- rtt` only the
//! rows whose name contains the word. Rounds of all candidates alternate, and the best of each
//! counts, since other load can only make things slower.

#![allow(clippy::print_stdout)]

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use grpcxx_benches::sockets::{self, read_some, write_all};
use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_tcp::{Accepted, DriverRequest, TcpOptions, TcpTransport};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress, Time, Transport,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

fn main() {
    let wanted: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with('-'))
        .collect();
    let cpus = allowed_cpus();
    println!(
        "loopback, client on CPU {}, server on CPU {}, best of {ROUNDS} rounds",
        cpus[0], cpus[1]
    );
    println!(
        "{:<34}{:>10}{:>12}{:>12}{:>10}{:>10}",
        "", "sockets", "io_uring", "epoll", "ratio", "ratio"
    );
    for case in CASES {
        if wanted.is_empty() || wanted.iter().any(|w| case.name.contains(w.as_str())) {
            case.report(&cpus);
        }
    }
}

struct Case {
    name: &'static str,
    unit: &'static str,
    links: usize,
    depth: usize,
    message_bytes: usize,
    /// Echo the message, or answer with 64 bytes.
    echoes: bool,
    more_is_better: bool,
    /// From the time that the messages took to the figure in `unit`.
    figure: fn(&Case, Outcomes) -> f64,
}

/// What one round of a case measured.
struct Outcomes {
    messages: usize,
    elapsed: Duration,
    /// Time of each round trip; only if one is out at a time.
    each_ns: Vec<u64>,
}

const CASES: &[Case] = &[
    Case {
        name: "rtt 64 B, p50",
        unit: "us",
        links: 1,
        depth: 1,
        message_bytes: 64,
        echoes: true,
        more_is_better: false,
        figure: |_, outcomes| percentile(outcomes, 50) / 1e3,
    },
    Case {
        name: "rtt 64 B, p99",
        unit: "us",
        links: 1,
        depth: 1,
        message_bytes: 64,
        echoes: true,
        more_is_better: false,
        figure: |_, outcomes| percentile(outcomes, 99) / 1e3,
    },
    Case {
        name: "echo 64 B, 1 link x 32",
        unit: "M/s",
        links: 1,
        depth: 32,
        message_bytes: 64,
        echoes: true,
        more_is_better: true,
        figure: |_, outcomes| outcomes.messages as f64 / outcomes.elapsed.as_secs_f64() / 1e6,
    },
    Case {
        name: "echo 64 B, 16 links x 32",
        unit: "M/s",
        links: 16,
        depth: 32,
        message_bytes: 64,
        echoes: true,
        more_is_better: true,
        figure: |_, outcomes| outcomes.messages as f64 / outcomes.elapsed.as_secs_f64() / 1e6,
    },
    Case {
        name: "one way 1 MiB",
        unit: "GB/s",
        links: 1,
        depth: 1,
        message_bytes: 1 << 20,
        echoes: false,
        more_is_better: true,
        figure: bandwidth,
    },
    Case {
        name: "one way 64 MiB",
        unit: "GB/s",
        links: 1,
        depth: 1,
        message_bytes: 64 << 20,
        echoes: false,
        more_is_better: true,
        figure: bandwidth,
    },
];

impl Case {
    fn report(&self, cpus: &[usize]) {
        let mut best = [f64::NAN; 3];
        for _ in 0..ROUNDS {
            for (index, driver) in [
                None,
                Some(DriverRequest::IoUring),
                Some(DriverRequest::Epoll),
            ]
            .into_iter()
            .enumerate()
            {
                let outcomes = match driver {
                    None => self.run_sockets(cpus),
                    Some(driver) => match self.run_links(driver, cpus) {
                        Some(outcomes) => outcomes,
                        None => continue,
                    },
                };
                let figure = (self.figure)(self, outcomes);
                let is_better = (figure > best[index]) == self.more_is_better;
                if best[index].is_nan() || is_better {
                    best[index] = figure;
                }
            }
        }
        let name = format!("{} ({})", self.name, self.unit);
        let [sockets, ring, epoll] = best;
        println!(
            "{name:<34}{sockets:>10.2}{ring:>12.2}{epoll:>12.2}{:>10.2}{:>10.2}",
            ring / sockets,
            epoll / sockets
        );
    }

    /// Messages of one round, enough for some hundredths of a second.
    fn messages(&self) -> usize {
        match self.message_bytes {
            64 if self.depth == 1 => 5_000,
            64 => 100_000,
            bytes => (256 << 20) / bytes,
        }
    }

    fn answer_bytes(&self) -> usize {
        if self.echoes {
            self.message_bytes
        } else {
            ANSWER_BYTES
        }
    }

    fn run_sockets(&self, cpus: &[usize]) -> Outcomes {
        let (near, mut far): (Vec<_>, Vec<_>) =
            (0..self.links).map(|_| sockets::pair().unwrap()).unzip();
        let server_cpu = cpus[1];
        let (message_bytes, echoes) = (self.message_bytes, self.echoes);
        let server = std::thread::spawn(move || {
            pin(server_cpu);
            if echoes {
                sockets::echo(far, BUFFER_BYTES);
            } else {
                sockets::answer(far.remove(0), message_bytes, ANSWER_BYTES);
            }
        });
        pin(cpus[0]);
        let outcomes = self.ask_sockets(near);
        server.join().unwrap();
        outcomes
    }

    fn ask_sockets(&self, mut streams: Vec<TcpStream>) -> Outcomes {
        let message = vec![1; self.message_bytes];
        let batch = message.repeat(self.depth);
        let mut answers = vec![0; BUFFER_BYTES];
        let (mut each_ns, mut left) = (Vec::new(), self.messages());
        let start = Instant::now();
        for stream in &mut streams {
            write_all(stream, &batch);
        }
        let mut partial = vec![0; streams.len()];
        let mut sent = Instant::now();
        while left > 0 {
            for (stream, partial) in streams.iter_mut().zip(&mut partial) {
                let bytes = read_some(stream, &mut answers).expect("the far side lives");
                *partial += bytes;
                let count = *partial / self.answer_bytes();
                *partial %= self.answer_bytes();
                left = left.saturating_sub(count);
                if self.depth == 1 && count == 1 {
                    each_ns.push(sent.elapsed().as_nanos() as u64);
                    sent = Instant::now();
                }
                if count > 0 && left > 0 {
                    write_all(stream, &batch[..count * self.message_bytes]);
                }
            }
        }
        Outcomes {
            messages: self.messages(),
            elapsed: start.elapsed(),
            each_ns,
        }
    }

    fn run_links(&self, driver: DriverRequest, cpus: &[usize]) -> Option<Outcomes> {
        let options = TcpOptions::default().with(|options| options.driver = driver);
        let (addresses, address): (Sender<Option<SocketAddr>>, Receiver<_>) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, server_cpu, server_options) = (Arc::clone(&stop), cpus[1], options.clone());
        let (message_bytes, answer_bytes) = (self.message_bytes, self.answer_bytes());
        let server = std::thread::spawn(move || {
            pin(server_cpu);
            let Ok((mut transport, _)) = TcpTransport::open(server_options) else {
                return addresses.send(None).unwrap();
            };
            let (_, address) = transport.listen("127.0.0.1:0".parse().unwrap()).unwrap();
            addresses.send(Some(address)).unwrap();
            let mut end = End::new(message_bytes, answer_bytes);
            while !stopped.load(Ordering::Relaxed) {
                end.turn(&mut transport);
                for accepted in end.accepted.drain(..) {
                    let next = end.first.next().unwrap();
                    transport.adopt(accepted, next).unwrap();
                }
                for (link, count) in end.arrived.drain(..) {
                    for _ in 0..count {
                        end.out.send(&mut transport, link);
                    }
                }
            }
        });
        let address = address.recv().unwrap()?;
        pin(cpus[0]);
        let (mut transport, _) = TcpTransport::open(options).unwrap();
        let mut end = End::new(answer_bytes, message_bytes);
        let links: Vec<_> = (0..self.links)
            .map(|_| transport.connect(address).unwrap())
            .collect();
        while end.connected < links.len() {
            end.turn(&mut transport);
        }
        let outcomes = self.ask_links(&mut transport, &mut end, &links);
        stop.store(true, Ordering::Relaxed);
        server.join().unwrap();
        Some(outcomes)
    }

    fn ask_links(&self, transport: &mut TcpTransport, end: &mut End, links: &[LinkId]) -> Outcomes {
        let (mut each_ns, mut left) = (Vec::new(), self.messages());
        let start = Instant::now();
        for _ in 0..self.depth {
            for &link in links {
                end.out.send(transport, link);
            }
        }
        let mut sent = Instant::now();
        while left > 0 {
            end.turn(transport);
            for (link, count) in end.arrived.drain(..) {
                left = left.saturating_sub(count);
                if self.depth == 1 {
                    each_ns.push(sent.elapsed().as_nanos() as u64);
                    sent = Instant::now();
                }
                if left > 0 {
                    for _ in 0..count {
                        end.out.send(transport, link);
                    }
                }
            }
        }
        Outcomes {
            messages: self.messages(),
            elapsed: start.elapsed(),
            each_ns,
        }
    }
}

/// One end of a run over links: takes messages of one size, sends messages of another.
struct End {
    message_bytes: usize,
    landing: Option<BufferMut>,
    accepted: Vec<Accepted>,
    connected: usize,
    arrived: VecDeque<(LinkId, usize)>,
    first: First,
    out: Out,
    start: Instant,
}

/// Orders for links that are new.
struct First {
    message_bytes: usize,
}

impl First {
    fn next(&mut self) -> Option<Next> {
        Some(Next::Head {
            at_least_bytes: self.message_bytes.min(HEAD_BYTES),
        })
    }
}

/// What is sent, and frames to send it with.
#[allow(clippy::vec_box, reason = "links take boxes")]
struct Out {
    message_bytes: usize,
    payload: Buffer,
    spare: Vec<Box<Frame>>,
}

impl Out {
    fn send(&mut self, transport: &mut TcpTransport, link: LinkId) {
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame
            .bytes_mut()
            .resize(self.message_bytes.min(HEAD_BYTES), 1);
        if !self.payload.is_empty() {
            frame.attach(self.payload.clone());
        }
        transport.send(link, frame).unwrap();
    }
}

impl End {
    fn new(message_bytes: usize, answer_bytes: usize) -> Self {
        let body_bytes = |all: usize| all.saturating_sub(HEAD_BYTES);
        let landing = BufferMut::from(vec![1; body_bytes(message_bytes)]);
        Self {
            message_bytes,
            landing: Some(landing).filter(|landing| !landing.is_empty()),
            accepted: Vec::new(),
            connected: 0,
            arrived: VecDeque::new(),
            first: First { message_bytes },
            out: Out {
                message_bytes: answer_bytes,
                payload: Buffer::from(vec![1; body_bytes(answer_bytes)]),
                spare: Vec::new(),
            },
            start: Instant::now(),
        }
    }

    fn turn(&mut self, transport: &mut TcpTransport) {
        let now = Time::ZERO + self.start.elapsed();
        transport.turn(now, self);
    }

    fn head(&self) -> Next {
        Next::Head {
            at_least_bytes: self.message_bytes.min(HEAD_BYTES),
        }
    }
}

impl LinkHandler<Accepted> for End {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, accepted: Accepted) {
        self.accepted.push(accepted);
    }

    fn connected(&mut self, _: LinkId) -> Next {
        self.connected += 1;
        self.head()
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        if let Some(landing) = self.landing.take() {
            return Progress {
                consumed_bytes: HEAD_BYTES,
                next: Next::Land(Landing::new(landing)),
            };
        }
        let count = bytes.len() / HEAD_BYTES;
        self.arrived.push_back((link, count));
        Progress {
            consumed_bytes: count * HEAD_BYTES,
            next: self.head(),
        }
    }

    fn landed(&mut self, link: LinkId, landing: Landing, _: Outcome) -> Next {
        self.landing = Some(landing.into_buffer());
        self.arrived.push_back((link, 1));
        self.head()
    }

    fn sent(&mut self, _: LinkId, frame: Box<Frame>, _: Outcome) {
        self.out.spare.push(frame);
    }

    fn closed(&mut self, _: LinkId, _: &CloseReason) {}

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

fn percentile(mut outcomes: Outcomes, percent: usize) -> f64 {
    let each_ns = &mut outcomes.each_ns;
    each_ns.sort_unstable();
    each_ns[each_ns.len() * percent / 100] as f64
}

fn bandwidth(case: &Case, outcomes: Outcomes) -> f64 {
    (outcomes.messages * case.message_bytes) as f64 / outcomes.elapsed.as_secs_f64() / 1e9
}

fn allowed_cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap();
    let mut cpus: Vec<_> = (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect();
    if cpus.len() == 1 {
        cpus.push(cpus[0]);
    }
    cpus
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
}

const ROUNDS: usize = 20;
const HEAD_BYTES: usize = 64;
const ANSWER_BYTES: usize = 64;
/// Small messages are read together up to this length.
const BUFFER_BYTES: usize = 1 << 16;
