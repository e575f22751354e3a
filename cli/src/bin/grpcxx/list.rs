use std::borrow::Cow;

use grpcxx::store::Listed;
use grpcxx_runtime::config::Config;
use serde::Serialize;

use crate::arguments::ListArguments;
use crate::cluster::Cluster;
use crate::output::{Output, Table, size};
use crate::select::Patterns;
use crate::terminal::Outcome;

#[derive(Serialize)]
struct Row<'a> {
    name: String,
    /// `type 99` where only a newer version knows it.
    dtype: Cow<'static, str>,
    shape: Vec<u64>,
    bytes: u64,
    task: &'a str,
}

/// Lists tensors.
pub(crate) fn run(arguments: &ListArguments, config: &Config, output: Output) -> Outcome {
    let cluster = Cluster::connect(&arguments.target, config)?;
    let patterns = Patterns::new(&arguments.patterns);
    let listed = cluster.list(arguments.task.as_deref())?;
    let mut rows: Vec<(usize, Row<'_>)> = Vec::new();
    for (index, _, listed) in listed {
        let task = &cluster.tasks()[index].name;
        let of_task = rows_of(listed, task);
        let chosen = of_task.filter(|row| patterns.matches(&row.name));
        rows.extend(chosen.map(|row| (index, row)));
    }
    rows.sort_by(|(a, one), (b, other)| (&one.name, a).cmp(&(&other.name, b)));
    let rows: Vec<Row<'_>> = rows.into_iter().map(|(_, row)| row).collect();
    output.print(&rows, || {
        let mut table = Table::new(&["name", "dtype", "shape", "bytes#", "task"]);
        for row in &rows {
            table.row([
                row.name.clone(),
                row.dtype.to_string(),
                format!("{:?}", row.shape),
                row.bytes.to_string(),
                row.task.to_owned(),
            ]);
        }
        let bytes = rows.iter().map(|row| row.bytes).sum();
        format!("{table}{} tensors, {}", rows.len(), size(bytes))
    })
}

fn rows_of(listed: Listed, task: &str) -> impl Iterator<Item = Row<'_>> {
    let known = listed.stored.into_iter().map(move |stored| Row {
        name: stored.name,
        dtype: Cow::Borrowed(stored.meta.dtype.name()),
        shape: stored.meta.shape.dims().to_vec(),
        bytes: stored.meta.data_bytes,
        task,
    });
    let unknown = listed.unknown.into_iter().map(move |stored| Row {
        name: stored.name,
        dtype: Cow::Owned(format!("type {}", stored.dtype)),
        shape: stored.shape.dims().to_vec(),
        bytes: stored.data_bytes,
        task,
    });
    known.chain(unknown)
}
