//! Both drivers pass the suite of all transports.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use grpcxx_tcp::{DriverRequest, TcpOptions, TcpTransport};
use grpcxx_transport::conformance::{self, Bounds, Environment};
use grpcxx_transport::{LinkId, LinkLimits, Time};

struct Loopback {
    options: TcpOptions,
    address: &'static str,
    start: Instant,
    seed: u64,
}

impl Environment for Loopback {
    type Transport = TcpTransport;

    fn name(&self) -> String {
        let Self { options, seed, .. } = self;
        format!("tcp/{}, GRPCXX_SEED={seed}", options.driver)
    }

    fn pair(&mut self, limits: LinkLimits) -> [TcpTransport; 2] {
        [0, 1].map(|_| {
            let options = self.options.clone().with(|changed| changed.limits = limits);
            TcpTransport::open(options).unwrap().0
        })
    }

    fn address(&self, _: usize) -> SocketAddr {
        self.address.parse().unwrap()
    }

    fn advance(&mut self) -> Time {
        std::thread::yield_now();
        Time::ZERO + self.start.elapsed()
    }

    fn sever(&mut self, transport: &mut TcpTransport, link: LinkId) -> bool {
        // Resets the connection, for both ends.
        let socket = transport.socket(link);
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

/// Plays the suite, unless the driver cannot be had here.
#[allow(clippy::print_stderr)]
fn run(options: TcpOptions, address: &'static str) {
    if let Err(error) = TcpTransport::open(options.clone()) {
        assert_eq!(options.driver, DriverRequest::IoUring, "{error}");
        return eprintln!("skipped: {error}");
    }
    let seed = std::env::var("GRPCXX_SEED").map_or(1, |seed| seed.parse().unwrap());
    conformance::run(&mut Loopback {
        options,
        address,
        start: Instant::now(),
        seed,
    });
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

#[test]
fn io_uring_passes_the_suite() {
    run(with(DriverRequest::IoUring), "127.0.0.1:0");
}

/// A loop that does not spin asks nobody directly.
#[test]
fn io_uring_passes_the_suite_through_the_ring_alone() {
    let options = with(DriverRequest::IoUring).with(|options| options.busy = false);
    run(options, "127.0.0.1:0");
}

#[test]
fn epoll_passes_the_suite() {
    run(with(DriverRequest::Epoll), "127.0.0.1:0");
}

#[test]
fn io_uring_with_little_of_everything_passes_the_suite() {
    run(cramped(DriverRequest::IoUring), "127.0.0.1:0");
}

#[test]
fn epoll_with_little_of_everything_passes_the_suite() {
    run(cramped(DriverRequest::Epoll), "127.0.0.1:0");
}
