use std::collections::VecDeque;

use grpcxx_transport::Frame;

use crate::wire::{Malformed, MessageWriter, Offer};

/// Frames on their way out of one link: packed into messages, or offered to be read.
///
/// Small pieces are copied into messages, as many of them together as fit. A piece that is large
/// enough, and whose memory the device knows, is offered; its frame comes back when the peer has
/// read it. Frames come back in order.
#[derive(Debug)]
pub(crate) struct Outbound<L> {
    frames: VecDeque<Queued>,
    /// The first of `frames` that is not wholly packed, and how far it has come.
    packing: usize,
    segment: usize,
    offset_bytes: usize,
    /// Offers that the peer has not released, oldest first, with what keeps their memory
    /// registered.
    offers: VecDeque<L>,
    /// Frames that came back, so that an offer's frame is found.
    popped: u64,
    /// The frame of each offer, counted from the first frame of the link.
    offer_frames: VecDeque<u64>,
    end: End,
}

#[derive(Debug)]
struct Queued {
    frame: Box<Frame>,
    offers_open: u32,
}

/// How far the end of the stream has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// It follows the last frame.
    Wanted,
    Packed,
}

/// A piece that was lent to the device.
#[derive(Debug)]
pub(crate) struct Loaned<L> {
    /// Where the device finds it.
    pub(crate) address: u64,
    /// The key that the peer needs.
    pub(crate) key: u32,
    /// Keeps the registration.
    pub(crate) lease: L,
}

impl<L> Outbound<L> {
    pub(crate) fn new() -> Self {
        Self {
            frames: VecDeque::new(),
            packing: 0,
            segment: 0,
            offset_bytes: 0,
            offers: VecDeque::new(),
            popped: 0,
            offer_frames: VecDeque::new(),
            end: End::Open,
        }
    }

    /// Frames that did not come back yet.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    pub(crate) fn push(&mut self, frame: Box<Frame>) {
        debug_assert_eq!(self.end, End::Open, "no frame follows the end");
        self.frames.push_back(Queued {
            frame,
            offers_open: 0,
        });
    }

    /// Lets the end of the stream follow the last frame.
    pub(crate) fn end(&mut self) {
        if self.end == End::Open {
            self.end = End::Wanted;
        }
    }

    /// Whether there is something to pack.
    pub(crate) fn has_unpacked(&self) -> bool {
        self.packing < self.frames.len() || self.end == End::Wanted
    }

    /// Whether all frames and the end of the stream are packed and released.
    pub(crate) fn is_flushed(&self) -> bool {
        self.end == End::Packed && self.frames.is_empty()
    }

    /// Packs as much as fits into one message. Pieces of at least `offer_bytes_min` go to `lend`,
    /// which says whether the device can lend them to the peer; `None` means a copy. Says whether
    /// anything was packed, and stops where too many offers are open.
    pub(crate) fn pack(
        &mut self,
        writer: &mut MessageWriter<'_>,
        offer_bytes_min: usize,
        mut lend: impl FnMut(&Frame, usize) -> Option<Loaned<L>>,
    ) -> bool {
        let mut packed = false;
        while let Some(queued) = self.frames.get_mut(self.packing) {
            if self.segment == queued.frame.segment_count() {
                self.packing += 1;
                (self.segment, self.offset_bytes) = (0, 0);
                packed = true;
                continue;
            }
            let device = queued.frame.device_payload(self.segment);
            let len_bytes = match device {
                Some(payload) => payload.len(),
                None => queued.frame.segment(self.segment).len(),
            };
            if len_bytes == self.offset_bytes {
                self.segment += 1;
                self.offset_bytes = 0;
                continue;
            }
            if self.offset_bytes == 0 && len_bytes >= offer_bytes_min {
                if writer.room_bytes() < OFFER_ROOM_BYTES || self.offers.len() >= OFFERS_OPEN_MAX {
                    return packed;
                }
                if let Some(lent) = lend(&queued.frame, self.segment) {
                    let has_room = writer.offer(Offer {
                        address: lent.address,
                        len_bytes: len_bytes as u64,
                        key: lent.key,
                    });
                    debug_assert!(has_room, "the room was looked at before");
                    queued.offers_open += 1;
                    self.offers.push_back(lent.lease);
                    self.offer_frames
                        .push_back(self.popped + self.packing as u64);
                    self.segment += 1;
                    packed = true;
                    continue;
                }
            }
            let room_bytes = writer.room_bytes();
            if room_bytes == 0 {
                return packed;
            }
            let piece = &queued.frame.segment(self.segment)[self.offset_bytes..];
            let count = piece.len().min(room_bytes);
            writer.bytes(&piece[..count]);
            self.offset_bytes += count;
            packed = true;
        }
        if self.end == End::Wanted && writer.end() {
            self.end = End::Packed;
            packed = true;
        }
        packed
    }

    /// Takes the peer's word that the oldest `count` offers were read; each lease goes to
    /// `give_back`.
    ///
    /// # Errors
    /// There are not so many.
    pub(crate) fn release(
        &mut self,
        count: u16,
        mut give_back: impl FnMut(L),
    ) -> Result<(), Malformed> {
        for _ in 0..count {
            let (Some(lease), Some(frame)) =
                (self.offers.pop_front(), self.offer_frames.pop_front())
            else {
                return Err(Malformed("a release of what was not offered"));
            };
            give_back(lease);
            let index = (frame - self.popped) as usize;
            self.frames[index].offers_open -= 1;
        }
        Ok(())
    }

    /// The next frame that is packed and released.
    pub(crate) fn pop_done(&mut self) -> Option<Box<Frame>> {
        let front = self.frames.front()?;
        if self.packing == 0 || front.offers_open > 0 {
            return None;
        }
        self.packing -= 1;
        self.pop()
    }

    /// Whether [`Outbound::pop_done`] has a frame.
    pub(crate) fn has_done(&self) -> bool {
        self.packing > 0 && (self.frames.front()).is_some_and(|queued| queued.offers_open == 0)
    }

    /// All leases, for a link that is over.
    pub(crate) fn take_leases(&mut self) -> impl Iterator<Item = L> {
        self.offer_frames.clear();
        self.offers.drain(..)
    }

    /// The next frame of a link that is over and whose leases were taken, and whether it has left:
    /// the peer knows of all its pieces then, and may have read them without a word.
    pub(crate) fn pop_lost(&mut self) -> Option<(Box<Frame>, bool)> {
        debug_assert!(self.offers.is_empty(), "offers end before their frames");
        let has_left = self.packing > 0;
        self.packing = self.packing.saturating_sub(1);
        Some((self.pop()?, has_left))
    }

    fn pop(&mut self) -> Option<Box<Frame>> {
        let queued = self.frames.pop_front()?;
        self.popped += 1;
        Some(queued.frame)
    }
}

/// Offers that may be open on one link: what one grant can release.
pub(crate) const OFFERS_OPEN_MAX: usize = 1024;

/// Room that an offer needs beside its element head.
const OFFER_ROOM_BYTES: usize = 20;

#[cfg(test)]
mod tests {
    use grpcxx_memory::Buffer;

    use super::*;
    use crate::wire::{Element, Grants, HEADER_BYTES, element_at};

    fn frame(token: u64, head: usize, payload: usize) -> Box<Frame> {
        let mut frame = Box::new(Frame::new());
        frame.token = token;
        frame.bytes_mut().extend(vec![token as u8; head]);
        frame.attach(Buffer::from(vec![token as u8 + 100; payload]));
        frame
    }

    /// What one message says, offers with their length.
    fn pack(outbound: &mut Outbound<u64>, slot_bytes: usize) -> (Vec<u8>, Vec<u64>, bool) {
        let mut slot = vec![0; slot_bytes];
        let mut writer = MessageWriter::new(&mut slot);
        outbound.pack(&mut writer, 1000, |frame, segment| {
            (frame.segment(segment).len() != 1500).then_some(Loaned {
                address: frame.segment(segment).as_ptr().expose_provenance() as u64,
                key: 9,
                lease: frame.token,
            })
        });
        let len = writer.finish(Grants::default());
        let (mut bytes, mut offers, mut ended) = (Vec::new(), Vec::new(), false);
        let mut at = HEADER_BYTES;
        while let Some((element, next)) = element_at(&slot[..len], at).unwrap() {
            match element {
                Element::Bytes(part) => bytes.extend_from_slice(part),
                Element::Offer(offer) => offers.push(offer.len_bytes),
                Element::End => ended = true,
            }
            at = next;
        }
        (bytes, offers, ended)
    }

    fn done(outbound: &mut Outbound<u64>) -> Vec<u64> {
        std::iter::from_fn(|| outbound.pop_done().map(|frame| frame.token)).collect()
    }

    #[test]
    fn small_frames_share_a_message_and_large_payload_is_offered() {
        let mut outbound = Outbound::new();
        outbound.push(frame(1, 10, 20));
        outbound.push(frame(2, 10, 5000));
        outbound.push(frame(3, 10, 0));
        let (bytes, offers, _) = pack(&mut outbound, 4096);
        assert_eq!((bytes.len(), offers), (50, vec![5000]));
        assert!(outbound.has_done() && !outbound.has_unpacked());
        assert_eq!(done(&mut outbound), [1]);
        let mut back = Vec::new();
        outbound.release(1, |lease| back.push(lease)).unwrap();
        assert_eq!(back, [2]);
        assert_eq!(done(&mut outbound), [2, 3]);
        assert!(outbound.release(1, |_| ()).is_err());
    }

    #[test]
    fn what_cannot_be_lent_is_copied_over_several_messages() {
        let mut outbound = Outbound::new();
        outbound.push(frame(1, 10, 1500));
        outbound.push(frame(2, 0, 3000));
        let mut all = Vec::new();
        let mut offers = Vec::new();
        while outbound.has_unpacked() {
            let (bytes, offered, _) = pack(&mut outbound, 128);
            assert!(!bytes.is_empty() || !offered.is_empty());
            all.extend(bytes);
            offers.extend(offered);
        }
        assert_eq!((all.len(), offers), (1510, vec![3000]));
        assert_eq!(done(&mut outbound), [1]);
    }

    #[test]
    fn the_end_follows_the_last_frame() {
        let mut outbound = Outbound::new();
        outbound.push(frame(1, 300, 0));
        outbound.end();
        let (_, _, ended) = pack(&mut outbound, 128);
        assert!(!ended && outbound.has_unpacked());
        for _ in 0..3 {
            if pack(&mut outbound, 128).2 {
                assert!(!outbound.is_flushed(), "the frame is still here");
                assert_eq!(done(&mut outbound), [1]);
                assert!(outbound.is_flushed() && !outbound.has_unpacked());
                return;
            }
        }
        panic!("the end did not come");
    }

    #[test]
    fn frames_without_bytes_are_done_once_packed() {
        let mut outbound = Outbound::new();
        outbound.push(frame(1, 0, 0));
        assert!(outbound.has_unpacked() && !outbound.has_done());
        assert_eq!(pack(&mut outbound, 128).0, []);
        assert_eq!(done(&mut outbound), [1]);
    }

    #[test]
    fn what_the_peer_may_have_read_has_left() {
        let mut outbound = Outbound::new();
        outbound.push(frame(1, 10, 2000));
        outbound.push(frame(2, 10, 1500));
        outbound.push(frame(3, 10, 10));
        pack(&mut outbound, 128);
        assert_eq!(outbound.take_leases().count(), 1);
        let lost: Vec<(u64, bool)> = std::iter::from_fn(|| outbound.pop_lost())
            .map(|(frame, has_left)| (frame.token, has_left))
            .collect();
        assert_eq!(lost, [(1, true), (2, false), (3, false)]);
    }

    #[test]
    fn a_dead_link_gives_everything_back_in_order() {
        let mut outbound = Outbound::new();
        for token in 1..5 {
            outbound.push(frame(token, 10, 2000));
        }
        pack(&mut outbound, 4096);
        assert_eq!(outbound.take_leases().count(), 4);
        let lost: Vec<u64> =
            std::iter::from_fn(|| outbound.pop_lost().map(|(frame, _)| frame.token)).collect();
        assert_eq!(lost, [1, 2, 3, 4]);
    }
}
