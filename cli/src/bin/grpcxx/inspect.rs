use grpcxx_control::services::inspect::InspectReply;
use grpcxx_control::{BlockingControlClient, ClientError, ClientOptions};
use grpcxx_rpc::Code;
use grpcxx_runtime::config::Config;
use serde_json::{Value, json};

use crate::arguments::InspectArguments;
use crate::cluster::Cluster;
use crate::output::{Output, Table, size};
use crate::terminal::{Exit, Failure, Outcome};

/// Asks a task what it waits for, over gRPC: its shards may be busy.
pub(crate) fn run(arguments: &InspectArguments, config: &Config, output: Output) -> Outcome {
    let cluster = Cluster::connect(&arguments.target, config)?;
    let task = &cluster.tasks()[cluster.task(&arguments.task)?];
    let Some(address) = &task.grpc else {
        let text = "inspect asks over gRPC, and --star tells no gRPC address; give --cluster-spec";
        return Err(Failure::new(Exit::Usage, text));
    };
    let options = ClientOptions {
        connect_timeout: arguments.target.timeout,
        call_timeout: arguments.target.timeout,
        certificates: cluster.certificates(),
        task: task.id(),
    };
    let client = BlockingControlClient::connect(address, options).map_err(failure)?;
    let told = client
        .proving(cluster.authority())
        .inspect()
        .map_err(failure)?;
    output.print(&json(&task.name, &told), || text(&task.name, &told))
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

fn json(task: &str, told: &InspectReply) -> Value {
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
        "task": task,
        "receives": receives.collect::<Vec<_>>(), "receives_total": told.receives_total,
        "parked": parked.collect::<Vec<_>>(), "keys_total": told.keys_total,
        "parked_bytes": told.parked_bytes,
        "connections": connections.collect::<Vec<_>>(),
        "connections_total": told.connections_total,
        "failures": failures.collect::<Vec<_>>(),
        "shards": told.shards, "shards_silent": told.shards_silent,
    })
}

fn text(task: &str, told: &InspectReply) -> String {
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
    let mut receives = Table::new(&["waits#", "step#", "keys#", "peer", "missing key"]);
    for receive in &told.receives {
        receives.row([
            time(receive.age_ms),
            receive.step_id.to_string(),
            receive.keys.to_string(),
            shown(&receive.peer),
            receive.key.clone(),
        ]);
    }
    let mut parked = Table::new(&["parked#", "step#", "key"]);
    for tensor in &told.parked {
        parked.row([
            size(tensor.bytes),
            tensor.step_id.to_string(),
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
        let whys = [&connection.stays, &connection.failure];
        let why = whys.into_iter().find(|why| !why.is_empty());
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
            connection.oldest_ms.map_or_else(|| shown(""), time),
            shown(why.map_or("", String::as_str)),
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

fn shown(text: &str) -> String {
    given(text).unwrap_or("-").to_owned()
}

fn time(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000.. => format!("{:.1} s", ms as f64 / 1e3),
    }
}
