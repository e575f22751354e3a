use std::net::SocketAddr;
use std::time::Duration;

use grpcxx_transport::conformance::{self, Bounds, Environment};
use grpcxx_transport::sim::{SimNetwork, SimOptions, SimTransport};
use grpcxx_transport::{LinkId, LinkLimits, Time};

use crate::support::{host, seeds};

struct Simulated {
    name: &'static str,
    options: SimOptions,
    landing_bytes_max: usize,
    network: SimNetwork,
}

impl Simulated {
    fn new(name: &'static str, landing_bytes_max: usize, options: SimOptions) -> Self {
        Self {
            name,
            network: SimNetwork::new(options.clone()),
            options,
            landing_bytes_max,
        }
    }
}

impl Environment for Simulated {
    type Transport = SimTransport;

    fn name(&self) -> String {
        format!("{}, GRPCXX_SEED={}", self.name, self.options.seed)
    }

    fn pair(&mut self, limits: LinkLimits) -> [SimTransport; 2] {
        let options = SimOptions {
            limits,
            ..self.options.clone()
        };
        self.network = SimNetwork::new(options);
        [0, 1].map(|side| self.network.transport(host(side)))
    }

    fn address(&self, side: usize) -> SocketAddr {
        SocketAddr::new(host(side), 0)
    }

    fn advance(&mut self) -> Time {
        let idle = self.network.now() + Duration::from_millis(1);
        self.network.next_event_at().unwrap_or(idle)
    }

    fn bounds(&self) -> Bounds {
        Bounds {
            landing_bytes_max: self.landing_bytes_max,
            links_max: if self.landing_bytes_max < 50_000 {
                20
            } else {
                200
            },
            seed: self.options.seed,
            ..Bounds::default()
        }
    }

    fn sever(&mut self, transport: &mut SimTransport, link: LinkId) -> bool {
        transport.sever(link)
    }
}

#[test]
fn a_reliable_network_passes_the_suite() {
    for seed in seeds(20) {
        conformance::run(&mut Simulated::new(
            "reliable",
            16 << 20,
            SimOptions::reliable(seed),
        ));
    }
}

#[test]
fn a_network_of_crumbs_passes_the_suite() {
    for seed in seeds(2) {
        conformance::run(&mut Simulated::new(
            "crumbs",
            20_000,
            SimOptions::crumbs(seed),
        ));
    }
}

#[test]
fn single_bytes_pass_the_suite() {
    for seed in seeds(1) {
        let options = SimOptions {
            read_bytes_max: 1,
            write_bytes_max: 1,
            buffer_bytes: 1,
            ..SimOptions::reliable(seed)
        };
        conformance::run(&mut Simulated::new("single bytes", 500, options));
    }
}

#[test]
fn random_scripts_pass_with_many_seeds() {
    for seed in seeds(25) {
        let mut random = fastrand::Rng::with_seed(seed);
        let options = SimOptions {
            read_bytes_max: 1 << random.usize(2..17),
            write_bytes_max: 1 << random.usize(2..17),
            buffer_bytes: random.usize(8..100_000),
            stall_chance: random.f64() * 0.05,
            ..SimOptions::reliable(seed)
        };
        let mut environment = Simulated::new("random network", 1_500, options);
        conformance::run_case(&mut environment, "random scripts on several links");
        conformance::run_case(&mut environment, "links come and go");
    }
}
