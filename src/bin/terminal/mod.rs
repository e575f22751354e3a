//! What both programs do at a terminal: exit codes and their messages, logs, signals.

mod exit;
mod log;
mod signals;

pub use exit::{Exit, Failure, OrExit, Outcome, parse_arguments};
pub use log::start_log;
pub use signals::Signals;
