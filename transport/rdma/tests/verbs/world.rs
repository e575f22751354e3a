use std::net::SocketAddr;
use std::time::{Duration, Instant};

use grpcxx_rdma::{RdmaLinks, RdmaOptions, RdmaTransport, VerbsAdapter};
use grpcxx_tcp::{TcpOptions, TcpTransport};
use grpcxx_transport::conformance::{Bounds, Environment};
use grpcxx_transport::{LinkId, LinkLimits, Time};

pub(crate) type Links = RdmaTransport<VerbsAdapter, TcpTransport>;

/// Links over the first device of this machine, with TCP over loopback beside them.
pub(crate) struct World {
    pub(crate) name: &'static str,
    pub(crate) options: RdmaOptions,
    pub(crate) landing_bytes_max: usize,
    start: Instant,
}

impl World {
    pub(crate) fn new(name: &'static str, options: RdmaOptions) -> Self {
        Self {
            name,
            options,
            landing_bytes_max: 16 << 20,
            start: Instant::now(),
        }
    }
}

impl Environment for World {
    type Transport = Links;

    fn name(&self) -> String {
        format!("rdma/verbs, {}, GRPCXX_SEED={}", self.name, seed())
    }

    fn pair(&mut self, limits: LinkLimits) -> [Links; 2] {
        [0, 1].map(|_| {
            let options = self.options.clone().with(|changed| changed.limits = limits);
            open(options)
        })
    }

    fn address(&self, _: usize) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], 0))
    }

    fn advance(&mut self) -> Time {
        std::thread::yield_now();
        Time::ZERO + self.start.elapsed()
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            landing_bytes_max: self.landing_bytes_max,
            links_max: 100,
            patience: Duration::from_secs(60),
            seed: seed(),
            peers_fetch: true,
            ..Bounds::default()
        }
    }

    fn sever(&mut self, transport: &mut Links, link: LinkId) -> bool {
        match transport.side_mut(link) {
            (side, Some(link)) => side
                .socket(link)
                .is_some_and(|socket| rustix::net::connect_unspec(socket).is_ok()),
            (_, None) => false,
        }
    }
}

/// A transport over the first device.
pub(crate) fn open(options: RdmaOptions) -> Links {
    let adapter = VerbsAdapter::open(&options).expect("there is a device");
    // A connection of the side ends a little after its link.
    let limits = LinkLimits {
        queued_frames: 4,
        links: options.limits.links.saturating_mul(2),
    };
    let side = TcpOptions::default().with(|options| options.limits = limits);
    let (side, _) = TcpTransport::open(side).expect("TCP can be had everywhere");
    RdmaTransport::watching(RdmaLinks::new(adapter, options), side).expect("a device is watched")
}

/// Whether there is a device. If not, says why the test is skipped.
///
/// # Panics
/// If there is none although `GRPCXX_RDMA_REQUIRED` says that there is.
#[allow(clippy::print_stderr)]
pub(crate) fn has_device() -> bool {
    let reason = match VerbsAdapter::open(&RdmaOptions::default()) {
        Ok(_) => return true,
        Err(reason) => reason,
    };
    assert!(
        std::env::var_os("GRPCXX_RDMA_REQUIRED").is_none(),
        "GRPCXX_RDMA_REQUIRED is set, but there is no device: {reason}"
    );
    eprintln!("SKIPPED, nothing was tested: {reason}");
    false
}

pub(crate) fn seed() -> u64 {
    std::env::var("GRPCXX_SEED").map_or(1, |seed| seed.parse().expect("GRPCXX_SEED is a number"))
}
