use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, Mode, mkfifoat};

use super::ports::{held_address, held_port};
use super::{SERVER, TOOL, options, run, start, text, write_model};

/// What is wrong, how it is run, and how it must end.
struct Case {
    arguments: Vec<String>,
    variables: Vec<(&'static str, &'static str)>,
    exit: i32,
    /// What the message must say.
    says: &'static str,
}

fn case(arguments: &str, exit: i32, says: &'static str) -> Case {
    Case {
        arguments: arguments.split_whitespace().map(str::to_owned).collect(),
        variables: Vec::new(),
        exit,
        says,
    }
}

fn with(variable: (&'static str, &'static str), mut case: Case) -> Case {
    case.variables.push(variable);
    case
}

/// Each ends with its exit code and one message that says `says`; nothing is printed, nothing is
/// left behind.
fn check(program: &str, folder: &Path, cases: Vec<Case>) {
    let before = files(folder);
    let mut faults = Vec::new();
    for case in cases {
        let arguments: Vec<&str> = case.arguments.iter().map(String::as_str).collect();
        let output = run(program, folder, &arguments, &case.variables);
        let message = text(&output.stderr);
        let mut fault = |what: &str| {
            faults.push(format!(
                "{arguments:?} {:?}: {what}; exit {:?}, message: {message}",
                case.variables,
                output.status.code()
            ));
        };
        if output.status.code() != Some(case.exit) {
            fault(&format!("exit code {} expected", case.exit));
        }
        if !message.contains(case.says) {
            fault(&format!("{:?} expected", case.says));
        }
        if ["panicked", "stack backtrace", "RUST_BACKTRACE"]
            .iter()
            .any(|word| message.contains(word))
        {
            fault("no backtrace expected");
        }
        if let Some(part) = said_twice(&message) {
            fault(&format!("{part:?} expected once"));
        }
        if !output.stdout.is_empty() {
            fault("nothing on standard output expected");
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert_eq!(files(folder), before, "something was left behind");
}

/// A part of a message, such as a cause, that is in it twice.
fn said_twice(message: &str) -> Option<&str> {
    let mut parts: Vec<&str> = message
        .split([':', ';', '(', ')', '\n'])
        .map(str::trim)
        .filter(|part| part.split_whitespace().count() > 2)
        .collect();
    parts.sort_unstable();
    let twice = parts.windows(2).find(|pair| pair[0] == pair[1]);
    twice.map(|pair| pair[0])
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

fn safetensors(folder: &Path, name: &str, json: &str, data: &[u8]) {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend(json.bytes());
    bytes.extend(data);
    std::fs::write(folder.join(name), bytes).unwrap();
}

#[test]
fn the_server_refuses_wrong_flags_clusters_and_variables() {
    let folder = tempfile::tempdir().unwrap();
    let good = "--cluster-spec ps|localhost:2222 --job-name ps --task-index 0";
    std::fs::write(folder.path().join("bad.json"), "{\"ps\": [").unwrap();
    check(
        SERVER,
        folder.path(),
        vec![
            case("", 64, "--cluster-spec"),
            case("--no-such-flag", 64, "--no-such-flag"),
            case("--cluster-spec ps", 66, "no file"),
            case(
                "--cluster-spec ps| --job-name ps --task-index 0",
                78,
                "host:port",
            ),
            case(
                "--cluster-spec ps|h:99999 --job-name ps --task-index 0",
                78,
                "99999",
            ),
            case(
                "--cluster-spec bad.json --job-name ps --task-index 0",
                78,
                "bad.json",
            ),
            case(
                "--cluster-spec ps|localhost:2222 --task-index 0",
                64,
                "--job-name",
            ),
            case(
                "--cluster-spec ps|localhost:2222 --job-name ps",
                64,
                "--task-index",
            ),
            case(
                "--cluster-spec ps|localhost:2222 --job-name ps --task-index 1",
                78,
                "1 task",
            ),
            case(
                "--cluster-spec ps|localhost:2222 --job-name chief --task-index 0",
                78,
                "chief",
            ),
            case(&format!("{good} --protocol star"), 64, "grpc++"),
            case(&format!("{good} --protocol http"), 64, "grpc++"),
            case(&format!("{good} --metrics-addr nowhere"), 64, "nowhere"),
            case(
                "--cluster-spec ps|h:60000 --job-name ps --task-index 0",
                78,
                "60000",
            ),
            with(("TF_CONFIG", "{"), case("", 78, "TF_CONFIG")),
            with(("GRPCXX_SHARDS", "0"), case(good, 78, "GRPCXX_SHARDS")),
            with(
                ("NETWORK_PS_CORE_NUMBER", "0"),
                case(good, 78, "NETWORK_PS_CORE_NUMBER"),
            ),
            with(("GRPCXX_DRIVER", "dpdk"), case(good, 78, "io_uring")),
        ],
    );
}

#[test]
fn the_server_refuses_wrong_maps_and_models() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::write(path.join("no-equals"), "localhost:2222 localhost:3333\n").unwrap();
    std::fs::write(path.join("other"), "otherhost:2222=localhost:3333\n").unwrap();
    std::fs::write(path.join("text"), "this is not a model\n").unwrap();
    let header = r#"{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    safetensors(path, "short", header, &[0; 7]);
    safetensors(path, "long", header, &[0; 9]);
    let offsets = header.replace("[0,8]", "[8,16]");
    safetensors(path, "offsets", &offsets, &[0; 16]);
    safetensors(path, "dtype", &header.replace("F32", "F16"), &[0; 8]);
    let ones = vec!["1"; 105].join(",");
    let deep = format!(r#"{{"w":{{"dtype":"U8","shape":[{ones}],"data_offsets":[0,1]}}}}"#);
    safetensors(path, "deep", &deep, &[0]);
    safetensors(path, "first", header, &[0; 8]);
    safetensors(path, "second", header, &[0; 8]);

    let good = "--cluster-spec ps|localhost:2222 --job-name ps --task-index 0";
    check(
        SERVER,
        path,
        vec![
            case(&format!("{good} --endpoint-map none"), 66, "none"),
            case(
                &format!("{good} --endpoint-map no-equals"),
                78,
                "grpc_host:grpc_port=star_host:star_port",
            ),
            case(
                &format!("{good} --endpoint-map other"),
                78,
                "localhost:2222",
            ),
            case(&format!("{good} --load none"), 66, "none"),
            case(&format!("{good} --load ."), 65, "regular file"),
            case(&format!("{good} --load text"), 65, "no safetensors file"),
            case(&format!("{good} --load short"), 65, "cut off"),
            case(&format!("{good} --load long"), 65, "appended"),
            case(&format!("{good} --load offsets"), 65, "\"w\""),
            case(&format!("{good} --load dtype"), 65, "2 elements of F16"),
            case(
                &format!("{good} --load deep"),
                65,
                "more dimensions than can be sent",
            ),
            case(&format!("{good} --load first --load second"), 65, "second"),
            case(
                "--cluster-spec worker|localhost:2222 --job-name worker --task-index 0 --load first",
                78,
                "job ps",
            ),
        ],
    );
}

#[test]
fn the_server_says_which_port_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let free = held_port();
    let map = |grpc: u16, star: u16| format!("localhost:{grpc}=localhost:{star}\n");
    std::fs::write(folder.path().join("star-taken"), map(free, port)).unwrap();
    std::fs::write(folder.path().join("grpc-taken"), map(port, free)).unwrap();
    let arguments = |grpc: u16, map: &str| {
        format!(
            "--cluster-spec ps|localhost:{grpc} --job-name ps --task-index 0 --endpoint-map {map}"
        )
    };
    let number: &'static str = port.to_string().leak();
    check(
        SERVER,
        folder.path(),
        vec![
            case(&arguments(free, "star-taken"), 75, number),
            case(&arguments(port, "grpc-taken"), 75, number),
        ],
    );
}

#[test]
fn what_is_no_regular_file_or_no_text_counts_as_wrong_content() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    std::fs::create_dir(path.join("folder")).unwrap();
    mkfifoat(CWD, path.join("pipe"), Mode::RUSR | Mode::WUSR).unwrap();
    std::fs::write(path.join("binary"), b"\xff\xfe\n").unwrap();
    let place = "--cluster-spec ps|localhost:2222";
    let mut tool = Vec::new();
    let mut server = Vec::new();
    for name in ["folder", "pipe", "binary"] {
        tool.push(case(&format!("list --cluster-spec {name}"), 78, name));
        let map = format!("{place} --endpoint-map {name}");
        tool.push(case(&format!("list {map}"), 78, name));
        let check = format!("endpoint-map check {name} {place}");
        tool.push(case(&check, 78, name));
        tool.push(case(&format!("push {name} --star h:1"), 65, name));
        let task = "--job-name ps --task-index 0";
        server.push(case(&format!("{map} {task}"), 78, name));
        server.push(case(&format!("{place} {task} --load {name}"), 65, name));
    }
    check(TOOL, path, tool);
    check(SERVER, path, server);
}

#[test]
fn help_and_version_that_a_full_file_does_not_take_are_a_failure() {
    for (program, name) in [(TOOL, "grpcxx: "), (SERVER, "grpcxx-server: ")] {
        for (output, code) in [("/dev/full", 74), ("/dev/null", 0)] {
            for flag in ["--help", "--version", "-h"] {
                let output = File::options().write(true).open(output).unwrap();
                let mut command = Command::new(program);
                let ended = command.arg(flag).stdout(output).output().unwrap();
                let err = text(&ended.stderr);
                assert_eq!(ended.status.code(), Some(code), "{name}{flag}: {err}");
                let says = err.starts_with(name) && err.contains("No space left");
                assert_eq!(says, code == 74, "{err}");
            }
        }
    }
}

#[test]
fn files_without_permission_are_named() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret.safetensors");
    write_model(&path);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::File::open(&path).is_ok() {
        println!("skipped: this user may read everything");
        return;
    }
    let arguments =
        "--cluster-spec ps|localhost:2222 --job-name ps --task-index 0 --load secret.safetensors";
    check(
        SERVER,
        folder.path(),
        vec![case(arguments, 77, "secret.safetensors")],
    );
}

#[test]
fn the_tool_refuses_wrong_arguments_and_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write_model(&path);
    let cluster = start(options(1, 0, std::slice::from_ref(&path)));
    let star = format!("--star {}", cluster.star_address("ps:0").unwrap());
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("folder.safetensors")).unwrap();
    mkfifoat(CWD, at("pipe.npy"), Mode::RUSR | Mode::WUSR).unwrap();
    let nobody = held_address();
    check(
        TOOL,
        folder.path(),
        vec![
            case("", 64, "Usage"),
            case("pull --star h:1", 64, "PATTERN"),
            case("list", 64, "--cluster-spec"),
            case(&format!("list --timeout 0 {star}"), 64, "seconds"),
            case("list --star nowhere", 64, "nowhere"),
            case(&format!("pull --all -o out.txt {star}"), 64, ".safetensors"),
            case(&format!("pull --all -o out.npy {star}"), 64, "one tensor"),
            case(
                &format!("pull --all -o none/out.safetensors {star}"),
                73,
                "none/out.safetensors",
            ),
            case(
                &format!("pull --all -o folder.safetensors {star}"),
                73,
                "it is a folder",
            ),
            case(
                &format!("pull ids -o pipe.npy {star}"),
                73,
                "it is a device or a pipe",
            ),
            case(
                &format!("pull nothing.* -o out.safetensors {star}"),
                66,
                "nothing.*",
            ),
            case(
                &format!("pull --all -o out.safetensors --timeout 1 --star {nobody}"),
                69,
                &*nobody.to_string().leak(),
            ),
            case(
                &format!("push none.safetensors {star}"),
                66,
                "none.safetensors",
            ),
            case(
                &format!("push model.safetensors --task ps:7 {star}"),
                64,
                "ps:7",
            ),
            case(
                &format!(
                    "call {} no.function {star}",
                    cluster.star_address("ps:0").unwrap()
                ),
                76,
                "no.function",
            ),
            case("endpoint-map check none --cluster-spec ps|h:1", 66, "none"),
            case(
                "endpoint-map generate --cluster-spec ps|h:1 -o none/map",
                73,
                "none/map",
            ),
            case(
                "demo --ps 0 --load model.safetensors",
                64,
                "at least one ps",
            ),
            case("local --ps 1 --load none", 66, "none"),
            case("local --ps 0 --worker 0", 64, "at least one task"),
            case("local --server ./none", 66, "none"),
        ],
    );
}
