//! Lookups and updates. They run on the shard that took the call in, and ask the other shards for
//! what those have.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::try_join_all;
use grpcxx::{Code, GraphCall, Shape, Status, Tensor, local};
use tokio::sync::OwnedRwLockReadGuard;

use super::batch::Batch;
use super::{OnShard, Table, Tables};
use crate::table::{Full, Part};

type Results = Result<[(&'static str, Tensor); 1], Status>;

/// `ids` int64 [n] in, `rows` float32 [n, dim] out. Rows that are not there are made.
pub(super) async fn lookup(tables: Arc<Tables>, place: usize, call: GraphCall) -> Results {
    tables.check_ready()?;
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
    tables.check_ready()?;
    let table = &tables.tables[place];
    let batch = Arc::new(Batch::of(&tables, table, &call)?);
    let rate: f32 = call.feed("rate")?.value()?;
    let gradients = call.take_feed("gradients")?;
    check_gradients(table, &batch, &gradients, rate)?;
    let uncut = Arc::clone(&table.cut).read_owned().await;
    // Behind the cut of the last snapshot it would be lost.
    if tables.is_stopping.load(Ordering::SeqCst) {
        let text = "the server is stopping and takes no updates";
        return Err(Status::new(Code::Unavailable, text));
    }
    // All rows are there before one is changed, so that nothing can fail in between.
    let rows = find_all(&tables, place, &batch).await?;
    let updated = Tensor::scalar(batch.ids.len() as i64);
    let change = Change {
        tables,
        place,
        batch,
        gradients,
        rate,
        _uncut: uncut,
    };
    // It goes on by itself, whatever becomes of the call.
    local::spawn_local(Arc::new(change).carry_out(rows)).await??;
    Ok([("updated", updated)])
}

/// The rows of the ids of each shard, found or made.
async fn find_all(tables: &Tables, place: usize, batch: &Arc<Batch>) -> Result<Rows, Status> {
    let table = &tables.tables[place];
    let here = tables.shards.shards().current();
    let own = tables.shards.local().ok_or_else(not_on_a_shard)?;
    let found: Vec<_> = others(batch, here)
        .map(|shard| {
            let of_shard = Arc::clone(batch);
            let find = move |own: &OnShard| own.parts.borrow_mut()[place].find(of_shard.ids(shard));
            (shard, tables.shards.invoke_on(shard, find))
        })
        .collect();
    let found_here = match here {
        Some(here) => {
            let part = &mut own.parts.borrow_mut()[place];
            Some((here, find(tables, table, part, batch, here)?.into()))
        }
        None => None,
    };
    let mut rows = Vec::with_capacity(found.len() + 1);
    for (shard, found) in found {
        let found = found.await?.map_err(|full| tables.full(table, full))?;
        rows.push((shard, found.into()));
    }
    // Last, so that the others are asked before.
    rows.extend(found_here);
    Ok(rows)
}

/// Rows by their shards.
type Rows = Vec<(usize, Arc<[u32]>)>;

/// An update whose rows are there. No snapshot cuts the table before it is done.
struct Change {
    tables: Arc<Tables>,
    place: usize,
    batch: Arc<Batch>,
    gradients: Tensor,
    rate: f32,
    _uncut: OwnedRwLockReadGuard<()>,
}

impl Change {
    async fn carry_out(self: Arc<Self>, rows: Rows) -> Result<(), Status> {
        let of_shards = rows.into_iter();
        let changed = of_shards.map(|(shard, rows)| Arc::clone(&self).carry_out_on(shard, rows));
        try_join_all(changed).await?;
        let table = &self.tables.tables[self.place];
        table.updates.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Changes the rows of a shard, as soon as that has room in its inbox: others are changed.
    async fn carry_out_on(self: Arc<Self>, shard: usize, rows: Arc<[u32]>) -> Result<(), Status> {
        let shards = &self.tables.shards;
        if Some(shard) == shards.shards().current() {
            let own = shards.local().ok_or_else(not_on_a_shard)?;
            return self.apply(&own, shard, &rows);
        }
        loop {
            let (change, rows) = (Arc::clone(&self), Arc::clone(&rows));
            let apply = move |own: &OnShard| change.apply(own, shard, &rows);
            match shards.invoke_on(shard, apply).await {
                Err(full) if full.code == Code::ResourceExhausted => local::sleep(ROOM_PAUSE).await,
                changed => return changed?,
            }
        }
    }

    fn apply(&self, own: &OnShard, shard: usize, rows: &[u32]) -> Result<(), Status> {
        let dim = self.tables.tables[self.place].spec.dim;
        let all = self.gradients.elements::<f32>()?;
        let places = self.batch.places(shard).iter();
        let of_shard = places.map(|place| &all[*place as usize * dim..][..dim]);
        let part = &mut own.parts.borrow_mut()[self.place];
        let skipped = part.update(rows.iter().copied().zip(of_shard), self.rate);
        let table = &self.tables.tables[self.place];
        table.skipped.fetch_add(skipped, Ordering::Relaxed);
        Ok(())
    }
}

/// How long to wait before a shard whose inbox was full is asked again.
pub(super) const ROOM_PAUSE: Duration = Duration::from_millis(1);

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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::pin::pin;
    use std::sync::mpsc;

    use futures_executor::block_on;
    use futures_util::FutureExt;
    use futures_util::future::join;
    use grpcxx::Engine;
    use tokio::sync::oneshot;

    use super::*;
    use crate::spec::{ServerSpec, TableSpec};

    /// An engine with a table of rows of one float, which SGD changes.
    fn start(shards: usize) -> (Engine, Arc<Tables>) {
        start_in(shards, None)
    }

    fn start_in(shards: usize, folder: Option<PathBuf>) -> (Engine, Arc<Tables>) {
        let engine = Engine::builder().shards(shards).pin(false);
        let engine = engine.start().unwrap();
        let table: TableSpec = "t:1".parse().unwrap();
        let tables = Tables::begin(&engine, ServerSpec::new(vec![table]), folder);
        tables.is_ready.store(true, Ordering::SeqCst);
        (engine, Arc::new(tables))
    }

    const IDS: [i64; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    /// Takes 1 from each row.
    fn an_update() -> GraphCall {
        let shape = Shape::new(&[IDS.len() as u64, 1]).unwrap();
        let gradients = Tensor::from_vec(shape, vec![1.0_f32; IDS.len()]);
        GraphCall::new("update")
            .with_feed("ids", Tensor::vector(IDS.to_vec()))
            .with_feed("gradients", gradients.unwrap())
            .with_feed("rate", Tensor::scalar(1.0_f32))
    }

    async fn rows(tables: &Arc<Tables>) -> Vec<f32> {
        let call = GraphCall::new("lookup").with_feed("ids", Tensor::vector(IDS.to_vec()));
        let [(_, rows)] = lookup(Arc::clone(tables), 0, call).await.unwrap();
        rows.elements().unwrap().to_vec()
    }

    #[test]
    fn an_update_that_waits_for_the_last_snapshot_is_refused() {
        let (_engine, tables) = start(1);
        let cut = block_on(tables.tables[0].cut.write());
        let mut update = pin!(update(Arc::clone(&tables), 0, an_update()));
        assert!(update.as_mut().now_or_never().is_none());
        tables.is_stopping.store(true, Ordering::SeqCst);
        drop(cut);
        let refused = block_on(update).unwrap_err();
        assert_eq!(refused.code, Code::Unavailable, "{refused}");
    }

    #[test]
    fn an_update_that_has_begun_waits_for_room_in_the_inbox_of_a_shard() {
        let (engine, tables) = start(2);
        let test = move || async move {
            let before = rows(&tables).await;
            let (let_go, first) = mpsc::channel::<()>();
            let _held = tables.shards.invoke_on(1, move |_| first.recv().is_ok());
            let mut update = pin!(update(Arc::clone(&tables), 0, an_update()));
            // It asks for rows of the other shard, which is held again behind that.
            assert!(update.as_mut().now_or_never().is_none());
            let (let_go_again, second) = mpsc::channel::<()>();
            let (tell, is_held) = oneshot::channel();
            let hold = move |_: &OnShard| tell.send(()).is_ok() && second.recv().is_ok();
            let _held_again = tables.shards.invoke_on(1, hold);
            let_go.send(()).unwrap();
            is_held.await.unwrap();
            while tables.shards.invoke_on(1, |_| ()).now_or_never().is_none() {}
            let let_go_later = async {
                local::sleep(Duration::from_millis(10)).await;
                let_go_again.send(()).unwrap();
            };
            let (updated, ()) = join(update, let_go_later).await;
            let changed: Vec<f32> = before.iter().map(|element| element - 1.0).collect();
            (updated.map(drop), rows(&tables).await == changed)
        };
        let test = engine.shards().submit_to(0, test);
        assert_eq!(test.wait().unwrap(), (Ok(()), true));
    }

    #[test]
    fn a_snapshot_waits_for_room_in_the_inbox_of_a_shard() {
        let folder = tempfile::tempdir().unwrap();
        let (_engine, tables) = start_in(2, Some(folder.path().to_owned()));
        let (let_go, held) = mpsc::channel::<()>();
        let (tell, is_held) = mpsc::channel();
        let hold = move |_: &OnShard| tell.send(()).is_ok() && held.recv().is_ok();
        let _held = tables.shards.invoke_on(1, hold);
        is_held.recv().unwrap();
        while tables.shards.invoke_on(1, |_| ()).now_or_never().is_none() {}
        std::thread::scope(|scope| {
            let snapshot = scope.spawn(|| tables.snapshot());
            std::thread::sleep(Duration::from_millis(10));
            let_go.send(()).unwrap();
            assert_eq!(snapshot.join().unwrap().unwrap().files.len(), 1);
        });
    }
}
