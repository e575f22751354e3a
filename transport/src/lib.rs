//! The vocabulary between the protocol and the wires: links that carry a byte stream and land
//! payload.
//!
//! A [`Transport`] owns links. Its user sends [`Frame`]s, and says after each event what a link
//! shall do next ([`Next`]): show some bytes of head, fill memory with payload, skip bytes, or
//! pause. Events reach a [`LinkHandler`] from inside [`Transport::turn`] and from nowhere else.
//!
//! # Contracts
//! - Each accepted frame comes back in exactly one [`LinkHandler::sent`], each accepted [`Landing`]
//!   in exactly one [`LinkHandler::landed`], also when the link dies. [`LinkHandler::closed`] is
//!   the last event of a link, and comes exactly once for each link that was ever created.
//! - Nothing completes inside the call that submitted it.
//! - Frames leave a link in the order in which it accepted them, and no other bytes come between
//!   theirs.
//! - A call that is refused changes nothing and hands its value back.

#![forbid(unsafe_code)]

pub mod conformance;
mod ends;
mod faults;
mod forward;
mod frame;
mod id;
mod inbound;
mod landing;
mod migrate;
mod outbound;
mod peer_name;
pub mod sim;
mod slots;
mod time;
mod trace;
mod transport;

pub use ends::{ENDS_BYTES, Ends};
pub use faults::{FaultOptions, Faults};
pub use frame::{Frame, FramePlace};
pub use id::{LinkId, ListenerId};
pub use inbound::{Inbound, ReadTarget};
pub use landing::{Landing, Next, Progress};
pub use migrate::{LinkRegistry, Medium, MediumKind, Migrating, MigratingLink};
pub use outbound::{Outbound, Piece, Pieces};
pub use peer_name::{NoPeerName, PeerName};
pub use slots::{OccupiedSlot, SlotId, SlotKey, SlotTable, VacantSlot};
pub use time::Time;
pub use trace::{TRACE_LINES_MAX, Trace};
pub use transport::{
    CloseReason, HEAD_BYTES_MAX, LinkHandler, LinkLimits, Migration, Outcome, Park, Reading,
    Refusal, Refused, Transport, TransportError,
};
