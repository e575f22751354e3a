//! What tests of engines whose connections move to another medium share.

use std::sync::mpsc::channel;
use std::time::Duration;

use grpcxx_rpc::{RendezvousKey, Request, Shape, Tensor, Text};
use grpcxx_runtime::{Call, Engine, Peer, PeerState};

/// The key of an edge from an engine to a worker.
pub(crate) fn key(engine: &Engine, edge: usize) -> Text {
    RendezvousKey::new(
        &engine.device_attributes().name,
        engine.incarnation(),
        "/job:worker/replica:0/task:0/device:CPU:0",
        &format!("edge {edge}"),
    )
    .unwrap()
    .to_text()
}

/// A vector of one number.
pub(crate) fn floats(len: usize, value: f32) -> Tensor {
    let shape = Shape::new(&[len as u64]).unwrap();
    Tensor::from_slice(shape, &vec![value; len]).unwrap()
}

/// What an engine knows of a peer now.
pub(crate) fn state(engine: &Engine, peer: &Peer) -> PeerState {
    let (tell, told) = channel();
    engine
        .client()
        .inspect(peer, move |state| tell.send(state).unwrap());
    told.recv_timeout(Duration::from_secs(10)).unwrap()
}

/// Asks a peer for a tensor.
pub(crate) fn receive(engine: &Engine, peer: &Peer, step_id: i64, key: Text) -> Call {
    let request = Request::RecvTensor { step_id, key };
    engine
        .client()
        .call(peer, request, Some(Duration::from_secs(20)))
}
