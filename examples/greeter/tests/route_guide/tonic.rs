// A route guide, as it is written for tonic. The build script makes the one for grpcxx out of it
// with the lines of docs/services.md, and tests/moved.rs runs both.

use std::collections::HashMap;
use std::error::Error;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::{Stream, StreamExt, stream};
use prost::Message;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status, Streaming};

use super::routeguide::route_guide_server::{RouteGuide, RouteGuideServer};
use super::routeguide::{Feature, Point, Rectangle, RouteNote, RouteSummary};

pub(crate) struct Guide {
    features: Arc<Vec<Feature>>,
}

/// Who calls, as `check` has found it.
#[derive(Clone)]
struct User(String);

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl RouteGuide for Guide {
    async fn get_feature(&self, request: Request<Point>) -> Result<Response<Feature>, Status> {
        let user = request.extensions().get::<User>().cloned();
        let user = user.ok_or_else(|| Status::internal("nobody has asked who calls"))?;
        let point = request.into_inner();
        let mut features = self.features.iter();
        let feature = features.find(|feature| feature.location == Some(point));
        let feature = feature.cloned().ok_or_else(|| {
            let text = format!("{} finds nothing at {}", user.0, shown(&point));
            Status::with_details(Code::NotFound, text, point.encode_to_vec().into())
        })?;
        let mut response = Response::new(feature);
        response
            .metadata_mut()
            .insert("found-by", "guide".parse().unwrap());
        Ok(response)
    }

    type ListFeaturesStream = Messages<Feature>;

    async fn list_features(
        &self,
        request: Request<Rectangle>,
    ) -> Result<Response<Self::ListFeaturesStream>, Status> {
        let within = request.into_inner();
        let (Some(lo), Some(hi)) = (within.lo, within.hi) else {
            return Err(Status::invalid_argument("a rectangle has two corners"));
        };
        let features: Vec<_> = self.features.iter().cloned().collect();
        let found = features.into_iter().filter(move |feature| {
            let is_within = |point: &Point| {
                (lo.latitude..=hi.latitude).contains(&point.latitude)
                    && (lo.longitude..=hi.longitude).contains(&point.longitude)
            };
            feature.location.as_ref().is_some_and(is_within)
        });
        Ok(Response::new(Box::pin(stream::iter(found.map(Ok)))))
    }

    async fn record_route(
        &self,
        request: Request<Streaming<Point>>,
    ) -> Result<Response<RouteSummary>, Status> {
        let mut points = request.into_inner();
        let mut summary = RouteSummary::default();
        let mut last: Option<Point> = None;
        while let Some(point) = points.message().await? {
            summary.point_count += 1;
            let is_there = |feature: &Feature| feature.location == Some(point);
            summary.feature_count += self.features.iter().filter(|it| is_there(it)).count() as i32;
            if let Some(last) = last.replace(point) {
                summary.distance += (point.latitude - last.latitude).abs();
                summary.distance += (point.longitude - last.longitude).abs();
            }
        }
        if summary.point_count == 0 {
            return Err(Status::failed_precondition("a route has points"));
        }
        Ok(Response::new(summary))
    }

    type RouteChatStream = Messages<RouteNote>;

    async fn route_chat(
        &self,
        request: Request<Streaming<RouteNote>>,
    ) -> Result<Response<Self::RouteChatStream>, Status> {
        let notes = request.into_inner();
        let mut left: HashMap<String, Vec<RouteNote>> = HashMap::new();
        let answers = notes.flat_map(move |note| {
            let answers = match note {
                Ok(note) => {
                    let there = left
                        .entry(shown(&note.location.unwrap_or_default()))
                        .or_default();
                    let before = there.iter().cloned().map(Ok).collect();
                    there.push(note);
                    before
                }
                Err(status) => vec![Err(status)],
            };
            stream::iter(answers)
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

fn shown(point: &Point) -> String {
    format!("{}, {}", point.latitude, point.longitude)
}

impl Default for Guide {
    fn default() -> Self {
        let feature = |name: &str, latitude, longitude| Feature {
            name: name.to_owned(),
            location: Some(Point {
                latitude,
                longitude,
            }),
            picture: vec![latitude as u8; 3],
        };
        let features = vec![feature("a mill", 1, 1), feature("a bridge", 5, 9)];
        Self {
            features: Arc::new(features),
        }
    }
}

pub(crate) fn check(mut request: Request<()>) -> Result<Request<()>, Status> {
    let user = request.metadata().get("user");
    let user = user.and_then(|user| user.to_str().ok());
    let (Some(user), Some(peer)) = (user, request.remote_addr()) else {
        return Err(Status::unauthenticated(
            "say who you are, as the metadata user",
        ));
    };
    let user = User(format!("{user} at {}", peer.ip()));
    request.extensions_mut().insert(user);
    Ok(request)
}

/// Serves until `stop` has ended, and then until all calls have their answers.
pub(crate) async fn serve(
    address: SocketAddr,
    stop: impl Future<Output = ()>,
) -> Result<(), Box<dyn Error>> {
    let service = RouteGuideServer::with_interceptor(Guide::default(), check);
    Server::builder()
        .add_service(service)
        .serve_with_shutdown(address, stop)
        .await?;
    Ok(())
}
