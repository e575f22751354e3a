//! The table of the embedding server, with its own code, behind tonic.

use std::sync::Arc;

use bytes::{Buf, Bytes};

use crate::table::{Budget, Budgets, Layout, Optimizer, Part, mix};

/// As many as `embedding load` takes if nothing is said.
const IDS: u64 = 1_000_000;

/// One table, all of it.
pub(crate) struct Table {
    part: Part,
    dim: usize,
}

impl Table {
    pub(crate) fn new(dim: usize) -> Self {
        let layout = Layout {
            dim,
            optimizer: Optimizer::Sgd,
            seed: 1,
            scale: 0.05,
        };
        let budget = || Arc::new(Budget::new(u64::MAX));
        let budgets = Budgets {
            rows: budget(),
            bytes: budget(),
        };
        let part = Part::new(layout, budgets);
        Self { part, dim }
    }

    /// The rows of ids that lie one behind the other.
    pub(crate) fn rows(&mut self, mut ids: Bytes) -> Bytes {
        let mut wanted = Vec::with_capacity(ids.len() / 8);
        while ids.remaining() >= 8 {
            wanted.push(ids.get_u64_le());
        }
        let mut answer = Vec::with_capacity(wanted.len() * self.dim * 4);
        let found = self.part.find(wanted.into_iter());
        for row in found.expect("there is no limit") {
            answer.extend_from_slice(bytemuck::cast_slice(self.part.row(row)));
        }
        answer.into()
    }
}

/// Ids as `embedding load` draws them.
pub(crate) struct Ids(u64);

impl Ids {
    pub(crate) fn new() -> Self {
        Self(mix(0))
    }

    pub(crate) fn batch(&mut self, count: usize) -> Bytes {
        let mut bytes = Vec::with_capacity(count * 8);
        for _ in 0..count {
            self.0 = mix(self.0);
            bytes.extend_from_slice(&(self.0 % IDS).to_le_bytes());
        }
        bytes.into()
    }
}

/// Batches that have each id once, so that all rows are there before anything is measured.
pub(crate) fn all() -> impl Iterator<Item = Bytes> {
    (0..IDS).step_by(10_000).map(|first| {
        let ids = first..first + 10_000;
        ids.flat_map(u64::to_le_bytes).collect()
    })
}
