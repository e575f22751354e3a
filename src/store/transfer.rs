use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use grpcxx_fusion::{Plan, PlanLimits};
use grpcxx_rpc::{Code, GraphCall, Request, Response, Status, Tensor, TensorMeta, Text};
use grpcxx_runtime::{CallResult, Client, Peer, STORE_PULL, STORE_PUSH};

use super::staged::{Staged, at};

/// A tensor in the store of a peer, to be pulled from or pushed to it.
#[derive(Clone, Copy, Debug)]
pub struct Remote<'a> {
    /// The task.
    pub peer: &'a Peer,
    /// The tensor's name.
    pub name: &'a str,
    /// What the tensor is expected to be.
    pub meta: &'a TensorMeta,
}

/// How much is under way at once, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct TransferLimits {
    /// Most calls without an answer, over all peers.
    pub calls: usize,
    /// Most bytes of tensors in those calls; one call may exceed it alone.
    pub bytes: u64,
    /// For each call.
    pub timeout: Option<Duration>,
    /// Which tensors share a call.
    pub plan: PlanLimits,
}

/// What was moved.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Transferred {
    /// Number of tensors.
    pub tensors: usize,
    /// Bytes of their data.
    pub bytes: u64,
    /// Number of calls.
    pub calls: usize,
    /// From the first call to the last answer.
    pub elapsed: Duration,
}

/// Pulls tensors from the stores of their peers, several calls at once, small tensors together in
/// one call. `take` gets each with its index in `remotes`, in the order in which they arrive.
///
/// # Errors
/// The first that happens: a call failed, a tensor differs from its description (`ABORTED`), or
/// what `take` returned. The calls under way are cancelled then.
pub fn pull<E: From<Status>>(
    client: &Client,
    remotes: &[Remote<'_>],
    limits: &TransferLimits,
    mut take: impl FnMut(usize, Tensor) -> Result<(), E>,
) -> Result<Transferred, E> {
    let batches = batches(remotes, limits)?;
    let request = |batch: &Batch| {
        Ok(Request::StarRunGraph(Box::new(GraphCall {
            fetches: batch
                .tensors
                .iter()
                .map(|index| Text::from(remotes[*index].name))
                .collect(),
            ..GraphCall::new(STORE_PULL)
        })))
    };
    run(
        client,
        remotes,
        batches,
        limits,
        request,
        |batch, response| {
            let Response::Fetched(tensors) = response else {
                return Err(
                    Status::new(Code::Internal, "a pull was answered without tensors").into(),
                );
            };
            let by_name: HashMap<&str, usize> = batch
                .tensors
                .iter()
                .map(|index| (remotes[*index].name, *index))
                .collect();
            for (name, tensor) in tensors {
                let index = by_name
                    .get(name.as_str())
                    .copied()
                    .filter(|index| tensor.meta() == *remotes[*index].meta);
                match index {
                    Some(index) => take(index, tensor)?,
                    None => return Err(changed(&name, &tensor).into()),
                }
            }
            Ok(())
        },
    )
}

/// Pushes tensors into the stores of their peers, several calls at once, small tensors together in
/// one call. `load` gives each by its index in `remotes` when its turn comes.
///
/// What takes more than one call is staged at its peers first. Once all of them have all, each
/// makes its tensors visible at once; for the time of these last calls some peers show what is new
/// and others what was before. A peer of a version before staged pushes shows the tensors of each
/// call by themselves, and the log names it.
///
/// # Errors
/// The first that happens: a call failed, or what `load` returned. The calls under way are
/// cancelled then, and no peer that stages shows anything of the push. Only if the last call of a
/// peer fails may others show theirs; the text says so.
pub fn push<E: From<Status>>(
    client: &Client,
    remotes: &[Remote<'_>],
    limits: &TransferLimits,
    mut load: impl FnMut(usize) -> Result<Tensor, E>,
    mut pushed: impl FnMut(u64),
) -> Result<Transferred, E> {
    let batches = batches(remotes, limits)?;
    let staged = match batches.len() > 1 {
        true => {
            let mut indices: Vec<usize> = batches.iter().map(|batch| batch.at).collect();
            indices.sort_unstable();
            indices.dedup();
            let peers = indices.iter().map(|index| remotes[*index].peer);
            Some(Staged::begin(client, peers, limits.timeout)?)
        }
        false => None,
    };
    let started = Instant::now();
    let request = |batch: &Batch| -> Result<Request, E> {
        let mut feeds = Vec::with_capacity(batch.tensors.len());
        for index in &batch.tensors {
            feeds.push((Text::from(remotes[*index].name), load(*index)?));
        }
        let feeds = match &staged {
            Some(staged) => match staged.stage(remotes[batch.at].peer, feeds) {
                Ok(request) => return Ok(request),
                Err(feeds) => feeds,
            },
            None => feeds,
        };
        Ok(Request::StarRunGraph(Box::new(GraphCall {
            feeds: feeds.into(),
            ..GraphCall::new(STORE_PUSH)
        })))
    };
    let finish = |batch: &Batch, _| {
        pushed(batch.bytes);
        Ok(())
    };
    let mut transferred = run(client, remotes, batches, limits, request, finish)?;
    if let Some(staged) = staged {
        staged.commit()?;
        transferred.elapsed = started.elapsed();
    }
    Ok(transferred)
}

/// Tensors of one peer that share a call.
#[derive(Debug, PartialEq, Eq)]
struct Batch {
    /// Whose peer gets it.
    at: usize,
    tensors: Vec<usize>,
    bytes: u64,
}

/// Plans the calls for each peer, and takes turns among the peers.
fn batches(remotes: &[Remote<'_>], limits: &TransferLimits) -> Result<Vec<Batch>, Status> {
    let mut peers: Vec<(&str, Vec<usize>)> = Vec::new();
    for (index, remote) in remotes.iter().enumerate() {
        let address = remote.peer.address();
        match peers.iter_mut().find(|(known, _)| *known == address) {
            Some((_, indices)) => indices.push(index),
            None => peers.push((address, vec![index])),
        }
    }
    let mut queues = Vec::with_capacity(peers.len());
    let mut plan = Plan::new();
    for (_, indices) in &peers {
        let sizes = indices.iter().map(|index| remotes[*index].meta.data_bytes);
        plan.fill(sizes, &limits.plan).map_err(|error| {
            let name = remotes[indices[error.index]].name;
            Status::new(
                Code::ResourceExhausted,
                format!(
                    "tensor {name:?} has {} bytes, and one call takes {} at most; split the tensor",
                    error.data_bytes, error.allowed_bytes
                ),
            )
        })?;
        let batches: Vec<Batch> = plan
            .groups()
            .map(|group| Batch {
                at: indices[0],
                tensors: group
                    .tensors()
                    .map(|tensor| indices[tensor.index])
                    .collect(),
                bytes: group.tensors().map(|tensor| tensor.data_bytes).sum(),
            })
            .collect();
        queues.push(batches.into_iter());
    }
    let mut turns = Vec::new();
    loop {
        let before = turns.len();
        turns.extend(queues.iter_mut().filter_map(Iterator::next));
        if turns.len() == before {
            return Ok(turns);
        }
    }
}

/// Makes one call for each batch, as many at once as `limits` allow.
fn run<E: From<Status>>(
    client: &Client,
    remotes: &[Remote<'_>],
    batches: Vec<Batch>,
    limits: &TransferLimits,
    mut request: impl FnMut(&Batch) -> Result<Request, E>,
    mut finish: impl FnMut(&Batch, Response) -> Result<(), E>,
) -> Result<Transferred, E> {
    let started = Instant::now();
    let mut transferred = Transferred::default();
    let mut waiting = batches.into_iter().peekable();
    let mut under_way = FuturesUnordered::new();
    let mut under_way_bytes = 0;
    futures_executor::block_on(async {
        loop {
            while let Some(batch) = waiting.next_if(|batch| {
                under_way.is_empty()
                    || (under_way.len() < limits.calls
                        && batch.bytes <= limits.bytes.saturating_sub(under_way_bytes))
            }) {
                let peer = remotes[batch.at].peer;
                let call = client.call(peer, request(&batch)?, limits.timeout);
                under_way_bytes += batch.bytes;
                under_way.push(async move {
                    let result: CallResult = call.await;
                    (batch, result)
                });
            }
            let Some((batch, result)) = under_way.next().await else {
                break;
            };
            let response = result.map_err(|status| at(remotes[batch.at].peer, status))?;
            under_way_bytes -= batch.bytes;
            transferred.calls += 1;
            transferred.tensors += batch.tensors.len();
            transferred.bytes += batch.bytes;
            finish(&batch, response)?;
        }
        transferred.elapsed = started.elapsed();
        Ok(transferred)
    })
}

impl Transferred {
    /// Decimal gigabytes per second.
    pub fn gigabytes_per_second(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

impl Default for TransferLimits {
    fn default() -> Self {
        Self {
            calls: CALLS,
            bytes: BYTES,
            timeout: None,
            // Each call of a function has a frame of its own, however small.
            plan: PlanLimits {
                shared_tensors_min: 2,
                ..PlanLimits::between_grpcxx()
            },
        }
    }
}

fn changed(name: &str, tensor: &Tensor) -> Status {
    Status::new(
        Code::Aborted,
        format!(
            "tensor {name:?} came as {} of shape {}, which is not what the store had listed; it was replaced meanwhile, try again",
            tensor.dtype, tensor.shape
        ),
    )
}

/// Enough to keep a few peers busy while answers are taken.
const CALLS: usize = 16;
/// A few of the largest tensors of common models.
const BYTES: u64 = 256 << 20;
