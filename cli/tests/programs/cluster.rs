use std::time::{Duration, Instant};

use grpcxx::model::Model;
use grpcxx::server::pull_model;
use grpcxx_cli::local::LocalCluster;
use grpcxx_control::{BlockingControlClient, ClientOptions};
use grpcxx_memory::Buffer;
use grpcxx_rpc::proto::{DeviceAttributes, GetStatusResponse};
use grpcxx_rpc::{Code, Method, Request, Response, Status};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::{Client, Engine, EngineOptions, Peer};
use prost::Message;

use super::{options, start, write_model};

/// An engine that only calls.
pub(super) fn caller() -> Engine {
    Engine::start(EngineOptions::default().with(|options| options.task = TaskId::new("test", 0)))
        .unwrap()
}

pub(super) fn peer(client: &Client, cluster: &LocalCluster, task: &str) -> Peer {
    client.peer(cluster.star_address(task).unwrap()).unwrap()
}

pub(super) fn device(client: &Client, peer: &Peer) -> Result<DeviceAttributes, Status> {
    let request = Request::Message {
        method: Method::GetStatus,
        body: Buffer::new(),
    };
    match client.call(peer, request, Some(PATIENCE)).wait()? {
        Response::Message(body) => {
            let mut status = GetStatusResponse::decode(&body[..]).unwrap();
            Ok(status.device_attributes.remove(0))
        }
        other => panic!("{other:?}"),
    }
}

/// The key of a tensor that `source` would send in this incarnation.
pub(super) fn key(source: &DeviceAttributes, name: &str) -> String {
    let target = "/job:worker/replica:0/task:0/device:CPU:0";
    format!(
        "{};{:016x};{target};{name};0:0",
        source.name, source.incarnation
    )
}

#[test]
fn workers_pull_the_model_that_the_ps_share() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write_model(&path);
    let expected = Model::open(&[&path]).unwrap().fingerprint().unwrap();
    let cluster = start(options(2, 2, &[path]));
    let engine = caller();
    let client = engine.client();
    for worker in ["worker:0", "worker:1"] {
        let report = pull_model(&client, &peer(&client, &cluster, worker), Some(PATIENCE)).unwrap();
        assert_eq!(report.fingerprint, expected);
        assert_eq!(report.transferred.tensors, 306);
        // Small tensors share calls, up to 250 in each, and the large one travels alone.
        assert!(
            report.transferred.calls <= 6,
            "{} calls",
            report.transferred.calls
        );
    }
    cluster.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_ps_that_was_killed_is_back_after_its_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write_model(&path);
    let expected = Model::open(&[&path]).unwrap().fingerprint().unwrap();
    let mut cluster = start(options(2, 1, &[path]));
    let engine = caller();
    let client = engine.client();
    let ps = peer(&client, &cluster, "ps:0");
    let worker = peer(&client, &cluster, "worker:0");
    pull_model(&client, &worker, Some(PATIENCE)).unwrap();
    let before = device(&client, &ps).unwrap();

    // A receive that waits at the ps ends when the ps dies, and ends once.
    let waiting = client.call(
        &ps,
        Request::RecvTensor {
            step_id: 7,
            key: key(&before, "edge_1").as_str().into(),
        },
        None,
    );
    // An answered question shows that the receive has arrived.
    device(&client, &ps).unwrap();
    cluster.kill_task("ps:0").unwrap();
    assert_eq!(waiting.wait().unwrap_err().code, Code::Unavailable);
    let failed = pull_model(&client, &worker, Some(Duration::from_secs(2)));
    assert!(failed.is_err(), "{failed:?}");

    cluster.restart_task("ps:0").unwrap();
    let after = device(&client, &ps).unwrap();
    assert_ne!(before.incarnation, after.incarnation);
    let stale = client.call(
        &ps,
        Request::RecvTensor {
            step_id: 7,
            key: key(&before, "edge_1").as_str().into(),
        },
        Some(PATIENCE),
    );
    assert_eq!(stale.wait().unwrap_err().code, Code::Aborted);
    let report = pull_model_again(&client, &worker);
    assert_eq!(report, expected);
    cluster.stop(Duration::from_secs(5)).unwrap();
}

/// The worker may still be busy with the pull that was given up.
fn pull_model_again(client: &Client, worker: &Peer) -> grpcxx::model::ModelFingerprint {
    let end = Instant::now() + PATIENCE;
    loop {
        match pull_model(client, worker, Some(PATIENCE)) {
            Ok(report) => return report.fingerprint,
            Err(status) => {
                assert!(Instant::now() < end, "{status}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

#[test]
fn sigterm_answers_calls_in_flight_and_ends_within_two_seconds() {
    let mut cluster = start(options(1, 0, &[]));
    let engine = caller();
    let client = engine.client();
    let ps = peer(&client, &cluster, "ps:0");
    let source = device(&client, &ps).unwrap();
    let waiting = client.call(
        &ps,
        Request::RecvTensor {
            step_id: 1,
            key: key(&source, "never").as_str().into(),
        },
        None,
    );
    device(&client, &ps).unwrap();

    let asked = Instant::now();
    let status = cluster
        .stop_task("ps:0", Duration::from_secs(10))
        .unwrap()
        .unwrap();
    let took = asked.elapsed();
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    let ended = waiting.wait().unwrap_err();
    assert!(
        matches!(
            ended.code,
            Code::Unavailable | Code::Aborted | Code::Cancelled
        ),
        "{ended}"
    );
}

#[test]
fn tasks_do_not_outlive_the_program_that_started_them() {
    let cluster = start(options(1, 1, &[]));
    let ids: Vec<u32> = cluster
        .tasks()
        .iter()
        .map(|task| cluster.process_id(task).unwrap())
        .collect();
    drop(cluster);
    for id in ids {
        assert!(!std::path::Path::new(&format!("/proc/{id}/exe")).exists());
    }
}

#[test]
fn the_grpc_endpoint_lists_the_devices_of_the_whole_cluster() {
    let mut cluster = start(options(2, 1, &[]));
    let devices = |cluster: &LocalCluster| {
        let address = cluster.grpc_address("worker:0").unwrap();
        let client = BlockingControlClient::connect(address, ClientOptions::default()).unwrap();
        client.list_devices().unwrap()
    };
    let listed = devices(&cluster);
    assert_eq!(
        listed.local[0].name,
        "/job:worker/replica:0/task:0/device:CPU:0"
    );
    let mut remote: Vec<&str> = listed
        .remote
        .iter()
        .map(|device| device.name.as_str())
        .collect();
    remote.sort_unstable();
    assert_eq!(
        remote,
        [
            "/job:ps/replica:0/task:0/device:CPU:0",
            "/job:ps/replica:0/task:1/device:CPU:0"
        ]
    );
    assert!(listed.unreachable.is_empty(), "{:?}", listed.unreachable);

    cluster.kill_task("ps:1").unwrap();
    let listed = devices(&cluster);
    assert_eq!(listed.remote.len(), 1);
    assert_eq!(listed.unreachable.len(), 1);
    assert!(
        listed.unreachable[0].contains("/job:ps/replica:0/task:1"),
        "{:?}",
        listed.unreachable
    );
}

const PATIENCE: Duration = Duration::from_secs(60);
