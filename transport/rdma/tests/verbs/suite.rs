use grpcxx_rdma::{CreditLimits, RdmaOptions};
use grpcxx_transport::conformance;

use crate::world::{World, has_device};

#[test]
fn links_pass_the_suite() {
    if has_device() {
        conformance::run(&mut World::new("default", RdmaOptions::default()));
    }
}

#[test]
fn links_that_read_almost_everything_pass_the_suite() {
    if has_device() {
        let options = RdmaOptions::default().with(|options| {
            options.offer_bytes_min = 64;
            options.foreign_bytes_min = 1;
            options.chunk_bytes = 64 << 10;
        });
        conformance::run(&mut World::new("reads", options));
    }
}

#[test]
fn links_with_little_of_everything_pass_the_suite() {
    if has_device() {
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
            options.completion_entries = 64;
        });
        let mut world = World::new("little of everything", options);
        world.landing_bytes_max = 200_000;
        conformance::run(&mut world);
    }
}

#[test]
fn links_sleep_and_wake_as_the_suite_wants() {
    if has_device() {
        conformance::park::run(&mut World::new("default", RdmaOptions::default()));
    }
}
