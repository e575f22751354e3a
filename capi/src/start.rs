//! How an engine starts that a program in another language holds.

use std::net::SocketAddr;

use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::{Engine, EngineOptions};

use crate::boundary::invalid;
use crate::log;

/// Reads where an engine shall listen.
///
/// # Errors
/// `INVALID_ARGUMENT` if the text is no IP address with a port.
pub fn listen_address(text: &str) -> Result<SocketAddr, Status> {
    text.parse().map_err(|_| {
        invalid(format!(
            "cannot listen on \"{text}\"; write an IP address and a port, as in 0.0.0.0:0"
        ))
    })
}

/// Starts an engine, and tells the log what it has, and whether strangers can reach it.
///
/// # Errors
/// `FAILED_PRECONDITION` if the engine does not start. What it logged is written by then.
pub fn start(options: EngineOptions) -> Result<Engine, Status> {
    let engine = Engine::start(options).map_err(|error| {
        log::flush();
        Status::new(Code::FailedPrecondition, error.to_string())
    })?;
    tracing::info!("{}", engine.start_report());
    if let Some(star) = engine.local_addr()
        && star.ip().is_unspecified()
        && engine.authority().is_open()
    {
        tracing::warn!(
            %star,
            "whoever reaches this machine may read what this task holds and take part in its steps; \
             set GRPCXX_TOKEN_FILE, GRPCXX_ALLOW or GRPCXX_MEMBERS, or listen on the address \
             of the cluster's network"
        );
    }
    Ok(engine)
}
