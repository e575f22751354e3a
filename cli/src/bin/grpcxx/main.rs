//! `grpcxx`: looks into clusters, moves tensors, calls functions, writes endpoint maps, and runs
//! clusters on this machine.

#![forbid(unsafe_code)]

mod arguments;
#[cfg(feature = "bench")]
mod bench;
mod call;
mod cluster;
mod demo;
mod demo_model;
mod endpoint_map;
mod inspect;
mod launch;
mod list;
mod local;
mod output;
mod progress;
mod pull;
mod push;
mod select;
mod status;
#[expect(dead_code, reason = "each program uses a part of it")]
#[path = "../../terminal/mod.rs"]
mod terminal;
mod top;
mod values;

use std::process::ExitCode;

use arguments::{Arguments, Command, EndpointMapCommand};
use output::Output;
use terminal::{
    Outcome, Signals, parse_arguments, raise_open_files, read_config, start_log, start_telemetry,
};

fn main() -> ExitCode {
    let arguments = match parse_arguments::<Arguments>() {
        Ok(arguments) => arguments,
        Err(exit) => return exit,
    };
    let outcome = run(arguments);
    if let Some(signal) = Signals::that_ends_program() {
        return ExitCode::from(signal.exit_code() as u8);
    }
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report("grpcxx"),
    }
}

fn run(arguments: Arguments) -> Outcome {
    let (config, mut warnings) = read_config()?;
    // A tool at a terminal is silent unless something is wrong, or the log was asked for.
    let filter = match std::env::var_os("GRPCXX_LOG") {
        Some(_) => config.log.as_str(),
        None => "warn",
    };
    let telemetry = start_telemetry("grpcxx", &mut warnings);
    let (_log, _telemetry) = start_log(filter, config.log_format, telemetry)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    // The rendezvous of thousands of ranks, and models of thousands of files.
    raise_open_files();
    let output = Output::new(arguments.json);
    match arguments.command {
        Command::Status(arguments) => status::run(&arguments, &config, output),
        Command::Inspect(arguments) => inspect::run(&arguments, &config, output),
        Command::Top(arguments) => top::run(&arguments, &config, output),
        Command::List(arguments) => list::run(&arguments, &config, output),
        Command::Pull(arguments) => pull::run(&arguments, &config, output),
        Command::Push(arguments) => push::run(&arguments, &config, output),
        Command::Call(arguments) => call::run(&arguments, &config, output),
        Command::EndpointMap(EndpointMapCommand::Generate(arguments)) => {
            endpoint_map::generate(&arguments, &config, output)
        }
        Command::EndpointMap(EndpointMapCommand::Check(arguments)) => {
            endpoint_map::check(&arguments, &config, output)
        }
        Command::Local(arguments) => local::run(&arguments, output),
        Command::Launch(arguments) => launch::run(&arguments),
        Command::Demo(arguments) => demo::run(&arguments, &config, output),
        #[cfg(feature = "bench")]
        Command::Bench(command) => bench::run(&command, &config, output),
    }
}
