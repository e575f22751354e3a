//! The programs as processes: clusters of `grpcxx-server`, and `grpcxx` against them.
#![expect(
    clippy::print_stdout,
    reason = "what tasks log belongs to the output of a test that fails"
)]

mod alive;
#[path = "../../../runtime/tests/support/authority.rs"]
#[allow(dead_code, reason = "the programs read certificates by variables")]
mod authority;
mod bad_input;
mod bench;
mod cluster;
mod descriptors;
mod early_signals;
mod launch;
mod launch_ends;
mod launch_lost;
mod launch_told;
mod leaving;
mod loading;
mod log;
mod ordinary_user;
#[path = "../../../runtime/tests/original/mod.rs"]
mod original;
mod outgoing_ports;
mod policy;
#[path = "../../../runtime/tests/support/ports.rs"]
mod ports;
mod pushes;
mod quota;
mod spans;
mod strangers;
mod supervised;
mod tool;
mod types;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use grpcxx::model::SafetensorsWriter;
use grpcxx_cli::local::{LocalCluster, LocalOptions};
use grpcxx_rpc::{DType, Shape, Tensor, TensorMeta};

/// Options of a cluster of the programs under test, small enough for many at once.
fn options(ps: usize, workers: usize, load: &[PathBuf]) -> LocalOptions {
    LocalOptions {
        server: PathBuf::from(SERVER),
        ps,
        workers,
        load: load.to_vec(),
        environment: vec![
            ("GRPCXX_SHARDS".to_owned(), "1".to_owned()),
            ("GRPCXX_ARENA_BYTES".to_owned(), "256MiB".to_owned()),
            ("GRPCXX_REDIAL_MS".to_owned(), "50".to_owned()),
        ],
        // Machines that run tests are often busy with other things.
        ready_timeout: Some(Duration::from_secs(60)),
        ..LocalOptions::default()
    }
}

/// Starts a cluster whose logs go to the output of the test.
fn start(options: LocalOptions) -> LocalCluster {
    LocalCluster::start(options, |line| println!("{} | {}", line.task, line.text)).unwrap()
}

/// A model of several types and sizes, from large enough to travel alone down to empty.
fn write_model(path: &Path) {
    let tensors: Vec<(String, Tensor)> = [
        ("large", DType::Float32, vec![512, 1024]),
        ("half", DType::BFloat16, vec![3, 5, 7]),
        ("ids", DType::Int64, vec![1, 33]),
        ("flags", DType::Bool, vec![17]),
        ("scalar", DType::Float64, vec![]),
        ("empty", DType::UInt8, vec![0, 4]),
    ]
    .into_iter()
    .map(|(name, dtype, dims)| (name.to_owned(), tensor(dtype, &dims)))
    .chain((0..300).map(|index| {
        (
            format!("layer.{index}.bias"),
            tensor(DType::Float16, &[index]),
        )
    }))
    .collect();
    let metas: Vec<(&str, TensorMeta)> = tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor.meta()))
        .collect();
    let described = metas.iter().map(|(name, meta)| (*name, meta));
    let mut writer = SafetensorsWriter::create(path, described, &[]).unwrap();
    for (name, tensor) in &tensors {
        writer.write(name, tensor).unwrap();
    }
    writer.finish().unwrap();
}

fn tensor(dtype: DType, dims: &[u64]) -> Tensor {
    let shape = Shape::new(dims).unwrap();
    let len = shape.num_elements() as usize * dtype.element_bytes().unwrap();
    // Only 0 and 1, which every type can hold, in a pattern that no shift maps onto itself.
    let data: Vec<u8> = (0..len).map(|at| u8::from((at * at) % 7 > 3)).collect();
    Tensor::new(dtype, shape, data).unwrap()
}

/// Runs `grpcxx` in `folder`, whose `.endpoint_map`, if any, counts.
fn grpcxx(folder: &Path, arguments: &[&str]) -> Output {
    run(TOOL, folder, arguments, &[])
}

fn run(program: &str, folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder);
    for name in ["TF_CONFIG", "TASK_INDEX", "TF_SEASTAR_ENDPOINT_MAP_PATH"] {
        command.env_remove(name);
    }
    command.env("RUST_BACKTRACE", "1");
    command.envs(variables.iter().copied());
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

const SERVER: &str = env!("CARGO_BIN_EXE_grpcxx-server");
const TOOL: &str = env!("CARGO_BIN_EXE_grpcxx");
