//! The launchers that are known, in the order in which they are asked.

use super::found::{Found, Place, TF_CONFIG, Told};
use super::{
    Allocation, Environment, LaunchError, Launcher, kubernetes, leader_worker_set, mpi, prrte,
    slurm, tf_config, world,
};

/// What the environment says, if a launcher has set it.
///
/// Who says most goes first, and who runs inside another before that one: `TF_CONFIG` with a
/// cluster, torchrun, Open MPI and PRRTE (which start their daemons through Slurm), Slurm (which
/// may offer PMI and PMIx), PMI, `RANK`, LeaderWorkerSet, Kubernetes, and `TF_CONFIG` without a
/// cluster.
///
/// # Errors
/// Variables of a launcher are half set, cannot be read, or contradict each other.
pub fn find(environment: &Environment) -> Result<Found, LaunchError> {
    let told = tf_config::read(environment)?;
    let mut ranks = READERS.iter().map(|read| read(environment));
    // A program that TF_CONFIG leaves alone may still be a rank of others.
    let used = match &told {
        Some(told) if !told.is_alone => None,
        Some(_) | None => next_rank(&mut ranks)?,
    };
    // What is wrong with variables that are not used is nobody's error.
    let others: Vec<Allocation> = ranks.filter_map(|read| read.ok().flatten()).collect();
    Ok(match (used, told) {
        (Some(rank), told) => Found {
            unused: unused_beside_rank(&rank, told.is_some(), &others),
            place: Some(Place::Rank(rank)),
        },
        (None, Some(told)) => Found {
            unused: unused_beside_task(&told, &others),
            place: Some(Place::Told(told)),
        },
        (None, None) => Found {
            place: None,
            unused: None,
        },
    })
}

type Read = Result<Option<Allocation>, LaunchError>;

fn next_rank(reads: &mut impl Iterator<Item = Read>) -> Read {
    for read in reads {
        if let Some(found) = read? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn unused_beside_rank(
    used: &Allocation,
    has_tf_config: bool,
    others: &[Allocation],
) -> Option<String> {
    let others = others
        .iter()
        .filter(|other| !used.launcher.runs_inside(other.launcher))
        .filter(|other| differs((Some(used.rank), used.size), other))
        .map(named);
    let tf_config = has_tf_config.then(|| format!("{TF_CONFIG}, which has no cluster"));
    let unused: Vec<String> = tf_config.into_iter().chain(others).collect();
    line(&named(used), &unused)
}

fn unused_beside_task(used: &Told, others: &[Allocation]) -> Option<String> {
    let others = others
        .iter()
        .filter(|other| differs((used.rank, used.size), other))
        .map(named);
    line(
        &format!("{TF_CONFIG} ({})", used.name),
        &others.collect::<Vec<_>>(),
    )
}

/// Whether a launcher says another rank than the one that counts, or another number of ranks.
fn differs((rank, size): (Option<u32>, Option<u32>), other: &Allocation) -> bool {
    let is_other_size = size
        .zip(other.size)
        .is_some_and(|(used, other)| used != other);
    is_other_size || rank != Some(other.rank)
}

fn named(allocation: &Allocation) -> String {
    let Allocation { launcher, rank, .. } = allocation;
    match allocation.size {
        Some(size) => format!("{launcher} (rank {rank} of {size})"),
        None => format!("{launcher} (rank {rank})"),
    }
}

fn line(used: &str, unused: &[String]) -> Option<String> {
    (!unused.is_empty()).then(|| {
        format!(
            "{used} says which process this is; set and not used: {}; unset what does not belong \
             to this job",
            unused.join(", ")
        )
    })
}

impl Launcher {
    /// Whether processes of this launcher often inherit variables of the other, which then say
    /// something about its daemon or its container.
    fn runs_inside(self, other: Self) -> bool {
        use Launcher::{
            Kubernetes, LeaderWorkerSet, OpenMpi, Pmi, Pmix, Prrte, Slurm, TorchRun, World,
        };
        match self {
            TorchRun => true,
            OpenMpi | Prrte => other != World,
            Slurm | Pmi | Pmix | World => {
                matches!(other, Pmix | LeaderWorkerSet | Kubernetes)
            }
            LeaderWorkerSet | Kubernetes => false,
        }
    }
}

const READERS: [fn(&Environment) -> Read; 9] = [
    world::torchrun,
    mpi::open_mpi,
    prrte::read,
    slurm::read,
    mpi::pmi,
    prrte::pmix,
    world::read,
    leader_worker_set::read,
    kubernetes::read,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(environment: &Environment) -> Allocation {
        match find(environment).unwrap().place {
            Some(Place::Rank(found)) => found,
            other => panic!("no rank, but {other:?}"),
        }
    }

    #[test]
    fn nothing_is_found_where_no_launcher_was() {
        assert_eq!(find(&Environment::default()).unwrap().place, None);
        let shell = Environment::from([("SLURM_CONF", "/etc/slurm.conf"), ("RANKING", "1")]);
        assert_eq!(find(&shell).unwrap().place, None);
    }

    #[test]
    fn ranks_that_slurm_gives_to_the_daemons_of_open_mpi_do_not_count() {
        let daemon = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        let both = Environment::from([
            daemon[0],
            daemon[1],
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ]);
        let found = rank(&both);
        assert_eq!((found.launcher, found.rank), (Launcher::OpenMpi, 2));
        assert_eq!(find(&both).unwrap().unused, None);

        let both = Environment::from([
            daemon[0],
            daemon[1],
            ("PRTE_LAUNCHED", "1"),
            ("PMIX_RANK", "2"),
            ("PMIX_NAMESPACE", "prterun-node1-8289@1"),
        ]);
        let found = rank(&both);
        assert_eq!((found.launcher, found.rank), (Launcher::Prrte, 2));
        assert_eq!(find(&both).unwrap().unused, None);
    }

    #[test]
    fn a_step_of_slurm_may_offer_pmix() {
        let step = Environment::from([
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("PMIX_RANK", "1"),
            ("PMIX_NAMESPACE", "slurm.pmix.17.0"),
        ]);
        assert_eq!(rank(&step).launcher, Launcher::Slurm);
        assert_eq!(find(&step).unwrap().unused, None);
    }

    #[test]
    fn ranks_of_torchrun_inside_a_step_of_slurm_are_its_own() {
        let world = [("RANK", "5"), ("WORLD_SIZE", "8"), ("MASTER_ADDR", "node1")];
        let step = [("SLURM_PROCID", "1"), ("SLURM_STEP_NUM_TASKS", "2")];
        let beside = [world[0], world[1], world[2], step[0], step[1]];
        // A batch script that exports the words for its program.
        assert_eq!(rank(&Environment::from(beside)).launcher, Launcher::Slurm);
        for outer in [
            step,
            [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")],
        ] {
            let inside = Environment::from([
                world[0],
                world[1],
                world[2],
                outer[0],
                outer[1],
                ("TORCHELASTIC_RUN_ID", "none"),
            ]);
            let found = rank(&inside);
            assert_eq!((found.launcher, found.rank), (Launcher::TorchRun, 5));
            assert_eq!(find(&inside).unwrap().unused, None);
        }
    }

    #[test]
    fn a_tf_config_without_a_cluster_leaves_the_rank_to_others_and_is_told() {
        let both = Environment::from([
            ("TF_CONFIG", r#"{"task": {"type": "worker", "index": 0}}"#),
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
        ]);
        assert_eq!(rank(&both).rank, 1);
        let line = find(&both).unwrap().unused.unwrap();
        assert!(
            line.contains("Slurm (rank 1 of 2)")
                && line.contains("TF_CONFIG, which has no cluster"),
            "{line}"
        );
    }

    #[test]
    fn ranks_beside_a_cluster_of_tf_config_are_told_if_they_differ() {
        let text = r#"{"cluster": {"worker": ["a:1", "b:1"]},
                       "task": {"type": "worker", "index": 1}}"#;
        let with = |rank| {
            let environment = Environment::from([
                ("TF_CONFIG", text),
                ("SLURM_PROCID", rank),
                ("SLURM_STEP_NUM_TASKS", "2"),
            ]);
            find(&environment).unwrap()
        };
        assert!(matches!(with("1").place, Some(Place::Told(_))));
        assert_eq!(with("1").unused, None);
        let line = with("0").unused.unwrap();
        assert!(
            line.contains("TF_CONFIG (worker:1)") && line.contains("Slurm (rank 0 of 2)"),
            "{line}"
        );
        // What is wrong with variables that do not count stops nobody.
        assert_eq!(with("seven").unused, None);
    }
}
