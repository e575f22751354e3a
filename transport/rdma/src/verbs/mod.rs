//! Real verbs, over libibverbs, which is loaded when it is first wanted.

#[expect(unsafe_code, reason = "calls libibverbs")]
mod adapter;
mod completions;
mod device;
#[expect(unsafe_code, reason = "the C interface")]
mod ffi;
#[expect(unsafe_code, reason = "loads a C library")]
mod library;
#[expect(unsafe_code, reason = "calls libibverbs")]
mod open;
#[expect(unsafe_code, reason = "calls libibverbs")]
mod ports;
#[expect(unsafe_code, reason = "calls libibverbs")]
mod queue;

pub use adapter::VerbsAdapter;
pub use device::{DeviceReport, PortReport, Unavailable};
pub use open::{VerbsRegistration, devices};
pub use queue::VerbsQueue;
