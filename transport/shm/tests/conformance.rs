//! Links over shared memory pass the suite of all transports.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use grpcxx_shm::{RING_BYTES_MIN, ShmOptions, ShmTransport};
use grpcxx_transport::conformance::{self, Bounds, Environment};
use grpcxx_transport::{LinkId, LinkLimits, Time};
use rustix::net::{Shutdown, shutdown};

struct OneHost {
    options: ShmOptions,
    start: Instant,
    seed: u64,
}

impl Environment for OneHost {
    type Transport = ShmTransport;

    fn name(&self) -> String {
        let Self { options, seed, .. } = self;
        format!("shm of {} bytes, GRPCXX_SEED={seed}", options.ring_bytes)
    }

    fn pair(&mut self, limits: LinkLimits) -> [ShmTransport; 2] {
        [0, 1].map(|_| {
            let options = self.options.clone().with(|changed| changed.limits = limits);
            ShmTransport::open(options).unwrap()
        })
    }

    fn address(&self, _: usize) -> SocketAddr {
        "127.0.0.1:0".parse().unwrap()
    }

    fn advance(&mut self) -> Time {
        std::thread::yield_now();
        Time::ZERO + self.start.elapsed()
    }

    fn sever(&mut self, transport: &mut ShmTransport, link: LinkId) -> bool {
        // What both ends see when the other process ends.
        let socket = transport.socket(link);
        socket.is_some_and(|socket| shutdown(socket, Shutdown::Both).is_ok())
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            seed: self.seed,
            patience: Duration::from_secs(60),
            ..Bounds::default()
        }
    }
}

fn environment(ring_bytes: usize) -> OneHost {
    OneHost {
        options: ShmOptions::default().with(|options| options.ring_bytes = ring_bytes),
        start: Instant::now(),
        seed: std::env::var("GRPCXX_SEED").map_or(1, |seed| seed.parse().unwrap()),
    }
}

#[test]
fn shared_memory_passes_the_suite() {
    conformance::run(&mut environment(ShmOptions::default().ring_bytes));
}

#[test]
fn the_shortest_rings_pass_the_suite() {
    conformance::run(&mut environment(RING_BYTES_MIN));
}

/// All payload is lent or copied to be lent, as far as a little arena goes.
#[test]
fn short_loans_pass_the_suite() {
    let mut environment = environment(RING_BYTES_MIN);
    environment.options.lend_bytes_min = 1;
    environment.options.bounce_arena_bytes = 256 << 10;
    conformance::run(&mut environment);
}

#[test]
fn shared_memory_passes_the_suite_of_sleepers() {
    conformance::park::run(&mut environment(ShmOptions::default().ring_bytes));
    conformance::park::run(&mut environment(RING_BYTES_MIN));
}
