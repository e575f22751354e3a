//! Requests that stream to methods through the gRPC endpoint of a task.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_channel::mpsc;
use futures_util::{Stream, StreamExt, stream};
use grpcxx::server::Server;
use grpcxx_greeter::MyGreeter;
use grpcxx_greeter::helloworld::{GreeterServer, HelloReply, HelloRequest};
use grpcxx_greeter::probe::{Load, ProbeServer, Span};
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::door;
use crate::support::MyProbe;

/// Starts a task with a variable that is set, and connects to its gRPC port.
async fn start_with(variable: &str, value: &str) -> (Server, Grpc<Channel>) {
    let (server, [grpc, _, _]) = door::start_with(variable, value);
    server.add_service(GreeterServer::new(MyGreeter)).unwrap();
    let probe = ProbeServer::new(MyProbe::default());
    server.add_service(probe).unwrap();
    (server, connect(grpc).await)
}

async fn connect(grpc: SocketAddr) -> Grpc<Channel> {
    let channel = Channel::from_shared(format!("http://{grpc}")).unwrap();
    Grpc::new(channel.connect().await.unwrap())
}

/// How many bytes the method has counted.
async fn count(
    client: &mut Grpc<Channel>,
    loads: impl Stream<Item = Load> + Send + 'static,
) -> Result<u64, Status> {
    client.ready().await.unwrap();
    let path = "/probe.Probe/Count".parse().unwrap();
    let codec = ProstCodec::<Load, Span>::default();
    let counted = client.client_streaming(Request::new(loads), path, codec);
    Ok(counted.await?.into_inner().milliseconds)
}

fn load(bytes: usize) -> Load {
    Load {
        data: vec![7; bytes].into(),
        note: String::new(),
    }
}

#[tokio::test]
async fn each_message_is_answered_before_the_next_is_sent() {
    let (server, mut client) = start_with("", "").await;
    client.ready().await.unwrap();
    let (names, sent) = mpsc::unbounded();
    let path = "/helloworld.Greeter/Chat".parse().unwrap();
    let codec = ProstCodec::<HelloRequest, HelloReply>::default();
    let begun = client.streaming(Request::new(sent), path, codec);
    let mut replies = begun.await.unwrap().into_inner();
    for number in 0..10 {
        let name = number.to_string();
        names.unbounded_send(HelloRequest { name }).unwrap();
        let reply = tokio::time::timeout(PATIENCE, replies.message()).await;
        let reply = reply.expect("an answer comes").unwrap().unwrap();
        assert_eq!(reply.message, format!("Hello {number}!"));
    }
    drop(names);
    assert_eq!(replies.message().await.unwrap(), None);
    server.shutdown(Duration::ZERO);
}

#[tokio::test]
async fn a_stream_may_be_longer_than_all_requests_together() {
    let (server, mut client) = start_with("", "").await;
    let loads = stream::iter(vec![load(4 << 20); 80]);
    assert_eq!(count(&mut client, loads).await.unwrap(), 320 << 20);
    server.shutdown(Duration::ZERO);
}

#[tokio::test]
async fn a_stream_may_take_longer_than_a_request() {
    let (server, mut client) = start_with("GRPCXX_GRPC_REQUEST_MS", "1").await;
    let loads = stream::iter(vec![load(1); 3]).then(|load| async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        load
    });
    assert_eq!(count(&mut client, loads).await.unwrap(), 3);
    server.shutdown(Duration::ZERO);
}

/// Half an upload is not taken for a whole one: not by a method on the compute pool either, which
/// runs while its shard hears that the call is withdrawn.
#[tokio::test]
async fn a_client_that_cancels_has_not_sent_all() {
    let (server, mut client) = start_with("", "").await;
    let probe = MyProbe::default();
    let waits = Arc::clone(&probe.waits);
    let probe = ProbeServer::new(probe).on_compute_pool();
    server.add_service(probe).unwrap();
    for number in 1..=200 {
        let loads = stream::iter([load(1)]).chain(stream::pending());
        let mut counting = pin!(count(&mut client, loads));
        let has_begun = until(&waits.begun, number);
        tokio::select! {
            counted = &mut counting => panic!("{counted:?}"),
            () = has_begun => {}
        }
    }
    until(&waits.over, 200).await;
    assert_eq!(waits.counted.load(Ordering::SeqCst), 0);
    server.shutdown(Duration::ZERO);
}

/// A client that says when it has waited long enough, and does not end its call then.
#[tokio::test]
async fn a_deadline_ends_a_stream_that_has_begun() {
    let (server, mut client) = start_with("", "").await;
    let mut timeout_ms = 100;
    let mut answers = loop {
        client.ready().await.unwrap();
        let mut request = Request::new(stream::pending::<Load>());
        let timeout = format!("{timeout_ms}m").parse().unwrap();
        request.metadata_mut().insert("grpc-timeout", timeout);
        let path = "/probe.Probe/EchoAll".parse().unwrap();
        let codec = ProstCodec::<Load, Load>::default();
        match client.streaming(request, path, codec).await {
            Ok(begun) => break begun.into_inner(),
            // This machine is slower than that.
            Err(_) => timeout_ms *= 2,
        }
    };
    let ended = tokio::time::timeout(PATIENCE, answers.message()).await;
    let status = ended.expect("it ends").unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    server.shutdown(Duration::ZERO);
}

/// Whoever does not read long answers gets no more of them, and short ones all the same.
#[tokio::test]
async fn answers_that_nobody_reads_have_a_limit() {
    let variable = "GRPCXX_PEER_UNSENT_BYTES_MAX";
    let (server, [grpc, _, _]) = door::start_with(variable, "1MiB");
    let probe = ProbeServer::new(MyProbe::default());
    server.add_service(probe).unwrap();
    let channel = Channel::from_shared(format!("http://{grpc}")).unwrap();
    let channel = channel.initial_stream_window_size(65_535);
    let mut client = Grpc::new(channel.connect().await.unwrap());
    let mut unread = echo(&mut client, 2 << 20).await;
    let refused = echo(&mut client, 1 << 20).await.message().await;
    let refused = refused.map(drop).unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    assert!(refused.message().contains("read them first"), "{refused}");
    let short = echo(&mut client, 1 << 10).await.message().await;
    assert!(short.unwrap().is_some());
    let read = unread.message().await.unwrap().unwrap();
    assert_eq!(read.data.len(), 2 << 20);
    // Its last bytes may be about to be forgotten.
    let begun = Instant::now();
    while let Err(status) = echo(&mut client, 1 << 20).await.message().await {
        assert!(begun.elapsed() < PATIENCE, "{status}");
    }
    server.shutdown(Duration::ZERO);
}

/// An answer of so many bytes, which is not read yet.
async fn echo(client: &mut Grpc<Channel>, bytes: usize) -> Streaming<Load> {
    client.ready().await.unwrap();
    let path = "/probe.Probe/Echo".parse().unwrap();
    let codec = ProstCodec::<Load, Load>::default();
    let answer = client.server_streaming(Request::new(load(bytes)), path, codec);
    answer.await.unwrap().into_inner()
}

/// Waits until so many were counted.
async fn until(counter: &AtomicUsize, count: usize) {
    let counted = async {
        while counter.load(Ordering::SeqCst) != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let counted = tokio::time::timeout(PATIENCE, counted).await;
    counted.expect("it comes to be");
}

/// How long a test waits for what has to come.
const PATIENCE: Duration = Duration::from_secs(30);
