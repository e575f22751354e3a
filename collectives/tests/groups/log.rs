//! What the log says of the way that arrays take.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::thread;

use grpcxx_collectives::{Group, ReduceOp};
use grpcxx_rpc::Tensor;
use grpcxx_runtime::Engine;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Event, Level, Metadata, Subscriber};

use super::{address, engines, values};

/// Keeps what groups log at level INFO.
#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

/// The message of an event.
struct Message(String);

/// Runs the code of all ranks, each on a thread of its own, and returns the lines of each.
pub(super) fn logged(engines: &[Engine], code: impl Fn(Group) + Sync) -> Vec<Vec<String>> {
    let (size, first) = (engines.len() as u32, address(&engines[0]));
    let code = &code;
    thread::scope(|scope| {
        let begin = |(rank, engine)| {
            let joining = Group::builder(rank, size, first.clone())
                .begin(engine)
                .unwrap();
            scope.spawn(move || {
                let lines = Arc::new(Lines::default());
                with_default(Arc::clone(&lines), || code(joining.wait().unwrap()));
                std::mem::take(&mut *lines.0.lock().unwrap())
            })
        };
        let ranks: Vec<_> = (0..).zip(engines).map(begin).collect();
        let ends = ranks.into_iter().map(|rank| rank.join().unwrap());
        ends.collect()
    })
}

/// Whether each of these is the beginning of one line, and of no other.
pub(super) fn are_told_once(lines: &[String], beginnings: &[&str]) {
    for beginning in beginnings {
        let found = lines.iter().filter(|line| line.starts_with(beginning));
        assert_eq!(found.count(), 1, "{beginning}: {lines:#?}");
    }
}

/// Short and long ones, each twice, and a short one of another tag.
fn reduce(group: Group) {
    let beside = group.with_tag(1);
    for len in [5, 5, 300_000, 300_000] {
        let mine = Tensor::vector(values(group.rank(), len));
        group.all_reduce(mine, ReduceOp::Sum).wait().unwrap();
    }
    beside.broadcast(Tensor::scalar(1f32), 0).wait().unwrap();
    group.leave().unwrap();
}

#[test]
fn the_log_says_that_short_arrays_go_by_boards() {
    for lines in logged(&engines(2, true), reduce) {
        are_told_once(
            &lines,
            &[
                "short arrays go by shared memory: all ranks are on one host",
                "all_reduce goes by boards: it is short",
                "all_reduce goes by segments: each rank combines its part of each",
                "broadcast goes by exchange: it is short, so each rank sends it",
            ],
        );
        assert_eq!(lines.len(), 4, "{lines:#?}");
    }
}

#[test]
fn the_log_says_that_short_arrays_go_by_messages_and_why() {
    for lines in logged(&engines(2, false), reduce) {
        are_told_once(
            &lines,
            &[
                "short arrays go by messages, not by shared memory: that of this rank is off (",
                "all_reduce goes by exchange: it is short, so each rank sends it to each",
                "all_reduce goes by owners: each rank takes its chunk",
            ],
        );
        assert_eq!(lines.len(), 3, "{lines:#?}");
    }
}

#[test]
fn the_log_names_the_rank_that_has_no_shared_memory() {
    let mut engines = engines(3, true);
    engines.truncate(2);
    engines.extend(super::engines(1, false));
    let lines = logged(&engines, |group| group.leave().unwrap());
    for (rank, lines) in lines.iter().enumerate() {
        let why = match rank {
            2 => "that of this rank is off (",
            _ => "rank 2 has none",
        };
        let line = format!("short arrays go by messages, not by shared memory: {why}");
        are_told_once(lines, &[&line]);
    }
}

#[test]
fn a_group_of_one_has_no_way_to_tell() {
    let lines = logged(&engines(1, true), |group| group.leave().unwrap());
    assert!(
        !lines[0].iter().any(|line| line.contains("arrays go")),
        "{lines:#?}"
    );
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("grpcxx_collectives") && *metadata.level() <= Level::INFO
    }

    fn event(&self, event: &Event<'_>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}
