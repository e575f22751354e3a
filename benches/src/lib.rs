//! Measuring: a server that answers, a client that loads it, and what the machine can do at best.
//!
//! Modelled on TF-gRPC-Bench (Biswas, Lu and Panda, 2018): point-to-point latency and bandwidth,
//! and the throughput of parameter servers, with tensors of equal, uniform, random or skewed sizes,
//! serialized or not. A step takes or gives a number of tensors; with fusion, tensors share calls.
//!
//! ```
//! use std::time::Duration;
//!
//! use grpcxx_benches::{BenchClient, BenchServer, Op, RunOptions};
//! use grpcxx::EngineOptions;
//!
//! let listen = Some("127.0.0.1:0".parse()?);
//! let server = BenchServer::start(EngineOptions::default().with(|it| it.listen = listen))?;
//! let address = server.address().expect("it listens").to_string();
//! let client = BenchClient::start(EngineOptions::default(), vec![address])?;
//! let options = RunOptions {
//!     op: Op::Latency,
//!     duration: Duration::from_millis(50),
//!     ..RunOptions::default()
//! };
//! let outcome = client.run(&options)?;
//! assert!(outcome.measured.steps > 0);
//! println!("{}", outcome.measured.report(&options, "tcp", "io_uring"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod floor;
mod lane;
mod options;
mod payload;
mod report;
mod run;
mod server;
pub mod sockets;
mod steps;
mod typed;
mod usage;
mod wire;

pub use floor::Floor;
pub use options::{Api, CONNECTIONS_MAX, DEPTH_MAX, Op, RunOptions};
pub use payload::{
    COUNT_MAX, LARGE_BYTES, MEDIUM_BYTES, Mix, PayloadSpec, SMALL_BYTES, TOTAL_BYTES_MAX,
    parse_size,
};
pub use report::{Measured, Report};
pub use run::{BenchClient, Outcome};
pub use server::BenchServer;
pub use typed::MESSAGE_BYTES_MAX;
pub use usage::{cpu_time, raise_open_files};

#[cfg(test)]
mod tests;
