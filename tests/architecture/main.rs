//! The arrows of `docs/architecture.md` are the only imports between the rooms.

mod circles;
mod facade;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn rooms_import_only_what_the_architecture_allows() {
    let allowed = allowed_imports();
    let found = found_imports();
    let mut faults = Vec::new();
    for (room, imports) in &found {
        let Some(allowed) = allowed.get(room) else {
            faults.push(format!("{room} is no room of docs/architecture.md"));
            continue;
        };
        for import in imports.difference(allowed) {
            faults.push(format!(
                "{room} imports {import}, an arrow that docs/architecture.md does not have"
            ));
        }
    }
    for room in allowed.keys() {
        if !found.contains_key(room) {
            faults.push(format!(
                "docs/architecture.md lists {room}, which is no crate of the workspace"
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_allowed_arrows_have_no_circle() {
    let allowed = allowed_imports();
    let mut settled: BTreeSet<&str> = BTreeSet::new();
    while settled.len() < allowed.len() {
        let before = settled.len();
        for (room, imports) in &allowed {
            if imports
                .iter()
                .all(|import| settled.contains(import.as_str()))
            {
                settled.insert(room);
            }
        }
        assert!(
            settled.len() > before,
            "a circle among {:?}",
            allowed
                .keys()
                .filter(|room| !settled.contains(room.as_str()))
                .collect::<Vec<_>>()
        );
    }
}

fn allowed_imports() -> BTreeMap<String, BTreeSet<String>> {
    let path = root().join("docs/architecture.md");
    let text = std::fs::read_to_string(&path).expect("docs/architecture.md is readable");
    let (_, rest) = text
        .split_once("<!-- imports:begin -->")
        .expect("a begin mark");
    let (list, _) = rest
        .split_once("<!-- imports:end -->")
        .expect("an end mark");
    list.lines()
        .filter_map(|line| line.strip_prefix("- "))
        .map(|line| {
            let (room, imports) = line.split_once(':').expect("a line `- room: imports`");
            let imports = imports.split_whitespace().map(str::to_owned).collect();
            (room.to_owned(), imports)
        })
        .collect()
}

/// All imports that users of a room get, those of its build script, and those of its tests.
fn found_imports() -> BTreeMap<String, BTreeSet<String>> {
    let packages = packages();
    let rooms: BTreeSet<&str> = packages
        .iter()
        .map(|package| package["name"].as_str().expect("a name"))
        .collect();
    packages
        .iter()
        .map(|package| {
            let room = package["name"].as_str().expect("a name");
            let imports = package["dependencies"]
                .as_array()
                .expect("dependencies")
                .iter()
                .map(|dependency| dependency["name"].as_str().expect("a name"))
                .filter(|name| rooms.contains(name) && *name != room)
                .map(str::to_owned)
                .collect();
            (room.to_owned(), imports)
        })
        .collect()
}

/// The root file of each library and program, with a name for it.
fn roots_of_crates() -> Vec<(String, PathBuf)> {
    let mut roots = Vec::new();
    for package in packages() {
        let room = package["name"].as_str().expect("a name");
        for target in package["targets"].as_array().expect("targets") {
            let kind = target["kind"][0].as_str().expect("a kind");
            let name = match kind {
                "bin" => format!(
                    "{room}, program {}",
                    target["name"].as_str().expect("a name")
                ),
                "lib" | "rlib" | "cdylib" | "staticlib" => room.to_owned(),
                _ => continue,
            };
            roots.push((
                name,
                PathBuf::from(target["src_path"].as_str().expect("a path")),
            ));
        }
    }
    roots
}

/// What cargo says of each crate of the workspace.
fn packages() -> Vec<serde_json::Value> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--no-deps",
            "--offline",
        ])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "cargo metadata: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
    metadata["packages"].as_array().expect("packages").clone()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}
