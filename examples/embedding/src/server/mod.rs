//! A server: its tables over the shards of an engine, and the functions that peers call.

mod batch;
mod calls;
mod restore;
mod snapshot;

use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use grpcxx::{Code, Engine, EngineBuilder, GraphCall, Sharded, Status, Tensor};
use serde::{Deserialize, Serialize};
use tokio::sync::RwLock;

use self::batch::Answers;
pub use self::snapshot::Snapshot;
use crate::spec::{ServerSpec, TableSpec};
use crate::table::{Budget, Budgets, Layout, Optimizer, Part};

/// What peers call to learn of the tables: a description as JSON in a vector of uint8.
pub(crate) const TABLES: &str = "embedding.tables";
/// What peers call to write a snapshot.
pub(crate) const SNAPSHOT: &str = "embedding.snapshot";

/// The function that looks rows of this table up.
pub(crate) fn lookup_of(table: &str) -> String {
    format!("embedding.lookup/{table}")
}

/// The function that updates rows of this table.
pub(crate) fn update_of(table: &str) -> String {
    format!("embedding.update/{table}")
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    engine: Engine,
    tables: Arc<Tables>,
}

/// What all calls share.
#[derive(Debug)]
struct Tables {
    spec: ServerSpec,
    tables: Vec<Table>,
    bytes: Arc<Budget>,
    shards: Sharded<OnShard>,
    folder: Option<PathBuf>,
    /// Held while a snapshot is written.
    snapshot: Mutex<()>,
    /// Whether all rows of snapshots are there.
    is_ready: AtomicBool,
    is_stopping: AtomicBool,
}

/// What all shards share of a table.
#[derive(Debug)]
struct Table {
    spec: TableSpec,
    layout: Layout,
    rows: Arc<Budget>,
    /// Updates share it; a snapshot has it alone while it takes its references.
    cut: Arc<RwLock<()>>,
    lookups: AtomicU64,
    updates: AtomicU64,
    skipped: AtomicU64,
}

/// What a shard has of its own.
#[derive(Debug)]
struct OnShard {
    /// In the order of the tables.
    parts: RefCell<Vec<Part>>,
    answers: RefCell<Answers>,
}

/// What a server says of itself.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Description {
    /// Which of the servers it is.
    pub index: usize,
    /// How many servers share the ids.
    pub servers: usize,
    /// Ids in one call, at most.
    pub batch_rows_max: usize,
    /// Memory of rows.
    pub memory_bytes: u64,
    /// Memory of rows, at most.
    pub memory_bytes_max: u64,
    /// Its tables.
    pub tables: Vec<TableDescription>,
}

/// What a server says of one of its tables.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TableDescription {
    /// The name.
    pub name: String,
    /// Floats of a row.
    pub dim: usize,
    /// `sgd` or `adagrad`.
    pub optimizer: String,
    /// Rows that are there.
    pub rows: u64,
    /// Rows that may be there.
    pub rows_max: u64,
    /// Calls that looked rows up.
    pub lookups: u64,
    /// Calls that updated rows.
    pub updates: u64,
    /// Elements that updates left alone, for they would not have been finite any more.
    #[serde(default)]
    pub skipped: u64,
}

impl Server {
    /// Starts an engine, takes rows from the snapshots in `folder`, if there are any, and serves.
    ///
    /// # Errors
    /// The spec or a snapshot is wrong, or the engine cannot start.
    pub fn start(
        engine: EngineBuilder,
        spec: ServerSpec,
        folder: Option<PathBuf>,
    ) -> Result<Self, Status> {
        spec.check()
            .map_err(|text| Status::new(Code::InvalidArgument, text))?;
        let server = Self::begin(engine, spec, folder)?;
        server.tables.restore()?;
        server.tables.is_ready.store(true, Ordering::SeqCst);
        Ok(server)
    }

    /// Starts an engine that refuses calls until the tables are ready. One without functions would
    /// tell workers that had waited for it that there are none, which ends most of them.
    fn begin(
        engine: EngineBuilder,
        spec: ServerSpec,
        folder: Option<PathBuf>,
    ) -> Result<Self, Status> {
        let mut tables = None;
        let engine = engine.start_with(|engine| {
            let begun = Arc::new(Tables::begin(engine, spec, folder));
            register(engine, &begun);
            tables = Some(begun);
        })?;
        let tables = tables.expect("an engine that has started was prepared");
        Ok(Self { engine, tables })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What there is now.
    pub fn description(&self) -> Description {
        self.tables.description()
    }

    /// Writes all tables to files while they are served. Blocks until they are written.
    ///
    /// # Errors
    /// There is no folder for them, one is being written, or a file cannot be written.
    pub fn snapshot(&self) -> Result<Snapshot, Status> {
        self.tables.snapshot()
    }

    /// Refuses updates from here on, writes a snapshot if there is a folder for it, lets calls end,
    /// and stops.
    ///
    /// # Errors
    /// The snapshot cannot be written, or the engine had died.
    pub fn stop(self) -> Result<Option<Snapshot>, Status> {
        self.tables.is_stopping.store(true, Ordering::SeqCst);
        let snapshot = match self.tables.folder {
            Some(_) => Some(self.tables.snapshot_when_free()),
            None => None,
        };
        let ended = self.engine.shutdown(Duration::from_secs(10));
        let snapshot = snapshot.transpose()?;
        ended.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        Ok(snapshot)
    }
}

fn register(engine: &Engine, tables: &Arc<Tables>) {
    for (place, table) in tables.tables.iter().enumerate() {
        let of_lookup = Arc::clone(tables);
        let lookup = move |call| calls::lookup(Arc::clone(&of_lookup), place, call);
        engine.register_async(lookup_of(&table.spec.name), lookup);
        let of_update = Arc::clone(tables);
        let update = move |call| calls::update(Arc::clone(&of_update), place, call);
        engine.register_async(update_of(&table.spec.name), update);
    }
    let described = Arc::clone(tables);
    engine.register_short(TABLES, move |_: GraphCall| {
        described.check_ready()?;
        Ok([("tables", json(&described.description())?)])
    });
    let written = Arc::clone(tables);
    engine.register_fn(SNAPSHOT, move |_: GraphCall| {
        written.check_ready()?;
        Ok([("snapshot", json(&written.snapshot()?)?)])
    });
}

impl Tables {
    fn begin(engine: &Engine, spec: ServerSpec, folder: Option<PathBuf>) -> Self {
        let bytes = Arc::new(Budget::new(spec.memory_bytes_max));
        let tables: Vec<Table> = spec
            .tables
            .iter()
            .map(|table| Table {
                spec: table.clone(),
                layout: spec.layout(table),
                rows: Arc::new(Budget::new(spec.rows_max)),
                cut: Arc::default(),
                lookups: AtomicU64::new(0),
                updates: AtomicU64::new(0),
                skipped: AtomicU64::new(0),
            })
            .collect();
        let of_parts: Vec<(Layout, Budgets)> = tables
            .iter()
            .map(|table| {
                let (rows, bytes) = (Arc::clone(&table.rows), Arc::clone(&bytes));
                (table.layout, Budgets { rows, bytes })
            })
            .collect();
        let shards = Sharded::begin(&engine.shards(), move |_shard| {
            let parts = of_parts.iter();
            let parts = parts.map(|(layout, budgets)| Part::new(*layout, budgets.clone()));
            OnShard {
                parts: RefCell::new(parts.collect()),
                answers: RefCell::default(),
            }
        });
        Self {
            spec,
            tables,
            bytes,
            shards,
            folder,
            snapshot: Mutex::default(),
            is_ready: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
        }
    }

    /// Whether calls can be carried out.
    fn check_ready(&self) -> Result<(), Status> {
        if self.is_ready.load(Ordering::SeqCst) {
            return Ok(());
        }
        let text = "the server is taking its rows from snapshots; try again later";
        Err(Status::new(Code::Unavailable, text))
    }

    fn description(&self) -> Description {
        let tables = self.tables.iter().map(|table| TableDescription {
            name: table.spec.name.clone(),
            dim: table.spec.dim,
            optimizer: match table.spec.optimizer {
                Optimizer::Sgd => "sgd".to_owned(),
                Optimizer::Adagrad => "adagrad".to_owned(),
            },
            rows: table.rows.used(),
            rows_max: table.rows.max(),
            lookups: table.lookups.load(Ordering::Relaxed),
            updates: table.updates.load(Ordering::Relaxed),
            skipped: table.skipped.load(Ordering::Relaxed),
        });
        Description {
            index: self.spec.index,
            servers: self.spec.servers,
            batch_rows_max: self.spec.batch_rows_max,
            memory_bytes: self.bytes.used(),
            memory_bytes_max: self.bytes.max(),
            tables: tables.collect(),
        }
    }
}

fn json(value: &impl Serialize) -> Result<Tensor, Status> {
    let text = serde_json::to_vec(value);
    let text = text.map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    Ok(Tensor::vector(text))
}

#[cfg(test)]
mod tests {
    use grpcxx::Remote;

    use super::*;

    #[test]
    fn calls_are_put_off_until_the_rows_of_snapshots_are_there() {
        let spec = ServerSpec::new(vec!["t:1".parse().unwrap()]);
        let engine = Engine::builder().listen("127.0.0.1:0").pin(false);
        let server = Server::begin(engine, spec, None).unwrap();
        let remote: Remote = (server.engine)
            .connect(&server.engine.local_addr().unwrap().to_string())
            .unwrap();
        let codes = || {
            let ids = || Tensor::vector(vec![1_i64]);
            let gradients = Tensor::from_vec(grpcxx::Shape::new(&[1, 1]).unwrap(), vec![1.0_f32]);
            let calls = [
                GraphCall::new(TABLES).with_fetch("tables"),
                GraphCall::new(SNAPSHOT).with_fetch("snapshot"),
                GraphCall::new(lookup_of("t"))
                    .with_feed("ids", ids())
                    .with_fetch("rows"),
                GraphCall::new(update_of("t"))
                    .with_feed("ids", ids())
                    .with_feed("gradients", gradients.unwrap())
                    .with_feed("rate", Tensor::scalar(1.0_f32))
                    .with_fetch("updated"),
            ];
            calls.map(|call| remote.run(call).wait().err().map(|status| status.code))
        };
        assert_eq!(codes(), [Some(Code::Unavailable); 4]);
        assert_eq!(server.description().tables[0].rows, 0);
        server.tables.is_ready.store(true, Ordering::SeqCst);
        let without_folder = Some(Code::FailedPrecondition);
        assert_eq!(codes(), [None, without_folder, None, None]);
    }
}
