//! Rows of snapshots, taken in before a server serves.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use grpcxx::model::Model;
use grpcxx::{Code, Status, Tensor};

use super::snapshot::{Names, file_name};
use super::{OnShard, Table, Tables};
use crate::spec::{server_of, shard_of};
use crate::table::{Full, Optimizer};

impl Tables {
    /// Takes the rows that are this server's out of the files in its folder.
    pub(super) fn restore(&self) -> Result<(), Status> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        std::fs::create_dir_all(folder).map_err(|error| {
            wrong(
                folder,
                &format!("the folder for snapshots cannot be made: {error}"),
            )
        })?;
        for (place, table) in self.tables.iter().enumerate() {
            for path in self.files(folder, &table.spec.name)? {
                self.restore_file(place, table, &path)?;
            }
        }
        Ok(())
    }

    /// The server's own file, or those of all servers if their number was another one.
    fn files(&self, folder: &Path, table: &str) -> Result<Vec<PathBuf>, Status> {
        let own = folder.join(file_name(table, self.spec.index, self.spec.servers));
        let mut others = sets_of_files(folder, table)?;
        // The others of this set may have been written when this server had not begun.
        others.remove(&self.spec.servers);
        if own.exists() {
            let written = modified(&own)?;
            others.retain(|_, newest| *newest > written);
            if others.is_empty() {
                return Ok(vec![own]);
            }
            let text = format!(
                "snapshots of table {table:?} by {:?} servers are newer than those by {}; leave \
                 those that shall be taken",
                others.keys(),
                self.spec.servers
            );
            return Err(wrong(folder, &text));
        }
        let counts: Vec<usize> = others.into_keys().collect();
        let servers = match counts[..] {
            [] => return Ok(Vec::new()),
            [servers] => servers,
            _ => {
                let text = format!(
                    "snapshots of table {table:?} are there by {counts:?} servers; leave those \
                     that shall be taken"
                );
                return Err(wrong(folder, &text));
            }
        };
        let files = (0..servers).map(|index| folder.join(file_name(table, index, servers)));
        let files: Vec<PathBuf> = files.collect();
        match files.iter().find(|path| !path.exists()) {
            Some(missing) => Err(wrong(missing, "this part of a snapshot is missing")),
            None => Ok(files),
        }
    }

    fn restore_file(&self, place: usize, table: &Table, path: &Path) -> Result<(), Status> {
        let model = Model::open(&[path]).map_err(|error| wrong(path, &error.to_string()))?;
        for number in 0.. {
            let names = Names::of(number);
            let Some(ids) = model.entry(&names.ids) else {
                return Ok(());
            };
            let read = |entry: Option<&grpcxx::model::Entry>, name: &str| {
                let entry = entry.ok_or_else(|| wrong(path, &format!("it has no {name}")))?;
                let tensor = model.read(entry);
                tensor.map_err(|error| wrong(path, &error.to_string()))
            };
            let ids = read(Some(ids), &names.ids)?;
            let rows = read(model.entry(&names.rows), &names.rows)?;
            let sums = match table.spec.optimizer {
                Optimizer::Adagrad => Some(read(model.entry(&names.sums), &names.sums)?),
                Optimizer::Sgd => None,
            };
            self.restore_piece(place, table, path, [Some(ids), Some(rows), sums])?;
        }
        Ok(())
    }

    fn restore_piece(
        &self,
        place: usize,
        table: &Table,
        path: &Path,
        [ids, rows, sums]: [Option<Tensor>; 3],
    ) -> Result<(), Status> {
        let dim = table.spec.dim;
        let ids = ids.unwrap_or_else(|| Tensor::vector(Vec::<i64>::new()));
        let ids = ids.elements::<i64>()?;
        let wanted = [ids.len() as u64, dim as u64];
        for tensor in [&rows, &sums].into_iter().flatten() {
            if tensor.shape.dims() != wanted {
                let text = format!(
                    "it has a tensor of the shape {} beside {} ids; table {:?} has rows of {dim}",
                    tensor.shape, wanted[0], table.spec.name
                );
                return Err(wrong(path, &text));
            }
        }
        let shards = self.shards.shards().len();
        let mut places = vec![Vec::new(); shards];
        for (row, id) in ids.iter().map(|id| *id as u64).enumerate() {
            if server_of(id, self.spec.servers) == self.spec.index {
                places[shard_of(id, shards)].push((row, id));
            }
        }
        for (shard, places) in places.into_iter().enumerate() {
            let (rows, sums) = (rows.clone(), sums.clone());
            let restored = self.shards.invoke_on(shard, move |own| {
                restore_rows(own, place, dim, &places, [rows.as_ref(), sums.as_ref()])
            });
            match restored.wait()?? {
                Ok(None) => {}
                Ok(Some(id)) => return Err(wrong(path, &format!("id {id} is there twice"))),
                Err(full) => return Err(self.full(table, full)),
            }
        }
        Ok(())
    }
}

/// The first id that was there already, if there is one.
type Restored = Result<Option<u64>, Full>;

fn restore_rows(
    own: &OnShard,
    place: usize,
    dim: usize,
    places: &[(usize, u64)],
    [rows, sums]: [Option<&Tensor>; 2],
) -> Result<Restored, Status> {
    let part = &mut own.parts.borrow_mut()[place];
    let rows = rows
        .map(Tensor::elements::<f32>)
        .transpose()?
        .unwrap_or_default();
    let sums = sums
        .map(Tensor::elements::<f32>)
        .transpose()?
        .unwrap_or_default();
    for (row, id) in places {
        let of_row = *row * dim..(*row + 1) * dim;
        let sums = sums.get(of_row.clone()).unwrap_or_default();
        match part.restore(*id, &rows[of_row], sums) {
            Ok(true) => {}
            Ok(false) => return Ok(Ok(Some(*id))),
            Err(full) => return Ok(Err(full)),
        }
    }
    Ok(Ok(None))
}

/// By how many servers the files of a table were written, with the time of the newest of each.
fn sets_of_files(folder: &Path, table: &str) -> Result<BTreeMap<usize, SystemTime>, Status> {
    let files = std::fs::read_dir(folder);
    let files = files.map_err(|error| wrong(folder, &error.to_string()))?;
    let mut sets = BTreeMap::new();
    for file in files {
        let file = file.map_err(|error| wrong(folder, &error.to_string()))?;
        let name = file.file_name();
        let servers = name.to_str().and_then(|name| {
            let name = name.strip_prefix(table)?.strip_prefix('.')?;
            let (_, servers) = name.strip_suffix(".safetensors")?.split_once("-of-")?;
            servers.parse::<usize>().ok()
        });
        if let Some(servers) = servers {
            let written = modified(&file.path())?;
            let newest = sets.entry(servers).or_insert(written);
            *newest = written.max(*newest);
        }
    }
    Ok(sets)
}

fn modified(path: &Path) -> Result<SystemTime, Status> {
    let modified = std::fs::metadata(path).and_then(|file| file.modified());
    modified.map_err(|error| wrong(path, &error.to_string()))
}

fn wrong(path: &Path, problem: &str) -> Status {
    let text = format!("{}: {problem}", path.display());
    Status::new(Code::FailedPrecondition, text)
}
