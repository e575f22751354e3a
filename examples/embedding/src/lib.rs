//! An embedding parameter server: tables of rows of floats, sparse lookups of them by id and sparse
//! updates by gradients, from many workers at once.
//!
//! A [`Server`] keeps each row on one of its shards, so no row needs a lock. A [`Client`] asks the
//! server that has the row. `docs/embedding.md` says how to run and to call them.

#![forbid(unsafe_code)]

mod client;
mod server;
mod spec;
pub mod table;

pub use client::{Client, Rows};
pub use server::{Description, Server, Snapshot, TableDescription};
pub use spec::{ServerSpec, TableSpec, server_of, shard_of};
