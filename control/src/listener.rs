use std::io;
use std::net::{SocketAddr, TcpListener};

/// Why the endpoint did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The address cannot be listened on.
    #[error("the {purpose} cannot listen on {address}: {advice} ({cause})")]
    Listen {
        /// What the port is for.
        purpose: &'static str,
        /// The address as asked for.
        address: SocketAddr,
        /// What to do.
        advice: String,
        /// What the system said.
        cause: io::Error,
    },
    /// The thread of the endpoint or its event loop could not be had.
    #[error(
        "the thread of the gRPC endpoint cannot start: {0}; raise the limits of processes and open files (ulimit -u, ulimit -n)"
    )]
    Thread(io::Error),
}

impl ControlError {
    /// What the system said.
    pub fn cause(&self) -> &io::Error {
        match self {
            Self::Listen { cause, .. } | Self::Thread(cause) => cause,
        }
    }
}

/// Opens a listening socket that does not block.
pub(crate) fn listen(
    purpose: &'static str,
    address: SocketAddr,
) -> Result<TcpListener, ControlError> {
    let open = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    open().map_err(|cause: io::Error| ControlError::Listen {
        purpose,
        address,
        advice: listen_advice(address, &cause),
        cause,
    })
}

/// What to do if the system refuses to listen on `address`.
pub fn listen_advice(address: SocketAddr, error: &io::Error) -> String {
    let port = address.port();
    match error.kind() {
        io::ErrorKind::AddrInUse => format!(
            "port {port} is in use; stop the process that has it (`ss -ltnp sport = :{port}` shows it) or give this task another port"
        ),
        io::ErrorKind::PermissionDenied if port < 1024 => format!(
            "port {port} needs rights that this user lacks; choose a port of 1024 or more, or grant CAP_NET_BIND_SERVICE"
        ),
        io::ErrorKind::PermissionDenied => {
            "this user may not open listening sockets; check the sandbox or security module"
                .to_owned()
        }
        io::ErrorKind::AddrNotAvailable => format!(
            "no interface of this machine has the address {}; choose one that `ip address` shows, or 0.0.0.0 for all",
            address.ip()
        ),
        _ if error.raw_os_error() == Some(ADDRESS_FAMILY_NOT_SUPPORTED) => format!(
            "this machine has no {}; choose an address of the other family",
            if address.is_ipv6() { "IPv6" } else { "IPv4" }
        ),
        _ => "check the address and the limits of this process".to_owned(),
    }
}

/// `EAFNOSUPPORT` of Linux, which the standard library does not name.
const ADDRESS_FAMILY_NOT_SUPPORTED: i32 = 97;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_says_how_to_find_its_owner() {
        let first = listen("test", "127.0.0.1:0".parse().unwrap()).unwrap();
        let address = first.local_addr().unwrap();
        let text = listen("test", address).unwrap_err().to_string();
        assert!(text.contains("is in use"), "{text}");
        assert!(
            text.contains(&format!("sport = :{}", address.port())),
            "{text}"
        );
    }

    #[test]
    fn a_foreign_address_says_which_to_choose() {
        // 192.0.2.0/24 is reserved for documentation.
        let text = listen("test", "192.0.2.1:0".parse().unwrap())
            .unwrap_err()
            .to_string();
        assert!(text.contains("no interface of this machine"), "{text}");
    }

    #[test]
    fn missing_rights_and_families_are_explained() {
        let low: SocketAddr = "0.0.0.0:80".parse().unwrap();
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        assert!(listen_advice(low, &denied).contains("1024"));
        let six: SocketAddr = "[::]:2222".parse().unwrap();
        let family = io::Error::from_raw_os_error(ADDRESS_FAMILY_NOT_SUPPORTED);
        assert!(listen_advice(six, &family).contains("no IPv6"));
    }
}
