//! A client that calls the function `scale` of the example `server`.
//!
//! Run it with `cargo run --example client -- 127.0.0.1:7777`.
#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;
use std::time::Duration;

use grpcxx::{Engine, GraphCall, Status, Tensor};

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let address = address.as_deref().unwrap_or("127.0.0.1:7777");
    let scaled = scale(address, vec![1.0, 2.0, 3.0], 10.0)?;
    println!("{scaled:?}");
    Ok(())
}

/// Asks the task at `address` for `values` times `factor`.
pub(crate) fn scale(address: &str, values: Vec<f32>, factor: f32) -> Result<Vec<f32>, Status> {
    // An engine without a port of its own only calls.
    let engine = Engine::builder().start()?;
    let server = engine
        .connect(address)?
        .with_timeout(Duration::from_secs(10));
    let call = GraphCall::new("scale")
        .with_feed("values", Tensor::vector(values))
        .with_feed("factor", Tensor::scalar(factor))
        .with_fetch("scaled");
    // A call is a future; `wait` is for threads without an executor.
    let results = server.run(call).wait()?;
    Ok(results.get("scaled")?.elements()?.into_owned())
}
