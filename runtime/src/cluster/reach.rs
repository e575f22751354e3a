//! Where a task of this host can be reached: the addresses that it listens on and those that others
//! dial need not be the same.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::split_address;

/// The IP address on which a task listens, as long as no setting says, whose own address is
/// `address`: the loopback address that it is, else all addresses of its family. A name is looked
/// up, and asks for IPv6 if it has no other address.
pub fn listen_ip(address: &str) -> IpAddr {
    listen_ip_by(address, look_up)
}

/// As [`listen_ip`], with the addresses that `look_up` finds for a name.
pub fn listen_ip_by(address: &str, look_up: impl Fn(&str) -> Vec<IpAddr>) -> IpAddr {
    let host = split_address(address).map_or("", |(host, _)| host);
    match host.parse() {
        Ok(IpAddr::V4(ip)) if ip.is_loopback() => ip.into(),
        Ok(IpAddr::V6(ip)) if ip.is_loopback() => ip.into(),
        Ok(IpAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
        Ok(IpAddr::V4(_)) => Ipv4Addr::UNSPECIFIED.into(),
        Err(_) if host.eq_ignore_ascii_case("localhost") => Ipv4Addr::LOCALHOST.into(),
        Err(_) => {
            let found = look_up(host);
            match !found.is_empty() && found.iter().all(IpAddr::is_ipv6) {
                true => Ipv6Addr::UNSPECIFIED.into(),
                false => Ipv4Addr::UNSPECIFIED.into(),
            }
        }
    }
}

/// The addresses of a host; none if the system does not tell them soon.
pub(crate) fn look_up(host: &str) -> Vec<IpAddr> {
    let (tell, told) = mpsc::channel();
    let host = host.to_owned();
    let asked = thread::Builder::new()
        .name("grpcxx-look-up".to_owned())
        .spawn(move || {
            let found = (host.as_str(), 0).to_socket_addrs();
            let found = found.map(|found| found.map(|address| address.ip()).collect());
            // Nobody waits any more if it took too long.
            let _ = tell.send(found.unwrap_or_default());
        });
    match asked {
        Ok(_) => told.recv_timeout(LOOK_UP_MAX).unwrap_or_default(),
        Err(_) => Vec::new(),
    }
}

/// An address by which others reach what listens on `listening`: that one, or, if it stands for all
/// addresses of this host, the one that the host has on its way out. A host without a way out is
/// reached on its loopback address.
pub fn reachable(listening: SocketAddr) -> SocketAddr {
    let ip = match listening.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => {
            source_towards(OUTSIDE).unwrap_or(Ipv4Addr::LOCALHOST.into())
        }
        // It takes IPv4 as well.
        IpAddr::V6(ip) if ip.is_unspecified() => source_towards(OUTSIDE_IPV6)
            .or_else(|| source_towards(OUTSIDE))
            .unwrap_or(Ipv6Addr::LOCALHOST.into()),
        ip => ip,
    };
    SocketAddr::new(ip, listening.port())
}

/// The address that this host has on the way to another. No packet is sent.
pub fn source_towards(peer: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match peer.is_ipv4() {
        true => Ipv4Addr::UNSPECIFIED.into(),
        false => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(peer).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Longer than it takes to look up the name of this host, which is mostly in a file.
const LOOK_UP_MAX: Duration = Duration::from_secs(5);

/// Addresses that no host has (RFC 5737, RFC 3849): the way to them is the way out.
const OUTSIDE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);
const OUTSIDE_IPV6: SocketAddr = SocketAddr::new(
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
    9,
);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn tasks_listen_on_loopback_if_that_is_their_address_and_on_all_addresses_else() {
        let look_up = |host: &str| match host {
            "ps0.example" => vec!["10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
            "ps6.example" => vec!["2001:db8::1".parse().unwrap()],
            _ => Vec::new(),
        };
        for (address, listens) in [
            ("127.0.0.1:2222", "127.0.0.1"),
            ("127.0.0.7:2222", "127.0.0.7"),
            ("localhost:2222", "127.0.0.1"),
            ("LocalHost:2222", "127.0.0.1"),
            ("[::1]:2222", "::1"),
            ("10.1.2.3:2222", "0.0.0.0"),
            ("ps0.example:2222", "0.0.0.0"),
            ("ps6.example:2222", "::"),
            ("nobody.example:2222", "0.0.0.0"),
            ("[2001:db8::1]:2222", "::"),
        ] {
            let ip = listen_ip_by(address, look_up);
            assert_eq!(ip.to_string(), listens, "{address}");
        }
    }

    #[test]
    fn what_listens_on_all_addresses_is_reached_by_one_of_them() {
        for any in ["0.0.0.0:0", "[::]:0"] {
            // A host may have no IPv6.
            let Ok(listener) = TcpListener::bind(any) else {
                continue;
            };
            let listening = listener.local_addr().unwrap();
            let address = reachable(listening);
            assert!(!address.ip().is_unspecified());
            assert_eq!(address.port(), listening.port());
            TcpStream::connect(address).unwrap();
        }
        let one: SocketAddr = "10.1.2.3:7".parse().unwrap();
        assert_eq!(reachable(one), one);
    }

    #[test]
    fn names_are_looked_up() {
        assert!(look_up("localhost").iter().any(IpAddr::is_loopback));
        assert_eq!(look_up("no-such-host.invalid"), [] as [IpAddr; 0]);
    }
}
