use std::ops::Range;

use grpcxx_memory::{Buffer, Leases, Lender};

/// Memory as another process lends it.
pub(crate) fn borrowed(bytes: &[u8]) -> Buffer {
    let leases = Leases::new(Other(bytes.to_vec()), 1);
    leases
        .borrow(0, 0..bytes.len())
        .expect("nothing is lent yet")
}

struct Other(Vec<u8>);

impl Lender for Other {
    fn part(&self, place: Range<usize>) -> &[u8] {
        &self.0[place]
    }

    fn give_back(&self, _: usize) {}
}
