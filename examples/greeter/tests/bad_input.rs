//! What goes wrong with one stream: it ends with one clear status, is counted once, and disturbs
//! nothing else on its connection.

use std::thread;
use std::time::{Duration, Instant};

use futures_channel::mpsc::UnboundedSender;
use futures_util::stream;
use grpcxx::Engine;
use grpcxx::service::{Code, Request, ServiceClient, Status, Streaming};
use grpcxx_greeter::probe::{Load, Order, ProbeClient, ProbeServer, Span};

use crate::support::MyProbe;

/// A client and a server between which a stream goes on all the time.
struct Scene {
    server: Engine,
    _engine: Engine,
    raw: ServiceClient,
    client: ProbeClient,
    bystander: UnboundedSender<Load>,
    echoes: Streaming<Load>,
    sent: usize,
}

fn load(len: usize) -> Load {
    Load {
        data: vec![7; len].into(),
        note: len.to_string(),
    }
}

impl Scene {
    fn start(on_pool: bool) -> Self {
        let server = Engine::builder().listen("127.0.0.1:0").start().unwrap();
        let probe = ProbeServer::new(MyProbe::default());
        server.add_service(match on_pool {
            true => probe.on_compute_pool(),
            false => probe,
        });
        let engine = Engine::builder().start().unwrap();
        let address = server.local_addr().unwrap().to_string();
        let remote = engine.connect(&address).unwrap();
        let client = ProbeClient::new(remote.clone());
        let (bystander, loads) = futures_channel::mpsc::unbounded();
        bystander.unbounded_send(load(0)).unwrap();
        let mut echoes = client.echo_all(loads).wait().unwrap().into_inner();
        assert_eq!(echoes.wait_message().unwrap(), Some(load(0)));
        Self {
            raw: ServiceClient::new(remote),
            client,
            bystander,
            echoes,
            server,
            _engine: engine,
            sent: 1,
        }
    }

    /// How often the method has ended with this code.
    fn ended_with(&self, method: &str, code: Code) -> u64 {
        let reports = self.server.method_reports();
        let report = reports.iter().find(|report| report.path.ends_with(method));
        let calls = report.map_or(&[][..], |report| &report.calls);
        let counted = calls.iter().find(|(found, _)| *found == Some(code));
        counted.map_or(0, |(_, count)| *count)
    }

    /// Runs what is wrong, and checks its status, that it is counted, and that all else goes on.
    fn check(
        &mut self,
        what: &str,
        code: Code,
        counted: Option<(&str, Code)>,
        run: impl FnOnce(&Self) -> Status,
    ) {
        let ended = |(method, code)| self.ended_with(method, code);
        let before = counted.map(ended);
        let failed = self.server.counters().requests_failed;
        let status = run(self);
        assert_eq!(status.code, code, "{what}: {status}");
        assert!(!status.message.is_empty(), "{what}");
        match before {
            Some(before) => until(what, || counted.map(ended) == Some(before + 1)),
            None => until(what, || {
                self.server.counters().requests_failed == failed + 1
            }),
        }
        self.bystander.unbounded_send(load(self.sent)).unwrap();
        let echo = self.echoes.wait_message().unwrap();
        assert_eq!(echo, Some(load(self.sent)), "{what}");
        self.sent += 1;
        let answer = self.client.echo(load(3)).wait().unwrap();
        assert_eq!(answer.into_inner(), load(3), "{what}");
        let in_flight = || {
            let reports = self.server.method_reports();
            reports.iter().map(|report| report.in_flight).sum::<u64>()
        };
        until(what, || in_flight() == 1);
        assert_eq!(self.server.counters().violations, 0, "{what}");
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// How a stream of answers ends, behind how many messages.
fn end_of(mut loads: Streaming<Load>) -> (usize, Status) {
    let mut count = 0;
    loop {
        match loads.wait_message() {
            Ok(Some(_)) => count += 1,
            Ok(None) => panic!("it ended well behind {count} messages"),
            Err(status) => return (count, status),
        }
    }
}

#[test]
fn what_goes_wrong_with_a_stream_stays_with_it() {
    for on_pool in [false, true] {
        let mut scene = Scene::start(on_pool);
        for path in ["/probe.Probe/Gone", "/gone.Service/EchoAll"] {
            scene.check(path, Code::Unimplemented, None, |scene| {
                let request = Request::new(stream::iter([load(1)]));
                let call = scene.raw.two_streams::<_, Load, _>(path, request);
                call.wait().unwrap_err()
            });
        }
        let what = "malformed messages";
        scene.check(
            what,
            Code::InvalidArgument,
            Some(("Count", Code::InvalidArgument)),
            |scene| {
                let order = Order {
                    messages: 7,
                    ..Order::default()
                };
                let request = Request::new(stream::iter([order]));
                let path = "/probe.Probe/Count";
                let call = scene.raw.client_stream::<_, Span, _>(path, request);
                call.wait().unwrap_err()
            },
        );
        let what = "a malformed message where one is due";
        scene.check(
            what,
            Code::InvalidArgument,
            Some(("Flood", Code::InvalidArgument)),
            |scene| {
                let request = Request::new(load(7));
                let path = "/probe.Probe/Flood";
                let call = scene.raw.server_stream::<_, Load>(path, request.clone());
                call.wait().unwrap_err()
            },
        );
        let what = "a message that its client may not send";
        let counted = Some(("EchoAll", Code::Cancelled));
        scene.check(what, Code::ResourceExhausted, counted, |scene| {
            let (sender, loads) = futures_channel::mpsc::unbounded();
            sender.unbounded_send(load(1)).unwrap();
            let mut echoes = scene.client.echo_all(loads).wait().unwrap().into_inner();
            assert_eq!(echoes.wait_message().unwrap(), Some(load(1)));
            sender.unbounded_send(load(65 << 20)).unwrap();
            end_of(echoes).1
        });
        let what = "a message that is too long for the method";
        scene.check(
            what,
            Code::ResourceExhausted,
            Some(("Flood", Code::ResourceExhausted)),
            |scene| {
                let order = Order {
                    messages: 1,
                    bytes: 65 << 20,
                    ..Order::default()
                };
                let loads = scene.client.flood(order).wait().unwrap();
                end_of(loads.into_inner()).1
            },
        );
        for messages in [0, 3] {
            let what = "a method that panics";
            scene.check(
                what,
                Code::Internal,
                Some(("Flood", Code::Internal)),
                |scene| {
                    let order = Order {
                        messages,
                        panics: true,
                        ..Order::default()
                    };
                    let loads = scene.client.flood(order).wait().unwrap();
                    let (count, status) = end_of(loads.into_inner());
                    assert_eq!(count, messages as usize);
                    status
                },
            );
        }
        let what = "a client that vanishes in mid-stream";
        let counted = Some(("Count", Code::Cancelled));
        scene.check(what, Code::Unavailable, counted, |scene| {
            let other = Engine::builder().start().unwrap();
            let address = scene.server.local_addr().unwrap().to_string();
            let client = ProbeClient::new(other.connect(&address).unwrap());
            let (sender, loads) = futures_channel::mpsc::unbounded();
            sender.unbounded_send(load(1)).unwrap();
            let call = client.count(loads);
            until("the method has begun", || {
                let reports = scene.server.method_reports();
                let count = reports.iter().find(|report| report.path.ends_with("Count"));
                count.is_some_and(|report| report.in_flight == 1)
            });
            drop(other);
            call.wait().unwrap_err()
        });
    }
}
