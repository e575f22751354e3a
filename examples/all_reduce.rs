//! Two processes sum their arrays, as docs/collectives.md has it.
//!
//! Run it with `cargo run --example all_reduce -- 0` and `cargo run --example all_reduce -- 1`.
#![expect(clippy::print_stdout, reason = "an example talks to a person")]

use grpcxx::collectives::{Group, ReduceOp};
use grpcxx::{Engine, Status, Tensor};

fn main() -> Result<(), Status> {
    let rank = std::env::args().nth(1);
    let rank = rank.and_then(|rank| rank.parse().ok()).unwrap_or(0);
    println!("{:?}", sum(rank, "127.0.0.1:7777")?);
    Ok(())
}

pub(crate) fn sum(rank: u32, meeting: &str) -> Result<Vec<f32>, Status> {
    let listen = if rank == 0 { meeting } else { "127.0.0.1:0" };
    let engine = Engine::builder().task("worker", rank);
    let engine = engine.listen(listen).start()?;
    let group = Group::builder(rank, 2, meeting).join(&engine)?;
    let mine = Tensor::vector(vec![rank as f32, 1.0]);
    let sum = group.all_reduce(mine, ReduceOp::Sum).wait()?;
    group.leave()?;
    Ok(sum.elements()?.into_owned())
}
