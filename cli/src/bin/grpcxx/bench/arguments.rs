use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use grpcxx_benches::{Api, Mix, Op, parse_size};
use grpcxx_runtime::LinkMedium;

use crate::arguments::seconds;

/// Which side of a bench.
#[derive(Debug, Subcommand)]
pub(crate) enum BenchCommand {
    /// Answer benches until Ctrl-C
    Serve(ServeArguments),
    /// Load a server that `bench serve` runs, and say how it did
    Run(Box<RunArguments>),
}

/// What both sides can choose.
#[derive(Debug, Args)]
pub(crate) struct EngineArguments {
    /// What carries the bytes
    #[arg(long, value_enum, default_value = "auto")]
    pub(crate) transport: TransportName,

    /// What moves bytes over TCP; GRPCXX_DRIVER if left out
    #[arg(long, value_enum)]
    pub(crate) driver: Option<DriverName>,

    /// Whether shards look for work without end; as the environment says if left out
    #[arg(long, value_enum)]
    pub(crate) polling: Option<Switch>,

    /// Number of shards; as the environment says if left out, else 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) shards: Option<u16>,
}

/// Arguments of `bench serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: SocketAddr,

    #[command(flatten)]
    pub(crate) engine: EngineArguments,

    /// Stop after this time instead of at Ctrl-C
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) run_for: Option<Duration>,

    /// Also stop when standard input ends
    #[arg(long)]
    pub(crate) until_stdin_closes: bool,
}

/// Arguments of `bench run`.
#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// The server; several, with commas between, share the connections
    #[arg(long, value_name = "ADDR", required = true, value_delimiter = ',')]
    pub(crate) connect: Vec<String>,

    /// latency and rate: receive COUNT tensors; pull, push: a step of all tensors; ps: pull, then
    /// push; call: a function, with a tensor each way; unary: a method of a service; stream: take
    /// the messages that one sends
    #[arg(long, value_name = "OP", default_value = "latency")]
    pub(crate) op: Op,

    /// From where call, unary and stream are made: shard, thread (an ordinary one for each
    /// connection) or tokio
    #[arg(long, value_name = "API", default_value = "shard")]
    pub(crate) api: Api,

    /// Size of each tensor or message: bytes, with KiB, MiB or GiB, or small, medium or large
    #[arg(long, value_name = "BYTES", default_value = "64", value_parser = parse_size)]
    pub(crate) size: u64,

    /// Tensors of a step
    #[arg(long, value_name = "TENSORS", default_value_t = 1)]
    pub(crate) count: usize,

    /// Sizes of the tensors: same, or small, medium and large ones uniform, random or skewed to the
    /// large
    #[arg(long, value_name = "MIX", default_value = "same")]
    pub(crate) mix: Mix,

    /// Where chance begins, for sizes and contents
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,

    /// Tensors of strings, which both sides serialize and parse, instead of plain bytes
    #[arg(long)]
    pub(crate) serialized: bool,

    /// Connections, over all servers
    #[arg(long, value_name = "C", default_value_t = 1)]
    pub(crate) connections: usize,

    /// Steps under way at once on each connection
    #[arg(long, value_name = "D", default_value_t = 1)]
    pub(crate) depth: usize,

    /// How long to measure, after a warm-up
    #[arg(long, value_name = "S", default_value = "3", value_parser = seconds)]
    pub(crate) seconds: Duration,

    /// Begin this many steps a second instead of as many as possible; waiting that a slow answer
    /// causes is counted
    #[arg(long, value_name = "STEPS")]
    pub(crate) rate: Option<f64>,

    /// Whether tensors share calls
    #[arg(long, value_enum, default_value = "on")]
    pub(crate) fuse: Switch,

    /// Compare all that arrives, on both sides; exit code 1 if it differs
    #[arg(long)]
    pub(crate) verify: bool,

    /// Measure what this machine can do at best in the same run, and print the distance to it
    #[arg(long)]
    pub(crate) limit: bool,

    /// Draw the times by percentile into an SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) engine: EngineArguments,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

/// A kind of link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportName {
    /// The best that both sides have
    Auto,
    Tcp,
    /// Shared memory, on one host
    Shm,
    /// Verbs, between hosts or on one
    Rdma,
}

impl TransportName {
    /// What connections must have moved to, if anything.
    pub(super) fn medium(self) -> Option<LinkMedium> {
        match self {
            Self::Auto | Self::Tcp => None,
            Self::Shm => Some(LinkMedium::SharedMemory),
            Self::Rdma => Some(LinkMedium::Rdma),
        }
    }
}

/// A driver of sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DriverName {
    /// io_uring where the system allows it, else epoll
    Auto,
    #[value(name = "io_uring")]
    IoUring,
    Epoll,
}

impl Switch {
    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }
}
