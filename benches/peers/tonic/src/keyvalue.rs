//! The key-value store of grpcxx's example behind tonic, and the load that its program makes.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use serde_json::json;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use self::proto::key_value_client::KeyValueClient;
use self::proto::key_value_server::KeyValue;
use self::proto::{
    DeleteReply, DeleteRequest, Entry, GetReply, GetRequest, PutReply, PutRequest, ScanRequest,
};
use crate::store::{Budget, KeyRange, Store};
use crate::{Failure, Options, cpu_time};

pub(crate) mod proto {
    tonic::include_proto!("keyvalue");
}

/// All entries, for the one thread that serves.
#[derive(Clone)]
pub(crate) struct Served(Arc<Mutex<Store>>);

impl Served {
    pub(crate) fn new() -> Self {
        let budget = Arc::new(Budget::new(1 << 30));
        Self(Arc::new(Mutex::new(Store::new(budget))))
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[tonic::async_trait]
impl KeyValue for Served {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetReply>, Status> {
        let value = self.store().get(&request.get_ref().key);
        let value = value.ok_or_else(|| Status::not_found("there is no such key"))?;
        Ok(Response::new(GetReply { value }))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutReply>, Status> {
        let PutRequest { key, value } = request.into_inner();
        let replaced = self.store().put(&key, &value);
        let replaced = replaced.map_err(|_| Status::resource_exhausted("the store is full"))?;
        Ok(Response::new(PutReply { replaced }))
    }

    async fn delete(
        &self,
        request: Request<DeleteRequest>,
    ) -> Result<Response<DeleteReply>, Status> {
        let deleted = self.store().delete(&request.get_ref().key);
        Ok(Response::new(DeleteReply { deleted }))
    }

    type ScanStream = Pin<Box<dyn Stream<Item = Result<Entry, Status>> + Send>>;

    async fn scan(
        &self,
        request: Request<ScanRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        let ScanRequest { start, end, limit } = request.into_inner();
        let range = KeyRange::new(start, end)
            .ok_or_else(|| Status::invalid_argument("the end lies before the start"))?;
        let served = self.clone();
        let pages = stream::unfold(Some(range), move |range| {
            let page = range.map(|range| served.store().page(&range));
            std::future::ready(page.map(|page| (page.entries, page.rest)))
        });
        let entries = pages.flat_map(stream::iter);
        let entries = entries.map(|(key, value)| Ok(Entry { key, value }));
        let limit = if limit == 0 {
            usize::MAX
        } else {
            limit as usize
        };
        Ok(Response::new(Box::pin(entries.take(limit))))
    }
}

/// Puts all keys, then calls one behind the other in each slot. Prints one line of JSON.
#[expect(clippy::print_stdout, reason = "the result")]
pub(crate) async fn load(options: &Options, channel: Channel) -> Result<(), Failure> {
    let client = KeyValueClient::new(channel);
    let keys = options.count as u64;
    let fill = stream::iter(0..keys).map(|number| {
        let mut client = client.clone();
        async move { client.put(entry(options, number)).await }
    });
    let fill = fill.buffer_unordered(256);
    fill.try_for_each(async |_| Ok(())).await?;

    let before = cpu_time();
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(options.seconds);
    let slots = (0..options.depth).map(|slot| calls(options, client.clone(), slot as u64, end));
    let mut times = try_join_all(slots).await?.concat();
    let elapsed = begin.elapsed().as_secs_f64();
    let cpu = cpu_time() - before;
    times.sort_unstable();
    let steps = times.len() as f64;
    let entries = match options.op.as_str() {
        "scan" => steps * keys as f64,
        _ => steps,
    };
    let at = |part: f64| {
        let time: Option<&Duration> = times.get((steps * part) as usize);
        time.map_or(0.0, |time| time.as_secs_f64() * 1e6)
    };
    let result = json!({
        "op": options.op, "keys": keys, "value_bytes": options.size, "in_flight": options.depth,
        "p50_us": at(0.5), "p99_us": at(0.99), "steps_per_s": steps / elapsed,
        "entries_per_s": entries / elapsed, "cpu_us_per_step": cpu.as_secs_f64() * 1e6 / steps,
    });
    println!("{result}");
    Ok(())
}

async fn calls(
    options: &Options,
    mut client: KeyValueClient<Channel>,
    seed: u64,
    end: Instant,
) -> Result<Vec<Duration>, Status> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut times = Vec::new();
    while Instant::now() < end {
        let number = random.u64(..options.count as u64);
        let begin = Instant::now();
        match options.op.as_str() {
            "get" => {
                let key = key(number).into();
                client.get(GetRequest { key }).await?;
            }
            "put" => {
                client.put(entry(options, number)).await?;
            }
            _ => {
                let reply = client.scan(ScanRequest::default()).await?;
                reply.into_inner().try_for_each(async |_| Ok(())).await?;
            }
        }
        times.push(begin.elapsed());
    }
    Ok(times)
}

fn entry(options: &Options, number: u64) -> PutRequest {
    PutRequest {
        key: key(number).into(),
        value: vec![number as u8; options.size].into(),
    }
}

fn key(number: u64) -> String {
    format!("key-{number:012}")
}
