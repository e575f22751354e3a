//! What a fuzzer does with the bodies of gRPC calls and with the tensors in them. Only tests and
//! fuzzers have this module.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use grpcxx_rpc::proto::{GetStatusResponse, RecvTensorResponse, TensorProto};
use grpcxx_rpc::{Code, Envelope, Status, Tensor, Text};
use grpcxx_runtime::policy::Authority;
use grpcxx_runtime::service::{Caller, RawSink, RawStream, ServiceReport};
use http::Request;
use http_body::{Body as _, Frame};
use prost::Message;
use tokio::sync::watch;
use tonic::body::Body;
use tonic_health::server::HealthReporter;
use tower_service::Service;

use crate::calls::Calls;
use crate::control::{OpenSessions, routes};
use crate::dispatch::Dispatch;
use crate::frames::MESSAGE_PREFIX_BYTES;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::services::inspect::InspectReply;
use crate::tensor_proto::decode;
use crate::tensors::TensorFrames;
use crate::{Answer, Backend, ControlLimits, TakenTensors, TaskDevices, methods};

/// A `TensorProto` is a whole tensor or refused, and a tensor that goes out again comes back as it
/// was.
///
/// # Panics
/// If this is not true.
pub fn tensor_proto(data: &[u8]) {
    let Ok(message) = TensorProto::decode(data) else {
        return;
    };
    let Ok(tensor) = decode(message, false) else {
        return;
    };
    if let Some(element_bytes) = tensor.dtype.element_bytes() {
        let whole_bytes = tensor.shape.num_elements() * element_bytes as u64;
        assert_eq!(tensor.data.len() as u64, whole_bytes);
    }
    let frames = TensorFrames::single(&tensor, 0).expect("a small tensor fits into a message");
    let answer = received(frames);
    let again = RecvTensorResponse::decode(&answer[MESSAGE_PREFIX_BYTES..]);
    let again = again.expect("what goes out is a message").tensor;
    let again = decode(again.expect("a tensor went out"), false).expect("it was readable before");
    assert_eq!(
        (again.dtype, &again.shape, &again.data[..]),
        (tensor.dtype, &tensor.shape, &tensor.data[..])
    );
}

/// The bytes of an answer.
fn received(frames: TensorFrames) -> Vec<u8> {
    let mut body = pin!(frames.into_body());
    let mut all = Vec::new();
    let mut context = Context::from_waker(std::task::Waker::noop());
    while let Poll::Ready(Some(Ok(frame))) = body.as_mut().poll_frame(&mut context) {
        all.extend(frame.into_data().unwrap_or_default());
    }
    all
}

/// A call with any body ends once, with a status of gRPC, and leaves nothing behind. The first byte
/// chooses the method; the second says in pieces of how many bytes the rest comes as the body.
///
/// # Panics
/// If this is not true.
pub fn grpc_body(data: &[u8]) {
    let [method, piece_bytes, body @ ..] = data else {
        return;
    };
    let paths = methods::paths();
    let path = paths.get(usize::from(*method) % (paths.len() + 2));
    let path = path.map_or(UNKNOWN_PATHS[usize::from(*method) % 2], String::as_str);
    let pieces = body.chunks(usize::from(*piece_bytes) + 1);
    let pieces = Pieces(pieces.map(Bytes::copy_from_slice).collect());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    runtime.block_on(call(path, pieces));
}

/// The path of the method that [`Nothing`] serves, and of one that nobody serves.
const UNKNOWN_PATHS: [&str; 2] = [SERVED_PATH, "/fuzz.Service/Nobody"];
const SERVED_PATH: &str = "/fuzz.Service/Echo";

/// Makes a call and reads its answer as far as there is one.
async fn call(path: &str, pieces: Pieces) {
    let calls = Calls::new(Metrics::new(), &ControlLimits::default());
    let (_stopped, stopped_seen) = watch::channel(false);
    let mut dispatch = dispatch(calls.clone(), stopped_seen);
    let request = Request::post(path)
        .header("content-type", "application/grpc")
        .body(Body::new(pieces))
        .expect("a request");
    poll_fn(|context| dispatch.poll_ready(context))
        .await
        .unwrap_or_else(|never| match never {});
    let answer = dispatch.call(request).await;
    let (head, body) = answer.unwrap_or_else(|never| match never {}).into_parts();
    let mut code = head.headers.get("grpc-status").cloned();
    let mut body = Box::pin(body);
    let mut waited = 0;
    // A watch of the health has no end: what it has not said by now depends on no byte of its
    // request.
    while waited < TURNS_MAX {
        let polled = poll_fn(|context| Poll::Ready(body.as_mut().poll_frame(context))).await;
        match polled {
            Poll::Ready(None) => break,
            Poll::Ready(Some(Ok(frame))) => {
                let trailers = frame.trailers_ref();
                code = code.or_else(|| trailers?.get("grpc-status").cloned());
            }
            Poll::Ready(Some(Err(status))) => code = code.or(Some((status.code() as i32).into())),
            Poll::Pending => {
                waited += 1;
                tokio::task::yield_now().await;
            }
        }
    }
    let known = code
        .as_ref()
        .and_then(|code| code.to_str().ok()?.parse().ok());
    let known = known.is_some_and(|number: i32| (0..=16).contains(&number));
    assert!(known || waited == TURNS_MAX, "{path} ended with {code:?}");
    drop(body);
    assert_eq!(calls.unanswered(), 0, "{path} leaves a call");
    assert_eq!(
        calls.request_bytes(),
        0,
        "{path} leaves bytes of its request"
    );
}

/// How often a call that has nothing to say is looked at.
const TURNS_MAX: usize = 64;

fn dispatch(calls: Arc<Calls>, stopped: watch::Receiver<bool>) -> Dispatch {
    let backend: Arc<dyn Backend> = Arc::new(Nothing);
    let authority = Arc::new(Authority::default());
    let sessions = OpenSessions::new(&ControlLimits::default(), &Metrics::new());
    let reporter = HealthReporter::new();
    let routes = routes(
        backend.clone(),
        authority.clone(),
        sessions,
        reporter.clone(),
    );
    let health = Health::new(backend.clone(), reporter);
    Dispatch::new(routes, (backend, health), calls, authority, stopped)
}

/// A body that comes in these pieces, each as soon as it is asked for.
struct Pieces(VecDeque<Bytes>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.pop_front().map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }
}

/// An engine that has nothing, and echoes the messages of one method.
pub(crate) struct Nothing;

impl Backend for Nothing {
    fn status(&self) -> Answer<'_, GetStatusResponse> {
        Box::pin(async { Ok(GetStatusResponse::default()) })
    }

    fn recv_tensors(&self, _: i64, keys: Vec<Text>) -> Answer<'_, TakenTensors> {
        Box::pin(async move { Ok(TakenTensors::new(vec![Tensor::dead(); keys.len()], drop)) })
    }

    fn cleanup_graph(&self, _: i64) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn cleanup_all(&self, _: Vec<String>) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn cluster_devices(&self) -> Answer<'_, Vec<TaskDevices>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn reset(&self, _: Vec<String>) -> Answer<'_, ()> {
        Box::pin(async { Ok(()) })
    }

    fn serves(&self, path: &str) -> bool {
        path == SERVED_PATH
    }

    fn call(&self, _: Caller, envelope: Envelope) -> Answer<'_, Envelope> {
        let mut writer = Envelope::answer(&envelope.request_metadata(), 0);
        writer.attach(envelope.message());
        Box::pin(async { Ok(writer.finish()) })
    }

    fn streams(&self, _: &str) -> bool {
        false
    }

    fn stream(&self, _: Caller, _: Envelope) -> Result<(RawSink, RawStream), Status> {
        Err(Status::new(Code::Unimplemented, "no method streams"))
    }

    fn services(&self) -> Vec<ServiceReport> {
        Vec::new()
    }

    fn inspect(&self) -> Answer<'_, InspectReply> {
        Box::pin(async { Ok(InspectReply::default()) })
    }

    fn liveness(&self) -> Result<(), Status> {
        Ok(())
    }

    fn metrics_text(&self) -> Answer<'_, String> {
        Box::pin(async { Ok(String::new()) })
    }
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::replay::replay;
    use super::*;

    #[test]
    fn the_corpus_of_tensors_holds() {
        replay("tensor_proto", tensor_proto);
    }

    #[test]
    fn the_corpus_of_bodies_holds() {
        replay("grpc_body", grpc_body);
    }

    proptest! {
        #[test]
        fn any_body_gets_an_answer(
            method in any::<u8>(),
            piece_bytes in any::<u8>(),
            announced in 0u32..64,
            message in vec(any::<u8>(), 0..64),
        ) {
            let head = [method, piece_bytes, 0];
            grpc_body(&[&head, &announced.to_be_bytes()[..], &message].concat());
        }
    }
}
