use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use grpcxx_rpc::{Code, GraphCall, KeyList, NamedTensors, Request, Response, Status, Tensor, Text};
use grpcxx_runtime::{
    AtOnce, Engine, EngineError, EngineOptions, Later, Served, Service, StartReport,
};

use super::payload::Payload;
use super::typed::Answers;
use super::typed::proto::TypedServer;
use super::wire::{self, Opening};
use super::{floor, usage};

/// The side of a bench that answers.
pub struct BenchServer {
    engine: Engine,
}

impl BenchServer {
    /// Starts an engine that serves benches. `options.listen` must be set; its service is replaced.
    ///
    /// # Errors
    /// What the engine could not have.
    pub fn start(mut options: EngineOptions) -> Result<Self, EngineError> {
        let sessions = Arc::new(Sessions::default());
        let listener = Arc::new(Mutex::new(None));
        let address = options
            .listen
            .map_or(IpAddr::from([127, 0, 0, 1]), |at| at.ip());
        options.service = Some(Arc::new(BenchService {
            sessions: Arc::clone(&sessions),
            push: Text::from(wire::PUSH),
            floor: Text::from(wire::FLOOR_SERVE),
            listener: Arc::clone(&listener),
        }));
        let engine = Engine::start(options)?;
        engine.add_service(TypedServer::new(Answers));
        let opened = Arc::clone(&sessions);
        engine.register(
            wire::OPEN,
            Arc::new(move |call: GraphCall| Ok(wire::result(opened.open(&call)?))),
        );
        engine.register(
            wire::CLOSE,
            Arc::new(move |call: GraphCall| {
                let number = wire::argument(&call)?.elements::<i64>()?.first().copied();
                Ok(wire::result(sessions.close(number.unwrap_or_default())))
            }),
        );
        engine.register_fn(wire::ECHO, |mut call: GraphCall| {
            let value = call.take_feed(wire::VALUE)?;
            Ok(vec![(Text::from(wire::VALUE), value)])
        });
        engine.register(
            wire::USAGE,
            Arc::new(|_: GraphCall| Ok(wire::result(usage::cpu_time().as_secs_f64()))),
        );
        engine.register(
            wire::FLOOR_PORT,
            Arc::new(move |_: GraphCall| Ok(wire::result(open_port(address, &listener)?))),
        );
        Ok(Self { engine })
    }

    /// Keeps the first shard from doing anything for so long.
    #[cfg(test)]
    pub(super) fn fall_silent(&self, duration: std::time::Duration) {
        let sleep = move |_: &mut grpcxx_runtime::ShardContext<'_>| std::thread::sleep(duration);
        self.engine.run_on(0, sleep).expect("the engine runs");
    }

    /// Requests that it has taken.
    #[cfg(test)]
    pub(super) fn requests(&self) -> u64 {
        self.engine.counters().requests
    }

    /// Where it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.engine.local_addr()
    }

    /// What was chosen at start.
    pub fn start_report(&self) -> &StartReport {
        self.engine.start_report()
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> u64 {
        self.engine.counters().accepted
    }

    /// Ends what is in flight within `grace`, then closes all connections.
    pub fn shutdown(self, grace: Duration) {
        if let Err(error) = self.engine.shutdown(grace) {
            tracing::error!(%error, "a shard had failed");
        }
    }
}

impl fmt::Debug for BenchServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BenchServer({})", self.engine.start_report())
    }
}

/// What clients have prepared, by number.
#[derive(Default)]
struct Sessions {
    open: ArcSwap<HashMap<i64, Arc<Session>, RandomState>>,
    last: Mutex<i64>,
}

/// Tensors that one client asks for or sends.
struct Session {
    payload: Payload,
    indices: HashMap<Text, usize, RandomState>,
    /// The tensors of the lists that were asked for lately, which come again with each step.
    lists: Mutex<Vec<(KeyList, List)>>,
    verify: bool,
}

/// The tensors of a list.
#[derive(Clone)]
enum List {
    Kept(Arc<[Tensor]>),
    /// By their indexes: each step serializes them anew.
    Serialized(Arc<[usize]>),
}

impl Sessions {
    fn open(&self, call: &GraphCall) -> Result<i64, Status> {
        let text = wire::text_of(wire::argument(call)?)?;
        let opening: Opening = serde_json::from_str(&text).map_err(|error| {
            Status::new(
                Code::InvalidArgument,
                format!(
                    "{}: {error}; use the same version of grpcxx on both sides",
                    wire::OPEN
                ),
            )
        })?;
        let spec = &opening.payload;
        spec.check()
            .map_err(|text| Status::new(Code::InvalidArgument, text))?;
        if self.open.load().len() >= SESSIONS_MAX {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("{SESSIONS_MAX} clients have a session; end some of them"),
            ));
        }
        let payload = if opening.needs_contents {
            Payload::new(spec)?
        } else {
            Payload::unknown(spec)
        };
        let session = Arc::new(Session {
            payload,
            indices: (0..spec.count)
                .map(|index| (wire::key(index), index))
                .collect(),
            lists: Mutex::default(),
            verify: opening.verify,
        });
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last += 1;
        let number = *last;
        self.open.rcu(|open| {
            let mut open = HashMap::clone(open);
            open.insert(number, Arc::clone(&session));
            open
        });
        Ok(number)
    }

    /// Returns how many sessions are left.
    fn close(&self, number: i64) -> i64 {
        self.open.rcu(|open| {
            let mut open = HashMap::clone(open);
            open.remove(&number);
            open
        });
        self.open.load().len() as i64
    }
}

impl Session {
    fn index(&self, key: &Text) -> Result<usize, Status> {
        self.indices.get(key).copied().ok_or_else(|| {
            Status::new(
                Code::NotFound,
                format!("no tensor of the bench has the key {key}"),
            )
        })
    }

    fn send_list(&self, keys: &KeyList) -> Served {
        match self.list(keys) {
            Ok(List::Kept(tensors)) => Served::Kept(tensors),
            Ok(List::Serialized(indices)) => {
                let tensors = indices.iter().map(|&index| self.payload.outgoing(index));
                Served::Now(tensors.collect::<Result<_, _>>().map(Response::Tensors))
            }
            Err(status) => Served::Now(Err(status)),
        }
    }

    /// The tensors of a list, which is known again if it is the very same.
    fn list(&self, keys: &KeyList) -> Result<List, Status> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, list)) = lists.iter().find(|(known, _)| known.is_same(keys)) {
            return Ok(list.clone());
        }
        let list = if self.payload.is_serialized() {
            let indices = keys.iter().map(|key| self.index(key));
            List::Serialized(indices.collect::<Result<_, _>>()?)
        } else {
            let tensors = keys.iter().map(|key| self.tensor(key));
            List::Kept(tensors.collect::<Result<_, _>>()?)
        };
        if lists.len() == LISTS_KNOWN {
            lists.remove(0);
        }
        lists.push((keys.clone(), list.clone()));
        Ok(list)
    }

    fn tensor(&self, key: &Text) -> Result<Tensor, Status> {
        self.payload.outgoing(self.index(key)?)
    }

    fn take(&self, call: &GraphCall) -> Result<Response, Status> {
        for (key, tensor) in &call.feeds {
            self.payload.accept(self.index(key)?, tensor, self.verify)?;
        }
        Ok(Response::Fetched(NamedTensors::new()))
    }
}

/// Answers the calls that are measured, on the shard that read them.
struct BenchService {
    sessions: Arc<Sessions>,
    push: Text,
    floor: Text,
    listener: Arc<Mutex<Option<TcpListener>>>,
}

impl BenchService {
    fn session(&self, number: i64) -> Option<Arc<Session>> {
        self.sessions.open.load().get(&number).cloned()
    }
}

impl Service for BenchService {
    fn serve(&self, request: Request, _later: Later<'_>) -> Served {
        match &request {
            Request::RecvTensor { step_id, key } => {
                if let Some(session) = self.session(*step_id) {
                    let tensor = session.tensor(key);
                    return Served::Now(tensor.map(Response::from));
                }
            }
            Request::FuseRecvTensor { step_id, keys } => {
                if let Some(session) = self.session(*step_id) {
                    return session.send_list(keys);
                }
            }
            Request::StarRunGraph(call) if call.graph_handle == self.push => {
                if let Some(session) = self.session(call.step_id as i64) {
                    return Served::Now(session.take(call));
                }
            }
            Request::StarRunGraph(call) if call.graph_handle == self.floor => {
                // Holding the shard is the purpose: plain sockets get the very thread that calls
                // get.
                let listener = self
                    .listener
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
                return Served::Now(
                    floor::serve(listener).map(|()| Response::Fetched(wire::result(0_i64).into())),
                );
            }
            _ => {}
        }
        Served::Declined(request)
    }

    fn at_once(&self, step_id: i64, key: &Text) -> AtOnce {
        match self.session(step_id).map(|session| session.tensor(key)) {
            Some(Ok(tensor)) => AtOnce::Tensor(tensor),
            // The long way says what is wrong.
            Some(Err(_)) | None => AtOnce::Ask,
        }
    }
}

/// Opens a port beside the star port.
fn open_port(address: IpAddr, slot: &Mutex<Option<TcpListener>>) -> Result<i64, Status> {
    let failed = |error: std::io::Error| {
        Status::new(
            Code::Unavailable,
            format!("cannot listen on {address} for plain sockets: {error}"),
        )
    };
    let listener = TcpListener::bind((address, 0)).map_err(failed)?;
    let port = listener.local_addr().map_err(failed)?.port();
    *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
    Ok(i64::from(port))
}

/// Lists of keys whose tensors a session remembers: twice those of a connection.
const LISTS_KNOWN: usize = 64;
/// Clients with a session at once.
const SESSIONS_MAX: usize = 1024;
