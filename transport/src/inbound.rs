use crate::{HEAD_BYTES_MAX, Landing, LinkHandler, LinkId, Next, Outcome};

/// The receiving half of a byte-stream link: turns bytes read into events, as the handler's orders say.
///
/// Drivers ask [`Inbound::target`] where the next read shall go. Bytes read into the driver's staging memory
/// go to [`Inbound::offer`]; bytes read straight into a landing are reported with [`Inbound::landed_direct`].
///
/// Invariants: `carry` is shorter than the head that is waited for; bytes are held back only in [`Next::Pause`].
#[derive(Debug)]
pub struct Inbound {
    state: State,
    carry: Vec<u8>,
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
}

/// Where the next read shall go.
#[derive(Debug)]
pub enum ReadTarget<'a> {
    /// Into the driver's own staging memory.
    Staging,
    /// Straight into final memory.
    Direct(&'a mut [u8]),
    /// Nowhere: the link is paused.
    Paused,
}

/// Landings that want less are read through staging memory, together with what follows them.
const DIRECT_BYTES_MIN: usize = 8192;

impl Inbound {
    /// The receiving half of a fresh link.
    pub fn new(next: Next) -> Self {
        let mut inbound = Self {
            state: State::Paused,
            carry: Vec::new(),
        };
        inbound.set(next);
        inbound
    }

    /// Where the next read shall go.
    pub fn target(&mut self) -> ReadTarget<'_> {
        match &mut self.state {
            State::Land(landing) if landing.remaining_bytes() >= DIRECT_BYTES_MIN => {
                ReadTarget::Direct(landing.unfilled())
            }
            State::Head { .. } | State::Land(_) | State::Discard { .. } => ReadTarget::Staging,
            State::Paused => ReadTarget::Paused,
        }
    }

    /// Whether the handler has paused the link.
    pub fn is_paused(&self) -> bool {
        matches!(self.state, State::Paused)
    }

    /// Ends a pause. The caller must then call [`Inbound::offer`] once, with no bytes if it has none, from
    /// its next turn: bytes held back during the pause may be enough for an event.
    ///
    /// # Errors
    /// The order comes back if the link is not paused.
    pub fn resume(&mut self, next: Next) -> Result<(), Next> {
        if !self.is_paused() {
            return Err(next);
        }
        self.set(next);
        Ok(())
    }

    /// Takes bytes that were read into staging memory. Returns the number of events.
    pub fn offer<A>(
        &mut self,
        link: LinkId,
        mut bytes: &[u8],
        handler: &mut dyn LinkHandler<A>,
    ) -> usize {
        let mut events = 0;
        if !self.carry.is_empty() {
            let mut joined = std::mem::take(&mut self.carry);
            joined.extend_from_slice(bytes);
            events += self.work(link, &mut joined.as_slice(), handler);
            return events;
        }
        events += self.work(link, &mut bytes, handler);
        events
    }

    /// Notes that `bytes` bytes were read straight into the landing. Returns the number of events.
    pub fn landed_direct<A>(
        &mut self,
        link: LinkId,
        bytes: usize,
        handler: &mut dyn LinkHandler<A>,
    ) -> usize {
        let State::Land(landing) = &mut self.state else {
            unreachable!("a direct read needs a landing");
        };
        landing.advance(bytes);
        self.finish_landing(link, handler)
    }

    /// Gives the landing back when the link dies. Returns the number of events.
    pub fn lose<A>(&mut self, link: LinkId, handler: &mut dyn LinkHandler<A>) -> usize {
        match std::mem::replace(&mut self.state, State::Paused) {
            State::Land(landing) => {
                handler.landed(link, landing, Outcome::Lost);
                1
            }
            State::Head { .. } | State::Discard { .. } | State::Paused => 0,
        }
    }

    fn set(&mut self, next: Next) {
        self.state = match next {
            Next::Head { at_least_bytes } => State::Head {
                at_least_bytes: checked_head(at_least_bytes),
            },
            Next::Land(landing) => State::Land(landing),
            Next::Discard {
                bytes,
                then_at_least_bytes,
            } => State::Discard {
                bytes,
                then_at_least_bytes: checked_head(then_at_least_bytes),
            },
            Next::Pause => State::Paused,
        };
    }

    fn work<A>(
        &mut self,
        link: LinkId,
        bytes: &mut &[u8],
        handler: &mut dyn LinkHandler<A>,
    ) -> usize {
        let mut events = 0;
        loop {
            match &mut self.state {
                State::Head { at_least_bytes } => {
                    if bytes.len() < *at_least_bytes {
                        self.carry.extend_from_slice(bytes);
                        return events;
                    }
                    let progress = handler.received(link, bytes);
                    events += 1;
                    *bytes = &bytes[progress.consumed_bytes..];
                    if let Next::Head { at_least_bytes } = progress.next {
                        assert!(
                            at_least_bytes > bytes.len(),
                            "a handler must use the bytes it asked for"
                        );
                    }
                    self.set(progress.next);
                }
                State::Land(landing) => {
                    let count = landing.fill_from(bytes);
                    *bytes = &bytes[count..];
                    if !landing.is_full() {
                        return events;
                    }
                    events += self.finish_landing(link, handler);
                }
                State::Discard {
                    bytes: left,
                    then_at_least_bytes,
                } => {
                    let count = usize::try_from(*left)
                        .unwrap_or(usize::MAX)
                        .min(bytes.len());
                    *bytes = &bytes[count..];
                    *left -= count as u64;
                    if *left > 0 {
                        return events;
                    }
                    self.state = State::Head {
                        at_least_bytes: *then_at_least_bytes,
                    };
                }
                State::Paused => {
                    self.carry.extend_from_slice(bytes);
                    return events;
                }
            }
        }
    }

    fn finish_landing<A>(&mut self, link: LinkId, handler: &mut dyn LinkHandler<A>) -> usize {
        match std::mem::replace(&mut self.state, State::Paused) {
            State::Land(landing) if landing.is_full() => {
                let next = handler.landed(link, landing, Outcome::Done);
                self.set(next);
                1
            }
            state => {
                self.state = state;
                0
            }
        }
    }
}

fn checked_head(at_least_bytes: usize) -> usize {
    assert!(
        (1..=HEAD_BYTES_MAX).contains(&at_least_bytes),
        "a head of {at_least_bytes} bytes cannot be asked for"
    );
    at_least_bytes
}
