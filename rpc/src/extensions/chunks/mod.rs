//! Long frames in chunks, between which other frames go.

mod client;
pub(crate) mod cutter;
pub(crate) mod reader;
mod server;
