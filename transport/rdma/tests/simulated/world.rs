use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use grpcxx_rdma::sim::{SimAdapter, SimFabric, SimFabricOptions};
use grpcxx_rdma::{RdmaLinks, RdmaOptions, RdmaTransport};
use grpcxx_transport::conformance::{Bounds, Environment};
use grpcxx_transport::sim::{SimNetwork, SimOptions, SimTransport};
use grpcxx_transport::{LinkId, LinkLimits, Time};

pub(crate) type Links = RdmaTransport<SimAdapter, SimTransport>;

/// A simulated network for the connections beside the links, and a simulated fabric for the links.
pub(crate) struct World {
    pub(crate) name: &'static str,
    pub(crate) seed: u64,
    pub(crate) options: RdmaOptions,
    pub(crate) fabric_options: SimFabricOptions,
    pub(crate) network: SimNetwork,
    pub(crate) fabric: SimFabric,
    pub(crate) now: Time,
    pub(crate) landing_bytes_max: usize,
}

impl World {
    pub(crate) fn new(name: &'static str, seed: u64, options: RdmaOptions) -> Self {
        let fabric_options = SimFabricOptions::reliable(seed);
        Self {
            name,
            seed,
            options,
            network: SimNetwork::new(SimOptions::reliable(seed)),
            fabric: SimFabric::new(fabric_options.clone()),
            fabric_options,
            now: Time::ZERO,
            landing_bytes_max: 16 << 20,
        }
    }
}

impl Environment for World {
    type Transport = Links;

    fn name(&self) -> String {
        format!("rdma/simulated, {}, GRPCXX_SEED={}", self.name, self.seed)
    }

    fn pair(&mut self, limits: LinkLimits) -> [Links; 2] {
        // A connection of the side ends a little after its link.
        let side_limits = LinkLimits {
            queued_frames: 4,
            links: limits.links * 2,
        };
        self.network = SimNetwork::new(SimOptions {
            limits: side_limits,
            ..SimOptions::reliable(self.seed)
        });
        self.fabric = SimFabric::new(self.fabric_options.clone());
        self.now = Time::ZERO;
        [0, 1].map(|side| {
            let options = self.options.clone().with(|changed| changed.limits = limits);
            let links = RdmaLinks::new(self.fabric.adapter(), options);
            RdmaTransport::new(links, self.network.transport(host(side)))
        })
    }

    fn address(&self, side: usize) -> SocketAddr {
        SocketAddr::new(host(side), 0)
    }

    fn advance(&mut self) -> Time {
        let next = [self.network.next_event_at(), self.fabric.next_event_at()];
        let idle = self.now + Duration::from_millis(1);
        let next = next.into_iter().flatten().min().unwrap_or(idle);
        self.now = self.now.max(next);
        self.now
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            landing_bytes_max: self.landing_bytes_max,
            seed: self.seed,
            peers_fetch: true,
            ..Bounds::default()
        }
    }

    fn sever(&mut self, transport: &mut Links, link: LinkId) -> bool {
        match transport.side_mut(link) {
            (side, Some(link)) => side.sever(link),
            (_, None) => false,
        }
    }
}

pub(crate) fn host(side: usize) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, side as u8 + 1).into()
}

pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("GRPCXX_SEED") {
        Ok(seed) => vec![seed.parse().expect("GRPCXX_SEED is a number")],
        Err(_) => (1..=count).collect(),
    }
}
