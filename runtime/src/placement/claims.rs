//! Which CPUs the tasks of a host have pinned shards to.
//!
//! A claim is a UNIX socket with an abstract name, one for each CPU. The kernel lets one socket
//! have a name, and gives it free when the process ends, however it ends; there is no file to clean
//! up, and tasks of several users see each other. Tasks in containers with a network of their own
//! do not.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use grpcxx_memory::OwnFd;

/// The CPUs that an engine has claimed, until dropped.
#[derive(Debug, Default)]
pub struct CpuClaims {
    sockets: Vec<OwnFd>,
}

impl CpuClaims {
    /// Claims a CPU and says whether nobody else has. Where the system has no such sockets, nobody
    /// has.
    pub fn take(&mut self, cpu: usize) -> bool {
        match claim(cpu) {
            Ok(socket) => {
                self.sockets.push(OwnedFd::from(socket).into());
                true
            }
            Err(error) => error.kind() != ErrorKind::AddrInUse,
        }
    }
}

fn claim(cpu: usize) -> io::Result<UnixDatagram> {
    let address = SocketAddr::from_abstract_name(format!("grpcxx-cpu-{cpu}"))?;
    UnixDatagram::bind_addr(&address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cpu_is_claimed_once_until_the_claim_ends() {
        // No machine has it, so no other test claims it.
        let cpu = usize::MAX;
        let mut first = CpuClaims::default();
        let mut second = CpuClaims::default();
        assert!(first.take(cpu));
        assert!(!second.take(cpu));
        drop(first);
        assert!(second.take(cpu));
    }
}
