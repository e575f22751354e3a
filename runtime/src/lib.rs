//! What runs the protocol: engines and their shards, what shards send each other, and how they are
//! placed.
#![deny(unsafe_code)]

#[cfg(all(any(test, fuzzing), not(loom)))]
mod alone;
mod blame;
mod call;
mod caller;
mod cancellation;
mod client;
pub mod cluster;
mod command;
mod completion;
mod compute;
pub mod config;
mod counters;
mod cpu_time;
mod descriptors;
pub mod endpoint_map;
mod engine;
mod errors;
pub mod exposition;
mod fate;
mod function;
#[cfg(all(any(test, fuzzing), not(loom)))]
pub mod fuzz;
pub mod host;
pub mod idle;
mod inspection;
mod latency;
mod limits;
mod listing;
pub mod local;
pub mod log;
pub mod mesh;
pub mod metrics;
pub mod options;
pub mod placement;
pub mod policy;
pub mod proxies;
mod registry;
mod regular_file;
mod remote;
pub mod service;
mod shard;
mod sharded;
#[cfg(all(test, not(loom)))]
mod simulation;
mod staging;
mod task;
mod tls;
pub mod trace;
mod watch;

#[cfg(not(target_env = "musl"))]
pub use glommio;
/// Runs the futures of a shard on the glommio host, where its files and sockets can be used.
pub use grpcxx_tcp::{own_cpu, step_aside};

pub use call::{Call, CallResult, CallSpec, CompletionHandler};
pub use cancellation::Cancellation;
pub use client::{Client, LinkMedium, Peer, PeerState, RefusedCall, Resolve, SystemResolver};
pub use counters::Counters;
pub use descriptors::DescriptorParts;
pub use engine::{
    CpuLatency, Engine, EngineBuilder, EngineError, EngineOptions, ListenAddress, LocalEngine,
    Rdma, SPIN_DEFAULT, SharedMemory, StartReport, outgoing_ports_warning,
};
pub use function::{AtOnce, Function, HoldWatch, Later, Promise, Responder, Served, Service};
pub use grpcxx_transport::Time;
pub use host::{block_on, waiting};
pub use inspection::{
    INSPECTED_ROWS_MAX, InspectedConnection, ParkedTensor, PendingReceive, RecentFailure,
    ShardInspection, excerpt, name_peers,
};
pub use latency::{
    CallLatency, CallSide, LATENCY_BOUNDS_SECONDS, Latency, LinkTraffic, OTHER_PEERS,
    PEERS_COUNTED_MAX, ShardCalls,
};

pub use listing::STORE_LIST;
pub use registry::{STORE_PULL, STORE_PUSH};
pub use regular_file::open_regular_file;
pub use remote::Remote;
pub use shard::{DrainLimits, Patience, PeerShares, ShardContext};
pub use sharded::{Sharded, Shards};
pub use staging::{STORE_COMMIT, STORE_DISCARD, STORE_STAGE, StagedPush};
pub use task::Device;
pub use tls::{Certificates, PlainForbidden, TlsError, TlsSettings};
pub use watch::RequestWatch;
