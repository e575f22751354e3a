//! Answers that have not left, and how much of them one caller may have.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use grpcxx_rpc::{Account, Code, Status};

use crate::limits::FREE_ANSWER_BYTES;
use crate::lock::lock;

/// The bytes of answers that have not left, by who has asked for them.
#[derive(Debug)]
pub(crate) struct Unsent {
    by_account: Mutex<HashMap<Account, u64>>,
    account_max: u64,
}

/// What somebody owes for an answer or a part of one, until the last part of it has left.
#[derive(Debug)]
pub(crate) struct Owed {
    bytes: u64,
    account: Account,
    unsent: Arc<Unsent>,
}

/// A part of an answer, for which somebody owes.
struct Part {
    data: Bytes,
    _owed: Arc<Owed>,
}

impl Unsent {
    pub(crate) fn new(account_max: u64) -> Arc<Self> {
        Arc::new(Self {
            by_account: Mutex::default(),
            account_max,
        })
    }

    /// Counts a part of an answer for as long as its bytes are held. A short one does not count.
    ///
    /// # Errors
    /// As of [`Unsent::owe_bytes`].
    pub(crate) fn owe(self: &Arc<Self>, account: Account, data: Bytes) -> Result<Bytes, Status> {
        let owed = self.owe_bytes(account, data.len())?;
        Ok(match owed {
            Some(owed) => owed.part(data),
            None => data,
        })
    }

    /// Counts so many bytes of an answer, for as long as one of their parts is held. A few do not
    /// count.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` if the account has too much, and not this alone.
    pub(crate) fn owe_bytes(
        self: &Arc<Self>,
        account: Account,
        bytes: usize,
    ) -> Result<Option<Arc<Owed>>, Status> {
        if bytes <= FREE_ANSWER_BYTES {
            return Ok(None);
        }
        let bytes = bytes as u64;
        let mut by_account = lock(&self.by_account);
        let owed = by_account.entry(account).or_default();
        let owed_before = *owed;
        let owed_then = owed_before.saturating_add(bytes);
        if owed_before > 0 && owed_then > self.account_max {
            let text = format!(
                "answers of {owed_before} bytes to this address have not left, allowed are {}; \
                 read them first",
                self.account_max
            );
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        *owed = owed_then;
        Ok(Some(Arc::new(Owed {
            bytes,
            account,
            unsent: Arc::clone(self),
        })))
    }
}

impl Owed {
    /// A part of what is owed for.
    pub(crate) fn part(self: &Arc<Self>, data: Bytes) -> Bytes {
        Bytes::from_owner(Part {
            data,
            _owed: Arc::clone(self),
        })
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        let mut by_account = lock(&self.unsent.by_account);
        if let Some(owed) = by_account.get_mut(&self.account) {
            *owed = owed.saturating_sub(self.bytes);
            if *owed == 0 {
                by_account.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_not_left_counts_and_short_parts_do_not() {
        let unsent = Unsent::new(1 << 20);
        let owe = |bytes: usize| unsent.owe(Account::OWN, vec![7; bytes].into());
        // One answer is sent however long it is.
        let mut long = owe(2 << 20).unwrap();
        assert_eq!(owe(1 << 17).unwrap_err().code, Code::ResourceExhausted);
        assert_eq!(owe(FREE_ANSWER_BYTES).unwrap().len(), FREE_ANSWER_BYTES);
        // Any part that is left keeps the memory of all of it.
        drop(long.split_to(1 << 20));
        assert!(owe(1 << 17).is_err());
        drop(long);
        let halves = [owe(1 << 19).unwrap(), owe(1 << 19).unwrap()];
        assert!(owe(1 << 17).is_err());
        drop(halves);
        assert!(lock(&unsent.by_account).is_empty());
    }
}
