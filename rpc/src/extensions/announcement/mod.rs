//! What each end says of the extensions that it knows.

pub(crate) mod claim;
mod client;
mod server;
pub(crate) mod wire;
