//! A rendezvous pair: one task sends a tensor into a step, another receives it by its key. Who comes first waits.
//!
//! Run it with `cargo run --example rendezvous`.
#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;

use grpcxx::{Engine, EngineOptions, RendezvousKey, Request, Response, TaskId, Tensor};

fn main() -> Result<(), Box<dyn Error>> {
    println!("received {:?}", meet(42)?);
    Ok(())
}

/// Sends `value` from a ps to a worker, and returns what arrives there.
pub(crate) fn meet(value: i64) -> Result<i64, Box<dyn Error>> {
    let producer = Engine::start(EngineOptions {
        task: TaskId::new("ps", 0),
        listen: Some("127.0.0.1:0".parse()?),
        ..EngineOptions::default()
    })?;
    let consumer = Engine::start(EngineOptions {
        task: TaskId::new("worker", 0),
        ..EngineOptions::default()
    })?;
    // The incarnation tells this run of the producer from one before a restart.
    let source_device = producer.device_attributes().name.clone();
    let target_device = TaskId::new("worker", 0).device("CPU", 0);
    let key = RendezvousKey::new(
        &source_device,
        producer.incarnation(),
        &target_device,
        "edge_1",
    )?;
    let key = key.to_text();
    let step_id = 7;

    let address = producer
        .local_addr()
        .ok_or("the producer does not listen")?;
    let client = consumer.client();
    let peer = client.peer(&address.to_string())?;
    let request = Request::RecvTensor {
        step_id,
        key: key.clone(),
    };
    let received = client.call(&peer, request, None);
    producer.send(step_id, key, Tensor::scalar(value))?;
    let Response::Tensors(tensors) = received.wait()? else {
        return Err("the answer holds no tensor".into());
    };
    Ok(tensors[0].elements::<i64>()?[0])
}
