//! How the ends of a connection prove to each other that they have the token of their cluster.
//!
//! The announcements carry the proofs: the client's has a nonce, the server's answer its own nonce
//! and its proof, and a second announcement of the client the client's proof. Calls of a client
//! with a token wait until the server has proved it.

pub(crate) mod claim;
mod client;
pub(crate) mod proving;
mod server;
