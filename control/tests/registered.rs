//! What clients hear of the services that a program has registered.

use std::sync::Arc;
use std::time::Duration;

use grpcxx_runtime::Engine;
use grpcxx_runtime::service::{Methods, Place, ServiceReport, TypedService};
use prost::Message;
use prost_types::{
    DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    ServiceDescriptorProto,
};
use tokio_stream::StreamExt;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

use crate::support::{Fake, channel, start};

struct First(&'static [u8]);
struct Second(&'static [u8]);
struct Third(&'static [u8]);

impl TypedService for First {
    const NAME: &'static str = "a.First";

    fn into_methods(self) -> Methods {
        Methods::new(Self::NAME, self.0, Place::Shard)
    }
}

impl TypedService for Second {
    const NAME: &'static str = "b.Second";

    fn into_methods(self) -> Methods {
        Methods::new(Self::NAME, self.0, Place::Shard)
    }
}

impl TypedService for Third {
    const NAME: &'static str = "b.Third";

    fn into_methods(self) -> Methods {
        Methods::new(Self::NAME, self.0, Place::Shard)
    }
}

/// A service in a file `service.proto` of this package, and a message in a file `common.proto`
/// beside it.
fn described(package: &str, service: &str, field: &str) -> &'static [u8] {
    let file = |name: &str| FileDescriptorProto {
        name: Some(name.to_owned()),
        package: Some(package.to_owned()),
        ..FileDescriptorProto::default()
    };
    let field = FieldDescriptorProto {
        name: Some(field.to_owned()),
        ..FieldDescriptorProto::default()
    };
    let common = FileDescriptorProto {
        message_type: vec![DescriptorProto {
            name: Some("Common".to_owned()),
            field: vec![field],
            ..DescriptorProto::default()
        }],
        ..file("common.proto")
    };
    let service = FileDescriptorProto {
        dependency: vec!["common.proto".to_owned()],
        service: vec![ServiceDescriptorProto {
            name: Some(service.to_owned()),
            ..ServiceDescriptorProto::default()
        }],
        ..file("service.proto")
    };
    let file = vec![common, service];
    FileDescriptorSet { file }.encode_to_vec().leak()
}

fn services() -> Vec<ServiceReport> {
    let engine = Engine::builder().arena_bytes(1 << 20).start().unwrap();
    engine.add_service(First(described("a", "First", "of_a")));
    engine.add_service(Second(described("b", "Second", "of_b")));
    engine.add_service(Third(described("b", "Third", "of_b")));
    engine.services()
}

fn fake() -> Arc<Fake> {
    let fake = Fake::new();
    *fake.services.lock().unwrap() = services();
    fake
}

#[tokio::test]
async fn files_of_the_same_name_are_all_reflected() {
    let control = start(&fake());
    let mut client = ServerReflectionClient::new(channel(&control).await);
    let mut ask = async |request| {
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(request),
        };
        let answers = client.server_reflection_info(tokio_stream::iter([request]));
        let mut answers = answers.await.unwrap().into_inner();
        let answer: ServerReflectionResponse = answers.next().await.unwrap().unwrap();
        answer.message_response.unwrap()
    };
    let list = ask(MessageRequest::ListServices(String::new())).await;
    let MessageResponse::ListServicesResponse(list) = list else {
        panic!("a list was asked for, not {list:?}");
    };
    for name in ["a.First", "b.Second", "b.Third"] {
        let listed = list.service.iter().filter(|service| service.name == name);
        assert_eq!(listed.count(), 1, "{name} in {list:?}");
    }
    let mut file = async |request| match ask(request).await {
        MessageResponse::FileDescriptorResponse(files) => {
            FileDescriptorProto::decode(&files.file_descriptor_proto[0][..]).unwrap()
        }
        other => panic!("a file was asked for, not {other:?}"),
    };
    for (name, field) in [
        ("a.First", "of_a"),
        ("b.Second", "of_b"),
        ("b.Third", "of_b"),
    ] {
        let service = file(MessageRequest::FileContainingSymbol(name.to_owned())).await;
        let common = service.dependency[0].clone();
        let common = file(MessageRequest::FileByFilename(common)).await;
        assert_eq!(common.message_type[0].field[0].name(), field);
    }
}

#[tokio::test]
async fn who_watches_the_health_is_told_once_whoever_asks_for_it() {
    let control = start(&fake());
    let mut client = HealthClient::new(channel(&control).await);
    let asked = || HealthCheckRequest {
        service: "a.First".to_owned(),
    };
    let mut watch = client.watch(asked()).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);
    for _ in 0..20 {
        let checked = client.check(asked()).await.unwrap().into_inner();
        assert_eq!(checked.status(), ServingStatus::Serving);
    }
    let stopping = tokio::task::spawn_blocking(move || control.shutdown(Duration::from_secs(5)));
    let second = watch.message().await.unwrap().unwrap();
    assert_eq!(second.status(), ServingStatus::NotServing);
    stopping.await.unwrap();
}
