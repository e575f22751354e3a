//! RDMA links over a simulated device: the suite of all transports, and what faults do.

mod device;
mod faults;
#[path = "../support/gpu.rs"]
mod gpu;
mod migrating;
mod suite;
#[path = "../support/talker.rs"]
mod talker;
mod world;
