//! House rules that a compiler does not hold: lengths, words, and where unsafe code may be.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[test]
fn files_are_short() {
    let mut faults = Vec::new();
    for source in sources() {
        let lines = source.code().lines().count();
        if !source.is_generated() && !source.is_test && lines > LINES_MAX {
            faults.push(format!(
                "{}: {lines} lines without tests, split it below {LINES_MAX}",
                source.path
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// rustfmt holds code to this, and leaves comments and long texts as they are.
#[test]
fn comments_are_narrow() {
    let mut faults = Vec::new();
    for source in sources() {
        if source.is_generated() {
            continue;
        }
        for (index, line) in source.text.lines().enumerate() {
            let text = line
                .trim_start()
                .trim_start_matches(['/', '!'])
                .trim_start();
            let is_comment = line.trim_start().starts_with("//");
            // A row of a table cannot be wrapped.
            if is_comment && !text.starts_with('|') && line.chars().count() > COLUMNS_MAX {
                faults.push(format!("{}:{}", source.path, index + 1));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "comments of more than {COLUMNS_MAX} columns:\n{}",
        faults.join("\n")
    );
}

#[test]
fn unsafe_code_is_only_in_the_files_of_the_list() {
    let listed = listed_unsafe_files();
    let mut faults = Vec::new();
    let mut found = BTreeSet::new();
    for source in sources() {
        let uses_unsafe = source
            .text
            .lines()
            .any(|line| has_word(code_of(line), "unsafe"));
        if uses_unsafe && source.path != THIS_FILE {
            found.insert(source.path.clone());
            if !listed.contains(&source.path) {
                faults.push(format!(
                    "{} has unsafe code, but docs/architecture.md does not list it",
                    source.path
                ));
            }
        }
    }
    for path in listed.difference(&found) {
        faults.push(format!(
            "docs/architecture.md lists {path}, which has no unsafe code"
        ));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn crates_without_unsafe_code_forbid_it() {
    let listed = listed_unsafe_files();
    for source in sources() {
        let Some(folder) = source.path.strip_suffix("src/lib.rs") else {
            continue;
        };
        let has_unsafe = listed.iter().any(|path| {
            path.strip_prefix(folder)
                .is_some_and(|rest| rest.starts_with("src/"))
        });
        assert!(
            has_unsafe || source.text.contains("#![forbid(unsafe_code)]"),
            "{}: says nothing about unsafe code, add #![forbid(unsafe_code)]",
            source.path
        );
    }
}

#[test]
fn code_holds_no_leftovers() {
    let mut faults = Vec::new();
    for source in sources() {
        if source.path == THIS_FILE || source.is_generated() {
            continue;
        }
        for (index, line) in source.text.lines().enumerate() {
            for word in LEFTOVERS {
                if has_word(line, word) {
                    faults.push(format!("{}:{}: {word}", source.path, index + 1));
                }
            }
        }
        if !source.is_test {
            for (index, line) in source.code().lines().enumerate() {
                if code_of(line).contains(".unwrap()") {
                    faults.push(format!(
                        "{}:{}: .unwrap() outside tests; return an error, or state the invariant with expect",
                        source.path,
                        index + 1
                    ));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// An error's text has its cause in it, and `source()` gives none: what prints texts alone loses no
/// cause, and what prints chains prints none twice.
#[test]
fn errors_have_their_causes_in_their_texts() {
    let mut faults = Vec::new();
    for source in sources() {
        if source.is_generated() || source.path == THIS_FILE {
            continue;
        }
        let code = source.code();
        let mut is_transparent = false;
        for (index, line) in code.lines().enumerate() {
            let line = code_of(line).trim();
            if line.starts_with("#[error(") {
                is_transparent = line.starts_with("#[error(transparent)]");
            }
            let gives_source = line.contains("#[source]")
                || line.starts_with("fn source(&self) -> Option<&(dyn")
                || line.contains("#[from]") && !is_transparent
                || line == "source: io::Error,";
            if gives_source {
                faults.push(format!("{}:{}: {line}", source.path, index + 1));
            }
        }
    }
    assert!(
        faults.is_empty(),
        "put the cause into the text, in a field named cause, and convert with map_err:\n{}",
        faults.join("\n")
    );
}

#[test]
fn files_are_named_for_what_they_own() {
    for source in sources() {
        let name = source.path.rsplit('/').next().expect("a name");
        let stem = name.trim_end_matches(".rs");
        for banned in ["util", "utils", "helper", "helpers", "misc", "common"] {
            assert_ne!(stem, banned, "{}: name what it owns", source.path);
        }
    }
}

/// A file that is neither a program nor a module of one is never compiled, and its tests never run.
#[test]
fn every_file_of_tests_is_in_a_program() {
    let sources = sources();
    let named: BTreeSet<String> = sources.iter().flat_map(files_named_in).collect();
    for Source { path, .. } in &sources {
        let is_of_tests = path.starts_with("tests/") || path.contains("/tests/");
        assert!(
            !is_of_tests || is_test_program(path) || named.contains(path),
            "{path}: no program has it; name it as a module in tests/main.rs of its crate, or as a \
             [[test]] in Cargo.toml if it needs a process of its own"
        );
    }
}

/// What the ignore file leaves out is not there when the image is built.
#[test]
fn the_container_is_built_from_every_crate() {
    let read = |path| std::fs::read_to_string(root().join(path)).unwrap();
    let manifest = read("Cargo.toml");
    let (_, members) = manifest.split_once("\nmembers = [").unwrap();
    let (members, _) = members.split_once(']').unwrap();
    let ignored = read("packaging/container/Containerfile.dockerignore");
    let kept: BTreeSet<&str> = (ignored.lines())
        .filter_map(|line| line.strip_prefix('!'))
        .collect();
    for member in members.split('"').skip(1).step_by(2) {
        let folder = member.split('/').next().unwrap();
        assert!(
            kept.contains(folder),
            "{folder} is not in the image's context"
        );
    }
}

struct Source {
    path: String,
    text: String,
    is_test: bool,
}

impl Source {
    /// The part before the tests at the bottom.
    fn code(&self) -> &str {
        let marks = ["#[cfg(test)]\nmod ", "#[cfg(all(test, not(loom)))]\nmod "];
        let end = marks.iter().filter_map(|mark| self.text.find(mark)).min();
        &self.text[..end.unwrap_or(self.text.len())]
    }

    fn is_generated(&self) -> bool {
        self.text.starts_with("// @generated")
            || self.text.starts_with("// This file is @generated")
    }
}

fn sources() -> Vec<Source> {
    let mut paths = Vec::new();
    for folder in [
        "benches",
        "build",
        "capi",
        "cli",
        "collectives",
        "control",
        "examples",
        "fusion",
        "memory",
        "python",
        "rpc",
        "runtime",
        "src",
        "telemetry",
        "tests",
        "transport",
        "fuzz/fuzz_targets",
        "fuzz/src",
    ] {
        paths.extend(files_below(&root().join(folder), "rs"));
    }
    let mut sources: Vec<Source> = paths
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("sources are readable");
            let path = path.strip_prefix(root()).expect("below the root");
            let path = path.to_str().expect("paths are UTF-8").to_owned();
            let is_test = !path.starts_with("benches/src/")
                && ["tests/", "benches/", "examples/", "fuzz/"]
                    .iter()
                    .any(|folder| path.starts_with(folder) || path.contains(&format!("/{folder}")));
            Source {
                path,
                text,
                is_test,
            }
        })
        .collect();
    let test_modules: BTreeSet<String> = sources.iter().flat_map(test_modules).collect();
    for source in &mut sources {
        source.is_test |= test_modules.iter().any(|module| {
            source
                .path
                .strip_prefix(module)
                .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        });
    }
    sources
}

/// Paths, without ending, of the modules that `source` declares for tests only.
fn test_modules(source: &Source) -> Vec<String> {
    let folder = folder_of_modules(&source.path);
    let lines: Vec<&str> = source.text.lines().map(str::trim).collect();
    lines
        .windows(2)
        .filter(|pair| pair[0].starts_with("#[cfg(") && pair[0].contains("test"))
        .filter_map(|pair| declared_module(pair[1]))
        .map(|module| format!("{folder}/{module}"))
        .collect()
}

/// Where the modules lie that the file declares.
fn folder_of_modules(path: &str) -> &str {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "mod.rs" | "main.rs" => folder,
        _ if is_test_program(path) => folder,
        _ => path.trim_end_matches(".rs"),
    }
}

/// The name of a module that lies in another file.
fn declared_module(line: &str) -> Option<&str> {
    let declaration = line.trim_start_matches("pub(crate) ");
    let declaration = declaration.trim_start_matches("pub ");
    declaration.strip_prefix("mod ")?.strip_suffix(';')
}

/// Paths at which the modules of `source` lie, and what it includes.
fn files_named_in(source: &Source) -> Vec<String> {
    let (folder, _) = source.path.rsplit_once('/').unwrap_or_default();
    let mut named = Vec::new();
    let mut stated_path = None;
    for line in source.text.lines().map(str::trim) {
        let between = |before, after| line.strip_prefix(before)?.strip_suffix(after);
        if let Some(path) = between("#[path = \"", "\"]") {
            stated_path = Some(path);
        } else if let Some(path) = between("include!(\"", "\");") {
            named.push(joined(folder, path));
        } else if let Some(module) = declared_module(line) {
            if let Some(path) = stated_path.take() {
                named.push(joined(folder, path));
            } else {
                let folder = folder_of_modules(&source.path);
                named.push(joined(folder, &format!("{module}.rs")));
                named.push(joined(folder, &format!("{module}/mod.rs")));
            }
        }
    }
    named
}

/// `path` as it is seen from `folder`, without `..`.
fn joined(folder: &str, path: &str) -> String {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        if part == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts.join("/")
}

/// Whether cargo makes a test program of the file.
fn is_test_program(path: &str) -> bool {
    let Some((package, file)) = path.rsplit_once("tests/") else {
        return false;
    };
    let name = file.strip_suffix("/main.rs");
    let name = name.unwrap_or_else(|| file.trim_end_matches(".rs"));
    let Ok(manifest) = std::fs::read_to_string(root().join(package).join("Cargo.toml")) else {
        return false;
    };
    let is_listed = manifest.contains(&format!("[[test]]\nname = \"{name}\"\n"));
    is_listed || !name.contains('/') && !manifest.contains("\nautotests = false\n")
}

fn files_below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else {
        return found;
    };
    for entry in entries {
        let path = entry.expect("folders are readable").path();
        if path.is_dir() {
            if !path.ends_with("target") {
                found.extend(files_below(&path, extension));
            }
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn listed_unsafe_files() -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("docs/architecture.md"))
        .expect("docs/architecture.md is readable");
    let (_, rest) = text
        .split_once("<!-- unsafe:begin -->")
        .expect("a begin mark");
    let (list, _) = rest.split_once("<!-- unsafe:end -->").expect("an end mark");
    list.lines()
        .filter_map(|line| line.strip_prefix("- "))
        .map(|line| line.split(':').next().unwrap_or_default().to_owned())
        .collect()
}

/// The line without its comment.
fn code_of(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

fn has_word(text: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
    })
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

const LINES_MAX: usize = 600;
const COLUMNS_MAX: usize = 100;
const THIS_FILE: &str = "tests/tidy.rs";
const LEFTOVERS: &[&str] = &["TODO", "FIXME", "XXX", "HACK", "unimplemented!", "dbg!"];
