//! Who sends which part of an array to whom: the routes of one rank in one operation.
//!
//! An array is cut into chunks. For each chunk a rank has a [`Route`]: it combines what it has with
//! what other ranks send, hands the result on or keeps it, and takes the finished chunk from
//! another rank.

use std::ops::Range;

use smallvec::SmallVec;

use crate::description::Kind;

/// How the ranks of a group exchange an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// Each rank sends what it has to each rank that needs it, together with its description.
    Exchange,
    /// Each chunk has an owner, who takes it from all ranks and gives it to all.
    Owners,
    /// Chunks go round from rank to rank, once to be combined, once to be spread.
    Ring,
    /// The whole array goes up a tree of ranks to be combined, and down to be spread. That of a
    /// barrier is empty: when it comes down, all have called.
    Tree,
    /// By boards alone: each rank combines its chunk of each segment, and shows it.
    Segments,
}

/// One operation of a group, as all its ranks see it, and the rank that looks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) kind: Kind,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) root: u32,
    /// Bytes that one rank brings; of a scatter, bytes that one rank gets.
    pub(crate) bytes: usize,
    pub(crate) element_bytes: usize,
    /// Whether ranks show each other what they bring, in place of messages.
    pub(crate) has_boards: bool,
}

/// The ranks with which one compares what was called.
pub(crate) type Partners = SmallVec<[u32; 8]>;

/// What a rank combines for a chunk, in the order in which it is combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// What this rank has.
    Own,
    /// What another rank sends.
    Rank(u32),
}

/// What a rank does with what it has combined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// It goes on to a rank that combines it with more.
    Part(u32),
    /// It is the chunk, which these ranks want too.
    Whole(SmallVec<[u32; 4]>),
    /// There is nothing.
    Nothing,
}

/// What one rank does for one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The chunk, by a number that all ranks know it by.
    pub(crate) chunk: u32,
    /// Length of the chunk.
    pub(crate) bytes: usize,
    /// Where the chunk begins in what this rank brings.
    pub(crate) input_at: usize,
    /// Where the chunk begins in what this rank gets, if it gets it.
    pub(crate) output_at: Option<usize>,
    pub(crate) order: SmallVec<[Source; 4]>,
    pub(crate) then: Then,
    /// Who sends the chunk when it is finished, and to whom it goes on.
    pub(crate) from: Option<(u32, SmallVec<[u32; 4]>)>,
    /// Chunks with lower numbers are taken first, so that no rank waits for one that waits for it.
    pub(crate) turn: (u32, u32),
}

impl Plan {
    /// Bytes of what this rank brings.
    pub(crate) fn input_bytes(&self) -> usize {
        match self.kind {
            Kind::Scatter if self.rank == self.root => self.bytes * self.size as usize,
            Kind::Scatter | Kind::Barrier => 0,
            Kind::Broadcast if self.rank != self.root => 0,
            _ => self.bytes,
        }
    }

    /// Bytes of what this rank gets; `None` if it gets nothing, or has it already.
    pub(crate) fn output_bytes(&self) -> Option<usize> {
        let is_root = self.rank == self.root;
        match self.kind {
            Kind::Barrier => None,
            Kind::AllReduce | Kind::AllToAll | Kind::Scatter => Some(self.bytes),
            Kind::ReduceScatter => Some(self.bytes / self.size as usize),
            Kind::AllGather => Some(self.bytes * self.size as usize),
            Kind::Broadcast => (!is_root).then_some(self.bytes),
            Kind::Reduce => is_root.then_some(self.bytes),
            Kind::Gather => is_root.then_some(self.bytes * self.size as usize),
        }
    }

    /// The ranks with which this one compares what was called. In a small group these are all; in
    /// a large one they are its neighbours in a tree, which connect all of them. What it sends of
    /// an operation, it sends once these have begun it: a rank three steps away in the tree may
    /// still be two operations behind then.
    pub(crate) fn partners(rank: u32, size: u32) -> Partners {
        if size <= DIRECT_RANKS_MAX {
            return (1..size).map(|ahead| (rank + ahead) % size).collect();
        }
        let tree = Tree {
            rank,
            size,
            root: 0,
        };
        tree.parent().into_iter().chain(tree.children()).collect()
    }

    /// The scheme that suits the group and the length of the array.
    pub(crate) fn scheme(&self) -> Scheme {
        let others = self.size as usize - 1;
        let (bytes_max, bytes_in_all_max) = match self.has_boards {
            true => (SHOWN_ARRAY_BYTES_MAX, SHOWN_ARRAYS_BYTES_MAX),
            false => (EXCHANGED_BYTES_MAX, EXCHANGED_BYTES_IN_ALL_MAX),
        };
        let is_small =
            self.bytes <= bytes_max && self.bytes.saturating_mul(others) <= bytes_in_all_max;
        match self.kind {
            _ if self.size <= DIRECT_RANKS_MAX && is_small => Scheme::Exchange,
            Kind::AllReduce if self.has_boards => Scheme::Segments,
            _ if self.size <= DIRECT_RANKS_MAX => Scheme::Owners,
            Kind::AllReduce if self.bytes / self.size as usize >= RING_CHUNK_BYTES_MIN => {
                Scheme::Ring
            }
            Kind::AllReduce | Kind::Reduce | Kind::Broadcast | Kind::Barrier => Scheme::Tree,
            Kind::ReduceScatter
            | Kind::AllGather
            | Kind::Gather
            | Kind::Scatter
            | Kind::AllToAll => Scheme::Owners,
        }
    }

    /// What of the array of rank `from` comes to this one together with its description.
    pub(crate) fn exchanged_by(&self, from: u32) -> Range<usize> {
        let theirs = Self {
            rank: from,
            ..*self
        };
        theirs.exchanged(self.rank)
    }

    /// What of its array this rank sends to rank `to` together with its description.
    pub(crate) fn exchanged(&self, to: u32) -> Range<usize> {
        let (share, is_root) = (self.bytes / self.size as usize, self.rank == self.root);
        let at = to as usize;
        match self.kind {
            Kind::AllReduce | Kind::AllGather => 0..self.bytes,
            Kind::ReduceScatter | Kind::AllToAll => at * share..(at + 1) * share,
            Kind::Reduce | Kind::Gather if to == self.root => 0..self.bytes,
            Kind::Broadcast if is_root => 0..self.bytes,
            Kind::Scatter if is_root => at * self.bytes..(at + 1) * self.bytes,
            Kind::Reduce | Kind::Gather | Kind::Broadcast | Kind::Scatter | Kind::Barrier => 0..0,
        }
    }

    /// The routes of this rank.
    pub(crate) fn routes(&self, scheme: Scheme) -> Vec<Route> {
        let mut routes = match scheme {
            Scheme::Exchange => self.exchange(),
            Scheme::Owners => self.owners(),
            Scheme::Ring => self.ring(),
            Scheme::Tree => vec![self.tree()],
            Scheme::Segments => Vec::new(),
        };
        // A barrier has no array, and waits for empty messages.
        routes.retain(|route| route.bytes > 0 || self.kind == Kind::Barrier);
        routes
    }

    fn everybody(&self) -> SmallVec<[Source; 4]> {
        let source = |rank| match rank == self.rank {
            true => Source::Own,
            false => Source::Rank(rank),
        };
        (0..self.size).map(source).collect()
    }

    fn by_one(&self, rank: u32) -> SmallVec<[Source; 4]> {
        let source = match rank == self.rank {
            true => Source::Own,
            false => Source::Rank(rank),
        };
        SmallVec::from_slice(&[source])
    }

    fn others(&self) -> SmallVec<[u32; 4]> {
        // Each begins with another one, so that they do not all ask the same.
        (1..self.size)
            .map(|ahead| (self.rank + ahead) % self.size)
            .collect()
    }

    /// A chunk that this rank finishes for itself.
    fn kept(&self, output_at: usize, input_at: usize, bytes: usize) -> Route {
        Route {
            chunk: 0,
            bytes,
            input_at,
            output_at: Some(output_at),
            order: self.everybody(),
            then: Then::Whole(SmallVec::new()),
            from: None,
            turn: (0, 0),
        }
    }

    /// What this rank makes of what came with the descriptions.
    fn exchange(&self) -> Vec<Route> {
        let (bytes, is_root) = (self.bytes, self.rank == self.root);
        let own = self.rank as usize;
        let from = |rank: u32, output_at: usize, input_at: usize, bytes: usize| Route {
            order: self.by_one(rank),
            ..self.kept(output_at, input_at, bytes)
        };
        match self.kind {
            Kind::Barrier => Vec::new(),
            Kind::AllReduce => vec![self.kept(0, 0, bytes)],
            Kind::Reduce if is_root => vec![self.kept(0, 0, bytes)],
            Kind::ReduceScatter => {
                let share = bytes / self.size as usize;
                vec![self.kept(0, own * share, share)]
            }
            Kind::AllGather => (0..self.size)
                .map(|rank| from(rank, rank as usize * bytes, 0, bytes))
                .collect(),
            Kind::Gather if is_root => (0..self.size)
                .map(|rank| from(rank, rank as usize * bytes, 0, bytes))
                .collect(),
            Kind::AllToAll => {
                let share = bytes / self.size as usize;
                let part = |rank: u32| from(rank, rank as usize * share, own * share, share);
                (0..self.size).map(part).collect()
            }
            Kind::Broadcast if !is_root => vec![from(self.root, 0, 0, bytes)],
            Kind::Scatter => vec![from(self.root, 0, own * bytes, bytes)],
            Kind::Reduce | Kind::Gather | Kind::Broadcast => Vec::new(),
        }
    }

    fn owners(&self) -> Vec<Route> {
        match self.kind {
            Kind::AllReduce | Kind::Reduce | Kind::ReduceScatter | Kind::Broadcast => {
                let chunks = 0..self.size;
                chunks.map(|owner| self.reduced_by(owner)).collect()
            }
            Kind::AllGather | Kind::Gather => {
                let chunks = 0..self.size;
                chunks.map(|owner| self.gathered_from(owner)).collect()
            }
            Kind::Scatter => {
                let chunks = 0..self.size;
                let to = |to: u32| self.carried(to, self.root, to, to as usize * self.bytes, 0);
                chunks
                    .map(to)
                    .map(|route| self.of(route, self.bytes))
                    .collect()
            }
            Kind::AllToAll => {
                let share = self.bytes / self.size as usize;
                let pairs = (0..self.size).flat_map(|ahead| {
                    let (to, from) = (self.ahead(ahead), self.ahead(self.size - ahead));
                    [(self.rank, to), (from, self.rank)]
                });
                let carry = |(from, to): (u32, u32)| {
                    let chunk = from * self.size + to;
                    let (input_at, output_at) = (to as usize * share, from as usize * share);
                    self.of(self.carried(chunk, from, to, input_at, output_at), share)
                };
                // With itself, a rank is both ends of one pair.
                pairs.skip(1).map(carry).collect()
            }
            Kind::Barrier => Vec::new(),
        }
    }

    fn ahead(&self, by: u32) -> u32 {
        (self.rank + by) % self.size
    }

    fn of(&self, route: Route, bytes: usize) -> Route {
        Route { bytes, ..route }
    }

    /// The chunk that rank `from` has and rank `to` gets.
    fn carried(&self, chunk: u32, from: u32, to: u32, input_at: usize, output_at: usize) -> Route {
        let mut route = Route {
            chunk,
            turn: (0, (from + self.size - to) % self.size),
            ..self.kept(output_at, input_at, 0)
        };
        if self.rank == to {
            route.order = self.by_one(from);
        } else {
            route.output_at = None;
            (route.order, route.then) = match self.rank == from {
                true => (self.by_one(from), Then::Part(to)),
                false => (SmallVec::new(), Then::Nothing),
            };
        }
        route
    }

    /// The chunk that `owner` combines, or hands on for the root of a broadcast.
    fn reduced_by(&self, owner: u32) -> Route {
        let range = self.chunk(owner);
        let (is_root, is_owner) = (self.rank == self.root, self.rank == owner);
        let is_broadcast = self.kind == Kind::Broadcast;
        let output_at = match self.kind {
            Kind::ReduceScatter => is_owner.then_some(0),
            Kind::Reduce => is_root.then_some(range.start),
            Kind::Broadcast => (!is_root).then_some(range.start),
            _ => Some(range.start),
        };
        let wanted_by: SmallVec<[u32; 4]> = match self.kind {
            Kind::ReduceScatter => SmallVec::new(),
            Kind::Reduce => SmallVec::from_slice(&[self.root]),
            Kind::Broadcast => {
                let others = self.others().into_iter();
                others.filter(|&rank| rank != self.root).collect()
            }
            _ => self.others(),
        };
        let mut route = Route {
            chunk: owner,
            turn: (0, (owner + self.size - self.rank) % self.size),
            output_at,
            ..self.kept(0, range.start, range.len())
        };
        if is_owner {
            let others = wanted_by.into_iter().filter(|&rank| rank != self.rank);
            route.then = Then::Whole(others.collect());
            if is_broadcast {
                route.order = self.by_one(self.root);
            }
            return route;
        }
        (route.order, route.then) = match is_broadcast && !is_root {
            true => (SmallVec::new(), Then::Nothing),
            false => (self.by_one(self.rank), Then::Part(owner)),
        };
        if output_at.is_some() {
            route.from = Some((owner, SmallVec::new()));
        }
        route
    }

    /// The chunk that is what `owner` brings.
    fn gathered_from(&self, owner: u32) -> Route {
        let gets = self.kind == Kind::AllGather || self.rank == self.root;
        let mut route = Route {
            chunk: owner,
            turn: (0, (owner + self.size - self.rank) % self.size),
            output_at: gets.then_some(owner as usize * self.bytes),
            ..self.kept(0, 0, self.bytes)
        };
        if self.rank == owner {
            route.order = self.by_one(owner);
            route.then = Then::Whole(match self.kind {
                Kind::AllGather => self.others(),
                _ if self.rank == self.root => SmallVec::new(),
                _ => SmallVec::from_slice(&[self.root]),
            });
        } else {
            (route.order, route.then) = (SmallVec::new(), Then::Nothing);
            route.from = gets.then(|| (owner, SmallVec::new()));
        }
        route
    }

    fn ring(&self) -> Vec<Route> {
        let (left, right) = (self.ahead(self.size - 1), self.ahead(1));
        let route = |chunk: u32| {
            let range = self.chunk(chunk);
            // The chunk begins behind its owner, and comes to it last.
            let place = (self.rank + 2 * self.size - chunk - 1) % self.size;
            let is_last = place == self.size - 1;
            let mut route = Route {
                chunk,
                order: SmallVec::from_slice(&[Source::Rank(left), Source::Own]),
                then: Then::Part(right),
                turn: (place, place),
                ..self.kept(range.start, range.start, range.len())
            };
            if place == 0 {
                route.order.remove(0);
            }
            if is_last {
                route.then = Then::Whole(SmallVec::from_slice(&[right]));
            } else {
                let goes_on = place + 1 < self.size - 1;
                let forward = goes_on.then_some(right).into_iter().collect();
                route.from = Some((left, forward));
            }
            route
        };
        (0..self.size).map(route).collect()
    }

    fn tree(&self) -> Route {
        let root = match self.kind {
            Kind::AllReduce => 0,
            _ => self.root,
        };
        let tree = Tree {
            rank: self.rank,
            size: self.size,
            root,
        };
        let children: SmallVec<[u32; 4]> = tree.children().collect();
        let mut route = self.kept(0, 0, self.bytes);
        let down = match self.kind {
            Kind::Reduce => SmallVec::new(),
            _ => children.clone(),
        };
        let own = [Source::Own].into_iter();
        route.order = own.chain(children.into_iter().map(Source::Rank)).collect();
        if self.kind == Kind::Broadcast {
            route.order.truncate(1);
        }
        match tree.parent() {
            None => route.then = Then::Whole(down),
            Some(parent) => {
                route.then = Then::Part(parent);
                if self.kind != Kind::Reduce {
                    route.from = Some((parent, down));
                }
            }
        }
        let is_root = self.rank == self.root;
        match self.kind {
            Kind::Broadcast if !is_root => {
                (route.order, route.then) = (SmallVec::new(), Then::Nothing);
            }
            Kind::Broadcast => route.output_at = None,
            Kind::Reduce if !is_root => route.output_at = None,
            _ => {}
        }
        route
    }

    /// Where the chunk of this number lies in an array that is cut evenly.
    pub(crate) fn chunk(&self, number: u32) -> Range<usize> {
        let elements = self.bytes / self.element_bytes.max(1);
        let at = |number: u32| {
            let end = elements as u128 * u128::from(number) / u128::from(self.size);
            end as usize * self.element_bytes
        };
        // Each rank gets as much of a reduce_scatter, to the byte.
        match self.kind {
            Kind::ReduceScatter => {
                let share = self.bytes / self.size as usize;
                number as usize * share..(number as usize + 1) * share
            }
            _ => at(number)..at(number + 1),
        }
    }
}

/// A binary tree of all ranks, in which `root` is on top.
struct Tree {
    rank: u32,
    size: u32,
    root: u32,
}

impl Tree {
    fn place(&self) -> u32 {
        (self.rank + self.size - self.root) % self.size
    }

    fn rank_at(&self, place: u32) -> u32 {
        (place + self.root) % self.size
    }

    fn parent(&self) -> Option<u32> {
        let place = self.place();
        (place > 0).then(|| self.rank_at((place - 1) / 2))
    }

    fn children(&self) -> impl Iterator<Item = u32> + use<'_> {
        let place = self.place();
        let places = [2 * place + 1, 2 * place + 2].into_iter();
        let there = places.filter(|&place| place < self.size);
        there.map(|place| self.rank_at(place))
    }
}

/// Most ranks of a group in which each speaks to each.
pub(crate) const DIRECT_RANKS_MAX: u32 = 32;

/// Longest array that goes together with the descriptions.
const EXCHANGED_BYTES_MAX: usize = 32 << 10;

/// Most bytes that a rank sends so in one operation.
const EXCHANGED_BYTES_IN_ALL_MAX: usize = 256 << 10;

/// Longest array that goes by boards in one step.
const SHOWN_ARRAY_BYTES_MAX: usize = 64 << 10;

/// Most bytes that a rank reads from boards in such an operation.
const SHOWN_ARRAYS_BYTES_MAX: usize = 512 << 10;

/// Most that a rank shows without steps: the root of a scatter has a part for each rank.
pub(crate) const SHOWN_BYTES_MAX: usize = SHOWN_ARRAY_BYTES_MAX + SHOWN_ARRAYS_BYTES_MAX;

/// Shortest chunk for which a ring of many ranks is worth its turns, each of which is a message of
/// every rank: `tensorflow/bench/all_reduce_model.py` says what these cost, and what bytes do.
const RING_CHUNK_BYTES_MIN: usize = 12 << 10;
