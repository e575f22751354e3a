//! The endpoint over real sockets, called through generated clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use grpcxx_control::services::master_service_client::MasterServiceClient;
use grpcxx_control::services::worker_service_client::WorkerServiceClient;
use grpcxx_control::{
    BlockingControlClient, ClientError, ClientOptions, Control, ControlClient, ControlError, Health,
};
use grpcxx_rpc::proto::*;
use grpcxx_rpc::{Code, DType, Shape, Tensor};
use tonic::transport::Channel;

use crate::support::{Fake, bytes, channel, connect, loopback, start};

async fn worker(control: &Control) -> WorkerServiceClient<Channel> {
    WorkerServiceClient::new(channel(control).await)
}

async fn master(control: &Control) -> MasterServiceClient<Channel> {
    MasterServiceClient::new(channel(control).await)
}

fn recv(step_id: i64, key: &str) -> RecvTensorRequest {
    RecvTensorRequest {
        step_id,
        rendezvous_key: key.to_owned(),
        ..Default::default()
    }
}

#[tokio::test]
async fn a_client_sees_status_devices_and_health() {
    let fake = Fake::new();
    let control = start(&fake);
    let client = connect(&control).await;
    let status = client.get_status().await.unwrap();
    assert_eq!(status.device_attributes[0].incarnation, 11);
    let devices = client.list_devices().await.unwrap();
    assert_eq!(devices.local.len(), 1);
    assert_eq!(devices.remote[0].incarnation, 12);
    assert_eq!(
        devices.unreachable,
        ["/job:worker/replica:0/task:1: UNAVAILABLE: nobody answers"]
    );
    assert_eq!(client.health().await.unwrap(), Health::Serving);
    client.cleanup_graph(7).await.unwrap();
    assert_eq!(*fake.cleaned_steps.lock().unwrap(), [7]);
    client.reset(vec!["box".to_owned()]).await.unwrap();
    assert_eq!(*fake.containers.lock().unwrap(), ["box"]);
}

#[test]
fn a_program_without_an_event_loop_can_ask_too() {
    let fake = Fake::new();
    fake.put(1, "k", bytes(10));
    let control = start(&fake);
    let client =
        BlockingControlClient::connect(&control.local_addr().to_string(), ClientOptions::default())
            .unwrap();
    assert_eq!(client.health().unwrap(), Health::Serving);
    assert_eq!(client.recv_tensor(1, "k").unwrap(), bytes(10));
}

#[tokio::test]
async fn a_tensor_of_64_mib_arrives_whole() {
    let fake = Fake::new();
    let sent = bytes(64 << 20);
    fake.put(3, "large", sent.clone());
    let control = start(&fake);
    let received = connect(&control)
        .await
        .recv_tensor(3, "large")
        .await
        .unwrap();
    assert!(received == sent);
}

#[tokio::test]
async fn fused_tensors_arrive_in_the_order_of_their_keys() {
    let fake = Fake::new();
    fake.put(1, "a", bytes(3));
    fake.put(1, "b", Tensor::dead());
    fake.put(1, "c", bytes(0));
    let control = start(&fake);
    let mut worker = worker(&control).await;
    let request = |keys: &[&str]| FuseRecvTensorRequest {
        step_id: 1,
        rendezvous_key: keys.iter().map(|key| (*key).to_owned()).collect(),
        ..Default::default()
    };
    let response = worker
        .fuse_recv_tensor(request(&["c", "a", "b"]))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(response.is_dead, [false, false, true]);
    let lengths = response.tensor.iter().map(|t| t.tensor_content.len());
    assert_eq!(lengths.collect::<Vec<_>>(), [0, 3, 0]);
    let refused = worker.fuse_recv_tensor(request(&[])).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn tensors_that_cannot_be_sent_stay_in_their_step() {
    let fake = Fake::new();
    let shape = Shape::new(&[1]).unwrap();
    let unknown = Tensor::new(DType::Float8E3M4, shape, vec![7]).unwrap();
    fake.put(1, "known", bytes(3));
    fake.put(1, "unknown", unknown.clone());
    let control = start(&fake);
    let mut worker = worker(&control).await;
    let single = worker.recv_tensor(recv(1, "unknown")).await.unwrap_err();
    let fused = FuseRecvTensorRequest {
        step_id: 1,
        rendezvous_key: vec!["known".to_owned(), "unknown".to_owned()],
        ..Default::default()
    };
    let fused = worker.fuse_recv_tensor(fused).await.unwrap_err();
    for refused in [single, fused] {
        assert_eq!(refused.code(), tonic::Code::Unimplemented, "{refused}");
    }
    worker.recv_tensor(recv(1, "known")).await.unwrap();
    let given_back = fake.given_back.lock().unwrap();
    assert_eq!(*given_back, [unknown.clone(), bytes(3), unknown]);
}

#[tokio::test]
async fn every_status_code_arrives_as_it_was() {
    let control = start(&Fake::new());
    let client = connect(&control).await;
    for &code in Code::ALL {
        let error = client.recv_tensor(1, code.name()).await.unwrap_err();
        let ClientError::Call { status, .. } = error else {
            panic!("{error}");
        };
        assert_eq!((status.code, &*status.message), (code, "as asked"));
    }
}

#[tokio::test]
async fn a_hundred_calls_wait_at_once_and_status_still_answers() {
    let fake = Fake::new();
    let control = start(&fake);
    let client = connect(&control).await;
    let calls: Vec<_> = (0..100)
        .map(|i| {
            let key = format!("gate{i}");
            fake.put(1, &key, bytes(i));
            let client = client.clone();
            tokio::spawn(async move { client.recv_tensor(1, &key).await.unwrap() })
        })
        .collect();
    fake.until_waiting(100).await;
    client.get_status().await.unwrap();
    fake.gate.send_replace(true);
    for (i, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap(), bytes(i));
    }
}

#[tokio::test]
async fn a_deadline_ends_a_call_and_cancels_it_in_the_engine() {
    let fake = Fake::new();
    let control = start(&fake);
    let options = ClientOptions {
        call_timeout: Duration::from_millis(300),
        ..Default::default()
    };
    let client = ControlClient::connect(&control.local_addr().to_string(), options)
        .await
        .unwrap();
    let waiting = tokio::spawn(async move { client.recv_tensor(1, "never").await });
    fake.until_waiting(1).await;
    let ClientError::Call { status, .. } = waiting.await.unwrap().unwrap_err() else {
        panic!("another error than that of the call");
    };
    assert_eq!(status.code, Code::DeadlineExceeded);
    fake.until_waiting(0).await;
}

#[tokio::test]
async fn hanging_up_cancels_the_call_in_the_engine() {
    let fake = Fake::new();
    let control = start(&fake);
    let client = connect(&control).await;
    let waiting = tokio::spawn(async move { client.recv_tensor(1, "never").await });
    fake.until_waiting(1).await;
    waiting.abort();
    fake.until_waiting(0).await;
}

#[tokio::test]
async fn sessions_open_without_a_graph_and_close_once() {
    let control = start(&Fake::new());
    let mut master = master(&control).await;
    let created = master
        .create_session(CreateSessionRequest::default())
        .await
        .unwrap()
        .into_inner();
    let list = ListDevicesRequest {
        session_handle: created.session_handle.clone(),
    };
    master.list_devices(list.clone()).await.unwrap();
    let close = CloseSessionRequest {
        session_handle: created.session_handle,
    };
    master.close_session(close.clone()).await.unwrap();
    let again = master.close_session(close).await.unwrap_err();
    assert_eq!(again.code(), tonic::Code::Aborted);
    let closed = master.list_devices(list).await.unwrap_err();
    assert_eq!(closed.code(), tonic::Code::InvalidArgument);

    let graph = CreateSessionRequest {
        graph_def: bytes::Bytes::from_static(&[0x0a, 0]),
        ..Default::default()
    };
    let refused = master.create_session(graph).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
    assert!(refused.message().contains("StarRunGraph"), "{refused}");
}

#[tokio::test]
async fn worker_sessions_and_cleanups_are_accepted() {
    let fake = Fake::new();
    let control = start(&fake);
    let mut worker = worker(&control).await;
    let session_handle = "s".to_owned();
    worker
        .create_worker_session(CreateWorkerSessionRequest {
            session_handle: session_handle.clone(),
            ..Default::default()
        })
        .await
        .unwrap();
    for _ in 0..2 {
        let session_handle = session_handle.clone();
        worker
            .delete_worker_session(DeleteWorkerSessionRequest { session_handle })
            .await
            .unwrap();
    }
    let nameless = worker
        .create_worker_session(CreateWorkerSessionRequest::default())
        .await
        .unwrap_err();
    assert_eq!(nameless.code(), tonic::Code::InvalidArgument);
    let container = vec!["c".to_owned()];
    worker
        .cleanup_all(CleanupAllRequest { container })
        .await
        .unwrap();
    assert_eq!(*fake.containers.lock().unwrap(), ["c"]);
    worker
        .mark_recv_finished(MarkRecvFinishedRequest::default())
        .await
        .unwrap();
}

#[tokio::test]
async fn what_needs_a_graph_executor_says_what_to_use() {
    let control = start(&Fake::new());
    let mut worker = worker(&control).await;
    // Larger than any buffer on the way: the answer comes without the request having been read.
    let graph = RegisterGraphRequest {
        graph_def: vec![0; 32 << 20].into(),
        ..Default::default()
    };
    let refused = worker.register_graph(graph).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unimplemented);
    assert!(refused.message().contains("StarRunGraph"), "{refused}");
    let refused = worker
        .complete_group(CompleteGroupRequest::default())
        .await
        .unwrap_err();
    assert!(refused.message().contains("collectives"), "{refused}");

    worker.logging(LoggingRequest::default()).await.unwrap();
    let enable = LoggingRequest {
        enable_rpc_logging: true,
        ..Default::default()
    };
    let refused = worker.logging(enable).await.unwrap_err();
    assert!(refused.message().starts_with("Logging"), "{refused}");
    let refused = worker.tracing(TracingRequest::default()).await.unwrap_err();
    assert!(refused.message().starts_with("Tracing"), "{refused}");
}

#[tokio::test]
async fn a_request_of_32_mib_is_accepted() {
    let control = start(&Fake::new());
    let mut worker = worker(&control).await;
    let devices = (0..32)
        .map(|_| DeviceAttributes {
            physical_device_desc: "x".repeat(1 << 20),
            ..Default::default()
        })
        .collect();
    worker
        .create_worker_session(CreateWorkerSessionRequest {
            session_handle: "s".to_owned(),
            cluster_device_attributes: devices,
            ..Default::default()
        })
        .await
        .unwrap();
}

#[test]
fn a_port_in_use_is_an_error_that_says_so() {
    let control = start(&Fake::new());
    let mut options = loopback();
    options.listen = control.local_addr();
    let error = Control::start(options.clone(), Fake::new()).unwrap_err();
    assert!(matches!(error, ControlError::Listen { .. }));
    let text = error.to_string();
    assert!(
        text.contains("gRPC endpoint") && text.contains("is in use"),
        "{text}"
    );

    let metrics = loopback().metrics_on(options.listen);
    let text = Control::start(metrics, Fake::new())
        .unwrap_err()
        .to_string();
    assert!(text.contains("metrics page"), "{text}");
}

#[test]
#[expect(clippy::print_stderr, reason = "what is skipped says so")]
fn ipv6_is_served_where_there_is_any() {
    let options = grpcxx_control::ControlOptions::for_task("[::1]:0").unwrap();
    assert_eq!(options.listen.to_string(), "[::]:0");
    match Control::start(options, Fake::new()) {
        Ok(control) => {
            let address = format!("[::1]:{}", control.local_addr().port());
            let client = BlockingControlClient::connect(&address, ClientOptions::default());
            client.unwrap().get_status().unwrap();
        }
        Err(error) => eprintln!("skipped: {error}"),
    }
}

#[tokio::test]
async fn unknown_methods_are_unimplemented_with_a_text() {
    let control = start(&Fake::new());
    let mut client = tonic::client::Grpc::new(channel(&control).await);
    for (path, says) in [
        ("/tensorflow.eager.EagerService/CreateContext", "eager"),
        ("/tensorflow.WorkerService/Nothing", "reflection"),
        ("/x/y", "reflection"),
    ] {
        client.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<GetStatusRequest, GetStatusResponse>::default();
        let refused = client
            .unary(
                tonic::Request::new(GetStatusRequest {}),
                path.parse().unwrap(),
                codec,
            )
            .await
            .unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unimplemented, "{path}");
        assert!(refused.message().contains(says), "{refused}");
    }
}

#[tokio::test]
async fn a_recv_of_a_bare_message_is_a_plain_response() {
    let fake = Fake::new();
    fake.put(5, "k", bytes(4));
    let control = start(&fake);
    let mut worker = worker(&control).await;
    let response = worker.recv_tensor(recv(5, "k")).await.unwrap().into_inner();
    assert!(!response.is_dead && !response.require_ack);
    assert!(response.send_start_micros > 0);
    assert_eq!(response.tensor.unwrap().tensor_content[..], [0, 1, 2, 3]);
}

#[tokio::test]
async fn both_versions_of_reflection_list_the_services() {
    use tokio_stream::StreamExt;
    macro_rules! services {
        ($version:ident, $control:expr) => {{
            use tonic_reflection::pb::$version as pb;
            let request = pb::ServerReflectionRequest {
                host: String::new(),
                message_request: Some(pb::server_reflection_request::MessageRequest::ListServices(
                    String::new(),
                )),
            };
            let channel = channel($control).await;
            let mut client = pb::server_reflection_client::ServerReflectionClient::new(channel);
            let answers = client
                .server_reflection_info(tokio_stream::once(request))
                .await
                .unwrap();
            let answer = answers.into_inner().next().await.unwrap().unwrap();
            match answer.message_response.unwrap() {
                pb::server_reflection_response::MessageResponse::ListServicesResponse(list) => {
                    list.service.into_iter().map(|s| s.name).collect::<Vec<_>>()
                }
                other => panic!("{other:?}"),
            }
        }};
    }
    let control = start(&Fake::new());
    for services in [services!(v1, &control), services!(v1alpha, &control)] {
        for service in [
            "tensorflow.WorkerService",
            "tensorflow.MasterService",
            "grpc.health.v1.Health",
        ] {
            assert!(services.iter().any(|name| name == service), "{services:?}");
        }
    }
}

#[test]
fn status_answers_while_every_cpu_is_busy() {
    let control = start(&Fake::new());
    let address = control.local_addr().to_string();
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let busy = AtomicBool::new(true);
    std::thread::scope(|scope| {
        for _ in 0..2 * cpus {
            scope.spawn(|| {
                while busy.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let asked = scope.spawn(|| -> Result<(), ClientError> {
            let client = BlockingControlClient::connect(&address, ClientOptions::default())?;
            for _ in 0..20 {
                client.get_status()?;
            }
            Ok(())
        });
        let answered = asked.join();
        busy.store(false, Ordering::Relaxed);
        answered.unwrap().unwrap();
    });
}
