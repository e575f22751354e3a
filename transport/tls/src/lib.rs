//! TLS 1.3 over links of TCP.
//!
//! [`Tls`] is a transport over another. rustls makes the handshake and the keys; records are sealed
//! and opened here, since a link must allocate nothing in its steady state, must know where payload
//! lands before it reads, and must seal several frames into one record. A record is opened in the
//! memory that it was read into, and its text is copied once, hot, to where it belongs.
//!
//! What a peer has proven is a [`PeerName`](grpcxx_transport::PeerName), taken from its
//! certificate. Links are not resumed, carry no early data, and end with a `close_notify`: a stream
//! that ends without is a failure.

#![forbid(unsafe_code)]

mod counters;
mod credentials;
mod handshake;
mod key;
mod layer;
mod link;
mod open;
mod options;
mod outbound;
mod park;
mod pool;
mod record;
mod session;
mod tap;
#[cfg(test)]
mod test_credentials;
mod transport;
mod verify;
mod work;

pub use counters::{LiveCounters, TlsCounters};
pub use credentials::{Credentials, CredentialsError, PemTexts};
pub use handshake::{Handshake, HandshakeError, HandshakeStep};
pub use layer::SharedCredentials;
pub use options::{PlainPeers, TlsMode, TlsOptions, UnknownTlsMode};
pub use record::Fault;
pub use transport::{Origin, Tls};
pub use verify::task_name;
