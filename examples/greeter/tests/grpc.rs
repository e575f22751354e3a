//! Services at the gRPC endpoint of a task: what clients of gRPC get of them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::stream;
use grpcxx::server::Server;
use grpcxx_greeter::MyGreeter;
use grpcxx_greeter::helloworld::{GreeterServer, HelloReply, HelloRequest};
use grpcxx_greeter::probe::{self, Load, Order, ProbeServer, Span};
use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::{HeaderMap, HeaderValue};
use tonic::metadata::{MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Extensions, Request, Response, Status};
use tonic_prost::ProstCodec;

use crate::cpp;
use crate::door;
use crate::python::{skip, text};
use crate::support;
use crate::support::{MyProbe, grpcio, run_client};

fn start() -> (Server, [SocketAddr; 2]) {
    start_with("", "")
}

/// Starts a task with a variable that is set.
fn start_with(variable: &str, value: &str) -> (Server, [SocketAddr; 2]) {
    let (server, [grpc, _, metrics]) = door::start_with(variable, value);
    server.add_service(GreeterServer::new(MyGreeter)).unwrap();
    let probe = ProbeServer::new(MyProbe::default());
    server.add_service(probe).unwrap();
    (server, [grpc, metrics])
}

async fn call<M, R>(
    grpc: SocketAddr,
    path: &'static str,
    request: Request<M>,
) -> Result<Response<R>, Status>
where
    M: Message + Default + 'static,
    R: Message + Default + 'static,
{
    let channel = Channel::from_shared(format!("http://{grpc}")).unwrap();
    let mut client = Grpc::new(channel.connect().await.unwrap());
    client.ready().await.unwrap();
    let codec = ProstCodec::<M, R>::default();
    client.unary(request, path.parse().unwrap(), codec).await
}

#[tokio::test]
async fn a_client_of_tonic_calls_what_was_registered() {
    let (server, [grpc, metrics]) = start();
    let name = "tonic".to_owned();
    let request = Request::new(HelloRequest { name });
    let reply = call::<_, HelloReply>(grpc, "/helloworld.Greeter/SayHello", request).await;
    assert_eq!(reply.unwrap().get_ref().message, "Hello tonic!");
    let page = page(metrics);
    let labels = r#"{method="service",medium="local",shard="0""#;
    for line in [
        format!("grpcxx_call_seconds_bucket{labels},le=\"+Inf\"}} 1\n"),
        format!("grpcxx_call_seconds_count{labels}}} 1\n"),
        "# TYPE grpcxx_request_seconds histogram\n".to_owned(),
        "grpcxx_shards_silent 0\n".to_owned(),
    ] {
        assert!(page.contains(&line), "{line} is not in {page}");
    }
    server.shutdown(Duration::ZERO);
}

/// What star cannot carry is refused, with its name, and not left out.
#[tokio::test]
async fn metadata_that_a_method_cannot_be_told_end_the_call() {
    let (server, [grpc, _]) = start();
    let channel = Channel::from_shared(format!("http://{grpc}")).unwrap();
    let mut client = Grpc::new(channel.connect().await.unwrap());
    let long = "x".repeat(300);
    let not_ascii = MetadataValue::try_from(&b"caf\xc3\xa9"[..]).unwrap();
    let fine = MetadataValue::from_static("fine");
    for (name, value) in [(&long[..], fine), ("not-ascii", not_ascii)] {
        let key = MetadataKey::from_bytes(name.as_bytes()).unwrap();
        let mut request = Request::new(Load::default());
        request.metadata_mut().insert(key.clone(), value.clone());
        let refused = call::<_, Load>(grpc, "/probe.Probe/Echo", request).await;
        let mut request = Request::new(stream::iter([Load::default()]));
        request.metadata_mut().insert(key, value);
        client.ready().await.unwrap();
        let path = "/probe.Probe/Count".parse().unwrap();
        let codec = ProstCodec::<Load, Span>::default();
        let streamed = client.client_streaming(request, path, codec).await;
        for status in [refused.unwrap_err(), streamed.unwrap_err()] {
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(status.message().contains(name), "{status}");
            assert!(status.message().contains("change or leave it"), "{status}");
        }
    }
    server.shutdown(Duration::ZERO);
}

/// Proxies may join the values of one name, with padding and without.
#[tokio::test]
async fn bytes_that_a_proxy_has_joined_come_apart() {
    let (server, [grpc, _]) = start();
    let mut joined = HeaderMap::new();
    joined.insert("key-bin", HeaderValue::from_static("AP8=,YQ, Yg==,,Y2Q"));
    joined.insert("text", HeaderValue::from_static("a,b"));
    let metadata = MetadataMap::from_headers(joined);
    let request = Request::from_parts(metadata, Extensions::new(), Load::default());
    let answer = call::<_, Load>(grpc, "/probe.Probe/Echo", request).await;
    let answer = answer.unwrap();
    let values = answer.metadata().get_all_bin("key-bin").iter();
    let values: Vec<_> = values.map(|value| value.to_bytes().unwrap()).collect();
    assert_eq!(values, [&[0, 255][..], b"a", b"b", b"", b"cd"]);
    assert_eq!(answer.metadata().get("text").unwrap(), "a,b");
    let mut broken = HeaderMap::new();
    broken.insert("key-bin", HeaderValue::from_static("YQ,Y"));
    let metadata = MetadataMap::from_headers(broken);
    let request = Request::from_parts(metadata, Extensions::new(), Load::default());
    let refused = call::<_, Load>(grpc, "/probe.Probe/Echo", request).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("key-bin"), "{refused}");
    server.shutdown(Duration::ZERO);
}

#[tokio::test]
async fn a_client_gets_the_details_of_a_failure() {
    let (server, [grpc, _]) = start();
    let request = Request::new(probe::Code { number: 5 });
    let status = call::<_, Load>(grpc, "/probe.Probe/Fail", request).await;
    let status = status.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(status.details(), support::DETAILS);
    server.shutdown(Duration::ZERO);
}

#[tokio::test]
async fn a_method_hears_what_its_caller_calls_itself() {
    let (server, [grpc, _]) = start();
    let mut request = Request::new(Load::default());
    let said = MetadataValue::from_static("Bearer me");
    request.metadata_mut().insert("authorization", said);
    let answer = call::<_, Load>(grpc, "/probe.Probe/Echo", request).await;
    let answer = answer.unwrap();
    assert_eq!(answer.metadata().get("authorization").unwrap(), "Bearer me");
    server.shutdown(Duration::ZERO);
}

#[tokio::test]
async fn what_a_method_says_behind_its_messages_are_trailers() {
    let (server, [grpc, _]) = start();
    let channel = Channel::from_shared(format!("http://{grpc}")).unwrap();
    let mut client = Grpc::new(channel.connect().await.unwrap());
    for messages in [0, 3] {
        client.ready().await.unwrap();
        let codec = ProstCodec::<Order, Load>::default();
        let order = Order {
            messages,
            bytes: 10,
            ..Order::default()
        };
        let path = "/probe.Probe/Flood".parse().unwrap();
        let answer = client.server_streaming(Request::new(order), path, codec);
        let mut loads = answer.await.unwrap().into_inner();
        let mut count = 0;
        while loads.message().await.unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, messages);
        let trailers = loads.trailers().await.unwrap().unwrap_or_default();
        let made = trailers.get("made").map(|made| made.to_str().unwrap());
        assert_eq!(made, (messages > 0).then_some("3"));
    }
    server.shutdown(Duration::ZERO);
}

#[tokio::test]
async fn one_peer_has_so_many_streams_through_this_door() {
    let (server, [grpc, metrics]) = start_with("GRPCXX_PEER_STREAMS_MAX", "2");
    let door = Channel::from_shared(format!("http://{grpc}")).unwrap();
    // However many connections it has.
    let (one, other) = (door.connect().await.unwrap(), door.connect().await.unwrap());
    let begin = async |channel: &Channel| {
        let mut client = Grpc::new(channel.clone());
        client.ready().await.unwrap();
        let order = Order {
            messages: 1_000_000,
            bytes: 1000,
            ..Order::default()
        };
        let path = "/probe.Probe/Flood".parse().unwrap();
        let codec = ProstCodec::<Order, Load>::default();
        client
            .server_streaming(Request::new(order), path, codec)
            .await
    };
    let first = begin(&one).await.unwrap();
    let _second = begin(&other).await.unwrap();
    let refused = begin(&one).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(page(metrics).contains("grpcxx_streams_refused_total 1\n"));
    let request = Request::new(HelloRequest::default());
    let reply = call::<_, HelloReply>(grpc, "/helloworld.Greeter/SayHello", request).await;
    assert!(reply.is_ok());
    drop(first);
    let until = Instant::now() + Duration::from_secs(10);
    while let Err(status) = begin(&one).await {
        assert!(Instant::now() < until, "{status}");
    }
    server.shutdown(Duration::ZERO);
}

#[tokio::test]
async fn bad_input_ends_one_stream_with_one_status() {
    let (server, [grpc, _]) = start();
    let channel = Channel::from_shared(format!("http://{grpc}")).unwrap();
    let mut client = Grpc::new(channel.connect().await.unwrap());
    let panics = Order {
        panics: true,
        ..Order::default()
    };
    let fails = Order {
        messages: 2,
        code: Code::DataLoss as i32,
        ..Order::default()
    };
    for (order, expected) in [(panics, Code::Internal), (fails, Code::DataLoss)] {
        client.ready().await.unwrap();
        let codec = ProstCodec::<Order, Load>::default();
        let path = "/probe.Probe/Flood".parse().unwrap();
        let answer = client.server_streaming(Request::new(order), path, codec);
        let mut loads = answer.await.unwrap().into_inner();
        let status = loop {
            match loads.message().await {
                Ok(message) => assert!(message.is_some()),
                Err(status) => break status,
            }
        };
        assert_eq!(status.code(), expected, "{status:?}");
        if expected == Code::DataLoss {
            assert_eq!(status.details(), support::DETAILS);
        }
    }
    for (path, expected) in [
        ("/probe.Probe/Count", Code::InvalidArgument),
        ("/probe.Probe/Gone", Code::Unimplemented),
        ("/gone.Service/Count", Code::Unimplemented),
    ] {
        client.ready().await.unwrap();
        let codec = ProstCodec::<Order, Span>::default();
        let orders = stream::iter([Order {
            messages: 7,
            ..Order::default()
        }]);
        let request = Request::new(orders);
        let answer = client.client_streaming(request, path.parse().unwrap(), codec);
        let status = answer.await.unwrap_err();
        assert_eq!(status.code(), expected, "{path}: {status:?}");
    }
    let echo = call::<_, Load>(grpc, "/probe.Probe/Echo", Request::new(Load::default())).await;
    assert_eq!(echo.unwrap().into_inner(), Load::default());
    server.shutdown(Duration::ZERO);
}

#[tokio::test]
async fn bad_input_ends_one_call_with_one_status() {
    let (server, [grpc, _]) = start();
    let name = "text".to_owned();
    let malformed = Request::new(HelloRequest { name });
    let status = call::<_, Load>(grpc, "/probe.Probe/Wait", malformed)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let panics = Request::new(Span { milliseconds: 1 });
    let status = call::<_, Load>(grpc, "/probe.Probe/Panic", panics)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Internal, "{status:?}");
    for path in ["/probe.Probe/Gone", "/gone.Service/Echo"] {
        let status = call::<_, Load>(grpc, path, Request::new(Load::default()))
            .await
            .unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{status:?}");
    }
    let echo = call::<_, Load>(grpc, "/probe.Probe/Echo", Request::new(Load::default())).await;
    assert_eq!(echo.unwrap().into_inner(), Load::default());
    server.shutdown(Duration::ZERO);
}

#[test]
fn grpcio_finds_services_and_health_through_reflection() {
    let Some(python) = grpcio() else {
        return;
    };
    let (server, [grpc, metrics]) = start();
    run_client(&python, "client.py", grpc, 7);
    let page = page(metrics);
    for line in [
        r#"grpcxx_service_calls_total{service="helloworld.Greeter",method="SayHello",code="OK"} 1"#,
        r#"grpcxx_service_calls_total{service="probe.Probe",method="Fail",code="NOT_FOUND"} 1"#,
        r#"grpcxx_service_call_seconds_count{service="probe.Probe",method="Echo"} 1"#,
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    assert_documented(&page);
    server.shutdown(Duration::ZERO);
}

#[test]
fn a_client_of_grpc_cpp_calls_methods_of_all_kinds_through_its_stubs() {
    let client = match cpp::client() {
        Ok(client) => client,
        Err(reason) => return skip("gRPC C++", &reason),
    };
    let (server, [grpc, metrics]) = start();
    let output = Command::new(client).arg(grpc.to_string()).output().unwrap();
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("passed ").count(), 5, "{said}");
    let page = page(metrics);
    for line in [
        r#"grpcxx_service_calls_total{service="helloworld.Greeter",method="Chat",code="OK"} 1"#,
        r#"grpcxx_service_calls_total{service="helloworld.Greeter",method="SayHellos",code="OK"} 1"#,
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    server.shutdown(Duration::ZERO);
}

/// The document has a row for each metric, and the dashboard and the alerts ask for no other.
fn assert_documented(page: &str) {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |path: &str| std::fs::read_to_string(root.join(path)).unwrap();
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let exported: BTreeSet<&str> = families.filter_map(|line| line.split(' ').next()).collect();
    let text = read("docs/operating.md");
    let rows = text
        .lines()
        .filter_map(|line| line.strip_prefix("| `grpcxx_"));
    let rows = rows.filter_map(|row| row.split('`').next());
    let documented: BTreeSet<String> = rows.map(|row| format!("grpcxx_{row}")).collect();
    let documented: BTreeSet<&str> = documented.iter().map(String::as_str).collect();
    assert_eq!(documented, exported);
    for path in ["deploy/grafana/grpcxx.json", "deploy/prometheus/alerts.yml"] {
        let text = read(path);
        let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        for word in words.filter(|word| word.starts_with("grpcxx_")) {
            let family = word.trim_end_matches("_bucket");
            assert!(exported.contains(family), "{path} asks for {word}");
        }
    }
}

/// The page of metrics.
fn page(address: SocketAddr) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    let request = format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    page
}
