//! A client that calls as often as it can, and what that costs.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use futures_util::future::try_join_all;
use futures_util::{StreamExt, TryStreamExt, stream};
use grpcxx::{EngineBuilder, Status};
use grpcxx_keyvalue::proto::{GetRequest, KeyValueClient, PutRequest, ScanRequest};

#[derive(Debug, Args)]
pub(crate) struct Load {
    /// The server, HOST:PORT.
    address: String,
    /// What is called: get or put of one key, or a scan of all of them.
    #[arg(long, value_enum, default_value_t = Op::Get)]
    op: Op,
    /// How many keys there are; each is put once before anything is measured.
    #[arg(long, default_value_t = 100_000)]
    keys: u64,
    /// Length of each value.
    #[arg(long, default_value_t = 64)]
    value_bytes: usize,
    /// Calls under way at a time, all from one thread.
    #[arg(long, default_value_t = 64)]
    in_flight: usize,
    /// For how long.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Op {
    Get,
    Put,
    Scan,
}

/// Calls, and prints one line of JSON.
pub(crate) fn run(load: &Load, output: &mut impl Write) -> Result<()> {
    anyhow::ensure!(load.keys > 0, "--keys is a number from 1");
    anyhow::ensure!(load.in_flight > 0, "--in-flight is a number from 1");
    // This thread turns the one shard itself, so a call is handed to nobody.
    let engine = EngineBuilder::from_env("client", 0, 1)?.start_local()?;
    let client = KeyValueClient::new(engine.connect(&load.address)?);
    let fill = stream::iter(0..load.keys).map(|number| client.put(load.entry(number)));
    let fill = fill.buffer_unordered(256).try_for_each(async |_| Ok(()));
    engine.block_on(fill)?;

    let before = cpu_time();
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(load.seconds);
    let slots = (0..load.in_flight).map(|slot| load.calls(&client, slot as u64, end));
    let times = engine.block_on(try_join_all(slots.collect::<Vec<_>>()))?;
    let elapsed = begin.elapsed().as_secs_f64();
    let cpu = cpu_time() - before;
    let mut times = times.concat();
    times.sort_unstable();
    let steps = times.len() as f64;
    let entries = match load.op {
        Op::Get | Op::Put => steps,
        Op::Scan => steps * load.keys as f64,
    };
    let at = |part: f64| {
        let time: Option<&Duration> = times.get((steps * part) as usize);
        let time = time.context("no call ended in time; give more --seconds")?;
        anyhow::Ok(time.as_secs_f64() * 1e6)
    };
    let result = serde_json::json!({
        "op": format!("{:?}", load.op).to_lowercase(), "keys": load.keys,
        "value_bytes": load.value_bytes, "in_flight": load.in_flight,
        "p50_us": at(0.5)?, "p99_us": at(0.99)?,
        "steps_per_s": steps / elapsed, "entries_per_s": entries / elapsed,
        "cpu_us_per_step": cpu.as_secs_f64() * 1e6 / steps,
    });
    writeln!(output, "{result}")?;
    Ok(())
}

impl Load {
    fn entry(&self, number: u64) -> PutRequest {
        PutRequest {
            key: key(number).into(),
            value: vec![number as u8; self.value_bytes].into(),
        }
    }

    /// One call behind the other, and how long each took.
    async fn calls(
        &self,
        client: &KeyValueClient,
        seed: u64,
        end: Instant,
    ) -> Result<Vec<Duration>, Status> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut times = Vec::new();
        while Instant::now() < end {
            let number = random.u64(..self.keys);
            let begin = Instant::now();
            match self.op {
                Op::Get => {
                    let key = key(number).into();
                    client.get(GetRequest { key }).await?;
                }
                Op::Put => {
                    client.put(self.entry(number)).await?;
                }
                Op::Scan => {
                    let reply = client.scan(ScanRequest::default()).await?;
                    reply.into_inner().try_for_each(async |_| Ok(())).await?;
                }
            }
            times.push(begin.elapsed());
        }
        Ok(times)
    }
}

fn key(number: u64) -> String {
    format!("key-{number:012}")
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}
