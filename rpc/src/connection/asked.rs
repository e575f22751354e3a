use grpcxx_transport::SlotId;

use crate::{KeyList, Request, Text};

/// The keys that calls have asked for in frames of their own, for the texts of failures: other
/// answers name none.
#[derive(Debug, Default)]
pub(crate) struct AskedKeys {
    /// By the slot of the call.
    calls: Vec<Option<(SlotId, Keys)>>,
}

#[derive(Debug)]
enum Keys {
    One(Text),
    Many(KeyList),
}

impl AskedKeys {
    /// Notes what a call asks for, as long as it lasts.
    pub(crate) fn note(&mut self, call: SlotId, request: &Request) {
        let keys = match request {
            Request::RecvTensor { key, .. } => Keys::One(key.clone()),
            Request::FuseRecvTensor { keys, .. } => Keys::Many(keys.clone()),
            Request::Message { .. }
            | Request::StarRunGraph(_)
            | Request::Unary(_)
            | Request::Stream(_) => return,
        };
        let slot = call.slot as usize;
        if self.calls.len() <= slot {
            self.calls.resize_with(slot + 1, || None);
        }
        self.calls[slot] = Some((call, keys));
    }

    /// The key of a call with this index.
    pub(crate) fn key(&self, call: SlotId, index: usize) -> Option<Text> {
        let (noted, keys) = self.calls.get(call.slot as usize)?.as_ref()?;
        let keys = match keys {
            Keys::One(key) => std::slice::from_ref(key),
            Keys::Many(keys) => &keys[..],
        };
        // A call that shares its frame with others is not noted, and may have the slot of one that
        // was.
        let key = keys.get(index).filter(|_| *noted == call);
        key.cloned()
    }

    /// Forgets a call that has ended.
    #[inline]
    pub(crate) fn forget(&mut self, call: SlotId) {
        if let Some(noted) = self.calls.get_mut(call.slot as usize) {
            *noted = None;
        }
    }
}
