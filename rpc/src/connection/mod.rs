//! Both ends of a star connection without I/O.
//!
//! A [`ClientConnection`] turns calls into frames and frames into results; a [`ServerConnection`]
//! does the reverse. Neither knows a link: whoever drives one
//! - shows it bytes and landed memory with `handle_*`, and does what the returned
//!   [`Next`](grpcxx_transport::Next) says,
//! - takes frames with `poll_frame`, gives back what the link refused with `unpoll_frame` and what
//!   it has sent with `handle_sent`,
//! - drains the other `poll_*` methods after each of these, and calls `handle_timeout` at
//!   `poll_timeout`.
//!
//! Each accepted call ends in exactly one [`Finished`], each [`Incoming`] request in exactly one
//! answer or one `poll_cancelled`, whatever the peer and the link do. A [`PeerViolation`] means
//! that the peer broke the protocol: the driver closes the link, and then calls `handle_closed`.

mod asked;
pub(crate) mod body;
pub(crate) mod calls;
pub(crate) mod client;
pub(crate) mod cursor;
mod deadlines;
pub(crate) mod encode;
pub(crate) mod gate;
pub(crate) mod landings;
pub(crate) mod limits;
pub(crate) mod outgoing;
pub(crate) mod peer_holding;
pub(crate) mod reader;
pub(crate) mod records;
pub(crate) mod server;
pub(crate) mod small;
mod violation;

pub use calls::{CallId, CallOptions, Finished};
pub use client::ClientConnection;
pub use gate::{Gate, Refused};
pub use landings::{ImmediateHit, Landings};
pub(crate) use limits::SendLimits;
pub use limits::{COALESCE_BYTES_MAX, ConnectionLimits};
pub use peer_holding::PeerHolding;
pub use server::{Incoming, RequestId, ServerConnection, Undelivered};
pub use violation::PeerViolation;
