//! Services from .proto files: what the code that `grpcxx-build` makes stands on.
//!
//! A service is registered once, with [`Engine::add_service`](crate::Engine::add_service), and
//! answers to its paths, `/package.Service/Method`: to peers that know the extension *services* in
//! one frame each way, to every other peer of star as a function of that name.

mod client;
mod codec;
mod exchange;
mod extensions;
pub(crate) mod graph_door;
mod interceptor;
mod method;
mod methods;
mod pieces;
mod stats;
mod stream;
mod tensor_message;

pub use crate::caller::Caller;
pub use crate::latency::{LATENCY_BOUNDS_SECONDS, Latency};
pub use crate::remote::Remote;
pub(crate) use client::take_envelope;
pub use client::{IntoRequest, ServiceClient, UnaryCall};
pub use exchange::{Request, Response, Trailers};
pub use extensions::Extensions;
pub use futures_util::Stream;
pub use grpcxx_rpc::{Code, Metadata, Status};
pub use interceptor::Interceptor;
pub use methods::{LocalMethods, Methods, Place, TypedService};
pub use stats::{MethodReport, ServiceReport};
pub use stream::{
    ClientStreamCall, IntoStreamingRequest, RawSink, RawStream, StreamCall, Streaming,
};
pub use tensor_message::TensorMessage;

pub(crate) use method::{Begun, Registered, run_on_pool};
#[cfg(all(test, not(loom)))]
pub(crate) use stream::pipe::PipeSender;
pub(crate) use stream::pipe::{Chunk, Ending, WINDOW, pipe};
pub(crate) use stream::{StreamEnds, StreamStart, hang};
