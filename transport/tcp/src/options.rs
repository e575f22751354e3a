use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use grpcxx_transport::LinkLimits;

/// How a [`TcpTransport`](crate::TcpTransport) shall work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TcpOptions {
    /// The driver to use.
    pub driver: DriverRequest,
    /// Bounds of each link and of their number.
    pub limits: LinkLimits,
    /// Submission entries of the ring; the completion queue has four times as many. Halved by
    /// itself where the system refuses that much memory.
    pub ring_entries: u32,
    /// Size of each socket's send buffer in bytes. If `None` the system sizes it as it goes, but it
    /// stays small for connections within this host.
    pub send_buffer_bytes: Option<usize>,
    /// Size of each socket's receive buffer in bytes; the system sizes it as it goes if `None`.
    pub receive_buffer_bytes: Option<usize>,
    /// Size of one buffer that heads and small payloads are read through, in bytes. All links share
    /// them.
    pub staging_bytes: usize,
    /// Number of such buffers for io_uring, a power of two; epoll has one.
    pub staging_buffers: u16,
    /// The host spins on [`turn`](grpcxx_transport::Transport::turn) and rarely parks.
    pub busy: bool,
    /// Let several listeners, also of other processes, share one port. Off, a second bind is an
    /// error.
    pub reuse_port: bool,
    /// Idle time after which the system probes whether a peer still lives; never if `None`.
    pub keepalive: Option<Duration>,
}

impl TcpOptions {
    /// These options with what `change` sets; fields that it leaves alone keep their values.
    ///
    /// ```
    /// use grpcxx_tcp::TcpOptions;
    ///
    /// let options = TcpOptions::default().with(|options| options.busy = false);
    /// assert_eq!(options.busy, false);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for TcpOptions {
    fn default() -> Self {
        Self {
            driver: DriverRequest::Auto,
            limits: LinkLimits::default(),
            ring_entries: 1024,
            send_buffer_bytes: None,
            receive_buffer_bytes: None,
            staging_bytes: 16 << 10,
            staging_buffers: 64,
            busy: true,
            reuse_port: false,
            keepalive: None,
        }
    }
}

/// A driver of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Operations complete in a ring shared with the kernel.
    IoUring,
    /// The kernel tells which sockets are ready.
    Epoll,
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::IoUring => "io_uring",
            Self::Epoll => "epoll",
        })
    }
}

/// Which driver the user wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverRequest {
    /// io_uring where it works, else epoll.
    #[default]
    Auto,
    /// io_uring, or an error.
    IoUring,
    /// epoll.
    Epoll,
}

impl fmt::Display for DriverRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::IoUring => "io_uring",
            Self::Epoll => "epoll",
        })
    }
}

impl FromStr for DriverRequest {
    type Err = UnknownDriver;

    fn from_str(text: &str) -> Result<Self, UnknownDriver> {
        match text {
            "auto" => Ok(Self::Auto),
            "io_uring" => Ok(Self::IoUring),
            "epoll" => Ok(Self::Epoll),
            _ => Err(UnknownDriver(text.to_owned())),
        }
    }
}

/// A text that names no driver.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no TCP driver; use auto, io_uring or epoll")]
pub struct UnknownDriver(pub String);

/// The driver that a transport uses, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverChoice {
    /// The driver in use.
    pub driver: Driver,
    /// Why it is this one, in words.
    pub why: String,
}

impl fmt::Display for DriverChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp/{} ({})", self.driver, self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_names_parse_and_unknown_ones_say_what_is_allowed() {
        for request in [
            DriverRequest::Auto,
            DriverRequest::IoUring,
            DriverRequest::Epoll,
        ] {
            assert_eq!(request.to_string().parse(), Ok(request));
        }
        let error = "kqueue".parse::<DriverRequest>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "`kqueue` is no TCP driver; use auto, io_uring or epoll"
        );
    }
}
