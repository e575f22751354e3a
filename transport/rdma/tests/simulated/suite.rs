use grpcxx_rdma::{CreditLimits, RdmaOptions};
use grpcxx_transport::conformance;

use crate::world::{World, seeds};

#[test]
fn links_pass_the_suite() {
    for seed in seeds(3) {
        conformance::run(&mut World::new("default", seed, RdmaOptions::default()));
    }
}

#[test]
fn links_that_read_almost_everything_pass_the_suite() {
    for seed in seeds(2) {
        let options = RdmaOptions::default().with(|options| {
            options.offer_bytes_min = 64;
            options.foreign_bytes_min = 1;
            options.chunk_bytes = 4096;
            options.reads = 3;
        });
        conformance::run(&mut World::new("reads", seed, options));
    }
}

#[test]
fn links_whose_heads_are_cut_anywhere_pass_the_suite() {
    for seed in seeds(3) {
        let options = RdmaOptions::default().with(|options| {
            options.message_bytes = 256 + 13 * seed as usize;
            options.offer_bytes_min = 5000;
            options.foreign_bytes_min = 1;
        });
        let mut world = World::new("short messages", seed, options);
        world.landing_bytes_max = 200_000;
        conformance::run(&mut world);
    }
}

#[test]
fn links_with_little_of_everything_pass_the_suite() {
    for seed in seeds(2) {
        let options = RdmaOptions::default().with(|options| {
            options.message_bytes = 256;
            options.offer_bytes_min = 200;
            options.foreign_bytes_min = 5000;
            options.foreign_entries = 2;
            options.credits = CreditLimits {
                messages: 2,
                immediates: 4,
            };
            options.reads = 1;
        });
        let mut world = World::new("little of everything", seed, options);
        world.landing_bytes_max = 200_000;
        conformance::run(&mut world);
    }
}

#[test]
fn links_that_may_register_nothing_but_their_own_memory_pass_the_suite() {
    for seed in seeds(1) {
        let mut world = World::new("no registrations", seed, RdmaOptions::default());
        world.fabric_options.lockable_bytes = 128 << 20;
        world.options.foreign_bytes_min = usize::MAX;
        conformance::run(&mut world);
    }
}
