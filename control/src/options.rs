//! Where the endpoint listens, and what it accepts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use grpcxx_runtime::Certificates;
use grpcxx_runtime::policy::Authority;

use crate::limits::METRICS_CONNECTIONS_MAX;

/// Where the endpoint listens, and whom it serves.
#[derive(Clone, Debug)]
pub struct ControlOptions {
    /// The address of the gRPC endpoint; port 0 lets the system choose one.
    pub listen: SocketAddr,
    /// The address of the metrics page; none: no such page.
    pub metrics: Option<SocketAddr>,
    /// What peers may hold.
    pub limits: ControlLimits,
    /// Says who may connect and what each caller may do.
    pub authority: Arc<Authority>,
    /// What connections prove themselves with, if some are TLS.
    pub certificates: Option<Arc<Certificates>>,
}

/// What peers may hold of the endpoint. Beyond that, what has been idle for longest gives way.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ControlLimits {
    /// Connections open at once. One that carries a call does not give way.
    pub connections: usize,
    /// Connections to the metrics page open at once.
    pub page_connections: usize,
    /// Sessions of each kind, those of masters and those of clients.
    pub sessions: usize,
    /// The part of connections, calls, request bytes and sessions that one address gets, in
    /// percent.
    pub share_percent: u8,
    /// How long a connection may carry no call; `None`: as long as it likes.
    pub connection_idle: Option<Duration>,
    /// How long a session may be open without use; `None`: as long as it likes.
    pub session_idle: Option<Duration>,
    /// How long a request may take to come.
    pub request_time: Duration,
    /// Bytes of answers to one address that have not left, but for tensors of steps.
    pub peer_unsent_bytes: u64,
}

impl Default for ControlLimits {
    fn default() -> Self {
        Self {
            connections: 1024,
            page_connections: METRICS_CONNECTIONS_MAX,
            sessions: 16_384,
            share_percent: 50,
            connection_idle: Some(Duration::from_secs(3600)),
            session_idle: Some(Duration::from_secs(24 * 3600)),
            request_time: Duration::from_secs(30),
            peer_unsent_bytes: 8 << 30,
        }
    }
}

/// An address that names no port to listen on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{found:?} is no address to listen on: write host:port with a port from 0 to 65535, an IPv6 host in brackets"
)]
pub struct BadAddress {
    /// The address as given.
    pub found: String,
}

impl ControlOptions {
    /// All IPv4 interfaces, as the original binds.
    pub fn new(port: u16) -> Self {
        Self {
            listen: SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), port),
            metrics: None,
            limits: ControlLimits::default(),
            authority: Arc::default(),
            certificates: None,
        }
    }

    /// The endpoint of a task whose address in the cluster spec is `address`: its port on all
    /// interfaces.
    ///
    /// The host only says how others reach this task, except that an IPv6 host asks for all IPv6
    /// interfaces.
    ///
    /// # Errors
    /// The address has no port.
    pub fn for_task(address: &str) -> Result<Self, BadAddress> {
        let bad = || BadAddress {
            found: address.to_owned(),
        };
        let (host, port) = address.rsplit_once(':').ok_or_else(bad)?;
        let bracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let any: IpAddr = match bracketed {
            Some(inner) => {
                inner.parse::<Ipv6Addr>().map_err(|_| bad())?;
                Ipv6Addr::UNSPECIFIED.into()
            }
            None if host.is_empty() || host.contains(':') => return Err(bad()),
            None => Ipv4Addr::UNSPECIFIED.into(),
        };
        // `u16::from_str` accepts a sign, an address does not.
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad());
        }
        let port = port.parse().map_err(|_| bad())?;
        Ok(Self {
            listen: SocketAddr::new(any, port),
            metrics: None,
            limits: ControlLimits::default(),
            authority: Arc::default(),
            certificates: None,
        })
    }

    /// Listens on one interface only.
    pub fn bind_to(mut self, interface: IpAddr) -> Self {
        self.listen.set_ip(interface);
        self
    }

    /// Lets peers hold this much.
    pub fn with_limits(mut self, limits: ControlLimits) -> Self {
        self.limits = limits;
        self
    }

    /// Asks this authority who may connect and what each caller may do. Without it, that of a
    /// policy of which nothing was set is asked.
    pub fn guarded_by(mut self, authority: Arc<Authority>) -> Self {
        self.authority = authority;
        self
    }

    /// Takes connections by TLS with these certificates, and without it only as far as they say.
    pub fn secured_by(mut self, certificates: Option<Arc<Certificates>>) -> Self {
        self.certificates = certificates;
        self
    }

    /// Serves the metrics page on `address`.
    pub fn metrics_on(mut self, address: SocketAddr) -> Self {
        self.metrics = Some(address);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// checklist 14: the port of the cluster spec, on any address.
    #[test]
    fn the_host_only_chooses_the_address_family() {
        let listen = |address| {
            ControlOptions::for_task(address)
                .unwrap()
                .listen
                .to_string()
        };
        assert_eq!(listen("ps0.example:2222"), "0.0.0.0:2222");
        assert_eq!(listen("10.1.2.3:2222"), "0.0.0.0:2222");
        assert_eq!(listen("[2001:db8::1]:2222"), "[::]:2222");
    }

    #[test]
    fn addresses_without_a_port_are_refused() {
        for bad in [
            "",
            "host",
            "host:",
            ":1",
            "host:65536",
            "host:+1",
            "::1:80",
            "[zz]:1",
            "[::1]",
        ] {
            let error = ControlOptions::for_task(bad).unwrap_err();
            assert_eq!(error.found, bad);
        }
    }

    #[test]
    fn one_interface_can_be_chosen() {
        let options = ControlOptions::new(7).bind_to(Ipv4Addr::LOCALHOST.into());
        assert_eq!(options.listen.to_string(), "127.0.0.1:7");
    }
}
