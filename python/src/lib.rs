//! The extension module of the Python package `grpcxx`: engines, calls and arrays.
//!
//! The library holds the C interface too, for the TensorFlow plugin of the same process. Python
//! calls it once for each call: names and arrays become a request, the thread lets go of the
//! interpreter until the call has ended, and what came becomes arrays. No thread of the engine
//! waits for the interpreter, but those that run functions in Python.
#![deny(unsafe_code)]

// The symbols of the C interface are part of this library.
extern crate grpcxx_capi;

mod argument;
mod arrays;
mod call;
mod claims;
mod completions;
mod counts;
mod dtypes;
mod engine;
mod facts;
mod fetched;
mod flight;
mod function;
mod group;
mod large_push;
mod lock;
mod memory;
mod peer;
mod pool;
mod request;
mod running;
mod shard;
mod status;
mod store;
mod waits;

use pyo3::prelude::*;

/// What the Python package is made of.
#[pymodule(name = "_native", gil_used = false)]
mod native {
    #[pymodule_export]
    use crate::call::Pending;
    #[pymodule_export]
    use crate::counts::memory_counters;
    #[pymodule_export]
    use crate::dtypes::{dtype_name, dtype_names};
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::facts::{
        endpoint_map, facts, log_to, outgoing_ports_warning, proxy_warning, variables, version,
    };
    #[pymodule_export]
    use crate::group::{Group, PendingOperation};
    #[pymodule_export]
    use crate::peer::Peer;
    #[pymodule_export]
    use crate::running::until_idle;
    #[pymodule_export]
    use crate::waits::waiting;
}
