//! A service that was written for tonic, and the same with the lines changed that docs/services.md
//! shows: both answer alike, the second one over star and over gRPC.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use futures_channel::oneshot;
use futures_util::{FutureExt, Stream, stream};
use grpcxx::service::Streaming;
use grpcxx::{Engine, service};
use over_grpcxx::routeguide as grpcxx_made;
use over_grpcxx::routeguide::route_guide_client::RouteGuideClient;
use over_tonic::routeguide::{Feature, Point, Rectangle, RouteNote, RouteSummary};
use prost::Message;
use tonic::transport::Channel;

use crate::door;
use crate::ports::held_address;

mod over_tonic {
    #[allow(unreachable_pub, reason = "tonic makes it")]
    pub(crate) mod routeguide {
        include!(concat!(env!("OUT_DIR"), "/tonic/routeguide.rs"));
    }

    pub(crate) mod service {
        include!("route_guide/tonic.rs");
    }
}

mod over_grpcxx {
    #[allow(unreachable_pub, reason = "it is made")]
    pub(crate) mod routeguide {
        grpcxx::include_proto!("routeguide");
    }

    pub(crate) mod service {
        include!(concat!(env!("OUT_DIR"), "/moved.rs"));
    }
}

/// What a client gets of each method, in the words of both libraries.
#[derive(Debug, PartialEq)]
struct Seen {
    refused: (String, Vec<u8>),
    found: Feature,
    found_by: String,
    not_found: (String, Vec<u8>),
    listed: Vec<Feature>,
    not_listed: (String, Vec<u8>),
    summary: RouteSummary,
    no_summary: (String, Vec<u8>),
    answers: Vec<RouteNote>,
}

fn point(latitude: i32, longitude: i32) -> Point {
    Point {
        latitude,
        longitude,
    }
}

fn note(latitude: i32, message: &str) -> RouteNote {
    RouteNote {
        location: Some(point(latitude, 0)),
        message: message.to_owned(),
    }
}

fn everywhere() -> Rectangle {
    Rectangle {
        lo: Some(point(0, 0)),
        hi: Some(point(9, 9)),
    }
}

fn route() -> Vec<Point> {
    vec![point(0, 1), point(1, 1), point(5, 9)]
}

fn notes() -> Vec<RouteNote> {
    vec![note(1, "a"), note(2, "b"), note(1, "c"), note(1, "d")]
}

/// The messages of one library as those of the other.
fn same<M: Message + Default>(message: &impl Message) -> M {
    M::decode(&message.encode_to_vec()[..]).unwrap()
}

/// What a client of tonic gets.
async fn seen_with_tonic(address: SocketAddr) -> Seen {
    use over_tonic::routeguide::route_guide_client::RouteGuideClient;
    let endpoint = Channel::from_shared(format!("http://{address}")).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let channel = loop {
        match endpoint.connect().await {
            Ok(channel) => break channel,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    };
    fn failed(status: &tonic::Status) -> (String, Vec<u8>) {
        let text = format!("{:?}: {}", status.code(), status.message());
        (text, status.details().to_vec())
    }
    async fn all<M>(messages: tonic::Response<tonic::Streaming<M>>) -> Vec<M> {
        let (mut messages, mut all) = (messages.into_inner(), Vec::new());
        while let Some(message) = messages.message().await.unwrap() {
            all.push(message);
        }
        all
    }
    let mut stranger = RouteGuideClient::new(channel.clone());
    let mut client =
        RouteGuideClient::with_interceptor(channel, |mut request: tonic::Request<()>| {
            request
                .metadata_mut()
                .insert("user", "ann".parse().unwrap());
            Ok(request)
        });
    let found = client.get_feature(point(5, 9)).await.unwrap();
    Seen {
        refused: failed(&stranger.get_feature(point(5, 9)).await.unwrap_err()),
        found_by: found
            .metadata()
            .get("found-by")
            .unwrap()
            .to_str()
            .unwrap()
            .to_owned(),
        found: found.into_inner(),
        not_found: failed(&client.get_feature(point(3, 3)).await.unwrap_err()),
        listed: all(client.list_features(everywhere()).await.unwrap()).await,
        not_listed: failed(
            &client
                .list_features(Rectangle::default())
                .await
                .unwrap_err(),
        ),
        summary: client
            .record_route(stream::iter(route()))
            .await
            .unwrap()
            .into_inner(),
        no_summary: failed(&client.record_route(stream::iter([])).await.unwrap_err()),
        answers: all(client.route_chat(stream::iter(notes())).await.unwrap()).await,
    }
}

/// What a client of grpcxx gets over star.
async fn seen_with_star(address: SocketAddr) -> Seen {
    fn failed(status: &service::Status) -> (String, Vec<u8>) {
        let text = format!("{:?}: {}", status.code(), status.message());
        (text, status.details().to_vec())
    }
    async fn all<M: Message + Default, N: Message + Default>(
        messages: service::Response<Streaming<M>>,
    ) -> Vec<N> {
        let (mut messages, mut all) = (messages.into_inner(), Vec::new());
        while let Some(message) = messages.message().await.unwrap() {
            all.push(same(&message));
        }
        all
    }
    let engine = Engine::builder().start().unwrap();
    let remote = engine.connect(&address.to_string()).unwrap();
    let stranger = RouteGuideClient::new(remote.clone());
    let client = RouteGuideClient::with_interceptor(remote, |mut request| {
        request.metadata_mut().insert("user", "ann")?;
        Ok(request)
    });
    let at = |point: Point| same::<grpcxx_made::Point>(&point);
    fn sent<M: Message, N: Message + Default>(messages: Vec<M>) -> impl Stream<Item = N> + Send {
        let messages: Vec<N> = messages.iter().map(same).collect();
        stream::iter(messages)
    }
    let found = client.get_feature(at(point(5, 9))).await.unwrap();
    Seen {
        refused: failed(&stranger.get_feature(at(point(5, 9))).await.unwrap_err()),
        found_by: found.metadata().get("found-by").unwrap().to_owned(),
        found: same(found.get_ref()),
        not_found: failed(&client.get_feature(at(point(3, 3))).await.unwrap_err()),
        listed: all(client
            .list_features(same::<grpcxx_made::Rectangle>(&everywhere()))
            .await
            .unwrap())
        .await,
        not_listed: failed(
            &client
                .list_features(grpcxx_made::Rectangle::default())
                .await
                .unwrap_err(),
        ),
        summary: same(client.record_route(sent(route())).await.unwrap().get_ref()),
        no_summary: failed(
            &client
                .record_route(sent(Vec::<Point>::new()))
                .await
                .unwrap_err(),
        ),
        answers: all(client.route_chat(sent(notes())).await.unwrap()).await,
    }
}

/// What ends when the other one is dropped.
fn stop() -> (oneshot::Sender<()>, impl Future<Output = ()>) {
    let (stop, stopped) = oneshot::channel();
    (stop, stopped.map(|_was_dropped| ()))
}

#[tokio::test]
async fn a_moved_service_answers_as_it_did() {
    let address = held_address();
    let (stop, stopped) = stop();
    let tonic =
        tokio::spawn(async move { over_tonic::service::serve(address, stopped).await.is_ok() });
    let seen = seen_with_tonic(address).await;
    drop(stop);
    assert!(tonic.await.unwrap());
    assert_eq!(seen.listed.len(), 2);
    assert_eq!(seen.answers.len(), 3);
    assert_eq!((seen.summary.point_count, seen.summary.distance), (3, 13));
    assert_eq!(seen.found.picture, [5, 5, 5]);
    let (text, details) = &seen.not_found;
    assert_eq!(text, "NotFound: ann at 127.0.0.1 finds nothing at 3, 3");
    assert_eq!(*details, point(3, 3).encode_to_vec());

    let address = held_address();
    let (stop, stopped) = self::stop();
    let star =
        tokio::spawn(async move { over_grpcxx::service::serve(address, stopped).await.is_ok() });
    assert_eq!(seen_with_star(address).await, seen);
    drop(stop);
    assert!(star.await.unwrap());

    use over_grpcxx::routeguide::route_guide_server::RouteGuideServer;
    use over_grpcxx::service::{Guide, check};
    let (server, [grpc, star, _]) = door::start_with("", "");
    let service = RouteGuideServer::with_interceptor(Guide::default(), check);
    server.add_service(service).unwrap();
    assert_eq!(seen_with_tonic(grpc).await, seen);
    assert_eq!(seen_with_star(star).await, seen);
    server.shutdown(Duration::ZERO);
}
