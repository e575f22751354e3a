//! The lists of keys that a client lets its server keep.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use grpcxx_transport::SlotId;

use super::wire::{LIST_BYTES_MAX, LISTS_BYTES_MAX, LISTS_MAX, list_bytes, number};
use crate::{KeyList, Text};

/// The lists that the server of a connection keeps, and those that it may come to keep.
///
/// A list has a number from its second use on, so that lists which do not come back cost no more
/// than a look at their keys. It is named by its number once the request that gave it that number
/// has been answered with success.
#[derive(Debug, Default)]
pub(crate) struct SentLists {
    lists: Vec<Sent>,
    /// The next list that may lose its number.
    oldest: usize,
    /// Hashes of lists without a number that were used lately.
    seen: Vec<u64>,
    next_seen: usize,
    /// Lists whose request has no answer yet.
    waiting: usize,
    /// What all lists count.
    bytes: usize,
    hasher: RandomState,
}

#[derive(Debug)]
struct Sent {
    keys: KeyList,
    bytes: usize,
    hash: u64,
    state: SentState,
    /// Whether it was used since it was last looked at for its number.
    is_used: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SentState {
    /// The server keeps it if it answers this call with success.
    Waiting(SlotId),
    Known,
    /// The server does not keep it.
    Lost,
}

/// How a request names a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListUse {
    /// By its keys.
    Keys,
    /// By its keys, which the server shall keep.
    Keep(i32),
    /// By its number.
    Number(i32),
}

impl SentLists {
    /// How the request of `call` names its list.
    pub(crate) fn name(&mut self, keys: &KeyList, call: SlotId) -> ListUse {
        if let Some(at) = self.lists.iter().position(|sent| sent.keys.is_same(keys)) {
            return self.use_list(at, call);
        }
        let bytes = list_bytes(keys);
        if keys.len() < KEYS_MIN || bytes > LIST_BYTES_MAX {
            return ListUse::Keys;
        }
        let hash = self.hash(keys);
        let is_list = |sent: &Sent| sent.hash == hash && sent.keys == *keys;
        if let Some(at) = self.lists.iter().position(is_list) {
            return self.use_list(at, call);
        }
        if !self.seen.contains(&hash) {
            self.note_seen(hash);
            return ListUse::Keys;
        }
        let Some(at) = self.free_number() else {
            return ListUse::Keys;
        };
        let old_bytes = self.lists.get(at).map_or(0, |old| old.bytes);
        if self.bytes - old_bytes + bytes > LISTS_BYTES_MAX {
            return ListUse::Keys;
        }
        self.bytes = self.bytes - old_bytes + bytes;
        let sent = Sent {
            keys: keys.clone(),
            bytes,
            hash,
            state: SentState::Waiting(call),
            is_used: false,
        };
        match self.lists.get_mut(at) {
            Some(old) => *old = sent,
            None => self.lists.push(sent),
        }
        self.waiting += 1;
        ListUse::Keep(number(at))
    }

    /// Notes how a call ended, or that it never began.
    #[inline]
    pub(crate) fn ended(&mut self, call: SlotId, is_success: bool) {
        if self.waiting == 0 {
            return;
        }
        let is_waiting = |sent: &&mut Sent| sent.state == SentState::Waiting(call);
        if let Some(sent) = self.lists.iter_mut().find(is_waiting) {
            self.waiting -= 1;
            sent.state = match is_success {
                true => SentState::Known,
                false => SentState::Lost,
            };
        }
    }

    fn use_list(&mut self, at: usize, call: SlotId) -> ListUse {
        let sent = &mut self.lists[at];
        sent.is_used = true;
        match sent.state {
            SentState::Known => ListUse::Number(number(at)),
            SentState::Waiting(_) => ListUse::Keys,
            SentState::Lost => {
                sent.state = SentState::Waiting(call);
                self.waiting += 1;
                ListUse::Keep(number(at))
            }
        }
    }

    /// The place of a number that stands for nothing, or for a list that has not been used for
    /// long.
    fn free_number(&mut self) -> Option<usize> {
        if self.lists.len() < LISTS_MAX {
            return Some(self.lists.len());
        }
        let at = self.oldest;
        self.oldest = (at + 1) % LISTS_MAX;
        let sent = &mut self.lists[at];
        let is_free = !std::mem::take(&mut sent.is_used);
        (is_free && !matches!(sent.state, SentState::Waiting(_))).then_some(at)
    }

    fn note_seen(&mut self, hash: u64) {
        match self.seen.get_mut(self.next_seen) {
            Some(old) => *old = hash,
            None => self.seen.push(hash),
        }
        self.next_seen = (self.next_seen + 1) % SEEN_MAX;
    }

    fn hash(&self, keys: &[Text]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        for key in keys {
            hasher.write(key.as_buffer());
            hasher.write_usize(key.as_buffer().len());
        }
        hasher.finish()
    }
}

/// Fewest keys of a list that is worth a number.
const KEYS_MIN: usize = 4;

/// Lists that are remembered without their keys.
const SEEN_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::super::server::KeptLists;
    use super::super::wire::KEY_BYTES;
    use super::*;

    fn call(slot: u32) -> SlotId {
        SlotId {
            slot,
            generation: 1,
        }
    }

    fn list(name: usize) -> KeyList {
        (0..KEYS_MIN)
            .map(|key| Text::from(format!("{name}/{key}")))
            .collect()
    }

    /// Uses a list three times; the last use comes back.
    fn teach(lists: &mut SentLists, name: usize) -> ListUse {
        assert_eq!(lists.name(&list(name), call(1)), ListUse::Keys);
        let kept = lists.name(&list(name), call(2));
        assert!(matches!(kept, ListUse::Keep(_)), "{kept:?}");
        lists.ended(call(2), true);
        lists.name(&list(name), call(3))
    }

    #[test]
    fn a_list_is_named_by_its_number_once_the_server_surely_keeps_it() {
        let mut lists = SentLists::default();
        let keys = list(0);
        assert_eq!(lists.name(&keys, call(1)), ListUse::Keys);
        assert_eq!(lists.name(&keys, call(2)), ListUse::Keep(1));
        assert_eq!(
            lists.name(&keys, call(3)),
            ListUse::Keys,
            "not answered yet"
        );
        lists.ended(call(3), true);
        lists.ended(call(2), false);
        assert_eq!(lists.name(&list(0), call(4)), ListUse::Keep(1));
        lists.ended(call(4), true);
        assert_eq!(lists.name(&keys, call(5)), ListUse::Number(1));
        assert_eq!(
            lists.name(&list(0), call(6)),
            ListUse::Number(1),
            "the same keys elsewhere"
        );
        assert_eq!(lists.name(&list(1), call(7)), ListUse::Keys);
    }

    #[test]
    fn short_and_long_lists_have_no_number() {
        let mut lists = SentLists::default();
        let short: KeyList = list(0).iter().take(KEYS_MIN - 1).cloned().collect();
        let long: KeyList = (0..5)
            .map(|_| Text::from("k".repeat(LIST_BYTES_MAX / 4)))
            .collect();
        for _ in 0..4 {
            assert_eq!(lists.name(&short, call(1)), ListUse::Keys);
            assert_eq!(lists.name(&long, call(1)), ListUse::Keys);
        }
    }

    #[test]
    fn lists_that_are_not_used_lose_their_numbers_to_others() {
        let mut lists = SentLists::default();
        for name in 0..LISTS_MAX {
            assert_eq!(teach(&mut lists, name), ListUse::Number(number(name)));
        }
        // All were used: each is passed over once.
        assert_eq!(lists.name(&list(100), call(1)), ListUse::Keys);
        for _ in 0..LISTS_MAX {
            assert_eq!(lists.name(&list(100), call(1)), ListUse::Keys);
        }
        assert_eq!(lists.name(&list(0), call(1)), ListUse::Number(1));
        assert_eq!(lists.name(&list(100), call(1)), ListUse::Keys, "just used");
        assert_eq!(lists.name(&list(100), call(1)), ListUse::Keep(2));
        lists.ended(call(1), true);
        assert_eq!(
            lists.name(&list(1), call(2)),
            ListUse::Keep(3),
            "it has lost its own"
        );
    }

    #[test]
    fn all_lists_of_a_connection_together_are_bounded_at_both_ends() {
        let large = |name: usize| -> KeyList {
            let text = "k".repeat(LIST_BYTES_MAX / KEYS_MIN - KEY_BYTES - 2);
            (0..KEYS_MIN)
                .map(|key| Text::from(format!("{name}{key}{text}").as_str()))
                .collect()
        };
        let fitting = LISTS_BYTES_MAX / LIST_BYTES_MAX;
        let (mut sent, mut kept) = (SentLists::default(), KeptLists::default());
        for name in 0..fitting {
            let keys = large(name);
            assert_eq!(sent.name(&keys, call(1)), ListUse::Keys);
            let ListUse::Keep(number) = sent.name(&keys, call(1)) else {
                panic!("list {name} is not kept");
            };
            assert!(kept.keep(number, &keys));
            sent.ended(call(1), true);
        }
        let another = large(fitting);
        for _ in 0..4 {
            assert_eq!(sent.name(&another, call(1)), ListUse::Keys);
        }
        assert!(!kept.keep(LISTS_MAX as i32, &another));
        assert!(kept.keep(1, &another), "in place of another");
        // Keys without a letter are not for nothing.
        let count = LIST_BYTES_MAX / KEY_BYTES + 1;
        assert!(!KeptLists::default().keep(1, &vec![Text::default(); count]));
    }
}
