//! `grpcxx-server`: one task of a cluster.

#![forbid(unsafe_code)]

mod alive;
mod allocation;
mod arguments;
mod start;
mod supervisor;
#[expect(dead_code, reason = "each program uses a part of it")]
#[path = "../../terminal/mod.rs"]
mod terminal;

use std::process::ExitCode;

use arguments::Arguments;
use terminal::parse_arguments;

fn main() -> ExitCode {
    let arguments = match parse_arguments::<Arguments>() {
        Ok(arguments) => arguments,
        Err(exit) => return exit,
    };
    let outcome = match arguments.check_alive {
        true => alive::check(&arguments),
        false => start::run(&arguments, |_| {}),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("grpcxx-server"),
    }
}
