//! Processes of `mpirun`: Open MPI tells where it runs itself, PMI tells ranks alone.

use super::{Allocation, Environment, LaunchError, Launcher, Leader, prrte};

pub(super) fn open_mpi(environment: &Environment) -> Result<Option<Allocation>, LaunchError> {
    let (rank, size) = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    let Some((rank, size)) = environment.rank_of("Open MPI", rank, size)? else {
        return Ok(None);
    };
    let job = ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"]
        .into_iter()
        .find_map(|name| environment.text(name));
    let leader = if environment.number("OMPI_COMM_WORLD_LOCAL_SIZE")? == Some(size) {
        Leader::ThisHost
    } else {
        // Unless it was told otherwise, mpirun puts rank 0 on the first host, which is its own.
        match environment.text("OMPI_MCA_orte_hnp_uri") {
            Some(uri) => host_of_uri(uri).map_or(
                Leader::Unknown(": OMPI_MCA_orte_hnp_uri has no address"),
                |host| Leader::Host(host, None),
            ),
            // Since version 5 the host is part of the name of the job.
            None => prrte::leader_of(environment),
        }
    };
    Ok(Some(Allocation {
        launcher: Launcher::OpenMpi,
        rank,
        size: Some(size),
        leader: if job.is_some() {
            leader
        } else {
            Leader::Unknown("")
        },
        job: format!("mpi {}", job.unwrap_or_default()),
    }))
}

pub(super) fn pmi(environment: &Environment) -> Result<Option<Allocation>, LaunchError> {
    let Some((rank, size)) = environment.rank_of("PMI", "PMI_RANK", "PMI_SIZE")? else {
        return Ok(None);
    };
    Ok(Some(Allocation {
        launcher: Launcher::Pmi,
        rank,
        size: Some(size),
        leader: Leader::Unknown(", nor which job this is"),
        job: "pmi".to_owned(),
    }))
}

/// The first host in `1877082112.0;tcp://192.0.2.2,10.0.0.2:49473;tcp6://...`.
fn host_of_uri(uri: &str) -> Option<String> {
    let (_, rest) = uri.split_once("tcp://")?;
    let end = rest.find([',', ':', ';']).unwrap_or(rest.len());
    let host = &rest[..end];
    host.parse::<std::net::Ipv4Addr>()
        .ok()
        .map(|ip| ip.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_mpi_tells_rank_and_host() {
        let several = Environment::from([
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("OMPI_MCA_ess_base_jobid", "1877082113"),
            (
                "OMPI_MCA_orte_hnp_uri",
                "1877082112.0;tcp://192.0.2.2,10.0.0.2:49473;tcp6://[::]:1",
            ),
        ]);
        let found = open_mpi(&several).unwrap().unwrap();
        assert_eq!((found.rank, found.size), (3, Some(4)));
        assert_eq!(found.leader, Leader::Host("192.0.2.2".to_owned(), None));
        assert_eq!(found.job, "mpi 1877082113");
    }

    /// The variables of version 5.0.11; those of the server are addresses of its own host alone.
    #[test]
    fn open_mpi_5_tells_its_host_in_the_name_of_the_job() {
        let environment = Environment::from([
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_RANK", "3"),
            ("PMIX_NAMESPACE", "prterun-node1-8289@1"),
            (
                "PMIX_SERVER_URI41",
                "prterun-node1-8289@0.1;tcp4://127.0.0.1:57735",
            ),
        ]);
        let found = open_mpi(&environment).unwrap().unwrap();
        assert_eq!(found.leader, Leader::Host("node1".to_owned(), None));
        assert_eq!(found.job, "mpi prterun-node1-8289@1");
    }

    #[test]
    fn what_is_half_there_is_named() {
        let half = Environment::from([("OMPI_COMM_WORLD_RANK", "3")]);
        let text = open_mpi(&half).unwrap_err().to_string();
        assert!(text.contains("OMPI_COMM_WORLD_SIZE"), "{text}");
        let half = Environment::from([("PMI_SIZE", "3")]);
        let text = pmi(&half).unwrap_err().to_string();
        assert!(text.contains("PMI_RANK"), "{text}");
    }

    #[test]
    fn pmi_tells_no_host() {
        let environment = Environment::from([("PMI_RANK", "0"), ("PMI_SIZE", "2")]);
        let found = pmi(&environment).unwrap().unwrap();
        let text = found.rendezvous(None).unwrap_err().to_string();
        assert!(
            text.contains("PMI") && text.contains("--rendezvous"),
            "{text}"
        );
    }
}
