//! What runs the protocol: shards on their threads, what they send each other, and how they are placed.
#![deny(unsafe_code)]

pub mod cluster;
pub mod config;
pub mod endpoint_map;
pub mod host;
pub mod idle;
pub mod mesh;
pub mod placement;
