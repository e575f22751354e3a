//! The arrays that operations of a group write, until they have ended.

use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;

use crate::lock::lock;
use crate::memory;

/// The claims of all futures of a group.
#[derive(Default)]
pub(crate) struct Claims(Arc<Mutex<Claimed>>);

#[derive(Default)]
struct Claimed {
    last: u64,
    claims: Vec<Written>,
}

struct Written {
    number: u64,
    tag: u16,
    addresses: Range<usize>,
    /// Keeps the memory, so that no other array has these addresses.
    out: Py<PyUntypedArray>,
}

/// What an operation writes, until that has ended or this is dropped.
pub(crate) struct Claim {
    number: u64,
    claimed: Arc<Mutex<Claimed>>,
}

/// Hears of the end of an operation, and lets go of what it wrote before others hear of it.
struct Ended {
    claim: Claim,
    then: Waker,
}

impl Claims {
    /// Claims the array that an operation of a tag writes.
    pub(crate) fn claim(&self, tag: u16, out: &Bound<'_, PyUntypedArray>) -> Claim {
        let mut claimed = lock(&self.0);
        claimed.last += 1;
        let number = claimed.last;
        claimed.claims.push(Written {
            number,
            tag,
            addresses: memory::range_of(out),
            out: out.clone().unbind(),
        });
        let claimed = Arc::clone(&self.0);
        Claim { number, claimed }
    }

    /// Whether an operation still writes what one of this tag is about to read. Those of one tag
    /// follow each other, so that it may be lent, but not copied now.
    pub(crate) fn is_written(
        &self,
        tag: u16,
        array: &Bound<'_, PyUntypedArray>,
        is_copied: bool,
    ) -> PyResult<bool> {
        let addresses = memory::extent_of(array);
        let found: Vec<Py<PyUntypedArray>> = {
            let claimed = lock(&self.0);
            let matters = |written: &&Written| {
                let other = &written.addresses;
                let overlaps = addresses.start < other.end && other.start < addresses.end;
                let is_empty = addresses.is_empty() || other.is_empty();
                overlaps && !is_empty && (is_copied || written.tag != tag)
            };
            let found = claimed.claims.iter().filter(matters);
            found
                .map(|written| written.out.clone_ref(array.py()))
                .collect()
        };
        if array.is_c_contiguous() {
            return Ok(!found.is_empty());
        }
        // Between the elements of an array there may be those of another one.
        for out in found {
            let numpy = array.py().import("numpy")?;
            if numpy
                .call_method1("shares_memory", (array, out))?
                .extract()?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Claim {
    /// A waker that lets go of the claim, and then wakes another one.
    pub(crate) fn until_woken(self, then: Waker) -> Waker {
        Waker::from(Arc::new(Ended { claim: self, then }))
    }

    fn release(&self) {
        let released = {
            let mut claimed = lock(&self.claimed);
            let at = claimed
                .claims
                .iter()
                .position(|written| written.number == self.number);
            at.map(|at| claimed.claims.swap_remove(at))
        };
        // Without the lock: the last reference to an array may go with it.
        drop(released);
    }
}

impl Wake for Ended {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.claim.release();
        self.then.wake_by_ref();
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.release();
    }
}
