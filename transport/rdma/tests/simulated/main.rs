//! RDMA links over a simulated device: the suite of all transports, and what faults do.

mod faults;
mod suite;
#[path = "../support/talker.rs"]
mod talker;
mod upgrading;
mod world;
