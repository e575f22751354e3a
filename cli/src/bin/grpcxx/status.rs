use std::time::Duration;

use grpcxx::server::{CallSummary, ServerInfo, server_info, server_latencies, settled_link};
use grpcxx::store::list;
use grpcxx_control::{BlockingControlClient, ClientError, ClientOptions, Health};
use grpcxx_memory::Buffer;
use grpcxx_rpc::proto::{DeviceAttributes, GetStatusResponse};
use grpcxx_rpc::{Code, Method, Request, Response, Status};
use grpcxx_runtime::Client;
use grpcxx_runtime::config::Config;
use prost::Message;
use serde::Serialize;

use crate::arguments::StatusArguments;
use crate::cluster::{Cluster, Task};
use crate::output::{Output, Table, short, size};
use crate::terminal::{Exit, Failure, Outcome};

#[derive(Serialize)]
struct Report {
    addresses: Option<String>,
    tasks: Vec<TaskReport>,
}

#[derive(Serialize)]
struct TaskReport {
    task: String,
    grpc: Option<Endpoint>,
    star: Endpoint,
    /// Absent for peers that are not grpcxx.
    version: Option<String>,
    transport: Option<String>,
    /// What carries the connection that was asked over: `tcp`, `shm` or `rdma`.
    link: Option<&'static str>,
    /// Why it did not move on from TCP, although it should have.
    link_stays: Option<String>,
    host: Option<String>,
    report: Option<String>,
    /// Who may do what on the task.
    policy: Option<String>,
    devices: Vec<Device>,
    stored_tensors: Option<usize>,
    stored_bytes: Option<u64>,
    /// How long calls took at the task, whether it made or answered them.
    calls: Vec<Calls>,
}

#[derive(Serialize)]
struct Calls {
    side: String,
    method: String,
    medium: String,
    count: u64,
    p50_ns: u64,
    p99_ns: u64,
}

#[derive(Serialize)]
struct Endpoint {
    address: String,
    is_serving: bool,
    error: Option<String>,
}

#[derive(Serialize)]
struct Device {
    name: String,
    device_type: String,
    memory_limit_bytes: i64,
    /// As hexadecimal digits, because JSON readers lose the lower bits of such numbers.
    incarnation: String,
}

/// Shows all tasks; the exit code says whether each of them serves.
pub(crate) fn run(arguments: &StatusArguments, config: &Config, output: Output) -> Outcome {
    let cluster = Cluster::connect(&arguments.target, config)?;
    let client = cluster.client();
    let options = ClientOptions {
        connect_timeout: arguments.target.timeout,
        call_timeout: arguments.target.timeout,
        certificates: cluster.certificates(),
        task: None,
    };
    let tasks: Vec<TaskReport> = std::thread::scope(|scope| {
        let looks: Vec<_> = cluster
            .tasks()
            .iter()
            .map(|task| scope.spawn(|| look(&client, task, &options)))
            .collect();
        looks
            .into_iter()
            .filter_map(|look| look.join().ok())
            .collect()
    });
    let report = Report {
        addresses: cluster.source().map(ToString::to_string),
        tasks,
    };
    output.print(&report, || text(&report))?;
    let silent: Vec<&str> = report
        .tasks
        .iter()
        .filter(|task| {
            !task.star.is_serving || task.grpc.as_ref().is_some_and(|grpc| !grpc.is_serving)
        })
        .map(|task| task.task.as_str())
        .collect();
    if silent.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Unavailable,
        format!("not serving: {}", silent.join(", ")),
    ))
}

fn look(client: &Client, task: &Task, options: &ClientOptions) -> TaskReport {
    let timeout = options.call_timeout;
    let grpc = task.grpc.as_deref().map(|address| {
        let options = ClientOptions {
            task: task.id(),
            ..options.clone()
        };
        let error = grpc_health(address, options).err();
        Endpoint {
            address: address.to_owned(),
            is_serving: error.is_none(),
            error,
        }
    });
    let devices = devices(client, task, timeout);
    let star = Endpoint {
        address: task.star.clone(),
        is_serving: devices.is_ok(),
        error: devices.as_ref().err().map(ToString::to_string),
    };
    // Peers that are not grpcxx have neither; that is no error.
    let mut info = None;
    let mut stored = None;
    let mut link = None;
    let mut calls = Vec::new();
    if devices.is_ok()
        && let Ok(peer) = client.peer(&task.star)
    {
        info = server_info(client, &peer, Some(timeout)).ok();
        stored = list(client, &peer, Some(timeout)).ok();
        link = settled_link(client, &peer, timeout);
        calls = server_latencies(client, &peer, Some(timeout)).unwrap_or_default();
    }
    let info_text = |field: fn(ServerInfo) -> String| info.clone().map(field);
    TaskReport {
        task: task.name.clone(),
        grpc,
        star,
        version: info_text(|info| info.version),
        transport: info_text(|info| info.driver),
        link: link.as_ref().map(|link| link.medium.name()),
        link_stays: link.and_then(|link| link.stays),
        host: info_text(|info| info.host),
        report: info_text(|info| info.report),
        policy: info_text(|info| info.policy),
        devices: devices
            .unwrap_or_default()
            .into_iter()
            .map(device)
            .collect(),
        stored_tensors: stored.as_ref().map(Vec::len),
        stored_bytes: stored.map(|stored| stored.iter().map(|tensor| tensor.meta.data_bytes).sum()),
        calls: calls.into_iter().map(Calls::from).collect(),
    }
}

impl From<CallSummary> for Calls {
    fn from(summary: CallSummary) -> Self {
        Self {
            side: summary.side,
            method: summary.method,
            medium: summary.medium,
            count: summary.count,
            p50_ns: summary.p50_ns,
            p99_ns: summary.p99_ns,
        }
    }
}

fn grpc_health(address: &str, options: ClientOptions) -> Result<(), String> {
    let client =
        BlockingControlClient::connect(address, options).map_err(|error| error.to_string())?;
    match client.health() {
        Ok(Health::Serving) => Ok(()),
        Ok(Health::NotServing) => Err("it is stopping".to_owned()),
        Ok(Health::Unknown) => Err("it does not say whether it serves".to_owned()),
        // TensorFlow's own server has no health service. Whether it serves it tells by its status.
        Err(ClientError::Call { status, .. }) if status.code == Code::Unimplemented => {
            let told = client.get_status();
            told.map(drop).map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn devices(
    client: &Client,
    task: &Task,
    timeout: Duration,
) -> Result<Vec<DeviceAttributes>, Status> {
    let peer = client.peer(&task.star)?;
    let request = Request::Message {
        method: Method::GetStatus,
        body: Buffer::new(),
    };
    let response = client.call(&peer, request, Some(timeout)).wait()?;
    let senseless = |why: String| {
        Status::new(
            Code::DataLoss,
            format!("the answer to GetStatus makes no sense: {why}"),
        )
    };
    match response {
        Response::Message(body) => GetStatusResponse::decode(&body[..])
            .map(|status| status.device_attributes)
            .map_err(|error| senseless(error.to_string())),
        Response::Tensors(_) | Response::Fetched(_) | Response::Unary(_) => {
            Err(senseless("tensors".to_owned()))
        }
    }
}

fn device(attributes: DeviceAttributes) -> Device {
    Device {
        name: attributes.name,
        device_type: attributes.device_type,
        memory_limit_bytes: attributes.memory_limit,
        incarnation: format!("{:016x}", attributes.incarnation),
    }
}

fn text(report: &Report) -> String {
    let mut table = Table::new(&[
        "task",
        "gRPC",
        "star",
        "version",
        "tensors#",
        "size#",
        "incarnation",
        "link",
        "transport",
    ]);
    for task in &report.tasks {
        let unknown = || "-".to_owned();
        table.row([
            task.task.clone(),
            task.grpc.as_ref().map_or_else(unknown, state),
            state(&task.star),
            task.version.clone().unwrap_or_else(unknown),
            task.stored_tensors
                .map_or_else(unknown, |count| count.to_string()),
            task.stored_bytes.map_or_else(unknown, size),
            task.devices
                .first()
                .map_or_else(unknown, |device| device.incarnation.clone()),
            task.link.map_or_else(unknown, str::to_owned),
            task.transport.clone().unwrap_or_else(unknown),
        ]);
    }
    let mut text = table.to_string();
    for task in &report.tasks {
        for (kind, line) in [
            (
                "gRPC",
                task.grpc.as_ref().and_then(|grpc| grpc.error.as_ref()),
            ),
            ("star", task.star.error.as_ref()),
            ("link stays on tcp", task.link_stays.as_ref()),
            ("policy", task.policy.as_ref()),
        ] {
            if let Some(line) = line {
                text.push_str(&format!("{} {kind}: {line}\n", task.task));
            }
        }
    }
    text.push_str(&latencies(&report.tasks));
    if let Some(addresses) = &report.addresses {
        text.push_str(&format!("star addresses: {addresses}\n"));
    }
    text
}

/// How long calls took, a row for each task, end, method and medium; nothing if no task tells.
fn latencies(tasks: &[TaskReport]) -> String {
    let mut table = Table::new(&["task", "side", "method", "medium", "calls#", "p50#", "p99#"]);
    for task in tasks {
        for calls in &task.calls {
            table.row([
                task.task.clone(),
                calls.side.clone(),
                calls.method.clone(),
                calls.medium.clone(),
                calls.count.to_string(),
                short(calls.p50_ns),
                short(calls.p99_ns),
            ]);
        }
    }
    match tasks.iter().all(|task| task.calls.is_empty()) {
        true => String::new(),
        false => table.to_string(),
    }
}

fn state(endpoint: &Endpoint) -> String {
    let state = if endpoint.is_serving { "up" } else { "DOWN" };
    format!("{} {state}", endpoint.address)
}
