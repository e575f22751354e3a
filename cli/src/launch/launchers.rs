//! The launchers that are known, in the order in which they are asked.

use super::{
    Allocation, Environment, LaunchError, kubernetes, leader_worker_set, mpi, slurm, tf_config,
    world,
};

/// What the environment says, if a launcher has set it.
///
/// Who says most goes first, and who runs inside another before that one: `TF_CONFIG`, Open MPI
/// (which starts its daemons through Slurm), Slurm, PMI, `RANK`, LeaderWorkerSet, Kubernetes.
///
/// # Errors
/// Variables of a launcher are half set, cannot be read, or contradict each other.
pub fn find(environment: &Environment) -> Result<Option<Allocation>, LaunchError> {
    let readers = [
        tf_config::read,
        mpi::open_mpi,
        slurm::read,
        mpi::pmi,
        world::read,
        leader_worker_set::read,
        kubernetes::read,
    ];
    for read in readers {
        if let Some(found) = read(environment)? {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::Launcher;
    use super::*;

    #[test]
    fn nothing_is_found_where_no_launcher_was() {
        assert_eq!(find(&Environment::default()).unwrap(), None);
        let shell = Environment::from([("SLURM_CONF", "/etc/slurm.conf"), ("RANKING", "1")]);
        assert_eq!(find(&shell).unwrap(), None);
    }

    #[test]
    fn ranks_that_slurm_gives_to_the_daemons_of_open_mpi_do_not_count() {
        let both = Environment::from([
            ("SLURM_PROCID", "0"),
            ("SLURM_STEP_NUM_TASKS", "1"),
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ]);
        let found = find(&both).unwrap().unwrap();
        assert_eq!((found.launcher, found.rank), (Launcher::OpenMpi, 2));
    }
}
