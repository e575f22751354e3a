use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

#[cfg(feature = "bench")]
use crate::bench::arguments::BenchCommand;
use crate::launch::arguments::LaunchArguments;

/// The tool for clusters of grpcxx-server processes and their peers.
#[derive(Debug, Parser)]
#[command(name = "grpcxx", version, after_long_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Arguments {
    /// Print one JSON value on standard output instead of text for people
    #[arg(long, global = true)]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show which tasks run, what moves their bytes, their devices and versions
    Status(StatusArguments),
    /// Show what a task waits for, its connections and what failed last
    Inspect(InspectArguments),
    /// Watch tasks: rates, latencies, links, memory, what waits, CPU of shards
    Top(TopArguments),
    /// List the tensors that tasks keep
    List(ListArguments),
    /// Pull tensors from running tasks into a .safetensors or .npy file
    Pull(PullArguments),
    /// Push the tensors of safetensors and .npy files into running ps tasks
    Push(PushArguments),
    /// Call a function that a task has registered
    Call(CallArguments),
    /// Write and check endpoint maps
    #[command(subcommand)]
    EndpointMap(EndpointMapCommand),
    /// Run a whole cluster on this machine, and follow its logs until Ctrl-C
    Local(LocalArguments),
    /// Run a program as the tasks of a cluster: N processes here, or one in each rank of Slurm,
    /// MPI, Ray or Kubernetes
    Launch(LaunchArguments),
    /// Show it: 2 ps hold a model, 2 workers pull it, the checksums are compared
    Demo(DemoArguments),
    #[cfg(feature = "bench")]
    /// Measure latency, rate and bandwidth against a server, and how far they are from what the
    /// machine can do
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// What to do with an endpoint map.
#[derive(Debug, Subcommand)]
pub(crate) enum EndpointMapCommand {
    /// Make the map of a cluster by a port rule
    Generate(GenerateArguments),
    /// Hold a map against a cluster and say what is wrong or odd
    Check(CheckArguments),
}

/// Which tasks are meant.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// The cluster: `job|host:port;host:port,job2|host:port`, or a JSON file; if left out,
    /// TF_CONFIG has it
    #[arg(long, value_name = "SPEC|FILE", conflicts_with = "star")]
    pub(crate) cluster_spec: Option<String>,

    /// The file that joins gRPC and star addresses; searched as grpcxx-server does if left out
    #[arg(long, value_name = "FILE", conflicts_with = "star")]
    pub(crate) endpoint_map: Option<PathBuf>,

    /// A task by its star address, without a cluster; can be repeated
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) star: Vec<String>,

    /// How long each call may take, in seconds; no longer than 5 of them to connect
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) timeout: Duration,
}

/// Arguments of `status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArguments {
    #[command(flatten)]
    pub(crate) target: Target,
}

/// Arguments of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArguments {
    #[command(flatten)]
    pub(crate) target: Target,

    /// The task, such as ps:0
    #[arg(value_name = "TASK")]
    pub(crate) task: String,
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArguments {
    #[command(flatten)]
    pub(crate) target: Target,

    /// Tasks, such as ps:0; all if left out
    #[arg(value_name = "TASK")]
    pub(crate) tasks: Vec<String>,

    /// Seconds between two looks
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(crate) interval: Duration,

    /// Print one table instead, as is done where the output is no terminal
    #[arg(long)]
    pub(crate) once: bool,
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    #[command(flatten)]
    pub(crate) target: Target,

    /// Names or patterns with * and ?; all if left out
    #[arg(value_name = "PATTERN")]
    pub(crate) patterns: Vec<String>,

    /// Only this task, such as ps:0
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<String>,
}

/// Arguments of `pull`.
#[derive(Debug, Args)]
pub(crate) struct PullArguments {
    #[command(flatten)]
    pub(crate) target: Target,

    /// Names or patterns with * and ?
    #[arg(value_name = "PATTERN", required_unless_present = "all")]
    pub(crate) patterns: Vec<String>,

    /// All tensors
    #[arg(long, conflicts_with = "patterns")]
    pub(crate) all: bool,

    /// Only from this task, such as ps:0
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<String>,

    /// Where to write: FILE.safetensors, or FILE.npy for a single tensor; appears when it is
    /// complete
    #[arg(long, short, value_name = "FILE", required_unless_present = "verify")]
    pub(crate) output: Option<PathBuf>,

    /// Compare with the same tensors of this safetensors file; exit code 1 if they differ; can be
    /// repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) verify: Vec<PathBuf>,

    /// A free text for the header of the .safetensors file, such as format=pt; can be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    pub(crate) metadata: Vec<(String, String)>,
}

/// Arguments of `push`.
#[derive(Debug, Args)]
pub(crate) struct PushArguments {
    #[command(flatten)]
    pub(crate) target: Target,

    /// The files to push: .safetensors, the .index.json of several, .npy under the file's name
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,

    /// Only tensors with these names or patterns; can be repeated
    #[arg(long = "only", value_name = "PATTERN")]
    pub(crate) patterns: Vec<String>,

    /// All to this task, such as ps:0, instead of spread over the ps tasks as --load of
    /// grpcxx-server does
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<String>,
}

/// Arguments of `call`.
#[derive(Debug, Args)]
pub(crate) struct CallArguments {
    #[command(flatten)]
    pub(crate) target: Target,

    /// The task, such as worker:0, or one of the addresses given with --star
    #[arg(value_name = "TASK")]
    pub(crate) task: String,

    /// The name under which the function was registered
    #[arg(value_name = "FUNCTION")]
    pub(crate) function: String,

    /// A .safetensors or .npy file whose tensors are the arguments, by name; can be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) feed: Vec<PathBuf>,

    /// A result to return; can be repeated
    #[arg(long, value_name = "NAME")]
    pub(crate) fetch: Vec<String>,

    /// The step of the call
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) step_id: u64,

    /// Also write the results to FILE.safetensors, or a single one to FILE.npy
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Arguments of `endpoint-map generate`.
#[derive(Debug, Args)]
pub(crate) struct GenerateArguments {
    /// The cluster: `job|host:port;host:port,job2|host:port`, or a JSON file; if left out,
    /// TF_CONFIG has it
    #[arg(long, value_name = "SPEC|FILE")]
    pub(crate) cluster_spec: Option<String>,

    /// Star port minus gRPC port of each task; GRPCXX_STAR_PORT_OFFSET (10000) if left out
    #[arg(long, value_name = "N")]
    pub(crate) star_port_offset: Option<u16>,

    /// Star ports count up from this one on each host, in the order of the cluster
    #[arg(long, value_name = "PORT", conflicts_with = "star_port_offset")]
    pub(crate) first_star_port: Option<u16>,

    /// Where to write; standard output if left out
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}

/// Arguments of `endpoint-map check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArguments {
    /// The map; searched as grpcxx-server does if left out
    #[arg(value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// The cluster: `job|host:port;host:port,job2|host:port`, or a JSON file; if left out,
    /// TF_CONFIG has it
    #[arg(long, value_name = "SPEC|FILE")]
    pub(crate) cluster_spec: Option<String>,
}

/// What a cluster on this machine is made of.
#[derive(Debug, Args)]
pub(crate) struct LocalCluster {
    /// Number of ps tasks
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) ps: usize,

    /// Number of worker tasks
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub(crate) worker: usize,

    /// A .safetensors, .index.json or .npy file that the ps tasks share; can be repeated
    #[arg(long, value_name = "FILE")]
    pub(crate) load: Vec<PathBuf>,

    /// The program grpcxx-server; the one beside this program if left out
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) server: Option<PathBuf>,
}

/// Arguments of `local`.
#[derive(Debug, Args)]
pub(crate) struct LocalArguments {
    #[command(flatten)]
    pub(crate) cluster: LocalCluster,

    /// Stop after this time instead of at Ctrl-C
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) run_for: Option<Duration>,

    /// Further arguments of every task
    #[arg(last = true, value_name = "ARGUMENT")]
    pub(crate) arguments: Vec<std::ffi::OsString>,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    #[command(flatten)]
    pub(crate) cluster: LocalCluster,

    /// How often each worker pulls the model
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    text.parse::<f64>()
        .ok()
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .filter(|duration| !duration.is_zero())
        .ok_or_else(|| "write a number of seconds above 0, such as 2 or 0.5".to_owned())
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE".to_owned()),
    }
}

const EXAMPLES: &str = "\
Examples:
  grpcxx local --ps 2 --worker 2 --load model.safetensors
  export CLUSTER='ps|localhost:2222;localhost:2223,worker|localhost:2224'
  grpcxx status --cluster-spec $CLUSTER --endpoint-map .endpoint_map
  grpcxx top --cluster-spec $CLUSTER
  grpcxx list 'encoder.layer.0.*' --cluster-spec $CLUSTER
  grpcxx pull --all --output copy.safetensors --cluster-spec $CLUSTER
  grpcxx pull pooler.dense.bias --output bias.npy --star 127.0.0.1:12222
  grpcxx push model.safetensors --cluster-spec $CLUSTER
  grpcxx call worker:0 grpcxx.model.pull --fetch seconds --fetch bytes --cluster-spec $CLUSTER
  grpcxx endpoint-map generate --cluster-spec $CLUSTER --output .endpoint_map
  grpcxx launch -n 3 --ps 1 -- python train.py
  srun -n 8 grpcxx launch --ps 2 -- python train.py
  grpcxx bench serve --listen 127.0.0.1:7070
  grpcxx bench run --connect 127.0.0.1:7070 --op pull --size 1KiB --count 1000 --limit

Exit codes:
   0 done                                  71 the system refused something
   1 a comparison found a difference       73 a file cannot be created
  64 wrong arguments                       74 reading or writing failed
  65 a damaged file or answer              75 a port is taken
  66 a file or tensor is missing           76 a task answered with an error
  69 a task cannot be reached in time      77 no permission
  70 an error of the program               78 a wrong cluster, map or variable";
