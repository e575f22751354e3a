//! What grpcxx adds to star, one folder for each extension: its bytes, and what a client and a
//! server do.
//!
//! Nothing here is used towards a peer that has not [announced](announcement) it.

pub(crate) mod announcement;
pub(crate) mod bundles;
pub(crate) mod chunks;
pub(crate) mod element_types;
pub(crate) mod heads_first;
pub(crate) mod key_lists;
pub(crate) mod packed_shapes;
pub(crate) mod services;
pub(crate) mod streams;
pub(crate) mod token;
pub(crate) mod traces;
