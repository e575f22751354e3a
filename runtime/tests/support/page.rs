//! What the metrics of a server tell.

use grpcxx_runtime::Engine;

/// The value on the first line of the page that begins so.
pub(crate) fn told(server: &Engine, beginning: &str) -> u64 {
    let page = server.exposition().text().into_string();
    let line = page.lines().find(|line| line.starts_with(beginning));
    line.unwrap().rsplit(' ').next().unwrap().parse().unwrap()
}
