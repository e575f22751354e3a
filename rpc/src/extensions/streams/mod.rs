//! Methods that take and answer with any number of messages: a call that stays open, and between
//! its request and its response messages both ways, bounded by credits.

pub(crate) mod client;
pub(crate) mod server;
pub(crate) mod stream;
pub(crate) mod table;
pub(crate) mod wire;
