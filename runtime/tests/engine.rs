//! Engines that talk to each other over real sockets.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use grpcxx_rpc::{
    Code, DType, GraphCall, Method, NamedTensors, RendezvousKey, Request, Response, Shape, Status,
    Tensor, Text,
};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{
    Engine, EngineOptions, Function, Later, RequestWatch, Responder, STORE_LIST, STORE_PULL,
    STORE_PUSH, Served, Service, ShardContext,
};

fn options(job: &str, shards: usize) -> EngineOptions {
    EngineOptions::default().with(|options| {
        options.task = TaskId::new(job, 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.shards = shards;
    })
}

fn pair(shards: usize) -> (Engine, Engine) {
    let server = Engine::start(options("ps", shards)).unwrap();
    let worker = Engine::start(options("worker", shards)).unwrap();
    (server, worker)
}

fn address(engine: &Engine) -> String {
    engine.local_addr().unwrap().to_string()
}

fn key(engine: &Engine, edge: &str) -> Text {
    RendezvousKey::new(
        &engine.device_attributes().name,
        engine.incarnation(),
        "/job:worker/replica:0/task:0/device:CPU:0",
        edge,
    )
    .unwrap()
    .to_text()
}

fn floats(values: &[f32]) -> Tensor {
    Tensor::from_slice(Shape::new(&[values.len() as u64]).unwrap(), values).unwrap()
}

fn receive(
    server: &Engine,
    worker: &Engine,
    step_id: i64,
    keys: Vec<Text>,
) -> Result<Response, Status> {
    let client = worker.client();
    let peer = client.peer(&address(server)).unwrap();
    let request = match keys.len() {
        1 => Request::RecvTensor {
            step_id,
            key: keys[0].clone(),
        },
        _ => Request::FuseRecvTensor {
            step_id,
            keys: keys.into(),
        },
    };
    client
        .call(&peer, request, Some(Duration::from_secs(10)))
        .wait()
}

#[test]
fn who_comes_early_is_served_by_a_prepared_engine() {
    let worker = Engine::start(options("worker", 1)).unwrap();
    let client = worker.client();
    for shards in [1, 3] {
        let mut early = None;
        let prepare = |engine: &Engine| {
            // The system lets it in, and nobody reads what it says.
            drop(TcpStream::connect(engine.local_addr().unwrap()).unwrap());
            let peer = client.peer(&address(engine)).unwrap();
            let call = GraphCall {
                graph_handle: Text::from("late"),
                fetches: [Text::from("x")].into_iter().collect(),
                ..GraphCall::default()
            };
            let request = Request::StarRunGraph(Box::new(call));
            early = Some(client.call(&peer, request, Some(Duration::from_secs(10))));
            // An engine that served already would answer meanwhile that there is no such function.
            std::thread::sleep(Duration::from_millis(100));
            engine.register_fn("late", |_| Ok([("x", floats(&[2.0]))]));
        };
        let server = Engine::start_with(options("ps", shards), prepare).unwrap();
        let Response::Fetched(values) = early.unwrap().wait().unwrap() else {
            panic!("a graph call has values");
        };
        assert_eq!(values[0].1, floats(&[2.0]));
        server.shutdown(Duration::ZERO).unwrap();
    }
}

#[test]
fn a_tensor_that_is_given_back_is_there_for_the_next() {
    let (server, worker) = pair(3);
    for step_id in 1..20 {
        let keys = vec![key(&server, "first"), key(&server, "second")];
        let sent = [floats(&[1.0]), floats(&[2.0])];
        for (key, tensor) in keys.iter().zip(&sent) {
            server.send(step_id, key.clone(), tensor.clone()).unwrap();
        }
        let received = server.receive(step_id, keys.clone(), None).wait().unwrap();
        assert_eq!(received, Response::Tensors(sent.iter().cloned().collect()));
        (server.client()).give_back(step_id, keys.clone(), sent.to_vec());
        assert_eq!(receive(&server, &worker, step_id, keys).unwrap(), received);
    }
    assert_eq!(server.counters().restored, 2 * 19);
}

#[test]
fn tensor_and_request_meet_in_either_order() {
    for shards in [1, 3] {
        let (server, worker) = pair(shards);
        let client = worker.client();
        let peer = client.peer(&address(&server)).unwrap();
        for step_id in 1..20 {
            let early = key(&server, "early");
            server
                .send(step_id, early.clone(), floats(&[1.0, 2.0]))
                .unwrap();
            let got = receive(&server, &worker, step_id, vec![early]).unwrap();
            assert_eq!(got, Response::from(floats(&[1.0, 2.0])));
            let late = key(&server, "late");
            let call = client.call(
                &peer,
                Request::RecvTensor {
                    step_id,
                    key: late.clone(),
                },
                None,
            );
            std::thread::sleep(Duration::from_millis(2));
            server.send(step_id, late, floats(&[3.0])).unwrap();
            assert_eq!(call.wait().unwrap(), Response::from(floats(&[3.0])));
        }
    }
}

#[test]
fn fused_receives_answer_in_the_order_of_the_keys() {
    let (server, worker) = pair(2);
    let keys: Vec<Text> = (0..100)
        .map(|i| key(&server, &format!("edge_{i}_x")))
        .collect();
    for (index, key) in keys.iter().enumerate().rev() {
        server
            .send(7, key.clone(), floats(&vec![index as f32; index * 50]))
            .unwrap();
    }
    let Response::Tensors(tensors) = receive(&server, &worker, 7, keys).unwrap() else {
        panic!("tensors");
    };
    for (index, tensor) in tensors.iter().enumerate() {
        assert_eq!(*tensor, floats(&vec![index as f32; index * 50]));
    }
}

#[test]
fn large_tensors_arrive_whole() {
    let (server, worker) = pair(1);
    let bytes: Vec<u8> = (0..48_000_000_u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let tensor = Tensor::new(
        DType::UInt8,
        Shape::new(&[bytes.len() as u64]).unwrap(),
        bytes,
    )
    .unwrap();
    server.send(1, key(&server, "big"), tensor.clone()).unwrap();
    let Response::Tensors(tensors) =
        receive(&server, &worker, 1, vec![key(&server, "big")]).unwrap()
    else {
        panic!("tensors");
    };
    assert!(tensors[0] == tensor, "the bytes differ");
}

#[test]
fn checklist_26_bad_keys_and_other_incarnations() {
    let (server, worker) = pair(1);
    let status = receive(&server, &worker, 1, vec![Text::from("no key")]).unwrap_err();
    assert_eq!(status.code, Code::InvalidArgument, "{status}");
    let old = RendezvousKey::new(
        &server.device_attributes().name,
        server.incarnation() ^ 1,
        "/job:worker/replica:0/task:0/device:CPU:0",
        "edge",
    )
    .unwrap()
    .to_text();
    let status = receive(&server, &worker, 1, vec![old]).unwrap_err();
    assert_eq!(status.code, Code::Aborted, "{status}");
}

#[test]
fn the_store_takes_lists_and_returns_tensors() {
    let (server, worker) = pair(2);
    let client = worker.client();
    let peer = client.peer(&address(&server)).unwrap();
    let call = |call: GraphCall| {
        client
            .call(
                &peer,
                Request::StarRunGraph(Box::new(call)),
                Some(Duration::from_secs(5)),
            )
            .wait()
    };
    let pushed = call(GraphCall {
        graph_handle: Text::from(STORE_PUSH),
        feeds: vec![
            (Text::from("b"), floats(&[1.0; 4])),
            (Text::from("a"), floats(&[])),
        ]
        .into(),
        ..GraphCall::default()
    });
    assert_eq!(pushed, Ok(Response::Fetched(NamedTensors::new())));
    let pulled = call(GraphCall {
        graph_handle: Text::from(STORE_PULL),
        fetches: vec![Text::from("b"), Text::from("a")].into(),
        ..GraphCall::default()
    });
    let Ok(Response::Fetched(tensors)) = pulled else {
        panic!("{pulled:?}");
    };
    assert_eq!(tensors.len(), 2);
    assert!(tensors.contains(&(Text::from("a"), floats(&[]))));
    assert!(tensors.contains(&(Text::from("b"), floats(&[1.0; 4]))));
    let listed = call(GraphCall {
        graph_handle: Text::from(STORE_LIST),
        fetches: ["names", "bytes", "shapes", "dtypes"]
            .map(Text::from)
            .to_vec()
            .into(),
        ..GraphCall::default()
    });
    let Ok(Response::Fetched(columns)) = listed else {
        panic!("{listed:?}");
    };
    let names = columns.iter().find(|(name, _)| name == "names").unwrap();
    assert_eq!(names.1.strings().unwrap()[1][..], b"b"[..]);
    let missing = call(GraphCall {
        graph_handle: Text::from(STORE_PULL),
        fetches: vec![Text::from("c")].into(),
        ..GraphCall::default()
    });
    assert_eq!(missing.unwrap_err().code, Code::NotFound);
}

#[test]
fn functions_are_called_by_name_and_their_panics_are_answers() {
    let (server, worker) = pair(1);
    server.register(
        "double",
        Arc::new(|call: GraphCall| {
            let input = call.feeds[0].1.as_slice::<f32>().unwrap().to_vec();
            let doubled: Vec<f32> = input.iter().map(|x| x * 2.0).collect();
            Ok(vec![(Text::from("y"), floats(&doubled))])
        }),
    );
    let client = worker.client();
    let peer = client.peer(&address(&server)).unwrap();
    let call = |feeds: Vec<(Text, Tensor)>, handle: &str| {
        let call = GraphCall {
            graph_handle: Text::from(handle),
            feeds: feeds.into(),
            fetches: vec![Text::from("y")].into(),
            ..GraphCall::default()
        };
        client
            .call(&peer, Request::StarRunGraph(Box::new(call)), None)
            .wait()
    };
    let result = call(vec![(Text::from("x"), floats(&[1.0, 4.0]))], "double").unwrap();
    assert_eq!(
        result,
        Response::Fetched(vec![(Text::from("y"), floats(&[2.0, 8.0]))].into())
    );
    let status = call(Vec::new(), "double").unwrap_err();
    assert_eq!(status.code, Code::Internal);
    let status = call(Vec::new(), "triple").unwrap_err();
    assert_eq!(status.code, Code::NotFound);
    assert!(status.message.contains("double"), "{status}");
}

#[test]
fn deadlines_cancels_and_shutdown_end_waiting_calls() {
    let (server, worker) = pair(2);
    let client = worker.client();
    let peer = client.peer(&address(&server)).unwrap();
    let request = || Request::RecvTensor {
        step_id: 9,
        key: key(&server, "never"),
    };
    let started = Instant::now();
    let status = client
        .call(&peer, request(), Some(Duration::from_millis(80)))
        .wait()
        .unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert!(started.elapsed() < Duration::from_secs(5));
    drop(client.call(&peer, request(), None));
    let waiting = client.call(&peer, request(), None);
    std::thread::sleep(Duration::from_millis(50));
    let started = Instant::now();
    let grace = Duration::from_secs(30);
    server.shutdown(grace).unwrap();
    assert!(started.elapsed() < grace);
    assert_eq!(waiting.wait().unwrap_err().code, Code::Unavailable);
}

/// A function that hands its responders to the test.
struct Keeping(Sender<Responder>);

impl Function for Keeping {
    fn call(&self, _call: GraphCall) -> Result<NamedTensors, Status> {
        unreachable!("it is started")
    }

    fn start(&self, _call: GraphCall, responder: Responder) {
        self.0.send(responder).unwrap();
    }

    fn may_block(&self) -> bool {
        false
    }
}

/// Tells the test that nobody wants an answer any more.
struct Telling(Sender<()>);

impl RequestWatch for Telling {
    fn withdrawn(&self) {
        self.0.send(()).unwrap();
    }
}

#[test]
fn who_keeps_a_responder_hears_when_nobody_waits_for_it_any_more() {
    let (server, worker) = pair(1);
    let (keep, kept) = channel();
    server.register("keep", Arc::new(Keeping(keep)));
    let client = worker.client();
    let peer = client.peer(&address(&server)).unwrap();
    let call = |function| {
        let call = GraphCall::new(Text::from(function));
        client.call(&peer, Request::StarRunGraph(Box::new(call)), None)
    };
    let watch = |responder: &Responder| {
        let (tell, told) = channel();
        responder.watch(Arc::new(Telling(tell)));
        told
    };
    let given_up = call("keep");
    let responder = kept.recv().unwrap();
    let told = watch(&responder);
    drop(given_up);
    told.recv().unwrap();

    let given_up = call("keep");
    let responder = kept.recv().unwrap();
    drop(given_up);
    // Behind its answer the server knows that the call before was given up.
    call("none").wait().unwrap_err();
    watch(&responder).recv().unwrap();

    let answered = call("keep");
    let responder = kept.recv().unwrap();
    let told = watch(&responder);
    responder.answer(Ok(Response::Fetched(NamedTensors::new())));
    answered.wait().unwrap();
    call("none").wait().unwrap_err();
    told.recv().unwrap_err();

    let lost = call("keep");
    let responder = kept.recv().unwrap();
    let told = watch(&responder);
    worker.shutdown(Duration::ZERO).unwrap();
    told.recv().unwrap();
    lost.wait().unwrap_err();
}

#[test]
fn checklist_17_a_restarted_peer_is_reached_again() {
    let (server, worker) = pair(1);
    let star = server.local_addr().unwrap();
    let client = worker.client();
    let peer = client.peer(&star.to_string()).unwrap();
    let status_of = || {
        let request = Request::Message {
            method: Method::GetStatus,
            body: grpcxx_memory::Buffer::new(),
        };
        client
            .call(&peer, request, Some(Duration::from_secs(10)))
            .wait()
    };
    assert!(status_of().is_ok());
    drop(server);
    let mut again = options("ps", 1);
    again.listen = Some(star);
    let server = Engine::start(again).unwrap();
    let answered = (0..3).any(|_| status_of().is_ok());
    assert!(answered);
    drop(server);
}

#[test]
fn checklist_16_a_peer_that_never_comes_up_fails_the_call_in_time() {
    let worker = Engine::start(options("worker", 1)).unwrap();
    let client = worker.client();
    let peer = client.peer("127.0.0.1:1").unwrap();
    let request = Request::Message {
        method: Method::GetStatus,
        body: grpcxx_memory::Buffer::new(),
    };
    let status = client
        .call(&peer, request, Some(Duration::from_millis(300)))
        .wait()
        .unwrap_err();
    assert_eq!(status.code, Code::Internal, "{status}");
    assert!(
        status
            .message
            .starts_with("Seastar channel: connection is timeout. connection is : 127.0.0.1:1"),
        "{status}"
    );
}

#[test]
fn an_address_in_use_is_an_error_that_names_it() {
    let (server, _worker) = pair(1);
    let mut twice = options("ps", 1);
    twice.listen = server.local_addr();
    let error = Engine::start(twice).unwrap_err().to_string();
    assert!(error.contains(&address(&server)), "{error}");
}

#[test]
fn a_task_serves_its_own_calls_without_a_connection() {
    let (server, _worker) = pair(3);
    let client = server.client();
    let own = client.peer(&address(&server)).unwrap();
    assert!(own.is_self());
    server.send(3, key(&server, "own"), floats(&[5.0])).unwrap();
    let got = server
        .receive(3, vec![key(&server, "own")], None)
        .wait()
        .unwrap();
    assert_eq!(got, Response::from(floats(&[5.0])));
    let waiting = server.receive(
        3,
        vec![key(&server, "later")],
        Some(Duration::from_millis(50)),
    );
    assert_eq!(waiting.wait().unwrap_err().code, Code::DeadlineExceeded);
    assert_eq!(server.counters().accepted, 0);
}

#[test]
fn tensors_of_a_call_that_is_dropped_with_its_result_go_back() {
    let (server, _worker) = pair(2);
    let keys = vec![key(&server, "own")];
    for step_id in 0..4 {
        let call = server.receive(step_id, keys.clone(), None);
        let tensor = floats(&[step_id as f32]);
        server.send(step_id, keys[0].clone(), tensor).unwrap();
        // What was handed to the shards before is done when this is.
        for shard in 0..2 {
            server.shards().invoke_on(shard, || ()).wait().unwrap();
        }
        drop(call);
        let next = server.receive(step_id, keys.clone(), Some(Duration::from_secs(10)));
        let sent = Response::from(floats(&[step_id as f32]));
        assert_eq!(next.wait(), Ok(sent));
    }
    assert_eq!(server.counters().restored, 4);
}

/// Answers all receives with the same tensors.
struct Keeper(Arc<[Tensor]>);

impl Service for Keeper {
    fn serve(&self, request: Request, _later: Later<'_>) -> Served {
        match request {
            Request::FuseRecvTensor { .. } => Served::Kept(Arc::clone(&self.0)),
            request => Served::Declined(request),
        }
    }
}

#[test]
fn a_service_answers_with_tensors_that_it_keeps() {
    let kept: Arc<[Tensor]> = (0..40).map(|index| floats(&[index as f32; 300])).collect();
    let server = Engine::start(
        options("ps", 1)
            .with(|options| options.service = Some(Arc::new(Keeper(Arc::clone(&kept))))),
    )
    .unwrap();
    let worker = Engine::start(options("worker", 1)).unwrap();
    let keys: Vec<Text> = (0..40).map(|i| key(&server, &format!("k{i}"))).collect();
    // The first calls go over TCP, later ones through shared memory; its own ones over nothing.
    for engine in [&worker, &worker, &worker, &server] {
        let Response::Tensors(tensors) = receive(&server, engine, 1, keys.clone()).unwrap() else {
            panic!("tensors");
        };
        assert_eq!(tensors[..], kept[..]);
        std::thread::sleep(Duration::from_millis(20));
    }
    let status = receive(&server, &worker, 1, keys[..2].to_vec()).unwrap_err();
    assert_eq!(status.code, Code::Internal);
    drop((server, worker));
    assert_eq!(Arc::strong_count(&kept), 1);
}

#[test]
fn each_numbered_connection_to_a_peer_is_one_of_its_own() {
    let (server, worker) = pair(2);
    let client = worker.client();
    let request = || Request::Message {
        method: Method::GetStatus,
        body: Vec::new().into(),
    };
    let mut shards = Vec::new();
    for connection in [0, 7, 3, 7, 0] {
        let peer = client.peer_over(&address(&server), connection).unwrap();
        let timeout = Some(Duration::from_secs(10));
        client.call(&peer, request(), timeout).wait().unwrap();
        shards.push(peer.shard());
    }
    assert_eq!(server.counters().accepted, 3);
    assert_eq!(shards, [0, 1, 0, 1, 0], "connections take turns on shards");
    assert_eq!(client.peer(&address(&server)).unwrap().shard(), 0);
}

/// The last reference to an engine may be one of its own callbacks. The shard cannot wait for its
/// own end, and the others end behind it.
#[test]
fn an_engine_that_is_dropped_by_its_own_shard_ends() {
    for shards in [1, 2] {
        let engine = Arc::new(Engine::start(options("ps", shards)).unwrap());
        let address = engine.local_addr().unwrap();
        let (goes_on, waits) = channel();
        let (dropped, ends) = channel();
        let last = Arc::clone(&engine);
        let order = move |_: &mut ShardContext<'_>| {
            waits.recv().unwrap();
            drop(last);
            dropped.send(()).unwrap();
        };
        engine.run_on(shards - 1, order).unwrap();
        drop(engine);
        goes_on.send(()).unwrap();
        ends.recv_timeout(PATIENCE)
            .expect("a shard waits for itself");
        let end = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(address).is_ok() {
            assert!(Instant::now() < end, "it still listens");
            std::thread::yield_now();
        }
    }
}

#[test]
fn whoever_may_wait_can_wait_for_an_engine_that_its_own_shard_has_stopped() {
    let engine = Arc::new(Engine::start(options("ps", 2)).unwrap());
    let address = engine.local_addr().unwrap();
    let (told, stopped) = channel();
    let same = Arc::clone(&engine);
    let order = move |_: &mut ShardContext<'_>| told.send(same.stop(Duration::ZERO)).unwrap();
    engine.run_on(1, order).unwrap();
    let on_shard = stopped.recv_timeout(PATIENCE);
    on_shard.expect("a shard waits for itself").unwrap();
    engine.stop(Duration::ZERO).unwrap();
    assert!(std::net::TcpStream::connect(address).is_err());
}

#[test]
fn a_preparation_that_panics_ends_the_start() {
    let (told, ended) = channel();
    std::thread::spawn(move || {
        let prepare = |_: &Engine| panic!("no functions today");
        let started = std::panic::catch_unwind(|| Engine::start_with(options("ps", 2), prepare));
        told.send(started.is_err()).unwrap();
    });
    assert!(
        ended
            .recv_timeout(PATIENCE)
            .expect("it waits for its shards")
    );
}

/// How long a test waits for what must happen.
const PATIENCE: Duration = Duration::from_secs(20);
