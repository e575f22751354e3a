//! What both programs do at a terminal: exit codes and their messages, logs, signals.

mod exit;
pub(crate) mod log;
mod models;
mod open_files;
pub(crate) mod output;
pub(crate) mod plain;
mod settings;
mod signals;

pub(crate) use exit::{Exit, Failure, OrExit, Outcome, parse_arguments};
pub(crate) use log::start_log;
pub(crate) use models::open_model;
pub(crate) use open_files::raise_open_files;
pub(crate) use settings::{read_cluster, read_config, start_telemetry};
pub(crate) use signals::Signals;
