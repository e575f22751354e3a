//! Lists of keys that a server keeps, so that requests name them by a number.

pub(crate) mod lists;
mod server;
