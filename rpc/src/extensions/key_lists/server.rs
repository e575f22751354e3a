//! The lists of keys that a server keeps, and requests that name them by their numbers.

use grpcxx_memory::Buffer;
use grpcxx_transport::Next;

use super::wire::{LIST_BYTES_MAX, LISTS_BYTES_MAX, LISTS_MAX, STEP_BYTES, list_bytes};
use crate::connection::cursor::Cursor;
use crate::connection::landings::message_in_any_case;
use crate::connection::reader::{Whole, read_into};
use crate::connection::server::ServerConnection;
use crate::connection::server::inbound::{Arriving, RequestPart, tensors_of};
use crate::connection::{Landings, PeerViolation};
use crate::wire::RequestHeader;
use crate::{KeyList, Request, Text};

/// The lists that a server keeps for the client of a connection.
#[derive(Debug, Default)]
pub(crate) struct KeptLists {
    lists: Vec<Option<Kept>>,
    /// What all lists count.
    bytes: usize,
}

#[derive(Clone, Debug)]
struct Kept {
    keys: KeyList,
    bytes: usize,
}

impl ServerConnection {
    /// Begins a request that names its keys by the number of their list.
    pub(crate) fn begin_listed(
        &mut self,
        arriving: Arriving,
        header: &RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        if header.payload_bytes != STEP_BYTES as u64 {
            return Err(PeerViolation::Length {
                place: "the payload of a request with the number of a list",
                found: header.payload_bytes.into(),
                allowed_max: STEP_BYTES as u64,
            });
        }
        let number = header.metadata_bytes.checked_neg();
        let Some(keys) = number.and_then(|number| self.kept_lists.find(number)) else {
            return Err(PeerViolation::UnknownList {
                found: header.metadata_bytes,
            });
        };
        if let Some(step_id) = cursor.slice(STEP_BYTES) {
            self.step_landed(arriving, keys, step_id);
            return Ok(None);
        }
        let whole = Whole {
            what: RequestPart::Step { arriving, keys },
            len_bytes: STEP_BYTES,
            behind_bytes: 0,
        };
        let memory = message_in_any_case(landings, STEP_BYTES);
        read_into(self, whole, Ok(memory), cursor, landings)
    }

    /// Keeps a list under a number, and counts it.
    pub(crate) fn keep_list(&mut self, number: i32, keys: &[Text]) -> bool {
        let is_kept = self.kept_lists.keep(number, keys);
        self.count_keys();
        is_kept
    }

    pub(crate) fn step_landed(&mut self, arriving: Arriving, keys: KeyList, step_id: &[u8]) {
        let step_id = step_id.first_chunk().expect("as many bytes were wanted");
        let step_id = i64::from_le_bytes(*step_id);
        let request = Request::FuseRecvTensor { step_id, keys };
        let expected = tensors_of(&request);
        self.deliver(arriving, request, expected);
    }
}

impl KeptLists {
    /// What all lists count.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The list with this number.
    pub(crate) fn find(&self, number: i32) -> Option<KeyList> {
        let at = usize::try_from(number).ok()?.checked_sub(1)?;
        Some(self.lists.get(at)?.as_ref()?.keys.clone())
    }

    /// Keeps a list under a number, in place of another. False if that is not allowed.
    ///
    /// The texts are copied, next to each other: those of a request may lie in memory of the arena,
    /// or in many places.
    pub(crate) fn keep(&mut self, number: i32, keys: &[Text]) -> bool {
        let at = match usize::try_from(number) {
            Ok(number @ 1..=LISTS_MAX) => number - 1,
            _ => return false,
        };
        let old = self.lists.get(at).and_then(Option::as_ref);
        let (old_bytes, bytes) = (old.map_or(0, |old| old.bytes), list_bytes(keys));
        let all_bytes = self.bytes - old_bytes + bytes;
        if bytes > LIST_BYTES_MAX || all_bytes > LISTS_BYTES_MAX {
            return false;
        }
        self.bytes = all_bytes;
        let texts: Vec<u8> = keys
            .iter()
            .flat_map(|key| key.as_buffer().iter())
            .copied()
            .collect();
        let texts = Buffer::from(texts);
        let mut end = 0;
        let list = keys.iter().map(|key| {
            let from = end;
            end += key.as_buffer().len();
            Text::try_from(texts.slice(from..end)).expect("a copy of a text is one")
        });
        let keys = list.collect();
        if self.lists.len() <= at {
            self.lists.resize(at + 1, None);
        }
        self.lists[at] = Some(Kept { keys, bytes });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::KEY_BYTES;
    use super::*;

    fn list(name: usize) -> KeyList {
        (0..4)
            .map(|key| Text::from(format!("{name}/{key}")))
            .collect()
    }

    #[test]
    fn a_server_keeps_copies_under_the_numbers_there_are() {
        let mut lists = KeptLists::default();
        assert_eq!(lists.find(1), None);
        assert!(lists.keep(LISTS_MAX as i32, &list(7)));
        assert_eq!(lists.find(LISTS_MAX as i32), Some(list(7)));
        assert!(lists.keep(LISTS_MAX as i32, &list(8)));
        assert_eq!(lists.find(LISTS_MAX as i32), Some(list(8)));
        assert_eq!(lists.find(1), None);
        for number in [i32::MIN, -1, 0, LISTS_MAX as i32 + 1, i32::MAX] {
            assert!(!lists.keep(number, &list(7)));
            assert_eq!(lists.find(number), None);
        }
    }

    #[test]
    fn a_list_that_is_too_long_is_not_kept() {
        let key = Text::from("k".repeat(LIST_BYTES_MAX / 4 - KEY_BYTES));
        assert!(!KeptLists::default().keep(1, &vec![key.clone(); 5]));
        assert!(KeptLists::default().keep(1, &vec![key; 4]));
    }
}
