//! What a task waits for, gathered from its shards, for the gRPC endpoint and for the log.

use std::fmt::Write as _;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use grpcxx_control::services::inspect::{
    Connection, Failure, InspectReply, ParkedTensor, PendingReceive,
};
use grpcxx_runtime::{Client, ShardInspection, excerpt, name_peers};

/// Asks the shards of a running task what they wait for, from any thread.
#[derive(Clone, Debug)]
pub struct Inspector {
    client: Client,
}

impl Inspector {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    /// What the shards tell that answer in time; this waits up to half a second for the others.
    pub fn inspect(&self) -> InspectReply {
        let (tell, told) = channel();
        let shards = self.client.inspect_shards(move |shard| {
            // Who asked may have given up.
            let _ = tell.send(shard);
        });
        let end = Instant::now() + SHARD_TIMEOUT;
        let mut all = Vec::new();
        while let Ok(shard) = told.recv_timeout(end.saturating_duration_since(Instant::now())) {
            all.push(shard);
        }
        reply(all, shards)
    }
}

/// Says in lines what a task waits for, with at most `rows` lines of each kind. What came from
/// peers has no line breaks and no signs that a terminal obeys.
pub fn describe(told: &InspectReply, rows: usize) -> Vec<String> {
    let mut lines = Vec::new();
    lines.push(format!(
        "{} receives wait, {} keys, {} parked bytes, {} connections; {} of {} shards are silent",
        told.receives_total,
        told.keys_total,
        told.parked_bytes,
        told.connections_total,
        told.shards_silent,
        told.shards,
    ));
    for receive in told.receives.iter().take(rows) {
        lines.push(format!(
            "step {} waits {} ms for key {:?} (of {}), asked by {}",
            receive.step_id,
            receive.age_ms,
            receive.key,
            receive.keys,
            known(&receive.peer),
        ));
    }
    for tensor in told.parked.iter().take(rows) {
        lines.push(format!(
            "step {} keeps {} bytes under key {:?}",
            tensor.step_id, tensor.bytes, tensor.key
        ));
    }
    for connection in told.connections.iter().take(rows) {
        let mut line = format!(
            "{} of {} over {}: {} under way, {} wait for a connection, {} bytes unsent, {} streams \
             ({} wait for their reader)",
            connection.side,
            known(&connection.peer),
            connection.medium,
            connection.under_way,
            connection.waiting,
            connection.unsent_bytes,
            connection.streams,
            connection.streams_without_credit,
        );
        for (what, text) in [
            ("stays on tcp", &connection.stays),
            ("failed", &connection.failure),
        ] {
            if !text.is_empty() {
                // A string takes all texts.
                let _ = write!(line, ", {what}: {text:?}");
            }
        }
        lines.push(line);
    }
    let latest = told.failures.len().saturating_sub(rows);
    for failure in &told.failures[latest..] {
        lines.push(format!(
            "{} failed {} ms ago: {} ({}): {:?}",
            failure.side, failure.age_ms, failure.code, failure.reason, failure.message
        ));
    }
    lines
}

/// The answer of a task of which so many shards were asked.
pub(super) fn reply(mut told: Vec<ShardInspection>, shards: usize) -> InspectReply {
    told.sort_by_key(|shard| shard.shard);
    name_peers(&mut told);
    let mut reply = InspectReply {
        shards: shards as u32,
        shards_silent: shards.saturating_sub(told.len()) as u32,
        ..InspectReply::default()
    };
    for shard in told {
        reply.receives_total += shard.receives_total as u64;
        reply.keys_total += shard.keys_total as u64;
        reply.parked_bytes += shard.parked_bytes;
        reply.connections_total += shard.connections_total as u64;
        add_rows(&mut reply, shard);
    }
    reply
        .receives
        .sort_by_key(|receive| std::cmp::Reverse(receive.age_ms));
    reply
        .failures
        .sort_by_key(|failure| std::cmp::Reverse(failure.age_ms));
    reply
}

fn add_rows(reply: &mut InspectReply, told: ShardInspection) {
    let shard = told.shard as u32;
    let receives = told.receives.into_iter().map(|receive| PendingReceive {
        step_id: receive.step_id,
        key: excerpt(&receive.key),
        keys: receive.keys as u64,
        age_ms: milliseconds(receive.age),
        peer: receive.peer.unwrap_or_default(),
        shard,
    });
    reply.receives.extend(receives);
    let parked = told.parked.into_iter().map(|tensor| ParkedTensor {
        step_id: tensor.step_id,
        key: excerpt(&tensor.key),
        bytes: tensor.bytes,
        shard,
    });
    reply.parked.extend(parked);
    let connections = told.connections.into_iter().map(|connection| Connection {
        side: connection.side.name().to_owned(),
        peer: excerpt(&connection.peer),
        is_connected: connection.is_connected,
        medium: connection.medium.name().to_owned(),
        stays: excerpt(&connection.stays.unwrap_or_default()),
        failure: excerpt(&connection.failure.unwrap_or_default()),
        waiting: connection.waiting as u64,
        under_way: connection.under_way as u64,
        unsent_bytes: connection.unsent_bytes,
        oldest_ms: connection.oldest.map(milliseconds),
        streams: connection.streams.open as u32,
        streams_without_credit: connection.streams.without_credit as u32,
        shard,
    });
    reply.connections.extend(connections);
    let failures = told.failures.into_iter().map(|failure| Failure {
        side: failure.side.name().to_owned(),
        age_ms: milliseconds(failure.age),
        code: failure.code.name().to_owned(),
        reason: format!("{:?}", failure.reason),
        message: failure.message,
        shard,
    });
    reply.failures.extend(failures);
}

fn known(peer: &str) -> &str {
    match peer {
        "" => "somebody",
        peer => peer,
    }
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis().min(u128::from(u64::MAX)) as u64
}

/// How long a shard may take to tell what it waits for.
pub(super) const SHARD_TIMEOUT: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_peers_stay_on_their_line() {
        let told = InspectReply {
            receives: vec![PendingReceive {
                step_id: 7,
                key: "a\n\u{1b}[2J".to_owned(),
                ..PendingReceive::default()
            }],
            failures: vec![Failure {
                message: "b\r\u{202e}c".to_owned(),
                ..Failure::default()
            }],
            ..InspectReply::default()
        };
        let lines = describe(&told, 1);
        assert_eq!(lines.len(), 3);
        assert!(lines[1].contains(r#""a\n\u{1b}[2J""#), "{}", lines[1]);
        assert!(lines[2].contains(r#""b\r\u{202e}c""#), "{}", lines[2]);
        assert!(lines[1].contains("asked by somebody"), "{}", lines[1]);
    }
}
