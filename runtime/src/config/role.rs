use std::num::NonZeroU16;

/// The kinds of job that the settings tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// `ps`.
    Ps,
    /// `worker` or `chief`.
    Worker,
    /// Any other name.
    Other,
}

/// Most shards of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoreLimit {
    /// This many.
    AtMost(NonZeroU16),
    /// As many as the cluster has tasks.
    Unlimited,
}

/// The limit for jobs that no variable limits.
pub const CORES_OF_OTHER_JOBS: CoreLimit = match NonZeroU16::new(16) {
    Some(cores) => CoreLimit::AtMost(cores),
    None => CoreLimit::Unlimited,
};

/// Number of shards in a cluster of `total_tasks` tasks: one for each task up to the limit, and
/// never none.
pub fn shard_count(total_tasks: usize, limit: CoreLimit) -> usize {
    let tasks = total_tasks.clamp(1, usize::from(u16::MAX));
    match limit {
        CoreLimit::AtMost(cores) => tasks.min(usize::from(cores.get())),
        CoreLimit::Unlimited => tasks,
    }
}

impl JobKind {
    /// The kind of the job with this name.
    pub fn of(job_name: &str) -> Self {
        match job_name {
            "ps" => Self::Ps,
            "worker" | "chief" => Self::Worker,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checklist_20_shard_count_formula() {
        let four = CoreLimit::AtMost(NonZeroU16::new(4).unwrap());
        for (tasks, limit, shards) in [
            (0, four, 1),
            (0, CoreLimit::Unlimited, 1),
            (3, four, 3),
            (4, four, 4),
            (5, four, 4),
            (3000, CORES_OF_OTHER_JOBS, 16),
            (3000, CoreLimit::Unlimited, 3000),
            (70_000, CoreLimit::Unlimited, 65_535),
        ] {
            assert_eq!(shard_count(tasks, limit), shards, "{tasks} {limit:?}");
        }
    }

    #[test]
    fn checklist_20_chief_counts_as_worker() {
        assert_eq!(JobKind::of("chief"), JobKind::Worker);
        assert_eq!(JobKind::of("worker"), JobKind::Worker);
        assert_eq!(JobKind::of("ps"), JobKind::Ps);
        assert_eq!(JobKind::of("evaluator"), JobKind::Other);
        assert_eq!(JobKind::of("Worker"), JobKind::Other);
    }
}
