//! Small requests and answers that share a frame.

pub(crate) mod answers;
pub(crate) mod client;
pub(crate) mod numbers;
pub(crate) mod server;
pub(crate) mod wire;
