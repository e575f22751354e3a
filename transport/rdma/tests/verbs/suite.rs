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
        let options = RdmaOptions {
            offer_bytes_min: 64,
            foreign_bytes_min: 1,
            chunk_bytes: 64 << 10,
            ..RdmaOptions::default()
        };
        conformance::run(&mut World::new("reads", options));
    }
}

#[test]
fn links_with_little_of_everything_pass_the_suite() {
    if has_device() {
        let options = RdmaOptions {
            message_bytes: 256,
            offer_bytes_min: 200,
            foreign_bytes_min: 5000,
            foreign_entries: 2,
            credits: CreditLimits {
                messages: 2,
                immediates: 4,
            },
            reads: 1,
            completion_entries: 64,
            ..RdmaOptions::default()
        };
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
