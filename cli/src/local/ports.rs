//! Ports that are told to others before anybody listens on them.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// A port that nobody gets by chance as long as this lives.
///
/// A socket is bound to it, and does not listen. Who is told the port can listen on it meanwhile,
/// and others after him, if he allows that an address is used again (`SO_REUSEADDR`), as servers
/// do. Who looks for a port, and the system where it chooses one, pass this one over.
#[derive(Debug)]
pub struct HeldPort {
    number: u16,
    _socket: OwnedFd,
}

impl HeldPort {
    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// Takes a port, or any one if it is 0.
    fn take(ip: IpAddr, port: u16) -> io::Result<Self> {
        let family = match ip {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        // Children that live on would hold it.
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        rustix::net::bind(&socket, &SocketAddr::new(ip, port))?;
        // Said before, it would share the port with another that is held like this.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        let bound: SocketAddr = rustix::net::getsockname(&socket)?.try_into()?;
        Ok(Self {
            number: bound.port(),
            _socket: socket,
        })
    }
}

/// `count` different ports of `ip` that nobody else has.
///
/// They lie below the ports that the system gives to outgoing connections: a task that is started
/// again finds its port free, and nobody who dials it meanwhile connects to himself.
///
/// # Errors
/// The system has not so many.
pub fn held_ports(count: usize, ip: IpAddr) -> io::Result<Vec<HeldPort>> {
    let first_outgoing = std::fs::read_to_string(OUTGOING_RANGE)
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .unwrap_or(OUTGOING_DEFAULT);
    let candidates = FIRST..first_outgoing.max(FIRST);
    // Processes that look at the same time shall not look at the same ports.
    let random = RandomState::new().build_hasher().finish();
    let start = random % u64::from(candidates.len().max(1) as u32);
    let rotated = candidates
        .clone()
        .skip(start as usize)
        .chain(candidates.take(start as usize));
    let free = rotated.filter_map(|port| HeldPort::take(ip, port).ok());
    let mut held: Vec<HeldPort> = free.take(count).collect();
    // A system that leaves no room there gives what it has.
    while held.len() < count {
        held.push(HeldPort::take(ip, 0)?);
    }
    Ok(held)
}

const OUTGOING_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const OUTGOING_DEFAULT: u16 = 32_768;
const FIRST: u16 = 15_000;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};

    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn ports_differ() {
        let held = held_ports(16, LOOPBACK).unwrap();
        let mut ports: Vec<u16> = held.iter().map(HeldPort::number).collect();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 16);
    }

    #[test]
    fn who_is_told_a_port_listens_on_it_and_who_looks_for_one_passes_it_over() {
        for ip in [
            LOOPBACK,
            Ipv4Addr::UNSPECIFIED.into(),
            Ipv6Addr::LOCALHOST.into(),
        ] {
            let Ok(held) = held_ports(1, ip) else {
                // A machine without IPv6.
                assert!(ip.is_ipv6());
                continue;
            };
            let port = held[0].number();
            for _ in 0..2 {
                assert!(HeldPort::take(ip, port).is_err());
                let told = TcpListener::bind((ip, port)).expect("a server gets it");
                assert!(HeldPort::take(ip, port).is_err());
                drop(told);
            }
            drop(held);
            HeldPort::take(ip, port).expect("it is free again");
        }
    }
}
