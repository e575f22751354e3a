//! What the engine says of itself and of this machine, and where its log goes.

use std::path::Path;
use std::sync::Arc;

use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::config::VARIABLES;
use grpcxx_runtime::endpoint_map::{EndpointMap, EndpointMapError, search};
use pyo3::prelude::*;

use crate::status::checked;

/// The version of the engine.
#[pyfunction]
pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// What the engine finds on this machine, as names and values.
#[pyfunction]
pub(crate) fn facts(py: Python<'_>) -> Vec<(&'static str, String)> {
    py.detach(grpcxx_capi::facts::facts)
}

/// What to do about a proxy through which TensorFlow's gRPC would dial some of these hosts.
#[pyfunction]
pub(crate) fn proxy_warning(hosts: Vec<String>) -> Option<String> {
    grpcxx_runtime::proxies::warning(hosts, |name| std::env::var(name).ok())
}

/// What to do about star ports that the system may give to outgoing connections.
#[pyfunction]
pub(crate) fn outgoing_ports_warning(ports: Vec<u16>) -> Option<String> {
    grpcxx_runtime::outgoing_ports_warning(&ports)
}

/// Name, default, unit, reader and meaning of each variable of the configuration.
#[pyfunction]
pub(crate) fn variables() -> Vec<[&'static str; 5]> {
    let texts = VARIABLES.iter().map(|variable| {
        [
            variable.name,
            variable.default,
            variable.unit,
            variable.reader,
            variable.meaning,
        ]
    });
    texts.collect()
}

/// Sends the log of all engines, down to a level, to a function of level, module and message;
/// `None` stops that.
#[pyfunction]
pub(crate) fn log_to(py: Python<'_>, level: u8, function: Option<Py<PyAny>>) {
    let sink = function.map(|function| {
        let sink = move |level: i32, module: &str, message: &str| {
            Python::try_attach(|py| {
                if let Err(error) = function.call1(py, (level, module, message)) {
                    error.write_unraisable(py, Some(function.bind(py)));
                }
            });
        };
        Arc::new(sink) as grpcxx_capi::log::Sink
    });
    // The thread that logs may wait for the interpreter.
    py.detach(|| grpcxx_capi::log::send_to(level, sink));
}

/// The path of the endpoint map and its entries: the map at `path`, or where DeepRec looks for it.
#[pyfunction]
pub(crate) fn endpoint_map(
    py: Python<'_>,
    path: Option<&str>,
) -> PyResult<(String, Vec<(String, String)>)> {
    let directory = std::env::var_os(DIRECTORY).filter(|directory| !directory.is_empty());
    let explicit = path.filter(|path| !path.is_empty()).map(Path::new);
    let path = search(explicit, directory.as_deref().map(Path::new));
    let map = EndpointMap::read(&path).map_err(|error| {
        let code = match error {
            EndpointMapError::Missing { .. } => Code::NotFound,
            EndpointMapError::Unreadable { .. } => Code::PermissionDenied,
            EndpointMapError::Wrong { .. } => Code::InvalidArgument,
        };
        Status::new(code, error.to_string())
    });
    let map = checked(py, map)?;
    let entries = map.entries().iter();
    let entries = entries.map(|entry| (entry.key.clone(), entry.value.clone()));
    Ok((map.path().display().to_string(), entries.collect()))
}

/// Where DeepRec looks for the map.
const DIRECTORY: &str = "TF_SEASTAR_ENDPOINT_MAP_PATH";
