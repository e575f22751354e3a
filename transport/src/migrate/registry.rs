//! The links of a migrating transport, and what handshakes decide about them.

use std::collections::VecDeque;

use super::Medium;
use super::link::{Closing, MigratingLink, Question, Stage, broken};
use crate::{CloseReason, Frame, LinkHandler, LinkId, Migration, SlotTable, Time};

/// The links of a [`Migrating`](super::Migrating) transport.
pub struct LinkRegistry<M: Medium> {
    pub(super) links: SlotTable<MigratingLink<M>, LinkId>,
    by_base: Vec<Option<LinkId>>,
    /// Links for which the base transport has something to do, or which may be gone.
    pub(super) due: VecDeque<LinkId>,
    notes: VecDeque<(LinkId, Note)>,
    /// Links whose peer was asked, and some that have gone on since.
    pub(super) asked: Vec<LinkId>,
    /// Links that close once their held frames have left, and until when that is waited for.
    pub(super) closing: Vec<(LinkId, Time)>,
    pub(super) held_frames: usize,
    pub(super) records_in_flight: usize,
    pub(super) now: Time,
}

/// What became of a migration; the handler is told of it in the next turn.
enum Note {
    Migrated,
    Declined(String),
    FailedOver(String),
}

impl<M: Medium> LinkRegistry<M> {
    pub(super) fn new() -> Self {
        Self {
            links: SlotTable::unlimited(),
            by_base: Vec::new(),
            due: VecDeque::new(),
            notes: VecDeque::new(),
            asked: Vec::new(),
            closing: Vec::new(),
            held_frames: 0,
            records_in_flight: 0,
            now: Time::ZERO,
        }
    }

    /// The time of the present turn.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The link with this id, unless it is gone.
    pub fn link(&mut self, id: LinkId) -> Option<&mut MigratingLink<M>> {
        self.links.find_mut(id)
    }

    /// Notes that the peer of a link was asked.
    pub fn asked(&mut self, id: LinkId, handshake: M::Handshake) {
        if let Some(link) = self.links.find_mut(id) {
            link.stage = Stage::Base(handshake);
            link.question = Question::Asked { since: None };
            self.asked.push(id);
        }
    }

    /// Notes that a link stays where it is, and why.
    pub fn decline(&mut self, id: LinkId, reason: impl Into<String>) {
        if let Some(link) = self.links.find_mut(id) {
            link.question = Question::None;
        }
        self.notes.push_back((id, Note::Declined(reason.into())));
        self.due.push_back(id);
    }

    /// Notes that the medium failed under a link whose base transport still works.
    pub fn fail_over(&mut self, id: LinkId, reason: impl Into<String>) {
        self.notes.push_back((id, Note::FailedOver(reason.into())));
    }

    /// Sends a record on the base transport, behind the frames that it has accepted.
    pub fn send_record(&mut self, id: LinkId, record: &[u8]) {
        if let Some(link) = self.links.find_mut(id) {
            let mut frame = Box::new(Frame::new());
            frame.bytes_mut().extend_from_slice(record);
            link.record = Some(frame);
            self.due.push_back(id);
        }
    }

    /// Lets all frames of a link go to the medium from now on, behind those that the base transport
    /// has.
    pub fn migrate(&mut self, id: LinkId, mut migrated: M::Link, medium: &mut M) {
        let Some(link) = self.links.find_mut(id) else {
            return;
        };
        medium.hold(&mut migrated, link.base_frames > 0 || link.record.is_some());
        self.held_frames -= link.held.len();
        for frame in link.held.drain(..) {
            medium.push(&mut migrated, frame);
        }
        if let Some(closing) = link.closing {
            medium.close(&mut migrated, closing == Closing::Flush);
        }
        link.question = Question::None;
        link.stage = Stage::Migrated(migrated);
        self.notes.push_back((id, Note::Migrated));
    }

    /// Takes the peer's cut: how many bytes of the base transport its stream has before the
    /// medium's.
    pub fn cut(&mut self, id: LinkId, cut: u64, medium: &mut M) {
        if let Some(link) = self.links.find_mut(id) {
            link.cut(cut, medium);
        }
    }

    /// Ends a link whose ends no longer agree.
    pub fn fail(&mut self, id: LinkId, what: &str, medium: &mut M) {
        if let Some(link) = self.links.find_mut(id) {
            let reason = broken::<M>(what);
            link.over.get_or_insert_with(|| reason.clone());
            link.end(reason, medium);
            self.due.push_back(id);
        }
    }

    /// Takes the medium's end off a link, which is gone for this reason.
    pub fn leave(&mut self, id: LinkId, reason: CloseReason) -> Option<M::Link> {
        let link = self.links.find_mut(id)?;
        link.over.get_or_insert(reason);
        self.due.push_back(id);
        match std::mem::replace(&mut link.stage, Stage::Left) {
            Stage::Migrated(migrated) => Some(migrated),
            Stage::Base(_) | Stage::Left => None,
        }
    }

    /// Whether the next turn has nothing to do for a link.
    pub(super) fn is_settled(&self) -> bool {
        self.due.is_empty() && self.notes.is_empty()
    }

    pub(super) fn insert(&mut self, base: LinkId, mut link: MigratingLink<M>) -> LinkId {
        link.base = Some(base);
        let id = self.links.insert_with(|| link);
        let slot = base.slot as usize;
        if self.by_base.len() <= slot {
            self.by_base.resize(slot + 1, None);
        }
        self.by_base[slot] = Some(id);
        id
    }

    /// The link that began on a link of the base transport.
    pub(super) fn of_base(&self, base: LinkId) -> LinkId {
        let id = self.by_base.get(base.slot as usize).copied().flatten();
        id.expect("events come of links that were dialled or adopted here")
    }

    pub(super) fn forget_base(&mut self, base: LinkId) {
        self.by_base[base.slot as usize] = None;
    }

    /// Tells the handler what became of migrations.
    pub(super) fn tell<A>(&mut self, handler: &mut dyn LinkHandler<A>) {
        while let Some((id, note)) = self.notes.pop_front() {
            let news = match &note {
                Note::Migrated => Migration::Migrated(M::KIND),
                Note::Declined(reason) => Migration::Declined(reason),
                Note::FailedOver(reason) => Migration::FailedOver(reason),
            };
            handler.migration(id, news);
        }
    }
}
