//! CPU time of the threads of shards, which the system counts: of those that live, and of those
//! that have ended.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::thread::gettid;

/// Adds the time of a thread of a shard to that of the threads that have ended, where it is dropped
/// on that thread.
pub(crate) struct EndingThread;

/// What threads of shards have taken that have ended.
#[derive(Debug, Default)]
struct Ended {
    by_shard: BTreeMap<usize, Duration>,
    /// Threads that count there, as long as the system may list them still.
    listed: Vec<i32>,
}

impl Drop for EndingThread {
    fn drop(&mut self) {
        let thread = std::thread::current();
        let Some(shard) = thread.name().and_then(shard_of) else {
            return;
        };
        let took = own_time().unwrap_or_default();
        let mut ended = ended();
        ended.forget_unlisted();
        *ended.by_shard.entry(shard).or_default() += took;
        ended.listed.push(gettid().as_raw_pid());
    }
}

impl Ended {
    fn forget_unlisted(&mut self) {
        let is_listed = |thread: &i32| Path::new(&format!("{TASKS}/{thread}")).exists();
        self.listed.retain(is_listed);
    }
}

/// The CPU time of all threads that each shard has had. A process may have several engines; their
/// shards of one index are told as one. Nothing where the system does not tell.
pub(crate) fn of_shards() -> Vec<(usize, Duration)> {
    // Locked first: a thread that would end meanwhile is one that lives.
    let mut ended = ended();
    let living = living();
    let mut times = ended.by_shard.clone();
    for (thread, shard, time) in living {
        if !ended.listed.contains(&thread) {
            *times.entry(shard).or_default() += time;
        }
    }
    // The system may give a number again.
    ended.forget_unlisted();
    times.into_iter().collect()
}

/// Threads of shards that live, with their shard and their time.
fn living() -> Vec<(i32, usize, Duration)> {
    let Ok(threads) = std::fs::read_dir(TASKS) else {
        return Vec::new();
    };
    threads
        .take(THREADS_MAX)
        .filter_map(|thread| {
            let thread = thread.ok()?;
            let number = thread.file_name().to_str()?.parse().ok()?;
            let folder = thread.path();
            let name = std::fs::read_to_string(folder.join("comm")).ok()?;
            let shard = shard_of(name.trim_end())?;
            Some((number, shard, time_in(&folder)?))
        })
        .collect()
}

/// CPU time of the thread that asks, less what it took since the system last counted, a tick at
/// most. The clock of the thread would say that too, but rustix finds it in the vDSO, which a
/// process under valgrind does not have.
fn own_time() -> Option<Duration> {
    time_in(Path::new("/proc/thread-self"))
}

/// CPU time of the thread of which the system tells in this folder.
fn time_in(folder: &Path) -> Option<Duration> {
    let told = std::fs::read_to_string(folder.join("schedstat")).ok()?;
    let ran_ns = told.split_whitespace().next()?.parse().ok()?;
    Some(Duration::from_nanos(ran_ns))
}

/// The shard of a thread with this name.
fn shard_of(name: &str) -> Option<usize> {
    name.strip_prefix("grpcxx-")?.parse().ok()
}

fn ended() -> MutexGuard<'static, Ended> {
    static ENDED: Mutex<Ended> = Mutex::new(Ended {
        by_shard: BTreeMap::new(),
        listed: Vec::new(),
    });
    ENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

const TASKS: &str = "/proc/self/task";

/// Most threads that are looked at.
const THREADS_MAX: usize = 1 << 14;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn time_of(shard: usize) -> Duration {
        let times = of_shards();
        let found = times.iter().find(|(found, _)| *found == shard);
        found.map_or(Duration::ZERO, |(_, time)| *time)
    }

    #[test]
    fn the_time_of_a_shard_does_not_fall_when_a_thread_of_it_ends() {
        let (stop, stopped) = channel::<()>();
        let (work, worked) = channel();
        let body = move || {
            let _ending = EndingThread;
            while own_time().unwrap() < Duration::from_millis(5) {}
            work.send(()).unwrap();
            // Ends when the other end is dropped.
            let _ = stopped.recv();
        };
        let thread = std::thread::Builder::new().name("grpcxx-70001".to_owned());
        let thread = thread.spawn(body).unwrap();
        worked.recv().unwrap();
        let living = time_of(70_001);
        assert!(living >= Duration::from_millis(5), "{living:?}");
        drop(stop);
        thread.join().unwrap();
        let ended = time_of(70_001);
        assert!(ended >= living, "{ended:?} after {living:?}");
    }
}
