//! RDMA links over real verbs. Without a device every test is skipped, and says so; with
//! GRPCXX_RDMA_REQUIRED=1 that is a failure. `docs/rdma.md` says how to get a device in software.

mod faults;
#[path = "../support/gpu.rs"]
mod gpu;
mod library;
mod migrating;
mod suite;
#[path = "../support/talker.rs"]
mod talker;
mod world;
