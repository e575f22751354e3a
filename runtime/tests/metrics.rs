//! Metrics that a program counts on shards and on threads of its own.

use std::thread;

use grpcxx_rpc::Code;
use grpcxx_runtime::Engine;
use grpcxx_runtime::metrics::MetricValue;

fn engine() -> Engine {
    Engine::builder().shards(2).start().unwrap()
}

#[test]
fn what_shards_and_threads_count_adds_up() {
    let engine = engine();
    let counter = engine
        .metrics()
        .counter("seen_total", "Seen.", &[])
        .unwrap();
    let gauge = engine.metrics().gauge("kept", "Kept.", &[]).unwrap();
    let on_shards = (0..2).map(|shard| {
        let (counter, gauge) = (counter.clone(), gauge.clone());
        engine.shards().invoke_on(shard, move || {
            (0..1000).for_each(|_| counter.increment());
            gauge.set(10 + shard as i64);
        })
    });
    on_shards.for_each(|run| run.wait().unwrap());
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..1000).for_each(|_| counter.add(2)));
        }
    });
    gauge.add(-1);
    assert_eq!((counter.value(), gauge.value()), (10_000, 20));
}

#[test]
fn values_fall_into_the_class_of_their_bound() {
    let engine = engine();
    let sizes = engine
        .metrics()
        .histogram("sizes", "Sizes.", &[], &[1.0, 2.0]);
    let sizes = sizes.unwrap();
    for value in [0.5, 1.0, 1.5, 2.0, 100.0, f64::NAN] {
        sizes.record(value);
    }
    let report = sizes.report();
    assert_eq!(report.counts, [2, 2, 1]);
    assert_eq!((report.count(), report.sum), (5, 105.0));
}

#[test]
fn the_same_name_and_labels_are_the_same_metric() {
    let engine = engine();
    let metrics = engine.metrics();
    let labels = [("table", "a"), ("op", "get")];
    let turned = [("op", "get"), ("table", "a")];
    metrics
        .counter("ops_total", "Ops.", &labels)
        .unwrap()
        .add(1);
    metrics
        .counter("ops_total", "Ops.", &turned)
        .unwrap()
        .add(1);
    metrics
        .counter("ops_total", "Ops.", &[("op", "put")])
        .unwrap()
        .add(5);
    let reports = metrics.reports();
    let values: Vec<_> = reports.iter().map(|report| report.value.clone()).collect();
    assert_eq!(values, [MetricValue::Counter(2), MetricValue::Counter(5)]);
}

#[test]
fn what_cannot_be_a_metric_is_named() {
    let engine = engine();
    let metrics = engine.metrics();
    metrics.gauge("kept", "Kept.", &[]).unwrap();
    let long = "x".repeat(300);
    for (name, labels) in [
        ("", vec![]),
        ("1st", vec![]),
        ("a b", vec![]),
        ("grpcxx_calls_total", vec![]),
        ("kept", vec![]),
        ("kept", vec![("op", "get")]),
        ("fine", vec![("le", "1")]),
        ("fine", vec![("__name__", "x")]),
        ("fine", vec![("op", "a"), ("op", "b")]),
        ("fine", vec![("op", &*long)]),
        (&long, vec![]),
    ] {
        let status = metrics.counter(name, "", &labels).unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument, "{name}");
    }
    for bounds in [&[][..], &[1.0, 1.0], &[f64::INFINITY], &[0.0; 65]] {
        assert!(metrics.histogram("sizes", "", &[], bounds).is_err());
    }
}

#[test]
fn metrics_are_bounded() {
    let engine = engine();
    let metrics = engine.metrics();
    let make = |number: u32| metrics.counter("many_total", "", &[("n", &number.to_string())]);
    (0..1024).for_each(|number| drop(make(number).unwrap()));
    assert_eq!(make(1024).unwrap_err().code, Code::ResourceExhausted);
    make(7).unwrap();
}
