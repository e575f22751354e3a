//! A key-value store: each key lies on the shard that a hash of it names, so no key needs a lock,
//! and a scan merges what the shards have in the order of the keys.
//!
//! `docs/services.md` says how to run and to call it.

#![forbid(unsafe_code)]

/// What `keyvalue.proto` describes.
#[expect(missing_docs, reason = "the messages are made out of a .proto file")]
pub mod proto {
    include!(concat!(env!("OUT_DIR"), "/keyvalue.rs"));
}

mod merge;
mod server;
pub mod store;

pub use server::{Limits, Server};
