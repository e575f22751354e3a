//! tonic with messages of plain bytes, one thread on each side, as one shard has.
#![forbid(unsafe_code)]

mod codec;
mod keyvalue;
mod lookup;
mod run;
mod serve;
#[path = "../../../../examples/keyvalue/src/store.rs"]
#[allow(dead_code, reason = "the server of grpcxx uses it all")]
mod store;
#[path = "../../../../examples/embedding/src/table.rs"]
#[allow(dead_code, reason = "the server of grpcxx uses it all")]
mod table;
mod typed;

use std::time::Duration;

/// What is run, as all programs beside this one take it.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) address: String,
    pub(crate) op: String,
    pub(crate) size: usize,
    pub(crate) count: usize,
    pub(crate) connections: usize,
    pub(crate) depth: usize,
    pub(crate) seconds: f64,
}

/// What a request is about: tensors come back, tensors came, tell your CPU time, rows
/// of a table by id.
pub(crate) const PULL: u64 = 0;
pub(crate) const PUSH: u64 = 1;
pub(crate) const USAGE: u64 = 2;
pub(crate) const LOOKUP: u64 = 3;
/// Length of a request without tensors.
pub(crate) const HEAD_BYTES: usize = 64;

type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let side = arguments.next().unwrap_or_default();
    let mut options = Options {
        address: String::new(),
        op: "latency".to_owned(),
        size: 64,
        count: 1,
        connections: 1,
        depth: 1,
        seconds: 1.0,
    };
    while let (Some(name), Some(value)) = (arguments.next(), arguments.next()) {
        match name.as_str() {
            "--listen" | "--connect" => options.address = value,
            "--op" => options.op = value,
            "--size" => options.size = value.parse()?,
            "--count" => options.count = value.parse()?,
            "--connections" => options.connections = value.parse()?,
            "--depth" => options.depth = value.parse()?,
            "--seconds" => options.seconds = value.parse()?,
            _ => return Err(format!("unknown option {name}").into()),
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let local = tokio::task::LocalSet::new();
    if side == "serve" {
        local.block_on(&runtime, serve::serve(options))
    } else {
        local.block_on(&runtime, run::run(options))
    }
}

/// CPU time of this process so far.
pub(crate) fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}
