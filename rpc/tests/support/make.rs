//! Values for tests.

use grpcxx_rpc::{DType, GraphCall, Method, NamedTensors, Request, Shape, Tensor};

pub const STEP_ID: i64 = 81_985_529_216_486;
pub const KEY: &str = "/job:ps/replica:0/task:0/device:CPU:0;0123456789abcdef;\
    /job:worker/replica:0/task:0/device:CPU:0;edge_12_var_read;0:0";

/// A tensor of bytes with a content that tells it from others.
pub fn bytes_tensor(len: usize, seed: u8) -> Tensor {
    let data: Vec<u8> = (0..len)
        .map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed))
        .collect();
    let rank_two = len.is_multiple_of(60_000) && len > 60_000;
    let shape = if rank_two {
        Shape::new(&[len as u64 / 60_000, 60_000])
    } else {
        Shape::new(&[len as u64])
    };
    Tensor::new(DType::UInt8, shape.unwrap(), data).unwrap()
}

pub fn floats(values: &[f32]) -> Tensor {
    let data: Vec<u8> = values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    let shape = Shape::new(&[values.len() as u64]).unwrap();
    Tensor::new(DType::Float32, shape, data).unwrap()
}

pub fn message(method: Method, body: &[u8]) -> Request {
    Request::Message {
        method,
        body: body.to_vec().into(),
    }
}

pub fn receive(key: &str) -> Request {
    Request::RecvTensor {
        step_id: STEP_ID,
        key: key.into(),
    }
}

pub fn fuse(keys: &[&str]) -> Request {
    Request::FuseRecvTensor {
        step_id: STEP_ID,
        keys: keys.iter().map(|&key| key.into()).collect(),
    }
}

pub fn graph(handle: &str, feeds: Vec<(&str, Tensor)>, fetches: &[&str]) -> Request {
    Request::StarRunGraph(Box::new(GraphCall {
        graph_handle: handle.into(),
        step_id: STEP_ID as u64,
        feeds: named(feeds),
        fetches: fetches.iter().map(|&name| name.into()).collect(),
        ps_graph_count: 1,
        should_trace: false,
        trace: None,
    }))
}

pub fn named(tensors: Vec<(&str, Tensor)>) -> NamedTensors {
    tensors
        .into_iter()
        .map(|(name, tensor)| (name.into(), tensor))
        .collect()
}
