//! Where a rank is: the address that it tells the others.

use std::fmt::Display;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};

use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::Engine;
use grpcxx_runtime::cluster::source_towards;

use crate::group::GroupBuilder;

/// The address that a rank tells the others, who dial it. The log says which one, and why.
///
/// # Errors
/// `INVALID_ARGUMENT` if the engine does not listen.
pub(crate) fn told(builder: &GroupBuilder, engine: &Engine) -> Result<String, Status> {
    let rank = builder.rank;
    let Some(listening) = engine.local_addr() else {
        if builder.size == 1 {
            return Ok("nowhere:0".to_owned());
        }
        let text = format!(
            "the engine of rank {rank} does not listen, so other ranks cannot reach it; let it \
             listen"
        );
        return Err(Status::new(Code::InvalidArgument, text));
    };
    let (told, why): (String, &dyn Display) = match &builder.address {
        _ if rank == 0 => (builder.rendezvous.clone(), &"where they meet"),
        Some(address) => (address.clone(), &"as it was told to"),
        None if !listening.ip().is_unspecified() => (listening.to_string(), &"where it listens"),
        None => match on_the_way(&builder.rendezvous, listening) {
            Some(ip) => {
                let told = SocketAddr::new(ip, listening.port());
                (told.to_string(), &"its address on the way to rank 0")
            }
            None => {
                let told = engine.reachable_addr().unwrap_or(listening);
                (told.to_string(), &"the address of this host on its way out")
            }
        },
    };
    tracing::info!("rank {rank} listens on {listening}; the others dial {told}, {why}");
    Ok(told)
}

/// The address of this host on the way to the rendezvous, unless that is this host: one of those
/// that it listens on, which takes IPv4 as well if that is of IPv6.
fn on_the_way(rendezvous: &str, listening: SocketAddr) -> Option<IpAddr> {
    let found = rendezvous.to_socket_addrs().ok()?;
    let mut found: Vec<SocketAddr> = found
        .filter(|address| address.is_ipv4() || listening.is_ipv6())
        .collect();
    // As those who dial prefer it.
    found.sort_by_key(SocketAddr::is_ipv6);
    let ip = source_towards(*found.first()?)?;
    (!ip.is_loopback()).then_some(ip)
}
