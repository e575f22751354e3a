//! A server with a registered function: `scale` returns its feed `values` times its feed `factor`
//! as `scaled`.
//!
//! Run it with `cargo run --example server -- 127.0.0.1:7777`, and `client` beside it.
#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;

use grpcxx::{Engine, GraphCall, Status, Tensor};

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let engine = start(address.as_deref().unwrap_or("127.0.0.1:7777"))?;
    println!("{}", engine.start_report());
    loop {
        std::thread::park();
    }
}

/// Starts a task that serves `scale` at `address`.
pub(crate) fn start(address: &str) -> Result<Engine, Status> {
    let task = Engine::builder().task("ps", 0).listen(address);
    Ok(task.start_with(|engine| engine.register_fn("scale", scale))?)
}

/// Runs on a thread of its own pool, so it may take its time.
fn scale(call: GraphCall) -> Result<[(&'static str, Tensor); 1], Status> {
    let values = call.feed("values")?;
    let factor: f32 = call.feed("factor")?.value()?;
    let mut scaled = values.elements::<f32>()?.into_owned();
    scaled.iter_mut().for_each(|value| *value *= factor);
    let scaled = Tensor::from_vec(values.shape.clone(), scaled)?;
    Ok([("scaled", scaled)])
}
