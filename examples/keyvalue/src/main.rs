//! `keyvalue`: serves a key-value store, and calls it.

mod load;

use std::io::Write;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use grpcxx::{Engine, EngineBuilder, Remote};
use grpcxx_keyvalue::proto::{DeleteRequest, GetRequest, KeyValueClient, PutRequest, ScanRequest};
use grpcxx_keyvalue::store::end_of_prefix;
use grpcxx_keyvalue::{Limits, Server};

use crate::load::Load;

/// A key-value store in memory: get, put, delete, and scans in the order of keys.
///
/// One terminal serves, another one calls:
///
///   keyvalue serve --listen 127.0.0.1:7200
///   keyvalue put 127.0.0.1:7200 colour red
///   keyvalue get 127.0.0.1:7200 colour
///   keyvalue scan 127.0.0.1:7200 --prefix c
///
/// SIGINT and SIGTERM end a server, and its entries with it. A call that fails prints its status
/// and ends with 1. The variables of docs/configuration.md count here as for every task.
#[derive(Debug, Parser)]
#[command(version, verbatim_doc_comment)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serves an empty store until SIGINT or SIGTERM.
    Serve(Serve),
    /// Prints the value of a key.
    Get {
        /// The server, HOST:PORT.
        address: String,
        /// The key.
        key: String,
    },
    /// Gives a key its value.
    Put {
        /// The server, HOST:PORT.
        address: String,
        /// The key, of 1 to 4096 bytes.
        key: String,
        /// The value.
        value: String,
    },
    /// Removes a key, and tells whether it was there.
    Delete {
        /// The server, HOST:PORT.
        address: String,
        /// The key.
        key: String,
    },
    /// Prints keys and values, a tab between them, in the order of the keys' bytes.
    Scan(Scan),
    /// Fills a server with keys, calls it as often as it can, and tells how fast that goes.
    Load(Load),
}

#[derive(Debug, Args)]
struct Serve {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT")]
    listen: String,
    /// Threads that serve; each has its part of the keys. As many as CPUs if nothing is said.
    #[arg(long)]
    shards: Option<usize>,
    /// Memory of all entries. Puts beyond it fail with RESOURCE_EXHAUSTED.
    #[arg(long, default_value_t = 1024, value_name = "MIB")]
    memory_mib_max: u64,
    /// Length of a value. Longer ones fail with INVALID_ARGUMENT.
    #[arg(long, default_value_t = 1024, value_name = "KIB")]
    value_kib_max: usize,
}

#[derive(Debug, Args)]
struct Scan {
    /// The server, HOST:PORT.
    address: String,
    /// The first key.
    #[arg(long, value_name = "KEY", default_value = "")]
    start: String,
    /// The key to stop before.
    #[arg(long, value_name = "KEY", default_value = "")]
    end: String,
    /// All keys that begin so.
    #[arg(long, conflicts_with_all = ["start", "end"])]
    prefix: Option<String>,
    /// How many entries at most; 0 for all.
    #[arg(long, default_value_t = 0)]
    limit: u64,
}

fn main() -> Result<()> {
    let mut output = std::io::stdout().lock();
    match Arguments::parse().command {
        Command::Serve(options) => serve(&options, &mut output)?,
        Command::Get { address, key } => {
            let key = key.into();
            let reply = call(&address)?.1.get(GetRequest { key }).wait()?;
            output.write_all(&reply.into_inner().value)?;
            writeln!(output)?;
        }
        Command::Put {
            address,
            key,
            value,
        } => {
            let (key, value) = (key.into(), value.into());
            call(&address)?.1.put(PutRequest { key, value }).wait()?;
        }
        Command::Delete { address, key } => {
            let key = key.into();
            let reply = call(&address)?.1.delete(DeleteRequest { key }).wait()?;
            let text = match reply.into_inner().deleted {
                true => "deleted",
                false => "it was not there",
            };
            writeln!(output, "{text}")?;
        }
        Command::Scan(options) => scan(options, &mut output)?,
        Command::Load(load) => load::run(&load, &mut output)?,
    }
    Ok(())
}

/// A client, and the engine that it lives with.
fn call(address: &str) -> Result<(Engine, KeyValueClient)> {
    let engine = EngineBuilder::from_env("client", 0, 1)?.shards(1).start()?;
    let remote: Remote = engine.connect(address)?;
    Ok((engine, KeyValueClient::new(remote)))
}

fn serve(options: &Serve, output: &mut impl Write) -> Result<()> {
    let mut engine = EngineBuilder::from_env("keyvalue", 0, 1)?.listen(options.listen.as_str());
    if let Some(shards) = options.shards {
        engine = engine.shards(shards);
    }
    let limits = Limits {
        memory_bytes_max: options.memory_mib_max.saturating_mul(1 << 20),
        value_bytes_max: options.value_kib_max.saturating_mul(1 << 10),
    };
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
    ])?;
    let server = Server::start(engine, limits)?;
    if let Some(address) = server.engine().local_addr() {
        writeln!(output, "ready star={address}")?;
        output.flush()?;
    }
    signals.forever().next();
    server.stop()?;
    Ok(())
}

fn scan(options: Scan, output: &mut impl Write) -> Result<()> {
    let (start, end) = match options.prefix {
        Some(prefix) => {
            let end = end_of_prefix(prefix.as_bytes());
            (prefix.into(), end.into())
        }
        None => (options.start.into(), options.end.into()),
    };
    let limit = options.limit;
    let (_engine, client) = call(&options.address)?;
    let reply = client.scan(ScanRequest { start, end, limit }).wait()?;
    let mut entries = reply.into_inner();
    while let Some(entry) = entries.wait_message()? {
        output.write_all(&entry.key)?;
        output.write_all(b"\t")?;
        output.write_all(&entry.value)?;
        writeln!(output)?;
    }
    Ok(())
}
