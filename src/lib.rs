//! A shared-nothing tensor RPC runtime that speaks GRPC++ ("star"), the protocol of DeepRec.
//!
//! A program starts an [`Engine`], which owns the threads (one shard for each), their connections
//! and their memory. It calls other tasks from any thread through a [`Remote`]. Peers call the
//! functions that it registers, with tensors in and tensors out, and tensors of a step meet their
//! receivers by rendezvous key.
//!
//! ```
//! use grpcxx::{Engine, GraphCall, Tensor};
//!
//! // A server with a function that doubles a number.
//! let task = Engine::builder().task("ps", 0).listen("127.0.0.1:0");
//! let server = task.start_with(|server| {
//!     server.register_fn("double", |call: GraphCall| {
//!         let x: f32 = call.feed("x")?.value()?;
//!         Ok([("y", Tensor::scalar(2.0 * x))])
//!     });
//! })?;
//!
//! // A client that calls it. A call is a future; `wait` is for threads without an executor.
//! let engine = Engine::builder().start()?;
//! let remote = engine.connect(&server.local_addr().unwrap().to_string())?;
//! let call = GraphCall::new("double").with_feed("x", Tensor::scalar(1.5f32)).with_fetch("y");
//! let results = remote.run(call).wait()?;
//! assert_eq!(results.get("y")?.value::<f32>()?, 3.0);
//! # Ok::<(), grpcxx::Status>(())
//! ```
//!
//! The feature `server`, which is off by default, adds what the program `grpcxx-server` is made of:
//! `server::Server` with the gRPC endpoint, and models from safetensors files. It brings tonic and
//! tokio.

#![forbid(unsafe_code)]

#[cfg(feature = "server")]
pub mod model;
#[cfg(feature = "server")]
pub mod server;
pub mod store;
pub mod topology;

/// Takes in what `grpcxx_build` has made of the .proto files of a package, as
/// `tonic::include_proto!` does.
///
/// ```ignore
/// pub mod helloworld {
///     grpcxx::include_proto!("helloworld");
/// }
/// ```
#[macro_export]
macro_rules! include_proto {
    ($package:literal) => {
        include!(concat!(env!("OUT_DIR"), "/", $package, ".rs"));
    };
}

pub use grpcxx_collectives as collectives;
#[cfg(feature = "server")]
pub use grpcxx_control as control;
pub use grpcxx_runtime::{options, service};
pub use {grpcxx_memory as memory, grpcxx_rpc as rpc, grpcxx_runtime as runtime};

pub use grpcxx_memory::{Buffer, BufferMut};
pub use grpcxx_rpc::{
    Code, DType, Element, Fetched, GraphCall, Method, NamedTensors, Names, Reason, RendezvousKey,
    Request, Response, Shape, Status, Tensor, TensorMeta, Text, TraceContext,
};
pub use grpcxx_runtime::cluster::{ClusterSpec, Protocol, TaskId};
pub use grpcxx_runtime::config::Config;
pub use grpcxx_runtime::endpoint_map::EndpointMap;
/// Runs the futures of a shard where it can start; its files and sockets are at hand there.
#[cfg(not(target_env = "musl"))]
pub use grpcxx_runtime::glommio;
pub use grpcxx_runtime::{
    AtOnce, Call, CallResult, CallSpec, Cancellation, Client, CompletionHandler, Counters,
    CpuLatency, Device, Engine, EngineBuilder, EngineError, EngineOptions, Function, Later,
    LinkMedium, ListenAddress, LocalEngine, Peer, PeerState, Promise, RefusedCall, Remote, Resolve,
    Responder, Served, Service, ShardContext, Sharded, Shards, StartReport, SystemResolver, trace,
};
pub use grpcxx_runtime::{local, metrics};

/// The code of the README runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The code of the page on state per shard runs.
#[cfg(doctest)]
#[doc = include_str!("../docs/sharded.md")]
struct StatePerShard;
