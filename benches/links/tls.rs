//! What does TLS cost a link? Two threads, one CPU each, both ends spinning, over loopback, with
//! the epoll driver; the baseline is the same links without TLS, with the same socket buffers, in
//! alternating rounds of the same run.
//!
//! `cargo bench --bench tls_links` prints a table of medians. `-- --quick` runs fewer rounds.

#![allow(clippy::print_stdout)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

use arc_swap::ArcSwap;
use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_tcp::{Accepted, DriverRequest, TcpOptions, TcpTransport};
use grpcxx_tls::{Credentials, PemTexts, SharedCredentials, Tls, TlsMode, TlsOptions};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    PeerName, Progress, Time, Transport,
};
use rcgen::{CertificateParams, KeyPair, SanType};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let rounds = if is_quick { 3 } else { 15 };
    let cpus = allowed_cpus();
    let credentials = credentials();
    println!("loopback, CPUs {cpus:?}, medians of {rounds} alternating rounds");
    println!("{:<22}{:>10}{:>10}{:>10}", "", "plain", "TLS", "TLS/plain");
    for case in CASES {
        let mut figures = [const { Vec::new() }; 2];
        for _ in 0..rounds {
            for (figures, mode) in figures.iter_mut().zip([TlsMode::Off, TlsMode::Require]) {
                figures.push(case.run(mode, &credentials, cpus));
            }
        }
        let [plain, tls] = figures.map(|mut figures| {
            figures.sort_by(f64::total_cmp);
            figures[figures.len() / 2]
        });
        println!(
            "{:<22}{plain:>10.2}{tls:>10.2}{:>10.2}",
            case.name,
            tls / plain
        );
    }
}

struct Case {
    name: &'static str,
    /// Length of an answer; requests have 64 bytes.
    answer_bytes: usize,
    messages: usize,
    /// From the seconds of one message to the figure.
    figure: fn(f64, usize) -> f64,
}

const CASES: &[Case] = &[
    Case {
        name: "call of 64 B (us)",
        answer_bytes: HEAD_BYTES,
        messages: 5_000,
        figure: |seconds, _| seconds * 1e6,
    },
    Case {
        name: "pull of 1 MiB (GB/s)",
        answer_bytes: 1 << 20,
        messages: 200,
        figure: bandwidth,
    },
    Case {
        name: "pull of 64 MiB (GB/s)",
        answer_bytes: 64 << 20,
        messages: 6,
        figure: bandwidth,
    },
];

fn bandwidth(seconds: f64, bytes: usize) -> f64 {
    bytes as f64 / seconds / 1e9
}

impl Case {
    /// The figure of the median message of one connection.
    fn run(&self, mode: TlsMode, credentials: &SharedCredentials, cpus: [usize; 2]) -> f64 {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell, told) = channel();
        let (stopped, shared) = (Arc::clone(&stop), Arc::clone(credentials));
        let answer_bytes = self.answer_bytes;
        let server = std::thread::spawn(move || {
            pin(cpus[1]);
            let mut end = End::new(mode, shared, HEAD_BYTES, answer_bytes);
            let any = "127.0.0.1:0".parse().unwrap();
            tell.send(end.transport.listen(any).unwrap().1).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                end.turn();
                if let Some(accepted) = end.seen.accepted.take() {
                    end.transport.adopt(accepted, HEAD).unwrap();
                }
                if let Some(link) = end.seen.arrived.take() {
                    end.send(link);
                }
            }
        });
        pin(cpus[0]);
        let shared = Arc::clone(credentials);
        let mut end = End::new(mode, shared, self.answer_bytes, HEAD_BYTES);
        let link = end.transport.connect(told.recv().unwrap()).unwrap();
        while !end.seen.is_connected {
            end.turn();
        }
        let mut each = Vec::with_capacity(self.messages);
        for _ in 0..self.messages {
            let start = Instant::now();
            end.send(link);
            while end.seen.arrived.take().is_none() {
                end.turn();
            }
            each.push(start.elapsed().as_secs_f64());
        }
        stop.store(true, Ordering::Relaxed);
        server.join().unwrap();
        each.sort_by(f64::total_cmp);
        (self.figure)(each[each.len() / 2], self.answer_bytes)
    }
}

/// One end of a connection.
struct End {
    transport: Tls<TcpTransport>,
    seen: Seen,
    payload: Buffer,
    start: Instant,
}

/// What an end has been told.
struct Seen {
    accepted: Option<Accepted>,
    is_connected: bool,
    arrived: Option<LinkId>,
    /// Memory for what follows a head.
    body: Option<BufferMut>,
    frame: Option<Box<Frame>>,
}

impl End {
    fn new(mode: TlsMode, shared: SharedCredentials, takes_bytes: usize, bytes: usize) -> Self {
        let tcp = TcpOptions::default().with(|options| options.driver = DriverRequest::Epoll);
        let mut transport = Tls::new(TcpTransport::open(tcp).unwrap().0);
        let tls = TlsOptions::default().with(|options| options.mode = mode);
        transport.enable(tls, shared);
        let body = BufferMut::from(vec![1; takes_bytes - HEAD_BYTES]);
        Self {
            transport,
            seen: Seen {
                accepted: None,
                is_connected: false,
                arrived: None,
                body: Some(body).filter(|body| !body.is_empty()),
                frame: Some(Box::default()),
            },
            payload: Buffer::from(vec![1; bytes - HEAD_BYTES]),
            start: Instant::now(),
        }
    }

    fn turn(&mut self) {
        let now = Time::ZERO + self.start.elapsed();
        self.transport.turn(now, &mut self.seen);
    }

    fn send(&mut self, link: LinkId) {
        let mut frame = self.seen.frame.take().unwrap_or_default();
        frame.clear();
        frame.bytes_mut().extend_from_slice(&[1; HEAD_BYTES]);
        frame.attach(self.payload.clone());
        self.transport.send(link, frame).unwrap();
        self.transport.submit();
    }
}

impl LinkHandler<Accepted> for Seen {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, accepted: Accepted) {
        self.accepted = Some(accepted);
    }

    fn connected(&mut self, _: LinkId) -> Next {
        self.is_connected = true;
        HEAD
    }

    fn received(&mut self, link: LinkId, _: &[u8]) -> Progress {
        let next = match self.body.take() {
            Some(body) => Next::Land(Landing::new(body)),
            None => {
                self.arrived = Some(link);
                HEAD
            }
        };
        Progress {
            consumed_bytes: HEAD_BYTES,
            next,
        }
    }

    fn landed(&mut self, link: LinkId, landing: Landing, _: Outcome) -> Next {
        self.body = Some(landing.into_buffer());
        self.arrived = Some(link);
        HEAD
    }

    fn sent(&mut self, _: LinkId, frame: Box<Frame>, _: Outcome) {
        self.frame = Some(frame);
    }

    fn closed(&mut self, _: LinkId, _: &CloseReason) {}

    fn proven(&mut self, _: LinkId, _: Option<&PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

/// Credentials that both ends have, and that trust themselves.
fn credentials() -> SharedCredentials {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::default();
    let name = "grpcxx://bench/ps/0".try_into().unwrap();
    params.subject_alt_names = vec![SanType::URI(name)];
    let certificate = params.self_signed(&key).unwrap().pem();
    let credentials = Credentials::from_pem(PemTexts {
        certificates: certificate.as_bytes(),
        key: key.serialize_pem().as_bytes(),
        authorities: Some(certificate.as_bytes()),
        is_mutual: true,
    });
    Arc::new(ArcSwap::from_pointee(credentials.unwrap()))
}

fn allowed_cpus() -> [usize; 2] {
    let set = sched_getaffinity(None).unwrap();
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
    let first = cpus.next().unwrap();
    [first, cpus.next().unwrap_or(first)]
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
}

const HEAD_BYTES: usize = 64;
const HEAD: Next = Next::Head {
    at_least_bytes: HEAD_BYTES,
};
