//! Lists of keys that a server keeps, so that requests name them by a number.

pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod wire;
