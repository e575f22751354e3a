//! Services at the gRPC endpoint of a task: what clients of gRPC get of them.

#![expect(clippy::print_stderr, reason = "what is skipped says so")]

#[path = "../../../control/tests/interop/python.rs"]
mod python;
mod support;

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use grpcxx::server::{Server, ServerOptions};
use grpcxx::topology::Topology;
use grpcxx::{ClusterSpec, Config, TaskId};
use grpcxx_greeter::MyGreeter;
use grpcxx_greeter::helloworld::{GreeterServer, HelloReply, HelloRequest};
use grpcxx_greeter::probe::{Load, ProbeServer, Span};
use prost::Message;
use python::{grpcio_python, skip, text};
use support::MyProbe;
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

fn start() -> (Server, [SocketAddr; 2]) {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [grpc, star, metrics] = listeners.map(|listener| listener.local_addr().unwrap());
    let (config, _) = Config::read(|_| None, [""; 0]).unwrap();
    let cluster = ClusterSpec::parse(&format!("ps|{grpc}")).unwrap();
    let topology = Topology::told(&cluster, &format!("{grpc}={star}\n")).unwrap();
    let server = Server::start(ServerOptions {
        config,
        cluster,
        task: TaskId::new("ps", 0),
        protocol: "grpc++".parse().unwrap(),
        topology: Some(topology),
        metrics: Some(metrics),
        model: None,
    })
    .unwrap();
    server.add_service(GreeterServer::new(MyGreeter)).unwrap();
    server
        .add_service(ProbeServer::new(MyProbe::default()))
        .unwrap();
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
    let python = match grpcio_python() {
        Ok(python) => python,
        Err(reason) => return skip("grpcio", &reason),
    };
    let (server, [grpc, metrics]) = start();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/client.py");
    let output = Command::new(python)
        .arg(script)
        .arg(grpc.to_string())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output));
    assert_eq!(
        text(&output).matches("passed ").count(),
        6,
        "{}",
        text(&output)
    );
    let page = page(metrics);
    for line in [
        r#"grpcxx_service_calls_total{service="helloworld.Greeter",method="SayHello",code="OK"} 1"#,
        r#"grpcxx_service_calls_total{service="probe.Probe",method="Fail",code="NOT_FOUND"} 1"#,
        r#"grpcxx_service_call_seconds_count{service="probe.Probe",method="Echo"} 1"#,
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
    server.shutdown(Duration::ZERO);
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
