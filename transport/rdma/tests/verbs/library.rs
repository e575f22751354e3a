use std::path::Path;
use std::process::Command;

use grpcxx_rdma::{RdmaOptions, Unavailable, VerbsAdapter, devices};

/// Set in the process that shall find no library.
const WITHOUT: &str = "GRPCXX_TEST_WITHOUT_LIBRARY";

/// Where libibverbs cannot be loaded, a program starts, and is told why it has no RDMA.
#[test]
fn without_the_library_there_is_a_reason_and_no_failure() {
    if std::env::var_os(WITHOUT).is_some() {
        let error = match VerbsAdapter::open(&RdmaOptions::default()) {
            Ok(_) => panic!("a device was opened without a library"),
            Err(error) => error,
        };
        assert!(matches!(error, Unavailable::Library(_)), "{error}");
        assert!(error.to_string().contains("install rdma-core"), "{error}");
        assert_eq!(devices(), Err(error));
        return;
    }
    // A file of that name which is no library hides the one that may be installed.
    let folder = std::env::temp_dir().join(format!("grpcxx-no-verbs-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    std::fs::write(folder.join("libibverbs.so.1"), b"").expect("a file can be written");
    let program = std::env::current_exe().expect("a test knows its program");
    let status = Command::new(program)
        .args([
            "--exact",
            "library::without_the_library_there_is_a_reason_and_no_failure",
        ])
        .env(WITHOUT, "1")
        .env("LD_LIBRARY_PATH", &folder)
        .status();
    let _ = std::fs::remove_dir_all(&folder);
    assert!(status.expect("the program starts").success());
}

/// The program does not ask the dynamic linker for libibverbs.
#[test]
fn the_program_is_not_linked_with_the_library() {
    let program = std::env::current_exe().expect("a test knows its program");
    let bytes = std::fs::read(Path::new(&program)).expect("a program is readable");
    // The name is there once, for the load at run time, with the text before it that this crate
    // has.
    let mut names = bytes
        .windows(15)
        .filter(|window| *window == b"libibverbs.so.1");
    assert!(names.next().is_some());
    let output = Command::new("ldd").arg(&program).output();
    if let Ok(output) = output {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(!text.contains("libibverbs"), "{text}");
    }
}

#[test]
fn a_device_that_is_not_there_is_named_with_those_that_are() {
    let options =
        RdmaOptions::default().with(|options| options.device = Some("nonesuch0".to_owned()));
    let Err(error) = VerbsAdapter::open(&options) else {
        panic!("a device was opened that does not exist");
    };
    match &error {
        Unavailable::NoSuchDevice { asked, found } => {
            assert_eq!(asked, "nonesuch0");
            assert!(!found.is_empty());
        }
        Unavailable::Library(_) | Unavailable::NoDevice => {}
        other => panic!("{other}"),
    }
}
