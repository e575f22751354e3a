use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use grpcxx_rpc::{Code, Status};
use grpcxx_runtime::EngineOptions;

use super::{Api, BenchClient, BenchServer, Mix, Op, RunOptions};

fn pair(shards: usize) -> (BenchServer, BenchClient) {
    let options = EngineOptions::default().with(|options| options.shards = shards);
    let server = BenchServer::start(
        options
            .clone()
            .with(|changed| changed.listen = Some(([127, 0, 0, 1], 0).into())),
    )
    .unwrap();
    let address = server.address().unwrap().to_string();
    let client = BenchClient::start(options, vec![address]).unwrap();
    (server, client)
}

fn short(op: Op) -> RunOptions {
    RunOptions {
        op,
        duration: Duration::from_millis(60),
        verify: true,
        ..RunOptions::default()
    }
}

#[test]
fn each_operation_runs_fused_and_not_with_its_contents_compared() {
    let (_server, client) = pair(1);
    for op in [Op::Latency, Op::Rate, Op::Pull, Op::Push, Op::Ps] {
        for (is_fused, serialized) in [(true, false), (false, false), (true, true)] {
            let mut options = short(op);
            options.payload.count = 40;
            options.payload.mix = Mix::Uniform;
            options.payload.serialized = serialized;
            if !is_fused {
                options.fusion = None;
            }
            let measured = client.run(&options).unwrap().measured;
            assert!(measured.steps > 0, "{op} {is_fused}");
            let calls = measured.calls / measured.steps;
            let crossings = op.crossings();
            if is_fused {
                // 13 large tensors travel alone, the others share a call.
                assert_eq!(calls, 14 * crossings, "{op}");
            } else {
                assert_eq!(calls, 40 * crossings, "{op}");
            }
        }
    }
}

#[test]
fn functions_and_methods_are_called_from_everywhere_with_their_contents_compared() {
    let (_server, client) = pair(2);
    for op in [Op::Call, Op::Unary, Op::Stream] {
        for api in [Api::Shard, Api::Thread, Api::Tokio] {
            for size_bytes in [0, 64, 100_000] {
                let mut options = RunOptions {
                    api,
                    connections: 3,
                    depth: 2,
                    ..short(op)
                };
                options.payload.size_bytes = size_bytes;
                let measured = client.run(&options).unwrap().measured;
                assert!(measured.steps > 0, "{op} {api} {size_bytes}");
                assert_eq!(measured.calls, measured.steps);
            }
        }
    }
}

/// Why a run ends whose server falls silent once it has begun, for longer than a short run takes.
fn run_into_silence(
    server: &mut BenchServer,
    client: &BenchClient,
    options: &RunOptions,
) -> Status {
    let before = server.requests();
    thread::scope(|scope| {
        scope.spawn(move || {
            while server.requests() <= before + 10 {
                thread::sleep(Duration::from_millis(1));
            }
            server.fall_silent(Duration::from_millis(4000));
        });
        client.run(options).map(drop).unwrap_err()
    })
}

#[test]
fn callers_of_a_server_that_falls_silent_are_given_up() {
    let (mut server, client) = pair(1);
    for api in [Api::Shard, Api::Thread, Api::Tokio] {
        let options = RunOptions {
            api,
            duration: Duration::from_millis(1500),
            patience: Duration::from_millis(200),
            ..short(Op::Unary)
        };
        // It answers again before it falls silent the next time.
        client.connect(1).unwrap();
        let status = run_into_silence(&mut server, &client, &options);
        assert_eq!(status.code, Code::DeadlineExceeded, "{api}: {status}");
    }
    assert!(client.run(&short(Op::Unary)).unwrap().measured.steps > 0);
}

#[test]
fn connections_spread_over_shards_and_are_told_apart() {
    let (server, client) = pair(2);
    let options = RunOptions {
        connections: 9,
        depth: 4,
        by_connection: true,
        ..short(Op::Rate)
    };
    let outcome = client.run(&options).unwrap();
    assert_eq!(server.accepted(), 9);
    assert_eq!(outcome.p99_us_by_connection.len(), 9);
    assert!(outcome.p99_us_by_connection.iter().all(Option::is_some));
    assert_eq!(outcome.measured.latency.len(), outcome.measured.steps);
}

#[test]
fn a_limited_rate_is_kept() {
    let (_server, client) = pair(1);
    let options = RunOptions {
        rate: Some(200.0),
        duration: Duration::from_millis(500),
        connections: 2,
        ..short(Op::Latency)
    };
    let measured = client.run(&options).unwrap().measured;
    // A machine that is busy with other things makes fewer, never more.
    assert!((1..=105).contains(&measured.steps), "{}", measured.steps);
}

#[test]
fn a_run_whose_server_falls_silent_is_given_up() {
    let (mut server, client) = pair(1);
    for rate in [None, Some(100.0)] {
        let options = RunOptions {
            rate,
            duration: Duration::from_secs(60),
            patience: Duration::from_millis(200),
            ..short(Op::Latency)
        };
        let status = run_into_silence(&mut server, &client, &options);
        assert_eq!(status.code, Code::DeadlineExceeded, "{rate:?}: {status}");
        assert!(status.message.contains("connection 0 to"), "{status}");
    }
    // What was given up does not go on beside the next run.
    assert!(client.run(&short(Op::Latency)).unwrap().measured.steps > 0);
}

#[test]
fn a_paced_run_ends_with_a_server_that_goes_while_all_slots_wait() {
    let (server, client) = pair(1);
    let options = RunOptions {
        rate: Some(100.0),
        duration: Duration::from_secs(60),
        ..short(Op::Latency)
    };
    let has_ended = Arc::new(AtomicBool::new(false));
    let is_over = Arc::clone(&has_ended);
    let end = thread::spawn(move || {
        thread::sleep(Duration::from_millis(300));
        server.fall_silent(Duration::from_millis(300));
        let listen = server.address().unwrap();
        drop(server);
        // Somebody is there again for the farewell, which would wait for it, and answers nobody: a
        // call that is due later may come there before the others have ended.
        let listener = TcpListener::bind(listen).unwrap();
        listener.set_nonblocking(true).unwrap();
        while !is_over.load(Ordering::Relaxed) {
            drop(listener.accept());
            thread::sleep(Duration::from_millis(1));
        }
    });
    let status = client.run(&options).unwrap_err();
    has_ended.store(true, Ordering::Relaxed);
    end.join().unwrap();
    assert_eq!(status.code, Code::Unavailable, "{status}");
}

#[test]
fn the_limit_is_measured_beside_the_calls() {
    let (_server, client) = pair(1);
    for op in [Op::Latency, Op::Ps] {
        let floors = client
            .floors(&short(op), Duration::from_millis(40))
            .unwrap();
        assert_eq!(floors.len(), 2);
        assert!(
            floors.iter().all(|floor| floor.measured.steps > 0),
            "{floors:?}"
        );
        assert!(client.run(&short(op)).unwrap().measured.steps > 0);
    }
}

#[test]
fn a_server_that_is_no_bench_is_named_with_the_remedy() {
    let server = grpcxx_runtime::Engine::start(
        EngineOptions::default().with(|options| options.listen = Some(([127, 0, 0, 1], 0).into())),
    )
    .unwrap();
    let address = server.local_addr().unwrap().to_string();
    let client = BenchClient::start(EngineOptions::default(), vec![address]).unwrap();
    let status = client.run(&short(Op::Latency)).unwrap_err();
    assert!(status.message.contains("grpcxx bench serve"), "{status}");
}

#[test]
fn a_thousand_connections_are_accepted_and_served() {
    let (server, client) = pair(2);
    client.connect(1000).unwrap();
    assert_eq!(server.accepted(), 1000);
    let options = RunOptions {
        connections: 1000,
        by_connection: true,
        ..short(Op::Rate)
    };
    let outcome = client.run(&options).unwrap();
    assert!(outcome.measured.steps > 0);
    assert_eq!(outcome.p99_us_by_connection.len(), 1000);
    assert_eq!(server.accepted(), 1000, "a run uses the same connections");
}
