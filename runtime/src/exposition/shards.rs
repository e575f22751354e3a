//! What the shards of a task do now, in Prometheus' text format.

use std::fmt::{self, Write};
use std::time::Duration;

use super::text::{begin, write_number};
use crate::inspection::ShardInspection;

/// Adds what waits, what carries connections, what arenas hold, and the CPU time of each shard.
pub(super) fn write(
    shards: &[ShardInspection],
    cpu: &[(usize, Duration)],
    text: &mut String,
) -> fmt::Result {
    let name = "grpcxx_shard_cpu_seconds_total";
    begin(
        text,
        name,
        "counter",
        "CPU time of the threads that each shard has had.",
    )?;
    for (shard, time) in cpu {
        writeln!(text, "{name}{{shard=\"{shard}\"}} {}", time.as_secs_f64())?;
    }
    for (name, meaning, number) in [
        (
            "grpcxx_arena_bytes",
            "Size of the arena of each shard, which it has in any case.",
            (|shard| shard.arena.capacity_bytes) as fn(&ShardInspection) -> usize,
        ),
        (
            "grpcxx_arena_used_bytes",
            "Bytes of the arena that are handed out.",
            |shard| shard.arena.in_use_bytes,
        ),
        (
            "grpcxx_arena_beyond_bytes",
            "Bytes that are handed out beyond the arena, of what is free of the machine.",
            |shard| shard.arena.beyond_bytes,
        ),
        (
            "grpcxx_arena_peak_bytes",
            "Most bytes that were handed out at one time, of the arena and beyond it.",
            |shard| shard.arena.peak_bytes,
        ),
    ] {
        begin(text, name, "gauge", meaning)?;
        for shard in shards {
            writeln!(
                text,
                "{name}{{shard=\"{}\"}} {}",
                shard.shard,
                number(shard)
            )?;
        }
    }
    let name = "grpcxx_links";
    begin(
        text,
        name,
        "gauge",
        "Connections of star at both ends, by what carries them.",
    )?;
    for medium in ["tcp", "shm", "rdma"] {
        let links = shards.iter().flat_map(|shard| &shard.links);
        let links = links.filter(|(carrier, _)| carrier.name() == medium);
        let links: usize = links.map(|(_, count)| count).sum();
        writeln!(text, "{name}{{medium=\"{medium}\"}} {links}")?;
    }
    let waiting: usize = shards.iter().map(|shard| shard.receives_total).sum();
    let meaning = "Requests that wait for tensors which are not there.";
    write_number(
        "grpcxx_receives_waiting",
        "gauge",
        meaning,
        waiting as u64,
        text,
    );
    let receives = shards.iter().flat_map(|shard| &shard.receives);
    let oldest = receives
        .map(|receive| receive.age)
        .max()
        .unwrap_or_default();
    let name = "grpcxx_receive_oldest_seconds";
    begin(
        text,
        name,
        "gauge",
        "How long the oldest of these requests has waited.",
    )?;
    writeln!(text, "{name} {}", oldest.as_secs_f64())?;
    let parked = shards.iter().map(|shard| shard.parked_bytes).sum();
    let meaning = "Bytes of tensors of steps that nobody has fetched.";
    write_number("grpcxx_parked_bytes", "gauge", meaning, parked, text);
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_task_of_which_no_shard_tells_has_its_families() {
        let mut text = String::new();
        write(&[], &[(1, Duration::from_millis(1_500))], &mut text).unwrap();
        assert!(text.contains("grpcxx_shard_cpu_seconds_total{shard=\"1\"} 1.5\n"));
        assert!(text.contains("grpcxx_links{medium=\"shm\"} 0\n"), "{text}");
    }
}
