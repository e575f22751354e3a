//! Settings from the environment: read once, checked whole, then immutable.
//!
//! The table in [`Config`]'s definition is the only place that names them; `docs/configuration.md`
//! is made of it and held against it by a test. Variables of DeepRec keep DeepRec's habits: what
//! cannot be read counts as the default, with a warning. Our own, with the prefix `GRPCXX_`, are
//! strict; names that nobody knows are warnings.

mod error;
mod parse;
mod role;
mod table;
mod values;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub use error::{ConfigError, Warning};
pub use role::{CORES_OF_OTHER_JOBS, CoreLimit, JobKind, shard_count};
pub use table::{VARIABLES, Variable, check_name, markdown};
pub use values::{DriverSetting, LogFormat, RdmaSetting, ShmSetting};

use crate::host::HostSetting;
use crate::placement::CpuList;
use crate::policy::{AddressRanges, Secret, StoreAccess};
use grpcxx_tls::TlsMode;
use table::Reader;

macro_rules! config {
    ($(
        $field:ident: $type:ty = $parse:expr,
        $name:literal, $default:literal, $unit:literal, $reader:literal, $meaning:literal;
    )*) => {
        /// All settings of a process.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Config {
            $(
                #[doc = concat!("`", $name, "`: ", $meaning, ".")]
                pub $field: $type,
            )*
        }

        impl Config {
            fn take(reader: &mut Reader<'_>) -> Self {
                Self {
                    $($field: reader.take($name, $default, $parse),)*
                }
            }
        }

        const TABLE: &[Variable] = &[$(
            Variable {
                name: $name,
                default: $default,
                unit: $unit,
                reader: $reader,
                meaning: $meaning,
            },
        )*];
    };
}

config! {
    ps_cores: CoreLimit = parse::core_limit,
        "NETWORK_PS_CORE_NUMBER", "16", "shards", "engine",
        "most shards of a task of job `ps`; negative: no limit";
    worker_cores: CoreLimit = parse::core_limit,
        "NETWORK_WORKER_CORE_NUMBER", "16", "shards", "engine",
        "most shards of a task of job `worker` or `chief`; negative: no limit";
    ps_polling: bool = parse::boolean,
        "PS_ENABLE_POLLING", "false", "", "engine",
        "shards spin while idle; for all jobs but `worker` and `chief`";
    worker_polling: bool = parse::boolean,
        "WORKER_ENABLE_POLLING", "false", "", "engine",
        "shards spin while idle; for jobs `worker` and `chief`";
    ps_unpinned: bool = parse::boolean,
        "PS_DISABLE_PIN_CORES", "true", "", "engine",
        "shards are not pinned to CPUs; for all jobs but `worker` and `chief`";
    worker_unpinned: bool = parse::boolean,
        "WORKER_DISABLE_PIN_CORES", "true", "", "engine",
        "shards are not pinned to CPUs; for jobs `worker` and `chief`";
    connection_timeout: Duration = parse::connection_timeout,
        "NETWORK_MAX_CONNECTION_TIMEOUT", "120000", "ms", "engine",
        "how long a call without a timeout of its own waits for a connection; 0 and less: not at \
         all, and calls with one wait for a single dial";
    endpoint_map_directory: Option<PathBuf> = parse::path,
        "TF_SEASTAR_ENDPOINT_MAP_PATH", "", "", "grpcxx-server, grpcxx",
        "directory that holds `.endpoint_map`; unset: the working directory";
    tf_config: Option<String> = parse::text,
        "TF_CONFIG", "", "JSON", "grpcxx-server",
        "cluster and task, where flags do not give them";
    task_index: Option<u32> = parse::index,
        "TASK_INDEX", "", "", "grpcxx-server",
        "index of this task, where neither flags nor `TF_CONFIG` give it";
    ps_graph_fusion: bool = parse::boolean,
        "TF_ENABLE_PS_GRAPH_FUSION", "true", "", "nobody",
        "known and checked, but without effect: graphs are fused by `GRPCXX_GRAPH_FUSION`";
    flow_control_tensors: u32 = parse::count,
        "REMOTE_RENDEZVOUS_FLOW_CONTROL_MAX_SIZE", "16", "tensors", "nobody",
        "known and checked, but without effect: it concerns TensorFlow's gRPC path only";

    tf_rdma: bool = parse::boolean,
        "TF_RDMA_ENABLED", "true", "", "engine",
        "connections may go on over RDMA; `false` means the same as `GRPCXX_RDMA=off`";
    tf_rdma_device: Option<String> = parse::text,
        "TF_RDMA_DEV_NAME", "", "", "engine",
        "RDMA device, where `GRPCXX_RDMA_DEVICE` is not set";
    tf_rdma_chunk_bytes: u64 = parse::rdma_chunk_bytes,
        "TF_RDMA_CHUNK_SIZE", "4194304", "bytes", "engine",
        "length of one RDMA read, where `GRPCXX_RDMA_CHUNK_BYTES` is not set";
    tf_rdma_message_bytes: u64 = parse::rdma_message_bytes,
        "TF_RDMA_ACC_SIZE", "8192", "bytes", "engine",
        "length up to which small frames are put together, where `GRPCXX_RDMA_MESSAGE_BYTES` is \
         not set";
    tf_rdma_registered_bytes: u64 = parse::rdma_registered_bytes,
        "TF_RDMA_BUF_SIZE", "1073741824", "bytes", "engine",
        "memory of each shard that is registered, where `GRPCXX_RDMA_REGISTERED_BYTES` is not set";

    shards: Option<u16> = parse::shards,
        "GRPCXX_SHARDS", "", "shards", "engine",
        "number of shards, 1 to 256; unset: as the variables of DeepRec say";
    cpus: Option<CpuList> = parse::cpus,
        "GRPCXX_CPUS", "", "", "engine",
        "CPUs to pin shards to, in this order, such as `0-3,8`; pins whatever \
         `*_DISABLE_PIN_CORES` says";
    driver: DriverSetting = parse::driver,
        "GRPCXX_DRIVER", "auto", "", "engine",
        "`auto`, `io_uring` or `epoll`; `auto` takes io_uring where the system allows it, and epoll \
         where shards go from thread to thread: where those that wait for calls turn them, or \
         functions run on theirs";
    host: HostSetting = parse::host,
        "GRPCXX_HOST", "auto", "", "engine",
        "`auto`, `glommio` or `native`; `auto` takes glommio where it can start";
    spin: Duration = parse::spin,
        "GRPCXX_SPIN_US", "30", "us", "engine",
        "how long an idle shard without polling looks for work before it sleeps, up to 1000000";
    cpu_latency: Option<Duration> = parse::cpu_latency,
        "GRPCXX_CPU_LATENCY_US", "", "us", "engine",
        "how long any CPU of the machine may take to wake up, 0 to 1000000, through \
         `/dev/cpu_dma_latency`; unset: as the system says";
    shm: ShmSetting = parse::shm,
        "GRPCXX_SHM", "auto", "", "engine",
        "`auto` or `off`; `auto` lets connections between processes of one host and user go on in \
         shared memory";
    shm_lend: bool = parse::switch,
        "GRPCXX_SHM_LEND", "true", "", "engine",
        "let such processes map memory of the shards, read-only: tensors in it reach them without \
         a copy; others, of 16 KiB and more, are copied into up to 256 MiB of it for each shard, \
         once, if the receiver brings no memory for them";
    shm_read: bool = parse::switch,
        "GRPCXX_SHM_READ", "true", "", "engine",
        "let such processes read other large tensors out of each other's memory, where the system \
         allows that, so that these are copied once";
    shm_links: u32 = parse::positive_count,
        "GRPCXX_SHM_LINKS_MAX", "256", "connections", "engine",
        "most connections of a shard in shared memory, with those that ended and whose peers keep something of them; others stay on TCP";
    shm_ring_bytes: u64 = parse::shm_ring_bytes,
        "GRPCXX_SHM_RING_BYTES", "1MiB", "bytes", "engine",
        "ring of each direction of such a connection, 16KiB to 64MiB, rounded up to a power of two";
    shm_lent_bytes: u64 = parse::shm_lent_bytes,
        "GRPCXX_SHM_LENT_BYTES_MAX", "1GiB", "bytes", "engine",
        "most bytes of tensors that one such connection lends at a time, up to 16TiB; what is \
         beyond is copied. Where peers keep more than that of connections that ended, others stay \
         on TCP";
    shm_mapped_bytes: u64 = parse::shm_mapped_bytes,
        "GRPCXX_SHM_MAPPED_BYTES_MAX", "8TiB", "bytes", "engine",
        "most address space that memory of such processes takes in this one, up to 64TiB, over all \
         shards; beyond that connections stay on TCP, and tensors of memory that found no room are \
         copied";
    rdma: RdmaSetting = parse::rdma,
        "GRPCXX_RDMA", "auto", "", "engine",
        "`auto` or `off`; `auto` lets connections go on over RDMA where both ends have a device";
    rdma_device: Option<String> = parse::text,
        "GRPCXX_RDMA_DEVICE", "", "", "engine",
        "RDMA device, such as `mlx5_0`; unset: the first with an active port";
    rdma_port: Option<u8> = parse::rdma_port,
        "GRPCXX_RDMA_PORT", "", "", "engine",
        "port of the device, 1 to 255; unset: the first that is active";
    rdma_gid_index: Option<u8> = parse::rdma_gid_index,
        "GRPCXX_RDMA_GID_INDEX", "", "", "engine",
        "entry of the port's table of global identifiers, 0 to 255; unset: RoCE version 2 with an \
         IPv4 address, if there is one";
    rdma_chunk_bytes: Option<u64> = parse::optional_rdma_chunk_bytes,
        "GRPCXX_RDMA_CHUNK_BYTES", "", "bytes", "engine",
        "length of one RDMA read, 4KiB to 1GiB; unset: `TF_RDMA_CHUNK_SIZE`, 4 MiB";
    rdma_message_bytes: Option<u64> = parse::optional_rdma_message_bytes,
        "GRPCXX_RDMA_MESSAGE_BYTES", "", "bytes", "engine",
        "length up to which small frames are put together, and from which payload is read, 256 \
         bytes to 1MiB; unset: `TF_RDMA_ACC_SIZE`, 8 KiB";
    rdma_registered_bytes: Option<u64> = parse::optional_rdma_registered_bytes,
        "GRPCXX_RDMA_REGISTERED_BYTES", "", "bytes", "engine",
        "memory of each shard that is registered at the start, up to 16TiB, lowered by itself \
         where less may be locked; unset: `TF_RDMA_BUF_SIZE`, 1 GiB";
    rdma_links: u32 = parse::positive_count,
        "GRPCXX_RDMA_LINKS_MAX", "1024", "connections", "engine",
        "most connections of a shard over RDMA; others stay on TCP";
    arena_bytes: Option<u64> = parse::arena_bytes,
        "GRPCXX_ARENA_BYTES", "", "bytes", "engine",
        "memory of each shard for received tensors, 1MiB to 16TiB, and no more; unset: an equal \
         part of three quarters of the memory of the machine or control group, and beyond it what \
         is free of that, but for an eighth";
    connection_arena_bytes: Option<u64> = parse::optional_bytes,
        "GRPCXX_CONNECTION_ARENA_BYTES_MAX", "", "bytes", "engine",
        "most of that memory that frames of one connection from a peer may announce before all of \
         them has come; a frame beyond it fails alone; unset: half, and beyond it what is free of \
         the machine, unless `GRPCXX_ARENA_BYTES` is set";
    small_arena_bytes: Option<u64> = parse::optional_bytes,
        "GRPCXX_ARENA_SMALL_BYTES", "", "bytes", "engine",
        "part of that memory that only requests of at most 64 KiB get; unset: a 64th, at most \
         64MiB";
    huge_pages: bool = parse::switch,
        "GRPCXX_HUGE_PAGES", "true", "", "engine",
        "ask the kernel for transparent huge pages";
    bind_address: Option<IpAddr> = parse::ip_address,
        "GRPCXX_BIND_ADDRESS", "", "", "grpcxx-server, TensorFlow plugin",
        "IP address that the star port and the gRPC port listen on; unset: loopback if that is the \
         task's address, else all";
    allow: Option<AddressRanges> = parse::ranges,
        "GRPCXX_ALLOW", "", "", "engine, grpcxx-server",
        "addresses whose connections are taken, on every port: ranges such as `10.1.0.0/16`, \
         `loopback`, with commas between them; unset: all";
    admin: Option<AddressRanges> = parse::ranges,
        "GRPCXX_ADMIN", "", "", "engine, grpcxx-server",
        "addresses that may do all without a token, CleanupAll and Reset too; unset: `loopback`, \
         or `none` where a token is set";
    members: Option<AddressRanges> = parse::ranges,
        "GRPCXX_MEMBERS", "", "", "engine, grpcxx-server",
        "addresses of the tasks of the cluster, which need no token; unset: none, but where no \
         token is set the hosts of the cluster spec, and anybody may call and take part in steps";
    store: Option<StoreAccess> = parse::store,
        "GRPCXX_STORE", "", "", "engine, grpcxx-server",
        "what all others may do with the store: `off`, `read-only`, `push` or `admin`; unset: \
         `read-only`, or `off` where a token or members are set";
    token: Option<Secret> = parse::secret,
        "GRPCXX_TOKEN", "", "", "engine, grpcxx-server, grpcxx",
        "token of the cluster, 16 to 4096 bytes: who has it may do all";
    token_file: Option<PathBuf> = parse::path,
        "GRPCXX_TOKEN_FILE", "", "", "engine, grpcxx-server, grpcxx",
        "file that holds the token, in place of `GRPCXX_TOKEN`";
    tls: TlsMode = parse::tls,
        "GRPCXX_TLS", "off", "", "engine, grpcxx-server",
        "which connections are TLS: `off`, `accept` (those whose dialler begins it), `dial` (also \
         all that are dialled), `require` (all)";
    tls_certificate: Option<PathBuf> = parse::path,
        "GRPCXX_TLS_CERT", "", "", "engine, grpcxx-server",
        "PEM file with this task's certificate, and those between it and the authority; read again \
         when it changes, as the next two are";
    tls_key: Option<PathBuf> = parse::path,
        "GRPCXX_TLS_KEY", "", "", "engine, grpcxx-server",
        "PEM file with the key of that certificate";
    tls_authorities: Option<PathBuf> = parse::path,
        "GRPCXX_TLS_CA", "", "", "engine, grpcxx-server",
        "PEM file with the authorities whose certificates peers have; needed to dial";
    tls_plain: Option<AddressRanges> = parse::ranges,
        "GRPCXX_TLS_PLAIN", "", "", "engine",
        "addresses of originals: they are dialled without TLS and may come without it, whatever \
         `GRPCXX_TLS` says, written as for `GRPCXX_ALLOW`; unset: none";
    tls_mutual: bool = parse::switch,
        "GRPCXX_TLS_MUTUAL", "true", "", "engine, grpcxx-server",
        "who connects by TLS must have a certificate too, where authorities are set";
    tls_handshake_time: Duration = parse::redial,
        "GRPCXX_TLS_HANDSHAKE_MS", "10000", "ms", "engine",
        "time that a peer has for the handshake, 1 to 3600000";
    tls_rdma: bool = parse::switch,
        "GRPCXX_TLS_RDMA", "false", "", "engine",
        "connections that are TLS may go on over RDMA, which carries their bytes in the clear: for \
         a fabric that is trusted; a token allows it too";
    star_port_offset: u16 = parse::port_offset,
        "GRPCXX_STAR_PORT_OFFSET", "10000", "", "grpcxx-server, grpcxx, TensorFlow plugin",
        "star port minus gRPC port of every task where there is no `.endpoint_map`; 1 to 65534; in \
         TensorFlow star ports are free ones unless it is set";
    connections: u32 = parse::positive_count,
        "GRPCXX_CONNECTIONS_MAX", "65536", "connections", "engine",
        "most connections of a shard; those from peers are on all shards together no more than \
         five eighths of the files that the process may open";
    peer_connections: Option<u32> = parse::optional_count,
        "GRPCXX_PEER_CONNECTIONS_MAX", "", "connections", "engine",
        "most connections from one peer; unset: half of `GRPCXX_CONNECTIONS_MAX`, or three eighths \
         of the files that the process may open if these are fewer";
    keepalive: Option<Duration> = parse::time_limit,
        "GRPCXX_KEEPALIVE_MS", "60000", "ms", "engine",
        "idle time after which the system probes whether the peer of a star connection lives, in \
         steps of 1000 up to 3600000; 0: never";
    progress_time: Option<Duration> = parse::time_limit,
        "GRPCXX_PROGRESS_MS", "30000", "ms", "engine",
        "time in which a frame that has begun must end or bring `GRPCXX_PROGRESS_BYTES_MIN`, or \
         its connection is closed, up to 3600000; time in which the shard does not read does not \
         count; 0: no limit";
    progress_bytes: u64 = parse::progress_bytes,
        "GRPCXX_PROGRESS_BYTES_MIN", "64KiB", "bytes", "engine",
        "fewest bytes of a frame in that time, up to 1GiB";
    step_wait: Option<Duration> = parse::time_limit,
        "GRPCXX_STEP_WAIT_MS", "60000", "ms", "engine",
        "time after which the log says, once for a step, who waits there for which tensor, up to \
         3600000; 0: never";
    idle_time: Option<Duration> = parse::time_limit,
        "GRPCXX_IDLE_MS", "0", "ms", "engine",
        "how long a connection from a peer may carry nothing and owe nothing before it is closed, \
         up to 3600000; 0: for ever, which originals need";
    age: Option<Duration> = parse::time_limit,
        "GRPCXX_AGE_MS", "0", "ms", "engine",
        "age at which a connection from a peer is closed as soon as it owes nothing, up to \
         3600000; 0: never, which originals need";
    queued_frames: u32 = parse::positive_count,
        "GRPCXX_QUEUED_FRAMES_MAX", "1024", "frames", "engine",
        "most frames that wait to leave on a connection";
    outstanding_calls: u32 = parse::positive_count,
        "GRPCXX_OUTSTANDING_CALLS_MAX", "4096", "calls", "engine",
        "most calls without an answer on a connection, at either end";
    unsent_bytes: u64 = parse::rendezvous_bytes,
        "GRPCXX_UNSENT_BYTES_MAX", "1GiB", "bytes", "engine",
        "bytes of answers that have not left a connection, 1MiB to 16TiB, from which on its next \
         request is not read before some have";
    waiting_calls: u32 = parse::positive_count,
        "GRPCXX_WAITING_CALLS_MAX", "4096", "calls", "engine",
        "most calls that wait for a connection to one target";
    frame_bytes: u64 = parse::frame_bytes,
        "GRPCXX_FRAME_BYTES_MAX", "64GiB", "bytes", "engine",
        "longest frame, 64KiB to 16TiB; none of more than 4294967295 is sent to peers that know no \
         long frames";
    message_bytes: u64 = parse::message_bytes,
        "GRPCXX_MESSAGE_BYTES_MAX", "64MiB", "bytes", "engine",
        "longest protobuf message and longest names of a graph call, 64KiB to 2GiB";
    rendezvous_steps: u32 = parse::positive_count,
        "GRPCXX_RENDEZVOUS_STEPS_MAX", "4096", "steps", "engine",
        "most steps of a shard in which a tensor or a receiver waits";
    connection_steps: Option<u32> = parse::optional_count,
        "GRPCXX_CONNECTION_STEPS_MAX", "", "steps", "engine",
        "most steps in which receives of one connection wait; unset: a quarter of \
         `GRPCXX_RENDEZVOUS_STEPS_MAX`";
    peer_steps: Option<u32> = parse::optional_count,
        "GRPCXX_PEER_STEPS_MAX", "", "steps", "engine",
        "most steps in which receives of one peer wait, counted for each of its connections; \
         unset: half of `GRPCXX_RENDEZVOUS_STEPS_MAX`";
    peer_waiting: Option<u32> = parse::optional_count,
        "GRPCXX_PEER_WAITING_MAX", "", "requests", "engine",
        "most receives of one peer that wait for tensors; unset: 32768";
    peer_unsent_bytes: u64 = parse::rendezvous_bytes,
        "GRPCXX_PEER_UNSENT_BYTES_MAX", "8GiB", "bytes", "engine",
        "bytes of answers that have not left the connections of one peer, 1MiB to 16TiB, from \
         which on those that owe some are not read, and long answers of functions are refused";
    peer_key_bytes: u64 = parse::rendezvous_bytes,
        "GRPCXX_PEER_KEY_BYTES_MAX", "256MiB", "bytes", "engine",
        "bytes of keys that the connections of one peer keep, 1MiB to 16TiB, beyond which one that \
         keeps more is closed; from half of them on new connections keep none";
    peer_staged_bytes: Option<u64> = parse::arena_bytes,
        "GRPCXX_PEER_STAGED_BYTES_MAX", "", "bytes", "engine",
        "most bytes of pushes of one peer that are not complete, 1MiB to 16TiB; unset: seven \
         eighths of the memory that the process may use, and half of it while other peers push";
    streams: u32 = parse::positive_count,
        "GRPCXX_STREAMS_MAX", "1024", "streams", "engine",
        "most streams from all peers together that have not ended";
    peer_streams: Option<u32> = parse::optional_count,
        "GRPCXX_PEER_STREAMS_MAX", "", "streams", "engine",
        "most streams of one peer that have not ended; unset: half of `GRPCXX_STREAMS_MAX`";
    rendezvous_bytes: u64 = parse::rendezvous_bytes,
        "GRPCXX_RENDEZVOUS_BYTES_MAX", "16GiB", "bytes", "engine",
        "most bytes of tensors of a shard that wait for a receiver, 1MiB to 16TiB";
    compute_threads: Option<u16> = parse::threads,
        "GRPCXX_COMPUTE_THREADS", "", "threads", "engine",
        "threads that run registered functions, 1 to 1024, besides those that wait for calls; \
         unset: one for each allowed CPU";
    shard_held: Option<Duration> = parse::time_limit,
        "GRPCXX_SHARD_HELD_MS", "1", "ms", "engine",
        "how long a function or method may hold its shard before the log names it, which is once, \
         up to 3600000; 0: as long as it likes";
    redial_delay: Duration = parse::redial,
        "GRPCXX_REDIAL_MS", "1000", "ms", "engine",
        "time from a failed dial to the next, 1 to 3600000";
    shutdown_grace: Duration = parse::grace,
        "GRPCXX_SHUTDOWN_GRACE_MS", "1500", "ms", "grpcxx-server",
        "how long calls in flight may take to end after SIGINT or SIGTERM, 0 to 3600000";
    drain_time: Duration = parse::grace,
        "GRPCXX_DRAIN_MS", "5000", "ms", "engine",
        "how long a connection that is left still takes what a peer without extensions sends, 0 to \
         3600000";
    drain_quiet: Duration = parse::grace,
        "GRPCXX_DRAIN_QUIET_MS", "500", "ms", "engine",
        "silence after which such a peer that owes no answer counts as done, 0 to 3600000";
    drain_bytes: u64 = parse::drain_bytes,
        "GRPCXX_DRAIN_BYTES_MAX", "1GiB", "bytes", "engine",
        "most bytes of such a peer that cannot be read as answers, up to 16TiB";
    extensions: bool = parse::switch,
        "GRPCXX_EXTENSIONS", "true", "", "engine",
        "announce what `docs/wire.md` adds to star; peers that do not know it ignore it";
    tensor_fuse: bool = parse::switch,
        "GRPCXX_TENSOR_FUSE", "true", "", "TensorFlow plugin",
        "small tensors that a step receives from one task share requests";
    graph_fusion: bool = parse::switch,
        "GRPCXX_GRAPH_FUSION", "auto", "", "TensorFlow plugin",
        "`auto` or `off`; with `auto` small tensors of a graph that go from one task to another \
         travel in packs";
    tensor_pool_bytes: u64 = parse::pool_bytes,
        "GRPCXX_TENSOR_POOL_BYTES", "1GiB", "bytes", "TensorFlow plugin",
        "memory of large tensors, received or computed, that is kept for the next ones when it is \
         free, up to 16TiB; 0: none";
    grpc_connections: u32 = parse::positive_count,
        "GRPCXX_GRPC_CONNECTIONS_MAX", "1024", "connections", "grpcxx-server",
        "most connections of the gRPC port, and no more than an eighth of the files that the \
         process may open; beyond them the one that carried no call for longest is closed";
    grpc_sessions: u32 = parse::positive_count,
        "GRPCXX_GRPC_SESSIONS_MAX", "16384", "sessions", "grpcxx-server",
        "most sessions of masters, and of clients; beyond them the one that was not used for \
         longest is closed";
    grpc_share_percent: u8 = parse::percent,
        "GRPCXX_GRPC_SHARE_PERCENT", "50", "percent", "grpcxx-server",
        "part of the connections, calls, request bytes and sessions of the gRPC port that one \
         address gets, 1 to 100";
    grpc_idle: Option<Duration> = parse::time_limit,
        "GRPCXX_GRPC_IDLE_MS", "3600000", "ms", "grpcxx-server",
        "how long a connection of the gRPC port may carry no call, up to 3600000; 0: for ever";
    grpc_session_idle: Option<Duration> = parse::long_time_limit,
        "GRPCXX_GRPC_SESSION_IDLE_MS", "86400000", "ms", "grpcxx-server",
        "how long a session may be open without use, up to 604800000; 0: for ever";
    grpc_request_time: Duration = parse::redial,
        "GRPCXX_GRPC_REQUEST_MS", "30000", "ms", "grpcxx-server",
        "how long a request of the gRPC port may take to come, 1 to 3600000";
    metrics_address: Option<SocketAddr> = parse::socket_address,
        "GRPCXX_METRICS_ADDRESS", "", "", "grpcxx-server, TensorFlow plugin, Python package, C",
        "address that serves metrics over HTTP, such as `127.0.0.1:9100`; port 0: a free one; \
         unset: none";
    log: String = parse::required_text,
        "GRPCXX_LOG", "info", "", "grpcxx-server, grpcxx",
        "what is logged: `error`, `warn`, `info`, `debug`, `trace`, or filters such as \
         `info,grpcxx_rpc=debug`";
    log_format: LogFormat = parse::log_format,
        "GRPCXX_LOG_FORMAT", "text", "", "grpcxx-server, grpcxx",
        "`text` or `json`";
    library: Option<PathBuf> = parse::path,
        "GRPCXX_LIBRARY", "", "", "Python package",
        "shared library of the engine; unset: the one in the package";
    tensorflow: Option<PathBuf> = parse::path,
        "GRPCXX_TENSORFLOW", "", "", "Python package",
        "at its installation: the interpreter whose TensorFlow the plugin is built for, or `none`; \
         unset: the one that is installed into";
    plugins: Option<PathBuf> = parse::path,
        "GRPCXX_PLUGINS", "", "", "Python package",
        "at its installation: folder with plugins that were built before; unset: the plugin is \
         built";
}

impl Config {
    /// Reads all settings through `lookup`. `names` are the names of everything that is set: those
    /// with the prefix `GRPCXX_` that nobody knows are warnings.
    ///
    /// # Errors
    /// Every problem there is, together.
    pub fn read<N: AsRef<str>>(
        lookup: impl Fn(&str) -> Option<String>,
        names: impl IntoIterator<Item = N>,
    ) -> Result<(Self, Vec<Warning>), ConfigError> {
        let mut reader = Reader::new(&lookup);
        let config = Self::take(&mut reader);
        reader.check_names(names);
        let (problems, warnings) = reader.into_parts();
        if problems.is_empty() {
            Ok((config, warnings))
        } else {
            Err(ConfigError { problems })
        }
    }

    /// Reads all settings from the environment of the process.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn from_env() -> Result<(Self, Vec<Warning>), ConfigError> {
        Self::from_env_with(&BTreeMap::new())
    }

    /// Reads all settings from the environment of the process, and those that are `given` from
    /// there. Another program may use names in the environment that begin as ours do, so those are
    /// warnings; one that is given and unknown is an error.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn from_env_with(
        given: &BTreeMap<String, String>,
    ) -> Result<(Self, Vec<Warning>), ConfigError> {
        let unknown = given.keys().map(|name| check_name(name));
        let problems: Vec<String> = unknown.filter_map(Result::err).collect();
        if !problems.is_empty() {
            return Err(ConfigError { problems });
        }
        let set: BTreeMap<String, String> = std::env::vars_os()
            .map(|(name, value)| [name, value].map(|text| text.to_string_lossy().into_owned()))
            .map(|[name, value]| (name, value))
            .collect();
        let lookup = |name: &str| given.get(name).or_else(|| set.get(name)).cloned();
        Self::read(lookup, set.keys())
    }

    /// Number of shards of a task of `job` in a cluster of `total_tasks` tasks.
    pub fn shards(&self, job: JobKind, total_tasks: usize) -> usize {
        if let Some(shards) = self.shards {
            return usize::from(shards);
        }
        let limit = match job {
            JobKind::Ps => self.ps_cores,
            JobKind::Worker => self.worker_cores,
            JobKind::Other => CORES_OF_OTHER_JOBS,
        };
        shard_count(total_tasks, limit)
    }

    /// Whether idle shards of a task of `job` spin.
    pub fn polling(&self, job: JobKind) -> bool {
        match job {
            JobKind::Worker => self.worker_polling,
            JobKind::Ps | JobKind::Other => self.ps_polling,
        }
    }

    /// Whether shards of a task of `job` shall be pinned.
    pub fn pinning(&self, job: JobKind) -> bool {
        !match job {
            JobKind::Worker => self.worker_unpinned,
            JobKind::Ps | JobKind::Other => self.ps_unpinned,
        }
    }
}

impl Default for Config {
    /// The settings of an empty environment.
    fn default() -> Self {
        Self::take(&mut Reader::new(&|_| None))
    }
}

#[cfg(test)]
mod tests;
