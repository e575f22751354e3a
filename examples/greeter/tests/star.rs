//! Services over star: what a generated client gets of a generated server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use grpcxx::service::{Code, Request, Response, ServiceClient};
use grpcxx::{DType, Engine, GraphCall, Reason, Shape, Tensor};
use grpcxx_greeter::MyGreeter;
use grpcxx_greeter::helloworld::{GreeterClient, GreeterServer, HelloReply, HelloRequest};
use grpcxx_greeter::probe::{self, Load, ProbeClient, ProbeServer, Span};

use crate::support;
use crate::support::{MyProbe, Waits};

struct Both {
    server: Engine,
    engine: Engine,
    waits: Arc<Waits>,
    client: ProbeClient,
}

impl Both {
    fn start(change: impl FnOnce(ProbeServer<MyProbe>) -> ProbeServer<MyProbe>) -> Self {
        let server = Engine::builder()
            .task("ps", 0)
            .listen("127.0.0.1:0")
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
            engine,
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

    fn echo(&self) {
        let load = load(100);
        let answer = self.client.echo(load.clone()).wait().unwrap();
        assert_eq!(answer.into_inner(), load);
    }
}

fn load(len: usize) -> Load {
    let data = (0..len).map(|at| at as u8).collect::<Vec<_>>().into();
    let note = "beside it".to_owned();
    Load { data, note }
}

#[test]
fn a_greeter_greets() {
    let server = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    server.add_service(GreeterServer::new(MyGreeter));
    let engine = Engine::builder().start().unwrap();
    let remote = engine
        .connect(&server.local_addr().unwrap().to_string())
        .unwrap();
    let client = GreeterClient::new(remote);
    let name = "star".to_owned();
    let reply = client.say_hello(HelloRequest { name }).wait().unwrap();
    assert_eq!(reply.get_ref().message, "Hello star!");
}

#[test]
fn messages_of_all_lengths_come_back_from_either_place() {
    for both in Both::both_places() {
        for len in [0, 1, 64, 1000, 5000, 100_000, 5 << 20] {
            let load = load(len);
            let answer = both.client.echo(load.clone()).wait().unwrap();
            assert_eq!(answer.into_inner(), load, "{len} bytes");
        }
    }
}

#[test]
fn metadata_crosses_both_ways() {
    let both = Both::start(|server| server);
    let mut request = Request::new(load(3));
    request.metadata_mut().insert("user", "worker 0").unwrap();
    request
        .metadata_mut()
        .insert("trace-bin", [0, 255])
        .unwrap();
    let answer = both.client.echo(request).wait().unwrap();
    assert_eq!(answer.metadata().get("user"), Some("worker 0"));
    assert_eq!(answer.metadata().get_bin("trace-bin"), Some(&[0, 255][..]));
}

#[test]
fn a_failure_arrives_with_its_code_and_its_text() {
    for both in Both::both_places() {
        for code in Code::ALL {
            let number = *code as i32;
            let status = both.client.fail(probe::Code { number }).wait().unwrap_err();
            assert_eq!((status.code, &*status.message), (*code, "as it was told"));
            assert_eq!(status.details(), support::DETAILS);
            assert_eq!(status.reason, Reason::Peer);
        }
        both.echo();
    }
}

#[test]
fn methods_that_wait_wait_together() {
    let both = Both::start(|server| server);
    let begun = Instant::now();
    let calls: Vec<_> = (0..50)
        .map(|_| both.client.wait(Span { milliseconds: 200 }))
        .collect();
    for call in calls {
        call.wait().unwrap();
    }
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "{:?}",
        begun.elapsed()
    );
    let reports = both.server.method_reports();
    let report = reports
        .iter()
        .find(|report| report.path == "/probe.Probe/Wait")
        .unwrap();
    assert_eq!(
        (&report.calls[..], report.in_flight),
        (&[(None, 50)][..], 0)
    );
    assert!(report.latency.quantile_ns(0.5) > 100_000_000, "{report:?}");
}

#[test]
fn a_panic_ends_its_call_alone() {
    for both in Both::both_places() {
        for milliseconds in [0, 10] {
            let status = both.client.panic(Span { milliseconds }).wait().unwrap_err();
            assert_eq!(status.code, Code::Internal);
            assert!(status.message.contains("on purpose"), "{status}");
            both.echo();
        }
    }
}

#[test]
fn what_is_not_there_is_unimplemented() {
    let both = Both::start(|server| server);
    let remote = both
        .engine
        .connect(&both.server.local_addr().unwrap().to_string())
        .unwrap();
    let client = ServiceClient::new(remote.clone());
    for path in ["/probe.Probe/Gone", "/gone.Service/Echo"] {
        let call = client.unary::<Load, Load>(path, Request::new(load(3)));
        let status = call.wait().unwrap_err();
        assert_eq!(status.code, Code::Unimplemented);
        assert!(
            status.message.contains("the services are: probe.Probe"),
            "{status}"
        );
    }
    let call = client.unary::<Load, Load>("no path", Request::new(load(3)));
    assert_eq!(call.wait().unwrap_err().code, Code::InvalidArgument);
    both.echo();
}

#[test]
fn malformed_messages_are_refused_and_counted() {
    let both = Both::start(|server| server);
    let remote = both
        .engine
        .connect(&both.server.local_addr().unwrap().to_string())
        .unwrap();
    // A text where the method takes a number: field 1 has another wire type.
    let name = "text".to_owned();
    let client = ServiceClient::new(remote);
    let call = client.unary::<_, Load>("/probe.Probe/Wait", Request::new(HelloRequest { name }));
    let status = call.wait().unwrap_err();
    assert_eq!(status.code, Code::InvalidArgument, "{status}");
    let reports = both.server.method_reports();
    let report = reports
        .iter()
        .find(|report| report.path == "/probe.Probe/Wait")
        .unwrap();
    assert_eq!(report.calls, [(Some(Code::InvalidArgument), 1)]);
    both.echo();
}

#[test]
fn a_deadline_ends_the_call_and_its_future() {
    let both = Both::start(|server| server);
    both.echo();
    let mut request = Request::new(Span {
        milliseconds: 60_000,
    });
    request.set_timeout(Duration::from_millis(50));
    let status = both.client.wait(request).wait().unwrap_err();
    assert_eq!(status.code, Code::DeadlineExceeded);
    until(|| both.waits.over.load(Ordering::SeqCst) == 1);
    both.echo();
}

#[test]
fn a_call_that_is_dropped_drops_its_future() {
    let both = Both::start(|server| server);
    both.echo();
    let call = both.client.wait(Span {
        milliseconds: 60_000,
    });
    until(|| both.waits.begun.load(Ordering::SeqCst) == 1);
    assert!(call.now_or_never().is_none());
    until(|| both.waits.over.load(Ordering::SeqCst) == 1);
    until(|| {
        let reports = both.server.method_reports();
        reports
            .iter()
            .any(|report| report.calls == [(Some(Code::Cancelled), 1)])
    });
    both.echo();
}

#[test]
fn a_client_that_vanishes_drops_its_futures() {
    let both = Both::start(|server| server);
    let other = Engine::builder().start().unwrap();
    let remote = other
        .connect(&both.server.local_addr().unwrap().to_string())
        .unwrap();
    let call = ProbeClient::new(remote).wait(Span {
        milliseconds: 60_000,
    });
    until(|| both.waits.begun.load(Ordering::SeqCst) == 1);
    drop(other);
    assert_eq!(call.wait().unwrap_err().code, Code::Unavailable);
    until(|| both.waits.over.load(Ordering::SeqCst) == 1);
    both.echo();
}

#[test]
fn every_peer_of_star_can_call_a_method_as_a_function() {
    for both in Both::both_places() {
        let remote = both
            .engine
            .connect(&both.server.local_addr().unwrap().to_string())
            .unwrap();
        // A `Load` with three bytes.
        let message = [0x0a, 3, 1, 2, 3];
        let call = |feed: Tensor| {
            let call = GraphCall::new("/probe.Probe/Echo").with_feed("request", feed);
            remote.run(call.with_fetch("response")).wait()
        };
        let vector = Tensor::from_slice(Shape::vector(5), &message).unwrap();
        let answer = call(vector).unwrap();
        assert_eq!(answer.get("response").unwrap().data[..], message);
        let scalar = Tensor::scalar(1u8);
        assert_eq!(scalar.dtype, DType::UInt8);
        assert_eq!(call(scalar).unwrap_err().code, Code::InvalidArgument);
    }
}

#[test]
fn methods_called_as_functions_hold_no_thread_and_end_with_their_callers() {
    const CALLS: usize = 50;
    for both in Both::both_places() {
        let remote = both
            .engine
            .connect(&both.server.local_addr().unwrap().to_string())
            .unwrap();
        // A `Span` of some hours.
        let hours = [0x08_u8, 0x80, 0x80, 0x80, 0x08];
        let calls: Vec<_> = (0..CALLS)
            .map(|_| {
                let feed = Tensor::from_slice(Shape::vector(hours.len()), &hours).unwrap();
                let call = GraphCall::new("/probe.Probe/Wait").with_feed("request", feed);
                remote.run(call.with_fetch("response"))
            })
            .collect();
        until(|| both.waits.begun.load(Ordering::SeqCst) == CALLS);
        assert_eq!(both.waits.over.load(Ordering::SeqCst), 0);
        drop(calls);
        until(|| both.waits.over.load(Ordering::SeqCst) == CALLS);
    }
}

#[test]
fn a_peer_that_announces_nothing_is_called_all_the_same() {
    let server = Engine::builder()
        .extensions(false)
        .listen("127.0.0.1:0")
        .start()
        .unwrap();
    server.add_service(GreeterServer::new(MyGreeter));
    let engine = Engine::builder().start().unwrap();
    let remote = engine
        .connect(&server.local_addr().unwrap().to_string())
        .unwrap();
    let name = "original".to_owned();
    let reply: Response<HelloReply> = GreeterClient::new(remote)
        .say_hello(HelloRequest { name })
        .wait()
        .unwrap();
    assert_eq!(reply.get_ref().message, "Hello original!");
}

fn until(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "it never came to be"
        );
        thread::sleep(Duration::from_millis(5));
    }
}
