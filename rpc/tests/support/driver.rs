//! What a shard does for a connection, over byte strings.

use grpcxx_memory::{Arena, BufferMut};
use grpcxx_rpc::{
    ClientConnection, Code, HeldTensor, ImmediateHit, Landings, PeerViolation, ServerConnection,
    Status, Tensor, TensorMeta, Text,
};
use grpcxx_transport::{
    CloseReason, Frame, Inbound, Landing, LinkHandler, LinkId, ListenerId, Migration, Next,
    Outcome, Progress, ReadTarget, Time,
};

/// Memory from the heap, within a budget.
#[derive(Debug)]
pub struct HeapLandings {
    /// Largest single piece.
    pub piece_bytes_max: usize,
    /// Bytes handed out so far.
    pub total_bytes: usize,
    /// How many of them were for messages.
    pub message_bytes: usize,
    /// Memory for announced bytes beyond those that have come, if it is not for all of them.
    pub window_bytes: Option<usize>,
    /// Where tensors land; the heap if there is none.
    pub arena: Option<Arena>,
    /// What was asked for, as (token, index).
    pub tensors: Vec<(u64, usize)>,
    /// Pieces asked for so far.
    pub pieces: usize,
    /// Whether small tensors may share memory.
    pub shares: bool,
    /// Lengths of the memory that they share.
    pub blocks: Vec<usize>,
    /// Tensors that are there when they are asked for.
    pub immediate_hits: Vec<Laid>,
}

/// A tensor that is there when it is asked for, until it is gone.
#[derive(Debug)]
pub struct Laid {
    pub step_id: i64,
    pub key: Text,
    pub tensor: Option<Tensor>,
    /// Whether its owner keeps it.
    pub is_kept: bool,
    /// Whether a connection has it and has to give it back.
    pub is_held: bool,
}

impl Default for HeapLandings {
    fn default() -> Self {
        Self {
            piece_bytes_max: 64 << 20,
            total_bytes: 0,
            message_bytes: 0,
            window_bytes: None,
            arena: None,
            tensors: Vec::new(),
            pieces: 0,
            shares: false,
            blocks: Vec::new(),
            immediate_hits: Vec::new(),
        }
    }
}

impl HeapLandings {
    fn allocate(&mut self, len: usize) -> Result<BufferMut, Status> {
        assert_ne!(len, 0, "memory of no bytes is never asked for");
        self.pieces += 1;
        if len > self.piece_bytes_max {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!("no memory for {len} bytes"),
            ));
        }
        self.total_bytes += len;
        Ok(match &mut self.arena {
            Some(arena) => arena.allocate(len).expect("the arena is large enough"),
            None => BufferMut::zeroed(len),
        })
    }

    fn announced(&mut self, len: usize, there_bytes: usize) -> Result<BufferMut, Status> {
        assert!(there_bytes <= len);
        let window_bytes = self.window_bytes.unwrap_or(len);
        self.allocate(len.min(there_bytes + window_bytes))
    }
}

impl Landings for HeapLandings {
    fn tensor(
        &mut self,
        token: u64,
        index: usize,
        meta: &TensorMeta,
        there_bytes: usize,
    ) -> Result<BufferMut, Status> {
        self.tensors.push((token, index));
        self.announced(usize::try_from(meta.data_bytes).unwrap(), there_bytes)
    }

    fn message(&mut self, len: usize, there_bytes: usize) -> Result<BufferMut, Status> {
        self.message_bytes += len;
        self.announced(len, there_bytes)
    }

    fn grow(&mut self, memory: BufferMut, whole_len: usize) -> Result<BufferMut, Status> {
        let window_bytes = self.window_bytes.expect("memory was for all bytes");
        let mut longer = self.allocate(whole_len.min(memory.len() + window_bytes))?;
        longer[..memory.len()].copy_from_slice(&memory);
        Ok(longer)
    }

    fn block(&mut self, _token: u64, len: usize) -> Option<BufferMut> {
        if !self.shares {
            return None;
        }
        self.blocks.push(len);
        self.allocate(len).ok()
    }

    fn known_key(&mut self, _: &[u8]) -> Option<Text> {
        None
    }

    fn immediate_hit(
        &mut self,
        step_id: i64,
        key: &Text,
        data_bytes_max: usize,
    ) -> Option<ImmediateHit<'_>> {
        let fits = |tensor: &Tensor| tensor.data.len() <= data_bytes_max;
        let number = self.immediate_hits.iter().position(|laid| {
            let is_it = laid.step_id == step_id && laid.key == *key && !laid.is_held;
            is_it && laid.tensor.as_ref().is_some_and(fits)
        })?;
        let laid = &mut self.immediate_hits[number];
        if laid.is_kept {
            return laid.tensor.take().map(ImmediateHit::Owned);
        }
        laid.is_held = true;
        let tensor = laid.tensor.as_ref()?;
        Some(ImmediateHit::Borrowed(
            HeldTensor::new(number as u32),
            tensor,
        ))
    }
}

/// What both connections have in common.
pub trait End {
    fn first_order(&self) -> Next;
    fn received(
        &mut self,
        now: Time,
        bytes: &[u8],
        landings: &mut HeapLandings,
    ) -> Result<Progress, PeerViolation>;
    fn landed(
        &mut self,
        now: Time,
        landing: Landing,
        landings: &mut HeapLandings,
    ) -> Result<Next, PeerViolation>;
    fn poll_frame(&mut self) -> Option<Box<Frame>>;
    fn sent(&mut self, frame: Box<Frame>, outcome: Outcome);
    fn closed(&mut self, status: &Status);
    fn timeout(&mut self, now: Time);
    fn poll_resume(&mut self) -> Option<Next>;
}

macro_rules! end {
    ($connection:ty, |$this:ident| $resume:expr) => {
        impl End for $connection {
            fn first_order(&self) -> Next {
                Self::first_order(self)
            }
            fn received(
                &mut self,
                now: Time,
                bytes: &[u8],
                landings: &mut HeapLandings,
            ) -> Result<Progress, PeerViolation> {
                self.handle_received(now, bytes, landings)
            }
            fn landed(
                &mut self,
                now: Time,
                landing: Landing,
                landings: &mut HeapLandings,
            ) -> Result<Next, PeerViolation> {
                self.handle_landed(now, landing, landings)
            }
            fn poll_frame(&mut self) -> Option<Box<Frame>> {
                Self::poll_frame(self)
            }
            fn sent(&mut self, frame: Box<Frame>, outcome: Outcome) {
                self.handle_sent(frame, outcome);
            }
            fn closed(&mut self, status: &Status) {
                self.handle_closed(status);
            }
            fn timeout(&mut self, now: Time) {
                self.handle_timeout(now);
            }
            fn poll_resume(&mut self) -> Option<Next> {
                let $this = self;
                $resume
            }
        }
    };
}

end!(ClientConnection, |_this| None);
end!(ServerConnection, |this| ServerConnection::poll_resume(this));

/// A connection and what its link would hold.
pub struct Port<E> {
    pub end: E,
    pub landings: HeapLandings,
    pub violation: Option<PeerViolation>,
    pub now: Time,
    inbound: Inbound,
}

pub type ClientEnd = Port<ClientConnection>;
pub type ServerEnd = Port<ServerConnection>;

struct Handler<'a, E> {
    end: &'a mut E,
    landings: &'a mut HeapLandings,
    violation: &'a mut Option<PeerViolation>,
    now: Time,
}

impl<E: End> Port<E> {
    pub fn new(end: E) -> Self {
        let inbound = Inbound::new(end.first_order());
        Self {
            end,
            landings: HeapLandings::default(),
            violation: None,
            now: Time::ZERO,
            inbound,
        }
    }

    /// Shows bytes, as one read of a link would.
    pub fn offer(&mut self, mut bytes: &[u8]) {
        if self.violation.is_some() {
            return;
        }
        if let ReadTarget::Direct(memory) = self.inbound.target() {
            let count = memory.len().min(bytes.len());
            memory[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            let (inbound, mut handler) = self.split();
            inbound.landed_direct(LINK, count, &mut handler);
        }
        if self.violation.is_none() {
            let (inbound, mut handler) = self.split();
            inbound.offer(LINK, bytes, &mut handler);
        }
    }

    /// Shows bytes and returns the violation that they must be.
    pub fn offer_violation(&mut self, bytes: &[u8]) -> PeerViolation {
        self.offer(bytes);
        self.violation
            .clone()
            .expect("the bytes break the protocol")
    }

    /// Goes on after a pause, if the connection wants to.
    pub fn resume(&mut self) -> bool {
        let Some(next) = self.end.poll_resume() else {
            return false;
        };
        self.inbound.resume(next).expect("the link is paused");
        self.offer(&[]);
        true
    }

    /// Takes all frames, as sent.
    pub fn drain(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(frame) = self.end.poll_frame() {
            bytes.extend(frame_bytes(&frame));
            self.end.sent(frame, Outcome::Done);
        }
        bytes
    }

    /// Takes one frame, as sent.
    pub fn drain_one(&mut self) -> Option<Vec<u8>> {
        let frame = self.end.poll_frame()?;
        let bytes = frame_bytes(&frame);
        self.end.sent(frame, Outcome::Done);
        Some(bytes)
    }

    /// Loses the link.
    pub fn close(&mut self, status: &Status) {
        let (inbound, mut handler) = self.split();
        inbound.lose(LINK, &mut handler);
        self.end.closed(status);
    }

    fn split(&mut self) -> (&mut Inbound, Handler<'_, E>) {
        (
            &mut self.inbound,
            Handler {
                end: &mut self.end,
                landings: &mut self.landings,
                violation: &mut self.violation,
                now: self.now,
            },
        )
    }
}

impl<E: End> LinkHandler<()> for Handler<'_, E> {
    fn accepted(&mut self, _: ListenerId, _: std::net::SocketAddr, (): ()) {}

    fn connected(&mut self, _: LinkId) -> Next {
        self.end.first_order()
    }

    fn received(&mut self, _: LinkId, bytes: &[u8]) -> Progress {
        if self.violation.is_none() {
            match self.end.received(self.now, bytes, self.landings) {
                Ok(progress) => return progress,
                Err(violation) => *self.violation = Some(violation),
            }
        }
        Progress {
            consumed_bytes: bytes.len(),
            next: Next::Pause,
        }
    }

    fn landed(&mut self, _: LinkId, landing: Landing, outcome: Outcome) -> Next {
        if outcome == Outcome::Done && self.violation.is_none() {
            match self.end.landed(self.now, landing, self.landings) {
                Ok(next) => return next,
                Err(violation) => *self.violation = Some(violation),
            }
        }
        Next::Pause
    }

    fn sent(&mut self, _: LinkId, _: Box<Frame>, _: Outcome) {}

    fn closed(&mut self, _: LinkId, _: &CloseReason) {}

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

/// The bytes of a frame as they leave.
pub fn frame_bytes(frame: &Frame) -> Vec<u8> {
    frame.segments().collect::<Vec<_>>().concat()
}

/// Carries everything that waits from one port to the other, in pieces of `piece_bytes`.
pub fn carry<A: End, B: End>(from: &mut Port<A>, to: &mut Port<B>, piece_bytes: usize) {
    for piece in from.drain().chunks(piece_bytes) {
        to.offer(piece);
    }
}

const LINK: LinkId = LinkId {
    slot: 0,
    generation: 0,
};
