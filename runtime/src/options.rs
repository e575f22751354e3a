//! The options of what an engine is built on: all types that [`EngineOptions`] has for fields.

pub use grpcxx_memory::ArenaOptions;
pub use grpcxx_rdma::{CreditLimits, RdmaOptions};
pub use grpcxx_rpc::{ChannelOptions, ConnectionLimits, RendezvousLimits, StoreLimits};
pub use grpcxx_shm::ShmOptions;
pub use grpcxx_tcp::{Driver, DriverRequest, TcpOptions};
pub use grpcxx_tls::{PlainPeers, TlsMode, TlsOptions};
pub use grpcxx_transport::LinkLimits;

pub use crate::cluster::TaskId;
pub use crate::engine::EngineOptions;
pub use crate::host::HostSetting;
pub use crate::placement::CpuList;
pub use crate::policy::Policy;
pub use crate::shard::{DrainLimits, Patience, PeerShares};
pub use crate::tls::TlsSettings;
