//! Writing tables to files while they are served.
//!
//! The cut of a table is the moment in which each shard has given its references to its chunks. No
//! update is under way then: updates wait for it, for as long as a shard takes to answer. Lookups
//! never wait. Whoever changes a chunk behind the cut copies it first, until the chunk is written.

use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use grpcxx::model::SafetensorsWriter;
use grpcxx::{Code, DType, Shape, Status, Tensor, TensorMeta};
use serde::{Deserialize, Serialize};

use super::calls::ROOM_PAUSE;
use super::{OnShard, Table, Tables};
use crate::table::{Chunk, Layout, Optimizer};

/// Floats of the largest tensor of a file: what is copied together at once.
const PIECE_FLOATS: usize = 4 << 20;

/// What a snapshot wrote.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Snapshot {
    /// The files, one for each table.
    pub files: Vec<String>,
    /// Rows of all tables.
    pub rows: u64,
    /// How long it took.
    pub milliseconds: u64,
}

/// The name of the file in which a server writes a table.
pub(super) fn file_name(table: &str, index: usize, servers: usize) -> String {
    format!("{table}.{index}-of-{servers}.safetensors")
}

impl Tables {
    pub(super) fn snapshot(&self) -> Result<Snapshot, Status> {
        match self.snapshot.try_lock() {
            Ok(held) => self.write_all(held),
            Err(TryLockError::Poisoned(held)) => self.write_all(held.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let text = "a snapshot is being written; ask again when it is done";
                Err(Status::new(Code::Aborted, text))
            }
        }
    }

    pub(super) fn snapshot_when_free(&self) -> Result<Snapshot, Status> {
        let held = self.snapshot.lock();
        self.write_all(held.unwrap_or_else(PoisonError::into_inner))
    }

    fn write_all(&self, _alone: MutexGuard<'_, ()>) -> Result<Snapshot, Status> {
        let begin = Instant::now();
        let Some(folder) = &self.folder else {
            let text = "this server has no folder for snapshots (--snapshots)";
            return Err(Status::new(Code::FailedPrecondition, text));
        };
        let mut written = Snapshot {
            files: Vec::new(),
            rows: 0,
            milliseconds: 0,
        };
        let mut failed = None;
        for (place, table) in self.tables.iter().enumerate() {
            let name = file_name(&table.spec.name, self.spec.index, self.spec.servers);
            let rows = self.write_table(place, table, &folder.join(&name));
            match rows {
                Ok(rows) => {
                    written.rows += rows;
                    written.files.push(name);
                }
                // It is no reason to lose the other tables.
                Err(status) => failed = failed.or(Some(status)),
            }
        }
        written.milliseconds = begin.elapsed().as_millis() as u64;
        failed.map_or(Ok(written), Err)
    }

    /// Writes a table to a file, and returns its rows.
    fn write_table(&self, place: usize, table: &Table, path: &Path) -> Result<u64, Status> {
        let chunks = self.cut(place, table)?;
        let rows = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        write(path, table.layout, chunks)?;
        Ok(rows)
    }

    /// The chunks of a table at one moment. It waits for shards that have no room in their inboxes:
    /// lookups fill them, and what was answered before a stop must not be lost.
    fn cut(&self, place: usize, table: &Table) -> Result<Vec<Arc<Chunk>>, Status> {
        let _no_update = futures_executor::block_on(table.cut.write());
        let freeze = |shard| {
            let freeze = move |own: &OnShard| own.parts.borrow()[place].freeze();
            self.shards.invoke_on(shard, freeze)
        };
        let shards = 0..self.shards.shards().len();
        let asked: Vec<_> = shards.map(|shard| (shard, freeze(shard))).collect();
        let mut all = Vec::new();
        for (shard, mut frozen) in asked {
            loop {
                match futures_executor::block_on(frozen) {
                    Err(full) if full.code == Code::ResourceExhausted => {
                        std::thread::sleep(ROOM_PAUSE);
                        frozen = freeze(shard);
                    }
                    frozen => break all.extend(frozen?),
                }
            }
        }
        Ok(all)
    }
}

/// The tensors of a file, in pieces that are short enough to be put together one by one.
pub(super) struct Names {
    pub(super) ids: String,
    pub(super) rows: String,
    pub(super) sums: String,
}

impl Names {
    pub(super) fn of(piece: usize) -> Self {
        Self {
            ids: format!("ids.{piece:05}"),
            rows: format!("rows.{piece:05}"),
            sums: format!("accumulators.{piece:05}"),
        }
    }
}

fn write(path: &Path, layout: Layout, mut chunks: Vec<Arc<Chunk>>) -> Result<(), Status> {
    let failed = |error: grpcxx::model::ModelError| {
        Status::new(Code::Internal, format!("no snapshot was written: {error}"))
    };
    let mut pieces = Vec::new();
    while !chunks.is_empty() {
        let mut floats = 0;
        let mut fits = |chunk: &Arc<Chunk>| {
            floats += chunk.len() * layout.dim;
            floats <= PIECE_FLOATS
        };
        let count = chunks.iter().take_while(|chunk| fits(chunk)).count().max(1);
        let rest = chunks.split_off(count);
        pieces.push(std::mem::replace(&mut chunks, rest));
    }
    let mut metas = Vec::new();
    for (number, piece) in pieces.iter().enumerate() {
        let rows = piece.iter().map(|chunk| chunk.len()).sum();
        let names = Names::of(number);
        metas.push((names.ids, meta(DType::Int64, &[rows])?));
        metas.push((names.rows, meta(DType::Float32, &[rows, layout.dim])?));
        if layout.optimizer == Optimizer::Adagrad {
            metas.push((names.sums, meta(DType::Float32, &[rows, layout.dim])?));
        }
    }
    let announced = metas.iter().map(|(name, meta)| (name.as_str(), meta));
    let mut writer = SafetensorsWriter::create(path, announced, &[]).map_err(failed)?;
    for (number, piece) in pieces.into_iter().enumerate() {
        for (name, tensor) in tensors(layout, number, &piece)? {
            writer.write(&name, &tensor).map_err(failed)?;
        }
    }
    writer.finish().map_err(failed)
}

fn meta(dtype: DType, dims: &[usize]) -> Result<TensorMeta, Status> {
    let elements: usize = dims.iter().product();
    Ok(TensorMeta {
        dtype,
        shape: shape(dims)?,
        is_dead: false,
        data_bytes: (elements * dtype.element_bytes().unwrap_or(1)) as u64,
    })
}

fn shape(dims: &[usize]) -> Result<Shape, Status> {
    let dims: Vec<u64> = dims.iter().map(|dim| *dim as u64).collect();
    Shape::new(&dims).map_err(|error| Status::new(Code::Internal, error.to_string()))
}

fn tensors(
    layout: Layout,
    number: usize,
    piece: &[Arc<Chunk>],
) -> Result<Vec<(String, Tensor)>, Status> {
    let (mut ids, mut rows, mut sums) = (Vec::new(), Vec::new(), Vec::new());
    for chunk in piece {
        for (id, elements, of_row) in chunk.rows(layout) {
            ids.push(id as i64);
            rows.extend_from_slice(elements);
            sums.extend_from_slice(of_row);
        }
    }
    let names = Names::of(number);
    let dims = shape(&[ids.len(), layout.dim])?;
    let mut tensors = vec![
        (names.ids, Tensor::vector(ids)),
        (names.rows, Tensor::from_vec(dims.clone(), rows)?),
    ];
    if layout.optimizer == Optimizer::Adagrad {
        tensors.push((names.sums, Tensor::from_vec(dims, sums)?));
    }
    Ok(tensors)
}
