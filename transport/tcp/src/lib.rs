//! TCP links, over io_uring where it works and over epoll elsewhere.
//!
//! [`TcpTransport::open`] probes which driver works here and says why it took it. Payloads of 8 KiB
//! and more are received straight into their landing, frames are sent from where their pieces lie;
//! heads and small payloads pass through staging memory that all links of a transport share, so
//! that an idle link holds none.
//!
//! Unsafe code is confined to `sys` (one request and one option of a socket), `uring/ring` (system
//! calls and the queues shared with the kernel), `uring/buffers` (staging memory that the kernel
//! writes) and `uring/operation` (operations on memory that links own).

#![deny(unsafe_code)]

mod core;
mod counters;
mod cpu_sharing;
mod epoll;
mod gather;
mod hot_set;
mod link;
mod listener;
mod options;
mod socket;
#[expect(unsafe_code, reason = "one ioctl and one socket option")]
mod sys;
mod transport;
mod uring;
mod wake;

pub use counters::TcpCounters;
pub use cpu_sharing::{own_cpu, step_aside};
pub use options::{Driver, DriverChoice, DriverRequest, TcpOptions, UnknownDriver};
pub use socket::Accepted;
pub use transport::TcpTransport;
