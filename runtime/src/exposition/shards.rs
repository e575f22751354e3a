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
        "CPU time of the thread of each shard.",
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

/// The CPU time of each shard's thread, which the system counts. Nothing where it does not tell.
pub(super) fn cpu_times() -> Vec<(usize, Duration)> {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return Vec::new();
    };
    let mut times: Vec<_> = threads
        .take(THREADS_MAX)
        .filter_map(|thread| {
            let folder = thread.ok()?.path();
            let name = std::fs::read_to_string(folder.join("comm")).ok()?;
            let shard = name.trim_end().strip_prefix("grpcxx-")?.parse().ok()?;
            let told = std::fs::read_to_string(folder.join("schedstat")).ok()?;
            let ran_ns = told.split_whitespace().next()?.parse().ok()?;
            Some((shard, Duration::from_nanos(ran_ns)))
        })
        .collect();
    times.sort_unstable();
    // A process may have several engines; the shards of one index are told as one.
    times.dedup_by(|next, first| {
        let is_same = next.0 == first.0;
        if is_same {
            first.1 += next.1;
        }
        is_same
    });
    times
}

/// Most threads that are looked at.
const THREADS_MAX: usize = 1 << 14;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn threads_of_shards_are_told_by_their_names() {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (started, starts) = std::sync::mpsc::channel();
        let body = move || {
            started.send(()).unwrap();
            // Ends when the other end is dropped.
            let _ = stopped.recv();
        };
        let thread = std::thread::Builder::new().name("grpcxx-7".to_owned());
        let thread = thread.spawn(body).unwrap();
        starts.recv().unwrap();
        assert!(cpu_times().iter().any(|(shard, _)| *shard == 7));
        drop(stop);
        thread.join().unwrap();
    }

    #[test]
    fn a_task_of_which_no_shard_tells_has_its_families() {
        let mut text = String::new();
        write(&[], &[(1, Duration::from_millis(1_500))], &mut text).unwrap();
        assert!(text.contains("grpcxx_shard_cpu_seconds_total{shard=\"1\"} 1.5\n"));
        assert!(text.contains("grpcxx_links{medium=\"shm\"} 0\n"), "{text}");
    }
}
