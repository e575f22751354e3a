use std::net::SocketAddr;

use super::reader::{End, Reader, Step};
use super::stream::{Piece, Stream};
use super::{Bounds, Environment, Ledger};
use crate::{Frame, LinkId, LinkLimits, ListenerId, Refusal, Time, Transport};

/// Two transports with the readers of their links, and the means to write a case in a few lines.
pub(super) struct Scene<'e, E: Environment> {
    environment: &'e mut E,
    pub(super) bounds: Bounds,
    name: String,
    sides: [Side<E::Transport>; 2],
    stream: Stream,
    listening: Option<SocketAddr>,
    opened: u64,
}

pub(super) struct Side<T: Transport> {
    pub(super) transport: Ledger<T>,
    pub(super) reader: Reader<T::Accepted>,
}

impl<'e, E: Environment> Scene<'e, E> {
    pub(super) fn new(environment: &'e mut E, case: &str, limits: LinkLimits) -> Self {
        let name = format!("{}: {case}", environment.name());
        let stream = Stream::new();
        let mut index = 0;
        let sides = environment.pair(limits).map(|transport| {
            let label = format!("{name}: side {index}");
            index += 1;
            Side {
                transport: Ledger::new(transport, label.clone()),
                reader: Reader {
                    label,
                    stream: stream.clone(),
                    ends: Default::default(),
                    accepted: Default::default(),
                    spare: Vec::new(),
                },
            }
        });
        Self {
            bounds: environment.bounds(),
            environment,
            name,
            sides,
            stream,
            listening: None,
            opened: 0,
        }
    }

    pub(super) fn fail(&self, what: &str) -> ! {
        panic!("{}: {what}", self.name);
    }

    pub(super) fn check(&self, holds: bool, otherwise: &str) {
        if !holds {
            self.fail(otherwise);
        }
    }

    pub(super) fn transport(&mut self, side: usize) -> &mut Ledger<E::Transport> {
        &mut self.sides[side].transport
    }

    pub(super) fn reader(
        &mut self,
        side: usize,
    ) -> &mut Reader<<E::Transport as Transport>::Accepted> {
        &mut self.sides[side].reader
    }

    /// The end of `link` at `side`.
    pub(super) fn end(&self, side: usize, link: LinkId) -> &End {
        match self.sides[side].reader.ends.get(&link) {
            Some(end) => end,
            None => self.fail(&format!("side {side} has no link {link:?}")),
        }
    }

    /// Frames that the transport of `side` says are in flight.
    pub(super) fn in_flight(&self, side: usize) -> usize {
        self.sides[side].transport.frames_in_flight()
    }

    /// Connections that `side` has been offered and nobody has adopted.
    pub(super) fn accepted_count(&self, side: usize) -> usize {
        self.sides[side].reader.accepted.len()
    }

    /// Turns both transports once.
    pub(super) fn turn(&mut self) -> Time {
        let now = self.environment.advance();
        self.turn_at(0, now);
        self.turn_at(1, now);
        now
    }

    /// Turns one transport once.
    pub(super) fn turn_side(&mut self, side: usize) {
        let now = self.environment.advance();
        self.turn_at(side, now);
    }

    fn turn_at(&mut self, side: usize, now: Time) {
        let Side { transport, reader } = &mut self.sides[side];
        let events = transport.turn(now, reader);
        let max = self.bounds.events_per_turn_max;
        self.check(
            events <= max,
            &format!("a turn had {events} events, at most {max} are allowed"),
        );
    }

    pub(super) fn turns(&mut self, count: usize) {
        for _ in 0..count {
            self.turn();
        }
    }

    /// Turns until something holds.
    pub(super) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) {
        let start = self.turn();
        let mut quiet_since = (start, self.events());
        let mut quiet_turns = 0;
        while !holds(self) {
            let now = self.turn();
            if now.since(start) > self.bounds.patience {
                let patience = self.bounds.patience;
                self.fail(&format!(
                    "waited {patience:?} in vain until {what}{}",
                    self.ends()
                ));
            }
            let quiet = (now, self.events());
            quiet_turns = if quiet == quiet_since {
                quiet_turns + 1
            } else {
                0
            };
            quiet_since = quiet;
            if quiet_turns > QUIET_TURNS_MAX {
                self.fail(&format!(
                    "waits until {what}, but time stands still and nothing happens{}",
                    self.ends()
                ));
            }
        }
    }

    fn events(&self) -> u64 {
        self.sides
            .iter()
            .map(|side| side.transport.tally().events)
            .sum()
    }

    /// Some of the links, for the text of a failure.
    fn ends(&self) -> String {
        let ends: Vec<String> = (self.sides.iter())
            .flat_map(|side| side.reader.ends.iter())
            .filter(|(_, end)| end.closed.is_none())
            .take(8)
            .map(|(link, end)| format!("\n  {link:?}: {end:?}"))
            .collect();
        ends.concat()
    }

    pub(super) fn listen(&mut self, side: usize) -> (ListenerId, SocketAddr) {
        let address = self.environment.address(side);
        match self.sides[side].transport.listen(address) {
            Ok(listening) => listening,
            Err(error) => self.fail(&format!("cannot listen on {address}: {error}")),
        }
    }

    /// Starts to dial from `side`; its end reads by the script.
    pub(super) fn dial(&mut self, side: usize, address: SocketAddr, steps: &[Step]) -> LinkId {
        match self.sides[side].transport.connect(address) {
            Ok(link) => {
                self.enter(side, link, steps);
                link
            }
            Err(error) => self.fail(&format!("cannot dial {address}: {error}")),
        }
    }

    /// Waits for a connection at `side` and makes a link of it.
    pub(super) fn accept(&mut self, side: usize, steps: &[Step]) -> LinkId {
        self.until("a connection is accepted", |scene| {
            scene.accepted_count(side) > 0
        });
        let mut end = End::new(steps);
        let next = end.next();
        let Some((_, _, accepted)) = self.sides[side].reader.accepted.pop_front() else {
            self.fail("an accepted connection is gone again");
        };
        match self.sides[side].transport.adopt(accepted, next) {
            Ok(link) => {
                end.connected = true;
                self.sides[side].reader.ends.insert(link, end);
                link
            }
            Err(error) => self.fail(&format!("cannot adopt a connection: {error}")),
        }
    }

    /// An open link: its id at side 0, which dialled, and its id at side 1. Each end reads by its
    /// script.
    pub(super) fn open(&mut self, dialler: &[Step], acceptor: &[Step]) -> [LinkId; 2] {
        let address = match self.listening {
            Some(address) => address,
            None => {
                let (_, address) = self.listen(1);
                self.listening = Some(address);
                address
            }
        };
        let near = self.dial(0, address, dialler);
        let far = self.accept(1, acceptor);
        self.until("the dial succeeds", |scene| {
            let end = scene.end(0, near);
            scene.check(end.closed.is_none(), "a dial failed that must succeed");
            end.connected
        });
        self.join(near, far);
        [near, far]
    }

    /// Gives both directions of a link their own place in the stream.
    pub(super) fn join(&mut self, near: LinkId, far: LinkId) {
        self.opened += 1;
        let (there, back) = (self.opened * 7919, self.opened * 7919 + 499_979);
        let end = self.end_mut(0, near);
        (end.write_base, end.read_base) = (there, back);
        let end = self.end_mut(1, far);
        (end.write_base, end.read_base) = (back, there);
    }

    fn enter(&mut self, side: usize, link: LinkId, steps: &[Step]) {
        self.sides[side].reader.ends.insert(link, End::new(steps));
    }

    /// A frame with the next bytes that `link` has to write.
    pub(super) fn frame(&mut self, side: usize, link: LinkId, pieces: &[Piece]) -> Box<Frame> {
        let mut frame = self.sides[side].reader.spare.pop().unwrap_or_default();
        frame.clear();
        let end = self.end(side, link);
        let mut offset = end.write_base + end.written_bytes;
        frame.token = offset;
        for piece in pieces {
            self.stream.append(&mut frame, offset, *piece);
            offset += piece.len() as u64;
        }
        frame
    }

    /// Sends a frame if the link takes it now, and says whether it did. Other refusals than a full
    /// queue fail.
    pub(super) fn try_send(&mut self, side: usize, link: LinkId, pieces: &[Piece]) -> bool {
        let frame = self.frame(side, link, pieces);
        let bytes = frame.len_bytes();
        match self.sides[side].transport.send(link, frame) {
            Ok(()) => {
                self.end_mut(side, link).written_bytes += bytes;
                true
            }
            Err(refused) if refused.refusal == Refusal::Full => {
                self.sides[side].reader.spare.push(refused.value);
                false
            }
            Err(refused) => self.fail(&format!("a frame was refused: {}", refused.refusal)),
        }
    }

    /// Sends a frame, turning while the queue is full.
    pub(super) fn send(&mut self, side: usize, link: LinkId, pieces: &[Piece]) {
        if !self.try_send(side, link, pieces) {
            self.until("there is room for a frame", |scene| {
                scene.try_send(side, link, pieces)
            });
        }
    }

    /// Resumes a link that its script has paused, with the next step.
    pub(super) fn resume(&mut self, side: usize, link: LinkId) {
        self.check(
            self.end(side, link).is_paused(),
            "the script has not paused the link",
        );
        if let Err(refusal) = self.try_resume(side, link) {
            self.fail(&format!("a paused link cannot be resumed: {refusal}"));
        }
    }

    /// Resumes a link that is paused, but may be closing.
    pub(super) fn try_resume(&mut self, side: usize, link: LinkId) -> Result<(), Refusal> {
        let next = self.end_mut(side, link).next();
        (self.sides[side].transport.resume(link, next)).map_err(|refused| refused.refusal)
    }

    /// Whether the far end has read all that the near end has written, in the direction from
    /// `side`.
    pub(super) fn is_drained(&self, side: usize, links: [LinkId; 2]) -> bool {
        self.end(side, links[side]).written_bytes == self.end(1 - side, links[1 - side]).read_bytes
            && self.end(side, links[side]).frames_done > 0
    }

    pub(super) fn until_closed(&mut self, side: usize, link: LinkId) {
        self.until("the link is closed", |scene| {
            scene.end(side, link).closed.is_some()
        });
    }

    /// Breaks the link of side 0; says whether the environment can.
    pub(super) fn sever(&mut self, link: LinkId) -> bool {
        let transport = self.sides[0].transport.inner_mut();
        self.environment.sever(transport, link)
    }

    /// Closes what is still open and checks that nothing stays behind.
    pub(super) fn settle(mut self) {
        for side in &mut self.sides {
            side.reader.accepted.clear();
            let links: Vec<LinkId> = side.transport.links().collect();
            for link in links {
                side.transport.close(link, false);
            }
        }
        self.until("all links are gone", |scene| {
            scene
                .sides
                .iter()
                .all(|side| side.transport.links().next().is_none())
        });
        self.turns(10);
        for side in &self.sides {
            side.transport.assert_settled();
        }
    }

    pub(super) fn end_mut(&mut self, side: usize, link: LinkId) -> &mut End {
        match self.sides[side].reader.ends.get_mut(&link) {
            Some(end) => end,
            None => panic!("{}: side {side} has no link {link:?}", self.name),
        }
    }
}

/// A simulated clock may stand still while bytes move that make no event, but not for ever.
const QUIET_TURNS_MAX: usize = 1_000_000;
