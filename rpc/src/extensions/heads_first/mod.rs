//! Responses to fused receives that have all record heads before all data.

pub(crate) mod body;
mod client;
pub(crate) mod server;
pub(crate) mod wire;
