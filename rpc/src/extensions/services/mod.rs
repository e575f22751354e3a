//! Calls of methods by their path, with one message each way.

pub(crate) mod client;
pub(crate) mod metadata;
pub(crate) mod server;
pub(crate) mod wire;
