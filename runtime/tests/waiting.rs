//! Threads that wait for calls, and turn the shard meanwhile.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use futures_channel::mpsc::{UnboundedReceiver, unbounded};
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use grpcxx_rpc::proto::CleanupAllRequest;
use grpcxx_rpc::{Code, GraphCall, Request, Tensor};
use grpcxx_runtime::service::{
    self, Methods, Place, Response, ServiceClient, Streaming, TypedService,
};
use grpcxx_runtime::{
    CallResult, CallSpec, CompletionHandler, Engine, EngineBuilder, Remote, ShardContext, local,
};

/// A server with functions, one caller, and the way to the server.
struct Pair {
    caller: Engine,
    remote: Remote,
    gate: Gate,
    server: Engine,
}

/// What calls of the function `gate` wait for: one message each.
#[derive(Clone)]
struct Gate(Sender<()>);

impl Pair {
    fn start(shards: usize) -> Self {
        Self::start_with(Engine::builder().shards(shards))
    }

    fn start_with(caller: EngineBuilder) -> Self {
        let server = Engine::builder().listen("127.0.0.1:0").start().unwrap();
        let (open, opened) = channel::<()>();
        let opened = Mutex::new(opened);
        server.register_fn("gate", move |_: GraphCall| {
            let opened = opened.lock().unwrap();
            opened.recv_timeout(PATIENCE).expect("the test opens it");
            Ok([("y", Tensor::scalar(1_i32))])
        });
        server.register_short("double", |call: GraphCall| {
            let value: i32 = call.feed("x")?.value()?;
            Ok([("y", Tensor::scalar(2 * value))])
        });
        let caller = caller.start().unwrap();
        let remote = caller
            .connect(&server.local_addr().unwrap().to_string())
            .unwrap();
        assert_eq!(double(&remote, 3), 6);
        Self {
            caller,
            remote,
            gate: Gate(open),
            server,
        }
    }

    fn request() -> Request {
        Request::StarRunGraph(Box::new(gate()))
    }
}

fn gate() -> GraphCall {
    GraphCall::new("gate").with_fetch("y")
}

fn doubling(value: i32) -> GraphCall {
    let call = GraphCall::new("double").with_feed("x", Tensor::scalar(value));
    call.with_fetch("y")
}

fn double(remote: &Remote, value: i32) -> i32 {
    let results = remote.run(doubling(value)).wait().unwrap();
    results.get("y").unwrap().value().unwrap()
}

/// Tells on which thread its calls end.
struct Ends {
    sender: Mutex<Sender<(ThreadId, CallResult)>>,
    panics: bool,
    runs_anywhere: bool,
}

impl Ends {
    fn new() -> (Self, Receiver<(ThreadId, CallResult)>) {
        let (sender, ends) = channel();
        let ends_of = Self {
            sender: Mutex::new(sender),
            panics: false,
            runs_anywhere: true,
        };
        (ends_of, ends)
    }
}

impl CompletionHandler for Ends {
    fn on_complete(self: Arc<Self>, _: u64, result: CallResult, _: &mut ShardContext<'_>) {
        let is_success = result.is_ok();
        let told = (thread::current().id(), result);
        self.sender.lock().unwrap().send(told).unwrap();
        assert!(!(self.panics && is_success), "this handler panics");
    }

    fn runs_anywhere(&self) -> bool {
        self.runs_anywhere
    }
}

/// Begins a call with a handler, waits for another one, and lets both end meanwhile.
fn end_beside_a_wait(pair: &Pair, handler: Ends) -> Result<(), grpcxx_rpc::Status> {
    let client = pair.caller.client();
    let spec = CallSpec::new(pair.remote.peer(), Pair::request());
    client.submit(spec, Arc::new(handler), 0).unwrap();
    let opens = pair.gate.clone();
    let opener = thread::spawn(move || {
        thread::sleep(Duration::from_millis(5));
        opens.0.send(()).unwrap();
        opens.0.send(()).unwrap();
    });
    let result = pair.remote.run(gate()).wait().map(drop);
    opener.join().unwrap();
    result
}

/// Calls end on the thread that waits, now and then at least: the owner turns the shard where it
/// has just been woken, which is mostly so on a busy machine.
fn ends_calls_where_they_are_waited_for(pair: &Pair) {
    let until = Instant::now() + PATIENCE;
    loop {
        let (handler, ends) = Ends::new();
        end_beside_a_wait(pair, handler).unwrap();
        let (thread, result) = ends.recv_timeout(PATIENCE).unwrap();
        result.unwrap();
        if thread == thread::current().id() {
            break;
        }
        assert!(
            Instant::now() < until,
            "no call ended on the thread that waited"
        );
    }
}

#[test]
fn the_thread_that_waits_turns_the_shard() {
    ends_calls_where_they_are_waited_for(&Pair::start(1));
}

#[test]
fn a_thread_turns_the_shard_of_an_engine_that_serves_too() {
    let pair = Pair::start_with(Engine::builder().listen("127.0.0.1:0").shards(1));
    pair.caller.register_fn("double", |call: GraphCall| {
        let value: i32 = call.feed("x")?.value()?;
        Ok([("y", Tensor::scalar(2 * value))])
    });
    let peer = Engine::builder().start().unwrap();
    let address = pair.caller.local_addr().unwrap().to_string();
    let back = peer.connect(&address).unwrap();
    // Calls of functions that are short do not bind it as long as threads come.
    for value in 0..300 {
        assert_eq!(double(&pair.remote, value), 2 * value);
        assert_eq!(double(&back, value), 2 * value);
    }
    ends_calls_where_they_are_waited_for(&pair);
}

/// A service whose only method answers with what a test sends.
struct Told(Arc<Mutex<UnboundedReceiver<()>>>);

impl TypedService for Told {
    const NAME: &'static str = "waiting.Told";

    fn into_methods(self) -> Methods {
        let methods = Methods::new(Self::NAME, &[], Place::Shard);
        methods.server_stream("Tell", move |_: service::Request<CleanupAllRequest>| {
            let told = Arc::clone(&self.0);
            let messages =
                stream::poll_fn(move |context| told.lock().unwrap().poll_next_unpin(context));
            let messages = messages.map(|()| Ok(CleanupAllRequest::default()));
            async move { Ok(Response::new(messages)) }
        })
    }
}

#[test]
fn a_thread_that_waits_for_a_stream_turns_the_shard_too() {
    let pair = Pair::start(1);
    let (tell, told) = unbounded();
    pair.server.add_service(Told(Arc::new(Mutex::new(told))));
    let services = ServiceClient::new(pair.remote.clone());
    let until = Instant::now() + PATIENCE;
    loop {
        let (handler, ends) = Ends::new();
        let spec = CallSpec::new(pair.remote.peer(), Pair::request());
        let client = pair.caller.client();
        client.submit(spec, Arc::new(handler), 0).unwrap();
        let request = service::Request::new(CleanupAllRequest::default());
        let call = services.server_stream("/waiting.Told/Tell", request);
        let (opens, tells) = (pair.gate.clone(), tell.clone());
        let opener = thread::spawn(move || {
            thread::sleep(Duration::from_millis(5));
            opens.0.send(()).unwrap();
            tells.unbounded_send(()).unwrap();
        });
        let mut messages: Streaming<CleanupAllRequest> = call.wait().unwrap().into_inner();
        messages.wait_message().unwrap().unwrap();
        opener.join().unwrap();
        let (thread, result) = ends.recv_timeout(PATIENCE).unwrap();
        result.unwrap();
        if thread == thread::current().id() {
            break;
        }
        assert!(
            Instant::now() < until,
            "no call ended on the thread that waited"
        );
    }
}

#[test]
fn what_nobody_waits_for_goes_on_behind_a_wait() {
    let pair = Pair::start(1);
    let client = pair.caller.client();
    for _ in 0..200 {
        assert_eq!(double(&pair.remote, 1), 2);
        let (handler, ends) = Ends::new();
        let handler = Arc::new(handler);
        // The first leaves from here, the others are handed over.
        for token in 0..3 {
            let request = Request::StarRunGraph(Box::new(doubling(1)));
            let spec = CallSpec::new(pair.remote.peer(), request);
            client.submit(spec, handler.clone(), token).unwrap();
        }
        for _ in 0..3 {
            ends.recv_timeout(PATIENCE).unwrap().1.unwrap();
        }
    }
}

#[test]
fn peers_are_served_behind_a_wait() {
    let pair = Pair::start(1);
    let both = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    both.register_fn("double", |call: GraphCall| {
        let value: i32 = call.feed("x")?.value()?;
        Ok([("y", Tensor::scalar(2 * value))])
    });
    let onward = both.connect(pair.remote.address()).unwrap();
    let address = both.local_addr().unwrap().to_string();
    let remote = pair.caller.connect(&address).unwrap();
    for _ in 0..100 {
        assert_eq!(double(&onward, 1), 2);
        assert_eq!(double(&remote, 2), 4);
    }
}

#[test]
fn code_that_belongs_to_the_shards_thread_stays_there() {
    let pair = Pair::start(1);
    let shard_thread = || {
        let there = pair.caller.shards().invoke_on(0, || thread::current().id());
        there.wait().unwrap()
    };
    for round in 0..20 {
        let (mut handler, ends) = Ends::new();
        handler.runs_anywhere = false;
        end_beside_a_wait(&pair, handler).unwrap();
        let (thread, _) = ends.recv_timeout(PATIENCE).unwrap();
        assert_ne!(thread, thread::current().id());
        if round == 10 {
            assert_eq!(thread, shard_thread());
        }
    }
    assert_ne!(shard_thread(), thread::current().id());
}

/// What is registered before the engine serves has bound shards that are lent only later.
#[test]
fn code_of_a_start_that_prepares_stays_on_the_shards_thread() {
    let pair = Pair::start(1);
    let options = Engine::builder().listen("127.0.0.1:0").shards(1);
    let both = options.start_with(|engine| {
        engine.register_short("thread", |_| {
            let name = thread::current().name().unwrap_or_default().to_owned();
            Ok([("name", Tensor::vector(name.into_bytes()))])
        });
    });
    let both = both.unwrap();
    let onward = both.connect(pair.remote.address()).unwrap();
    assert_eq!(double(&onward, 1), 2);
    // The thread finds the shard asleep.
    thread::sleep(Duration::from_millis(20));
    let waiting = thread::spawn(move || onward.run(gate()).wait().map(drop));
    let address = both.local_addr().unwrap().to_string();
    let remote = pair.caller.connect(&address).unwrap();
    for _ in 0..300 {
        let call = GraphCall::new("thread").with_fetch("name");
        let results = remote.run(call).wait().unwrap();
        assert_eq!(results.get("name").unwrap().data[..], b"grpcxx-0"[..]);
    }
    pair.gate.0.send(()).unwrap();
    waiting.join().unwrap().unwrap();
}

/// The owner of the shard gets it back while another thread waits, and turns it from then on.
#[test]
fn futures_of_a_shard_do_not_wait_for_a_thread_that_waits() {
    let pair = Pair::start(1);
    let remote = pair.remote.clone();
    let waiting = thread::spawn(move || remote.run(gate()).wait().map(drop));
    thread::sleep(Duration::from_millis(20));
    let shards = pair.caller.shards();
    let future = shards.submit_to(0, || async {
        local::sleep(Duration::from_millis(1)).await;
        7
    });
    assert_eq!(future.wait().unwrap(), 7);
    assert!(!waiting.is_finished());
    pair.gate.0.send(()).unwrap();
    waiting.join().unwrap().unwrap();
    assert_eq!(double(&pair.remote, 4), 8);
}

#[test]
fn a_panic_on_a_thread_that_waits_ends_the_engine_and_names_the_code() {
    let mut own_panics = 0;
    while own_panics == 0 {
        let pair = Pair::start(1);
        let (mut handler, ends) = Ends::new();
        handler.panics = true;
        let waited = end_beside_a_wait(&pair, handler);
        let (thread, result) = ends.recv_timeout(PATIENCE).unwrap();
        result.unwrap();
        // Else the owner has just been woken.
        own_panics += usize::from(thread == thread::current().id());
        let later = pair.remote.run(doubling(1)).wait();
        // The call that was waited for may have ended before.
        for status in [waited.err(), later.err()].into_iter().flatten() {
            assert_eq!(status.code, Code::Internal);
            for text in ["this handler panics", "completion handler"] {
                assert!(status.message.contains(text), "{status}");
            }
        }
        assert!(pair.remote.run(doubling(1)).wait().is_err());
    }
}

#[test]
fn deadlines_pass_while_a_thread_waits_and_while_none_does() {
    let pair = Pair::start(1);
    let short = pair.remote.clone().with_timeout(Duration::from_millis(30));
    let begin = Instant::now();
    let status = short.run(gate()).wait().unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert!(begin.elapsed() >= Duration::from_millis(30));
    let (handler, ends) = Ends::new();
    let spec = CallSpec::new(pair.remote.peer(), Pair::request());
    let spec = spec.with_timeout(Duration::from_millis(30));
    let client = pair.caller.client();
    client.submit(spec, Arc::new(handler), 0).unwrap();
    let (_, result) = ends.recv_timeout(PATIENCE).expect("its deadline passes");
    assert_eq!(result.unwrap_err().code, Code::DeadlineExceeded);
    let waited = client.wait(
        0,
        std::future::pending::<()>(),
        Some(Duration::from_millis(10)),
    );
    assert_eq!(waited, None);
    for _ in 0..2 {
        pair.gate.0.send(()).unwrap();
    }
}

/// Threads that wait, futures, handlers and code on the shards, all at once and on few shards.
#[test]
fn calls_of_many_threads_end_once_while_shards_change_hands() {
    let pair = Pair::start(2);
    let second = pair.caller.client();
    let second = second.peer_over(pair.remote.address(), 1).unwrap();
    let remotes = [
        pair.remote.clone(),
        Remote::new(pair.caller.client(), second),
    ];
    let ended = AtomicUsize::new(0);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (remotes, ended) = (&remotes, &ended);
            scope.spawn(move || {
                for call in 0..CALLS {
                    let remote = &remotes[(number + call) % 2];
                    let value = (number * CALLS + call) as i32;
                    if call % 16 == 0 {
                        let calls = (0..4).map(|more| remote.run(doubling(value + more)));
                        let results = remote.block_on(join_all(calls));
                        assert!(results.iter().all(Result::is_ok));
                    }
                    assert_eq!(double(remote, value), 2 * value);
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let client = pair.caller.client();
        for token in 0..CALLS as u64 {
            let (handler, ends) = Ends::new();
            let request = Request::StarRunGraph(Box::new(doubling(1)));
            let spec = CallSpec::new(pair.remote.peer(), request);
            client.submit(spec, Arc::new(handler), token).unwrap();
            ends.recv_timeout(PATIENCE).unwrap().1.unwrap();
            // From here on shards stay on their threads.
            if token == CALLS as u64 / 2 {
                let shard = pair.caller.shards().invoke_on(0, || 5);
                assert_eq!(shard.wait().unwrap(), 5);
            }
        }
    });
    assert_eq!(ended.into_inner(), THREADS * CALLS);
}

/// Code that a turn runs may hand over what belongs to the shard's own thread.
#[test]
fn code_in_a_turn_can_bind_the_shard() {
    let pair = Pair::start(2);
    let (client, peer) = (pair.caller.client(), pair.remote.peer().clone());
    let (told, heard) = channel();
    for round in 0..20 {
        let (client, told) = (client.clone(), told.clone());
        let on_shard = move |shard: usize| {
            let told = told.clone();
            let code = move |_: &mut ShardContext<'_>| {
                // Only the thread of a shard has this.
                drop(local::spawn_local(async move {
                    told.send(shard).unwrap();
                }));
            };
            client.run_on(shard, code).unwrap();
        };
        pair.caller.client().inspect(&peer, move |_| {
            on_shard(0);
            on_shard(1);
        });
        assert_eq!(double(&pair.remote, round), 2 * round);
        for _ in 0..2 {
            heard.recv_timeout(PATIENCE).expect("both shards go on");
        }
    }
}

#[test]
fn an_engine_that_stops_ends_what_threads_wait_for() {
    let pair = Pair::start(1);
    let remote = pair.remote.clone();
    let waiting = thread::spawn(move || remote.run(gate()).wait().map(drop));
    thread::sleep(Duration::from_millis(20));
    let Pair {
        caller,
        remote,
        gate,
        server: _server,
    } = pair;
    caller.shutdown(Duration::ZERO).unwrap();
    let status = waiting.join().unwrap().unwrap_err();
    assert_eq!(status.code, Code::Unavailable);
    assert_eq!(
        remote.run(doubling(1)).wait().unwrap_err().code,
        Code::Unavailable
    );
    gate.0.send(()).unwrap();
}

const THREADS: usize = 6;
const CALLS: usize = 300;

/// Longer than a loaded machine takes for any of this.
const PATIENCE: Duration = Duration::from_secs(60);
