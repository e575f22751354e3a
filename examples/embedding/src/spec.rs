//! What a server is told of its tables and limits.

use std::str::FromStr;

use crate::table::{Layout, Optimizer};

/// Floats of a row, at most.
const DIM_MAX: usize = 65_536;

/// A table as it is written: `NAME:DIM` or `NAME:DIM:OPTIMIZER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// Its name, of letters, digits, `_` and `-`.
    pub name: String,
    /// Floats of a row.
    pub dim: usize,
    /// How gradients change it.
    pub optimizer: Optimizer,
}

impl FromStr for TableSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(':').collect();
        let (name, dim, optimizer) = match words[..] {
            [name, dim] => (name, dim, "sgd"),
            [name, dim, optimizer] => (name, dim, optimizer),
            _ => return Err(format!("{text:?} is not NAME:DIM or NAME:DIM:OPTIMIZER")),
        };
        let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "_-".contains(letter);
        if name.is_empty() || name.len() > 100 || !name.chars().all(is_allowed) {
            return Err(format!(
                "{name:?} is no name of a table: 1 to 100 letters, digits, _ and -"
            ));
        }
        let dim = dim.parse().ok().filter(|dim| (1..=DIM_MAX).contains(dim));
        Ok(Self {
            name: name.to_owned(),
            dim: dim.ok_or_else(|| format!("{text:?}: DIM is a number from 1 to {DIM_MAX}"))?,
            optimizer: match optimizer {
                "sgd" => Optimizer::Sgd,
                "adagrad" => Optimizer::Adagrad,
                _ => return Err(format!("{optimizer:?} is neither sgd nor adagrad")),
            },
        })
    }
}

/// What a server keeps, and how much of it.
#[derive(Clone, Debug)]
pub struct ServerSpec {
    /// The tables.
    pub tables: Vec<TableSpec>,
    /// Which of the servers this is.
    pub index: usize,
    /// How many servers share the ids.
    pub servers: usize,
    /// New rows depend on this, their table and their id.
    pub seed: u64,
    /// Elements of new rows are spread evenly over `-scale..scale`.
    pub scale: f32,
    /// Rows of a table on this server.
    pub rows_max: u64,
    /// Memory of all rows on this server.
    pub memory_bytes_max: u64,
    /// Ids in one call.
    pub batch_rows_max: usize,
    /// Bytes of the rows of one call, each id counted as often as it comes.
    pub batch_bytes_max: u64,
    /// Ids are less than this.
    pub ids_below: u64,
}

impl ServerSpec {
    /// One server with these tables and the limits that the program has if nothing is said.
    pub fn new(tables: Vec<TableSpec>) -> Self {
        Self {
            tables,
            index: 0,
            servers: 1,
            seed: 1,
            scale: 0.05,
            rows_max: 100_000_000,
            memory_bytes_max: 4 << 30,
            batch_rows_max: 262_144,
            batch_bytes_max: 256 << 20,
            ids_below: u64::MAX,
        }
    }

    /// How the rows of a table lie.
    pub fn layout(&self, table: &TableSpec) -> Layout {
        let name = table.name.bytes();
        let seed = name.fold(self.seed, |seed, byte| {
            crate::table::mix(seed ^ u64::from(byte))
        });
        Layout {
            dim: table.dim,
            optimizer: table.optimizer,
            seed,
            scale: self.scale,
        }
    }

    /// The first thing that cannot be, in words.
    ///
    /// # Errors
    /// There is one.
    pub fn check(&self) -> Result<(), String> {
        if self.tables.is_empty() {
            return Err("a server needs a table: --table NAME:DIM".to_owned());
        }
        for (place, table) in self.tables.iter().enumerate() {
            let mut others = self.tables[..place].iter();
            if others.any(|other| other.name == table.name) {
                return Err(format!("the table {:?} is there twice", table.name));
            }
        }
        if self.index >= self.servers {
            return Err(format!(
                "there is no server {} of {}; they are counted from 0",
                self.index, self.servers
            ));
        }
        if !self.scale.is_finite() {
            return Err(format!("the scale {} is no finite number", self.scale));
        }
        Ok(())
    }
}

/// The server that has the row of this id.
pub fn server_of(id: u64, servers: usize) -> usize {
    ((crate::table::mix(id) >> 32) % servers as u64) as usize
}

/// The shard of its server that has the row of this id.
pub fn shard_of(id: u64, shards: usize) -> usize {
    ((crate::table::mix(id) & 0xffff_ffff) % shards as u64) as usize
}
