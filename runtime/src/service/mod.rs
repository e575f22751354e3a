//! Services from .proto files: what the code that `grpcxx-build` makes stands on.
//!
//! A service is registered once, with [`Engine::add_service`](crate::Engine::add_service), and
//! answers to its paths, `/package.Service/Method`: to peers that know the extension *services* in
//! one frame each way, to every other peer of star as a function of that name.

mod client;
mod codec;
mod exchange;
mod graph_door;
mod method;
mod pieces;
mod stats;

pub use crate::latency::{LATENCY_BOUNDS_SECONDS, Latency};
pub use crate::remote::Remote;
pub(crate) use client::take_envelope;
pub use client::{IntoRequest, ServiceClient, UnaryCall};
pub use exchange::{Request, Response};
pub use grpcxx_rpc::{Code, Metadata, Status};
pub use method::{Methods, Place, TypedService};
pub use stats::{MethodReport, ServiceReport};

pub(crate) use graph_door::GraphDoor;
pub(crate) use method::{Begun, Registered};
