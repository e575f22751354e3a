use std::collections::BTreeSet;
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

use grpcxx_rpc::{Code, GraphCall, NamedTensors, Request, Response, Shape, Status, Tensor, Text};
use grpcxx_runtime::{Client, Function, Peer};

use super::link::settled_link;
use crate::model::{Fingerprint, ModelFingerprint};
use crate::store::{Remote, Stored, TransferLimits, Transferred, list, pull};

/// Name of the function by which a task pulls the whole model from the ps tasks, and keeps of each
/// tensor the fingerprint alone. Fetches, all scalars: `fingerprint` (string), `tensors`, `bytes`,
/// `calls` (int64), `seconds` (float64, from the first call to the last fingerprint), `driver`
/// (string, what moves bytes on the task's side), `link` (string, what carried them: `tcp`, `shm`
/// or `rdma`).
pub const MODEL_PULL: &str = "grpcxx.model.pull";

/// What a task says after it has pulled a model.
#[derive(Clone, Debug, PartialEq)]
pub struct PullReport {
    /// Of all tensors that came.
    pub fingerprint: ModelFingerprint,
    /// How much came, and how fast.
    pub transferred: Transferred,
    /// What moves bytes on the task's side.
    pub driver: String,
    /// What carried them, once for each medium: `tcp`, `shm` or `rdma`.
    pub link: String,
}

/// Asks the task at `peer` to pull the model from the ps tasks of its cluster.
///
/// # Errors
/// The call failed, or the answer makes no sense (`DATA_LOSS`).
pub fn pull_model(
    client: &Client,
    peer: &Peer,
    timeout: Option<Duration>,
) -> Result<PullReport, Status> {
    let call = GraphCall {
        graph_handle: Text::from(MODEL_PULL),
        fetches: FETCHES.iter().map(|fetch| Text::from(*fetch)).collect(),
        ..GraphCall::default()
    };
    let request = Request::StarRunGraph(Box::new(call));
    match client.call(peer, request, timeout).wait()? {
        Response::Fetched(values) => PullReport::from_values(&values),
        Response::Message(_) | Response::Tensors(_) | Response::Unary(_) => {
            Err(senseless("values"))
        }
    }
}

/// The function behind [`MODEL_PULL`].
pub(super) struct ModelPull {
    client: Client,
    sources: Vec<String>,
    driver: String,
    /// For tensors that come in one call.
    call_timeout: Duration,
    /// Held while a model is pulled.
    turn: Mutex<()>,
}

impl ModelPull {
    /// Pulls through `client` from the tasks at the star addresses `sources`.
    pub(super) fn new(client: Client, sources: Vec<String>, driver: String) -> Self {
        Self {
            client,
            sources,
            driver,
            call_timeout: CALL_TIMEOUT,
            turn: Mutex::new(()),
        }
    }

    fn pull(&self) -> Result<PullReport, Status> {
        let mut listed: Vec<(Peer, Stored)> = Vec::new();
        let mut media = BTreeSet::new();
        for source in &self.sources {
            let peer = self.client.peer(source)?;
            let stored = list(&self.client, &peer, Some(LIST_TIMEOUT))?;
            // The description came over TCP, on which each connection begins.
            if let Some(link) = settled_link(&self.client, &peer, LIST_TIMEOUT) {
                media.insert(link.medium.name());
            }
            listed.extend(stored.into_iter().map(|stored| (peer.clone(), stored)));
        }
        let remotes: Vec<Remote<'_>> = listed
            .iter()
            .map(|(peer, stored)| Remote {
                peer,
                name: &stored.name,
                meta: &stored.meta,
            })
            .collect();
        let limits = TransferLimits {
            timeout: Some(self.call_timeout),
            ..TransferLimits::default()
        };
        // All that is kept of a tensor: a model may be larger than the memory of this task.
        let mut fingerprints = Vec::with_capacity(remotes.len());
        let transferred = pull(&self.client, &remotes, &limits, |index, tensor| {
            let name = remotes[index].name;
            fingerprints.push((name, Fingerprint::of(name, &tensor)));
            Ok::<(), Status>(())
        })?;
        Ok(PullReport {
            fingerprint: ModelFingerprint::of(fingerprints),
            transferred,
            driver: self.driver.clone(),
            link: media.into_iter().collect::<Vec<_>>().join(", "),
        })
    }
}

impl Function for ModelPull {
    fn call(&self, call: GraphCall) -> Result<NamedTensors, Status> {
        if let Some(unknown) = call
            .fetches
            .iter()
            .find(|fetch| !FETCHES.contains(&fetch.as_str()))
        {
            return Err(Status::new(
                Code::InvalidArgument,
                format!(
                    "{MODEL_PULL} has no \"{unknown}\"; fetch {}",
                    FETCHES.join(", ")
                ),
            ));
        }
        // A second pull at the same time would need memory for as much under way once more.
        let _turn = match self.turn.try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                return Err(Status::new(
                    Code::ResourceExhausted,
                    "this task is pulling the model already; ask again later",
                ));
            }
        };
        let report = self.pull()?;
        call.fetches
            .into_iter()
            .map(|fetch| {
                let value = report.value(&fetch)?;
                Ok((fetch, value))
            })
            .collect()
    }
}

impl PullReport {
    fn value(&self, fetch: &str) -> Result<Tensor, Status> {
        let count = |number: u64| Tensor::scalar(i64::try_from(number).unwrap_or(i64::MAX));
        let text = |text: &str| Tensor::from_strings(Shape::SCALAR, [text.as_bytes()]);
        Ok(match fetch {
            "fingerprint" => text(&self.fingerprint.to_string())?,
            "tensors" => count(self.transferred.tensors as u64),
            "bytes" => count(self.transferred.bytes),
            "calls" => count(self.transferred.calls as u64),
            "seconds" => Tensor::scalar(self.transferred.elapsed.as_secs_f64()),
            "driver" => text(&self.driver)?,
            _ => text(&self.link)?,
        })
    }

    fn from_values(values: &[(Text, Tensor)]) -> Result<Self, Status> {
        let value = |wanted: &str| {
            values
                .iter()
                .find(|(name, _)| name == wanted)
                .map(|(_, tensor)| tensor)
                .ok_or_else(|| senseless(wanted))
        };
        let count = |wanted: &str| {
            let elements = value(wanted)?.elements::<i64>()?;
            let count = elements
                .first()
                .and_then(|count| u64::try_from(*count).ok());
            count.ok_or_else(|| senseless(wanted))
        };
        let text = |wanted: &str| {
            let strings = value(wanted)?.strings()?;
            let bytes = strings.first().ok_or_else(|| senseless(wanted))?;
            String::from_utf8(bytes.to_vec()).map_err(|_| senseless(wanted))
        };
        let seconds = value("seconds")?.elements::<f64>()?.first().copied();
        let elapsed = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Ok(Self {
            fingerprint: text("fingerprint")?
                .parse()
                .map_err(|_| senseless("fingerprint"))?,
            transferred: Transferred {
                tensors: count("tensors")? as usize,
                bytes: count("bytes")?,
                calls: count("calls")? as usize,
                elapsed: elapsed.ok_or_else(|| senseless("seconds"))?,
            },
            driver: text("driver")?,
            link: text("link")?,
        })
    }
}

fn senseless(what: &str) -> Status {
    Status::new(
        Code::DataLoss,
        format!(
            "the answer to {MODEL_PULL} has no readable {what}; is the peer of another version?"
        ),
    )
}

const FETCHES: [&str; 7] = [
    "fingerprint",
    "tensors",
    "bytes",
    "calls",
    "seconds",
    "driver",
    "link",
];
/// For the description of one store.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// For the tensors of one call: a peer that stands still does not hold up later pulls for ever.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use grpcxx_runtime::{Engine, Responder, STORE_PULL};

    use super::*;

    fn engine(job: &str, arena_bytes: usize) -> Engine {
        let builder = Engine::builder().task(job, 0).listen("127.0.0.1:0");
        let builder = builder.shared_memory(false).rdma(false).shards(1);
        builder.arena_bytes(arena_bytes).start().unwrap()
    }

    fn pull_of(ps: &Engine, worker: &Engine) -> ModelPull {
        let source = ps.local_addr().unwrap().to_string();
        ModelPull::new(worker.client(), vec![source], String::new())
    }

    #[test]
    fn a_model_may_be_larger_than_the_memory_of_who_pulls_it() {
        const TENSORS: usize = 128;
        let [ps, worker] = [("ps", 16 << 20), ("worker", 64 << 20)]
            .map(|(job, arena_bytes)| engine(job, arena_bytes));
        // All of them are the same memory, and come in a call each.
        let tensor = Tensor::vector(vec![7_u8; 1 << 20]);
        let name = |index| Text::from(format!("layer {index}"));
        let model = (0..TENSORS).map(|index| (name(index), tensor.clone()));
        ps.store_put(model.collect()).unwrap();
        let report = pull_of(&ps, &worker).pull().unwrap();
        assert_eq!(report.transferred.tensors, TENSORS);
        let names: Vec<String> = (0..TENSORS).map(|index| name(index).to_string()).collect();
        let expected = names
            .iter()
            .map(|name| (name.as_str(), Fingerprint::of(name, &tensor)));
        assert_eq!(report.fingerprint, ModelFingerprint::of(expected));
    }

    /// Keeps those waiting who call it.
    #[derive(Default)]
    struct Silent(Mutex<Vec<Responder>>);

    impl Function for Silent {
        fn call(&self, _: GraphCall) -> Result<NamedTensors, Status> {
            unreachable!("it is started")
        }

        fn start(&self, _: GraphCall, responder: Responder) {
            self.0.lock().unwrap().push(responder);
        }
    }

    #[test]
    fn a_peer_that_stands_still_ends_a_pull() {
        let [ps, worker] = ["ps", "worker"].map(|job| engine(job, 16 << 20));
        ps.store_put(vec![(Text::from("a"), Tensor::scalar(1_u8))])
            .unwrap();
        ps.register(STORE_PULL, Arc::new(Silent::default()));
        let pull = ModelPull {
            call_timeout: Duration::from_millis(200),
            ..pull_of(&ps, &worker)
        };
        let error = pull.pull().unwrap_err();
        assert_eq!(error.code, Code::DeadlineExceeded, "{error}");
    }

    #[test]
    fn reports_survive_the_wire() {
        let report = PullReport {
            fingerprint: ModelFingerprint::of([]),
            transferred: Transferred {
                tensors: 7,
                bytes: 1 << 40,
                calls: 2,
                elapsed: Duration::from_millis(1500),
            },
            driver: "io_uring".to_owned(),
            link: "shm".to_owned(),
        };
        let values: Vec<(Text, Tensor)> = FETCHES
            .iter()
            .map(|fetch| (Text::from(*fetch), report.value(fetch).unwrap()))
            .collect();
        assert_eq!(PullReport::from_values(&values).unwrap(), report);
        assert_eq!(
            PullReport::from_values(&values[1..]).unwrap_err().code,
            Code::DataLoss
        );
    }
}
