//! Whether bytes may leave without TLS over a protocol that has none, such as TensorFlow's gRPC.

use std::fmt;
use std::net::IpAddr;

use grpcxx_tls::TlsMode;

use super::Certificates;
use crate::cluster::{look_up, split_address};

/// Why nothing goes to a task without TLS. The text says what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainForbidden {
    mode: TlsMode,
    host: String,
    /// An address of the host that nobody has named; `None` if the host has no known address.
    unnamed: Option<IpAddr>,
}

impl Certificates {
    /// Checks that the task at this `host:port` may be called without TLS: either this task dials
    /// nobody by TLS, or `GRPCXX_TLS_PLAIN` names every address of the host. Looks a name up, and
    /// blocks as long.
    ///
    /// # Errors
    /// The task must be called by TLS.
    pub fn check_plain_call(&self, address: &str) -> Result<(), PlainForbidden> {
        self.check_plain(address, self.options.mode.dials(), look_up)
    }

    /// Checks that the task at this `host:port` may be answered without TLS: either everybody may
    /// come without it, or `GRPCXX_TLS_PLAIN` names every address of the host. Looks a name up, and
    /// blocks as long.
    ///
    /// # Errors
    /// The task must come by TLS.
    pub fn check_plain_answer(&self, address: &str) -> Result<(), PlainForbidden> {
        self.check_plain(address, !self.options.mode.takes_plain(), look_up)
    }

    fn check_plain(
        &self,
        address: &str,
        needs_tls: bool,
        look_up: impl Fn(&str) -> Vec<IpAddr>,
    ) -> Result<(), PlainForbidden> {
        if !needs_tls {
            return Ok(());
        }
        let host = split_address(address).map_or(address, |(host, _)| host);
        let found = match host.parse() {
            Ok(ip) => vec![ip],
            Err(_) => look_up(host),
        };
        let is_unnamed = |ip: &IpAddr| !(self.options.plain_peers)(ip.to_canonical());
        let is_known = !found.is_empty();
        let unnamed = found.into_iter().find(is_unnamed);
        if is_known && unnamed.is_none() {
            return Ok(());
        }
        Err(PlainForbidden {
            mode: self.options.mode,
            host: host.to_owned(),
            unnamed,
        })
    }
}

impl fmt::Display for PlainForbidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            mode,
            host,
            unnamed,
        } = self;
        write!(f, "GRPCXX_TLS={mode} allows nothing without TLS to {host}")?;
        match unnamed {
            Some(ip) if ip.to_string() == *host => {}
            Some(ip) => write!(f, " ({ip})")?,
            None => f.write_str(", whose IP addresses the system does not know")?,
        }
        f.write_str(
            "; to allow it nevertheless, name its addresses in GRPCXX_TLS_PLAIN of this task, or \
             give this task GRPCXX_TLS=accept or off",
        )
    }
}

impl std::error::Error for PlainForbidden {}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;

    use super::super::tests::certificates;
    use super::*;

    /// Whether calls to and answers for an address may go without TLS, where 10.1.0.0/16 is named.
    fn allowed(mode: TlsMode, address: &str) -> [bool; 2] {
        let certificates = certificates(|options| {
            options.mode = mode;
            options.plain_peers = Arc::new(|ip| ip.to_string().starts_with("10.1."));
        });
        let names = |host: &str| match host {
            "named" => vec![
                "10.1.0.1".parse().unwrap(),
                "::ffff:10.1.0.2".parse().unwrap(),
            ],
            "half" => vec!["10.1.0.1".parse().unwrap(), "10.2.0.1".parse().unwrap()],
            _ => Vec::new(),
        };
        [mode.dials(), !mode.takes_plain()]
            .map(|needs_tls| certificates.check_plain(address, needs_tls, names).is_ok())
    }

    #[test]
    fn only_named_hosts_are_spoken_to_without_tls() {
        for address in ["10.1.0.1:2222", "[::ffff:10.1.0.1]:2222", "named:2222"] {
            assert_eq!(allowed(TlsMode::Require, address), [true; 2], "{address}");
        }
        for address in [
            "10.2.0.1:2222",
            "[::1]:2222",
            "half:2222",
            "dns:///named:2222",
            "",
        ] {
            assert_eq!(allowed(TlsMode::Require, address), [false; 2], "{address}");
            assert_eq!(allowed(TlsMode::Dial, address), [false, true], "{address}");
            assert_eq!(allowed(TlsMode::Accept, address), [true; 2], "{address}");
        }
    }

    #[test]
    fn what_is_forbidden_says_what_would_allow_it() {
        let certificates = certificates(|options| options.mode = TlsMode::Require);
        let text = |address: &str| {
            let names = |host: &str| match host {
                "ps0" => vec!["10.1.0.1".parse().unwrap()],
                _ => Vec::new(),
            };
            let forbidden = certificates.check_plain(address, true, names).unwrap_err();
            let text = forbidden.to_string();
            assert!(text.contains("GRPCXX_TLS_PLAIN"), "{text}");
            text.split_once(';').unwrap().0.to_owned()
        };
        let begin = "GRPCXX_TLS=require allows nothing without TLS to";
        assert_eq!(text("10.1.0.1:1"), format!("{begin} 10.1.0.1"));
        assert_eq!(text("ps0:1"), format!("{begin} ps0 (10.1.0.1)"));
        let unknown = "whose IP addresses the system does not know";
        assert_eq!(text("ps1:1"), format!("{begin} ps1, {unknown}"));
    }
}
