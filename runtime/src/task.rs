use grpcxx_memory::Buffer;
use grpcxx_rpc::proto;
use grpcxx_rpc::{Code, Devices, Method, RendezvousKey, Response, Status, Text};
use prost::Message;

use crate::cluster::{TaskId, check_job_letters};

/// A device of a task: where tensors come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Full name, as in `/job:ps/replica:0/task:0/device:CPU:0`.
    pub name: String,
    /// Kind of device, as in `CPU`.
    pub device_type: String,
    /// The number that tells this run of the device from every other.
    pub incarnation: u64,
    /// Memory that GetStatus reports.
    pub memory_limit_bytes: i64,
}

/// Who this engine is: its name, its device, and what it answers about itself.
#[derive(Debug)]
pub(crate) struct Task {
    id: TaskId,
    name: String,
    incarnation: u64,
    devices: Devices,
    attributes: proto::DeviceAttributes,
    status: Buffer,
}

impl Device {
    /// The first CPU of a task.
    pub fn cpu(task: &TaskId, incarnation: u64, memory_limit_bytes: u64) -> Self {
        Self {
            name: task.device("CPU", 0),
            device_type: "CPU".to_owned(),
            incarnation,
            memory_limit_bytes: i64::try_from(memory_limit_bytes).unwrap_or(i64::MAX),
        }
    }

    fn attributes(&self) -> proto::DeviceAttributes {
        proto::DeviceAttributes {
            name: self.name.clone(),
            device_type: self.device_type.clone(),
            memory_limit: self.memory_limit_bytes,
            locality: Some(proto::DeviceLocality::default()),
            incarnation: self.incarnation,
            ..Default::default()
        }
    }
}

impl Task {
    /// A task with these devices, at least one.
    pub(crate) fn new(id: TaskId, list: &[Device]) -> Result<Self, String> {
        check_job_letters(&id.job).map_err(|wanted| format!("job {:?}: {wanted}", id.job))?;
        let name = id.to_string();
        let first = list.first().ok_or("a task has at least one device")?;
        let (incarnation, attributes) = (first.incarnation, first.attributes());
        let mut devices = Devices::new();
        for device in list {
            devices
                .insert(device.name.as_str(), device.incarnation)
                .map_err(|status| status.to_string())?;
        }
        let status = proto::GetStatusResponse {
            device_attributes: list.iter().map(Device::attributes).collect(),
        };
        Ok(Self {
            id,
            name,
            incarnation,
            devices,
            attributes,
            status: Buffer::from(status.encode_to_vec()),
        })
    }

    /// `/job:J/replica:0/task:N`
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn id(&self) -> &TaskId {
        &self.id
    }

    /// Which task of the cluster this side says that it is, as in `ps/0`.
    pub(crate) fn claim(&self) -> Option<Text> {
        let is_of_cluster = self.id.is_of_cluster();
        is_of_cluster.then(|| self.id.in_certificates().into())
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(crate) fn attributes(&self) -> &proto::DeviceAttributes {
        &self.attributes
    }

    pub(crate) fn devices(&self) -> impl Iterator<Item = (&Text, u64)> {
        self.devices.iter()
    }

    /// Whether a tensor with this key can come from this task in this incarnation.
    pub(crate) fn check_key(&self, key: &str) -> Result<(), Status> {
        self.devices.check(&RendezvousKey::parse(key)?)
    }

    /// Answers the methods that need nothing but the task itself.
    pub(crate) fn serve(&self, method: Method, body: &Buffer) -> Result<Response, Status> {
        match method {
            Method::GetStatus => Ok(Response::Message(self.status.clone())),
            Method::CreateWorkerSession | Method::DeleteWorkerSession => {
                Ok(Response::Message(Buffer::new()))
            }
            Method::RunGraph => run_graph(body),
            Method::Logging | Method::Tracing => {
                Err(Status::new(Code::Unimplemented, method.name()))
            }
            Method::RegisterGraph | Method::DeregisterGraph => Err(no_graphs(method)),
            _ => Err(Status::new(
                Code::Unimplemented,
                format!("{method} is not part of star's service"),
            )),
        }
    }
}

/// The step of a CleanupGraph request.
pub(crate) fn cleanup_graph_step(body: &Buffer) -> Result<i64, Status> {
    let request = proto::CleanupGraphRequest::decode(&body[..]).map_err(|error| {
        Status::new(
            Code::InvalidArgument,
            format!("CleanupGraphRequest: {error}"),
        )
    })?;
    Ok(request.step_id)
}

/// The step of a RunGraph request, of which nothing else is read.
pub(crate) fn run_graph_step(body: &Buffer) -> Option<i64> {
    #[derive(prost::Message)]
    struct Step {
        #[prost(int64, tag = "2")]
        step_id: i64,
    }
    Some(Step::decode(&body[..]).ok()?.step_id)
}

/// No graph can run here; the master may have asked to get failures in the body.
fn run_graph(body: &Buffer) -> Result<Response, Status> {
    let request = proto::RunGraphRequest::decode(&body[..])
        .map_err(|error| Status::new(Code::InvalidArgument, format!("RunGraphRequest: {error}")))?;
    let status = no_graphs(Method::RunGraph);
    if !request.store_errors_in_response_body {
        return Err(status);
    }
    let response = proto::RunGraphResponse {
        status_code: status.code as i32,
        status_error_message: status.message.into_owned(),
        ..Default::default()
    };
    Ok(Response::Message(Buffer::from(response.encode_to_vec())))
}

fn no_graphs(method: Method) -> Status {
    Status::new(
        Code::Unimplemented,
        format!(
            "{method}: this task has no graph executor; register a function and call it by StarRunGraph"
        ),
    )
}
