use std::collections::VecDeque;

use crate::wire::Offer;

/// Messages that arrived on one link and are not taken yet, and how far the first of them was read.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    messages: VecDeque<Message>,
    /// Where the next element of the first message begins.
    pub(crate) at: usize,
    /// What is left of the offer that was met last.
    offer: Option<Offer>,
}

/// A message in a receive slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) index: u16,
    pub(crate) len_bytes: usize,
}

impl Incoming {
    /// Nothing arrived; the elements of each message begin at `at`.
    pub(crate) fn new(at: usize) -> Self {
        Self {
            at,
            ..Self::default()
        }
    }

    pub(crate) fn push(&mut self, message: Message) {
        self.messages.push_back(message);
    }

    pub(crate) fn front(&self) -> Option<Message> {
        self.messages.front().copied()
    }

    /// Takes the first message away; the next one is read from `at`.
    pub(crate) fn pop(&mut self, at: usize) -> Option<Message> {
        self.at = at;
        self.messages.pop_front()
    }

    /// What must be read, or have begun to be, before the next element.
    pub(crate) fn offer(&self) -> Option<Offer> {
        self.offer
    }

    pub(crate) fn set_offer(&mut self, offer: Offer) {
        debug_assert!(self.offer.is_none(), "offers are read one after another");
        self.offer = Some(offer);
    }

    /// Notes that the read of the offer's next bytes has begun. True if those are the last.
    ///
    /// # Panics
    /// If no offer has so many bytes left.
    pub(crate) fn advance(&mut self, len_bytes: usize) -> bool {
        let offer = self.offer.as_mut().expect("an offer was met");
        let len_bytes = len_bytes as u64;
        assert!(
            len_bytes <= offer.len_bytes,
            "no more is read than was offered"
        );
        offer.address += len_bytes;
        offer.len_bytes -= len_bytes;
        let is_done = offer.len_bytes == 0;
        if is_done {
            self.offer = None;
        }
        is_done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_read_in_parts() {
        let mut incoming = Incoming::default();
        incoming.set_offer(Offer {
            address: 1000,
            len_bytes: 10,
            key: 1,
        });
        assert!(!incoming.advance(4));
        let rest = incoming.offer().unwrap();
        assert_eq!((rest.address, rest.len_bytes), (1004, 6));
        assert!(incoming.advance(6));
        assert_eq!(incoming.offer(), None);
    }

    #[test]
    fn messages_are_read_in_order() {
        let mut incoming = Incoming::default();
        for index in 0..3 {
            incoming.push(Message {
                index,
                len_bytes: 10,
            });
        }
        incoming.at = 9;
        assert_eq!(incoming.pop(8).map(|message| message.index), Some(0));
        assert_eq!(incoming.at, 8);
        assert_eq!(incoming.front().map(|message| message.index), Some(1));
    }
}
