//! An engine without threads, and short functions, as a program sees them.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, lazy};
use grpcxx_rpc::proto::CleanupAllRequest;
use grpcxx_rpc::{Code, GraphCall, Reason, Status, Tensor};
use grpcxx_runtime::service::{Request, ServiceClient};
use grpcxx_runtime::{Engine, LocalEngine, Remote, local};

const PATIENCE: Duration = Duration::from_secs(20);

fn server() -> Engine {
    let builder = Engine::builder().task("ps", 0).listen("127.0.0.1:0");
    let server = builder.arena_bytes(16 << 20).start().unwrap();
    let add = |call: GraphCall| {
        let value: i64 = call.feed("x")?.value()?;
        Ok([("y", Tensor::scalar(value + 1))])
    };
    server.register_short("short", add);
    server.register_fn("pooled", add);
    server.register_short("bad", |_| -> Result<[(&str, Tensor); 0], Status> {
        panic!("bad function")
    });
    server
}

fn caller() -> LocalEngine {
    let builder = Engine::builder().arena_bytes(16 << 20);
    builder.start_local().unwrap()
}

fn connect(engine: &LocalEngine, server: &Engine) -> Remote {
    let address = server.local_addr().unwrap().to_string();
    engine.connect(&address).unwrap()
}

fn add(name: &str, value: i64) -> GraphCall {
    let call = GraphCall::new(name).with_feed("x", Tensor::scalar(value));
    call.with_fetch("y")
}

#[test]
fn the_thread_that_waits_carries_its_calls() {
    let server = server();
    let engine = caller();
    let remote = connect(&engine, &server);
    for value in 0..200 {
        let name = if value % 2 == 0 { "short" } else { "pooled" };
        let results = engine.block_on(remote.run(add(name, value))).unwrap();
        assert_eq!(results.get("y").unwrap().value::<i64>().unwrap(), value + 1);
    }
    let calls = (0..300).map(|value| remote.run(add("short", value)));
    let all = engine.block_on(join_all(calls));
    for (value, results) in (0..300).zip(all) {
        let results = results.unwrap();
        assert_eq!(results.get("y").unwrap().value::<i64>().unwrap(), value + 1);
    }
}

#[test]
fn a_panic_of_a_short_function_is_the_status_of_its_call_alone() {
    let server = server();
    let engine = caller();
    let remote = connect(&engine, &server);
    let bad = engine
        .block_on(remote.run(GraphCall::new("bad")))
        .unwrap_err();
    assert_eq!(bad.code, Code::Internal);
    assert!(bad.message.contains("bad function"), "{bad}");
    engine.block_on(remote.run(add("short", 1))).unwrap();
}

#[test]
fn calls_end_at_their_deadline_and_are_refused_where_nobody_would_carry_them() {
    let engine = caller();
    let nobody = engine.connect("127.0.0.1:1").unwrap();
    let begin = Instant::now();
    let late = nobody.clone().with_timeout(Duration::from_millis(20));
    let over = engine.block_on(late.run(add("short", 1))).unwrap_err();
    assert!(begin.elapsed() < PATIENCE, "{over}");
    let refused = nobody.run(add("short", 1)).wait().unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    let services = ServiceClient::new(nobody);
    let request = Request::new(CleanupAllRequest::default());
    let call = services.server_stream::<_, CleanupAllRequest>("/a.B/C", request);
    let refused = call.wait().unwrap_err();
    assert_eq!(refused.code, Code::FailedPrecondition);
    let error = Engine::builder().listen("127.0.0.1:0").start_local();
    assert!(error.unwrap_err().to_string().contains("cannot listen"));
}

#[test]
fn futures_timers_and_blocking_code_are_at_hand_while_it_waits() {
    let engine = caller();
    let begin = Instant::now();
    let sum = engine.block_on(async {
        let count = Rc::new(Cell::new(0));
        let counted = Rc::clone(&count);
        let beside = local::spawn_local(async move {
            local::sleep(Duration::from_millis(5)).await;
            counted.set(20);
        });
        let off = local::spawn_blocking(|| 22).await?;
        beside.await?;
        Ok::<_, Status>(count.get() + off)
    });
    assert_eq!(sum, Ok(42));
    assert!(begin.elapsed() >= Duration::from_millis(5));
    let left = engine.block_on(lazy(|_| local::spawn_local(std::future::pending::<()>())));
    drop(engine);
    let lost = futures_executor::block_on(left).unwrap_err();
    assert_eq!(lost.reason, Reason::Stopping);
}

#[test]
fn a_panic_of_a_spawned_future_goes_on_where_the_engine_is_turned() {
    let engine = caller();
    let wait = || {
        engine.block_on(async {
            let bad = local::spawn_local(async { panic!("bad future") });
            let _never: Result<(), Status> = bad.await;
        });
    };
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"bad future"));
    let remote = engine.connect("127.0.0.1:1").unwrap();
    let again = || engine.block_on(remote.run(add("short", 1)));
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(again));
    assert!(ended.is_ok_and(|result| result.unwrap_err().reason == Reason::ShardDied));
}
