//! Clients of other implementations of gRPC call the endpoint.
//!
//! `grpcio` needs `python3` with `venv`, and the packages that `interop/python.rs` names, which are
//! installed below the target directory once. TensorFlow is too large for that:
//! `GRPCXX_INTEROP_TENSORFLOW` names a python that has it. What cannot be had is skipped with the
//! reason; with `GRPCXX_INTEROP=require` it fails.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use grpcxx_rpc::proto::{TensorProto, TensorShapeProto, tensor_shape_proto::Dim};
use grpcxx_rpc::{DType, Shape, Tensor};
use prost::Message;

use crate::python::{grpcio_python, skip, text};
use crate::support::{Fake, bytes, start};

#[test]
fn grpcio_finds_everything_through_reflection() {
    match grpcio_python() {
        Ok(python) => {
            let fake = Fake::new();
            fake.put(1, "large", bytes(LARGE_BYTES));
            passes(python.as_os_str(), "clients.py", &fake, 9);
        }
        Err(reason) => skip("grpcio", &reason),
    }
}

#[test]
fn stock_tensorflow_takes_the_endpoint_as_its_ps() {
    let Some(python) = std::env::var_os("GRPCXX_INTEROP_TENSORFLOW") else {
        return skip(
            "TensorFlow",
            "GRPCXX_INTEROP_TENSORFLOW names no python with tensorflow",
        );
    };
    let fake = Fake::new();
    let tensor = |dtype, dims: &[u64], data: Vec<u8>| {
        Tensor::new(dtype, Shape::new(dims).unwrap(), data).unwrap()
    };
    let floats = [1f32, 2.0, 3.0].iter().flat_map(|f| f.to_le_bytes());
    for (edge, sent) in [
        ("float32", tensor(DType::Float32, &[3], floats.collect())),
        ("bool", tensor(DType::Bool, &[2, 1], vec![1, 0])),
        ("bfloat16", tensor(DType::BFloat16, &[], vec![0x80, 0x3f])),
        ("empty", tensor(DType::Int64, &[0, 5], vec![])),
        ("string", tensor(DType::String, &[1], one_string("text"))),
        ("large", bytes(LARGE_BYTES)),
    ] {
        fake.edges.lock().unwrap().insert(edge.to_owned(), sent);
    }
    passes(&python, "tensorflow_peer.py", &fake, 5);
}

/// The data of a string tensor of shape `[1]`.
fn one_string(text: &'static str) -> Vec<u8> {
    TensorProto {
        dtype: DType::String.number().into(),
        tensor_shape: Some(TensorShapeProto {
            dim: vec![Dim {
                size: 1,
                name: String::new(),
            }],
            unknown_rank: false,
        }),
        string_val: vec![text.into()],
        ..Default::default()
    }
    .encode_to_vec()
}

/// Runs a script against an endpoint; it must pass so many checks.
fn passes(python: &OsStr, script: &str, fake: &Arc<Fake>, checks: usize) {
    let control = start(fake);
    let output = Command::new(python)
        .arg(folder().join(script))
        .arg(control.local_addr().to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let passed = text(&output).matches("passed ").count();
    assert_eq!(passed, checks, "{}", text(&output));
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop")
}

/// Known to both scripts.
const LARGE_BYTES: usize = 64 << 20;
