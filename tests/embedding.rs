//! The facade as a user has it: from a crate outside of this workspace, and with nothing else.

use std::path::Path;
use std::process::Command;

/// A crate outside of the workspace has the examples as its programs, and the facade as its only
/// dependency.
#[test]
fn a_crate_outside_of_the_workspace_needs_the_facade_alone() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("embedding");
    let mut manifest = format!(
        "[package]\nname = \"embedding\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [workspace]\n\n[dependencies]\ngrpcxx = {{ path = {root:?} }}\n"
    );
    for example in std::fs::read_dir(root.join("examples")).expect("a folder of examples") {
        let path = example.expect("folders are readable").path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.file_stem().expect("a name");
            manifest += &format!("\n[[bin]]\nname = {name:?}\npath = {path:?}\n");
        }
    }
    manifest += &profile_of_tests(root);
    std::fs::create_dir_all(&folder).expect("a folder below target");
    std::fs::write(folder.join("Cargo.toml"), manifest).expect("a manifest");
    // The versions that were fetched for the workspace.
    std::fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).expect("a lock");
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["check", "--offline", "--quiet", "--target-dir"]);
    cargo.arg(folder.join("../..")).current_dir(&folder);
    // A build script that looks at these would run again, here and then for the workspace.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if ["CARGO_MANIFEST_", "CARGO_PKG_"]
            .iter()
            .any(|of_package| text.starts_with(of_package))
        {
            cargo.env_remove(&name);
        }
    }
    let output = cargo.output().expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The same as here, so that what was checked of others' crates for the workspace serves again.
fn profile_of_tests(root: &Path) -> String {
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).expect("a manifest");
    let sections = manifest.split("\n[");
    sections
        .filter(|section| section.starts_with("profile.dev"))
        .map(|section| format!("\n[{section}\n"))
        .collect()
}
