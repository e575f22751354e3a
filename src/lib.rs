//! A shared-nothing tensor RPC runtime that speaks GRPC++ ("star"), the protocol of DeepRec.
//!
//! A program starts an [`Engine`], which owns the threads (one shard for each), their connections and their
//! memory. Its [`Client`] calls peers from any thread; functions that it registers are called by peers with tensors
//! in and tensors out; tensors of a step meet their receivers by rendezvous key.
//!
//! ```
//! use std::sync::Arc;
//!
//! use grpcxx::{Engine, EngineOptions, GraphCall, Request, Response, TaskId, Tensor};
//!
//! let server = Engine::start(EngineOptions {
//!     task: TaskId::new("ps", 0),
//!     listen: Some("127.0.0.1:0".parse()?),
//!     ..EngineOptions::default()
//! })?;
//! // A function that returns what it was given.
//! server.register("echo", Arc::new(|call: GraphCall| Ok(call.feeds)));
//!
//! let caller = Engine::start(EngineOptions::default())?;
//! let client = caller.client();
//! let address = server.local_addr().expect("it listens").to_string();
//! let call = GraphCall {
//!     graph_handle: "echo".into(),
//!     feeds: vec![("x".into(), Tensor::scalar(1.5f32))],
//!     fetches: vec!["x".into()],
//!     ..GraphCall::default()
//! };
//! let request = Request::StarRunGraph(Box::new(call));
//! let response = client.call(&client.peer(&address)?, request, None).wait()?;
//! let Response::Fetched(results) = response else { panic!() };
//! assert_eq!(results[0].1, Tensor::scalar(1.5f32));
//! # Ok::<(), Box<dyn std::error::Error>>(())
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

#[cfg(feature = "server")]
pub use grpcxx_control as control;
pub use {grpcxx_memory as memory, grpcxx_rpc as rpc, grpcxx_runtime as runtime};

pub use grpcxx_memory::{Buffer, BufferMut};
pub use grpcxx_rpc::{
    Code, DType, Element, GraphCall, Method, RendezvousKey, Request, Response, Shape, Status,
    Tensor, TensorMeta, Text,
};
pub use grpcxx_runtime::cluster::{ClusterSpec, Protocol, TaskId};
pub use grpcxx_runtime::config::Config;
pub use grpcxx_runtime::endpoint_map::EndpointMap;
pub use grpcxx_runtime::{
    AtOnce, Call, CallResult, CallSink, Client, Counters, CpuLatency, Engine, EngineError,
    EngineOptions, Function, Later, Peer, Promise, Resolve, Responder, Served, Service,
    ShardContext, StartReport, SystemResolver,
};
