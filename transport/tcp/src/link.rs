use std::net::SocketAddr;

use grpcxx_memory::OwnFd;
use grpcxx_transport::{CloseReason, Inbound, Outbound, ReadTarget, Time};
use rustix::io::Errno;

use crate::cpu_sharing::CpuSharing;
use crate::socket::{self, system_error};
use crate::sys::set_wake_bytes;

/// What both drivers know of a link; `D` is what one driver knows in addition.
#[derive(Debug)]
pub(crate) struct Link<D> {
    pub(crate) socket: OwnFd,
    pub(crate) peer: SocketAddr,
    pub(crate) phase: Phase,
    /// The peer is on this host.
    is_near: bool,
    /// Present once the link is established.
    pub(crate) inbound: Option<Inbound>,
    pub(crate) outbound: Outbound,
    /// `inbound` is new or its pause has ended: it must be offered bytes, or the news that there
    /// are none.
    pub(crate) resumed: bool,
    /// Whether the work list has the link.
    pub(crate) queued: bool,
    /// Whether it is asked for heads without being on the work list.
    pub(crate) is_hot: bool,
    /// Most bytes that the next read through staging memory takes.
    pub(crate) stage_bytes_max: usize,
    /// How many bytes the system waits for before it calls the socket readable.
    wake_bytes: usize,
    pub(crate) io: D,
}

/// The life of a link. `Ended` is followed by its removal, once the kernel has let go of its
/// memory.
#[derive(Debug)]
pub(crate) enum Phase {
    /// The dial is on its way.
    Dialling,
    /// Bytes flow both ways.
    Open,
    /// Accepted frames leave, and behind them the end of the stream; bytes of the peer are still
    /// taken.
    Finishing {
        /// Whether the landing that was under way is back.
        is_landing_back: bool,
        /// Whether the system knows that the stream has ended.
        is_told: bool,
        /// Whether the link ends once nothing is left to be dropped.
        ends: bool,
    },
    /// Accepted frames leave; nothing is read.
    Flushing {
        /// When patience ends; set in the turn after the close.
        until: Option<Time>,
    },
    /// All frames left this process; waits until the peer's system has them, so that closing cannot
    /// take them back.
    Lingering {
        /// When patience ends.
        until: Time,
    },
    /// Over.
    Ended(CloseReason),
}

impl Phase {
    /// Whether bytes of the peer are taken.
    pub(crate) fn reads(&self) -> bool {
        matches!(self, Self::Open | Self::Finishing { .. })
    }
}

impl<D> Link<D> {
    pub(crate) fn new(socket: OwnFd, peer: SocketAddr, inbound: Option<Inbound>, io: D) -> Self {
        Self {
            is_near: socket::is_near(&socket, peer),
            socket,
            peer,
            phase: inbound.as_ref().map_or(Phase::Dialling, |_| Phase::Open),
            inbound,
            outbound: Outbound::default(),
            resumed: true,
            queued: false,
            is_hot: false,
            stage_bytes_max: STAGE_BYTES_FIRST,
            wake_bytes: 1,
            io,
        }
    }

    /// Ends the link, unless that has happened already.
    pub(crate) fn end(&mut self, reason: CloseReason) {
        if !self.is_ended() {
            self.phase = Phase::Ended(reason);
        }
    }

    /// Ends the link because the system refused `operation` on it.
    pub(crate) fn fail(&mut self, operation: &str, errno: Errno) {
        if !self.is_ended() {
            let operation = format!("{operation} {}", self.peer);
            self.end(CloseReason::Failed(system_error(operation, errno)));
        }
    }

    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended(_))
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    /// Whether frames that are queued shall still leave.
    pub(crate) fn sends(&self) -> bool {
        let phase_sends = match self.phase {
            Phase::Open | Phase::Finishing { .. } | Phase::Flushing { .. } => true,
            Phase::Dialling | Phase::Lingering { .. } | Phase::Ended(_) => false,
        };
        phase_sends && !self.outbound.is_empty()
    }

    /// Whether the landing is to come back though the link goes on.
    pub(crate) fn wants_landing_back(&self) -> bool {
        matches!(
            self.phase,
            Phase::Finishing {
                is_landing_back: false,
                ..
            }
        )
    }

    /// Prepares to wait for bytes. A wait for payload does not end with each packet: a wake-up
    /// costs both ends more than the bytes of some packets.
    pub(crate) fn prepare_to_wait(&mut self, cpu_sharing: &mut CpuSharing) {
        let wanted_bytes = match self.inbound.as_mut().map(Inbound::target) {
            Some(ReadTarget::Direct(target)) => target.len(),
            Some(ReadTarget::Staging | ReadTarget::Paused) | None => 0,
        };
        let wake_bytes = wanted_bytes.clamp(1, WAKE_BYTES_MAX);
        if wake_bytes != self.wake_bytes {
            self.wake_bytes = wake_bytes;
            set_wake_bytes(&self.socket, wake_bytes);
        }
        if wake_bytes == WAKE_BYTES_MAX && self.is_near {
            cpu_sharing.avoid(&self.socket);
        }
    }

    /// Learns from a staged read: whoever fills it gets a longer one next time.
    pub(crate) fn note_staged(&mut self, bytes: usize) {
        if bytes >= self.stage_bytes_max {
            self.stage_bytes_max = self.stage_bytes_max.saturating_mul(4);
        }
    }

    /// Learns from a direct read that left `missing_bytes` bytes of its payload: where one large
    /// payload was, the next is likely, and bytes of it that a long staged read would take along
    /// with its head would have to be copied.
    pub(crate) fn note_direct(&mut self, missing_bytes: usize) {
        self.stage_bytes_max = missing_bytes + STAGE_BYTES_BEFORE_PAYLOAD;
    }
}

/// Length of the first staged read of a link, about which nothing is known yet.
const STAGE_BYTES_FIRST: usize = 4096;

/// First length of a staged read behind a large payload: room for a head, and little more.
const STAGE_BYTES_BEFORE_PAYLOAD: usize = 512;

/// Bytes of a payload that are worth a wake-up before all are there.
const WAKE_BYTES_MAX: usize = 256 << 10;
