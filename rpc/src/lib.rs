//! The star wire protocol of GRPC++ without I/O: frames, connections, calls, rendezvous.
//!
//! Nothing here knows a socket, a thread, a clock, a file or the environment: bytes, time and memory are
//! arguments, and everything that shall leave is drained by the caller.

#![forbid(unsafe_code)]

mod dtype;
mod message;
mod method;
pub mod proto;
mod shape;
mod status;
mod tensor;
mod text;
pub mod wire;

pub use dtype::{DType, DTypeClass};
pub use message::{GraphCall, Request, Response};
pub use method::Method;
pub use shape::{Shape, ShapeError};
pub use status::{Code, Status};
pub use tensor::{Tensor, TensorMeta};
pub use text::{NotUtf8, Text};
