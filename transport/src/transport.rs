use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::task::Waker;
use std::time::Duration;

use crate::{Ends, Frame, Landing, LinkId, ListenerId, MediumKind, Next, PeerName, Progress, Time};

/// Most bytes a [`Next::Head`] may ask for; links keep that much for a head that arrives in pieces.
pub const HEAD_BYTES_MAX: usize = 256;

/// Links of one kind, owned and driven by one shard.
pub trait Transport {
    /// An incoming connection before a shard has taken it; may cross threads.
    type Accepted: Send + 'static;

    /// Kind and driver, for logs and metrics: `tcp/io_uring`.
    fn name(&self) -> &'static str;

    /// Starts to accept connections on `address`; port 0 takes a free one. Returns the address in
    /// use.
    ///
    /// # Errors
    /// The address cannot be used.
    fn listen(&mut self, address: SocketAddr) -> Result<(ListenerId, SocketAddr), TransportError>;

    /// Stops accepting on a listener; established links stay.
    fn unlisten(&mut self, listener: ListenerId);

    /// Makes a link of an accepted connection.
    ///
    /// # Errors
    /// The system refused, or the limit of links is reached.
    fn adopt(&mut self, accepted: Self::Accepted, next: Next) -> Result<LinkId, TransportError>;

    /// Starts to dial. [`LinkHandler::connected`] or [`LinkHandler::closed`] tells how it went.
    ///
    /// # Errors
    /// The dial could not even be started.
    fn connect(&mut self, peer: SocketAddr) -> Result<LinkId, TransportError>;

    /// Queues a frame behind those accepted before. Allowed from [`LinkHandler::connected`] on.
    ///
    /// # Errors
    /// The frame comes back: the queue is full, or the link is not open.
    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>>;

    /// Ends a [`Next::Pause`].
    ///
    /// # Errors
    /// The order comes back: the link is not open, or not paused.
    fn resume(&mut self, link: LinkId, next: Next) -> Result<(), Refused<Next>>;

    /// Ends the stream of this side, and goes on taking what the peer sends: frames already
    /// accepted leave, then the peer reads the end of the stream. A landing under way comes back as
    /// [`Outcome::Lost`], the rest of its bytes is dropped, and what follows is shown. A later
    /// [`Transport::close`] with `flush` waits until what is to be dropped has come, however long
    /// that takes.
    ///
    /// On a medium without such half-closed links this closes the link with `flush`. Unknown and
    /// closing links are ignored.
    fn end_stream(&mut self, link: LinkId);

    /// Closes a link. With `flush`, frames already accepted leave first, within bounded time;
    /// nothing more is read. [`LinkHandler::closed`] follows in a later turn. Unknown and closing
    /// links are ignored.
    fn close(&mut self, link: LinkId, flush: bool);

    /// Does a bounded amount of work and reports what happened. Returns the number of events.
    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<Self::Accepted>) -> usize;

    /// Lets frames that were queued since the last turn leave now, where that is earlier than in
    /// the next one. Reports nothing.
    fn submit(&mut self);

    /// Frames accepted and not yet reported as sent, over all links.
    fn frames_in_flight(&self) -> usize;

    /// How far a link has come with reading. `None` if it reads nothing: it is not open, or
    /// closing.
    fn reading(&mut self, link: LinkId) -> Option<Reading>;

    /// The two addresses of a link's connection; `None` if the link is not connected, or where this
    /// transport knows no addresses.
    fn ends(&mut self, _: LinkId) -> Option<Ends> {
        None
    }

    /// What the peer of an adopted link needs to let it migrate; `None` where this transport has no
    /// other medium.
    fn offer(&mut self, link: LinkId) -> Option<Vec<u8>>;

    /// Lets a dialled link migrate to a medium of its peer's [`Transport::offer`]. The link's
    /// stream goes on in any case: where the offer cannot be taken, on the medium that it has.
    fn upgrade(&mut self, link: LinkId, offer: &[u8]);
}

/// How far a link has come with reading, for whoever wants to know whether its peer goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Bytes that have come on this medium, used or not. Fewer than before means another medium.
    pub taken_bytes: u64,
    /// Whether something has begun that the next bytes go on with: a head, payload, or what is
    /// dropped.
    pub is_begun: bool,
    /// Whether the link waits for bytes of its peer: it is not paused, and does not fetch them
    /// itself.
    pub asks: bool,
}

/// A transport whose thread can sleep until something happens.
pub trait Park: Transport {
    /// Sleeps until there may be work, the waker was used, or `timeout` is over.
    ///
    /// # Errors
    /// The system call failed.
    fn park(&mut self, timeout: Option<Duration>) -> Result<(), TransportError>;

    /// Prepares for sleep elsewhere: after this call the returned descriptor becomes readable when
    /// there may be work or the waker was used. `None` if there is work already.
    fn park_fd(&mut self) -> Option<BorrowedFd<'_>>;

    /// Does as [`Park::park_fd`] does, for who has only handed frames over since the last turn and
    /// does not wait to hear that they have left: the next turn, whenever it is, may tell.
    fn park_fd_ahead(&mut self) -> Option<BorrowedFd<'_>> {
        self.park_fd()
    }

    /// How long a sleep elsewhere may last because of what only a clock will tell, and the
    /// descriptor does not: an answer that is late, a handshake's time. [`Park::park`] keeps to it
    /// by itself.
    fn patience(&mut self) -> Option<Duration>;

    /// Ends the preparation of [`Park::park_fd`].
    fn unpark(&mut self);

    /// Ends a [`Park::park`], present or next, from any thread.
    fn waker(&self) -> Waker;

    /// From now on a descriptor that is readable ends each sleep too. Nothing is taken from it.
    ///
    /// # Errors
    /// The system refused.
    fn watch(&mut self, companion: BorrowedFd<'_>) -> Result<(), TransportError>;
}

/// Takes the events of links. `A` is [`Transport::Accepted`].
pub trait LinkHandler<A> {
    /// A peer dialled a listener. Dropping the value closes the connection.
    fn accepted(&mut self, listener: ListenerId, peer: SocketAddr, accepted: A);

    /// A dial succeeded; says what to do with the first bytes.
    fn connected(&mut self, link: LinkId) -> Next;

    /// Bytes of head are there, at least as many as were asked for. What is not consumed is dealt
    /// with as the answer says; a further [`Next::Head`] must ask for more than what is left over.
    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress;

    /// A landing comes back, full if the outcome is [`Outcome::Done`]. The answer counts only then.
    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next;

    /// A frame comes back: its bytes have left this process, or never will.
    fn sent(&mut self, link: LinkId, frame: Box<Frame>, outcome: Outcome);

    /// The link is gone; nothing follows.
    fn closed(&mut self, link: LinkId, reason: &CloseReason);

    /// The peer of a link has proven by a certificate that it belongs to the cluster, and perhaps
    /// which task it is. Comes before [`LinkHandler::connected`], and before the first bytes. Not
    /// counted as an event.
    fn proven(&mut self, link: LinkId, name: Option<&PeerName>);

    /// What became of the migration of a link. Not counted as an event.
    fn migration(&mut self, link: LinkId, news: Migration<'_>);
}

/// What became of the migration of a link to another medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Migration<'a> {
    /// The stream goes on over this medium.
    Migrated(MediumKind),
    /// The link stays where it is, for this reason.
    Declined(&'a str),
    /// The medium failed while the base transport still works: the link ends, for this reason, and
    /// a new dial begins on the base transport.
    FailedOver(&'a str),
}

/// How an accepted operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did what was asked.
    Done,
    /// The link died first.
    Lost,
}

/// Why a link is gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// This side closed it.
    Local,
    /// The peer closed it.
    EndOfStream,
    /// It failed, or could not be established.
    Failed(TransportError),
    /// One end does not accept what the other has proven, or has not proven. To dial again is of no
    /// use before that changes.
    Untrusted(TransportError),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("closed by this side"),
            Self::EndOfStream => f.write_str("closed by the peer"),
            Self::Failed(error) | Self::Untrusted(error) => error.fmt(f),
        }
    }
}

/// Bounds of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkLimits {
    /// Most frames accepted and not yet sent.
    pub queued_frames: usize,
    /// Most links of one transport.
    pub links: usize,
}

impl Default for LinkLimits {
    fn default() -> Self {
        Self {
            queued_frames: 1024,
            links: 65_536,
        }
    }
}

/// A value that was not accepted, and why.
#[derive(Debug)]
pub struct Refused<T> {
    /// The value, unchanged.
    pub value: T,
    /// Why it came back.
    pub refusal: Refusal,
}

/// Why a value was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue is at its limit; try again after a [`LinkHandler::sent`].
    #[error("the queue is full")]
    Full,
    /// There is no such open link.
    #[error("the link is not open")]
    NotOpen,
    /// The link's state does not allow it.
    #[error("not allowed in this state")]
    WrongState,
}

/// A system call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation}: {message}")]
pub struct TransportError {
    /// What was attempted, with its object: `bind 127.0.0.1:80`.
    pub operation: String,
    /// The error number of the system, 0 if none.
    pub errno: i32,
    /// The error in words.
    pub message: String,
}

impl TransportError {
    /// An error of the system, with what was attempted.
    pub fn from_io(operation: impl Into<String>, error: &std::io::Error) -> Self {
        Self {
            operation: operation.into(),
            errno: error.raw_os_error().unwrap_or(0),
            message: error.to_string(),
        }
    }
}
