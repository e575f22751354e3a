use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, ToSocketAddrs};

/// Where a task speaks star.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StarAddress {
    /// A host name or an IPv4 address. The own one does not count: a task listens on all addresses.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// The star port of a task with this gRPC port where there is no map.
///
/// # Errors
/// The sum is no port: what to change.
pub fn star_port(grpc_port: u16, offset: u16) -> Result<u16, String> {
    grpc_port.checked_add(offset).ok_or_else(|| {
        format!(
            "gRPC port {grpc_port} + offset {offset} is more than 65535; take a lower gRPC port, set GRPCXX_STAR_PORT_OFFSET, or write an .endpoint_map"
        )
    })
}

impl StarAddress {
    /// The IPv4 address of the host, looked up by the system if it is a name. Ask once: where a host moves to
    /// is not followed.
    ///
    /// # Errors
    /// The name has no IPv4 address.
    pub fn resolve(&self) -> Result<SocketAddrV4, String> {
        self.resolve_with(|host| {
            let addresses = (host, self.port).to_socket_addrs()?;
            Ok(addresses.map(|address| address.ip()).collect())
        })
    }

    /// As [`StarAddress::resolve`], with `lookup` in place of the system.
    ///
    /// # Errors
    /// The name has no IPv4 address.
    pub fn resolve_with(
        &self,
        lookup: impl FnOnce(&str) -> io::Result<Vec<IpAddr>>,
    ) -> Result<SocketAddrV4, String> {
        if let Ok(address) = self.host.parse::<Ipv4Addr>() {
            return Ok(SocketAddrV4::new(address, self.port));
        }
        let host = &self.host;
        let found = lookup(host).map_err(|error| {
            format!(
                "host `{host}` is not known: {error}; check the name, or write its IPv4 address"
            )
        })?;
        let first = found.iter().find_map(|address| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        });
        match first {
            Some(address) => Ok(SocketAddrV4::new(address, self.port)),
            None => Err(format!(
                "host `{host}` has no IPv4 address, and star knows no other; write one"
            )),
        }
    }

    /// Reads the value of an entry. With a text the value is odd, but means something to the original.
    pub(super) fn parse(value: &str) -> Result<(Self, Option<String>), String> {
        let shown = value.trim_end();
        let not_a_pair = format!("Could not interpret \"{shown}\" as a host-port pair.");
        let Some((host, port)) = value.split_once(':') else {
            return Err(format!("{not_a_pair} Write `star_host:star_port`"));
        };
        if port.contains(':') {
            return Err(format!(
                "{not_a_pair} Write a host name or an IPv4 address; star knows no IPv6 addresses"
            ));
        }
        let is_host = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
        if host.is_empty() || !host.chars().all(is_host) {
            return Err(
                "write a host name or an IPv4 address, without spaces, behind `=`".to_owned(),
            );
        }
        let trimmed = port.trim_matches(|letter: char| letter.is_ascii_whitespace());
        let number: i32 = trimmed
            .parse()
            .map_err(|_| "write a port from 1 to 65535 at the end".to_owned())?;
        let port = number as u16;
        if number <= 0 || port == 0 {
            return Err("write a port from 1 to 65535 at the end".to_owned());
        }
        let oddity = (number > i32::from(u16::MAX))
            .then(|| format!("a port ends at 65535; as DeepRec does, {port} is taken"));
        let address = Self {
            host: host.to_owned(),
            port,
        };
        Ok((address, oddity))
    }
}

impl fmt::Display for StarAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
