//! One operation of one rank without I/O: what it sends, what it waits for, and what it makes of
//! what comes.

mod by_boards;
mod segments;
mod settle;

use std::ops::Range;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_rpc::{Code, Status};
use smallvec::{SmallVec, smallvec};

use self::segments::Segments;
pub(crate) use self::segments::{SEGMENT_BYTES, Shown};
use crate::description::{DESCRIPTION_BYTES, Description};
use crate::dtype::{Arithmetic, ReduceOp};
use crate::plan::{Partners, Plan, Route, Scheme, Source};

/// Which message of an operation it is, between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Slot {
    /// What was called, and small arrays with it.
    Hello,
    /// A piece that is yet to be combined.
    Part(Spot),
    /// A piece that is finished.
    Whole(Spot),
    /// A bell, with the number of it in place of the operation's: the rank shows something.
    Bell,
}

/// Where a piece belongs. In a large group a rank may ask one that calls something else, before it
/// hears so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Spot {
    /// The digest of what was called.
    pub(crate) called: u32,
    pub(crate) chunk: u32,
    pub(crate) piece: u32,
}

impl Spot {
    fn of(called: u32, route: &Route, piece: &Piece) -> Self {
        Self {
            called,
            chunk: route.chunk,
            piece: piece.number,
        }
    }
}

/// What an operation asks for.
#[derive(Debug)]
pub(crate) enum Effect {
    Send {
        to: u32,
        slot: Slot,
        data: Buffer,
        /// Whether the operation may end here before the data was sent: it lies neither in what
        /// this rank brings nor in what it gets.
        outlives: bool,
    },
    /// What comes is handed to [`Machine::arrived`] with this ticket.
    Receive { from: u32, slot: Slot, ticket: u32 },
}

/// One operation of one rank.
#[derive(Debug)]
pub(crate) struct Machine {
    plan: Plan,
    scheme: Scheme,
    description: Description,
    /// Its digest, once partners have called the same.
    called: u32,
    arithmetic: Option<(ReduceOp, Arithmetic)>,
    input: Buffer,
    routes: Vec<Route>,
    pieces: SmallVec<[Piece; 1]>,
    /// Receives by ticket.
    receives: SmallVec<[Expected; 2]>,
    parts: Window,
    wholes: Window,
    /// What came with the descriptions of partners that have agreed.
    hellos: SmallVec<[Option<Buffer>; 4]>,
    partners: Partners,
    hellos_missing: usize,
    /// Pieces that are yet to be combined or to come.
    unsettled: usize,
    /// What goes by boards step by step.
    segments: Option<Segments>,
}

/// A piece of a chunk, which travels and is combined by itself.
#[derive(Debug)]
struct Piece {
    route: u32,
    number: u32,
    /// Where it lies in its chunk.
    range: Range<usize>,
    output: Option<BufferMut>,
    parts: SmallVec<[Option<Buffer>; 2]>,
    parts_missing: u32,
}

/// What a receive is for.
#[derive(Clone, Copy, Debug)]
struct Expected {
    piece: u32,
    from: u32,
    /// The place among the sources of the route; `None` for the finished piece.
    source: Option<u32>,
    is_here: bool,
}

/// Receives that are begun in order, so many at a time.
#[derive(Debug, Default)]
struct Window {
    tickets: SmallVec<[u32; 4]>,
    begun: usize,
    under_way: usize,
}

/// What this rank brings to an operation, and what it is.
pub(crate) struct Task {
    pub(crate) plan: Plan,
    pub(crate) description: Description,
    pub(crate) arithmetic: Option<Arithmetic>,
    pub(crate) input: Buffer,
}

impl Machine {
    /// `output` makes memory for the result of these ends of pieces, which ascend; it is called
    /// once if this rank gets a result. What is handed on from place to place is a pointer.
    pub(crate) fn new(task: Task, output: impl FnOnce(&[usize]) -> Vec<BufferMut>) -> Box<Self> {
        let Task {
            plan,
            description,
            arithmetic,
            input,
        } = task;
        let scheme = plan.scheme();
        let mut machine = Box::new(Self {
            arithmetic: description.op.zip(arithmetic),
            routes: plan.routes(scheme),
            partners: Plan::partners(plan.rank, plan.size),
            hellos: smallvec![None; plan.size as usize],
            hellos_missing: 0,
            unsettled: 0,
            segments: None,
            pieces: SmallVec::new(),
            receives: SmallVec::new(),
            parts: Window::default(),
            wholes: Window::default(),
            plan,
            scheme,
            description,
            called: 0,
            input,
        });
        machine.hellos_missing = machine.partners.len();
        machine.cut();
        machine.lend_output(output);
        machine
    }

    pub(crate) fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// Which of the operations of its tag it is.
    pub(crate) fn set_number(&mut self, number: u64) {
        self.description.number = number;
    }

    /// What it is called in errors.
    pub(crate) fn name(&self) -> String {
        format!(
            "{} {}",
            self.description.kind.name(),
            self.description.number
        )
    }

    /// Says what was called, and what goes with it.
    pub(crate) fn begin(&mut self, effects: &mut Vec<Effect>) {
        let description = self.description.to_bytes();
        let mut last: Option<(Range<usize>, Buffer)> = None;
        for &to in &self.partners {
            let range = match self.scheme {
                Scheme::Exchange => self.plan.exchanged(to),
                Scheme::Owners | Scheme::Ring | Scheme::Tree | Scheme::Segments => 0..0,
            };
            let data = match &last {
                Some((known, data)) if *known == range => data.clone(),
                _ => {
                    let mut bytes = Vec::with_capacity(DESCRIPTION_BYTES + range.len());
                    bytes.extend_from_slice(&description);
                    bytes.extend_from_slice(&self.input[range.clone()]);
                    let data = Buffer::from(bytes);
                    last = Some((range, data.clone()));
                    data
                }
            };
            effects.push(Effect::Send {
                to,
                slot: Slot::Hello,
                data,
                outlives: true,
            });
        }
        if self.partners.is_empty() {
            self.exchange(effects);
        }
    }

    /// Whether partners have yet to say what they called.
    pub(crate) fn waits_for_greetings(&self) -> bool {
        self.hellos_missing > 0
    }

    /// A partner has said what it called.
    pub(crate) fn greeted(
        &mut self,
        from: u32,
        data: Buffer,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Status> {
        self.description.check(self.plan.rank, from, &data)?;
        let hello = &mut self.hellos[from as usize];
        if hello.is_some() {
            return Ok(());
        }
        *hello = Some(data.slice(DESCRIPTION_BYTES..));
        self.hellos_missing -= 1;
        if self.hellos_missing == 0 {
            match self.scheme {
                Scheme::Exchange => self.check_exchanged()?,
                Scheme::Owners | Scheme::Ring | Scheme::Tree | Scheme::Segments => {}
            }
            self.exchange(effects);
        }
        Ok(())
    }

    /// What the receive of this ticket has brought.
    pub(crate) fn arrived(
        &mut self,
        ticket: u32,
        data: Buffer,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Status> {
        let Some(expected) = self.receives.get_mut(ticket as usize) else {
            return Ok(());
        };
        expected.is_here = true;
        let Expected {
            piece,
            from,
            source,
            ..
        } = *expected;
        let index = piece as usize;
        let (found, allowed) = (data.len(), self.pieces[index].range.len());
        if found != allowed {
            let text = format!(
                "rank {from} sent {found} bytes for a piece of {allowed} bytes of {} {}",
                self.description.kind.name(),
                self.description.number
            );
            return Err(Status::new(Code::DataLoss, text));
        }
        match source {
            Some(source) => {
                self.parts.under_way -= 1;
                let piece = &mut self.pieces[index];
                piece.parts[source as usize] = Some(data);
                piece.parts_missing -= 1;
                if piece.parts_missing == 0 {
                    self.settle(index, effects);
                }
            }
            None => {
                self.wholes.under_way -= 1;
                self.finish(index, data, effects);
            }
        }
        self.receive_more(effects);
        Ok(())
    }

    /// Memory in which what the receive of this ticket brings belongs, if there is such memory.
    pub(crate) fn memory(&mut self, ticket: u32, bytes: u64) -> Option<BufferMut> {
        let expected = *self.receives.get(ticket as usize)?;
        let piece = &mut self.pieces[expected.piece as usize];
        let is_alone = expected.source.is_none() || piece.parts.len() == 1;
        let fits = piece.range.len() as u64 == bytes;
        match is_alone && fits {
            true => piece.output.take(),
            false => None,
        }
    }

    /// Whether all has come, and all that this rank has to send is on its way.
    pub(crate) fn is_done(&self) -> bool {
        self.hellos_missing == 0 && self.unsettled == 0 && self.has_all_segments()
    }

    /// Whom a receive is asked of.
    pub(crate) fn source_of(&self, ticket: u32) -> Option<u32> {
        let expected = self.receives.get(ticket as usize)?;
        Some(expected.from)
    }

    fn waits_for_parts(&self) -> bool {
        self.missing(&self.parts).next().is_some()
    }

    /// Ranks that have not sent what this one waits for.
    pub(crate) fn waits_for(&self) -> Vec<u32> {
        let mut ranks: Vec<u32> = if self.hellos_missing > 0 {
            let silent = |&&rank: &&u32| self.hellos[rank as usize].is_none();
            self.partners.iter().filter(silent).copied().collect()
        } else if self.waits_for_parts() {
            self.missing(&self.parts).collect()
        } else {
            self.missing(&self.wholes).collect()
        };
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Whom the receives of a window wait for.
    fn missing<'a>(&'a self, window: &'a Window) -> impl Iterator<Item = u32> + 'a {
        let begun = window.tickets[..window.begun].iter();
        let receives = begun.map(|&ticket| self.receives[ticket as usize]);
        receives
            .filter(|receive| !receive.is_here)
            .map(|receive| receive.from)
    }

    /// Cuts the chunks into pieces, and lists what is to be received for each.
    fn cut(&mut self) {
        let total: usize = self.routes.iter().map(|route| route.bytes).sum();
        let piece_bytes = piece_bytes(total, self.plan.element_bytes);
        for (index, route) in self.routes.iter().enumerate() {
            if route.order.is_empty() && route.from.is_none() {
                continue;
            }
            // What is empty is one piece.
            let starts = (0..route.bytes.max(1)).step_by(piece_bytes);
            for (number, start) in starts.enumerate() {
                self.pieces.push(Piece {
                    route: index as u32,
                    number: number as u32,
                    range: start..route.bytes.min(start + piece_bytes),
                    output: None,
                    parts: smallvec![None; route.order.len()],
                    parts_missing: 0,
                });
            }
        }
        // What all ranks can begin with comes first, piece by piece of all chunks.
        let mut order: SmallVec<[u32; 4]> = (0..self.pieces.len() as u32).collect();
        let routes = &self.routes;
        let turn = |pieces: &[Piece], index: u32| {
            let piece = &pieces[index as usize];
            let (first, second) = routes[piece.route as usize].turn;
            (first, piece.number, second)
        };
        order.sort_by_key(|&index| turn(&self.pieces, index));
        for index in order {
            self.expect(index);
        }
    }

    fn expect(&mut self, index: u32) {
        let piece = &mut self.pieces[index as usize];
        let route = &self.routes[piece.route as usize];
        for (source, kind) in route.order.iter().enumerate() {
            let Source::Rank(from) = *kind else {
                continue;
            };
            piece.parts_missing += 1;
            self.parts.tickets.push(self.receives.len() as u32);
            self.receives.push(Expected {
                piece: index,
                from,
                source: Some(source as u32),
                is_here: false,
            });
        }
        if !route.order.is_empty() {
            self.unsettled += 1;
        }
        if let Some((from, _)) = route.from {
            self.unsettled += 1;
            self.wholes.tickets.push(self.receives.len() as u32);
            self.receives.push(Expected {
                piece: index,
                from,
                source: None,
                is_here: false,
            });
        }
    }

    fn lend_output(&mut self, output: impl FnOnce(&[usize]) -> Vec<BufferMut>) {
        if self.plan.output_bytes().is_none() {
            return;
        }
        if self.scheme == Scheme::Segments {
            let output = output(&[self.plan.bytes]).pop();
            let combined = self.arithmetic.zip(output);
            self.segments =
                combined.map(|(arithmetic, output)| Segments::new(self.plan, arithmetic, output));
            return;
        }
        let mut places: SmallVec<[(usize, usize); 4]> = SmallVec::new();
        for (index, piece) in self.pieces.iter().enumerate() {
            let route = &self.routes[piece.route as usize];
            if let Some(output_at) = route.output_at {
                places.push((output_at + piece.range.end, index));
            }
        }
        places.sort_unstable();
        let ends: SmallVec<[usize; 4]> = places.iter().map(|&(end, _)| end).collect();
        for ((_, index), memory) in places.into_iter().zip(output(&ends)) {
            self.pieces[index].output = Some(memory);
        }
    }

    fn check_exchanged(&self) -> Result<(), Status> {
        for &from in &self.partners {
            let allowed = self.plan.exchanged_by(from).len();
            let found = self.hellos[from as usize]
                .as_ref()
                .map_or(0, |data| data.len());
            if found != allowed {
                let text = format!(
                    "rank {from} sent {found} bytes with {} {}, and {allowed} belong there",
                    self.description.kind.name(),
                    self.description.number
                );
                return Err(Status::new(Code::DataLoss, text));
            }
        }
        Ok(())
    }

    /// All partners have called the same: sends what this rank has, and asks for what it has not.
    fn exchange(&mut self, effects: &mut Vec<Effect>) {
        match self.scheme {
            Scheme::Exchange => self.take_exchanged(),
            Scheme::Owners | Scheme::Ring | Scheme::Tree | Scheme::Segments => {
                self.called = self.description.digest();
            }
        }
        for index in 0..self.pieces.len() {
            let piece = &self.pieces[index];
            let has_order = !self.routes[piece.route as usize].order.is_empty();
            if piece.parts_missing == 0 && has_order {
                self.settle(index, effects);
            }
        }
        if self.scheme != Scheme::Exchange {
            self.receive_more(effects);
        }
    }

    /// Takes what came with the descriptions.
    fn take_exchanged(&mut self) {
        for index in 0..self.receives.len() {
            let Expected {
                piece,
                from,
                source,
                ..
            } = self.receives[index];
            self.receives[index].is_here = true;
            let (Some(source), Some(data)) = (source, &self.hellos[from as usize]) else {
                continue;
            };
            let piece = &mut self.pieces[piece as usize];
            piece.parts[source as usize] = Some(data.slice(piece.range.clone()));
            piece.parts_missing -= 1;
        }
    }

    fn receive_more(&mut self, effects: &mut Vec<Effect>) {
        for is_part in [true, false] {
            let window = match is_part {
                true => &mut self.parts,
                false => &mut self.wholes,
            };
            while window.under_way < RECEIVES_MAX
                && let Some(&ticket) = window.tickets.get(window.begun)
            {
                window.begun += 1;
                window.under_way += 1;
                let expected = self.receives[ticket as usize];
                let piece = &self.pieces[expected.piece as usize];
                let spot = Spot::of(self.called, &self.routes[piece.route as usize], piece);
                effects.push(Effect::Receive {
                    from: expected.from,
                    slot: match is_part {
                        true => Slot::Part(spot),
                        false => Slot::Whole(spot),
                    },
                    ticket,
                });
            }
        }
    }
}

/// Length of a piece of an operation whose chunks have so many bytes together.
fn piece_bytes(total: usize, element_bytes: usize) -> usize {
    let bytes = PIECE_BYTES.max(total.div_ceil(PIECES_MAX));
    bytes.next_multiple_of(element_bytes.max(1) * 64)
}

/// Length of a piece: so much is combined in one go, within one turn of a shard.
const PIECE_BYTES: usize = 256 << 10;

/// Most pieces of an operation, but for those at the ends of chunks; of larger arrays they are
/// longer.
const PIECES_MAX: usize = 8192;

/// Most receives of each kind that are under way at a time.
const RECEIVES_MAX: usize = 32;

#[cfg(test)]
mod tests;
