//! The engine as a program embeds it: the builder, typed calls, closures and futures as functions.

use std::time::{Duration, Instant};

use futures_executor::block_on;
use grpcxx_rpc::{Code, Fetched, GraphCall, Shape, Status, Tensor};
use grpcxx_runtime::{Engine, Remote};

fn server() -> Engine {
    let builder = Engine::builder().task("ps", 0).listen("127.0.0.1:0");
    builder.shards(2).arena_bytes(16 << 20).start().unwrap()
}

fn caller() -> Engine {
    Engine::builder().arena_bytes(16 << 20).start().unwrap()
}

fn remote(caller: &Engine, server: &Engine) -> Remote {
    let address = server.local_addr().unwrap().to_string();
    caller.connect(&address).unwrap().with_timeout(LONG)
}

fn double() -> GraphCall {
    GraphCall::new("double")
        .with_feed("x", Tensor::scalar(21i32))
        .with_fetch("y")
}

#[test]
fn a_closure_is_called_and_its_results_have_names() {
    let (server, caller) = (server(), caller());
    server.register_fn("double", |call: GraphCall| {
        let x: i32 = call.feed("x")?.value()?;
        Ok([("y", Tensor::scalar(2 * x))])
    });
    let remote = remote(&caller, &server);
    let mut results = remote.run(double()).wait().unwrap();
    assert_eq!(results.take("y").unwrap().value::<i32>(), Ok(42));

    let status = remote
        .run(GraphCall::new("double").with_fetch("y"))
        .wait()
        .unwrap_err();
    assert_eq!(status.code, Code::NotFound);
    assert!(status.message.contains("no \"x\" among the feeds"));
    let status = remote.run(GraphCall::new("halve")).wait().unwrap_err();
    assert_eq!(status.code, Code::NotFound);
}

#[test]
fn an_asynchronous_function_waits_for_another_task_without_a_thread() {
    let (back, front, caller) = (server(), server(), caller());
    back.register_fn("double", |call: GraphCall| {
        std::thread::sleep(Duration::from_millis(20));
        let x: i32 = call.feed("x")?.value()?;
        Ok([("y", Tensor::scalar(2 * x))])
    });
    let onward = remote(&front, &back);
    front.register_async("double", move |call: GraphCall| {
        let onward = onward.clone();
        async move { onward.run(call).await }
    });
    let remote = remote(&caller, &front);
    let calls: Vec<_> = (0..8).map(|_| remote.run(double())).collect();
    for call in calls {
        assert_eq!(block_on(call).unwrap().get("y").unwrap().value(), Ok(42i32));
    }
}

#[test]
fn an_asynchronous_function_that_panics_ends_its_call_alone() {
    let (server, caller) = (server(), caller());
    server.register_async("fails", |call: GraphCall| async move {
        match call.feed("late") {
            Ok(_) => panic!("asked to panic"),
            Err(status) => Err::<Fetched, Status>(status),
        }
    });
    server.register_async("fails early", |call: GraphCall| {
        assert!(call.feeds.is_empty(), "asked to panic");
        async { Ok(Fetched::default()) }
    });
    let remote = remote(&caller, &server);
    for name in ["fails", "fails early"] {
        let call = GraphCall::new(name).with_feed("late", Tensor::scalar(1u8));
        let status = remote.run(call).wait().unwrap_err();
        assert_eq!(status.code, Code::Internal);
        assert_eq!(status.message, "the function panicked: asked to panic");
    }
    let status = remote.run(GraphCall::new("fails")).wait().unwrap_err();
    assert_eq!(status.code, Code::NotFound);
    remote.run(GraphCall::new("fails early")).wait().unwrap();
}

#[test]
fn each_kind_of_call_has_a_result_of_its_own() {
    let (server, caller) = (server(), caller());
    let remote = remote(&caller, &server);
    let weights = Tensor::vector(vec![1.0f32, 2.0]);
    remote.push([("w", weights.clone())]).wait().unwrap();
    let pulled = remote.pull(["w"]).wait().unwrap();
    assert_eq!(pulled.get("w"), Ok(&weights));
    assert_eq!(weights.shape, Shape::new(&[2]).unwrap());
    let status = remote.pull(["v"]).wait().unwrap_err();
    assert_eq!(status.code, Code::NotFound);

    let key = |edge| server.key(caller.task(), edge).unwrap();
    let both = remote.receive_all(7, [key("a"), key("b")]);
    let one = remote.receive(7, key("c"));
    for edge in ["c", "b", "a"] {
        let text = Tensor::vector(edge.as_bytes().to_vec());
        server.send(7, key(edge), text).unwrap();
    }
    let texts: Vec<_> = both.wait().unwrap();
    assert_eq!(texts[0].elements::<u8>().unwrap()[..], *b"a");
    assert_eq!(texts[1].elements::<u8>().unwrap()[..], *b"b");
    assert_eq!(one.wait().unwrap().value(), Ok(b'c'));

    let status = remote.status().wait().unwrap();
    let device = &status.device_attributes[0];
    assert_eq!(device.name, "/job:ps/replica:0/task:0/device:CPU:0");
    assert_eq!(device.incarnation, server.incarnation());

    let waiting = remote.receive(8, key("never"));
    remote.cleanup_step(8).wait().unwrap();
    assert_eq!(waiting.wait().unwrap_err().code, Code::Aborted);
}

#[test]
fn a_call_ends_in_its_time() {
    let (server, caller) = (server(), caller());
    let short = remote(&caller, &server).with_timeout(Duration::from_millis(50));
    let begin = Instant::now();
    let key = server.key(caller.task(), "never").unwrap();
    let status = short.receive(1, key).wait().unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    assert!(begin.elapsed() < LONG);
}

#[test]
fn errors_of_all_kinds_become_statuses() {
    fn shape() -> Result<Shape, Status> {
        Ok(Shape::new(&[1 << 40, 1 << 40])?)
    }
    fn engine() -> Result<Engine, Status> {
        Ok(Engine::builder().listen("somewhere").start()?)
    }
    assert_eq!(shape().unwrap_err().code, Code::InvalidArgument);
    let status = engine().unwrap_err();
    assert_eq!(status.code, Code::FailedPrecondition);
    assert!(status.message.contains("cannot listen on \"somewhere\""));
}

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(10);

#[test]
fn an_address_that_is_taken_is_told_by_the_reason_of_the_system() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let builder = Engine::builder()
        .listen(address.as_str())
        .arena_bytes(16 << 20);
    let error = builder.start().expect_err("the address is taken");
    let reason = error.listen_error().map(|error| error.kind());
    assert_eq!(reason, Some(std::io::ErrorKind::AddrInUse), "{error}");
}
