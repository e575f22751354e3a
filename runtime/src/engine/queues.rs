//! The queues through which the shards of an engine, and others, reach a shard.

use grpcxx_tcp::Accepted;

use crate::client::Mailboxes;
use crate::command::{Command, MeshMessage};
use crate::host::{self, Jobs, TaskSpawner};
use crate::limits;
use crate::mesh::{self, Doorbell, Inbox, InboxSender, Mesh, Sleeper};

/// The ends of a shard's queues that live on its thread.
pub(super) struct Ends {
    pub(super) queues: Queues,
    pub(super) jobs: Jobs,
}

/// Those of the shard itself.
pub(super) struct Queues {
    pub(super) sleeper: Sleeper,
    pub(super) inbox: Inbox<Command>,
    pub(super) mesh: Mesh<MeshMessage<Accepted>>,
}

/// The queues of so many shards, what brings them work of the program, and how others reach them.
pub(super) fn queues(shards: usize) -> (Vec<Ends>, Vec<TaskSpawner>, Mailboxes) {
    let (doorbells, sleepers): (Vec<Doorbell>, Vec<Sleeper>) =
        (0..shards).map(|_| mesh::doorbell()).unzip();
    let (senders, inboxes): (Vec<InboxSender<Command>>, Vec<Inbox<Command>>) = doorbells
        .iter()
        .map(|doorbell| mesh::inbox(limits::INBOX_COMMANDS, doorbell.clone()))
        .unzip();
    let meshes = mesh::mesh(limits::MESH_MESSAGES, &doorbells);
    let (spawners, jobs): (Vec<TaskSpawner>, Vec<Jobs>) = (0..shards).map(|_| host::jobs()).unzip();
    let ends = sleepers
        .into_iter()
        .zip(inboxes)
        .zip(meshes)
        .zip(jobs)
        .map(|(((sleeper, inbox), mesh), jobs)| {
            let queues = Queues {
                sleeper,
                inbox,
                mesh,
            };
            Ends { queues, jobs }
        })
        .collect();
    (ends, spawners, Mailboxes::new(senders, doorbells))
}
