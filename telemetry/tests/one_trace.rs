//! A call over three tasks is one trace, at a collector that records what OTLP brings.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use grpcxx_rpc::{GraphCall, Status, Tensor};
use grpcxx_runtime::{Engine, Remote};
use grpcxx_telemetry::{Settings, Telemetry};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;

/// Tells of each span that is closed.
struct Closed(Sender<()>);

impl<S: tracing::Subscriber> Layer<S> for Closed {
    fn on_close(&self, _: tracing::span::Id, _: Context<'_, S>) {
        let _ = self.0.send(());
    }
}

struct Collector(Sender<Span>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        for resource in request.into_inner().resource_spans {
            for scope in resource.scope_spans {
                for span in scope.spans {
                    let _ = self.0.send(span);
                }
            }
        }
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A collector on a thread of its own.
fn collector() -> (SocketAddr, Receiver<Span>) {
    let (spans, recorded) = channel();
    let (told, address) = channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            told.send(listener.local_addr().unwrap()).unwrap();
            tonic::transport::Server::builder()
                .add_service(TraceServiceServer::new(Collector(spans)))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
    });
    (address.recv().unwrap(), recorded)
}

fn task(job: &str) -> Engine {
    Engine::builder()
        .task(job, 0)
        .listen("127.0.0.1:0")
        .start()
        .unwrap()
}

fn remote(from: &Engine, to: &Engine) -> Remote {
    from.connect(&to.local_addr().unwrap().to_string()).unwrap()
}

fn call(name: &str) -> GraphCall {
    GraphCall::new(name).with_fetch("y")
}

#[test]
fn a_call_over_three_tasks_is_one_trace() {
    let (address, recorded) = collector();
    let settings = Settings::new(format!("http://{address}"), "test");
    let telemetry = Telemetry::start(&settings).unwrap();
    let (tell, closed) = channel();
    tracing_subscriber::registry()
        .with(telemetry.layer())
        .with(Closed(tell))
        .init();

    let [front, middle, back, user] = ["front", "middle", "back", "user"].map(task);
    back.register_fn(
        "fails",
        |_: GraphCall| -> Result<[(&str, Tensor); 1], Status> {
            Err(Status::new(grpcxx_rpc::Code::NotFound, "nothing is here"))
        },
    );
    let to_back = remote(&middle, &back);
    middle.register_async("passes_on", move |_: GraphCall| {
        let to_back = to_back.clone();
        async move { to_back.run(call("fails")).await }
    });
    let to_middle = remote(&front, &middle);
    front.register_fn("asks", move |_: GraphCall| {
        to_middle.run(call("passes_on")).wait()
    });
    let status = remote(&user, &front).run(call("asks")).wait().unwrap_err();
    assert_eq!(status.message, "nothing is here");
    // The caller may have its answer before the span of who gave it is closed.
    for _ in 0..6 {
        closed.recv_timeout(Duration::from_secs(5)).unwrap();
    }
    drop(telemetry);

    let mut spans = HashMap::new();
    while let Ok(span) = recorded.recv_timeout(Duration::from_secs(5)) {
        spans.insert((span.name.clone(), span.kind), span);
        if spans.len() == 6 {
            break;
        }
    }
    let mut parent = Vec::new();
    let mut trace = Vec::new();
    for name in ["asks", "passes_on", "fails"] {
        for kind in [SpanKind::Client, SpanKind::Server] {
            let span = &spans[&(name.to_owned(), kind as i32)];
            assert_eq!(span.parent_span_id, parent, "{name} {kind:?}");
            assert_eq!(span.status.as_ref().unwrap().message, "nothing is here");
            if trace.is_empty() {
                trace = span.trace_id.clone();
            }
            assert_eq!(span.trace_id, trace);
            parent = span.span_id.clone();
        }
    }
}
