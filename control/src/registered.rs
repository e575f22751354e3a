//! The services that the task's program has registered, as this endpoint serves them.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use grpcxx_memory::Buffer;
use grpcxx_rpc::{Envelope, Metadata};
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{KeyAndValueRef, MetadataKey, MetadataMap, MetadataValue};
use tonic::server::{Grpc, UnaryService};
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower_service::Service;

use crate::Backend;
use crate::limits::{MESSAGE_BYTES_MAX, REQUEST_MESSAGE_BYTES_MAX};
use crate::services::{DESCRIPTORS, INSPECT_DESCRIPTORS};
use crate::status::to_grpc;

/// Answers a call of a registered service: its message goes through as it is.
pub(crate) async fn answer(backend: Arc<dyn Backend>, request: Request<Body>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    Grpc::new(Untouched)
        .max_decoding_message_size(REQUEST_MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
        .unary(Method { backend, path }, request)
        .await
}

/// Answers a call of reflection with all services that are there now. `is_v1` tells the two
/// versions of reflection apart.
pub(crate) async fn reflect(
    backend: Arc<dyn Backend>,
    is_v1: bool,
    request: Request<Body>,
) -> Response<Body> {
    let builder = |with_registered: bool| {
        let mut builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(INSPECT_DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        if with_registered {
            for service in backend.services() {
                builder = builder.register_encoded_file_descriptor_set(service.descriptors);
            }
        }
        builder
    };
    // A program may bring descriptors that are none; the others are to be seen all the same.
    let valid = "the descriptors are constants that a test compares with their sources";
    let answered = if is_v1 {
        let all = builder(true).build_v1();
        all.unwrap_or_else(|_| builder(false).build_v1().expect(valid))
            .call(request)
            .await
    } else {
        let all = builder(true).build_v1alpha();
        all.unwrap_or_else(|_| builder(false).build_v1alpha().expect(valid))
            .call(request)
            .await
    };
    match answered {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// Tells the health of the services that are there now.
pub(crate) async fn set_health(
    backend: &dyn Backend,
    reporter: &HealthReporter,
    status: ServingStatus,
) {
    for service in backend.services() {
        reporter.set_service_status(service.name, status).await;
    }
}

/// A method of a registered service.
struct Method {
    backend: Arc<dyn Backend>,
    path: String,
}

type Answered = Result<tonic::Response<Bytes>, Status>;

impl UnaryService<Bytes> for Method {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Answered> + Send>>;

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        let backend = Arc::clone(&self.backend);
        let metadata = metadata_of(request.metadata());
        let envelope = Envelope::request(&self.path, &metadata, 0).map(|mut writer| {
            writer.attach(Buffer::from(request.into_inner()));
            writer.finish()
        });
        Box::pin(async move {
            let answer = match envelope {
                Ok(envelope) => backend.call(envelope).await,
                Err(status) => Err(status),
            };
            let envelope = answer.map_err(|status| to_grpc(&status))?;
            let message = Bytes::from_owner(envelope.message());
            let mut response = tonic::Response::new(message);
            write_metadata(&envelope.answer_metadata(), response.metadata_mut());
            Ok(response)
        })
    }
}

/// What a caller says beside its message, without what gRPC itself has there.
fn metadata_of(map: &MetadataMap) -> Metadata {
    let mut metadata = Metadata::default();
    for pair in map.iter() {
        // What star cannot carry is left out: gRPC allows a little more.
        let _was_left_out = match pair {
            KeyAndValueRef::Ascii(name, value) if !is_reserved(name.as_str()) => {
                metadata.append(name.as_str(), value.as_bytes())
            }
            KeyAndValueRef::Ascii(..) => continue,
            KeyAndValueRef::Binary(name, value) => match value.to_bytes() {
                Ok(value) => metadata.append(name.as_str(), value),
                Err(_) => continue,
            },
        };
    }
    metadata
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
    name.starts_with("grpc-") || matches!(name, "te" | "content-type" | "authorization")
}

/// Leaves messages as the bytes that they are.
struct Untouched;

impl Codec for Untouched {
    type Encode = Bytes;
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
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
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
