//! Which CPUs each process of a host gets, where nobody else divides them.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A part of the CPUs that this process may use.
#[derive(Clone, Debug)]
pub struct CpuShare {
    cpus: CpuSet,
}

impl CpuShare {
    /// `count` shares of the CPUs that this process may use, each of neighbours. `None` if there
    /// are fewer CPUs than shares: then all processes use all.
    pub fn divide(count: usize) -> Option<Vec<Self>> {
        let allowed = sched_getaffinity(None).ok()?;
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|cpu| allowed.is_set(*cpu))
            .collect();
        shares(&cpus, count).map(|shares| shares.into_iter().map(Self::of).collect())
    }

    /// Runs `start` on a thread that may use these CPUs only, as then does what it starts.
    pub(super) fn apply<T>(&self, start: impl FnOnce() -> T) -> T {
        let before = sched_getaffinity(None);
        // Without the right to choose CPUs the process runs on all of them.
        let chosen = sched_setaffinity(None, &self.cpus);
        let started = start();
        if let (Ok(before), Ok(())) = (before, chosen) {
            let _ = sched_setaffinity(None, &before);
        }
        started
    }

    fn of(cpus: &[usize]) -> Self {
        let mut set = CpuSet::new();
        for cpu in cpus {
            set.set(*cpu);
        }
        Self { cpus: set }
    }
}

fn shares(cpus: &[usize], count: usize) -> Option<Vec<&[usize]>> {
    if count == 0 || cpus.len() < count {
        return None;
    }
    let at = |index: usize| cpus.len() * index / count;
    Some(
        (0..count)
            .map(|index| &cpus[at(index)..at(index + 1)])
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_neighbours_and_leave_none_out() {
        assert_eq!(
            shares(&[0, 1, 4, 5, 6], 2).unwrap(),
            [&[0, 1][..], &[4, 5, 6]]
        );
        assert_eq!(shares(&[0, 1], 2).unwrap(), [[0], [1]]);
        assert!(shares(&[0], 2).is_none() && shares(&[0], 0).is_none());
    }
}
