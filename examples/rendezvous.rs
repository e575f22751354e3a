//! A rendezvous pair: one task sends a tensor into a step, another receives it by its key. Who
//! comes first waits.
//!
//! Run it with `cargo run --example rendezvous`.
#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;

use grpcxx::{Engine, Tensor};

fn main() -> Result<(), Box<dyn Error>> {
    println!("received {:?}", meet(42)?);
    Ok(())
}

/// Sends `value` from a ps to a worker, and returns what arrives there.
pub(crate) fn meet(value: i64) -> Result<i64, Box<dyn Error>> {
    let producer = Engine::builder()
        .task("ps", 0)
        .listen("127.0.0.1:0")
        .start()?;
    let consumer = Engine::builder().task("worker", 0).start()?;
    let address = producer
        .local_addr()
        .ok_or("the producer does not listen")?;
    let (step_id, key) = (7, producer.key(consumer.task(), "edge_1")?);

    let received = consumer
        .connect(&address.to_string())?
        .receive(step_id, key.clone());
    producer.send(step_id, key, Tensor::scalar(value))?;
    Ok(received.wait()?.value()?)
}
