//! Methods that stream, over star and within a task.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use grpcxx::Engine;
use grpcxx::options::{PeerShares, RendezvousLimits};
use grpcxx::service::{Code, Request, Streaming};
use grpcxx_greeter::MyGreeter;
use grpcxx_greeter::helloworld::{GreeterClient, GreeterServer, HelloRequest, HellosRequest};
use grpcxx_greeter::probe::{Load, Order, ProbeClient, ProbeServer};

use crate::support;
use crate::support::{MyProbe, Waits};

struct Both {
    server: Engine,
    engine: Option<Engine>,
    waits: Arc<Waits>,
    client: ProbeClient,
}

impl Both {
    fn start(change: impl FnOnce(ProbeServer<MyProbe>) -> ProbeServer<MyProbe>) -> Self {
        let server = Engine::builder()
            .task("ps", 0)
            .listen("127.0.0.1:0")
            .compute_threads(COMPUTE_THREADS)
            .start()
            .unwrap();
        let probe = MyProbe::default();
        let waits = Arc::clone(&probe.waits);
        server.add_service(change(ProbeServer::new(probe)));
        let engine = Engine::builder().start().unwrap();
        let remote = engine
            .connect(&server.local_addr().unwrap().to_string())
            .unwrap();
        Self {
            server,
            engine: Some(engine),
            waits,
            client: ProbeClient::new(remote),
        }
    }

    fn both_places() -> [Self; 2] {
        [
            Self::start(|server| server),
            Self::start(ProbeServer::on_compute_pool),
        ]
    }

    /// A task that calls its own service.
    fn own() -> Self {
        let mut both = Self::start(|server| server);
        let address = both.server.local_addr().unwrap().to_string();
        both.client = ProbeClient::new(both.server.connect(&address).unwrap());
        both
    }
}

fn load(number: usize, len: usize) -> Load {
    Load {
        data: vec![number as u8; len].into(),
        note: number.to_string(),
    }
}

fn order(messages: u32, bytes: u32) -> Order {
    Order {
        messages,
        bytes,
        ..Order::default()
    }
}

/// Takes all messages, and checks that they came whole and in order.
fn check_all(mut loads: Streaming<Load>, expected: impl Iterator<Item = Load>) {
    for (number, expected) in expected.enumerate() {
        let load = loads.wait_message().unwrap().expect("another message");
        assert!(load == expected, "message {number}");
    }
    assert_eq!(loads.wait_message().unwrap(), None);
    assert_eq!(loads.wait_message().unwrap(), None, "the end is the end");
}

fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_greeter_greets_again_and_again() {
    let server = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    server.add_service(GreeterServer::new(MyGreeter));
    let engine = Engine::builder().start().unwrap();
    let remote = engine
        .connect(&server.local_addr().unwrap().to_string())
        .unwrap();
    let client = GreeterClient::new(remote);
    let name = "you".to_owned();
    let call = client.say_hellos(HellosRequest { name, times: 3 });
    let replies = futures_executor::block_on(async {
        let replies = call.await.unwrap().into_inner();
        replies
            .map(|reply| reply.unwrap().message)
            .collect::<Vec<_>>()
            .await
    });
    let expected = [1, 2, 3].map(|time| format!("Hello you, {time} of 3!"));
    assert_eq!(replies, expected);

    let names = ["one", "two"].map(|name| HelloRequest { name: name.into() });
    let mut replies = client
        .chat(stream::iter(names))
        .wait()
        .unwrap()
        .into_inner();
    for expected in ["Hello one!", "Hello two!"] {
        let reply = replies.wait_message().unwrap().unwrap();
        assert_eq!(reply.message, expected);
    }
    assert_eq!(replies.wait_message().unwrap(), None);
}

#[test]
fn messages_of_all_lengths_cross_both_ways_in_order() {
    let [shard, pool] = Both::both_places();
    for both in [shard, pool, Both::own()] {
        let lengths = [0, 1, 64, 1000, 4096, 5000, 70_000, 1 << 20, 3, 9 << 20, 5];
        let loads = move || (0..).zip(lengths).map(|(number, len)| load(number, len));
        let mut request = Request::new(stream::iter(loads()));
        request.metadata_mut().insert("trace", "beside it").unwrap();
        let answer = both.client.echo_all(request).wait().unwrap();
        assert_eq!(answer.metadata().get("trace"), Some("beside it"));
        check_all(answer.into_inner(), loads());

        let sum = lengths.iter().sum::<usize>() as u64;
        let count = both.client.count(stream::iter(loads())).wait().unwrap();
        assert_eq!(count.get_ref().milliseconds, sum);
        let count = both.client.count(stream::empty()).wait().unwrap();
        assert_eq!(count.get_ref().milliseconds, 0);
    }
}

#[test]
fn a_method_says_something_behind_its_last_message() {
    let [shard, pool] = Both::both_places();
    for both in [shard, pool, Both::own()] {
        let loads = both.client.flood(order(3, 10)).wait().unwrap();
        let mut loads = loads.into_inner();
        assert!(loads.wait_message().unwrap().is_some());
        let trailers = futures_executor::block_on(loads.trailers()).unwrap();
        assert_eq!(trailers.get("made"), Some("3"));
    }
}

#[test]
fn many_small_messages_cross_in_few_batches() {
    const MESSAGES: u32 = 200_000;
    for both in Both::both_places() {
        let loads = both.client.flood(order(MESSAGES, 64)).wait().unwrap();
        let expected = Load {
            data: vec![7; 64].into(),
            note: String::new(),
        };
        let expected = std::iter::repeat_n(expected, MESSAGES as usize);
        check_all(loads.into_inner(), expected);
        let reports = both.server.method_reports();
        let flood = reports.iter().find(|report| report.path.ends_with("Flood"));
        let flood = flood.unwrap();
        assert_eq!((flood.in_flight, &flood.calls[..]), (0, &[(None, 1)][..]));
        assert!(flood.answer_bytes > u64::from(MESSAGES) * 64);
    }
}

#[test]
fn a_stream_ends_with_the_status_of_the_method_behind_its_messages() {
    let [shard, pool] = Both::both_places();
    for both in [shard, pool, Both::own()] {
        for panics in [false, true] {
            let mut order = order(3, 10_000);
            order.panics = panics;
            order.code = match panics {
                true => 0,
                false => Code::DataLoss as i32,
            };
            let loads = both.client.flood(order).wait().unwrap();
            let mut loads = loads.into_inner();
            for _ in 0..3 {
                assert_eq!(loads.wait_message().unwrap().unwrap().data.len(), 10_000);
            }
            let status = loads.wait_message().unwrap_err();
            let code = match panics {
                true => Code::Internal,
                false => Code::DataLoss,
            };
            assert_eq!(status.code, code, "{status}");
            if !panics {
                assert_eq!(status.details(), support::DETAILS);
            }
            assert_eq!(loads.wait_message().unwrap(), None);
        }
        // All else goes on.
        let answer = both.client.echo(load(1, 10)).wait().unwrap();
        assert_eq!(answer.into_inner(), load(1, 10));
    }
}

#[test]
fn a_reader_that_never_reads_holds_up_nothing_and_dropping_it_ends_the_method() {
    let [shard, pool] = Both::both_places();
    for both in [shard, pool] {
        let call = both.client.flood(order(1_000_000, 1000));
        let loads = call.wait().unwrap().into_inner();
        for number in 0..100 {
            let answer = both.client.echo(load(number, 100)).wait().unwrap();
            assert_eq!(answer.into_inner(), load(number, 100));
        }
        let other = both.client.flood(order(1000, 100)).wait().unwrap();
        assert_eq!(futures_executor::block_on(other.into_inner().count()), 1000);
        assert_eq!(both.waits.over.load(Ordering::SeqCst), 1);
        drop(loads);
        wait_until("the method ends", || {
            both.waits.over.load(Ordering::SeqCst) == 2
        });
    }
}

/// Another client of the server, on connections of its own.
fn beside(both: &Both) -> (Engine, ProbeClient) {
    let engine = Engine::builder().start().unwrap();
    let address = both.server.local_addr().unwrap().to_string();
    let client = ProbeClient::new(engine.connect(&address).unwrap());
    (engine, client)
}

#[test]
fn streams_that_wait_for_their_client_hold_no_thread_of_the_compute_pool() {
    let both = Both::start(ProbeServer::on_compute_pool);
    let (_engine, other) = beside(&both);
    let unread: Vec<_> = (0..COMPUTE_THREADS)
        .map(|_| both.client.flood(order(1_000_000, 1000)).wait().unwrap())
        .collect();
    let unsent: Vec<_> = (0..COMPUTE_THREADS)
        .map(|_| both.client.count(stream::pending::<Load>()))
        .collect();
    for number in 0..100 {
        let mut request = Request::new(load(number, 100));
        request.set_timeout(Duration::from_secs(10));
        let answer = other.echo(request).wait().unwrap();
        assert_eq!(answer.into_inner(), load(number, 100));
    }
    let loads = other.flood(order(1000, 100)).wait().unwrap();
    assert_eq!(futures_executor::block_on(loads.into_inner().count()), 1000);
    drop((unread, unsent));
    let in_flight = || {
        let reports = both.server.method_reports();
        reports.iter().map(|report| report.in_flight).sum::<u64>()
    };
    wait_until("the methods end", || in_flight() == 0);
}

#[test]
fn streams_that_go_on_for_ever_let_others_have_the_compute_pool() {
    let both = Both::start(ProbeServer::on_compute_pool);
    let (_engine, other) = beside(&both);
    let readers: Vec<_> = (0..COMPUTE_THREADS)
        .map(|_| {
            let call = both.client.flood(order(u32::MAX, 1000));
            let mut loads = call.wait().unwrap().into_inner();
            thread::spawn(move || while loads.wait_message().is_ok() {})
        })
        .collect();
    for number in 0..100 {
        let mut request = Request::new(load(number, 100));
        request.set_timeout(Duration::from_secs(10));
        let answer = other.echo(request).wait().unwrap();
        assert_eq!(answer.into_inner(), load(number, 100));
    }
    drop(both);
    for reader in readers {
        reader.join().unwrap();
    }
}

#[test]
fn one_peer_has_so_many_streams_and_no_more() {
    const STREAMS: usize = 3;
    for on_pool in [false, true] {
        let server = Engine::builder()
            .listen("127.0.0.1:0")
            .configure(|options| {
                let limits = RendezvousLimits::default();
                let shares = PeerShares::of(&limits, 64);
                // One connection has about half of them.
                options.shares = Some(shares.with(|shares| shares.streams = 5));
            })
            .start()
            .unwrap();
        let probe = ProbeServer::new(MyProbe::default());
        server.add_service(match on_pool {
            true => probe.on_compute_pool(),
            false => probe,
        });
        let engine = Engine::builder().start().unwrap();
        let address = server.local_addr().unwrap().to_string();
        let client = ProbeClient::new(engine.connect(&address).unwrap());
        let unread = || client.flood(order(1_000_000, 1000)).wait();
        // The first is at its end, but for what nobody has read.
        let mut open = vec![client.flood(order(1, 5 << 20)).wait().unwrap()];
        open.extend((1..STREAMS).map(|_| unread().unwrap()));
        let status = unread().unwrap_err();
        assert_eq!(status.code, Code::ResourceExhausted, "{status}");
        assert_eq!(server.counters().streams_refused, 1);
        let answer = client.echo(load(1, 10)).wait().unwrap();
        assert_eq!(answer.into_inner(), load(1, 10));
        let first = open.swap_remove(0).into_inner();
        assert_eq!(futures_executor::block_on(first.count()), 1);
        wait_until("there is room again", || unread().is_ok());
    }
}

#[test]
fn deadlines_bound_streams() {
    for both in [Both::start(|server| server), Both::own()] {
        let mut request = Request::new(order(1_000_000, 1000));
        request.set_timeout(Duration::from_millis(50));
        let mut loads = both.client.flood(request).wait().unwrap().into_inner();
        thread::sleep(Duration::from_millis(60));
        let status = loop {
            match loads.wait_message() {
                Ok(message) => assert!(message.is_some()),
                Err(status) => break status,
            }
        };
        assert_eq!(status.code, Code::DeadlineExceeded, "{status}");
        wait_until("the method ends", || {
            both.waits.over.load(Ordering::SeqCst) == 1
        });
    }
}

#[test]
fn a_method_hears_when_its_client_vanishes() {
    let mut both = Both::start(|server| server);
    let (sender, receiver) = futures_channel::mpsc::unbounded();
    sender.unbounded_send(load(1, 1)).unwrap();
    let mut echoes = both.client.echo_all(receiver).wait().unwrap().into_inner();
    assert_eq!(echoes.wait_message().unwrap(), Some(load(1, 1)));
    sender.unbounded_send(load(2, 2)).unwrap();
    assert_eq!(echoes.wait_message().unwrap(), Some(load(2, 2)));
    let reports = |both: &Both| both.server.method_reports();
    let in_flight = |both: &Both| {
        reports(both)
            .iter()
            .map(|report| report.in_flight)
            .sum::<u64>()
    };
    assert_eq!(in_flight(&both), 1);
    drop(both.engine.take());
    wait_until("the method ends", || in_flight(&both) == 0);
}

#[test]
fn a_stream_of_requests_that_is_dropped_or_panics_ends_the_call() {
    let both = Both::start(|server| server);
    let panics = stream::iter([load(1, 1)]).chain(stream::once(async { panic!("on purpose") }));
    let status = both.client.count(panics).wait().unwrap_err();
    assert_eq!(status.code, Code::Cancelled, "{status}");
    let answer = both.client.echo(load(1, 10)).wait().unwrap();
    assert_eq!(answer.into_inner(), load(1, 10));
}

#[tokio::test]
async fn streams_are_used_from_tokio() {
    let both = Both::start(|server| server);
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let requests = stream::unfold(
        receiver,
        |mut receiver: tokio::sync::mpsc::Receiver<Load>| async {
            let load = receiver.recv().await?;
            Some((load, receiver))
        },
    );
    let call = both.client.echo_all(requests);
    let mut echoes = call.await.unwrap().into_inner();
    for number in 0..100 {
        sender.send(load(number, number * 100)).await.unwrap();
        let echo = echoes.message().await.unwrap();
        assert_eq!(echo, Some(load(number, number * 100)));
    }
    drop(sender);
    assert_eq!(echoes.message().await.unwrap(), None);
}

#[test]
fn streams_are_used_from_an_engine_without_threads() {
    let both = Both::start(|server| server);
    let engine = Engine::builder().start_local().unwrap();
    let address = both.server.local_addr().unwrap().to_string();
    let client = ProbeClient::new(engine.connect(&address).unwrap());
    let echoes = engine.block_on(async {
        let loads = (0..1000).map(|number| load(number, 50));
        let call = client.echo_all(stream::iter(loads));
        let echoes = call.await.unwrap().into_inner();
        echoes
            .map(|echo| echo.unwrap().note.parse::<usize>().unwrap())
            .collect::<Vec<usize>>()
            .await
    });
    assert!(echoes.into_iter().eq(0..1000));
}

#[test]
fn calls_of_the_wrong_kind_are_unimplemented() {
    let both = Both::start(|server| server);
    let address = both.server.local_addr().unwrap().to_string();
    let remote = both.engine.as_ref().unwrap().connect(&address).unwrap();
    let client = grpcxx::service::ServiceClient::new(remote);
    let request = Request::new(load(1, 1));
    let unary = client.unary::<_, Load>("/probe.Probe/EchoAll", request.clone());
    let status = unary.wait().unwrap_err();
    assert_eq!(status.code, Code::Unimplemented, "{status}");
    assert!(status.message.contains("streams"), "{status}");
    for path in [
        "/probe.Probe/Echo",
        "/probe.Probe/Gone",
        "/gone.Service/Echo",
    ] {
        let call = client.server_stream::<_, Load>(path, request.clone());
        let status = call.wait().unwrap_err();
        assert_eq!(status.code, Code::Unimplemented, "{status}");
    }
    assert!(
        client
            .server_stream::<_, Load>("no path", request)
            .wait()
            .is_err()
    );
}

/// Threads of the compute pool of each server.
const COMPUTE_THREADS: usize = 2;
