//! What ranks are called: in errors by number and address, in rendezvous keys by their devices.

use std::fmt::{self, Write as _};

use grpcxx_rpc::{RendezvousKey, Status};
use grpcxx_runtime::cluster::TaskId;

use super::Key;
use super::greetings::OPERATIONS_ASKED_MAX;
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
    /// The beginnings of keys, up to what differs between messages, from this rank to each and from
    /// each to this one.
    to: Vec<String>,
    from: Vec<String>,
}

impl Names {
    /// # Errors
    /// `INVALID_ARGUMENT` if a device has a name that cannot stand in a key.
    pub(crate) fn new(group: &str, own: u32, ranks: &[Who]) -> Result<Self, Status> {
        let beginning = |source: u32, target: u32| {
            let edge = format!("{EDGE}.{source}.{target}.");
            let (source, target) = (&ranks[source as usize], &ranks[target as usize]);
            let incarnation = source.incarnation;
            let key = RendezvousKey::new(&source.device, incarnation, &target.device, &edge)?;
            let mut text = key.to_string();
            text.truncate(text.len() - TOP_FRAME.len());
            Ok(text)
        };
        let all = 0..ranks.len() as u32;
        let to = all.clone().map(|other| beginning(own, other));
        let from = all.map(|other| beginning(other, own));
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
        let mut text = String::with_capacity(beginning.len() + PLACE_LEN_MAX + TOP_FRAME.len());
        text.push_str(beginning);
        // A string takes all that is written to it.
        let _ = write!(text, "{what}");
        text.push_str(TOP_FRAME);
        Key::from(text)
    }

    /// A key that nobody sends, to wait for.
    pub(crate) fn timer(&self) -> Key {
        self.between(self.own, self.own, "timer")
    }
}

/// The places of an operation are those of one that is long over, so that both ends know the keys
/// of their messages from before.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tag, number, slot } = *self;
        let place = number % PLACES;
        let (kind, spot) = match slot {
            Slot::Bell => return write!(f, "{tag}.{number}.bell"),
            Slot::Hello => return write!(f, "{tag}.{place}"),
            Slot::Part(spot) => ('p', spot),
            Slot::Whole(spot) => ('w', spot),
        };
        let Spot {
            called,
            chunk,
            piece,
        } = spot;
        write!(f, "{tag}.{place}.{called:x}.{kind}{chunk}.{piece}")
    }
}

/// How the edges of all keys of groups begin.
const EDGE: &str = "grpcxx_group";

/// How the keys of all groups end.
const TOP_FRAME: &str = ";0:0";

/// Room for what differs between messages; more makes the text grow once more.
const PLACE_LEN_MAX: usize = 40;

/// So many operations of a tag have places of their own. A rank asks partners for few operations
/// ahead, and is ahead of whoever takes what it sends by as many as there are ranks on the way in
/// the tree of [`Plan::partners`](crate::plan::Plan::partners): 63 at most.
const PLACES: u64 = 64;

const _: () = assert!(PLACES > OPERATIONS_ASKED_MAX as u64);

/// Most ranks that an error names.
const RANKS_SHOWN_MAX: usize = 8;
