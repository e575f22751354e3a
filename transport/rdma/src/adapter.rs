use std::fmt;
use std::os::fd::BorrowedFd;

use grpcxx_memory::DeviceMemory;
use grpcxx_transport::{Time, TransportError};

/// One opened device, as links use it: real verbs, or a simulation of them.
pub trait Adapter {
    /// A reliable connection's pair of queues. Its drop destroys it: afterwards the device touches
    /// none of the memory that was posted, and peers cannot read from here over it.
    type Queue: Queue;
    /// Registered memory. Its drop ends the registration.
    type Registration: Registration;

    /// Device and port, for logs: `rxe0 port 1`.
    fn name(&self) -> &str;

    /// What the device can do.
    fn limits(&self) -> AdapterLimits;

    /// Registers memory for reads by peers, for sends from it and for receives into it.
    ///
    /// # Errors
    /// The system refused: lockable memory or the device's table is used up, or there is no such
    /// memory.
    fn register(
        &self,
        start: usize,
        len_bytes: usize,
    ) -> Result<Self::Registration, TransportError>;

    /// Registers memory of another device for reads by peers, by its dma-buf.
    ///
    /// # Errors
    /// The memory has no dma-buf, or the library, the driver or the system cannot register one.
    fn register_device(
        &self,
        memory: &dyn DeviceMemory,
    ) -> Result<Self::Registration, TransportError>;

    /// A new pair of queues whose completions carry `tag`.
    ///
    /// # Errors
    /// The device has no more of them.
    fn open_queue(
        &mut self,
        tag: QueueTag,
        depth: QueueDepth,
    ) -> Result<Self::Queue, TransportError>;

    /// Takes completions, at most `limit`.
    fn poll(&mut self, now: Time, limit: usize, completions: &mut Vec<Completion>);

    /// The next fault of the device that no completion tells.
    fn next_fault(&mut self) -> Option<Fault>;

    /// Asks to be told of the next completion by [`Adapter::descriptors`]. What completed before
    /// may go untold, so a poll must follow.
    fn arm(&mut self);

    /// Descriptors that become readable with a completion after [`Adapter::arm`], and with a fault.
    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; 2];
}

/// Keys of registered memory.
pub trait Registration {
    /// For this side's own requests.
    fn local_key(&self) -> u32;
    /// For the peer's reads.
    fn remote_key(&self) -> u32;
}

/// Both queues of a reliable connection.
pub trait Queue {
    /// What a peer must know to connect to it.
    fn endpoint(&self) -> Endpoint;

    /// Connects to the queue of a peer.
    ///
    /// # Errors
    /// The device refuses the peer's address.
    fn connect(&mut self, peer: &Endpoint) -> Result<(), TransportError>;

    /// Posts memory for messages of the peer.
    ///
    /// # Safety
    /// Until the request completed, or the queue is dropped, the memory stays and nothing reads or
    /// writes it.
    ///
    /// # Errors
    /// The device refuses; some of the requests may have been posted.
    unsafe fn post_receives(&mut self, requests: &[Receive]) -> Result<(), TransportError>;

    /// Posts requests, with one doorbell.
    ///
    /// # Safety
    /// Until a request completed (or a later signalled one did), or the queue is dropped, memory
    /// that it sends from stays and is not written, memory that it reads into stays and is neither
    /// read nor written.
    ///
    /// # Errors
    /// The device refuses; some of the requests may have been posted.
    unsafe fn post_sends(&mut self, requests: &[Request]) -> Result<(), TransportError>;

    /// Stops the queue: what is posted completes in error, and the peer can read no more.
    fn stop(&mut self);
}

/// What a device can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterLimits {
    /// Most reads of one queue that are on their way at a time.
    pub reads_per_queue: u8,
    /// Most requests that one queue holds.
    pub requests_per_queue: u32,
    /// Most bytes that a send may carry in its request.
    pub inline_bytes: u32,
    /// Most bytes of one message or read.
    pub message_bytes: u32,
    /// Whether CPUs of this machine do the device's work, so that a thread which spins keeps it
    /// from it.
    pub is_software: bool,
}

/// How many requests a queue must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueDepth {
    /// Receives.
    pub receives: u32,
    /// Sends and reads.
    pub sends: u32,
}

/// Names a queue of one adapter; returned with its completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueTag {
    /// Slot of the link.
    pub slot: u32,
    /// Tells users of the slot apart.
    pub generation: u16,
}

/// Where a queue is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Number of the queue pair.
    pub queue: u32,
    /// First packet's sequence number.
    pub sequence: u32,
    /// Local identifier of the port, 0 where there is none.
    pub lid: u16,
    /// Largest packet, as the verbs number it: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Most reads that the side answers at a time.
    pub reads: u8,
    /// Global identifier of the port.
    pub gid: [u8; 16],
}

/// Memory for one message.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    /// Comes back in the completion.
    pub index: u16,
    /// First byte.
    pub address: usize,
    /// Length in bytes.
    pub len_bytes: u32,
    /// Local key of the memory.
    pub key: u32,
}

/// Something to do for the peer's sake.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Comes back in the completion.
    pub index: u16,
    /// Whether it completes visibly, also if it succeeds.
    pub signalled: bool,
    /// What to do.
    pub work: Work,
}

/// See [`Request`].
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// A message into memory that the peer has posted.
    Send {
        /// First byte.
        address: usize,
        /// Length in bytes.
        len_bytes: u32,
        /// Local key of the memory.
        key: u32,
        /// The device copies the bytes while the request is posted.
        inline: bool,
    },
    /// A write of no bytes, which uses up one posted receive at the peer and shows these 32 bits
    /// there.
    Immediate(u32),
    /// A read from the peer's memory.
    Read {
        /// First byte of the target.
        address: usize,
        /// Length in bytes.
        len_bytes: u32,
        /// Local key of the target.
        key: u32,
        /// First byte at the peer.
        remote_address: u64,
        /// The peer's key.
        remote_key: u32,
    },
}

/// A request that is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Whose it is.
    pub tag: QueueTag,
    /// Which kind of request, and how it went.
    pub event: CompletionEvent,
}

/// See [`Completion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionEvent {
    /// A message is there.
    Message {
        /// Of the receive.
        index: u16,
        /// Its length.
        len_bytes: u32,
    },
    /// 32 bits are there; the receive's memory is unchanged.
    Immediate {
        /// Of the receive.
        index: u16,
        /// The bits.
        bits: u32,
    },
    /// The oldest signalled request succeeded, with all posted before it.
    Done,
    /// A request failed; all later ones will.
    Failed(RequestFailure),
}

/// Why a request failed, by the number that verbs give it (`ibv_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestFailure(pub u32);

impl RequestFailure {
    /// The queue was stopped, or failed before.
    pub const FLUSHED: Self = Self(5);
    /// The peer refused access: its memory is not registered, or not any more.
    pub const REMOTE_ACCESS: Self = Self(10);
    /// The peer does not answer.
    pub const RETRY_EXCEEDED: Self = Self(12);
    /// The peer had no receive posted.
    pub const NOT_READY: Self = Self(13);
}

impl fmt::Display for RequestFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            1 => "local length error",
            2 => "local queue operation error",
            4 => "local protection error",
            5 => "work request flushed",
            8 => "bad response",
            9 => "remote invalid request",
            10 => "remote access error",
            11 => "remote operation error",
            12 => "transport retry counter exceeded",
            13 => "receiver-not-ready retry counter exceeded",
            _ => return write!(f, "work completion status {}", self.0),
        };
        f.write_str(text)
    }
}

/// Something that went wrong outside of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device is gone or unusable; every link of it ends.
    Device(String),
    /// A queue is unusable.
    Queue {
        /// Which.
        tag: QueueTag,
        /// Why.
        what: &'static str,
    },
    /// Completions of these queues were lost.
    Completions {
        /// The first tag that is affected cannot be told: all of the device's queues end.
        what: &'static str,
    },
}
