//! What ranks are called: in errors by number and address, in rendezvous keys by their devices.

use std::fmt;

use grpcxx_rpc::{RendezvousKey, Status};
use grpcxx_runtime::cluster::TaskId;

use super::Key;
use crate::machine::{Slot, Spot};

/// What is known of a rank by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) address: String,
    pub(crate) device: String,
    pub(crate) incarnation: u64,
    /// Where its board is; empty if it has none.
    pub(crate) board: String,
}

impl Who {
    /// Which task of the cluster the rank says that it is.
    pub(crate) fn task(&self) -> Option<TaskId> {
        let (name, _) = self.device.split_once("/device:")?;
        let task: TaskId = name.parse().ok()?;
        task.is_of_cluster().then_some(task)
    }
}

/// Which of the messages from one rank to another one it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) tag: u16,
    /// Which of the operations of the tag.
    pub(crate) number: u64,
    pub(crate) slot: Slot,
}

/// The names of all ranks.
#[derive(Debug)]
pub(crate) struct Names {
    /// The name of the group.
    pub(super) group: String,
    own: u32,
    addresses: Vec<String>,
    /// The beginnings of keys, up to the edge, from this rank to each and from each to this one.
    to: Vec<String>,
    from: Vec<String>,
}

impl Names {
    /// # Errors
    /// `INVALID_ARGUMENT` if a device has a name that cannot stand in a key.
    pub(crate) fn new(group: &str, own: u32, ranks: &[Who]) -> Result<Self, Status> {
        let this = &ranks[own as usize];
        let beginning = |source: &Who, target: &Who| {
            let (source, incarnation) = (&source.device, source.incarnation);
            let key = RendezvousKey::new(source, incarnation, &target.device, EDGE)?;
            let text = key.to_string();
            let end = text.rfind(EDGE).unwrap_or(text.len());
            Ok(text[..end].to_owned())
        };
        let to = ranks.iter().map(|other| beginning(this, other));
        let from = ranks.iter().map(|other| beginning(other, this));
        Ok(Self {
            group: group.to_owned(),
            own,
            to: to.collect::<Result<_, Status>>()?,
            from: from.collect::<Result<_, Status>>()?,
            addresses: ranks.iter().map(|who| who.address.clone()).collect(),
        })
    }

    /// A rank in an error.
    pub(crate) fn of(&self, rank: u32) -> String {
        format!("rank {rank} ({})", self.addresses[rank as usize])
    }

    /// This rank in an error.
    pub(crate) fn own(&self) -> String {
        self.of(self.own)
    }

    /// Several ranks in an error.
    pub(crate) fn of_all(&self, ranks: &[u32]) -> String {
        let shown = ranks.iter().take(RANKS_SHOWN_MAX);
        let mut names: Vec<String> = shown.map(|&rank| self.of(rank)).collect();
        if ranks.len() > RANKS_SHOWN_MAX {
            names.push(format!("{} more", ranks.len() - RANKS_SHOWN_MAX));
        }
        names.join(", ")
    }

    /// The key of a message between this rank and another one.
    pub(crate) fn key(&self, source: u32, target: u32, place: Place) -> Key {
        self.between(source, target, place)
    }

    /// The key by which `source` tells `target` that it has heard why the group is over.
    pub(crate) fn farewell(&self, source: u32, target: u32) -> Key {
        self.between(source, target, "over")
    }

    /// The key that `target` asks of `source` and that nobody sends: it fails when `source` is
    /// lost.
    pub(crate) fn absence(&self, source: u32, target: u32) -> Key {
        self.between(source, target, "lost")
    }

    fn between(&self, source: u32, target: u32, what: impl fmt::Display) -> Key {
        let beginning = match source == self.own {
            true => &self.to[target as usize],
            false => &self.from[source as usize],
        };
        Key::from(format!("{beginning}{EDGE}.{source}.{target}.{what};0:0"))
    }

    /// A key that nobody sends, to wait for.
    pub(crate) fn timer(&self) -> Key {
        let beginning = &self.to[self.own as usize];
        Key::from(format!("{beginning}{EDGE}.timer;0:0"))
    }
}

/// No place comes again in a group: a rank may be more than one operation ahead of whoever takes
/// what it sends, as [`Plan::partners`](crate::plan::Plan::partners) says.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.tag, self.number)?;
        let (kind, spot) = match self.slot {
            Slot::Bell => return f.write_str(".bell"),
            Slot::Hello => return Ok(()),
            Slot::Part(spot) => ('p', spot),
            Slot::Whole(spot) => ('w', spot),
        };
        let Spot {
            called,
            chunk,
            piece,
        } = spot;
        write!(f, ".{called:x}.{kind}{chunk}.{piece}")
    }
}

/// How the edges of all keys of groups begin.
const EDGE: &str = "grpcxx_group";

/// Most ranks that an error names.
const RANKS_SHOWN_MAX: usize = 8;
