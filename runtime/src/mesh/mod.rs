//! What shards and outside threads send each other: one ring for each ordered pair of shards, one
//! inbox per shard for everyone else, and the doorbell that ends a shard's sleep.
//!
//! The doorbell's protocol is checked by loom: `scripts/nightly loom`.

mod doorbell;
mod inbox;
mod spsc;
mod sync;

pub use doorbell::{Doorbell, Sleeper, doorbell};
pub use inbox::{Inbox, InboxSender, inbox};
pub use spsc::{Mesh, mesh};

#[cfg(all(test, not(loom)))]
mod stress;
