//! What those find who come to a task that starts.

use std::path::Path;
use std::time::{Duration, Instant};

use grpcxx::model::SafetensorsWriter;
use grpcxx::store::list;
use grpcxx_rpc::Tensor;
use grpcxx_runtime::{Engine, EngineOptions};

use super::{grpcxx, options, start, text};

/// A model of so many tensors that putting them into the store takes a while.
fn write_many(path: &Path) {
    let names: Vec<String> = (0..TENSORS).map(|index| format!("layer.{index}")).collect();
    let tensor = Tensor::scalar(1_u8);
    let meta = tensor.meta();
    let described = names.iter().map(|name| (name.as_str(), &meta));
    let mut writer = SafetensorsWriter::create(path, described, &[]).unwrap();
    for name in &names {
        writer.write(name, &tensor).unwrap();
    }
    writer.finish().unwrap();
}

const TENSORS: usize = 50_000;

/// Workers dial a task again every second while it starts again.
#[test]
fn whoever_a_task_lets_in_finds_its_whole_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write_many(&path);
    let mut cluster = start(options(1, 0, &[path]));
    let star = cluster.star_address("ps:0").unwrap().to_owned();
    let impatient = EngineOptions::default().with(|options| {
        options.channel.redial_delay = Duration::from_millis(1);
    });
    let worker = Engine::start(impatient).unwrap();
    for _ in 0..3 {
        cluster.kill_task("ps:0").unwrap();
        let client = worker.client();
        let address = star.clone();
        let first = std::thread::spawn(move || {
            let end = Instant::now() + Duration::from_secs(60);
            loop {
                // Each time a new connection, at once.
                let peer = client.peer(&address).unwrap();
                match list(&client, &peer, Some(Duration::from_secs(10))) {
                    Ok(listed) => return listed.len(),
                    Err(status) => assert!(Instant::now() < end, "{status}"),
                }
                client.disconnect(&peer);
            }
        });
        cluster.restart_task("ps:0").unwrap();
        assert_eq!(first.join().unwrap(), TENSORS);
    }
    cluster.stop(Duration::from_secs(10)).unwrap();
}

#[test]
fn a_pull_of_nothing_replaces_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let backup = folder.path().join("backup.safetensors");
    std::fs::write(&backup, "a good one").unwrap();
    let cluster = start(options(1, 0, &[]));
    let star = cluster.star_address("ps:0").unwrap();
    let output = grpcxx(
        folder.path(),
        &["pull", "--all", "--star", star, "-o", "backup.safetensors"],
    );
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(66), "{err}");
    assert!(err.contains("no task keeps a tensor"), "{err}");
    assert_eq!(std::fs::read_to_string(&backup).unwrap(), "a good one");
    cluster.stop(Duration::from_secs(10)).unwrap();
}
