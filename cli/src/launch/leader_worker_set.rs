//! Groups of a LeaderWorkerSet of Kubernetes: each pod is told its index, how many there are, and
//! where the first one is.

use super::{Allocation, Environment, LaunchError, Launcher, Leader};

pub(super) fn read(environment: &Environment) -> Result<Option<Allocation>, LaunchError> {
    let place = environment.rank_of("LeaderWorkerSet", "LWS_WORKER_INDEX", "LWS_GROUP_SIZE")?;
    let Some((rank, size)) = place else {
        return Ok(None);
    };
    let address = environment.text("LWS_LEADER_ADDRESS");
    Ok(Some(Allocation {
        launcher: Launcher::LeaderWorkerSet,
        rank,
        size: Some(size),
        leader: match address {
            Some(host) => Leader::Host(host.to_owned(), None),
            None => Leader::Unknown(": LWS_LEADER_ADDRESS is not set"),
        },
        job: format!("leader {}", address.unwrap_or_default()),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(index: &'static str) -> Environment {
        Environment::from([
            ("LWS_WORKER_INDEX", index),
            ("LWS_GROUP_SIZE", "4"),
            ("LWS_LEADER_ADDRESS", "train-0.train.default"),
        ])
    }

    #[test]
    fn all_pods_of_a_group_meet_at_the_first() {
        let places = ["0", "3"].map(|index| read(&pod(index)).unwrap().unwrap());
        assert_eq!(places.each_ref().map(|place| place.rank), [0, 3]);
        assert_eq!(places[1].size(None).unwrap(), 4);
        let [first, last] = places.map(|place| place.rendezvous(None).unwrap());
        assert!(first.starts_with("train-0.train.default:"), "{first}");
        assert_eq!(first, last);
    }

    #[test]
    fn half_of_it_is_an_error_that_names_the_rest() {
        let half = Environment::from([("LWS_WORKER_INDEX", "1")]);
        let text = read(&half).unwrap_err().to_string();
        assert!(text.contains("LWS_GROUP_SIZE"), "{text}");
        let far = read(&pod("4"));
        assert!(far.is_err_and(|error| error.to_string().contains("LWS_WORKER_INDEX")));
        assert_eq!(
            read(&Environment::from([("LWS_LEADER_ADDRESS", "a")])).unwrap(),
            None
        );
    }
}
