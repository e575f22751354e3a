//! Connections joined without a link, for the tests and the fuzz targets.
#![allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "each test binary uses a part of it"
)]

pub mod driver;
pub mod fuzz;
pub mod make;
pub mod operations;
pub mod original;
pub mod pair;
pub mod streams;
pub mod tokens;

pub use driver::{ClientEnd, End, HeapLandings, Port, ServerEnd, carry};
pub use original::{OriginalClient, OriginalServer};
pub use pair::{Pair, tensors};
