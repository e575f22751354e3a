use grpcxx::server::server_inspect;
use grpcxx_control::services::inspect::InspectReply;
use grpcxx_control::{BlockingControlClient, ClientError, ClientOptions};
use grpcxx_rpc::{Code, Reason};
use grpcxx_runtime::config::Config;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::arguments::InspectArguments;
use crate::cluster::{Cluster, Task, at};
use crate::output::{Output, Table, size};
use crate::terminal::{Exit, Failure, OrExit, Outcome};

/// What a task tells.
#[derive(Deserialize)]
struct Told {
    #[serde(default)]
    awaits: Vec<Awaited>,
    receives: Vec<Receive>,
    receives_total: u64,
    parked: Vec<Parked>,
    keys_total: u64,
    parked_bytes: u64,
    connections: Vec<Connection>,
    connections_total: u64,
    failures: Vec<LastFailure>,
    shards: u64,
    shards_silent: u64,
}

/// What the program waits for.
#[derive(Deserialize)]
struct Awaited {
    step: i64,
    key: String,
    age_ms: u64,
    peer: String,
}

#[derive(Deserialize)]
struct Receive {
    step: i64,
    key: String,
    keys: u64,
    age_ms: u64,
    peer: Option<String>,
}

#[derive(Deserialize)]
struct Parked {
    step: i64,
    key: String,
    bytes: u64,
}

#[derive(Deserialize)]
struct Connection {
    side: String,
    peer: String,
    is_connected: bool,
    medium: String,
    stays: Option<String>,
    failure: Option<String>,
    waiting: u64,
    under_way: u64,
    unsent_bytes: u64,
    oldest_ms: Option<u64>,
    streams: u64,
    streams_without_credit: u64,
}

#[derive(Deserialize)]
struct LastFailure {
    side: String,
    age_ms: u64,
    code: String,
    reason: String,
    message: String,
}

/// Asks a task what it waits for: over gRPC, since its shards may be busy, or over star where the
/// task has no gRPC endpoint of grpcxx's, as in TensorFlow, Python and C.
pub(crate) fn run(arguments: &InspectArguments, config: &Config, output: Output) -> Outcome {
    let cluster = Cluster::connect(&arguments.target, config)?;
    let task = &cluster.tasks()[cluster.task(&arguments.task)?];
    let mut json = match &task.grpc {
        Some(address) => match over_grpc(&cluster, task, address) {
            Err(error) if has_no_service(&error) => over_star(&cluster, task)?,
            told => told.map_err(failure)?,
        },
        None => over_star(&cluster, task)?,
    };
    let told: Told = serde_json::from_value(json.clone()).or_exit_at(Exit::Data, || {
        format!("{} tells what makes no sense", task.name)
    })?;
    json["task"] = Value::from(task.name.as_str());
    output.print(&json, || text(&task.name, &told))
}

fn over_grpc(cluster: &Cluster, task: &Task, address: &str) -> Result<Value, ClientError> {
    let timeout = cluster.timeout().unwrap_or_default();
    let options = ClientOptions {
        connect_timeout: timeout,
        call_timeout: timeout,
        certificates: cluster.certificates(),
        task: task.id(),
    };
    let client = BlockingControlClient::connect(address, options)?;
    let told = client.proving(cluster.authority()).inspect()?;
    Ok(json(&told))
}

/// Whether nothing of grpcxx's answers there. What takes a connection and speaks no gRPC ends it.
fn has_no_service(error: &ClientError) -> bool {
    match error {
        ClientError::Connect { .. } => true,
        ClientError::Call { status, .. } => {
            status.code == Code::Unimplemented || status.reason == Reason::ConnectionLost
        }
        _ => false,
    }
}

fn over_star(cluster: &Cluster, task: &Task) -> Outcome<Value> {
    let told = server_inspect(&cluster.client(), &cluster.peer(task)?, cluster.timeout())
        .map_err(|status| at(task, status))?;
    serde_json::from_str(&told).or_exit_at(Exit::Data, || {
        format!("{} tells what is no JSON", task.name)
    })
}

fn failure(error: ClientError) -> Failure {
    let exit = match &error {
        ClientError::Call { status, .. } => match status.code {
            Code::PermissionDenied | Code::Unauthenticated => Exit::NoPermission,
            Code::Unavailable | Code::DeadlineExceeded => Exit::Unavailable,
            _ => Exit::Refused,
        },
        ClientError::Unproven { .. } => Exit::NoPermission,
        _ => Exit::Unavailable,
    };
    Failure::new(exit, error.to_string())
}

fn json(told: &InspectReply) -> Value {
    let receives = told.receives.iter().map(|receive| {
        json!({
            "step": receive.step_id, "key": receive.key, "keys": receive.keys,
            "age_ms": receive.age_ms, "peer": given(&receive.peer), "shard": receive.shard,
        })
    });
    let parked = told.parked.iter().map(|tensor| {
        json!({
            "step": tensor.step_id, "key": tensor.key, "bytes": tensor.bytes,
            "shard": tensor.shard,
        })
    });
    let connections = told.connections.iter().map(|connection| {
        json!({
            "side": connection.side, "peer": connection.peer,
            "is_connected": connection.is_connected, "medium": connection.medium,
            "stays": given(&connection.stays), "failure": given(&connection.failure),
            "waiting": connection.waiting, "under_way": connection.under_way,
            "unsent_bytes": connection.unsent_bytes, "oldest_ms": connection.oldest_ms,
            "streams": connection.streams,
            "streams_without_credit": connection.streams_without_credit, "shard": connection.shard,
        })
    });
    let failures = told.failures.iter().map(|failure| {
        json!({
            "side": failure.side, "age_ms": failure.age_ms, "code": failure.code,
            "reason": failure.reason, "message": failure.message, "shard": failure.shard,
        })
    });
    json!({
        "receives": receives.collect::<Vec<_>>(), "receives_total": told.receives_total,
        "parked": parked.collect::<Vec<_>>(), "keys_total": told.keys_total,
        "parked_bytes": told.parked_bytes,
        "connections": connections.collect::<Vec<_>>(),
        "connections_total": told.connections_total,
        "failures": failures.collect::<Vec<_>>(),
        "shards": told.shards, "shards_silent": told.shards_silent,
    })
}

fn text(task: &str, told: &Told) -> String {
    let mut text = format!(
        "{task}: {} receives wait, {} keys, {} parked, {} connections\n",
        told.receives_total,
        told.keys_total,
        size(told.parked_bytes),
        told.connections_total,
    );
    if told.shards_silent > 0 {
        let (silent, shards) = (told.shards_silent, told.shards);
        text.push_str(&format!("{silent} of {shards} shards did not answer\n"));
    }
    let mut awaits = Table::new(&["awaits#", "step#", "from", "key"]);
    for tensor in &told.awaits {
        awaits.row([
            time(tensor.age_ms),
            tensor.step.to_string(),
            tensor.peer.clone(),
            tensor.key.clone(),
        ]);
    }
    let mut receives = Table::new(&["waits#", "step#", "keys#", "peer", "missing key"]);
    for receive in &told.receives {
        receives.row([
            time(receive.age_ms),
            receive.step.to_string(),
            receive.keys.to_string(),
            shown(receive.peer.as_deref()),
            receive.key.clone(),
        ]);
    }
    let mut parked = Table::new(&["parked#", "step#", "key"]);
    for tensor in &told.parked {
        parked.row([
            size(tensor.bytes),
            tensor.step.to_string(),
            tensor.key.clone(),
        ]);
    }
    let mut connections = Table::new(&[
        "side",
        "peer",
        "medium",
        "under way#",
        "waiting#",
        "unsent#",
        "streams#",
        "unread#",
        "oldest#",
        "why",
    ]);
    for connection in &told.connections {
        let why = connection
            .stays
            .as_deref()
            .or(connection.failure.as_deref());
        connections.row([
            connection.side.clone(),
            connection.peer.clone(),
            match connection.is_connected {
                true => connection.medium.clone(),
                false => "none".to_owned(),
            },
            connection.under_way.to_string(),
            connection.waiting.to_string(),
            size(connection.unsent_bytes),
            connection.streams.to_string(),
            connection.streams_without_credit.to_string(),
            connection.oldest_ms.map_or_else(|| shown(None), time),
            shown(why),
        ]);
    }
    let mut failures = Table::new(&["ago#", "side", "code", "reason", "failure"]);
    for failure in &told.failures {
        failures.row([
            time(failure.age_ms),
            failure.side.clone(),
            failure.code.clone(),
            failure.reason.clone(),
            failure.message.clone(),
        ]);
    }
    for (table, is_empty) in [
        (awaits, told.awaits.is_empty()),
        (receives, told.receives.is_empty()),
        (parked, told.parked.is_empty()),
        (connections, told.connections.is_empty()),
        (failures, told.failures.is_empty()),
    ] {
        if !is_empty {
            text.push_str(&format!("\n{table}"));
        }
    }
    text
}

fn given(text: &str) -> Option<&str> {
    (!text.is_empty()).then_some(text)
}

fn shown(text: Option<&str>) -> String {
    text.unwrap_or("-").to_owned()
}

fn time(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000.. => format!("{:.1} s", ms as f64 / 1e3),
    }
}
