//! `embedding`: serves tables, and calls those who do.
#![expect(clippy::print_stdout, reason = "a program for people")]

mod load;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};
use futures_executor::block_on;
use grpcxx::{Engine, EngineBuilder};
use grpcxx_embedding::{Client, Server, ServerSpec, TableSpec};

use crate::load::Load;

/// An embedding parameter server: sparse lookups and updates of rows of floats by id.
///
/// One terminal serves, another one works:
///
///   embedding serve --listen 127.0.0.1:7100 --table users:64:adagrad --snapshots /tmp/rows
///   embedding load 127.0.0.1:7100 --table users --rows 10000 --seconds 5
///   embedding snapshot 127.0.0.1:7100
///
/// Several servers share the ids: start each with its own --index and the same --servers, and name
/// all of them, in that order, to those who call. SIGINT and SIGTERM end a server; it writes a
/// snapshot first and takes its rows from there when it starts again. The variables of
/// docs/configuration.md count here as for every task.
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves tables until SIGINT or SIGTERM.
    Serve(Serve),
    /// Tells what servers have: tables, rows, memory, calls.
    Show {
        /// The servers, in the order of their indices.
        #[arg(required = true)]
        addresses: Vec<String>,
    },
    /// Lets servers write their tables to files, while they serve.
    Snapshot {
        /// The servers, in the order of their indices.
        #[arg(required = true)]
        addresses: Vec<String>,
    },
    /// Works as many workers do, and tells how fast that goes.
    Load(Load),
}

#[derive(Debug, Parser)]
struct Serve {
    /// Where to listen.
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// A table, NAME:DIM or NAME:DIM:OPTIMIZER; OPTIMIZER is sgd or adagrad. May be repeated.
    #[arg(long = "table", required = true, value_name = "TABLE")]
    tables: Vec<TableSpec>,
    /// Which of the servers this is, from 0.
    #[arg(long, default_value_t = 0)]
    index: usize,
    /// How many servers share the ids.
    #[arg(long, default_value_t = 1)]
    servers: usize,
    /// Threads that serve; each has its part of the rows. As many as CPUs if nothing is said.
    #[arg(long)]
    shards: Option<usize>,
    /// A folder for snapshots. Rows are taken from there at the start, and written at the end.
    #[arg(long, value_name = "FOLDER")]
    snapshots: Option<PathBuf>,
    /// New rows depend on this, their table and their id alone.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Elements of new rows are spread evenly between -SCALE and SCALE.
    #[arg(long, default_value_t = 0.05)]
    scale: f32,
    /// Rows of each table on this server.
    #[arg(long, default_value_t = 100_000_000)]
    rows_max: u64,
    /// Memory of all rows on this server, without what is copied while a snapshot is written.
    #[arg(long, default_value_t = 4096, value_name = "MIB")]
    memory_mib_max: u64,
    /// Ids in one call.
    #[arg(long, default_value_t = 262_144)]
    batch_rows_max: usize,
    /// Memory of the rows of one call, each id counted as often as it comes.
    #[arg(long, default_value_t = 256, value_name = "MIB")]
    batch_mib_max: u64,
    /// Ids must be less than this.
    #[arg(long, default_value_t = u64::MAX)]
    ids_below: u64,
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Serve(options) => serve(options),
        Command::Show { addresses } => {
            let engine = worker()?;
            let client = block_on(Client::connect(&engine, &addresses))?;
            let shown = block_on(client.describe())?;
            println!("{}", serde_json::to_string_pretty(&shown)?);
            Ok(())
        }
        Command::Snapshot { addresses } => {
            let engine = worker()?;
            let client = block_on(Client::connect(&engine, &addresses))?;
            let written = block_on(client.snapshot())?;
            println!("{}", serde_json::to_string_pretty(&written)?);
            Ok(())
        }
        Command::Load(load) => load::run(&load),
    }
}

/// An engine that only calls.
fn worker() -> Result<Engine> {
    Ok(EngineBuilder::from_env("worker", 0, 1)?.start()?)
}

fn serve(options: Serve) -> Result<()> {
    let index = u32::try_from(options.index)?;
    let mut engine = EngineBuilder::from_env("embedding", index, options.servers)?
        .listen(options.listen.as_str());
    if let Some(shards) = options.shards {
        engine = engine.shards(shards);
    }
    let spec = ServerSpec {
        tables: options.tables,
        index: options.index,
        servers: options.servers,
        seed: options.seed,
        scale: options.scale,
        rows_max: options.rows_max,
        memory_bytes_max: options.memory_mib_max.saturating_mul(1 << 20),
        batch_rows_max: options.batch_rows_max,
        batch_bytes_max: options.batch_mib_max.saturating_mul(1 << 20),
        ids_below: options.ids_below,
    };
    // Before anything else, so that a signal from here on ends the server with a snapshot.
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
    ])?;
    let server = Server::start(engine, spec, options.snapshots)?;
    if let Some(address) = server.engine().local_addr() {
        let tables = server.description().tables;
        let rows: u64 = tables.iter().map(|table| table.rows).sum();
        println!("ready star={address} rows={rows}");
    }
    signals.forever().next();
    if let Some(written) = server.stop()? {
        println!("{}", serde_json::to_string(&written)?);
    }
    Ok(())
}
