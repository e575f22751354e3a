//! Servers of tables, called as workers call them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_executor::block_on;
use grpcxx::model::Model;
use grpcxx::{Code, Engine, GraphCall, Status, Tensor};
use grpcxx_embedding::table::{Budget, Budgets, Layout, Optimizer, Part, mix};
use grpcxx_embedding::{Client, Server, ServerSpec, TableSpec};
use proptest::prelude::*;

const DIM: usize = 4;

fn spec(tables: &[&str]) -> ServerSpec {
    let tables = tables
        .iter()
        .map(|table| table.parse::<TableSpec>().unwrap());
    ServerSpec::new(tables.collect())
}

fn start(spec: ServerSpec, shards: usize, folder: Option<&Path>) -> Server {
    try_start(spec, shards, folder).unwrap()
}

fn try_start(spec: ServerSpec, shards: usize, folder: Option<&Path>) -> Result<Server, Status> {
    let engine = Engine::builder()
        .listen("127.0.0.1:0")
        .shards(shards)
        .pin(false);
    Server::start(engine, spec, folder.map(PathBuf::from))
}

fn worker() -> Engine {
    Engine::builder().shards(1).pin(false).start().unwrap()
}

fn addresses(servers: &[Server]) -> Vec<String> {
    let address = |server: &Server| server.engine().local_addr().unwrap().to_string();
    servers.iter().map(address).collect()
}

fn connect(engine: &Engine, servers: &[Server]) -> Client {
    block_on(Client::connect(engine, &addresses(servers))).unwrap()
}

/// The rows of all ids that were met, and their sums, kept as simply as can be.
struct Plain {
    layout: Layout,
    rows: HashMap<u64, (Vec<f32>, Vec<f32>)>,
}

impl Plain {
    fn row(&mut self, id: u64) -> &mut (Vec<f32>, Vec<f32>) {
        let layout = self.layout;
        self.rows.entry(id).or_insert_with(|| {
            let start = mix(layout.seed ^ mix(id));
            let element = |number| {
                let bits = mix(start.wrapping_add(number)) >> 40;
                (2.0 * (bits as f32 / 16_777_216.0) - 1.0) * layout.scale
            };
            ((0..DIM as u64).map(element).collect(), vec![0.1; DIM])
        })
    }

    fn lookup(&mut self, ids: &[u64]) -> Vec<f32> {
        ids.iter().flat_map(|id| self.row(*id).0.clone()).collect()
    }

    fn update(&mut self, ids: &[u64], gradients: &[f32], rate: f32) {
        let mut sums: HashMap<u64, Vec<f32>> = HashMap::new();
        for (id, gradient) in ids.iter().zip(gradients.chunks(DIM)) {
            match sums.get_mut(id) {
                Some(sum) => sum
                    .iter_mut()
                    .zip(gradient)
                    .for_each(|(sum, part)| *sum += part),
                None => drop(sums.insert(*id, gradient.to_vec())),
            }
        }
        let optimizer = self.layout.optimizer;
        for (id, gradient) in sums {
            let (row, squares) = self.row(id);
            for (place, gradient) in gradient.into_iter().enumerate() {
                match optimizer {
                    Optimizer::Sgd => row[place] -= rate * gradient,
                    Optimizer::Adagrad => {
                        squares[place] += gradient * gradient;
                        row[place] -= rate * gradient / squares[place].sqrt();
                    }
                }
            }
        }
    }
}

/// Ids of a batch, often the same, and whether they are updated.
type Step = (Vec<u64>, bool);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn tables_are_what_a_plain_map_would_be(
        steps in proptest::collection::vec(
            (proptest::collection::vec(0u64..40, 0..30), any::<bool>()), 1..12),
        shards in 1usize..4,
        servers in 1usize..3,
        is_adagrad in any::<bool>(),
    ) {
        let steps: Vec<Step> = steps;
        let table = if is_adagrad { "t:4:adagrad" } else { "t:4:sgd" };
        let specs = (0..servers).map(|index| ServerSpec { index, servers, ..spec(&[table]) });
        let layout = spec(&[table]).layout(&spec(&[table]).tables[0]);
        let servers: Vec<Server> = specs.map(|spec| start(spec, shards, None)).collect();
        let engine = worker();
        let client = connect(&engine, &servers);
        let mut plain = Plain { layout, rows: HashMap::new() };
        for (number, (ids, is_update)) in steps.into_iter().enumerate() {
            if is_update {
                let gradient = |place| ((place * 7 + number) % 11) as f32 * 0.3 - 1.1;
                let gradients: Vec<f32> = (0..ids.len() * DIM).map(gradient).collect();
                plain.update(&ids, &gradients, 0.1);
                block_on(client.update("t", &ids, gradients, 0.1)).unwrap();
            }
            let rows = block_on(client.lookup("t", &ids)).unwrap();
            prop_assert_eq!(rows.to_vec(), plain.lookup(&ids));
        }
    }
}

#[test]
fn workers_lose_no_update() {
    let servers = [start(spec(&["t:4"]), 2, None)];
    let engine = worker();
    let client = connect(&engine, &servers);
    let ids: Vec<u64> = (0..300).collect();
    let before = block_on(client.lookup("t", &ids)).unwrap().to_vec();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..20 {
                    let gradients = vec![1.0; ids.len() * DIM];
                    block_on(client.update("t", &ids, gradients, 1.0)).unwrap();
                }
            });
        }
    });
    let after = block_on(client.lookup("t", &ids)).unwrap().to_vec();
    for (before, after) in before.iter().zip(&after) {
        assert!(
            (before - after - 80.0).abs() < 1e-3,
            "{before} became {after}"
        );
    }
    assert_eq!(servers[0].description().tables[0].updates, 80);
}

#[test]
fn a_snapshot_has_each_update_whole_or_not() {
    let folder = tempfile::tempdir().unwrap();
    let servers = [start(spec(&["t:4"]), 2, Some(folder.path()))];
    let engine = worker();
    let client = connect(&engine, &servers);
    let ids: Vec<u64> = (0..2000).collect();
    let first = block_on(client.lookup("t", &ids)).unwrap().to_vec();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let gradients = vec![-1.0; ids.len() * DIM];
                    block_on(client.update("t", &ids, gradients, 1.0)).unwrap();
                }
            });
        }
        for _ in 0..8 {
            let written = block_on(client.snapshot()).unwrap();
            assert_eq!(written[0].rows, 2000);
            // Each update adds one to all rows: whatever was cut, all rows have as many.
            let model = Model::open(&[folder.path().join(&written[0].files[0])]).unwrap();
            let ids = model.read(model.entry("ids.00000").unwrap()).unwrap();
            let rows = model.read(model.entry("rows.00000").unwrap()).unwrap();
            let rows = rows.elements::<f32>().unwrap();
            let ids = ids.elements::<i64>().unwrap();
            let added = |(id, row): (&i64, &[f32])| (row[0] - first[*id as usize * DIM]).round();
            let added: Vec<f32> = ids.iter().zip(rows.chunks(DIM)).map(added).collect();
            assert!(added.iter().all(|count| *count == added[0]));
        }
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn rows_come_back_after_a_stop_with_as_many_servers_or_others() {
    let folder = tempfile::tempdir().unwrap();
    let tables = ["users:4:adagrad", "items:4"];
    let specs = |servers: usize| {
        (0..servers).map(move |index| ServerSpec {
            index,
            servers,
            ..spec(&tables)
        })
    };
    let run = |servers: usize, shards: usize| {
        let started = specs(servers).map(|spec| start(spec, shards, Some(folder.path())));
        started.collect::<Vec<Server>>()
    };
    let ids: Vec<u64> = (0..3000).map(mix).collect();
    let mut expected = Vec::new();
    // As many servers again, then more shards, then fewer servers.
    for (round, (servers, shards)) in [(2, 1), (2, 1), (2, 2), (1, 2)].into_iter().enumerate() {
        let servers = run(servers, shards);
        let engine = worker();
        let client = connect(&engine, &servers);
        for (place, table) in ["users", "items"].into_iter().enumerate() {
            if round > 0 {
                let rows = block_on(client.lookup(table, &ids)).unwrap().to_vec();
                assert_eq!(
                    rows,
                    expected[expected.len() - 2 + place],
                    "{table} {round}"
                );
            }
        }
        for table in ["users", "items"] {
            let gradients = vec![0.5; ids.len() * DIM];
            block_on(client.update(table, &ids, gradients, 0.1)).unwrap();
            expected.push(block_on(client.lookup(table, &ids)).unwrap().to_vec());
        }
        for server in servers {
            assert!(server.stop().unwrap().is_some());
        }
    }
}

#[test]
fn rows_of_as_many_servers_are_not_taken_where_others_wrote_newer_ones() {
    let folder = tempfile::tempdir().unwrap();
    let try_run = |index, servers| {
        let spec = ServerSpec {
            index,
            servers,
            ..spec(&["t:4"])
        };
        try_start(spec, 1, Some(folder.path()))
    };
    for servers in [2, 1] {
        for index in 0..servers {
            try_run(index, servers).unwrap().stop().unwrap();
        }
    }
    for index in 0..2 {
        let refused = try_run(index, 2).unwrap_err();
        assert_eq!(refused.code, Code::FailedPrecondition, "{refused}");
        let text = "by [1] servers are newer than those by 2";
        assert!(refused.message.contains(text), "{refused}");
        std::fs::remove_file(folder.path().join(format!("t.{index}-of-2.safetensors"))).unwrap();
    }
    for index in 0..2 {
        try_run(index, 2).unwrap().stop().unwrap();
        try_run(index, 2).unwrap();
    }
}

#[test]
fn a_table_that_cannot_be_written_leaves_the_others_their_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(spec(&["a:4", "b:4"]), 1, Some(folder.path()));
    std::fs::create_dir(folder.path().join("a.0-of-1.safetensors")).unwrap();
    let failed = server.stop().unwrap_err();
    assert!(failed.message.contains("a.0-of-1"), "{failed}");
    assert!(folder.path().join("b.0-of-1.safetensors").is_file());
}

#[test]
fn an_answer_that_is_too_long_is_refused_before_its_memory_is_taken() {
    let servers = [start(spec(&["t:65536"]), 1, None)];
    let engine = worker();
    let client = connect(&engine, &servers);
    let refused = block_on(client.lookup("t", &[7; 1025])).unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
    assert!(refused.message.contains("--batch-mib-max"), "{refused}");
    assert_eq!(block_on(client.lookup("t", &[7; 2])).unwrap().len(), 2);
}

proptest! {
    #[test]
    fn finite_gradients_leave_finite_rows(
        gradients in proptest::collection::vec((0u64..2, any::<f32>()), 1..8),
        rate in any::<f32>(),
        is_adagrad in any::<bool>(),
    ) {
        let table = if is_adagrad { "t:1:adagrad" } else { "t:1:sgd" };
        let layout = spec(&[table]).layout(&spec(&[table]).tables[0]);
        let budget = || Arc::new(Budget::new(1 << 20));
        let mut part = Part::new(layout, Budgets { rows: budget(), bytes: budget() });
        let rows = part.find(gradients.iter().map(|(id, _)| *id)).unwrap();
        let gradients: Vec<[f32; 1]> = gradients.iter().map(|(_, gradient)| [*gradient]).collect();
        for _ in 0..3 {
            part.update(rows.iter().copied().zip(gradients.iter().map(|row| &row[..])), rate);
        }
        for chunk in part.freeze() {
            for (id, elements, sums) in chunk.rows(layout) {
                let all = elements.iter().chain(sums);
                prop_assert!(all.clone().all(|value| value.is_finite()), "{id}: {all:?}");
            }
        }
    }
}

#[test]
fn bad_input_is_refused_in_words_and_changes_nothing() {
    let limits = ServerSpec {
        batch_rows_max: 10,
        ids_below: 100,
        rows_max: 20,
        ..spec(&["t:4"])
    };
    let servers = [start(limits, 2, None)];
    let engine = worker();
    let client = connect(&engine, &servers);
    let refused = |result: Result<(), Status>, code: Code, text: &str| {
        let status = result.unwrap_err();
        assert_eq!(status.code, code, "{status}");
        assert!(status.message.contains(text), "{status}");
    };
    let lookup = |table: &str, ids: &[u64]| block_on(client.lookup(table, ids)).map(drop);
    refused(lookup("u", &[1]), Code::NotFound, "there are: t");
    refused(lookup("t", &[100]), Code::OutOfRange, "not below 100");
    refused(
        lookup("t", &[1; 11]),
        Code::InvalidArgument,
        "10 are allowed",
    );

    let raw = engine.connect(&addresses(&servers)[0]).unwrap();
    let update = |gradients: Tensor, rate: f32| {
        let call = GraphCall::new("embedding.update/t")
            .with_feed("ids", Tensor::vector(vec![1i64]))
            .with_feed("gradients", gradients)
            .with_feed("rate", Tensor::scalar(rate))
            .with_fetch("updated");
        raw.run(call).wait().map(drop)
    };
    let before = block_on(client.lookup("t", &[1])).unwrap().to_vec();
    let narrow = Tensor::from_vec(grpcxx::Shape::new(&[1, 3]).unwrap(), vec![1f32; 3]).unwrap();
    refused(update(narrow, 1.0), Code::InvalidArgument, "want [1, 4]");
    let row = |value: f32| {
        let shape = grpcxx::Shape::new(&[1, 4]).unwrap();
        Tensor::from_vec(shape, vec![value; 4]).unwrap()
    };
    refused(update(row(f32::NAN), 1.0), Code::InvalidArgument, "finite");
    refused(
        update(row(1.0), f32::INFINITY),
        Code::InvalidArgument,
        "finite",
    );
    let bytes = Tensor::vector(vec![1u8]);
    let call = GraphCall::new("embedding.lookup/t")
        .with_feed("ids", bytes)
        .with_fetch("rows");
    refused(
        raw.run(call).wait().map(drop),
        Code::InvalidArgument,
        "uint8",
    );
    let call = GraphCall::new("embedding.snapshot").with_fetch("snapshot");
    refused(
        raw.run(call).wait().map(drop),
        Code::FailedPrecondition,
        "--snapshots",
    );

    // The table is full behind 20 rows: an update of old and new rows changes none of them.
    block_on(client.lookup("t", &(0..10).collect::<Vec<_>>())).unwrap();
    block_on(client.lookup("t", &(10..20).collect::<Vec<_>>())).unwrap();
    let ids: Vec<u64> = (1..3).chain(90..95).collect();
    let gradients = vec![1.0; ids.len() * DIM];
    refused(
        block_on(client.update("t", &ids, gradients, 1.0)),
        Code::ResourceExhausted,
        "--rows-max",
    );
    assert_eq!(block_on(client.lookup("t", &[1])).unwrap().to_vec(), before);
    assert_eq!(servers[0].description().tables[0].rows, 20);
}

#[test]
fn fewer_rows_than_ids_are_an_error_and_no_panic() {
    let description = start(spec(&["t:4"]), 1, None).description();
    let tables = Tensor::vector(serde_json::to_vec(&description).unwrap());
    let server = Engine::builder().listen("127.0.0.1:0").pin(false);
    let other = server.start_with(|engine| {
        let tables = move |_: GraphCall| Ok([("tables", tables.clone())]);
        engine.register_fn("embedding.tables", tables);
        engine.register_fn("embedding.lookup/t", |_: GraphCall| {
            let shape = grpcxx::Shape::new(&[1, 4]).unwrap();
            Ok([("rows", Tensor::from_vec(shape, vec![0.0_f32; 4])?)])
        });
    });
    let other = other.unwrap();
    let engine = worker();
    let address = other.local_addr().unwrap().to_string();
    let client = block_on(Client::connect(&engine, &[address])).unwrap();
    let rows = block_on(client.lookup("t", &[1, 2]));
    assert_eq!(
        rows.map(|rows| rows.len()).unwrap_err().code,
        Code::Internal
    );
    assert_eq!(block_on(client.lookup("t", &[1])).unwrap().len(), 1);
}

#[test]
fn a_snapshot_of_other_rows_ends_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let server = start(spec(&["t:4"]), 1, Some(folder.path()));
    let servers = [server];
    let engine = worker();
    let client = connect(&engine, &servers);
    block_on(client.lookup("t", &[1, 2, 3])).unwrap();
    let [server] = servers;
    server.stop().unwrap();
    let status = try_start(spec(&["t:8"]), 1, Some(folder.path())).unwrap_err();
    assert!(status.message.contains("rows of 8"), "{status}");
    let status = try_start(spec(&["t:4:adagrad"]), 1, Some(folder.path())).unwrap_err();
    assert!(status.message.contains("accumulators"), "{status}");
}
