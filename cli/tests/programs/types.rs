//! Models with types that originals of star do not know, and with types that nobody knows yet.

use std::path::Path;
use std::time::Duration;

use grpcxx::model::Model;
use grpcxx_rpc::{DType, GraphCall, Shape, Status, Tensor};
use grpcxx_runtime::{Engine, STORE_LIST};

use super::{grpcxx, options, start, text};

/// A safetensors file with a tensor of each of these types and four bytes.
fn write(path: &Path, types: &[(&str, &str)]) {
    let mut header = Vec::new();
    for (index, (dtype, shape)) in types.iter().enumerate() {
        let (begin, end) = (4 * index, 4 * index + 4);
        header.push(format!(
            r#""t.{dtype}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}"#
        ));
    }
    let header = format!("{{{}}}", header.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend((0..4 * types.len()).map(|at| (at * 37 + 11) as u8));
    std::fs::write(path, bytes).unwrap();
}

const TYPES: [(&str, &str); 9] = [
    ("F8_E4M3", "[4]"),
    ("F8_E5M2", "[2,2]"),
    ("F8_E8M0", "[4]"),
    ("F8_E4M3FNUZ", "[4]"),
    ("F8_E5M2FNUZ", "[4]"),
    ("F4", "[2,4]"),
    ("U16", "[2]"),
    ("U32", "[]"),
    ("F9_NEW", "[3]"),
];

#[test]
fn every_type_of_a_file_is_pushed_loaded_and_pulled_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, &TYPES);
    let model = Model::open(&[&path]).unwrap();
    assert_eq!(model.entries().len(), TYPES.len() - 1);
    for load in [&[][..], std::slice::from_ref(&path)] {
        let cluster = start(options(1, 0, load));
        let map = cluster.endpoint_map();
        let target = [
            "--cluster-spec",
            cluster.cluster_spec(),
            "--endpoint-map",
            map.to_str().unwrap(),
        ];
        let tool = |arguments: &[&str]| {
            let output = grpcxx(folder.path(), &[arguments, &target].concat());
            let told = text(&output.stderr);
            assert!(output.status.success(), "{arguments:?}: {told}");
            told
        };
        if load.is_empty() {
            let told = tool(&["push", "model.safetensors"]);
            let lines: Vec<&str> = told
                .lines()
                .filter(|line| line.contains("F9_NEW"))
                .collect();
            let [line] = &lines[..] else { panic!("{told}") };
            assert!(
                line.contains("t.F9_NEW") && line.contains("left out"),
                "{line}"
            );
        }
        tool(&[
            "pull",
            "--all",
            "--output",
            "copy.safetensors",
            "--verify",
            "model.safetensors",
        ]);
        let copy = Model::open(&[folder.path().join("copy.safetensors")]).unwrap();
        assert_eq!(copy.fingerprint().unwrap(), model.fingerprint().unwrap());
        let packed = copy.entry("t.F4").unwrap();
        assert_eq!(packed.meta.dtype, DType::Float4E2M1FnPacked);
        assert_eq!(packed.meta.shape.dims(), [2, 4]);
        tool(&["pull", "t.F8_E4M3", "--output", "eight.npy"]);
        let npy = std::fs::read(folder.path().join("eight.npy")).unwrap();
        let eight = model.read(model.entry("t.F8_E4M3").unwrap()).unwrap();
        assert_eq!(npy[128..], eight.data[..]);
        cluster.stop(Duration::from_secs(5)).unwrap();
    }
}

/// A task with a tensor of a type that only later versions know.
fn newer_server() -> Engine {
    let server = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    server.register_fn(STORE_LIST, |_: GraphCall| {
        let shape = Shape::new(&[2]).unwrap();
        let texts = |texts: [&[u8]; 2]| Tensor::from_strings(shape.clone(), texts);
        Ok::<_, Status>([
            ("names", texts([b"known", b"newer"])?),
            ("shapes", texts([b"[]", b"[2, 3]"])?),
            (
                "dtypes",
                Tensor::from_slice(shape.clone(), &[1_i32, 4_999])?,
            ),
            ("bytes", Tensor::from_slice(shape.clone(), &[4_i64, 24])?),
        ])
    });
    server
}

#[test]
fn a_type_of_a_later_version_is_listed_by_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let server = newer_server();
    let star = server.local_addr().unwrap().to_string();
    let listed = grpcxx(folder.path(), &["list", "--star", &star]);
    let (told, shown) = (text(&listed.stderr), text(&listed.stdout));
    assert!(listed.status.success(), "{told}");
    let newer = shown.lines().find(|line| line.contains("newer")).unwrap();
    assert!(
        newer.contains("type 4999") && newer.contains("[2, 3]"),
        "{shown}"
    );
    assert!(shown.contains("2 tensors, 28 B"), "{shown}");
    let json = grpcxx(folder.path(), &["--json", "list", "new*", "--star", &star]);
    let rows: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(rows[0]["dtype"], "type 4999");
    assert_eq!(rows[0]["bytes"], 24);
}

#[test]
fn what_a_file_has_no_type_for_is_left_out_unless_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let server = Engine::builder().listen("127.0.0.1:0").start().unwrap();
    let words = Tensor::from_strings(Shape::SCALAR, [b"word".as_slice()]).unwrap();
    let tensors = [("words", words), ("w", Tensor::scalar(1.5f32))];
    let tensors = tensors.map(|(name, tensor)| (name.into(), tensor));
    server.store_put(tensors.into()).unwrap();
    let star = server.local_addr().unwrap().to_string();
    let pull = |what: &str| {
        let output = ["-o", "m.safetensors", "--star", &star];
        grpcxx(folder.path(), &[&["pull", what][..], &output].concat())
    };
    for what in ["--all", "w*"] {
        let pulled = pull(what);
        let told = text(&pulled.stderr);
        assert!(pulled.status.success(), "{told}");
        assert!(
            told.contains("\"words\" is left out") && told.contains("no type for string"),
            "{told}"
        );
        let model = Model::open(&[folder.path().join("m.safetensors")]).unwrap();
        assert_eq!(model.entries().len(), 1);
    }
    assert!(text(&pull("--all").stdout).contains(", without 1 for which it has no type"));
    let verified = grpcxx(
        folder.path(),
        &[
            "pull",
            "--all",
            "--verify",
            "m.safetensors",
            "--star",
            &star,
        ],
    );
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    for nothing in ["words", "wor*"] {
        let refused = pull(nothing);
        assert_eq!(refused.status.code(), Some(65), "{}", text(&refused.stderr));
    }
}
