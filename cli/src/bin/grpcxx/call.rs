use grpcxx_rpc::{GraphCall, Request, Response, Tensor, TensorMeta, Text};
use grpcxx_runtime::config::Config;
use serde::Serialize;

use crate::arguments::CallArguments;
use crate::cluster::{Cluster, at};
use crate::output::{Output, Table};
use crate::pull::Sink;
use crate::terminal::{Exit, Failure, Outcome, open_model};
use crate::values::preview;

#[derive(Serialize)]
struct Value {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
    bytes: usize,
    preview: String,
}

/// Calls a function.
pub(crate) fn run(arguments: &CallArguments, config: &Config, output: Output) -> Outcome {
    let feeds = open_model(&arguments.feed)?;
    let feeds: Vec<(Text, Tensor)> = feeds
        .entries()
        .iter()
        .map(|entry| Ok((Text::from(entry.name.as_str()), feeds.read(entry)?)))
        .collect::<Outcome<_>>()?;
    let cluster = Cluster::connect(&arguments.target, config)?;
    let task = &cluster.tasks()[cluster.task(&arguments.task)?];
    let call = GraphCall {
        graph_handle: Text::from(arguments.function.as_str()),
        step_id: arguments.step_id,
        feeds: feeds.into(),
        fetches: arguments
            .fetch
            .iter()
            .map(|name| Text::from(name.as_str()))
            .collect(),
        ..GraphCall::default()
    };
    let peer = cluster.peer(task)?;
    let request = Request::StarRunGraph(Box::new(call));
    let response = cluster
        .client()
        .call(&peer, request, cluster.timeout())
        .wait()
        .map_err(|status| at(task, status))?;
    let Response::Fetched(results) = response else {
        return Err(Failure::new(Exit::Data, "the answer holds no results"));
    };
    if let Some(path) = &arguments.output {
        let metas: Vec<(&str, TensorMeta)> = results
            .iter()
            .map(|(name, tensor)| (name.as_str(), tensor.meta()))
            .collect();
        let described = metas.iter().map(|(name, meta)| (*name, meta));
        let mut sink = Sink::create(path, described, &[])?;
        for (name, tensor) in &results {
            sink.take(name, tensor)?;
        }
        sink.finish()?;
    }
    let values: Vec<Value> = results
        .iter()
        .map(|(name, tensor)| Value {
            name: name.to_string(),
            dtype: tensor.dtype.name(),
            shape: tensor.shape.dims().to_vec(),
            bytes: tensor.data.len(),
            preview: preview(tensor),
        })
        .collect();
    output.print(&values, || {
        if values.is_empty() {
            return "done; it returned nothing".to_owned();
        }
        let mut table = Table::new(&["name", "dtype", "shape", "values"]);
        for (value, (_, tensor)) in values.iter().zip(&results) {
            table.row([
                value.name.clone(),
                value.dtype.to_owned(),
                tensor.shape.to_string(),
                value.preview.clone(),
            ]);
        }
        table.to_string()
    })
}
