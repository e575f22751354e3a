use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum, value_parser};
use grpcxx_cli::launch::RANKS_MAX;

use crate::arguments::seconds;

/// Arguments of `launch`.
#[derive(Debug, Args)]
pub(crate) struct LaunchArguments {
    /// How many processes: started here, or, under a launcher that does not say it, how many it has
    /// started
    #[arg(short = 'n', long = "processes", value_name = "N")]
    #[arg(value_parser = value_parser!(u32).range(..=i64::from(RANKS_MAX)))]
    pub(crate) size: Option<u32>,

    /// How many of them are parameter servers, which come first; the others are workers
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) ps: u32,

    /// The first that is no parameter server is the chief
    #[arg(long)]
    pub(crate) chief: bool,

    /// Who has started the processes: found out, or nobody, so that all are started here
    #[arg(long, value_enum, default_value_t = LauncherChoice::Auto)]
    pub(crate) launcher: LauncherChoice,

    /// Where the processes of all hosts find each other: a host of rank 0 and a free port there;
    /// needed where the launcher does not say it
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) rendezvous: Option<String>,

    /// How long the processes wait for each other
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = seconds)]
    pub(crate) timeout: Duration,

    /// How often all are started again after one has failed
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) restarts: u32,

    /// Write what each process says to DIR/TASK.log instead of here under its name
    #[arg(long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,

    /// Make a token that only these processes know; on one host
    #[arg(long)]
    pub(crate) token: bool,

    /// Which CPUs processes that are started here get: each its share, or all
    #[arg(long, value_enum, default_value_t = CpuChoice::Share)]
    pub(crate) cpus: CpuChoice,

    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Who has started the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LauncherChoice {
    /// What the environment says
    Auto,
    /// Nobody, whatever the environment says
    Local,
}

/// Which CPUs a process gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CpuChoice {
    /// Its part of those that the launcher may use
    Share,
    /// All that the launcher may use
    All,
}
