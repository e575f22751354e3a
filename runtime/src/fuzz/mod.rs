//! What a fuzzer does with a shard that several clients use at the same time. Only tests and
//! fuzzers have this module.

mod stranger;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use grpcxx_rpc::{
    Account, Code, ConnectionLimits, DType, GraphCall, Method, RendezvousKey, RendezvousLimits,
    Request, Response, Shape, Status, Tensor, Text,
};
use grpcxx_transport::Time;
use grpcxx_transport::sim::{SimNetwork, SimOptions};

use self::stranger::Stranger;
use crate::STORE_LIST;
use crate::alone::{Alone, INCARNATION, Start};
use crate::call::Call;
use crate::client::Peer;
use crate::cluster::TaskId;
use crate::command::Command;
use crate::compute::{Compute, Job};
use crate::shard::Audit;

/// Runs the operations that the bytes stand for: two to four clients and a stranger who sends any
/// bytes use one shard, over links that fail when they are told to. Each call ends once, a tensor
/// is handed out at most once and with the bytes that it was made of, the shard never holds more
/// than it was asked to, and nothing when all is over.
///
/// # Panics
/// If one of these promises is broken.
pub fn shard_clients(data: &[u8]) {
    let Some((&clients, data)) = data.split_first() else {
        return;
    };
    let mut world = World::new(2 + usize::from(clients) % 3);
    let mut bytes = data.iter().copied();
    while let (Some(operation), Some(argument)) = (bytes.next(), bytes.next()) {
        world.step(operation, argument, &mut bytes);
        world.turn();
        world.check();
    }
    world.end();
}

/// A tensor: its step and its key.
type Place = (i64, u8);

/// A call whose result has not been seen.
struct OpenCall {
    client: usize,
    /// The tensors that it asks for.
    wanted: Vec<Place>,
    call: Call,
}

struct World {
    network: SimNetwork,
    server: Alone,
    clients: Vec<Alone>,
    peers: Vec<Peer>,
    jobs: Arc<Jobs>,
    stranger: Stranger,
    now: Time,
    calls: Vec<OpenCall>,
    /// Calls that were made, and whose results have not come or were given up.
    asked: usize,
    /// Keys of all calls that were ever made.
    asked_keys: usize,
    /// Tensors that were sent and nobody has, by the number in their first byte.
    offered: BTreeMap<Place, Vec<u8>>,
    made: u8,
    /// Whether nothing has happened that a tensor or a call may be lost by.
    is_calm: bool,
}

impl World {
    fn new(clients: usize) -> Self {
        let network = SimNetwork::new(SimOptions::reliable(1));
        let jobs = Arc::new(Jobs::default());
        let start = |index: u32| {
            let start = Start {
                index,
                address: address(index),
                service: None,
                compute: Arc::clone(&jobs) as Arc<dyn Compute>,
                links: LINKS_MAX,
                connection_limits: ConnectionLimits::default().with(|limits| {
                    limits.whole_frame_bytes = 4000;
                    limits.chunk_bytes = 2500;
                }),
                rendezvous_limits: RendezvousLimits::default().with(|limits| {
                    limits.waiters = WAITERS_MAX;
                    limits.stored_bytes = STORED_BYTES_MAX;
                    limits.closed_steps = 4;
                }),
                arena_bytes: ARENA_BYTES,
            };
            Alone::start(&network, start)
        };
        let server = start(0);
        let clients: Vec<Alone> = (1..=clients as u32).map(start).collect();
        let peer = |client: &Alone| client.client.peer(&address(0).to_string());
        let peers = clients
            .iter()
            .map(|client| peer(client).expect("host:port"));
        Self {
            peers: peers.collect(),
            stranger: Stranger::new(&network, host(STRANGER), address(0)),
            network,
            server,
            clients,
            jobs,
            now: Time::ZERO,
            calls: Vec::new(),
            asked: 0,
            asked_keys: 0,
            offered: BTreeMap::new(),
            made: 0,
            is_calm: true,
        }
    }

    fn step(&mut self, operation: u8, argument: u8, bytes: &mut impl Iterator<Item = u8>) {
        let client = usize::from(argument) % self.clients.len();
        let step = i64::from(argument >> 2 & 3);
        let key = argument >> 4;
        match operation % 16 {
            0 => self.receive(client, step, &[key], None),
            1 => self.receive(client, step, &[key, key ^ 1, key ^ 2], None),
            2 => self.offer(step, key, bytes.next().unwrap_or(0)),
            3 => self.give_up(argument),
            4 => self.pass(Duration::from_micros(u64::from(argument))),
            5 => self.pass(Duration::from_millis(u64::from(argument) * 50)),
            6 => {
                let status = Status::new(Code::Aborted, "the step is over");
                let origin = None;
                self.command(Command::Abort {
                    step_id: step,
                    status,
                    origin,
                });
            }
            7 => self.ask(client, Method::CleanupGraph, &[0x08, step as u8]),
            8 => self.ask(client, Method::GetStatus, &[]),
            9 => {
                self.is_calm = false;
                self.clients[client].client.disconnect(&self.peers[client]);
            }
            10 => {
                self.is_calm = false;
                self.network.partition(host(0), host(client as u32 + 1));
            }
            11 => self.network.heal_all(),
            12 => {
                self.is_calm = false;
                let sent = bytes.take(usize::from(argument)).collect();
                self.stranger.send(sent);
            }
            13 => {
                let timeout = Duration::from_millis(u64::from(argument & 15));
                self.is_calm = false;
                self.receive(client, step, &[key], Some(timeout));
            }
            14 => self.list(client, step, argument),
            _ => self.stranger.leave(),
        }
    }

    fn call(
        &mut self,
        client: usize,
        request: Request,
        wanted: Vec<Place>,
        timeout: Option<Duration>,
    ) {
        let peer = &self.peers[client];
        let call = self.clients[client].client.call(peer, request, timeout);
        self.asked += 1;
        self.asked_keys += wanted.len();
        self.calls.push(OpenCall {
            client,
            wanted,
            call,
        });
    }

    fn receive(&mut self, client: usize, step_id: i64, keys: &[u8], timeout: Option<Duration>) {
        let wanted = keys.iter().map(|&key| (step_id, key)).collect();
        let request = match keys {
            [key] => Request::RecvTensor {
                step_id,
                key: text(*key),
            },
            keys => {
                let keys: Vec<Text> = keys.iter().map(|&key| text(key)).collect();
                Request::FuseRecvTensor {
                    step_id,
                    keys: keys.into(),
                }
            }
        };
        self.call(client, request, wanted, timeout);
    }

    fn ask(&mut self, client: usize, method: Method, body: &[u8]) {
        self.is_calm &= method == Method::GetStatus;
        let body = body.to_vec().into();
        self.call(client, Request::Message { method, body }, Vec::new(), None);
    }

    /// Calls a function, in one of four cases as one of several calls of a step.
    fn list(&mut self, client: usize, step_id: i64, argument: u8) {
        let mut call = GraphCall::new(STORE_LIST).with_step(step_id as u64);
        if argument >> 6 == 3 {
            self.is_calm = false;
            call.ps_graph_count = 2;
        }
        self.call(
            client,
            Request::StarRunGraph(Box::new(call)),
            Vec::new(),
            None,
        );
    }

    /// Puts a tensor into a step of the server. Its length follows from `size`.
    fn offer(&mut self, step_id: i64, key: u8, size: u8) {
        let entry = self.offered.entry((step_id, key)).or_default();
        if !entry.is_empty() {
            // A second tensor of the same name is the producer's fault, and fails the step.
            self.is_calm = false;
        }
        self.made = self.made.wrapping_add(1);
        entry.push(self.made);
        let tensor = tensor(self.made, size);
        let key = text(key);
        self.command(Command::Send {
            step_id,
            key,
            tensor,
            origin: None,
        });
    }

    fn command(&mut self, command: Command) {
        self.is_calm &= matches!(command, Command::Send { .. });
        self.server.mailboxes.deliver(0, command);
    }

    fn give_up(&mut self, argument: u8) {
        if !self.calls.is_empty() {
            self.is_calm = false;
            let place = usize::from(argument) % self.calls.len();
            drop(self.calls.swap_remove(place));
        }
    }

    /// Lets time go by, turning everybody whenever something is due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.settle();
            let Some(next) = self.next_event_at().filter(|&next| next < end) else {
                break;
            };
            self.now = next.max(self.now + TICK);
        }
        self.now = end;
        self.settle();
    }

    /// Turns everybody until nothing happens any more.
    fn settle(&mut self) {
        for _ in 0..TURNS_MAX {
            let events = self.turn();
            self.check();
            if events == 0 {
                return;
            }
        }
        panic!("{TURNS_MAX} turns, and something still happens");
    }

    fn next_event_at(&self) -> Option<Time> {
        let of_shard = |alone: &Alone| {
            let transport = alone.shard.transport().next_event_at();
            let due = [alone.shard.next_timeout(), transport]
                .into_iter()
                .flatten();
            due.min()
        };
        let shards = self.everybody().filter(|alone| !alone.shard.is_finished());
        let due = shards.filter_map(of_shard);
        due.chain(self.network.next_event_at())
            .chain(self.stranger.next_event_at())
            .min()
    }

    fn everybody(&self) -> impl Iterator<Item = &Alone> {
        std::iter::once(&self.server).chain(&self.clients)
    }

    /// One turn of everybody. Returns how much happened.
    fn turn(&mut self) -> usize {
        self.network.advance(self.now);
        let mut events = self.stranger.turn(self.now);
        for alone in std::iter::once(&mut self.server).chain(&mut self.clients) {
            if !alone.shard.is_finished() {
                events += alone.shard.turn(self.now);
            }
        }
        events + self.jobs.run()
    }

    /// What is true after each turn.
    fn check(&mut self) {
        self.poll_calls();
        let audit = self.server.shard.audit();
        let offered: usize = self.offered.values().map(Vec::len).sum();
        assert!(
            audit.stored_bytes <= offered as u64 * TENSOR_BYTES_MAX as u64,
            "{audit:?}"
        );
        assert!(audit.links <= LINKS_MAX, "{audit:?}");
        assert!(audit.waiters <= WAITERS_MAX, "{audit:?}");
        assert!(audit.arena_bytes <= ARENA_BYTES, "{audit:?}");
        assert_eq!(audit.calls, 0, "nobody calls from here: {audit:?}");
        if !self.stranger.has_sent() {
            assert!(audit.requests <= self.asked, "{audit:?}");
            assert!(audit.waiters <= self.asked_keys, "{audit:?}");
        }
        for (index, client) in self.clients.iter().enumerate() {
            let audit = client.shard.audit();
            let open = self.calls.iter().filter(|call| call.client == index);
            assert!(audit.calls <= self.asked, "client {index}: {audit:?}");
            assert_eq!(audit.waiters, 0, "client {index}: {audit:?}");
            assert!(open.count() <= self.asked);
        }
    }

    fn poll_calls(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        let (offered, is_calm) = (&mut self.offered, self.is_calm);
        let mut open_calls = vec![0; self.clients.len()];
        for call in &self.calls {
            open_calls[call.client] += 1;
        }
        let polled = |open: &mut OpenCall| match Pin::new(&mut open.call).poll(&mut context) {
            Poll::Pending => true,
            Poll::Ready(Ok(Response::Tensors(tensors))) => {
                assert_eq!(tensors.len(), open.wanted.len(), "one for each key");
                for (place, tensor) in open.wanted.iter().zip(&tensors) {
                    take(offered, *place, tensor);
                }
                false
            }
            Poll::Ready(Ok(_)) => false,
            Poll::Ready(Err(status)) => {
                let is_refused = open_calls[open.client] > CONNECTION_WAITERS_MAX
                    && status.code == Code::ResourceExhausted;
                assert!(
                    !is_calm || is_refused,
                    "nothing has happened, and a call fails: {status}"
                );
                false
            }
        };
        self.calls.retain_mut(polled);
    }

    /// Everything ends, and leaves nothing behind.
    fn end(mut self) {
        self.network.heal_all();
        self.pass(SETTLING);
        if self.is_calm {
            let is_there =
                |place: &Place| self.offered.get(place).is_some_and(|made| !made.is_empty());
            let served = |open: &OpenCall| open.wanted.iter().all(is_there);
            assert!(
                !self.calls.iter().any(served),
                "a call waits for what is there"
            );
        }
        self.is_calm = false;
        self.stranger.leave();
        self.calls.clear();
        let status = Status::new(Code::OutOfRange, "End of sequence");
        self.command(Command::AbortAll { status });
        self.pass(PATIENCE);
        let audit = self.server.shard.audit();
        let expected = Audit {
            // Who has not come back may still count calls, and connections stay.
            unfinished_steps: audit.unfinished_steps,
            links: audit.links,
            arena_bytes: audit.arena_bytes,
            ..Audit::default()
        };
        assert_eq!(audit, expected, "all is over");
        for alone in self.everybody() {
            let grace = Duration::from_secs(1);
            alone.mailboxes.deliver(0, Command::Stop { grace });
        }
        self.pass(PATIENCE);
        for alone in std::iter::once(self.server).chain(self.clients) {
            assert!(alone.shard.is_finished(), "{:?}", alone.shard.audit());
            let mut arena = alone.shard.into_arena();
            arena.reclaim();
            assert_eq!(arena.statistics().in_use_bytes, 0, "memory is left over");
        }
    }
}

/// Takes a tensor that was handed out from those that were offered.
fn take(offered: &mut BTreeMap<Place, Vec<u8>>, place: Place, tensor: &Tensor) {
    let data = &tensor.data;
    let number = data[0];
    let made = offered.get_mut(&place).expect("a tensor was sent");
    let at = made.iter().position(|&made| made == number);
    made.swap_remove(at.expect("a tensor is handed out once"));
    assert!(
        data.iter().all(|&byte| byte == number),
        "the bytes are those sent"
    );
}

fn tensor(number: u8, size: u8) -> Tensor {
    let len = [1, 64, 1024, 1500, 9000, TENSOR_BYTES_MAX][usize::from(size) % 6];
    let shape = Shape::new(&[len as u64]).expect("a short shape");
    Tensor::new(DType::UInt8, shape, vec![number; len]).expect("as many bytes as its shape says")
}

fn text(key: u8) -> Text {
    let device = TaskId::new("sim", 0).device("CPU", 0);
    RendezvousKey::new(&device, INCARNATION, &device, &format!("edge_{key}"))
        .expect("device and edge are fine")
        .to_text()
}

/// Jobs of functions, which run between turns.
#[derive(Default)]
struct Jobs(Mutex<Vec<Job>>);

impl Jobs {
    /// Runs all jobs and returns their number.
    fn run(&self) -> usize {
        let jobs = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let count = jobs.len();
        for job in jobs {
            job.run();
        }
        count
    }
}

impl Compute for Jobs {
    fn spawn(&self, _peer: Account, job: Job) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(job);
    }
}

fn host(index: u32) -> IpAddr {
    Ipv4Addr::new(10, 0, 0, index as u8 + 1).into()
}

fn address(index: u32) -> SocketAddr {
    SocketAddr::new(host(index), 7000)
}

const STRANGER: u32 = 200;
const LINKS_MAX: usize = 16;
const WAITERS_MAX: usize = 64;
/// A peer has half of the places to wait, and one of its connections half of that.
const CONNECTION_WAITERS_MAX: usize = WAITERS_MAX / 4;
const STORED_BYTES_MAX: u64 = 1 << 20;
const ARENA_BYTES: usize = 4 << 20;
const TENSOR_BYTES_MAX: usize = 40_000;
/// Least time between two turns.
const TICK: Duration = Duration::from_micros(10);
/// Most turns in which something happens before time has to go by.
const TURNS_MAX: usize = 10_000;
/// Enough for what was asked to be answered.
const SETTLING: Duration = Duration::from_secs(3);
/// Enough for everything to end that must.
const PATIENCE: Duration = Duration::from_secs(90);

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::shard_clients;

    #[test]
    fn the_corpus_of_the_fuzzer_holds() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/shard_clients");
        let inputs = std::fs::read_dir(&folder).unwrap().map(|entry| {
            let path = entry.unwrap().path();
            shard_clients(&std::fs::read(path).unwrap());
        });
        assert!(inputs.count() > 0, "{} is empty", folder.display());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn any_operations_of_several_clients_keep_the_promises_of_a_shard(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
        ) {
            shard_clients(&bytes);
        }
    }
}
