//! What each end says of the extensions that it knows.

mod client;
pub(crate) mod wire;
