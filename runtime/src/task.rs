use std::fmt::Display;

use grpcxx_memory::Buffer;
use grpcxx_rpc::proto;
use grpcxx_rpc::{Code, Devices, Method, RendezvousKey, Response, Status, Text};
use prost::Message;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

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
    let step_id = number_in(Method::CleanupGraph, body, 1)?;
    Ok(step_id.unwrap_or_default().cast_signed())
}

/// The step of a RunGraph request.
pub(crate) fn run_graph_step(body: &Buffer) -> Option<i64> {
    let step_id = number_in(Method::RunGraph, body, 2).ok()?;
    Some(step_id.unwrap_or_default().cast_signed())
}

/// No graph can run here; the master may have asked to get failures in the body.
fn run_graph(body: &Buffer) -> Result<Response, Status> {
    let stores_errors_in_response_body = number_in(Method::RunGraph, body, 9)?;
    let status = no_graphs(Method::RunGraph);
    if stores_errors_in_response_body.unwrap_or_default() == 0 {
        return Err(status);
    }
    let response = proto::RunGraphResponse {
        status_code: status.code as i32,
        status_error_message: status.message.into_owned(),
        ..Default::default()
    };
    Ok(Response::Message(Buffer::from(response.encode_to_vec())))
}

/// The number in a field of a request, of which nothing else is kept: an empty tensor takes two
/// bytes, and hundreds once it is decoded. As for all readers of protobuf the last one counts, or
/// a service would read another one.
fn number_in(method: Method, body: &Buffer, wanted: u32) -> Result<Option<u64>, Status> {
    let refused = |why: &dyn Display| {
        let text = format!("{method} with a body that is not read: {why}");
        Status::new(Code::InvalidArgument, text)
    };
    let (mut rest, mut number): (&[u8], _) = (body, None);
    for _ in 0..FIELDS_MAX {
        if rest.is_empty() {
            return Ok(number);
        }
        let (field, wire_type) = decode_key(&mut rest).map_err(|error| refused(&error))?;
        let read = match (field == wanted, wire_type) {
            (true, WireType::Varint) => decode_varint(&mut rest).map(|found| number = Some(found)),
            // It may have any number of fields of its own, and no request has one.
            (_, WireType::StartGroup) => return Err(refused(&"it has a group")),
            _ => skip_field(wire_type, field, &mut rest, DecodeContext::default()),
        };
        read.map_err(|error| refused(&error))?;
    }
    match rest.is_empty() {
        true => Ok(number),
        false => Err(refused(&format!("it has more than {FIELDS_MAX} fields"))),
    }
}

fn no_graphs(method: Method) -> Status {
    Status::new(
        Code::Unimplemented,
        format!(
            "{method}: this task has no graph executor; register a function and call it by StarRunGraph"
        ),
    )
}

/// Fields of a request that are looked at: as many tensors as a call may have.
const FIELDS_MAX: usize = 1 << 17;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_found_whatever_else_a_request_has() {
        let request = proto::RunGraphRequest {
            graph_handle: "h".to_owned(),
            step_id: -7,
            send: vec![proto::NamedTensorProto::default(); 1000],
            store_errors_in_response_body: true,
            ..Default::default()
        };
        let body = Buffer::from(request.encode_to_vec());
        assert_eq!(run_graph_step(&body), Some(-7));
        assert!(matches!(run_graph(&body), Ok(Response::Message(_))));
        let request = proto::CleanupGraphRequest { step_id: -7 };
        let body = Buffer::from(request.encode_to_vec());
        assert_eq!(cleanup_graph_step(&body), Ok(-7));
        let none = Buffer::new();
        assert_eq!(
            (run_graph_step(&none), cleanup_graph_step(&none)),
            (Some(0), Ok(0))
        );
        let garbage = Buffer::from(vec![0xff]);
        assert!(run_graph_step(&garbage).is_none());
        let refused = cleanup_graph_step(&garbage).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(
            refused.message.starts_with("CleanupGraph with a body"),
            "{refused}"
        );
    }

    /// A shard looks at no more of a request than others can wait for, and reads it as its service
    /// does.
    #[test]
    fn what_others_could_read_in_another_way_is_refused() {
        let step = |bytes: &[u8]| cleanup_graph_step(&Buffer::from(bytes.to_vec()));
        assert_eq!(step(&[8, 7, 8, 9]), Ok(9), "the last one counts");
        let refused = step(&[0x1b, 0x1c, 8, 9]).unwrap_err();
        assert!(refused.message.ends_with("it has a group"), "{refused}");
        let mut fields = [0x1a, 0].repeat(FIELDS_MAX);
        let body = Buffer::from(fields.clone());
        assert_eq!(run_graph(&body).unwrap_err().code, Code::Unimplemented);
        fields.extend([9 << 3, 1]);
        let refused = run_graph(&Buffer::from(fields)).unwrap_err();
        assert_eq!(refused.code, Code::InvalidArgument);
        assert!(
            refused.message.ends_with("more than 131072 fields"),
            "{refused}"
        );
    }
}
