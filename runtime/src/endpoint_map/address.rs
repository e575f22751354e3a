use std::fmt;

use crate::cluster::split_host;

/// Where a task speaks star.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StarAddress {
    /// A host name or an IP address.
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
    /// Reads the value of an entry. With a text the value is odd, but means something to the
    /// original.
    pub(super) fn parse(value: &str) -> Result<(Self, Option<String>), String> {
        let shown = value.trim_end();
        let not_a_pair = format!("Could not interpret \"{shown}\" as a host-port pair.");
        let (host, port) = match value.split_once(':') {
            None => return Err(format!("{not_a_pair} Write `star_host:star_port`")),
            Some(("", port)) if !port.contains(':') => {
                return Err("write a host name or an IP address behind `=`".to_owned());
            }
            Some(_) => split_host(value).map_err(|wanted| format!("{not_a_pair} {wanted}"))?,
        };
        let trimmed = port.trim_matches(|letter: char| letter.is_ascii_whitespace());
        let number: i32 = trimmed
            .parse()
            .map_err(|_| "write a port from 1 to 65535 at the end".to_owned())?;
        let port = number as u16;
        if number <= 0 || port == 0 {
            return Err("write a port from 1 to 65535 at the end".to_owned());
        }
        let oddity = if number > i32::from(u16::MAX) {
            Some(format!(
                "a port ends at 65535; as DeepRec does, {port} is taken"
            ))
        } else {
            let is_ipv6 = host.contains(':');
            is_ipv6.then(|| "tasks of DeepRec know no IPv6 addresses".to_owned())
        };
        let address = Self {
            host: host.to_owned(),
            port,
        };
        Ok((address, oddity))
    }
}

impl fmt::Display for StarAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}
