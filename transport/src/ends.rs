//! The two addresses between which a connection runs.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// The two addresses between which a connection runs, as one of its ends sees them.
///
/// Two processes of one network namespace that see the same two, each the other way round, are the
/// ends of one connection: nobody stands between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    own: (IpAddr, u16),
    peer: (IpAddr, u16),
}

impl Ends {
    /// Between these two. An IPv4 address within an IPv6 one is taken for itself.
    pub fn new(own: SocketAddr, peer: SocketAddr) -> Self {
        let plain = |address: SocketAddr| (address.ip().to_canonical(), address.port());
        Self {
            own: plain(own),
            peer: plain(peer),
        }
    }

    /// The same connection as its other end sees it.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self {
            own: self.peer,
            peer: self.own,
        }
    }

    /// Both addresses as [`Ends::decode`] reads them.
    pub fn encode(&self) -> [u8; ENDS_BYTES] {
        let mut bytes = [0; ENDS_BYTES];
        for ((ip, port), part) in [self.own, self.peer]
            .into_iter()
            .zip(bytes.chunks_mut(ENDS_BYTES / 2))
        {
            let ip = match ip {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            part[..16].copy_from_slice(&ip.octets());
            part[16..].copy_from_slice(&port.to_be_bytes());
        }
        bytes
    }

    /// Reads what [`Ends::encode`] has written.
    pub fn decode(bytes: &[u8; ENDS_BYTES]) -> Self {
        let address = |at: usize| {
            let mut ip = [0; 16];
            ip.copy_from_slice(&bytes[at..at + 16]);
            let port = u16::from_be_bytes([bytes[at + 16], bytes[at + 17]]);
            SocketAddr::new(Ipv6Addr::from(ip).into(), port)
        };
        Self::new(address(0), address(ENDS_BYTES / 2))
    }
}

/// Length of [`Ends::encode`]: two addresses of IPv6, each with its port.
pub const ENDS_BYTES: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_see_one_connection_however_they_write_its_addresses() {
        let ends = |own: &str, peer: &str| Ends::new(own.parse().unwrap(), peer.parse().unwrap());
        let near = ends("127.0.0.1:1", "127.0.0.2:2");
        let far = ends("[::ffff:127.0.0.2]:2", "[::ffff:127.0.0.1]:1");
        assert_eq!(near.reversed(), far);
        let local = ends("[fe80::1%3]:1", "[fe80::2%3]:2");
        for ends in [near, far, local] {
            assert_eq!(Ends::decode(&ends.encode()), ends);
        }
        for other in [
            near,
            ends("127.0.0.2:2", "127.0.0.1:3"),
            ends("127.0.0.3:2", "127.0.0.1:1"),
            local,
        ] {
            assert_ne!(near.reversed(), other);
        }
    }
}
