use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Parser;

/// Runs one task of a cluster: it serves tensors and functions over star (GRPC++), and the worker
/// and master services over gRPC.
///
/// Which cluster, and which of its tasks, comes from the flags below; what they leave out comes
/// from TF_CONFIG. When both ports are open, one line goes to standard output:
///
///   grpcxx-server ready job=ps task=0 grpc=HOST:PORT star=HOST:PORT
///
/// The log goes to standard error. SIGINT and SIGTERM stop the task within 2 seconds, and calls in
/// flight are answered; a second signal stops it at once.
#[derive(Debug, Parser)]
#[command(name = "grpcxx-server", version, after_long_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Arguments {
    /// The cluster: `job|host:port;host:port,job2|host:port`, or a JSON file that maps jobs to
    /// lists of addresses
    ///
    /// The addresses are those of the gRPC endpoints. If this is left out, TF_CONFIG must hold the
    /// cluster.
    #[arg(long, value_name = "SPEC|FILE")]
    pub(crate) cluster_spec: Option<String>,

    /// The job of this task, such as ps or worker
    #[arg(long, value_name = "NAME")]
    pub(crate) job_name: Option<String>,

    /// The index of this task in its job, counted from 0
    #[arg(long, value_name = "N")]
    pub(crate) task_index: Option<u32>,

    /// In an allocation of Slurm, MPI, Ray or Kubernetes, if neither --cluster-spec nor TF_CONFIG
    /// says the cluster: how many of the ranks are parameter servers; all if left out
    #[arg(long, value_name = "K", conflicts_with = "cluster_spec")]
    pub(crate) ps: Option<u32>,

    /// In an allocation that does not say it: how many ranks there are
    #[arg(
        short = 'n',
        long = "processes",
        value_name = "N",
        conflicts_with = "cluster_spec"
    )]
    pub(crate) processes: Option<u32>,

    /// In an allocation that does not say it: where the ranks meet, a host of rank 0 and a free
    /// port there
    #[arg(long, value_name = "HOST:PORT", conflicts_with = "cluster_spec")]
    pub(crate) rendezvous: Option<String>,

    /// How tasks speak with each other: grpc++, grpc, or DeepRec's star_server, star_server_lite,
    /// star_server_v2
    #[arg(long, value_name = "NAME", default_value = "grpc++")]
    pub(crate) protocol: String,

    /// The file that joins gRPC and star addresses, one `grpc_host:port=star_host:port` for each
    /// task
    ///
    /// If this is left out: `.endpoint_map` in the folder that TF_SEASTAR_ENDPOINT_MAP_PATH names,
    /// else in the working directory, else star ports are gRPC ports plus GRPCXX_STAR_PORT_OFFSET
    /// (10000).
    #[arg(long, value_name = "FILE")]
    pub(crate) endpoint_map: Option<PathBuf>,

    /// A .safetensors, .index.json or .npy file whose tensors the ps tasks hold and serve; can be
    /// repeated
    ///
    /// All tasks can be given the same files. The tensors are spread by one rule: by falling size,
    /// equal sizes by name, each goes whole to the ps with the fewest bytes so far, among equals to
    /// the one with the lowest index.
    #[arg(long, value_name = "FILE")]
    pub(crate) load: Vec<PathBuf>,

    /// Where metrics are served over HTTP, such as 127.0.0.1:9100; goes before
    /// GRPCXX_METRICS_ADDRESS
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) metrics_addr: Option<SocketAddr>,

    /// Also stop when standard input ends, so that the task does not outlive the program that
    /// started it
    #[arg(long)]
    pub(crate) until_stdin_closes: bool,

    /// Run no task: ask the one whose metrics are at --metrics-addr or GRPCXX_METRICS_ADDRESS, else
    /// at 127.0.0.1:9100, whether it is alive; for health checks within its container
    ///
    /// Ends with 69 if the task says that it is not, or says nothing. Where nobody listens, or
    /// this process may not ask, that is no failure.
    #[arg(long)]
    pub(crate) check_alive: bool,
}

const EXAMPLES: &str = "\
Examples:
  A cluster of one ps and one worker on this machine, star ports by the port rule:
    grpcxx-server --cluster-spec 'ps|localhost:2222,worker|localhost:2223' --job-name ps --task-index 0
    grpcxx-server --cluster-spec 'ps|localhost:2222,worker|localhost:2223' --job-name worker --task-index 0

  With an endpoint map and a model:
    grpcxx endpoint-map generate --cluster-spec cluster.json --output .endpoint_map
    grpcxx-server --cluster-spec cluster.json --job-name ps --task-index 0 --load model.safetensors

  As TensorFlow's launchers do it:
    TF_CONFIG='{\"cluster\":{\"ps\":[\"a:2222\"],\"worker\":[\"b:2222\"]},\"task\":{\"type\":\"ps\",\"index\":0}}' grpcxx-server

  In each rank of a job of Slurm, which tells them apart:
    srun -n 4 grpcxx-server --ps 2

Exit codes:
   0 stopped as asked                      71 the system refused something
  64 wrong flags                           74 a file cannot be read
  65 a damaged file                        75 a port is taken
  66 a file is missing                     77 no permission
  70 an error of the program               78 a wrong cluster, map or variable

All variables: docs/configuration.md. Try a whole cluster: grpcxx local --ps 2 --worker 2";
