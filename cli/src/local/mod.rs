//! A whole cluster of `grpcxx-server` processes on this machine: for trying things out, and for
//! tests.

mod cluster;
mod group;
mod ports;
mod process;

pub use cluster::{LocalCluster, LocalError, LocalOptions};
pub use ports::{HeldPort, held_ports};
pub use process::{LogLine, Stream};
pub(crate) use process::{LogSink, Process};
