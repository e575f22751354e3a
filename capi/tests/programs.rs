//! C programs over the library: plain, and under the sanitizers of the C compiler.

#[path = "programs/certificates.rs"]
mod certificates;
#[path = "programs/tls.rs"]
mod tls;

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use certificates::Authority;

/// How a program is compiled and run.
struct Build {
    name: &'static str,
    flags: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

const PLAIN: Build = Build {
    name: "plain",
    flags: &["-O1"],
    environment: &[],
};

/// Reads and writes beyond memory, use after release, leaks, undefined behaviour.
const ADDRESSES: Build = Build {
    name: "address",
    flags: &[
        "-O1",
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ],
    environment: &[("ASAN_OPTIONS", "detect_leaks=1")],
};

/// Races of the program. What the library does inside is left out, since it is not compiled for
/// this sanitizer.
const THREADS: Build = Build {
    name: "thread",
    flags: &["-O1", "-fsanitize=thread"],
    environment: &[("TSAN_OPTIONS", "halt_on_error=1")],
};

#[test]
fn calls() {
    run_program("calls", &PLAIN);
}

#[test]
fn services() {
    run_program("services", &PLAIN);
}

#[test]
fn calls_under_the_address_sanitizer() {
    run_program("calls", &ADDRESSES);
}

#[test]
fn services_under_the_address_sanitizer() {
    run_program("services", &ADDRESSES);
}

#[test]
fn calls_under_the_thread_sanitizer() {
    run_program("calls", &THREADS);
}

#[test]
fn services_under_the_thread_sanitizer() {
    run_program("services", &THREADS);
}

#[test]
fn groups() {
    run_program("groups", &PLAIN);
}

#[test]
fn groups_under_the_address_sanitizer() {
    run_program("groups", &ADDRESSES);
}

#[test]
fn groups_under_the_thread_sanitizer() {
    run_program("groups", &THREADS);
}

#[test]
fn trust() {
    run_in_folder("trust", &PLAIN);
}

#[test]
fn trust_under_the_address_sanitizer() {
    run_in_folder("trust", &ADDRESSES);
}

#[test]
fn forks() {
    run_program("forks", &PLAIN);
}

#[test]
fn frees() {
    run_program("frees", &PLAIN);
}

#[test]
fn frees_under_the_address_sanitizer() {
    run_program("frees", &ADDRESSES);
}

#[test]
fn prepared() {
    run_program("prepared", &PLAIN);
}

#[test]
fn prepared_under_the_address_sanitizer() {
    run_program("prepared", &ADDRESSES);
}

#[test]
fn structures_lie_in_c_as_they_lie_here() {
    run_program("layout", &PLAIN);
}

#[test]
fn the_example_runs() {
    let source = root().join("../examples/c/tensors.c");
    if let Some(program) = compile(&source, &PLAIN, Library::Shared) {
        let output = run(&program, &PLAIN);
        assert!(output.contains("received 1 2 3 4"), "{output}");
    }
}

/// The program of docs/c.md that combines arrays, as two processes.
#[test]
fn the_ranks_of_the_page_sum_their_arrays() {
    let page = std::fs::read_to_string(root().join("../docs/c.md")).expect("readable");
    let (_, rest) = page.split_once("```c\n").expect("a program");
    let (program, _) = rest.split_once("```\n").expect("its end");
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let meeting = free.local_addr().expect("an address").to_string();
    drop(free);
    let source = scratch().join("sum.c");
    std::fs::write(&source, program.replace("127.0.0.1:7777", &meeting)).expect("writable");
    let Some(program) = compile(&source, &PLAIN, Library::Shared) else {
        return;
    };
    let ranks = ["0", "1"].map(|rank| {
        let mut command = Command::new(&program);
        let piped = command.arg(rank).stdout(Stdio::piped());
        piped.spawn().expect("the program runs")
    });
    for rank in ranks {
        let output = rank.wait_with_output().expect("the program ends");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "1 2\n");
    }
}

#[test]
fn the_static_library_links() {
    let source = root().join("../examples/c/tensors.c");
    if let Some(program) = compile(&source, &PLAIN, Library::Static) {
        run(&program, &PLAIN);
    }
}

/// The header alone, for a C++ compiler that takes all warnings seriously.
#[test]
fn the_header_is_cpp_too() {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if Command::new(&compiler).arg("--version").output().is_err() {
        return skip(&format!("there is no C++ compiler {compiler}"));
    }
    let output = Command::new(&compiler)
        .args([
            "-std=c++17",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-fsyntax-only",
            "-x",
            "c++",
        ])
        .arg(root().join("include/grpcxx.h"))
        .output()
        .expect("the compiler runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[derive(Clone, Copy)]
enum Library {
    Shared,
    Static,
}

fn run_program(name: &str, build: &Build) {
    let source = root().join("tests/programs").join(format!("{name}.c"));
    if let Some(program) = compile(&source, build, Library::Shared) {
        run(&program, build);
    }
}

/// Runs a program that finds certificates of two tasks in its folder, and may write there.
fn run_in_folder(name: &str, build: &Build) {
    let source = root().join("tests/programs").join(format!("{name}.c"));
    let Some(program) = compile(&source, build, Library::Shared) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let authority = Authority::new(folder.path());
    for job in ["ps", "worker"] {
        authority.sign(job, &format!("grpcxx://c/{job}/0"));
    }
    let path = folder.path().to_str().expect("a name in UTF-8");
    run_with(&program, build, &[("TRUST_FOLDER", path)]);
}

/// The program, or nothing where it cannot be made here.
fn compile(source: &Path, build: &Build, library: Library) -> Option<PathBuf> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    if Command::new(&compiler).arg("--version").output().is_err() {
        skip(&format!("there is no C compiler {compiler}"));
        return None;
    }
    if !can_build(&compiler, build) {
        skip(&format!("{compiler} cannot build with {:?}", build.flags));
        return None;
    }
    let stem = source
        .file_stem()
        .expect("a name")
        .to_string_lossy()
        .into_owned();
    let kind = match library {
        Library::Shared => "shared",
        Library::Static => "static",
    };
    let program = scratch().join(format!("{stem}-{}-{kind}", build.name));
    let folder = libraries();
    let mut command = Command::new(&compiler);
    command
        .args(["-std=c11", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"])
        .args(build.flags)
        .arg("-I")
        .arg(root().join("include"))
        .arg(source)
        .arg("-o")
        .arg(&program);
    match library {
        Library::Shared => command
            .arg("-L")
            .arg(&folder)
            .arg("-lgrpcxx_capi")
            .arg(format!("-Wl,-rpath,{}", folder.display())),
        Library::Static => command.arg(folder.join("libgrpcxx_capi.a")),
    };
    let output = command
        .args(["-lpthread", "-ldl", "-lm"])
        .output()
        .expect("the compiler runs");
    assert!(
        output.status.success(),
        "{}: {}",
        source.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Some(program)
}

fn can_build(compiler: &str, build: &Build) -> bool {
    // Tests that run beside this one build the same.
    let folder = tempfile::tempdir_in(scratch()).expect("a folder");
    let source = folder.path().join("nothing.c");
    std::fs::write(&source, "int main(void) { return 0; }\n").expect("writable");
    let program = folder.path().join("nothing");
    let built = Command::new(compiler)
        .args(build.flags)
        .arg(&source)
        .arg("-o")
        .arg(&program)
        .output()
        .is_ok_and(|output| output.status.success());
    built
        && Command::new(&program)
            .output()
            .is_ok_and(|output| output.status.success())
}

fn run(program: &Path, build: &Build) -> String {
    run_with(program, build, &[])
}

fn run_with(program: &Path, build: &Build, environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(program);
    command.envs(environment.iter().copied());
    for (name, value) in build.environment {
        let value = match *name {
            "TSAN_OPTIONS" => format!(
                "{value}:suppressions={}",
                root().join("tests/programs/thread-sanitizer.txt").display()
            ),
            _ => (*value).to_owned(),
        };
        command.env(name, value);
    }
    let output = command.output().expect("the program runs");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(
        output.status.success(),
        "{}: {}\n{text}",
        program.display(),
        output.status
    );
    text
}

#[expect(
    clippy::print_stderr,
    reason = "whoever runs the tests is to see what was left out"
)]
fn skip(why: &str) {
    eprintln!("SKIPPED: {why}; install gcc or clang with its sanitizers to run this test");
}

/// Where cargo has put the libraries of this build: beside the tests.
fn libraries() -> PathBuf {
    let test = std::env::current_exe().expect("tests are files");
    test.parent().expect("in a folder").to_owned()
}

fn scratch() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
