//! Calls of the servers of a set of tables, each asked for the rows that it has.

use futures_util::future::try_join_all;
use grpcxx::{Code, Engine, GraphCall, Remote, Shape, Status, Tensor};
use serde::de::DeserializeOwned;

use crate::server::{self, Description, Snapshot};
use crate::spec::server_of;

/// A worker's way to all servers of a set of tables. Futures end on any executor.
#[derive(Clone, Debug)]
pub struct Client {
    remotes: Vec<Remote>,
    /// Names and floats of a row.
    tables: Vec<(String, usize)>,
}

/// Rows that were looked up, in the order of their ids, where they landed.
#[derive(Debug)]
pub struct Rows {
    dim: usize,
    /// One for each server that was asked.
    parts: Vec<Vec<f32>>,
    /// Part and row of each id; empty if there is one part, which has them in their order.
    places: Vec<(u32, u32)>,
    landed: Vec<Tensor>,
}

impl Client {
    /// Asks all servers what they have. `addresses` are in the order of the servers.
    ///
    /// # Errors
    /// A server cannot be reached, or is another one than its place says.
    pub async fn connect(engine: &Engine, addresses: &[String]) -> Result<Self, Status> {
        let remotes: Result<Vec<Remote>, Status> = addresses
            .iter()
            .map(|address| engine.connect(address))
            .collect();
        let mut client = Self {
            remotes: remotes?,
            tables: Vec::new(),
        };
        let descriptions = client.describe().await?;
        for (place, (is, address)) in descriptions.iter().zip(addresses).enumerate() {
            if (is.index, is.servers) != (place, addresses.len()) {
                let text = format!(
                    "{address} is server {} of {}, not {place} of {}; name all servers in the \
                     order of --index",
                    is.index,
                    is.servers,
                    addresses.len()
                );
                return Err(Status::new(Code::InvalidArgument, text));
            }
        }
        let first = descriptions.into_iter().next();
        let tables = first.into_iter().flat_map(|first| first.tables);
        client.tables = tables.map(|table| (table.name, table.dim)).collect();
        Ok(client)
    }

    /// What each server says of itself.
    ///
    /// # Errors
    /// A server cannot be reached.
    pub async fn describe(&self) -> Result<Vec<Description>, Status> {
        self.ask_all(server::TABLES, "tables").await
    }

    /// Lets each server write a snapshot, and waits until they have.
    ///
    /// # Errors
    /// A server cannot; others may have.
    pub async fn snapshot(&self) -> Result<Vec<Snapshot>, Status> {
        self.ask_all(server::SNAPSHOT, "snapshot").await
    }

    /// The rows of these ids, in their order. Rows that are not there are made.
    ///
    /// # Errors
    /// There is no such table, an id or the batch is beyond a limit, or a server cannot be reached.
    pub async fn lookup(&self, table: &str, ids: &[u64]) -> Result<Rows, Status> {
        let dim = self.dim(table)?;
        let function = server::lookup_of(table);
        let (parted, places) = self.part(ids);
        let counts: Vec<usize> = parted.iter().map(|(_, ids, _)| ids.len()).collect();
        let asked = parted.into_iter().map(|(server, ids, _)| {
            let call = GraphCall::new(function.as_str())
                .with_feed("ids", Tensor::vector(ids))
                .with_fetch("rows");
            self.remotes[server].run(call)
        });
        let mut landed = Vec::new();
        for mut fetched in try_join_all(asked.collect::<Vec<_>>()).await? {
            landed.push(fetched.take("rows")?);
        }
        Rows::new(dim, &counts, landed, places)
    }

    /// Changes the rows of these ids by `gradients`, row after row, with the learning rate `rate`.
    /// Gradients of the same id are summed first.
    ///
    /// # Errors
    /// As of [`Client::lookup`], or the gradients are not as many as the ids want, or not finite.
    /// Each server changes all of its rows or none; if one fails, others may have changed theirs.
    pub async fn update(
        &self,
        table: &str,
        ids: &[u64],
        gradients: Vec<f32>,
        rate: f32,
    ) -> Result<(), Status> {
        let dim = self.dim(table)?;
        if gradients.len() != ids.len() * dim {
            let text = format!(
                "table {table:?}: {} gradients came with {} ids of {dim} floats",
                gradients.len(),
                ids.len()
            );
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let (parted, _) = self.part(ids);
        let mut all = Some(gradients);
        let mut asked = Vec::new();
        for (server, of_server, rows) in parted {
            let gradients = match rows {
                Some(rows) => gather(all.as_deref().unwrap_or_default(), dim, &rows),
                None => all.take().unwrap_or_default(),
            };
            let shape = shape(of_server.len(), dim)?;
            let call = GraphCall::new(server::update_of(table))
                .with_feed("ids", Tensor::vector(of_server))
                .with_feed("gradients", Tensor::from_vec(shape, gradients)?)
                .with_feed("rate", Tensor::scalar(rate))
                .with_fetch("updated");
            asked.push(self.remotes[server].run(call));
        }
        try_join_all(asked).await?;
        Ok(())
    }

    fn dim(&self, table: &str) -> Result<usize, Status> {
        let found = self.tables.iter().find(|(name, _)| name == table);
        found.map(|(_, dim)| *dim).ok_or_else(|| {
            let there: Vec<&str> = self.tables.iter().map(|(name, _)| name.as_str()).collect();
            let text = format!(
                "there is no table {table:?}; there are: {}",
                there.join(", ")
            );
            Status::new(Code::NotFound, text)
        })
    }

    async fn ask_all<T: DeserializeOwned>(&self, name: &str, what: &str) -> Result<Vec<T>, Status> {
        let asked = self.remotes.iter().map(|remote| {
            let call = GraphCall::new(name).with_fetch(what);
            remote.run(call)
        });
        let mut answers = Vec::new();
        for fetched in try_join_all(asked.collect::<Vec<_>>()).await? {
            let text = fetched.get(what)?.elements::<u8>()?;
            let answer = serde_json::from_slice(&text).map_err(|error| {
                let text = format!("a server's answer to {name} is no JSON of ours: {error}");
                Status::new(Code::Internal, text)
            })?;
            answers.push(answer);
        }
        Ok(answers)
    }

    fn part(&self, ids: &[u64]) -> (Vec<Parted>, Vec<(u32, u32)>) {
        let servers = self.remotes.len();
        if servers == 1 {
            let ids = ids.iter().map(|id| *id as i64).collect();
            return (vec![(0, ids, None)], Vec::new());
        }
        let mut parts: Vec<(Vec<i64>, Vec<u32>)> = vec![Default::default(); servers];
        let mut owners = Vec::with_capacity(ids.len());
        for (row, id) in ids.iter().enumerate() {
            let owner = server_of(*id, servers);
            owners.push((owner, parts[owner].0.len() as u32));
            parts[owner].0.push(*id as i64);
            parts[owner].1.push(row as u32);
        }
        let mut number = vec![0; servers];
        let mut parted = Vec::new();
        for (server, (ids, rows)) in parts.into_iter().enumerate() {
            number[server] = parted.len() as u32;
            if !ids.is_empty() {
                parted.push((server, ids, Some(rows)));
            }
        }
        let places = owners.into_iter().map(|(owner, row)| (number[owner], row));
        (parted, places.collect())
    }
}

/// A server, its ids, and their places in the batch if they are not all of it.
type Parted = (usize, Vec<i64>, Option<Vec<u32>>);

impl Rows {
    /// Rows of this many ids at each server that was asked.
    fn new(
        dim: usize,
        counts: &[usize],
        landed: Vec<Tensor>,
        places: Vec<(u32, u32)>,
    ) -> Result<Self, Status> {
        let mut parts = Vec::new();
        for (tensor, count) in landed.iter().zip(counts) {
            if tensor.shape.dims() != [*count as u64, dim as u64] {
                let text = format!(
                    "a server answered {count} ids with {}; [{count}, {dim}] is wanted",
                    tensor.shape
                );
                return Err(Status::new(Code::Internal, text));
            }
            // Where it cannot be looked at in place, and there alone, it is copied.
            parts.push(match tensor.as_slice::<f32>() {
                Some(_) => Vec::new(),
                None => tensor.elements::<f32>()?.into_owned(),
            });
        }
        Ok(Self {
            dim,
            parts,
            places,
            landed,
        })
    }

    /// The elements of the row of the `index`-th id.
    ///
    /// # Panics
    /// There were not so many ids.
    pub fn row(&self, index: usize) -> &[f32] {
        let (part, row) = match self.places.is_empty() {
            true => (0, index),
            false => (self.places[index].0 as usize, self.places[index].1 as usize),
        };
        &self.elements(part)[row * self.dim..][..self.dim]
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        match self.places.is_empty() {
            true => self
                .landed
                .iter()
                .map(|part| part.shape.dims()[0] as usize)
                .sum(),
            false => self.places.len(),
        }
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All rows, one behind the other.
    pub fn to_vec(&self) -> Vec<f32> {
        (0..self.len())
            .flat_map(|index| self.row(index))
            .copied()
            .collect()
    }

    fn elements(&self, part: usize) -> &[f32] {
        self.landed[part].as_slice().unwrap_or(&self.parts[part])
    }
}

fn gather(all: &[f32], dim: usize, rows: &[u32]) -> Vec<f32> {
    let mut gathered = Vec::with_capacity(rows.len() * dim);
    for row in rows {
        gathered.extend_from_slice(&all[*row as usize * dim..][..dim]);
    }
    gathered
}

fn shape(rows: usize, dim: usize) -> Result<Shape, Status> {
    let shape = Shape::new(&[rows as u64, dim as u64]);
    shape.map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))
}
