//! A scan over all shards: pages of each, merged in the order of the keys.

use std::cell::RefCell;
use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt, stream};
use grpcxx::{Sharded, Status};

use crate::proto::Entry;
use crate::store::{KeyRange, Store};

/// How far a scan is. It holds one page of each shard at most.
pub(crate) struct Merge {
    shards: Sharded<RefCell<Store>>,
    cursors: Vec<Cursor>,
}

/// How far a scan is on one shard.
struct Cursor {
    entries: VecDeque<(Bytes, Bytes)>,
    /// What was not asked for yet.
    rest: Option<KeyRange>,
}

impl Merge {
    pub(crate) fn new(shards: Sharded<RefCell<Store>>, range: &KeyRange) -> Self {
        let cursor = |_| Cursor {
            entries: VecDeque::new(),
            rest: Some(range.clone()),
        };
        let cursors = (0..shards.shards().len()).map(cursor).collect();
        Self { shards, cursors }
    }

    /// All entries of the range. A shard is asked for more when its page has been sent.
    pub(crate) fn entries(self) -> impl Stream<Item = Result<Entry, Status>> {
        let batches = stream::try_unfold(self, |mut merge| async {
            let batch = merge.next_batch().await?;
            Ok::<_, Status>((!batch.is_empty()).then_some((batch, merge)))
        });
        batches
            .map_ok(|batch| stream::iter(batch.into_iter().map(Ok)))
            .try_flatten()
    }

    /// The entries that come next, none at the end.
    async fn next_batch(&mut self) -> Result<Vec<Entry>, Status> {
        self.fill().await?;
        // A shard that may have more has none below the last one that it has shown.
        let shown = self.cursors.iter().filter(|cursor| cursor.rest.is_some());
        let last = shown.filter_map(|cursor| cursor.entries.back());
        let until = last.map(|(key, _)| key).min().cloned();
        let mut batch = Vec::new();
        for cursor in &mut self.cursors {
            let entries = &mut cursor.entries;
            let count = match &until {
                Some(until) => entries.partition_point(|(key, _)| key <= until),
                None => entries.len(),
            };
            let entries = entries.drain(..count);
            batch.extend(entries.map(|(key, value)| Entry { key, value }));
        }
        // These are sorted runs, which a stable sort finds and merges.
        batch.sort_by(|one, other| one.key.cmp(&other.key));
        Ok(batch)
    }

    /// Asks all shards that have nothing left here, at once.
    async fn fill(&mut self) -> Result<(), Status> {
        let mut asked = Vec::new();
        for (shard, cursor) in self.cursors.iter_mut().enumerate() {
            if !cursor.entries.is_empty() {
                continue;
            }
            if let Some(range) = cursor.rest.take() {
                let page = move |store: &RefCell<Store>| store.borrow().page(&range);
                asked.push((cursor, self.shards.invoke_on(shard, page)));
            }
        }
        for (cursor, page) in asked {
            let page = page.await?;
            cursor.entries = page.entries.into();
            cursor.rest = page.rest;
        }
        Ok(())
    }
}
