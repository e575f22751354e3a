//! A client that calls the function `scale` of the example `server`.
//!
//! Run it with `cargo run --example client -- 127.0.0.1:7777`.
#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;
use std::time::Duration;

use grpcxx::{Engine, EngineOptions, GraphCall, Request, Response, Shape, Tensor, Text};

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let scaled = scale(
        address.as_deref().unwrap_or("127.0.0.1:7777"),
        &[1.0, 2.0, 3.0],
        10.0,
    )?;
    println!("{scaled:?}");
    Ok(())
}

/// Asks the task at `address` for `values` times `factor`.
pub(crate) fn scale(
    address: &str,
    values: &[f32],
    factor: f32,
) -> Result<Vec<f32>, Box<dyn Error>> {
    // An engine without a port of its own only calls.
    let engine = Engine::start(EngineOptions::default())?;
    let client = engine.client();
    let peer = client.peer(address)?;
    let shape = Shape::new(&[values.len() as u64])?;
    let call = GraphCall {
        graph_handle: Text::from("scale"),
        feeds: vec![
            (Text::from("values"), Tensor::from_slice(shape, values)?),
            (Text::from("factor"), Tensor::scalar(factor)),
        ],
        fetches: vec![Text::from("scaled")],
        ..GraphCall::default()
    };
    let request = Request::StarRunGraph(Box::new(call));
    // A call is a future too; `wait` is for threads without an executor.
    match client
        .call(&peer, request, Some(Duration::from_secs(10)))
        .wait()?
    {
        Response::Fetched(results) => Ok(results[0].1.elements::<f32>()?.into_owned()),
        other => Err(format!("the answer holds no results: {other:?}").into()),
    }
}
