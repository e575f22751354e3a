use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::{IpAddr, Ipv4Addr, TcpListener};

/// `count` different ports of the loopback interface that nobody listens on right now.
///
/// Another process may take one before it is used, so whoever starts servers on them must be ready
/// to try again.
pub(super) fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let held = held_ports(count, IpAddr::V4(Ipv4Addr::LOCALHOST))?;
    Ok(held.into_iter().map(|(port, _)| port).collect())
}

/// `count` different ports of `ip` on which nobody else can listen while this holds them.
///
/// They lie below the ports that the system gives to outgoing connections: a task that is started
/// again finds its port free, and nobody who dials it meanwhile connects to himself.
pub fn held_ports(count: usize, ip: IpAddr) -> io::Result<Vec<(u16, TcpListener)>> {
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
    let mut held = Vec::with_capacity(count);
    for port in rotated {
        if held.len() == count {
            break;
        }
        if let Ok(listener) = TcpListener::bind((ip, port)) {
            held.push((port, listener));
        }
    }
    // A system that leaves no room there gives what it has.
    while held.len() < count {
        let listener = TcpListener::bind((ip, 0))?;
        held.push((listener.local_addr()?.port(), listener));
    }
    Ok(held)
}

const OUTGOING_RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const OUTGOING_DEFAULT: u16 = 32_768;
const FIRST: u16 = 15_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ() {
        let mut ports = free_ports(16).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 16);
    }
}
