//! The star wire protocol of GRPC++ without I/O: frames, connections, calls, rendezvous.
//!
//! Nothing here knows a socket, a thread, a clock, a file or the environment: bytes, time and
//! memory are arguments, and everything that shall leave is drained by the caller.

#![forbid(unsafe_code)]

mod account;
#[cfg(test)]
mod borrowed;
mod channel;
mod connection;
mod devices;
mod dtype;
mod elements;
mod extensions;
mod fetched;
mod key;
mod key_list;
mod message;
mod method;
mod part;
mod places;
pub mod proto;
mod reason;
mod rejected;
mod rendezvous;
mod rights;
mod shape;
mod status;
mod steps;
mod store;
mod tensor;
mod text;
mod token;
mod waiting;
pub mod wire;

pub use account::Account;
pub use channel::{Action, Admission, Channel, ChannelOptions};
pub use connection::{
    COALESCE_BYTES_MAX, CallId, CallOptions, ClientConnection, ConnectionLimits, Finished, Gate,
    ImmediateHit, Incoming, Landings, PeerHolding, PeerViolation, Refused, RequestId,
    ServerConnection, Undelivered,
};
pub use devices::Devices;
pub use dtype::{DType, DTypeClass};
pub use elements::Element;
pub use extensions::announcement::claim::Certified;
pub use extensions::bundles::answers::ReadyAnswer;
pub use extensions::chunks::wire::ChunkError;
pub use extensions::services::client::{REQUEST_FEED, RESPONSE_FETCH};
pub use extensions::services::metadata::Metadata;
pub use extensions::services::wire::{Envelope, EnvelopeWriter};
pub use extensions::streams::stream::{
    SHARED_MESSAGE_BYTES_MAX, StreamData, StreamError, StreamEvent, StreamNews,
};
pub use extensions::streams::table::StreamCount;
pub use extensions::streams::wire::{Credit, split_first_message};
pub use extensions::token::claim::{Provable, Proving};
pub use extensions::token::proving::{Credentials, OtherTask, Unproven};
pub use extensions::traces::wire::TraceContext;
pub use fetched::Fetched;
pub use key::RendezvousKey;
pub use key_list::KeyList;
pub use message::{GraphCall, NamedTensors, Names, Request, Response};
pub use method::Method;
pub use part::has_part;
pub use places::{Given, Places};
pub use reason::Reason;
pub use rejected::Rejected;
pub use rendezvous::{HeldTensor, Ready, Rendezvous, RendezvousLimits, home_shard};
pub use rights::{Right, Rights};
pub use shape::{Shape, ShapeError};
pub use status::{Code, Status};
pub use steps::{Counted, StepCountdown};
pub use store::{StoreLimits, TensorStore};
pub use tensor::{Tensor, TensorMeta};
pub use text::{NotUtf8, Text};
pub use token::{
    BadCallProof, CALL_PROOF_WINDOW, Challenge, Nonce, Proof, Prover, Token, TokenLength,
};
pub use waiting::WaitingSteps;
pub use wire::Features;
