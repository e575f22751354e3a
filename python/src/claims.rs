//! Memory that the operations of a group read and write, until they have ended.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use grpcxx_rpc::{Code, Status};

use crate::lock::lock;

/// The claims of all operations under way.
#[derive(Default)]
pub(crate) struct Claims(Arc<Mutex<Claimed>>);

#[derive(Default)]
struct Claimed {
    last: u64,
    claims: Vec<(u64, Addresses)>,
}

struct Addresses {
    read: Range<usize>,
    written: Range<usize>,
}

/// What one operation reads and writes, until it is dropped.
pub(crate) struct Claim {
    number: u64,
    claimed: Arc<Mutex<Claimed>>,
}

impl Claims {
    /// Claims what an operation reads until it ends, and what it writes. It is made of `array`,
    /// which it may have copied.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if another operation writes what this one reads, or uses what it writes.
    pub(crate) fn claim(
        &self,
        array: &Range<usize>,
        read: Range<usize>,
        written: Range<usize>,
    ) -> Result<Claim, Status> {
        let mut claimed = lock(&self.0);
        for (_, other) in &claimed.claims {
            let is_result = overlap(&other.written, array) || overlap(&other.written, &read);
            let what = match () {
                () if is_result => "array is the result",
                () if overlap(&other.written, &written) => "out is the result",
                () if overlap(&other.read, &written) => "out is the array",
                () => continue,
            };
            let text = format!("{what} of an operation that has not ended: wait for that first");
            return Err(Status::new(Code::InvalidArgument, text));
        }
        claimed.last += 1;
        let number = claimed.last;
        claimed.claims.push((number, Addresses { read, written }));
        let claimed = Arc::clone(&self.0);
        Ok(Claim { number, claimed })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = lock(&self.claimed);
        claimed.claims.retain(|(number, _)| *number != self.number);
    }
}

fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    !one.is_empty() && !other.is_empty() && one.start < other.end && other.start < one.end
}
