//! The service over the shards of an engine.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use grpcxx::service::{Request, Response};
use grpcxx::{Code, Engine, EngineBuilder, Sharded, Status};

use crate::merge::Merge;
use crate::proto::{
    DeleteReply, DeleteRequest, Entry, GetReply, GetRequest, KeyValue, KeyValueServer, PutReply,
    PutRequest, ScanRequest,
};
use crate::store::{Budget, Full, KEY_BYTES_MAX, KeyRange, Store};

/// How much a server takes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Memory of all entries together.
    pub memory_bytes_max: u64,
    /// Bytes of a value.
    pub value_bytes_max: usize,
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    engine: Engine,
    service: Arc<Service>,
}

#[derive(Debug)]
struct Service {
    shards: Sharded<RefCell<Store>>,
    budget: Arc<Budget>,
    limits: Limits,
    /// Nobody outside knows it, so nobody can choose keys that all lie on one shard.
    spread: RandomState,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes_max: 1 << 30,
            value_bytes_max: 1 << 20,
        }
    }
}

impl Server {
    /// Starts an engine that serves an empty store.
    ///
    /// # Errors
    /// The engine cannot start.
    pub fn start(engine: EngineBuilder, limits: Limits) -> Result<Self, Status> {
        let mut service = None;
        let engine = engine.start_with(|engine| {
            let begun = Arc::new(Service::begin(engine, limits));
            engine.add_service(KeyValueServer::from_arc(Arc::clone(&begun)));
            service = Some(begun);
        })?;
        let service = service.expect("an engine that has started was prepared");
        Ok(Self { engine, service })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Memory of all entries.
    pub fn memory_bytes(&self) -> u64 {
        self.service.budget.used()
    }

    /// How many keys each shard has.
    ///
    /// # Errors
    /// The engine has ended.
    pub async fn keys_by_shard(&self) -> Result<Vec<usize>, Status> {
        let count = |store: &RefCell<Store>| store.borrow().len();
        let push = |mut counts: Vec<usize>, count| {
            counts.push(count);
            counts
        };
        self.service
            .shards
            .map_reduce(count, Vec::new(), push)
            .await
    }

    /// Lets calls end, and stops.
    ///
    /// # Errors
    /// The engine had died.
    pub fn stop(self) -> Result<(), Status> {
        let ended = self.engine.shutdown(Duration::from_secs(10));
        ended.map_err(|error| Status::new(Code::Internal, error.to_string()))
    }
}

impl Service {
    fn begin(engine: &Engine, limits: Limits) -> Self {
        let budget = Arc::new(Budget::new(limits.memory_bytes_max));
        let of_shards = Arc::clone(&budget);
        let store = move |_shard| RefCell::new(Store::new(Arc::clone(&of_shards)));
        Self {
            shards: Sharded::begin(&engine.shards(), store),
            budget,
            limits,
            spread: RandomState::new(),
        }
    }

    /// Runs code on the shard that has this key: at once if this is it.
    async fn on_owner<R: Send + 'static>(
        &self,
        key: &[u8],
        code: impl FnOnce(&RefCell<Store>) -> R + Send + 'static,
    ) -> Result<R, Status> {
        let shards = self.shards.shards();
        let owner = (self.spread.hash_one(key) % shards.len() as u64) as usize;
        if shards.current() == Some(owner)
            && let Some(store) = self.shards.local()
        {
            return Ok(code(&store));
        }
        self.shards.invoke_on(owner, code).await
    }
}

impl KeyValue for Service {
    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetReply>, Status> {
        let GetRequest { key } = request.into_inner();
        check_key(&key)?;
        let wanted = key.clone();
        let found = self.on_owner(&key, move |store| store.borrow().get(&wanted));
        let value = found.await?.ok_or_else(|| {
            let text = format!("there is no key \"{}\"", shown(&key));
            Status::new(Code::NotFound, text)
        })?;
        Ok(Response::new(GetReply { value }))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutReply>, Status> {
        let PutRequest { key, value } = request.into_inner();
        check_key(&key)?;
        let max = self.limits.value_bytes_max;
        if value.len() > max {
            let text = format!("a value of {} bytes; at most {max} are taken", value.len());
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let owned = key.clone();
        let put = move |store: &RefCell<Store>| store.borrow_mut().put(&owned, &value);
        let replaced = self.on_owner(&key, put).await?.map_err(full)?;
        Ok(Response::new(PutReply { replaced }))
    }

    async fn delete(
        &self,
        request: Request<DeleteRequest>,
    ) -> Result<Response<DeleteReply>, Status> {
        let DeleteRequest { key } = request.into_inner();
        check_key(&key)?;
        let owned = key.clone();
        let delete = move |store: &RefCell<Store>| store.borrow_mut().delete(&owned);
        let deleted = self.on_owner(&key, delete).await?;
        Ok(Response::new(DeleteReply { deleted }))
    }

    type ScanStream = Pin<Box<dyn Stream<Item = Result<Entry, Status>> + Send>>;

    async fn scan(
        &self,
        request: Request<ScanRequest>,
    ) -> Result<Response<Self::ScanStream>, Status> {
        let ScanRequest { start, end, limit } = request.into_inner();
        // They stay for as long as the scan does, so they must not hold more than themselves.
        let [start, end] = [start, end].map(|key| Bytes::copy_from_slice(&key));
        if start.len().max(end.len()) > KEY_BYTES_MAX {
            let text = format!("a bound of a scan has at most {KEY_BYTES_MAX} bytes");
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let range = KeyRange::new(start, end).ok_or_else(|| {
            let text = "the end of a scan lies before its start";
            Status::new(Code::InvalidArgument, text)
        })?;
        let limit = match limit {
            0 => usize::MAX,
            limit => usize::try_from(limit).unwrap_or(usize::MAX),
        };
        let entries = Merge::new(self.shards.clone(), &range).entries();
        Ok(Response::new(Box::pin(entries.take(limit))))
    }
}

fn check_key(key: &[u8]) -> Result<(), Status> {
    if (1..=KEY_BYTES_MAX).contains(&key.len()) {
        return Ok(());
    }
    let text = format!("a key has 1 to {KEY_BYTES_MAX} bytes, not {}", key.len());
    Err(Status::new(Code::InvalidArgument, text))
}

fn full(Full { used, max }: Full) -> Status {
    let text = format!("{used} of {max} bytes are taken; delete keys, or give the server more");
    Status::new(Code::ResourceExhausted, text)
}

/// The begin of a key, for people.
fn shown(key: &[u8]) -> impl std::fmt::Display {
    key[..key.len().min(64)].escape_ascii()
}
