//! Tests of engines over real sockets: one program, which is compiled and linked once. A test that
//! counts what its whole process does is a program of its own, see `Cargo.toml`.

mod arriving;
#[path = "support/authority.rs"]
mod authority;
mod beyond;
mod chunks;
mod corpus;
mod death;
mod echo;
mod embedding;
mod engine;
mod functions;
#[path = "support/fuzz.rs"]
mod fuzz;
mod greedy;
mod hostile;
mod hosts;
mod inspection;
mod latencies;
mod leaving;
mod local_engine;
mod metrics;
mod metrics_page;
mod names;
mod open_cluster;
mod original;
#[path = "support/page.rs"]
mod page;
mod policy;
#[path = "support/ports.rs"]
mod ports;
mod sharded;
mod shared_memory;
mod shares;
mod staged_push;
mod stranger;
mod streams;
mod submit;
mod support;
mod tls;
mod turns;
mod waiting;
