//! What a method knows of a request beside its message, and the code that sees it before, through
//! both doors.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt, TryStreamExt, stream};
use grpcxx::server::Server;
use grpcxx::service::{Code, Request, Response, Status, Streaming};
use grpcxx::{Engine, GraphCall, Remote, Shape, Tensor};
use grpcxx_greeter::helloworld::greeter_client::GreeterClient;
use grpcxx_greeter::helloworld::greeter_server::{Greeter, GreeterServer};
use grpcxx_greeter::helloworld::{HelloReply, HelloRequest, HellosRequest};
use tonic::client::Grpc;
use tonic::transport::Channel;
use tonic_prost::ProstCodec;

use crate::door;

/// Answers with what it knows of its request.
struct Knowing;

/// Who calls, as an interceptor has found it.
#[derive(Clone, Debug)]
struct Who(String);

fn known<T>(request: &Request<T>) -> HelloReply {
    let host = request.remote_addr().map(|address| address.ip());
    let minutes = request.timeout().map(|left| left.as_secs() / 60);
    let is_coming = request.deadline().map(|end| end > Instant::now());
    let who = request.extensions().get::<Who>().map(|who| &who.0);
    HelloReply {
        message: format!("{host:?} {minutes:?} {is_coming:?} {who:?}"),
    }
}

fn expected(host: Option<IpAddr>, minutes: Option<u64>, who: Option<&str>) -> String {
    let is_coming = minutes.map(|_| true);
    format!("{host:?} {minutes:?} {is_coming:?} {who:?}")
}

type Replies = Pin<Box<dyn Stream<Item = Result<HelloReply, Status>> + Send>>;

fn one(reply: HelloReply) -> Result<Response<Replies>, Status> {
    Ok(Response::new(Box::pin(stream::iter([Ok(reply)]))))
}

impl Greeter for Knowing {
    async fn say_hello(&self, request: Request<HelloRequest>) -> Answer<HelloReply> {
        Ok(Response::new(known(&request)))
    }

    type SayHellosStream = Replies;

    async fn say_hellos(&self, request: Request<HellosRequest>) -> Answer<Replies> {
        one(known(&request))
    }

    type ChatStream = Replies;

    async fn chat(&self, request: Request<Streaming<HelloRequest>>) -> Answer<Replies> {
        one(known(&request))
    }
}

type Answer<T> = Result<Response<T>, Status>;

const LOOPBACK: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));

/// What methods of all kinds answer a client of grpcxx.
fn told_to_star(client: &GreeterClient, timeout: Option<Duration>) -> Vec<Result<String, Status>> {
    fn with<T>(message: T, timeout: Option<Duration>) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(timeout) = timeout {
            request.set_timeout(timeout);
        }
        request
    }
    let first = |replies: Result<Response<Streaming<HelloReply>>, Status>| {
        let reply = replies?.into_inner().wait_message()?;
        Ok(reply.expect("a message").message)
    };
    let reply = client.say_hello(with(HelloRequest::default(), timeout));
    let hellos = client.say_hellos(with(HellosRequest::default(), timeout));
    let chat = client.chat(with(stream::iter([HelloRequest::default()]), timeout));
    vec![
        reply.wait().map(|reply| reply.into_inner().message),
        first(hellos.wait()),
        first(chat.wait()),
    ]
}

/// What methods of all kinds answer a client of tonic that says so of itself.
async fn told_to_grpc(
    grpc: SocketAddr,
    timeout: Option<Duration>,
    who: Option<&'static str>,
) -> Vec<Result<String, tonic::Status>> {
    let channel = Channel::from_shared(format!("http://{grpc}")).unwrap();
    let mut client = Grpc::new(channel.connect().await.unwrap());
    let with = |paths: &'static str| {
        let mut request = tonic::Request::new(());
        if let Some(timeout) = timeout {
            request.set_timeout(timeout);
        }
        if let Some(who) = who {
            request.metadata_mut().insert("who", who.parse().unwrap());
        }
        (request, paths.parse().unwrap())
    };
    let mut told = Vec::new();
    client.ready().await.unwrap();
    let (request, path) = with("/helloworld.Greeter/SayHello");
    let codec = ProstCodec::<HelloRequest, HelloReply>::default();
    let request = request.map(|()| HelloRequest::default());
    let reply = client.unary(request, path, codec).await;
    told.push(reply.map(|reply| reply.into_inner().message));
    client.ready().await.unwrap();
    let (request, path) = with("/helloworld.Greeter/Chat");
    let codec = ProstCodec::<HelloRequest, HelloReply>::default();
    let request = request.map(|()| stream::iter([HelloRequest::default()]));
    let replies = client.streaming(request, path, codec).await;
    told.push(match replies {
        Ok(replies) => {
            let replies: Result<Vec<_>, _> = replies.into_inner().try_collect().await;
            replies.map(|mut replies| replies.remove(0).message)
        }
        Err(status) => Err(status),
    });
    told
}

fn connected(star: SocketAddr) -> (Engine, Remote) {
    let engine = Engine::builder().start().unwrap();
    let remote = engine.connect(&star.to_string()).unwrap();
    (engine, remote)
}

fn started(service: GreeterServer<Knowing>) -> (Server, [SocketAddr; 3]) {
    let (server, addresses) = door::start_with("", "");
    server.add_service(service).unwrap();
    (server, addresses)
}

#[tokio::test]
async fn a_method_knows_where_its_caller_is_and_how_long_it_waits() {
    for place in [|service| service, GreeterServer::on_compute_pool] {
        let (server, [grpc, star, _]) = started(place(GreeterServer::new(Knowing)));
        let (_engine, remote) = connected(star);
        let client = GreeterClient::new(remote);
        for (timeout, minutes) in [(None, None), (Some(Duration::from_secs(119)), Some(1))] {
            for told in told_to_star(&client, timeout) {
                assert_eq!(told.unwrap(), expected(LOOPBACK, minutes, None));
            }
            for told in told_to_grpc(grpc, timeout, None).await {
                assert_eq!(told.unwrap(), expected(LOOPBACK, minutes, None));
            }
        }
        server.shutdown(Duration::ZERO);
    }
}

#[test]
fn a_call_of_this_process_comes_from_nowhere() {
    let task = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    task.add_service(GreeterServer::new(Knowing));
    let address = task.local_addr().unwrap().to_string();
    let client = GreeterClient::new(task.connect(&address).unwrap());
    for told in told_to_star(&client, Some(Duration::from_secs(119))) {
        assert_eq!(told.unwrap(), expected(None, Some(1), None));
    }
}

/// Lets through who says a name, and tells the method.
fn doorkeeper(mut request: Request<()>) -> Result<Request<()>, Status> {
    let who = request.metadata().get("who").map(str::to_owned);
    let who = who.ok_or_else(|| {
        Status::with_details(Code::Unauthenticated, "say who you are", vec![4, 2].into())
    })?;
    request.extensions_mut().insert(Who(who));
    Ok(request)
}

#[tokio::test]
async fn an_interceptor_of_a_server_sees_each_request_before_its_method() {
    for place in [|service| service, GreeterServer::on_compute_pool] {
        let service = GreeterServer::with_interceptor(Knowing, doorkeeper);
        let (server, [grpc, star, _]) = started(place(service));
        let (_engine, remote) = connected(star);
        for told in told_to_star(&GreeterClient::new(remote.clone()), None) {
            let status = told.unwrap_err();
            assert_eq!(status.code, Code::Unauthenticated, "{status}");
            assert_eq!(
                (status.message(), status.details()),
                ("say who you are", &[4, 2][..])
            );
        }
        for told in told_to_grpc(grpc, None, None).await {
            let status = told.unwrap_err();
            assert_eq!(status.code(), tonic::Code::Unauthenticated, "{status}");
            assert_eq!(
                (status.message(), status.details()),
                ("say who you are", &[4, 2][..])
            );
        }
        let client = GreeterClient::with_interceptor(remote, |mut request| {
            request.metadata_mut().insert("who", "ann")?;
            Ok(request)
        });
        for told in told_to_star(&client, None) {
            assert_eq!(told.unwrap(), expected(LOOPBACK, None, Some("ann")));
        }
        for told in told_to_grpc(grpc, None, Some("bob")).await {
            assert_eq!(told.unwrap(), expected(LOOPBACK, None, Some("bob")));
        }
        server.shutdown(Duration::ZERO);
    }
}

/// Answers with what another task knows of the request, which it sends on as it is.
struct Forwarding(GreeterClient);

impl Greeter for Forwarding {
    async fn say_hello(&self, request: Request<HelloRequest>) -> Answer<HelloReply> {
        self.0.say_hello(request).await
    }

    type SayHellosStream = Streaming<HelloReply>;

    async fn say_hellos(&self, request: Request<HellosRequest>) -> Answer<Streaming<HelloReply>> {
        self.0.say_hellos(request).await
    }

    type ChatStream = Streaming<HelloReply>;

    async fn chat(
        &self,
        request: Request<Streaming<HelloRequest>>,
    ) -> Answer<Streaming<HelloReply>> {
        let request = request.map(|hellos| hellos.filter_map(async |hello| hello.ok()));
        self.0.chat(request).await
    }
}

#[test]
fn a_request_that_is_sent_on_takes_no_longer_than_others_and_no_longer_than_the_first() {
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes - 1);
    let back = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    back.add_service(GreeterServer::new(Knowing));
    for (usual, first, told) in [(2, 60, 1), (60, 2, 1), (60, 61, 59)] {
        let front = Engine::builder().listen("127.0.0.1:0").start().unwrap();
        let to_back = front.connect(&back.local_addr().unwrap().to_string());
        let to_back = to_back.unwrap().with_timeout(minutes(usual));
        front.add_service(GreeterServer::new(Forwarding(GreeterClient::new(to_back))));
        let (_engine, remote) = connected(front.local_addr().unwrap());
        for reply in told_to_star(&GreeterClient::new(remote), Some(minutes(first))) {
            assert_eq!(reply.unwrap(), expected(LOOPBACK, Some(told), None));
        }
    }
}

#[test]
fn interceptors_see_a_request_one_behind_the_other() {
    let task = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    let greeter = Arc::new(Knowing);
    let service = GreeterServer::from_arc(Arc::clone(&greeter)).intercepted_by(doorkeeper);
    task.add_service(service.intercepted_by(|mut request| {
        let who = request.extensions().get::<Who>().cloned();
        let Who(name) = who.ok_or_else(|| Status::internal("the doorkeeper was not asked"))?;
        request.extensions_mut().insert(Who(format!("{name}!")));
        Ok(request)
    }));
    let (_engine, remote) = connected(task.local_addr().unwrap());
    let client = GreeterClient::new(remote).intercepted_by(|mut request| {
        request.metadata_mut().insert("who", "an")?;
        Ok(request)
    });
    let client = client.intercepted_by(|mut request| {
        let who = format!("{}n", request.metadata().get("who").unwrap_or_default());
        request.metadata_mut().insert("who", who)?;
        Ok(request)
    });
    for told in told_to_star(&client, None) {
        assert_eq!(told.unwrap(), expected(LOOPBACK, None, Some("ann!")));
    }
}

#[test]
fn an_interceptor_of_a_client_may_bound_a_call_and_refuse_it() {
    let task = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    task.add_service(GreeterServer::new(Knowing));
    let (_engine, remote) = connected(task.local_addr().unwrap());
    let bounding = GreeterClient::with_interceptor(remote.clone(), |mut request| {
        request.set_timeout(Duration::from_secs(239));
        Ok(request)
    });
    for told in told_to_star(&bounding, None) {
        assert_eq!(told.unwrap(), expected(LOOPBACK, Some(3), None));
    }
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let refusing = GreeterClient::with_interceptor(remote, move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Err(Status::resource_exhausted("not today"))
    });
    for told in told_to_star(&refusing, None) {
        assert_eq!(told.unwrap_err().message(), "not today");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 3);
    let reports = task.method_reports();
    let calls = reports.iter().map(|report| report.calls.len());
    assert_eq!(calls.sum::<usize>(), 3, "each method was called, and well");
}

/// A graph call has no metadata, so who must say something cannot come in by one.
#[test]
fn an_interceptor_of_a_server_sees_calls_that_come_as_graph_calls() {
    let task = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    task.add_service(GreeterServer::with_interceptor(Knowing, doorkeeper));
    let (_engine, remote) = connected(task.local_addr().unwrap());
    let message = Tensor::from_slice(Shape::vector(0), &[0u8; 0]).unwrap();
    let call = GraphCall::new("/helloworld.Greeter/SayHello").with_feed("request", message);
    let status = remote.run(call.with_fetch("response")).wait().unwrap_err();
    assert_eq!(status.code, Code::Unauthenticated);
    assert_eq!(status.details(), [4, 2]);
}

#[test]
fn an_interceptor_that_panics_ends_its_call_alone() {
    let task = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    let service = GreeterServer::with_interceptor(Knowing, |request| {
        assert!(request.metadata().get("who").is_some(), "on purpose");
        Ok(request)
    });
    task.add_service(service);
    let (_engine, remote) = connected(task.local_addr().unwrap());
    for told in told_to_star(&GreeterClient::new(remote.clone()), None) {
        assert_eq!(told.unwrap_err().code, Code::Internal);
    }
    let client = GreeterClient::with_interceptor(remote, |mut request| {
        request.metadata_mut().insert("who", "ann")?;
        Ok(request)
    });
    assert!(told_to_star(&client, None).iter().all(Result::is_ok));
}
