//! The span of a caller reaches the method that it calls.

use std::sync::Mutex;

use futures_util::{StreamExt, stream};
use grpcxx::trace::{Propagator, set_propagator};
use grpcxx::{Engine, TraceContext};
use grpcxx_greeter::MyGreeter;
use grpcxx_greeter::helloworld::{GreeterClient, GreeterServer, HelloRequest};
use tracing::Span;

/// Lets every span of a caller have one context, and notes those that arrive.
struct Fixed;

impl Propagator for Fixed {
    fn context(&self, _span: &Span) -> Option<TraceContext> {
        TraceContext::new(7, 9, true)
    }

    fn set_parent(&self, _span: &Span, parent: TraceContext) {
        ARRIVED.lock().unwrap().push(parent);
    }
}

static ARRIVED: Mutex<Vec<TraceContext>> = Mutex::new(Vec::new());

fn arrived() -> Vec<TraceContext> {
    std::mem::take(&mut ARRIVED.lock().unwrap())
}

#[test]
fn the_span_of_a_caller_reaches_methods_of_all_kinds() {
    set_propagator(Fixed).unwrap();
    assert!(set_propagator(Fixed).is_err(), "a process has one");
    let sent = TraceContext::new(7, 9, true).unwrap();
    let request = || HelloRequest { name: "you".into() };
    for server in [
        GreeterServer::new(MyGreeter),
        GreeterServer::new(MyGreeter).on_compute_pool(),
    ] {
        let task = Engine::builder().task("ps", 0).listen("127.0.0.1:0");
        let task = task.start().unwrap();
        task.add_service(server);
        let engine = Engine::builder().start().unwrap();
        let address = task.local_addr().unwrap().to_string();
        let client = GreeterClient::new(engine.connect(&address).unwrap());

        client.say_hello(request()).wait().unwrap();
        assert_eq!(arrived(), [sent]);

        let replies = client.chat(stream::iter([request(), request()]));
        let replies = futures_executor::block_on(async { replies.await.unwrap().into_inner() });
        assert_eq!(futures_executor::block_on(replies.count()), 2);
        assert_eq!(arrived(), [sent]);
    }
}
