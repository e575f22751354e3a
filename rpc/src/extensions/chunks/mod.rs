//! Long frames in chunks, between which other frames go.

pub(crate) mod cutter;
pub(crate) mod reader;
pub(crate) mod wire;
