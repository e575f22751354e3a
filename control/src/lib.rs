//! The gRPC endpoint of a task, on its address in the cluster spec.
//!
//! Served are `tensorflow.WorkerService` and `tensorflow.MasterService` with the names and messages
//! that TensorFlow's clients use, gRPC's health and reflection services, and a page of metrics over
//! HTTP. What needs a graph executor is answered UNIMPLEMENTED with a text that says what to use
//! instead.
//!
//! [`Control`] is the server; it reaches the engine through a [`Backend`]. [`ControlClient`] is the
//! other side.

#![forbid(unsafe_code)]

mod backend;
mod calls;
mod client;
mod connections;
mod control;
mod dial;
mod dispatch;
mod frames;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod handshakes;
mod health;
mod incoming;
mod inspector;
pub mod limits;
mod link;
mod listener;
mod live_page;
mod lock;
mod master;
mod methods;
mod metrics;
mod metrics_page;
mod options;
mod reflection;
mod refusals;
mod registered;
mod request_body;
pub mod services;
mod sessions;
mod status;
mod taken;
mod tensor_proto;
mod tensors;
mod unsent;
mod waiting;
mod worker;

pub use backend::{Answer, Backend, TaskDevices};
pub use client::{
    BlockingControlClient, ClientError, ClientOptions, ControlClient, DeviceList, Health,
};

pub use control::{Alarm, Control, Stopped};
pub use listener::{ControlError, listen_advice};
pub use options::{BadAddress, ControlLimits, ControlOptions};
pub use taken::TakenTensors;
