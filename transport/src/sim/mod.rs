//! A network in memory: hosts, links that carry real bytes, faults, and a clock that its user
//! moves.
//!
//! Everything happens on one thread and depends on nothing but [`SimOptions::seed`] and the calls
//! that are made, so a run can be repeated. A [`SimNetwork`] makes one [`SimTransport`] for each
//! shard of a simulated host; the loop around them turns each with the same `now` and then lets
//! time jump to [`SimNetwork::next_event_at`].

mod connection;
mod dialling;
mod network;
mod options;
mod pipe;
mod transport;

pub use network::{SimAccepted, SimNetwork};
pub use options::SimOptions;
pub use transport::SimTransport;
