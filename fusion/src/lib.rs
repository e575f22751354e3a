//! Which tensors share a frame, and at which offsets.
//!
//! Nothing here knows a link, a call or memory: sizes go in, groups of indices come out. The rule
//! and its reasons are in `docs/fusion.md`.

#![forbid(unsafe_code)]

mod plan;

pub use plan::{Group, Plan, PlanLimits, Planned, SPREAD_BYTES_MIN, SPREAD_TENSORS_MIN, TooLarge};
