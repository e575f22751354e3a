//! Lookups and updates. They run on the shard that took the call in, and ask the other shards for
//! what those have.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use grpcxx::{Code, GraphCall, Shape, Status, Tensor};

use super::batch::Batch;
use super::{OnShard, Table, Tables};
use crate::table::{Full, Part};

type Results = Result<[(&'static str, Tensor); 1], Status>;

/// `ids` int64 [n] in, `rows` float32 [n, dim] out. Rows that are not there are made.
pub(super) async fn lookup(tables: Arc<Tables>, place: usize, call: GraphCall) -> Results {
    let table = &tables.tables[place];
    let batch = Arc::new(Batch::of(&tables, table, &call)?);
    drop(call);
    let dim = table.spec.dim;
    let row_bytes = dim * 4;
    let own = tables.shards.local().ok_or_else(not_on_a_shard)?;
    let mut answer = own.answers.borrow_mut().take(batch.ids.len() * row_bytes);
    let mut put = |place: u32, row: &[f32]| {
        let start = place as usize * row_bytes;
        answer[start..start + row_bytes].copy_from_slice(bytemuck::cast_slice(row));
    };
    let here = tables.shards.shards().current();
    let gathered: Vec<_> = others(&batch, here)
        .map(|shard| {
            let of_shard = Arc::clone(&batch);
            let gather = move |own: &OnShard| gather(own, place, &of_shard, shard);
            (shard, tables.shards.invoke_on(shard, gather))
        })
        .collect();
    if let Some(here) = here {
        let part = &mut own.parts.borrow_mut()[place];
        let rows = find(&tables, table, part, &batch, here)?;
        for (place, row) in batch.places(here).iter().zip(rows) {
            put(*place, part.row(row));
        }
    }
    for (shard, gathered) in gathered {
        let rows = gathered.await?.map_err(|full| tables.full(table, full))?;
        for (place, row) in batch.places(shard).iter().zip(rows.chunks_exact(dim)) {
            put(*place, row);
        }
    }
    table.lookups.fetch_add(1, Ordering::Relaxed);
    let answer = answer.freeze();
    own.answers.borrow_mut().keep(&answer);
    Ok([("rows", matrix(batch.ids.len(), dim, answer)?)])
}

/// `ids` int64 [n], `gradients` float32 [n, dim] and the scalar `rate` in, the number of ids as
/// `updated` out. Either all rows are changed or none.
pub(super) async fn update(tables: Arc<Tables>, place: usize, mut call: GraphCall) -> Results {
    let table = &tables.tables[place];
    if tables.is_stopping.load(Ordering::SeqCst) {
        let text = "the server is stopping and takes no updates";
        return Err(Status::new(Code::Unavailable, text));
    }
    let batch = Arc::new(Batch::of(&tables, table, &call)?);
    let rate: f32 = call.feed("rate")?.value()?;
    let gradients = call.take_feed("gradients")?;
    check_gradients(table, &batch, &gradients, rate)?;
    let dim = table.spec.dim;
    let _uncut = table.cut.read().await;

    let here = tables.shards.shards().current();
    let own = tables.shards.local().ok_or_else(not_on_a_shard)?;
    // All rows are there before one is changed, so that nothing can fail in between.
    let found: Vec<_> = others(&batch, here)
        .map(|shard| {
            let of_shard = Arc::clone(&batch);
            let find = move |own: &OnShard| own.parts.borrow_mut()[place].find(of_shard.ids(shard));
            (shard, tables.shards.invoke_on(shard, find))
        })
        .collect();
    let own_rows = match here {
        Some(here) => find(
            &tables,
            table,
            &mut own.parts.borrow_mut()[place],
            &batch,
            here,
        )?,
        None => Vec::new(),
    };
    let mut rows = Vec::with_capacity(found.len());
    for (shard, found) in found {
        let found = found.await?.map_err(|full| tables.full(table, full))?;
        rows.push((shard, found));
    }
    let updated: Vec<_> = rows
        .into_iter()
        .map(|(shard, rows)| {
            let (batch, gradients) = (Arc::clone(&batch), gradients.clone());
            tables.shards.invoke_on(shard, move |own: &OnShard| {
                let part = &mut own.parts.borrow_mut()[place];
                change(part, (batch.places(shard), &rows), (&gradients, dim), rate)
            })
        })
        .collect();
    if let Some(here) = here {
        let part = &mut own.parts.borrow_mut()[place];
        change(
            part,
            (batch.places(here), &own_rows),
            (&gradients, dim),
            rate,
        )?;
    }
    for updated in updated {
        updated.await??;
    }
    table.updates.fetch_add(1, Ordering::Relaxed);
    Ok([("updated", Tensor::scalar(batch.ids.len() as i64))])
}

fn others(batch: &Batch, here: Option<usize>) -> impl Iterator<Item = usize> {
    batch.shards().filter(move |shard| Some(*shard) != here)
}

fn find(
    tables: &Tables,
    table: &Table,
    part: &mut Part,
    batch: &Batch,
    shard: usize,
) -> Result<Vec<u32>, Status> {
    let found = part.find(batch.ids(shard));
    found.map_err(|full| tables.full(table, full))
}

fn gather(own: &OnShard, place: usize, batch: &Batch, shard: usize) -> Result<Vec<f32>, Full> {
    let part = &mut own.parts.borrow_mut()[place];
    let found = part.find(batch.ids(shard))?;
    let mut rows = Vec::new();
    for row in found {
        rows.extend_from_slice(part.row(row));
    }
    Ok(rows)
}

fn change(
    part: &mut Part,
    (places, rows): (&[u32], &[u32]),
    (gradients, dim): (&Tensor, usize),
    rate: f32,
) -> Result<(), Status> {
    let all = gradients.elements::<f32>()?;
    let of_shard = places
        .iter()
        .map(|place| &all[*place as usize * dim..][..dim]);
    part.update(rows.iter().copied().zip(of_shard), rate);
    Ok(())
}

fn check_gradients(
    table: &Table,
    batch: &Batch,
    gradients: &Tensor,
    rate: f32,
) -> Result<(), Status> {
    let (name, dim) = (&table.spec.name, table.spec.dim);
    let wanted = [batch.ids.len() as u64, dim as u64];
    if gradients.shape.dims() != wanted {
        let text = format!(
            "table {name:?}: gradients has the shape {}; {} ids of {dim} floats want [{}, {dim}]",
            gradients.shape, wanted[0], wanted[0]
        );
        return Err(Status::new(Code::InvalidArgument, text));
    }
    let elements = gradients.elements::<f32>()?;
    let is_finite = elements.iter().all(|element| element.is_finite());
    if !is_finite || !rate.is_finite() {
        let text = format!(
            "table {name:?}: the rate or a gradient is no finite number; nothing was changed"
        );
        return Err(Status::new(Code::InvalidArgument, text));
    }
    Ok(())
}

fn matrix(rows: usize, dim: usize, data: grpcxx::Buffer) -> Result<Tensor, Status> {
    let shape = Shape::new(&[rows as u64, dim as u64]);
    let shape = shape.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    Tensor::new(grpcxx::DType::Float32, shape, data)
}

fn not_on_a_shard() -> Status {
    Status::new(Code::FailedPrecondition, "the tables were stopped")
}
