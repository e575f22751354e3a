//! What every gRPC call passes: limits, deadline, the end of the grace, and counting.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use grpcxx_rpc::Token;
use grpcxx_runtime::policy::Authority;
use http::{HeaderMap, HeaderValue, Request, Response, header};
use http_body::{Frame, SizeHint};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tower_service::Service;

use crate::Backend;
use crate::calls::{Call, Calls};
use crate::connections::Caller;
use crate::frames::{Answered, GRPC_STATUS, MessageBody, trailers};
use crate::health::Health;
use crate::methods::{self, Method};
use crate::reflection::Reflection;
use crate::refusals::Refusals;
use crate::registered;
use crate::request_body::RequestBody;
use crate::status::to_grpc;
use crate::tensors::TensorFrames;

/// Every gRPC call passes here: limits, deadline, the end of the grace, and counting.
#[derive(Clone)]
pub(crate) struct Dispatch {
    routes: Routes,
    backend: Arc<dyn Backend>,
    health: Arc<Health>,
    reflection: Arc<Reflection>,
    calls: Arc<Calls>,
    authority: Arc<Authority>,
    refusals: Refusals,
    /// True once the grace of a stop is over.
    stopped: watch::Receiver<bool>,
}

impl Dispatch {
    pub(crate) fn new(
        routes: Routes,
        (backend, health): (Arc<dyn Backend>, Arc<Health>),
        calls: Arc<Calls>,
        authority: Arc<Authority>,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        Self {
            routes: routes.prepare(),
            reflection: Reflection::new(Arc::clone(&backend)),
            backend,
            health,
            calls,
            authority,
            refusals: Refusals::new(),
            stopped,
        }
    }

    /// The method that a request names.
    fn method(&self, path: &str) -> &'static Method {
        let method = methods::find(path);
        if !methods::is_unknown(method) || !self.backend.serves(path) {
            return method;
        }
        match self.backend.streams(path) {
            true => &methods::REGISTERED_STREAM,
            false => &methods::REGISTERED,
        }
    }

    /// Hands a request to what answers its method until then.
    fn route(
        &mut self,
        method: &'static Method,
        request: Request<Body>,
        until: Option<Instant>,
    ) -> Routed {
        let backend = Arc::clone(&self.backend);
        if method.is_registered() {
            return Box::pin(registered::answer(backend, method, request, until));
        }
        let answer = match method.reflects() {
            true => self.reflection.routes().call(request),
            false => self.routes.call(request),
        };
        let health = method.tells_health().then(|| Arc::clone(&self.health));
        Box::pin(async move {
            if let Some(health) = health {
                health.tell().await;
            }
            match answer.await {
                Ok(response) => response,
                Err(never) => match never {},
            }
        })
    }

    /// Lets a call pass whose caller has the right that its method needs, and counts what it holds
    /// for who it has proven to be.
    fn authorize(
        &self,
        method: &Method,
        caller: &mut Caller,
        request: &Request<Body>,
    ) -> Result<(), grpcxx_rpc::Status> {
        let Some(right) = method.right else {
            return Ok(());
        };
        let peer = caller.peer;
        // A clock before 1970 proves nothing.
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let said = authorization(method, request);
        let path = request.uri().path();
        let identity = (self.authority).identify_call(peer, &caller.identity, path, said, now)?;
        caller.belong_to(&identity);
        caller.identity = identity;
        let rights = self.authority.rights(&caller.identity);
        (self.authority).check(peer, rights, right)
    }
}

/// What a call says to prove a token. Methods of the program's services may be told other things by
/// `authorization`, which prove nothing here.
fn authorization<'a>(method: &Method, request: &'a Request<Body>) -> Option<&'a str> {
    let headers = request.headers();
    let said = |value: &'a HeaderValue| value.to_str().unwrap_or_default();
    let mut all = headers.get_all(header::AUTHORIZATION).iter().map(said);
    let proof = all.find(|said| Token::is_call_proof(said));
    let first = headers.get(header::AUTHORIZATION).map(said);
    match method.is_registered() {
        true => proof,
        false => proof.or(first),
    }
}

impl Service<Request<Body>> for Dispatch {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<Request<Body>>::poll_ready(&mut self.routes, context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let mut caller = Caller::of(request.extensions());
        let method = self.method(request.uri().path());
        let authorized = self.authorize(method, &mut caller, &request);
        request.extensions_mut().insert(caller.clone());
        let begun = self.calls.begin(method, caller).and_then(|mut call| {
            let passed = authorized.and_then(|()| call.begin_stream());
            let passed = passed.inspect_err(|refused| call.ended_with(refused.code as i32));
            passed.map(|()| call)
        });
        let mut call = match begun {
            Ok(call) => call,
            Err(refused) => {
                let answer = self.refusals.clone().answer(refused, request.into_body());
                return Box::pin(async { Ok(answer.await) });
            }
        };
        let left = deadline(request.headers());
        let until = left.and_then(|left| Instant::now().checked_add(left));
        let mut stopped = self.stopped.clone();
        let must_end = call.must_end();
        let request = match call.arrival() {
            Some(arrival) => request.map(|body| Body::new(RequestBody::new(body, arrival))),
            None => request,
        };
        let answer = self.route(method, request, until);
        Box::pin(async move {
            let mut must_end = Box::pin(must_end);
            let response = tokio::select! {
                biased;
                response = answer => response,
                () = expired(until) => Status::deadline_exceeded(
                    "the deadline of the call has passed",
                ).into_http(),
                _ = stopped.wait_for(|&stopped| stopped) => Status::unavailable(
                    "the server is stopping and could not answer in time: ask another task, or again later",
                ).into_http(),
                status = &mut must_end => to_grpc(&status).into_http(),
            };
            let must_end = call.is_observer().then_some(must_end as MustEnd);
            let (response, is_counted) = finish(response, &mut call);
            Ok(response.map(|body| {
                Body::new(AnswerBody {
                    inner: body,
                    call,
                    must_end,
                    is_counted,
                })
            }))
        })
    }
}

/// An answer that comes.
type Routed = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Puts tensors or messages into the place of the empty message that stands for them, and notes a
/// failure. Returns whether the answer counts its bytes itself.
fn finish(mut response: Response<Body>, call: &mut Call) -> (Response<Body>, bool) {
    if let Some(code) = code(response.headers()) {
        call.ended_with(code);
    }
    let answered = response.extensions_mut().remove::<Answered>();
    if let Some(messages) = answered.and_then(|answered| answered.take()) {
        let body = MessageBody::new(messages, call.debts());
        return (response.map(|_| Body::new(body)), true);
    }
    let response = match response.extensions_mut().remove::<TensorFrames>() {
        Some(frames) => {
            call.count_tensor_bytes(frames.tensor_bytes);
            response.map(|_| Body::new(frames.into_body()))
        }
        None => response,
    };
    (response, false)
}

fn code(headers: &HeaderMap) -> Option<i32> {
    headers.get(GRPC_STATUS)?.to_str().ok()?.parse().ok()
}

async fn expired(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// The time that the caller gives the call: up to eight digits and a unit. What is malformed is
/// ignored.
///
/// The server below also keeps it, but answers CANCELLED; so this one ends a moment before.
fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    let deadline = match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    };
    Some(deadline.saturating_sub(DEADLINE_LEAD))
}

/// An answer on its way out; the call ends with it.
struct AnswerBody {
    inner: Body,
    call: Call,
    /// When the answer is cut short, if it may be.
    must_end: Option<MustEnd>,
    /// Whether it counts its bytes itself.
    is_counted: bool,
}

/// Returns when a call has to end, with the reason.
type MustEnd = Pin<Box<dyn Future<Output = grpcxx_rpc::Status> + Send>>;

impl AnswerBody {
    /// Counts what is about to leave, or ends the answer where the caller has too much of that.
    fn owe(&mut self, frame: Frame<Bytes>) -> Frame<Bytes> {
        if self.is_counted {
            return frame;
        }
        match frame.into_data().map(|data| self.call.owe(data)) {
            Ok(Ok(data)) => Frame::data(data),
            Ok(Err(refused)) => self.cut_short(&refused),
            Err(trailers) => trailers,
        }
    }

    /// The end of an answer that is cut short.
    fn poll_must_end(&mut self, context: &mut Context<'_>) -> Poll<Frame<Bytes>> {
        let Some(must_end) = &mut self.must_end else {
            return Poll::Pending;
        };
        let status = ready!(must_end.as_mut().poll(context));
        Poll::Ready(self.cut_short(&status))
    }

    /// Ends the answer, with a reason.
    fn cut_short(&mut self, status: &grpcxx_rpc::Status) -> Frame<Bytes> {
        let status = to_grpc(status);
        self.must_end = None;
        self.inner = Body::empty();
        self.call.ended_with(status.code() as i32);
        Frame::trailers(trailers(&status))
    }
}

impl http_body::Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(code) = frame.trailers_ref().and_then(code) {
                    self.call.ended_with(code);
                }
            }
            Poll::Ready(Some(Err(status))) => self.call.ended_with(status.code() as i32),
            Poll::Ready(None) => {}
            Poll::Pending => return self.poll_must_end(context).map(|end| Some(Ok(end))),
        }
        polled.map_ok(|frame| self.owe(frame))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

/// How long before the caller's deadline a call is given up here.
const DEADLINE_LEAD: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        let read = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", text.parse().unwrap());
            deadline(&headers)
        };
        let lead = DEADLINE_LEAD;
        assert_eq!(read("2S"), Some(Duration::from_secs(2) - lead));
        assert_eq!(read("99999999H").unwrap().as_secs(), 99_999_999 * 3600 - 1);
        assert_eq!(read("250m"), Some(Duration::from_millis(250) - lead));
        assert_eq!(read("5n"), Some(Duration::ZERO));
        for bad in ["", "S", "5", "123456789S", "-1S", "5x", "1 S"] {
            assert_eq!(read(bad), None, "{bad:?}");
        }
    }
}
