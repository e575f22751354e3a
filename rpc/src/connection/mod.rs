//! Both ends of a star connection without I/O.
//!
//! A [`ClientConnection`] turns calls into frames and frames into results; a [`ServerConnection`] does the
//! reverse. Neither knows a link: whoever drives one
//! - shows it bytes and landed memory with `handle_*`, and does what the returned [`Next`](grpcxx_transport::Next) says,
//! - takes frames with `poll_frame`, gives back what the link refused with `unpoll_frame` and what it has sent with
//!   `handle_sent`,
//! - drains the other `poll_*` methods after each of these, and calls `handle_timeout` at `poll_timeout`.
//!
//! Each accepted call ends in exactly one [`Finished`], each [`Incoming`] request in exactly one answer or one
//! `poll_cancelled`, whatever the peer and the link do. A [`PeerViolation`] means that the peer broke the protocol: the
//! driver closes the link, and then calls `handle_closed`.

mod answers;
mod asked;
mod body;
mod chunks;
mod client;
mod client_bundle;
mod client_call;
mod client_chunks;
mod client_features;
mod client_fetched;
mod client_heads;
mod client_inbound;
mod client_leaving;
mod client_messages;
mod cursor;
mod cutting;
mod deadlines;
mod encode;
mod heads_first;
mod key_lists;
mod landings;
mod limits;
mod numbers;
mod outgoing;
mod records;
mod server;
mod server_answers;
mod server_bundle;
mod server_chunks;
mod server_graph;
mod server_inbound;
mod server_lists;
mod server_messages;
mod violation;

pub use answers::ReadyAnswer;
pub use chunks::ChunkError;
pub use client::ClientConnection;
pub use client_call::{CallId, CallOptions, Finished};
pub use landings::{AtHand, Landings};
pub use limits::{COALESCE_BYTES_MAX, ConnectionLimits};
pub use server::{Incoming, RequestId, ServerConnection, Undelivered};
pub use violation::PeerViolation;
