use grpcxx_memory::Buffer;

use crate::Status;
use crate::connection::calls::{Call, CallState, Expected};
use crate::connection::client::ClientConnection;
use crate::connection::encode;
use crate::connection::limits::STAR_RECORDS_MAX;
use crate::wire::{Announcement, Features, ShapeForms};

impl ClientConnection {
    /// Features that the peer has announced; `None` as long as its answer is missing.
    pub fn peer_features(&self) -> Option<Features> {
        self.peer
    }

    /// The peer's `GetStatusResponse` with its announcement, serialized.
    pub fn peer_status(&self) -> Option<&Buffer> {
        self.peer_status.as_ref()
    }

    /// What the peer offers for the link to move to another medium, once.
    pub fn take_offer(&mut self) -> Option<Vec<u8>> {
        self.offer.take()
    }

    /// Says whether the link lends payload of shared arenas to the peer, so that nothing waits for
    /// it.
    pub fn set_lends(&mut self, lends: bool) {
        self.outgoing.cutter.keep_shared(lends);
    }

    /// Queues the announcement that begins the connection.
    pub(crate) fn announce(&mut self) {
        let announcement = Announcement {
            features: self.announced,
            nonce: self.proving.nonce(),
            task: self.task.clone(),
            ..Announcement::default()
        };
        self.announce_first(&announcement);
    }

    /// Queues an announcement before all frames that wait.
    pub(crate) fn announce_first(&mut self, announcement: &Announcement) {
        let id = self.calls.insert_with(|| Call {
            token: 0,
            expected: Expected::Announcement,
            state: CallState::Queued,
            is_deadline_sent: false,
            shares_memory: false,
        });
        let mut frame = self.outgoing.empty_frame();
        encode::announcement(&mut frame, id.raw(), announcement);
        frame.token = id.raw();
        self.outgoing.unpop(frame);
    }

    /// Slots held by announcements, as long as their answers are missing.
    pub(crate) fn announcement_calls(&self) -> usize {
        let first = usize::from(!self.announced.is_empty() && self.peer.is_none());
        first + self.proving.slots()
    }

    /// Whether both ends know a medium that the connection may move to.
    pub(crate) fn may_move(&self) -> bool {
        self.common().intersects(Features::MEDIA)
    }

    #[inline]
    pub(crate) fn has(&self, feature: Features) -> bool {
        self.common().contains(feature)
    }

    /// Whether the peer may use a feature in what it sends. It may know of our announcement before
    /// we know of its own, or without our ever knowing: where there was no memory for its answer.
    pub(crate) fn takes(&self, feature: Features) -> bool {
        let said = self.peer.filter(|_| self.peer_status.is_some());
        self.announced.contains(feature) && said.is_none_or(|peer| peer.contains(feature))
    }

    /// How many tensors the peer may send in one answer.
    pub(crate) fn records_taken(&self) -> usize {
        match self.takes(Features::MANY_TENSORS) {
            true => self.reader.limits.records,
            false => self.reader.limits.records.min(STAR_RECORDS_MAX),
        }
    }

    /// In which forms the peer may send shapes.
    pub(crate) fn shapes_taken(&self) -> ShapeForms {
        if self.takes(Features::PACKED_SHAPES) {
            ShapeForms::Packed
        } else {
            ShapeForms::Star
        }
    }

    /// Why a call cannot be made that needs what the peer has not announced: it may have failed to
    /// say so, which is another matter. `call` is what needs it, `unknown` the reason otherwise.
    pub(crate) fn lacking(&self, call: &str, feature: &str, unknown: Status) -> Status {
        let Some(failed) = &self.announcement_failed else {
            return unknown;
        };
        let text = format!(
            "{call}, and the peer did not say whether it knows {feature}: {}",
            failed.message
        );
        Status::new(failed.code, text).because(failed.reason)
    }

    /// What both ends have announced.
    #[inline]
    pub(crate) fn common(&self) -> Features {
        self.announced & self.peer.unwrap_or_default()
    }
}
