//! Links over TLS pass the suite of all transports, with both drivers of TCP.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use grpcxx_tcp::{DriverRequest, TcpOptions, TcpTransport};
use grpcxx_tls::{SharedCredentials, Tls, TlsMode, TlsOptions};
use grpcxx_transport::conformance::{self, Bounds, Environment};
use grpcxx_transport::{LinkId, LinkLimits, Time};

use crate::support::Authority;

struct Loopback {
    tcp: TcpOptions,
    tls: TlsOptions,
    credentials: [SharedCredentials; 2],
    start: Instant,
    seed: u64,
}

impl Environment for Loopback {
    type Transport = Tls<TcpTransport>;

    fn name(&self) -> String {
        let Self { tcp, seed, .. } = self;
        format!("tls over tcp/{}, GRPCXX_SEED={seed}", tcp.driver)
    }

    fn pair(&mut self, limits: LinkLimits) -> [Tls<TcpTransport>; 2] {
        [0, 1].map(|side: usize| {
            let tcp = self.tcp.clone().with(|options| options.limits = limits);
            let tls = self
                .tls
                .clone()
                .with(|options| options.queued_frames = limits.queued_frames);
            let mut transport = Tls::new(TcpTransport::open(tcp).unwrap().0);
            transport.enable(tls, self.credentials[side].clone());
            transport
        })
    }

    fn address(&self, _: usize) -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    fn advance(&mut self) -> Time {
        std::thread::yield_now();
        Time::ZERO + self.start.elapsed()
    }

    fn sever(&mut self, transport: &mut Tls<TcpTransport>, link: LinkId) -> bool {
        // Resets the connection, for both ends.
        let socket = transport.base().socket(link);
        socket.is_some_and(|socket| rustix::net::connect_unspec(socket).is_ok())
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            seed: self.seed,
            patience: Duration::from_secs(60),
            ..Bounds::default()
        }
    }
}

fn environment(tcp: TcpOptions) -> Loopback {
    let authority = Authority::new();
    Loopback {
        tcp,
        tls: TlsOptions::default().with(|options| options.mode = TlsMode::Require),
        credentials: ["grpcxx://c/worker/0", "grpcxx://c/ps/0"].map(|name| authority.task(name)),
        start: Instant::now(),
        seed: std::env::var("GRPCXX_SEED").map_or(1, |seed| seed.parse().unwrap()),
    }
}

/// Whether the driver can be had here; says so if not.
#[allow(clippy::print_stderr)]
fn is_there(tcp: &TcpOptions) -> bool {
    match TcpTransport::open(tcp.clone()) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(tcp.driver, DriverRequest::IoUring, "{error}");
            eprintln!("skipped: {error}");
            false
        }
    }
}

fn with(driver: DriverRequest) -> TcpOptions {
    TcpOptions::default().with(|options| options.driver = driver)
}

/// Little of everything, so that each limit is met often.
fn cramped(driver: DriverRequest) -> TcpOptions {
    with(driver).with(|options| {
        options.ring_entries = 64;
        options.staging_bytes = 4096;
        options.staging_buffers = 2;
        options.send_buffer_bytes = Some(8192);
        options.receive_buffer_bytes = Some(8192);
    })
}

fn run(environment: &mut Loopback) {
    if is_there(&environment.tcp) {
        conformance::run(environment);
    }
}

#[test]
fn tls_over_io_uring_passes_the_suite() {
    run(&mut environment(with(DriverRequest::IoUring)));
}

#[test]
fn tls_over_epoll_passes_the_suite() {
    run(&mut environment(with(DriverRequest::Epoll)));
}

#[test]
fn tls_with_little_of_everything_passes_the_suite() {
    let mut environment = environment(cramped(DriverRequest::Epoll));
    environment.tls.records_per_key = 3;
    environment.tls.staging_bytes = 0;
    environment.tls.steps_per_turn = 1;
    environment.tls.handshakes_max = 2;
    run(&mut environment);
}

#[test]
fn tls_passes_the_suite_of_sleepers() {
    for driver in [DriverRequest::Epoll, DriverRequest::IoUring] {
        let mut environment = environment(with(driver));
        if is_there(&environment.tcp) {
            conformance::park::run(&mut environment);
        }
    }
}

/// Where TLS is off, the layer passes everything on.
#[test]
fn links_without_tls_pass_the_suite() {
    let mut environment = environment(with(DriverRequest::Epoll));
    environment.tls.mode = TlsMode::Off;
    run(&mut environment);
}
