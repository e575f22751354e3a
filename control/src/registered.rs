//! The services that the task's program has registered, as this endpoint serves them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};
use bytes::{Buf, Bytes};
use futures_util::{StreamExt, TryStreamExt, future, stream};
use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Envelope, EnvelopeWriter, Metadata, Token};
use grpcxx_runtime::service::{self, RawStream};
use http::{Request, Response};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{KeyAndValueRef, MetadataKey, MetadataMap, MetadataValue};
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::{Status, Streaming};

use crate::Backend;
use crate::connections::Caller;
use crate::frames::Answered;
use crate::limits::REQUEST_MESSAGE_BYTES_MAX;
use crate::methods;
use crate::request_body;
use crate::status::to_grpc;

/// Answers a call of a registered service, whose method `kind` stands for: its message goes through
/// as it is. The messages of the answer are an extension of the response, [`Answered`]. `until` is
/// when its caller gives it up.
pub(crate) async fn answer(
    backend: Arc<dyn Backend>,
    kind: &'static methods::Method,
    request: Request<Body>,
    until: Option<Instant>,
) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let mut grpc = Grpc::new(Untouched).max_decoding_message_size(REQUEST_MESSAGE_BYTES_MAX);
    let caller = Caller::of(request.extensions());
    let caller = service::Caller::at(caller.peer, caller.account).until(until);
    let answered = Answered::default();
    let method = Method {
        backend,
        path,
        caller,
        answered: answered.clone(),
    };
    let mut response = match kind.is_stream {
        // Which direction streams is nothing that travels.
        true => grpc.streaming(method, request).await,
        false => grpc.unary(method, request).await,
    };
    response.extensions_mut().insert(answered);
    response
}

/// A method of a registered service.
struct Method {
    backend: Arc<dyn Backend>,
    path: String,
    caller: service::Caller,
    answered: Answered,
}

impl Method {
    /// Begins the request that the engine gets.
    fn envelope(&self, map: &MetadataMap) -> Result<EnvelopeWriter, grpcxx_rpc::Status> {
        Envelope::request(&self.path, &metadata_of(map)?, 0)
    }
}

impl UnaryService<Bytes> for Method {
    type Response = ();
    type Future = Answer<()>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let (backend, caller) = (Arc::clone(&self.backend), self.caller);
        let answered = self.answered.clone();
        let envelope = self.envelope(request.metadata()).map(|mut writer| {
            writer.attach(Buffer::from(request.into_inner()));
            writer.finish()
        });
        Box::pin(async move {
            let answer = match envelope {
                Ok(envelope) => backend.call(caller, envelope).await,
                Err(status) => Err(status),
            };
            let envelope = answer.map_err(|status| to_grpc(&status))?;
            let response = response((), &envelope.answer_metadata());
            let message = pieces(envelope.into_pieces());
            answered.set(Box::pin(stream::once(future::ready(Ok(message)))));
            Ok(response)
        })
    }
}

impl StreamingService<Bytes> for Method {
    type Response = ();
    type ResponseStream = stream::Empty<Result<(), Status>>;
    type Future = Answer<Self::ResponseStream>;

    fn call(&mut self, request: tonic::Request<Streaming<Bytes>>) -> Self::Future {
        let envelope = self
            .envelope(request.metadata())
            .map(EnvelopeWriter::finish);
        let begun = envelope.and_then(|envelope| self.backend.stream(self.caller, envelope));
        let answered = self.answered.clone();
        Box::pin(async move {
            let (sink, mut messages) = begun.map_err(|status| to_grpc(&status))?;
            let requests = request.into_inner();
            // It ends with the messages, or with the call.
            tokio::spawn(sink.send_all(requests.map_err(|status| request_body::failure(&status))));
            let head = messages.head().await.map_err(|status| to_grpc(&status))?;
            let messages = stream::unfold(Some(messages), next_message);
            answered.set(Box::pin(messages));
            Ok(response(stream::empty(), &head))
        })
    }
}

type Answer<M> = Pin<Box<dyn Future<Output = Result<tonic::Response<M>, Status>> + Send>>;

/// What tonic is told of an answer: all but its messages.
fn response<M>(none: M, metadata: &Metadata) -> tonic::Response<M> {
    let mut response = tonic::Response::new(none);
    write_metadata(metadata, response.metadata_mut());
    response
}

fn pieces(message: Vec<Buffer>) -> Vec<Bytes> {
    message.into_iter().map(Bytes::from).collect()
}

/// The next message of a method, and what it says behind the last one: metadata of a status become
/// trailers, also if it says that all went well.
async fn next_message(
    messages: Option<RawStream>,
) -> Option<(Result<Vec<Bytes>, Status>, Option<RawStream>)> {
    let mut messages = messages?;
    match messages.next().await {
        Some(Ok(message)) => Some((Ok(pieces(message)), Some(messages))),
        Some(Err(status)) => Some((Err(to_grpc(&status)), None)),
        None => {
            let trailers = messages.take_trailers();
            if trailers.is_empty() {
                return None;
            }
            let mut map = MetadataMap::new();
            write_metadata(&trailers, &mut map);
            let status = Status::with_metadata(tonic::Code::Ok, "", map);
            Some((Err(status), None))
        }
    }
}

/// What a caller says beside its message, without what gRPC itself has there.
///
/// # Errors
/// `FAILED_PRECONDITION` if a method cannot be told all of it: gRPC allows a little more than star.
fn metadata_of(map: &MetadataMap) -> Result<Metadata, grpcxx_rpc::Status> {
    let mut metadata = Metadata::default();
    for pair in map.iter() {
        match pair {
            KeyAndValueRef::Ascii(name, value) => {
                if !is_reserved(name.as_str()) && !proves_token(name.as_str(), value.as_bytes()) {
                    let appended = metadata.append(name.as_str(), value.as_bytes());
                    appended.map_err(|status| not_carried(&status.message))?;
                }
            }
            KeyAndValueRef::Binary(name, joined) => {
                // Proxies may join the values of one name.
                for value in joined.as_encoded_bytes().split(|byte| *byte == b',') {
                    let value = BASE64.decode(value.trim_ascii()).map_err(|_| {
                        not_carried(&format!("the metadata {:?} is no base64", name.as_str()))
                    })?;
                    let appended = metadata.append(name.as_str(), value);
                    appended.map_err(|status| not_carried(&status.message))?;
                }
            }
        }
    }
    Ok(metadata)
}

fn not_carried(problem: &str) -> grpcxx_rpc::Status {
    let text = format!("{problem}; this endpoint has no other way to a method: change or leave it");
    grpcxx_rpc::Status::new(Code::FailedPrecondition, text)
}

fn write_metadata(metadata: &Metadata, map: &mut MetadataMap) {
    for (name, value) in metadata.iter() {
        if name.ends_with("-bin") {
            if let Ok(name) = MetadataKey::from_bytes(name.as_bytes()) {
                map.append_bin(name, MetadataValue::from_bytes(value));
            }
        } else if let (Ok(name), Ok(value)) = (
            MetadataKey::from_bytes(name.as_bytes()),
            MetadataValue::try_from(value),
        ) && !is_reserved(name.as_str())
        {
            map.append(name, value);
        }
    }
}

/// Whether a name belongs to gRPC or HTTP.
fn is_reserved(name: &str) -> bool {
    name.starts_with("grpc-") || matches!(name, "te" | "content-type")
}

/// Whether metadata are the proof of the cluster's token, which is for this endpoint alone.
fn proves_token(name: &str, value: &[u8]) -> bool {
    name == "authorization" && std::str::from_utf8(value).is_ok_and(Token::is_call_proof)
}

/// How values of names with `-bin` are written, with padding or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Takes messages as the bytes that they are, and has none to encode.
pub(crate) struct Untouched;

impl Codec for Untouched {
    type Encode = ();
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Untouched {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

impl Decoder for Untouched {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
