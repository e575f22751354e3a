//! What the programs `grpcxx` and `grpcxx-server` share with their tests: clusters of processes on
//! this machine.

#![forbid(unsafe_code)]

pub mod launch;
pub mod local;
