//! The ids of a call, checked and parted by shard, and memory for answers.

use std::collections::VecDeque;

use grpcxx::{Buffer, BufferMut, Code, GraphCall, Status};

use super::{Table, Tables};
use crate::spec::{server_of, shard_of};
use crate::table::Full;

/// Answers whose memory a shard keeps to use it again.
const ANSWERS_MAX: usize = 8;
/// Longer answers are not kept.
const KEPT_BYTES_MAX: usize = 16 << 20;

/// The ids of a call.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) ids: Vec<u64>,
    /// For each shard, the places of its ids.
    places: Vec<Vec<u32>>,
}

impl Batch {
    /// Takes the feed `ids` of a call.
    pub(super) fn of(tables: &Tables, table: &Table, call: &GraphCall) -> Result<Self, Status> {
        let name = &table.spec.name;
        let feed = call.feed("ids")?;
        if feed.shape.rank() != 1 {
            let text = format!(
                "table {name:?}: ids has the shape {}; a vector is wanted",
                feed.shape
            );
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let max = tables.spec.batch_rows_max;
        let ids = feed.elements::<i64>().map_err(|status| {
            let text = format!("table {name:?}: ids: {}", status.message);
            status.with_message(text)
        })?;
        if ids.len() > max {
            let text = format!(
                "table {name:?}: {} ids in one call, {max} are allowed (--batch-rows-max); part \
                 the batch",
                ids.len()
            );
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let bytes = ids.len() as u64 * table.spec.dim as u64 * 4;
        let bytes_max = tables.spec.batch_bytes_max;
        if bytes > bytes_max {
            let text = format!(
                "table {name:?}: {} rows of {} floats have {bytes} bytes, {bytes_max} are allowed \
                 in one call (--batch-mib-max); part the batch",
                ids.len(),
                table.spec.dim
            );
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let ids: Vec<u64> = ids.iter().map(|id| *id as u64).collect();
        let shards = tables.shards.shards().len();
        let mut places = vec![Vec::new(); shards];
        for (place, id) in ids.iter().enumerate() {
            tables.check(name, *id)?;
            if shards > 1 {
                places[shard_of(*id, shards)].push(place as u32);
            }
        }
        if shards == 1 {
            places[0] = (0..ids.len() as u32).collect();
        }
        Ok(Self { ids, places })
    }

    /// The places of the ids that this shard has.
    pub(super) fn places(&self, shard: usize) -> &[u32] {
        &self.places[shard]
    }

    /// The ids that this shard has.
    pub(super) fn ids(&self, shard: usize) -> impl Iterator<Item = u64> {
        self.places[shard]
            .iter()
            .map(|place| self.ids[*place as usize])
    }

    /// The shards that have at least one of the ids.
    pub(super) fn shards(&self) -> impl Iterator<Item = usize> {
        let places = self.places.iter().enumerate();
        places
            .filter(|(_, places)| !places.is_empty())
            .map(|(shard, _)| shard)
    }
}

impl Tables {
    fn check(&self, table: &str, id: u64) -> Result<(), Status> {
        let (below, servers) = (self.spec.ids_below, self.spec.servers);
        if id >= below {
            let text = format!("table {table:?}: id {id} is not below {below} (--ids-below)");
            return Err(Status::new(Code::OutOfRange, text));
        }
        let owner = server_of(id, servers);
        if owner != self.spec.index {
            let text = format!(
                "table {table:?}: the row of id {id} is on server {owner} of {servers}, this is \
                 server {}; give clients the addresses in the order of --index",
                self.spec.index
            );
            return Err(Status::new(Code::InvalidArgument, text));
        }
        Ok(())
    }

    pub(super) fn full(&self, table: &Table, full: Full) -> Status {
        let name = &table.spec.name;
        let text = match full {
            Full::Rows => format!(
                "table {name:?} has {} rows here, as many as are allowed (--rows-max); no new row \
                 is made",
                table.rows.max()
            ),
            Full::Bytes => format!(
                "table {name:?}: the rows of all tables take {} bytes here, {} are allowed \
                 (--memory-mib-max); no new row is made",
                self.bytes.used(),
                self.bytes.max()
            ),
        };
        Status::new(Code::ResourceExhausted, text)
    }
}

/// Memory of answers that have left, to be used again: fresh memory costs a page fault for each
/// 4 KiB.
#[derive(Debug, Default)]
pub(super) struct Answers(VecDeque<Buffer>);

impl Answers {
    /// Memory of this length, with whatever is in it.
    pub(super) fn take(&mut self, len: usize) -> BufferMut {
        let has_left = |answer: &Buffer| answer.len() == len && answer.is_unique();
        let free = self.0.iter().position(has_left);
        let free = free.and_then(|place| self.0.remove(place));
        let free = free.and_then(|answer| answer.try_into_mut().ok());
        free.unwrap_or_else(|| BufferMut::zeroed(len))
    }

    /// Keeps the memory for when the answer has left.
    pub(super) fn keep(&mut self, answer: &Buffer) {
        if answer.len() > KEPT_BYTES_MAX {
            return;
        }
        if self.0.len() == ANSWERS_MAX {
            self.0.pop_front();
        }
        self.0.push_back(answer.clone());
    }
}
