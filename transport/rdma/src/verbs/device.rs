use std::fmt;

use grpcxx_transport::TransportError;

/// A device of this machine, for the eyes of a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceReport {
    /// Its name: `mlx5_0`.
    pub name: String,
    /// Whether links can use it at all; else why not.
    pub refusal: Option<&'static str>,
    /// Its ports, from 1.
    pub ports: Vec<PortReport>,
}

/// A port of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortReport {
    /// Its number, from 1.
    pub number: u8,
    /// Whether it carries traffic.
    pub is_active: bool,
    /// Whether it is an Ethernet port, with RoCE; else InfiniBand.
    pub is_ethernet: bool,
    /// Largest packet in bytes.
    pub packet_bytes: u32,
}

/// Why RDMA is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The library is not installed, or too old.
    #[error("no libibverbs: {0} (install rdma-core or libibverbs1 to use RDMA)")]
    Library(String),
    /// There is no device.
    #[error(
        "no RDMA device (for one in software: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0)"
    )]
    NoDevice,
    /// The device that was asked for is not there.
    #[error("no RDMA device {asked}; there are: {found}")]
    NoSuchDevice {
        /// What was asked for.
        asked: String,
        /// What there is.
        found: String,
    },
    /// No device can be used, with the reason for each.
    #[error("no usable RDMA device: {0}")]
    Unusable(String),
    /// The system refused something.
    #[error(transparent)]
    System(#[from] TransportError),
}

impl fmt::Display for DeviceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        if let Some(refusal) = self.refusal {
            return write!(f, " ({refusal})");
        }
        for port in &self.ports {
            let state = if port.is_active { "active" } else { "down" };
            let kind = if port.is_ethernet {
                "RoCE"
            } else {
                "InfiniBand"
            };
            write!(
                f,
                " port {} {state} {kind} {} B packets",
                port.number, port.packet_bytes
            )?;
        }
        Ok(())
    }
}

/// Length in bytes of the packet that verbs number so.
pub(super) fn packet_bytes(mtu: u8) -> u32 {
    128 << mtu.clamp(1, 5)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_there_is() {
        let report = DeviceReport {
            name: "rxe0".to_owned(),
            refusal: None,
            ports: vec![PortReport {
                number: 1,
                is_active: true,
                is_ethernet: true,
                packet_bytes: packet_bytes(5),
            }],
        };
        assert_eq!(report.to_string(), "rxe0 port 1 active RoCE 4096 B packets");
    }
}
