//! An engine for tests that answers from memory.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod tls;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use grpcxx_control::services::inspect::InspectReply;
use grpcxx_control::{
    Answer, Backend, ClientOptions, Control, ControlClient, ControlOptions, TakenTensors,
    TaskDevices,
};
use grpcxx_rpc::proto::{DeviceAttributes, GetStatusResponse};
use grpcxx_rpc::{Code, DType, Envelope, Shape, Status, Tensor, Text};
use grpcxx_runtime::service::{Caller, RawSink, RawStream, ServiceReport};
use tokio::sync::watch;
use tonic::transport::Channel;

/// Names tensors by step and key. A key that starts with `gate` is answered once the gate is open,
/// `never` never.
pub(crate) struct Fake {
    pub(crate) tensors: Mutex<HashMap<(i64, String), Tensor>>,
    /// For every step, by the edge name in the key.
    pub(crate) edges: Mutex<HashMap<String, Tensor>>,
    pub(crate) gate: watch::Sender<bool>,
    /// Requests for tensors that wait.
    pub(crate) waiting: Arc<AtomicUsize>,
    /// Tensors that were answered and did not leave.
    pub(crate) given_back: Arc<Mutex<Vec<Tensor>>>,
    pub(crate) services: Mutex<Vec<ServiceReport>>,
    pub(crate) cleaned_steps: Mutex<Vec<i64>>,
    pub(crate) containers: Mutex<Vec<String>>,
    pub(crate) engine_answers: bool,
}

impl Fake {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    pub(crate) fn put(&self, step_id: i64, key: &str, tensor: Tensor) {
        self.tensors
            .lock()
            .unwrap()
            .insert((step_id, key.to_owned()), tensor);
    }

    /// Until `count` requests for tensors wait.
    pub(crate) async fn until_waiting(&self, count: usize) {
        while self.waiting.load(Ordering::SeqCst) != count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Default for Fake {
    fn default() -> Self {
        Self {
            tensors: Mutex::default(),
            edges: Mutex::default(),
            gate: watch::Sender::new(false),
            waiting: Arc::default(),
            given_back: Arc::default(),
            services: Mutex::default(),
            cleaned_steps: Mutex::default(),
            containers: Mutex::default(),
            engine_answers: true,
        }
    }
}

impl Backend for Fake {
    fn serves(&self, path: &str) -> bool {
        path == "/fake.Service/Echo"
    }

    /// Answers with the metadata and the message of the request.
    fn call(&self, _: Caller, envelope: Envelope) -> Answer<'_, Envelope> {
        let mut writer = Envelope::answer(&envelope.request_metadata(), 0);
        writer.attach(envelope.message());
        Box::pin(async { Ok(writer.finish()) })
    }

    fn streams(&self, _: &str) -> bool {
        false
    }

    fn stream(&self, _: Caller, _: Envelope) -> Result<(RawSink, RawStream), Status> {
        unreachable!("no method streams")
    }

    fn inspect(&self) -> Answer<'_, InspectReply> {
        let shards = 2;
        let reply = InspectReply {
            shards,
            ..InspectReply::default()
        };
        Box::pin(async { Ok(reply) })
    }

    fn liveness(&self) -> Result<(), Status> {
        match self.engine_answers {
            true => Ok(()),
            false => Err(Status::new(Code::Unavailable, "shard 3 hangs")),
        }
    }

    fn services(&self) -> Vec<ServiceReport> {
        self.services.lock().unwrap().clone()
    }

    fn status(&self) -> Answer<'_, GetStatusResponse> {
        Box::pin(async {
            Ok(GetStatusResponse {
                device_attributes: vec![device("/job:ps/replica:0/task:0", 11)],
            })
        })
    }

    fn recv_tensors(&self, step_id: i64, keys: Vec<Text>) -> Answer<'_, TakenTensors> {
        Box::pin(async move {
            let mut tensors = Vec::new();
            for key in keys {
                self.wait(&key).await;
                let found = self.find(step_id, &key);
                let missing = || match Code::ALL
                    .iter()
                    .find(|code| key.split(';').any(|part| part == code.name()))
                {
                    Some(&code) => Status::new(code, "as asked"),
                    None => Status::new(Code::NotFound, format!("no tensor {key}")),
                };
                tensors.push(found.ok_or_else(missing)?);
            }
            let given_back = Arc::clone(&self.given_back);
            Ok(TakenTensors::new(tensors, move |back| {
                given_back.lock().unwrap().extend(back);
            }))
        })
    }

    fn cleanup_graph(&self, step_id: i64) -> Answer<'_, ()> {
        self.cleaned_steps.lock().unwrap().push(step_id);
        Box::pin(async { Ok(()) })
    }

    fn cleanup_all(&self, containers: Vec<String>) -> Answer<'_, ()> {
        self.containers.lock().unwrap().extend(containers);
        Box::pin(async { Ok(()) })
    }

    fn cluster_devices(&self) -> Answer<'_, Vec<TaskDevices>> {
        Box::pin(async {
            Ok(vec![
                TaskDevices {
                    task: "/job:ps/replica:0/task:0".to_owned(),
                    is_local: true,
                    devices: Ok(vec![device("/job:ps/replica:0/task:0", 11)]),
                },
                TaskDevices {
                    task: "/job:worker/replica:0/task:0".to_owned(),
                    is_local: false,
                    devices: Ok(vec![device("/job:worker/replica:0/task:0", 12)]),
                },
                TaskDevices {
                    task: "/job:worker/replica:0/task:1".to_owned(),
                    is_local: false,
                    devices: Err(Status::new(Code::Unavailable, "nobody answers")),
                },
            ])
        })
    }

    fn reset(&self, containers: Vec<String>) -> Answer<'_, ()> {
        self.cleanup_all(containers)
    }

    fn metrics_text(&self) -> Answer<'_, String> {
        Box::pin(async {
            if !self.engine_answers {
                std::future::pending::<()>().await;
            }
            Ok(ENGINE_METRICS.to_owned())
        })
    }
}

impl Fake {
    fn find(&self, step_id: i64, key: &str) -> Option<Tensor> {
        let edge = key.split(';').nth(3).unwrap_or_default();
        let tensors = self.tensors.lock().unwrap();
        let edges = self.edges.lock().unwrap();
        let found = tensors.get(&(step_id, key.to_owned()));
        found.or_else(|| edges.get(edge)).cloned()
    }

    async fn wait(&self, key: &str) {
        let gated = key.starts_with("gate");
        if !gated && key != "never" {
            return;
        }
        let _waiting = Waiting::begin(&self.waiting);
        if gated {
            let mut gate = self.gate.subscribe();
            gate.wait_for(|&open| open).await.unwrap();
        } else {
            std::future::pending::<()>().await;
        }
    }
}

struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn begin(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(crate) fn device(task: &str, incarnation: u64) -> DeviceAttributes {
    DeviceAttributes {
        name: format!("{task}/device:CPU:0"),
        device_type: "CPU".to_owned(),
        memory_limit: 1 << 30,
        incarnation,
        ..Default::default()
    }
}

pub(crate) fn loopback() -> ControlOptions {
    ControlOptions::new(0).bind_to([127, 0, 0, 1].into())
}

pub(crate) fn start(fake: &Arc<Fake>) -> Control {
    Control::start(loopback(), fake.clone()).unwrap()
}

pub(crate) async fn connect(control: &Control) -> ControlClient {
    ControlClient::connect(&control.local_addr().to_string(), ClientOptions::default())
        .await
        .unwrap()
}

pub(crate) async fn channel(control: &Control) -> Channel {
    Channel::from_shared(format!("http://{}", control.local_addr()))
        .unwrap()
        .connect()
        .await
        .unwrap()
}

/// Byte i is i modulo 251.
pub(crate) fn bytes(len: usize) -> Tensor {
    let data: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
    Tensor::new(DType::UInt8, Shape::new(&[len as u64]).unwrap(), data).unwrap()
}

pub(crate) const ENGINE_METRICS: &str = "# HELP grpcxx_calls_total Calls\n# TYPE grpcxx_calls_total counter\ngrpcxx_calls_total 5\n# EOF\n";
