use std::time::Duration;

use grpcxx::topology::Topology;
use grpcxx_cli::launch::{self, Environment, Meeting, MeetingOptions, Place};
use grpcxx_cli::local::HeldPort;
use grpcxx_runtime::cluster::{ClusterSpec, TaskId};

use crate::arguments::Arguments;
use crate::terminal::{Exit, Failure, OrExit, Outcome};

/// A task that a launcher has started as one of several ranks, which have met.
pub(crate) struct Allocated {
    pub(crate) cluster: ClusterSpec,
    pub(crate) task: TaskId,
    pub(crate) topology: Topology,
    /// The ports of the task, until it listens there.
    pub(crate) held: Vec<HeldPort>,
}

/// Meets the other ranks if the environment is that of an allocation.
pub(crate) fn find(arguments: &Arguments) -> Outcome<Option<Allocated>> {
    let found = launch::find(&Environment::of_process())?;
    if let Some(line) = found.unused {
        tracing::warn!("{line}");
    }
    let Some(Place::Rank(allocation)) = found.place else {
        return Ok(None);
    };
    if arguments.job_name.is_some() || arguments.task_index.is_some() {
        return Err(Failure::new(
            Exit::Usage,
            format!(
                "--job-name and --task-index belong to --cluster-spec; {} says which rank this \
                 is, and --ps how many are parameter servers",
                allocation.launcher
            ),
        ));
    }
    let options = MeetingOptions {
        size: arguments.processes,
        ps: arguments.ps,
        has_chief: false,
        rendezvous: arguments.rendezvous.clone(),
        timeout: MEETING_TIMEOUT,
        restarts: None,
    };
    tracing::info!(
        launcher = %allocation.launcher,
        rank = allocation.rank,
        "waits for the other ranks"
    );
    let mut meeting = Meeting::hold(&allocation, &options)?;
    if let Some(leader) = meeting.leader.take() {
        // All have their answer, or see that rank 0 is gone.
        let _ = leader.join();
    }
    let cluster = ClusterSpec::parse(&meeting.plan.cluster_spec()).or_exit(Exit::Software)?;
    let map = meeting.plan.endpoint_map();
    let topology = Topology::told(&cluster, &map).or_exit(Exit::Software)?;
    let task = meeting.plan.roles().task(meeting.rank);
    Ok(Some(Allocated {
        cluster,
        task,
        topology,
        held: meeting.held,
    }))
}

/// How long ranks wait for each other, which a queue may start one after the other.
const MEETING_TIMEOUT: Duration = Duration::from_secs(300);
