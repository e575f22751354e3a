//! A server with a registered function: `scale` returns its feed `values` times its feed `factor` as `scaled`.
//!
//! Run it with `cargo run --example server -- 127.0.0.1:7777`, and `client` beside it.
#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;

use grpcxx::{Code, Engine, EngineOptions, GraphCall, Status, TaskId, Tensor, Text};

fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1);
    let engine = start(address.as_deref().unwrap_or("127.0.0.1:7777").parse()?)?;
    println!("{}", engine.start_report());
    loop {
        std::thread::park();
    }
}

/// Starts a task that serves `scale` at `address`.
pub(crate) fn start(address: SocketAddr) -> Result<Engine, Box<dyn Error>> {
    let engine = Engine::start(EngineOptions {
        task: TaskId::new("ps", 0),
        listen: Some(address),
        ..EngineOptions::default()
    })?;
    engine.register("scale", Arc::new(scale));
    Ok(engine)
}

/// Runs on a thread of its own pool, so it may take its time.
fn scale(call: GraphCall) -> Result<Vec<(Text, Tensor)>, Status> {
    let feed = |wanted: &str| {
        let found = call.feeds.iter().find(|(name, _)| name == wanted);
        found.map(|(_, tensor)| tensor).ok_or_else(|| {
            Status::new(
                Code::InvalidArgument,
                format!("scale needs a feed \"{wanted}\""),
            )
        })
    };
    let values = feed("values")?;
    let factor = feed("factor")?.elements::<f32>()?[0];
    let scaled: Vec<f32> = values
        .elements::<f32>()?
        .iter()
        .map(|value| value * factor)
        .collect();
    let scaled = Tensor::from_vec(values.shape.clone(), scaled)?;
    Ok(vec![(Text::from("scaled"), scaled)])
}
