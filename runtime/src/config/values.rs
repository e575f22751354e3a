//! What settings may be that are one of a few words.

/// Which driver moves bytes over TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverSetting {
    /// io_uring where the system allows it, else epoll.
    #[default]
    Auto,
    /// io_uring or nothing.
    IoUring,
    /// epoll.
    Epoll,
}

/// Whether connections may go on over RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RdmaSetting {
    /// Where both ends have a device.
    Auto,
    /// Never.
    Off,
}

/// Whether connections may go on in shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShmSetting {
    /// Those between processes of one host and user.
    #[default]
    Auto,
    /// None.
    Off,
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}
