use grpcxx_memory::Buffer;

use crate::{HEAD_BYTES_MAX, Landing, LinkHandler, LinkId, Next, Outcome, Reading};

/// The receiving half of a byte-stream link: turns bytes read into events, as the handler's orders
/// say.
///
/// Drivers ask [`Inbound::target`] where the next read shall go. Bytes read into the driver's
/// staging memory go to [`Inbound::offer`]; bytes read straight into a landing are reported with
/// [`Inbound::landed_direct`].
///
/// Invariants, checked at the end of [`Inbound::offer`]: bytes are held back only while the link is
/// paused, or while they are fewer than the head that is waited for. Memory for the latter is there
/// from the start, so a link allocates only when it is paused with bytes at hand, and keeps that
/// memory for the next pause.
#[derive(Debug)]
pub struct Inbound {
    state: State,
    held: Vec<u8>,
    /// `held` is used up to here.
    held_from: usize,
    /// Landings that were taken are not back, so none may come back that is later.
    is_behind: bool,
    taken_bytes: u64,
}

#[derive(Debug)]
enum State {
    Head {
        at_least_bytes: usize,
    },
    Land(Landing),
    Discard {
        bytes: u64,
        then_at_least_bytes: usize,
    },
    Paused,
    Lost,
}

/// Where the next read shall go.
#[derive(Debug)]
pub enum ReadTarget<'a> {
    /// Into the driver's own staging memory.
    Staging,
    /// Straight into final memory.
    Direct(&'a mut [u8]),
    /// Nowhere: the link is paused or lost.
    Paused,
}

impl Inbound {
    /// The receiving half of a fresh link. As after [`Inbound::resume`], the caller must call
    /// [`Inbound::offer`] once from its next turn, with no bytes if it has none: an empty landing
    /// is full.
    ///
    /// # Panics
    /// If the order asks for a head of no bytes or of more than [`HEAD_BYTES_MAX`].
    pub fn new(next: Next) -> Self {
        Self {
            state: State::from(next),
            held: Vec::with_capacity(HEAD_BYTES_MAX),
            held_from: 0,
            is_behind: false,
            taken_bytes: 0,
        }
    }

    /// Where the next read shall go.
    pub fn target(&mut self) -> ReadTarget<'_> {
        let nothing_held = self.held_bytes() == 0;
        match &mut self.state {
            State::Land(landing)
                if nothing_held && landing.remaining_bytes() >= DIRECT_BYTES_MIN =>
            {
                ReadTarget::Direct(landing.unfilled())
            }
            State::Head { .. } | State::Land(_) | State::Discard { .. } => ReadTarget::Staging,
            State::Paused | State::Lost => ReadTarget::Paused,
        }
    }

    /// How far reading has come.
    pub fn reading(&self) -> Reading {
        Reading {
            taken_bytes: self.taken_bytes,
            is_begun: match self.state {
                State::Head { .. } => self.held_bytes() > 0,
                State::Land(_) | State::Discard { .. } => true,
                State::Paused | State::Lost => false,
            },
            asks: match self.state {
                State::Head { .. } | State::Discard { .. } => true,
                State::Land(_) => !self.is_stuck(),
                State::Paused | State::Lost => false,
            },
        }
    }

    /// Whether the handler has paused the link.
    pub fn is_paused(&self) -> bool {
        matches!(self.state, State::Paused)
    }

    /// Says whether landings that were taken are not back yet: until then one that is full stays
    /// here, and what follows it is held back. True if that is over, and the caller must call
    /// [`Inbound::offer`] with no bytes.
    pub fn set_behind(&mut self, is_behind: bool) -> bool {
        let was_stuck = self.is_stuck();
        self.is_behind = is_behind;
        was_stuck && !is_behind
    }

    /// Whether the next bytes belong to a landing.
    pub fn has_landing(&self) -> bool {
        matches!(self.state, State::Land(_))
    }

    /// The landing that the next bytes belong to.
    pub fn landing(&self) -> Option<&Landing> {
        match &self.state {
            State::Land(landing) => Some(landing),
            State::Head { .. } | State::Discard { .. } | State::Paused | State::Lost => None,
        }
    }

    /// Takes a landing that [`Landing::then_head`] lets the link take, if it wants no more than
    /// `len_bytes`; what follows may then be offered. The caller fills it and gives it back to the
    /// handler.
    pub fn take_landing(&mut self, len_bytes: u64) -> Option<Landing> {
        let State::Land(landing) = &self.state else {
            return None;
        };
        let at_least_bytes = landing.then_head_bytes()?;
        let wanted = landing.remaining_bytes();
        if wanted as u64 > len_bytes || self.held_bytes() > 0 {
            return None;
        }
        let head = State::from(Next::Head { at_least_bytes });
        match std::mem::replace(&mut self.state, head) {
            State::Land(landing) => Some(landing),
            State::Head { .. } | State::Discard { .. } | State::Paused | State::Lost => None,
        }
    }

    /// Bytes taken and not shown yet: a head that is not complete, or what came with a pause.
    pub fn held_bytes(&self) -> usize {
        self.held.len() - self.held_from
    }

    /// Ends a pause. The caller must then call [`Inbound::offer`] once, with no bytes if it has
    /// none, from its next turn: bytes held back during the pause may be enough for an event.
    ///
    /// # Errors
    /// The order comes back if the link is not paused.
    ///
    /// # Panics
    /// As [`Inbound::new`].
    pub fn resume(&mut self, next: Next) -> Result<(), Next> {
        if !self.is_paused() {
            return Err(next);
        }
        self.state = State::from(next);
        Ok(())
    }

    /// Takes bytes that were read into staging memory. Returns the number of events.
    ///
    /// A head that began in an earlier call is shown on its own, with not a byte more than was
    /// asked for.
    ///
    /// # Panics
    /// If the handler claims more bytes than it was shown, answers with a [`Next::Head`] that the
    /// bytes left over satisfy already, or goes on for ever without taking a byte.
    pub fn offer<A>(
        &mut self,
        link: LinkId,
        mut bytes: &[u8],
        handler: &mut dyn LinkHandler<A>,
    ) -> usize {
        self.taken_bytes += bytes.len() as u64;
        let mut events = 0;
        while self.held_bytes() > 0
            && !matches!(self.state, State::Paused | State::Lost)
            && !self.is_stuck()
        {
            if let State::Head { at_least_bytes } = self.state {
                let missing = at_least_bytes.saturating_sub(self.held_bytes());
                let (top_up, rest) = bytes.split_at(missing.min(bytes.len()));
                self.hold(top_up);
                bytes = rest;
                if top_up.len() < missing {
                    return events;
                }
            }
            let held = std::mem::take(&mut self.held);
            let used = self.work(link, &held[self.held_from..], handler, &mut events);
            self.held = held;
            self.held_from += used;
        }
        let used = self.work(link, bytes, handler, &mut events);
        self.hold(&bytes[used..]);
        self.check();
        events
    }

    /// Notes that `bytes` bytes were read straight into the landing. Returns the number of events.
    ///
    /// # Panics
    /// If no landing waits, or fewer bytes were wanted.
    pub fn landed_direct<A>(
        &mut self,
        link: LinkId,
        bytes: usize,
        handler: &mut dyn LinkHandler<A>,
    ) -> usize {
        let State::Land(landing) = &mut self.state else {
            panic!("a direct read of {bytes} bytes, but no landing waits");
        };
        landing.advance(bytes);
        self.taken_bytes += bytes as u64;
        self.offer(link, &[], handler)
    }

    /// Hands memory that holds the next bytes over in place of the landing that waits for just
    /// these. Returns the number of events.
    ///
    /// # Errors
    /// The memory comes back, to be read from: no landing waits that [`Landing::replace`] allows it
    /// for.
    pub fn replace<A>(
        &mut self,
        link: LinkId,
        memory: Buffer,
        handler: &mut dyn LinkHandler<A>,
    ) -> Result<usize, Buffer> {
        let bytes = memory.len() as u64;
        match &mut self.state {
            State::Land(landing) => landing.replace(memory)?,
            State::Head { .. } | State::Discard { .. } | State::Paused | State::Lost => {
                return Err(memory);
            }
        }
        self.taken_bytes += bytes;
        Ok(self.offer(link, &[], handler))
    }

    /// Gives a landing back though the link goes on, drops the rest of its bytes, and shows what
    /// follows. Returns the number of events.
    pub fn forsake_landing<A>(&mut self, link: LinkId, handler: &mut dyn LinkHandler<A>) -> usize {
        let State::Land(landing) = &self.state else {
            return 0;
        };
        let after = match landing.remaining_bytes() as u64 {
            0 => State::Head { at_least_bytes: 1 },
            bytes => State::Discard {
                bytes,
                then_at_least_bytes: 1,
            },
        };
        if let State::Land(landing) = std::mem::replace(&mut self.state, after) {
            handler.landed(link, landing, Outcome::Lost);
        }
        1
    }

    /// Whether bytes are to be dropped that have not come yet.
    pub fn is_dropping(&self) -> bool {
        matches!(self.state, State::Discard { .. })
    }

    /// Gives the landing back when the link dies, and drops what was held. Returns the number of
    /// events. Whatever is offered afterwards is ignored.
    pub fn lose<A>(&mut self, link: LinkId, handler: &mut dyn LinkHandler<A>) -> usize {
        self.held = Vec::new();
        self.held_from = 0;
        match std::mem::replace(&mut self.state, State::Lost) {
            State::Land(landing) => {
                handler.landed(link, landing, Outcome::Lost);
                1
            }
            State::Head { .. } | State::Discard { .. } | State::Paused | State::Lost => 0,
        }
    }

    /// Follows the orders through `bytes` and returns how many of them it used. What is left over
    /// is to be held.
    fn work<A>(
        &mut self,
        link: LinkId,
        bytes: &[u8],
        handler: &mut dyn LinkHandler<A>,
        events: &mut usize,
    ) -> usize {
        let mut used = 0;
        let mut idle_steps = 0;
        loop {
            let rest = &bytes[used..];
            let used_before = used;
            match &mut self.state {
                State::Head { at_least_bytes } => {
                    if rest.len() < *at_least_bytes {
                        return used;
                    }
                    let progress = handler.received(link, rest);
                    *events += 1;
                    let consumed = progress.consumed_bytes;
                    assert!(
                        consumed <= rest.len(),
                        "a handler was shown {} bytes and claims to have consumed {consumed}",
                        rest.len()
                    );
                    used += consumed;
                    if let Next::Head { at_least_bytes } = progress.next {
                        let left = rest.len() - consumed;
                        assert!(
                            at_least_bytes > left,
                            "a handler left {left} bytes over and asks for {at_least_bytes}: it must consume what it can use"
                        );
                    }
                    self.state = State::from(progress.next);
                }
                State::Land(landing) => {
                    used += landing.fill_from(rest);
                    if !landing.is_full() || self.is_behind {
                        return used;
                    }
                    if let State::Land(landing) = std::mem::replace(&mut self.state, State::Lost) {
                        *events += 1;
                        self.state = State::from(handler.landed(link, landing, Outcome::Done));
                    }
                }
                State::Discard {
                    bytes: left,
                    then_at_least_bytes,
                } => {
                    let count = usize::try_from(*left).unwrap_or(usize::MAX).min(rest.len());
                    used += count;
                    *left -= count as u64;
                    if *left > 0 {
                        return used;
                    }
                    self.state = State::Head {
                        at_least_bytes: *then_at_least_bytes,
                    };
                }
                State::Paused => return used,
                State::Lost => return bytes.len(),
            }
            idle_steps = if used == used_before {
                idle_steps + 1
            } else {
                0
            };
            assert!(
                idle_steps < IDLE_STEPS_MAX,
                "a handler answered {idle_steps} times without taking a byte"
            );
        }
    }

    /// Whether a full landing waits for those before it.
    fn is_stuck(&self) -> bool {
        self.is_behind && matches!(&self.state, State::Land(landing) if landing.is_full())
    }

    fn hold(&mut self, bytes: &[u8]) {
        if self.held_from > 0 {
            self.held.drain(..self.held_from);
            self.held_from = 0;
        }
        self.held.extend_from_slice(bytes);
    }

    fn check(&self) {
        let held = self.held_bytes();
        let legal = match self.state {
            State::Head { at_least_bytes } => held < at_least_bytes,
            State::Land(_) => held == 0 || self.is_stuck(),
            State::Discard { .. } | State::Lost => held == 0,
            State::Paused => true,
        };
        assert!(legal, "{held} bytes are held in {:?}", self.state);
    }
}

impl From<Next> for State {
    fn from(next: Next) -> Self {
        match next {
            Next::Head { at_least_bytes } => Self::Head {
                at_least_bytes: checked_head(at_least_bytes),
            },
            Next::Land(landing) => Self::Land(landing),
            Next::Discard {
                bytes,
                then_at_least_bytes,
            } => Self::Discard {
                bytes,
                then_at_least_bytes: checked_head(then_at_least_bytes),
            },
            Next::Pause => Self::Paused,
        }
    }
}

fn checked_head(at_least_bytes: usize) -> usize {
    assert!(
        (1..=HEAD_BYTES_MAX).contains(&at_least_bytes),
        "a head of {at_least_bytes} bytes was asked for, 1 to {HEAD_BYTES_MAX} are allowed"
    );
    at_least_bytes
}

/// Landings that want less are read through staging memory, together with what follows them. Half
/// of what the protocol calls large, so that a payload of 8 KiB whose first piece came with its
/// head is read in place still.
const DIRECT_BYTES_MIN: usize = 4096;

/// More steps in a row that take no byte are a handler that turns in circles. Empty landings are
/// such steps.
const IDLE_STEPS_MAX: usize = 1024;

#[cfg(test)]
mod tests;
