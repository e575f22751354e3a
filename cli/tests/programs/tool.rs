use std::path::Path;
use std::process::Command;
use std::time::Duration;

use grpcxx::model::{Fingerprint, Model};
use grpcxx_cli::local::LocalCluster;
use grpcxx_rpc::Request;
use serde_json::Value;

use super::cluster::{caller, device, key, peer};
use super::{grpcxx, options, start, text, write_model};

/// Runs `grpcxx --json` against `cluster` and returns what it printed.
fn json(cluster: &LocalCluster, folder: &Path, arguments: &[&str]) -> Value {
    let map = cluster.endpoint_map();
    let mut all = vec!["--json"];
    all.extend(arguments);
    all.extend(["--cluster-spec", cluster.cluster_spec()]);
    all.extend(["--endpoint-map", map.to_str().unwrap()]);
    let output = grpcxx(folder, &all);
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        text(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn models_are_pushed_listed_pulled_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write_model(&path);
    let cluster = start(options(2, 1, &[]));
    let json = |arguments: &[&str]| json(&cluster, folder.path(), arguments);

    assert_eq!(json(&["list"]).as_array().unwrap().len(), 0);
    let pushed = json(&["push", "model.safetensors"]);
    assert_eq!(pushed["tensors"], 306);
    assert_eq!(pushed["tasks"].as_array().unwrap().len(), 2);

    let listed = json(&["list", "ids", "layer.?.bias"]);
    let names: Vec<&str> = listed
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["name"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 11);
    assert_eq!(names[0], "ids");
    assert_eq!(listed[0]["dtype"], "int64");
    assert_eq!(listed[0]["shape"], serde_json::json!([1, 33]));

    let pulled = json(&[
        "pull",
        "--all",
        "-o",
        "copy.safetensors",
        "--verify",
        "model.safetensors",
    ]);
    assert_eq!(pulled["different"], serde_json::json!([]));
    let model = Model::open(&[&path]).unwrap();
    let copy = Model::open(&[folder.path().join("copy.safetensors")]).unwrap();
    assert_eq!(copy.fingerprint().unwrap(), model.fingerprint().unwrap());
    assert_eq!(
        pulled["fingerprint"],
        model.fingerprint().unwrap().to_string()
    );

    // A copy with one bit turned is told from the original, by name.
    let mut damaged = std::fs::read(&path).unwrap();
    let last = damaged.len() - 1;
    damaged[last] ^= 1;
    std::fs::write(folder.path().join("damaged.safetensors"), damaged).unwrap();
    let star = cluster.star_address("ps:0").unwrap();
    let other = cluster.star_address("ps:1").unwrap();
    let differs = grpcxx(
        folder.path(),
        &[
            "pull",
            "--all",
            "--verify",
            "damaged.safetensors",
            "--star",
            star,
            "--star",
            other,
        ],
    );
    assert_eq!(differs.status.code(), Some(1));
    assert!(
        text(&differs.stderr).contains("1 tensors differ"),
        "{}",
        text(&differs.stderr)
    );

    let single = json(&["pull", "scalar", "-o", "scalar.npy"]);
    assert_eq!(single["bytes"], 8);
    let npy = std::fs::read(folder.path().join("scalar.npy")).unwrap();
    let scalar = model.read(model.entry("scalar").unwrap()).unwrap();
    assert_eq!(npy[128..], scalar.data[..]);

    let status = json(&["status"]);
    let tasks = status["tasks"].as_array().unwrap();
    assert_eq!(tasks.len(), 3);
    for task in tasks {
        assert_eq!(task["grpc"]["is_serving"], true, "{task}");
        assert_eq!(task["star"]["is_serving"], true, "{task}");
        assert_eq!(task["version"], env!("CARGO_PKG_VERSION"));
        assert_eq!(task["devices"][0]["device_type"], "CPU");
    }
    // The model was pulled by functions of the ps tasks.
    let calls = tasks[0]["calls"].as_array().unwrap();
    let served = |call: &&Value| call["side"] == "server" && call["method"] == "StarRunGraph";
    let count = |call: &Value| call["count"].as_u64().unwrap();
    let pulls: u64 = calls.iter().filter(served).map(count).sum();
    assert!(pulls >= 2, "{calls:?}");
    let stored: u64 = tasks
        .iter()
        .map(|task| task["stored_tensors"].as_u64().unwrap())
        .sum();
    assert_eq!(stored, 306);
    cluster.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn what_is_pushed_again_goes_to_the_task_that_keeps_it() {
    let folder = tempfile::tempdir().unwrap();
    write_model(&folder.path().join("model.safetensors"));
    let cluster = start(options(2, 0, &[]));
    let json = |arguments: &[&str]| json(&cluster, folder.path(), arguments);
    let all = ["pull", "--all", "--verify", "model.safetensors"];
    // What is chosen goes where all of the file would have gone.
    json(&["push", "model.safetensors", "--only", "layer.?.bias"]);
    json(&["push", "model.safetensors"]);
    assert_eq!(json(&all)["different"], serde_json::json!([]));
    // A file of its own, by whose sizes each tensor would go to the first task.
    for row in json(&["list", "layer.?.bias"]).as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        json(&["pull", name, "-o", "one.safetensors"]);
        let pushed = json(&["push", "one.safetensors"]);
        let kept = json(&["list", name]);
        assert_eq!(kept.as_array().unwrap().len(), 1, "{kept}");
        assert_eq!(kept[0]["task"], row["task"], "{pushed}");
    }
    assert_eq!(json(&all)["different"], serde_json::json!([]));
    json(&["push", "one.safetensors", "--task", "ps:0"]);
    json(&["push", "one.safetensors", "--task", "ps:1"]);
    let map = cluster.endpoint_map();
    let places = ["--cluster-spec", cluster.cluster_spec(), "--endpoint-map"];
    let push = [
        &["push", "one.safetensors"][..],
        &places,
        &[map.to_str().unwrap()],
    ]
    .concat();
    let refused = grpcxx(folder.path(), &push);
    assert_eq!(refused.status.code(), Some(65));
    let said = text(&refused.stderr);
    assert!(said.contains("both ps:0 and ps:1 keep"), "{said}");
    cluster.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn functions_are_called_with_tensors_from_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write_model(&path);
    let cluster = start(options(1, 1, std::slice::from_ref(&path)));
    let json = |arguments: &[&str]| json(&cluster, folder.path(), arguments);

    let report = json(&[
        "call",
        "worker:0",
        "grpcxx.model.pull",
        "--fetch",
        "tensors",
    ]);
    assert_eq!(report[0]["preview"], "306");
    // What goes into the worker's store comes back out of it.
    json(&[
        "call",
        "worker:0",
        "grpcxx.store.push",
        "--feed",
        "model.safetensors",
    ]);
    let fetched = json(&[
        "call",
        "worker:0",
        "grpcxx.store.pull",
        "--fetch",
        "half",
        "--fetch",
        "ids",
        "-o",
        "two.safetensors",
    ]);
    assert_eq!(fetched.as_array().unwrap().len(), 2);
    let two = Model::open(&[folder.path().join("two.safetensors")]).unwrap();
    let model = Model::open(&[&path]).unwrap();
    for entry in two.entries() {
        let original = model.read(model.entry(&entry.name).unwrap()).unwrap();
        let fetched = two.read(entry).unwrap();
        assert_eq!(
            Fingerprint::of(&entry.name, &fetched),
            Fingerprint::of(&entry.name, &original)
        );
    }
    cluster.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_task_tells_what_it_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = start(options(1, 0, &[]));
    let engine = caller();
    let client = engine.client();
    let ps = peer(&client, &cluster, "ps:0");
    let source = device(&client, &ps).unwrap();
    let key = key(&source, "never");
    let request = Request::RecvTensor {
        step_id: 7,
        key: key.as_str().into(),
    };
    let _waiting = client.call(&ps, request, None);
    // It goes the same way, behind it.
    device(&client, &ps).unwrap();

    let told = json(&cluster, folder.path(), &["inspect", "ps:0"]);
    assert_eq!(
        (&told["task"], &told["shards_silent"]),
        (&"ps:0".into(), &0.into())
    );
    assert_eq!(told["receives_total"], 1, "{told}");
    let receive = &told["receives"][0];
    assert_eq!(
        (&receive["step"], &receive["key"]),
        (&7.into(), &key.as_str().into())
    );
    assert!(
        receive["peer"].as_str().unwrap().starts_with("127.0.0.1:"),
        "{told}"
    );
    let connections = told["connections"].as_array().unwrap();
    let of_receive = |found: &&Value| found["peer"] == receive["peer"];
    assert_eq!(
        connections.iter().find(of_receive).unwrap()["under_way"],
        1,
        "{told}"
    );

    let map = cluster.endpoint_map();
    let place = ["--cluster-spec", cluster.cluster_spec(), "--endpoint-map"];
    let arguments = [&["inspect", "ps:0"], &place[..], &[map.to_str().unwrap()]].concat();
    let shown = grpcxx(folder.path(), &arguments);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let shown = text(&shown.stdout);
    assert!(
        shown.contains(&key) && shown.contains("1 receives wait"),
        "{shown}"
    );
    let star = cluster.star_address("ps:0").unwrap();
    for (address, code) in [(star, Some(0)), ("127.0.0.1:1", Some(69))] {
        let shown = grpcxx(folder.path(), &["top", "--once", "--star", address]);
        assert_eq!(shown.status.code(), code, "{}", text(&shown.stderr));
        assert_eq!(text(&shown.stderr).contains("not up: "), code != Some(0));
    }
    let over_star = grpcxx(folder.path(), &["--json", "inspect", star, "--star", star]);
    let told: Value = serde_json::from_slice(&over_star.stdout).unwrap();
    assert_eq!(told["task"], star, "{}", text(&over_star.stderr));
    assert_eq!(told["receives"][0]["key"], key.as_str(), "{told}");
}

#[test]
fn maps_are_generated_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let spec = "ps|a:2000;b:2000,worker|a:2001";
    let run = |arguments: &[&str]| grpcxx(folder.path(), arguments);

    let printed = run(&["endpoint-map", "generate", "--cluster-spec", spec]);
    assert!(printed.status.success());
    assert_eq!(
        text(&printed.stdout),
        "a:2000=a:12000\nb:2000=b:12000\na:2001=a:12001\n"
    );
    let written = run(&[
        "endpoint-map",
        "generate",
        "--cluster-spec",
        spec,
        "--first-star-port",
        "3000",
        "-o",
        ".endpoint_map",
    ]);
    assert!(written.status.success(), "{}", text(&written.stderr));
    let map = std::fs::read_to_string(folder.path().join(".endpoint_map")).unwrap();
    assert_eq!(map, "a:2000=a:3000\nb:2000=b:3000\na:2001=a:3001\n");
    assert!(
        run(&["endpoint-map", "check", "--cluster-spec", spec])
            .status
            .success()
    );

    // What is there, and is no file, stays what it is.
    let path = |name: &str| folder.path().join(name);
    std::os::unix::fs::symlink("target", path("link")).unwrap();
    std::fs::write(path("target"), "before").unwrap();
    assert!(
        Command::new("mkfifo")
            .arg(path("pipe"))
            .status()
            .unwrap()
            .success()
    );
    let pipe = path("pipe");
    let reader = std::thread::spawn(move || std::fs::read_to_string(pipe).unwrap());
    for name in ["link", "pipe"] {
        let generate = [
            "endpoint-map",
            "generate",
            "--cluster-spec",
            spec,
            "-o",
            name,
        ];
        assert!(run(&generate).status.success());
        assert!(!path(name).symlink_metadata().unwrap().is_file(), "{name}");
    }
    for map in [
        std::fs::read_to_string(path("target")).unwrap(),
        reader.join().unwrap(),
    ] {
        assert!(map.starts_with("a:2000=a:12000\n"), "{map}");
    }

    let larger = format!("{spec};c:2001");
    let checked = run(&["endpoint-map", "check", "--cluster-spec", &larger]);
    assert_eq!(checked.status.code(), Some(78));
    assert!(
        text(&checked.stdout).contains("c:2001"),
        "{}",
        text(&checked.stdout)
    );
}

#[test]
fn the_example_of_a_map_works_as_it_stands() {
    let output = grpcxx(
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")),
        &[
            "--json",
            "endpoint-map",
            "check",
            "endpoint_map.example",
            "--cluster-spec",
            "ps|localhost:2222;localhost:2223,worker|localhost:2224;localhost:2225",
        ],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let verdict: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(verdict["wrong"], serde_json::json!([]));
    assert_eq!(verdict["clashes"], serde_json::json!([]));
}

#[test]
fn local_runs_for_the_time_it_was_given() {
    let folder = tempfile::tempdir().unwrap();
    let output = grpcxx(
        folder.path(),
        &[
            "--json",
            "local",
            "--ps",
            "1",
            "--worker",
            "1",
            "--run-for",
            "0.5",
            "--server",
            super::SERVER,
        ],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let started: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(started["tasks"].as_array().unwrap().len(), 2);
    let log = text(&output.stderr);
    assert!(
        log.contains("ps:0 | ") && log.contains("worker:0 | "),
        "{log}"
    );
    // The folder of the map goes with the cluster.
    assert!(!Path::new(started["endpoint_map"].as_str().unwrap()).exists());
}

#[test]
fn the_demo_compares_what_the_workers_pulled() {
    let folder = tempfile::tempdir().unwrap();
    write_model(&folder.path().join("model.safetensors"));
    let output = grpcxx(
        folder.path(),
        &[
            "--json",
            "demo",
            "--load",
            "model.safetensors",
            "--rounds",
            "2",
            "--server",
            super::SERVER,
        ],
    );
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let workers = report["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 2);
    for worker in workers {
        assert_eq!(worker["is_equal"], true);
        assert_eq!(worker["tensors"], 306);
        assert!(
            worker["transport"].as_str().unwrap().contains("tcp"),
            "{worker}"
        );
        assert_eq!(worker["link"], "shm", "{worker}");
    }
}
