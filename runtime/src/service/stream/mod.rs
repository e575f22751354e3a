//! Streams of messages of services: what methods take and return, what clients send and get, and
//! the pipes between these and the shards.

mod bell;
mod client;
mod ends;
mod method;
pub(crate) mod pipe;
mod receiving;
mod sending;

pub(crate) use bell::hang;
pub(crate) use client::StreamStart;
pub use client::{ClientStreamCall, IntoStreamingRequest, RawSink, RawStream, StreamCall};
pub(crate) use ends::StreamEnds;
pub(crate) use method::{ClientStream, ServerStream, Streams, TwoStreams};
pub use receiving::Streaming;
