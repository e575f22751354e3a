//! What becomes of an engine in whose shard code panics: nobody waits for ever, and all are told.

use std::net::SocketAddr;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use grpcxx_rpc::{
    Code, GraphCall, Method, NamedTensors, Reason, RendezvousKey, Request, Response, Shape, Status,
    Tensor, Text,
};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::host::{HostChoice, HostError, HostSetting};
use grpcxx_runtime::{
    Call, CallResult, CallSpec, CompletionHandler, Engine, EngineOptions, Function, Peer,
    Responder, ShardContext,
};

/// Tells how its calls end.
struct Ends(Mutex<Sender<(u64, CallResult)>>);

impl CompletionHandler for Ends {
    fn on_complete(self: Arc<Self>, token: u64, result: CallResult, _: &mut ShardContext<'_>) {
        let sender = self.0.lock().unwrap();
        sender.send((token, result)).expect("the test listens");
    }
}

/// Panics with the result.
struct Bad;

impl CompletionHandler for Bad {
    fn on_complete(self: Arc<Self>, _: u64, _: CallResult, _: &mut ShardContext<'_>) {
        panic!("a bad handler");
    }
}

/// Panics before it has answered.
struct BadStart;

impl Function for BadStart {
    fn call(&self, _: GraphCall) -> Result<NamedTensors, Status> {
        Ok(NamedTensors::new())
    }

    fn start(&self, _: GraphCall, _: Responder) {
        panic!("a bad start");
    }
}

fn options(job: &str, shards: usize, host: HostSetting) -> EngineOptions {
    EngineOptions::default().with(|options| {
        options.task = TaskId::new(job, 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.shards = shards;
        options.host = host;
    })
}

fn hosts() -> Vec<HostSetting> {
    let all = [HostSetting::Native, HostSetting::Glommio];
    let hosts = all
        .into_iter()
        .filter(|&host| HostChoice::choose(host).is_ok());
    hosts.collect()
}

fn start(job: &str, shards: usize, host: HostSetting) -> Engine {
    Engine::start(options(job, shards, host)).unwrap()
}

fn key(engine: &Engine) -> Text {
    RendezvousKey::new(
        &engine.device_attributes().name,
        engine.incarnation(),
        "/job:worker/replica:0/task:0/device:CPU:0",
        "edge",
    )
    .unwrap()
    .to_text()
}

fn receive(engine: &Engine, step_id: i64) -> Request {
    let key = key(engine);
    Request::RecvTensor { step_id, key }
}

/// A peer on each of two shards, connected.
fn peers(server: &Engine, worker: &Engine) -> [Peer; 2] {
    let client = worker.client();
    let address = server.local_addr().unwrap().to_string();
    [0, 1].map(|connection| {
        let peer = client.peer_over(&address, connection).unwrap();
        let request = Request::Message {
            method: Method::GetStatus,
            body: Vec::new().into(),
        };
        ended(client.call(&peer, request, None)).unwrap();
        peer
    })
}

/// The end of a call, which must come soon.
#[expect(
    clippy::result_large_err,
    reason = "a channel gives back what nobody takes"
)]
fn ended(call: Call) -> CallResult {
    let (sender, ends) = channel();
    thread::spawn(move || sender.send(call.wait()));
    ends.recv_timeout(PATIENCE).expect("the call hangs")
}

fn assert_died(status: &Status) {
    assert_eq!(
        (status.code, status.reason),
        (Code::Internal, Reason::ShardDied),
        "{status}"
    );
    assert!(status.message.contains("grpcxx-1"), "{status}");
}

fn spawn_bad_future(engine: &Engine) {
    let spawner = engine.spawner(1).unwrap();
    spawner
        .spawn_local(|| async { panic!("a bad future") })
        .unwrap();
}

/// Fails each call under way and each later one, whichever shard has it.
#[test]
fn all_calls_of_an_engine_end_with_a_dead_shard() {
    for host in hosts() {
        let server = start("ps", 2, host);
        let worker = start("worker", 2, host);
        let client = worker.client();
        let peers = peers(&server, &worker);
        let (sender, handler_ends) = channel();
        let handler: Arc<dyn CompletionHandler> = Arc::new(Ends(Mutex::new(sender)));
        let mut calls = Vec::new();
        for (number, peer) in peers.iter().enumerate() {
            let token = number as u64;
            let spec = CallSpec::new(peer, receive(&server, 7));
            let begun = client.submit(spec, handler.clone(), token);
            begun.unwrap();
            calls.push(client.call(peer, receive(&server, 8), None));
            let deadline = Some(Duration::from_secs(600));
            calls.push(client.call(peer, receive(&server, 9), deadline));
        }
        // From one shard by way of the other, and in steps of both.
        for (shard, peer) in peers.iter().rev().cloned().enumerate() {
            let (handler, request) = (handler.clone(), receive(&server, 10));
            let order = move |shard: &mut ShardContext<'_>| {
                let token = 2 + shard.index() as u64;
                shard.submit(CallSpec::new(&peer, request), handler, token);
            };
            worker.run_on(shard, order).unwrap();
        }
        calls.extend((0..16).map(|step| worker.receive(step, vec![key(&worker)], None)));
        thread::sleep(Duration::from_millis(50));

        let (witness, witnessed) = channel();
        worker.on_death(move |error| witness.send(error.clone()).unwrap());
        spawn_bad_future(&worker);
        let error = witnessed.recv_timeout(PATIENCE).expect("nobody is told");
        assert_eq!(
            error.to_string(),
            "shard `grpcxx-1` panicked in a future that was spawned on it: a bad future"
        );
        for call in calls {
            assert_died(&ended(call).unwrap_err());
        }
        let mut tokens: Vec<u64> = (0..4)
            .map(|_| {
                let (token, result) = handler_ends.recv_timeout(PATIENCE).expect("a call hangs");
                assert_died(&result.unwrap_err());
                token
            })
            .collect();
        tokens.sort_unstable();
        assert_eq!(tokens, [0, 1, 2, 3]);

        for peer in &peers {
            let later = client.call(peer, receive(&server, 11), None);
            assert_died(&ended(later).unwrap_err());
            let spec = CallSpec::new(peer, receive(&server, 11));
            let refused = client.submit(spec, handler.clone(), 9).unwrap_err();
            assert_died(&refused.status);
        }
        assert_died(&client.ended().unwrap());
        for step in 0..4 {
            let tensor = Tensor::from_slice(Shape::new(&[1]).unwrap(), &[1.0_f32]).unwrap();
            assert_died(&worker.send(step, key(&worker), tensor).unwrap_err());
            assert_died(&worker.cleanup_step(step).unwrap_err());
            let status = Status::new(Code::Aborted, "over");
            assert_died(&worker.abort_step(step, status).unwrap_err());
            let later = worker.receive(step, vec![key(&worker)], None);
            assert_died(&ended(later).unwrap_err());
        }
        for shard in 0..2 {
            assert_died(&worker.run_on(shard, |_| ()).unwrap_err());
        }
        let begin = Instant::now();
        let failure = worker.shutdown(Duration::from_secs(600)).unwrap_err();
        assert_eq!(failure, error);
        assert!(begin.elapsed() < PATIENCE);
        drop(handler);
        assert!(
            handler_ends.recv_timeout(PATIENCE).is_err(),
            "a call ended twice"
        );
        server.shutdown(Duration::ZERO).unwrap();
    }
}

#[test]
fn peers_of_a_dead_engine_lose_their_connections_or_are_answered() {
    for host in hosts() {
        let server = start("ps", 2, host);
        let worker = start("worker", 2, host);
        let client = worker.client();
        let peers = peers(&server, &worker);
        let calls: Vec<Call> = (0..16)
            .map(|step| client.call(&peers[step as usize % 2], receive(&server, step), None))
            .collect();
        thread::sleep(Duration::from_millis(50));
        let (witness, witnessed) = channel();
        server.on_death(move |error| witness.send(error.to_string()).unwrap());
        let own = server.own_peer(0);
        let order = move |shard: &mut ShardContext<'_>| {
            let request = Request::Message {
                method: Method::GetStatus,
                body: Vec::new().into(),
            };
            shard.submit(CallSpec::new(&own, request), Arc::new(Bad), 0);
        };
        server.run_on(1, order).unwrap();
        let error = witnessed.recv_timeout(PATIENCE).expect("nobody is told");
        assert!(
            error.contains("panicked in the completion handler of a call: a bad handler"),
            "{error}"
        );
        for call in calls {
            let status = ended(call).unwrap_err();
            assert_eq!(status.code, Code::Unavailable, "{status}");
            let is_told = status.reason == Reason::Peer && status.message.contains("has failed");
            assert!(
                is_told || status.reason == Reason::ConnectionLost,
                "{status:?}"
            );
        }
        assert!(client.ended().is_none());
        drop(server);
        worker.shutdown(Duration::ZERO).unwrap();
    }
}

#[test]
fn calls_that_are_made_while_a_shard_dies_end_too() {
    for host in hosts() {
        let server = start("ps", 2, host);
        let worker = start("worker", 2, host);
        let peers = peers(&server, &worker);
        let (sender, handler_ends) = channel();
        let handler: Arc<dyn CompletionHandler> = Arc::new(Ends(Mutex::new(sender)));
        let key = key(&server);
        let (calls, accepted) = thread::scope(|scope| {
            let callers: Vec<_> = (0..4_usize)
                .map(|caller| {
                    let (client, peer, handler) = (worker.client(), &peers[caller % 2], &handler);
                    let key = key.clone();
                    let ask = move |step_id| Request::RecvTensor {
                        step_id,
                        key: key.clone(),
                    };
                    scope.spawn(move || {
                        let (mut calls, mut accepted) = (Vec::new(), 0);
                        while client.ended().is_none() {
                            calls.push(client.call(peer, ask(1), None));
                            let spec = CallSpec::new(peer, ask(2));
                            let begun = client.submit(spec, handler.clone(), 0);
                            accepted += usize::from(begun.is_ok());
                            thread::sleep(Duration::from_micros(50));
                        }
                        (calls, accepted)
                    })
                })
                .collect();
            thread::sleep(Duration::from_millis(20));
            spawn_bad_future(&worker);
            callers
                .into_iter()
                .fold((Vec::new(), 0), |mut all, caller| {
                    let (calls, accepted) = caller.join().unwrap();
                    all.0.extend(calls);
                    (all.0, all.1 + accepted)
                })
        });
        let ends = thread::spawn(move || calls.into_iter().map(Call::wait).collect::<Vec<_>>());
        let until = Instant::now() + PATIENCE;
        while !ends.is_finished() {
            assert!(Instant::now() < until, "a call hangs");
            thread::sleep(Duration::from_millis(1));
        }
        // Some came faster than they were taken.
        let is_refusal = |status: &Status| status.code == Code::ResourceExhausted;
        for result in ends.join().unwrap() {
            let status = result.unwrap_err();
            assert!(
                is_refusal(&status) || status.reason == Reason::ShardDied,
                "{status:?}"
            );
        }
        for _ in 0..accepted {
            let (_, result) = handler_ends.recv_timeout(PATIENCE).expect("a call hangs");
            let status = result.unwrap_err();
            assert!(
                is_refusal(&status) || status.reason == Reason::ShardDied,
                "{status:?}"
            );
        }
        drop(worker);
        drop(handler);
        assert!(
            handler_ends.recv_timeout(PATIENCE).is_err(),
            "a call ended twice"
        );
    }
}

#[test]
fn a_panic_in_a_function_is_an_answer_and_harms_nobody() {
    let server = start("ps", 2, HostSetting::Auto);
    let worker = start("worker", 1, HostSetting::Auto);
    server.register("bad", Arc::new(BadStart));
    let worse = |_: GraphCall| -> Result<Vec<(Text, Tensor)>, Status> { panic!("a bad call") };
    server.register("worse", Arc::new(worse));
    let client = worker.client();
    let peer = client
        .peer(&server.local_addr().unwrap().to_string())
        .unwrap();
    for (name, text) in [("bad", "the function panicked"), ("worse", "a bad call")] {
        let call = GraphCall {
            graph_handle: Text::from(name),
            ..GraphCall::default()
        };
        let request = Request::StarRunGraph(Box::new(call));
        let status = ended(client.call(&peer, request, None)).unwrap_err();
        assert_eq!(
            (status.code, status.reason),
            (Code::Internal, Reason::Peer),
            "{status}"
        );
        assert!(status.message.contains(text), "{status}");
    }
    assert!(server.client().ended().is_none());
    let request = Request::Message {
        method: Method::GetStatus,
        body: Vec::new().into(),
    };
    assert!(matches!(
        ended(client.call(&peer, request, None)),
        Ok(Response::Message(_))
    ));
    server.shutdown(Duration::ZERO).unwrap();
}

#[test]
fn a_witness_that_comes_late_is_told_at_once() {
    let engine = start("worker", 2, HostSetting::Native);
    spawn_bad_future(&engine);
    let until = Instant::now() + PATIENCE;
    while engine.client().ended().is_none() {
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(1));
    }
    let told = Arc::new(Mutex::new(None));
    let telling = Arc::clone(&told);
    engine.on_death(move |error| *telling.lock().unwrap() = Some(error.clone()));
    assert!(matches!(
        *told.lock().unwrap(),
        Some(HostError::Panicked { .. })
    ));
}

const PATIENCE: Duration = Duration::from_secs(20);
