use grpcxx_runtime::config::Config;
use serde::Serialize;

use crate::arguments::ListArguments;
use crate::cluster::Cluster;
use crate::output::{Output, Table, size};
use crate::select::Patterns;
use crate::terminal::Outcome;

#[derive(Serialize)]
struct Row<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [u64],
    bytes: u64,
    task: &'a str,
}

/// Lists tensors.
pub(crate) fn run(arguments: &ListArguments, config: &Config, output: Output) -> Outcome {
    let cluster = Cluster::connect(&arguments.target, config)?;
    let patterns = Patterns::new(&arguments.patterns);
    let mut found = cluster.find(&patterns, arguments.task.as_deref())?;
    found.sort_by(|a, b| (&a.stored.name, a.task).cmp(&(&b.stored.name, b.task)));
    let shapes = found
        .iter()
        .map(|found| found.stored.meta.shape.to_string());
    let rows: Vec<Row<'_>> = found
        .iter()
        .map(|found| Row {
            name: &found.stored.name,
            dtype: found.stored.meta.dtype.name(),
            shape: found.stored.meta.shape.dims(),
            bytes: found.stored.meta.data_bytes,
            task: &cluster.tasks()[found.task].name,
        })
        .collect();
    output.print(&rows, || {
        let mut table = Table::new(&["name", "dtype", "shape", "bytes#", "task"]);
        for (row, shape) in rows.iter().zip(shapes) {
            table.row([
                row.name.to_owned(),
                row.dtype.to_owned(),
                shape,
                row.bytes.to_string(),
                row.task.to_owned(),
            ]);
        }
        let bytes = rows.iter().map(|row| row.bytes).sum();
        format!("{table}{} tensors, {}", rows.len(), size(bytes))
    })
}
