//! RDMA links over a simulated device: the suite of all transports, and what faults do.

mod faults;
mod suite;
mod talker;
mod world;
