//! The detail of one task, in rows that fit 40 columns.

use super::app::{Shown, State, per_second, percent, time};
use super::sample::{MethodRates, PeerRates, Rates};
use crate::output::size;
use crate::terminal::plain::plain;

/// All that is known of a task. Texts of peers are escaped.
pub(super) fn rows(task: &Shown, columns: u16) -> Vec<String> {
    let mut rows = vec![plain(&task.name).into_owned()];
    match (&task.state, &task.rates) {
        (State::Away(why), _) => rows.push(format!("away: {}", plain(why))),
        (_, None) => rows.push("asked; rates come with the second answer".to_owned()),
        (_, Some(rates)) => add_rates(rates, columns, &mut rows),
    }
    rows.push("What it waits for: grpcxx inspect".to_owned());
    rows
}

fn add_rates(rates: &Rates, columns: u16, rows: &mut Vec<String>) {
    if rates.shards_silent > 0 {
        rows.push(format!("{} shards do not answer", rates.shards_silent));
    }
    rows.push(format!(
        "{} receives wait, the oldest {:.1} s; {} parked",
        rates.receives_waiting,
        rates.receive_oldest_seconds,
        size(rates.parked_bytes)
    ));
    for shard in &rates.shards {
        let mut row = format!(
            "shard {}: cpu {}, arena {} of {}",
            shard.shard,
            percent(shard.cpus),
            size(shard.arena_used_bytes),
            size(shard.arena_bytes)
        );
        if shard.arena_beyond_bytes > 0 {
            row += &format!(", {} beyond", size(shard.arena_beyond_bytes));
        }
        rows.push(row);
    }
    // What carried the calls comes last, where there is room.
    let with_medium = |row: String, medium: &str| {
        if columns < COLUMNS_WIDE {
            row
        } else {
            format!("{row}  {medium}")
        }
    };
    rows.push(with_medium(
        row("method", ["per s", "p50", "p99"]),
        "medium",
    ));
    for method in rates.methods.iter().take(METHODS_MAX) {
        let name = format!("{} {}", direction(method.side), method.method);
        rows.push(with_medium(calls(&name, method), &plain(&method.medium)));
    }
    if !rates.peers.is_empty() {
        rows.push("peers, bytes in and out per second".to_owned());
    }
    for peer in rates.peers.iter().take(PEERS_MAX) {
        add_peer(peer, rows);
    }
}

fn add_peer(peer: &PeerRates, rows: &mut Vec<String>) {
    rows.push(format!(
        "{} {} {} {} {}",
        direction(peer.side),
        plain(&peer.peer),
        plain(&peer.medium),
        size(peer.received_bytes_per_second as u64),
        size(peer.sent_bytes_per_second as u64),
    ));
    for method in peer.methods.iter().take(METHODS_MAX) {
        rows.push(calls(&format!("  {}", method.method), method));
    }
}

fn calls(name: &str, method: &MethodRates) -> String {
    let quantile = |ns: Option<u64>| ns.map_or_else(|| "-".to_owned(), time);
    let figures = [
        &*per_second(method.calls_per_second),
        &*quantile(method.p50_ns),
        &*quantile(method.p99_ns),
    ];
    row(&plain(name), figures)
}

fn row(name: &str, [rate, p50, p99]: [&str; 3]) -> String {
    format!("{name:16} {rate:>5} {p50:>8} {p99:>8}")
}

fn direction(side: &str) -> char {
    if side == "client" { '>' } else { '<' }
}

/// Most peers, and most kinds of calls of each and of all.
const PEERS_MAX: usize = 256;
const METHODS_MAX: usize = 64;
/// Columns from which media are named beside methods.
const COLUMNS_WIDE: u16 = 48;
