//! What a machine can hold of the documents: lines, lengths, links, and names of files and benches.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

#[test]
fn lines_outside_of_tables_are_short() {
    let mut faults = Vec::new();
    for page in pages() {
        let mut is_generated = false;
        for (index, line) in page.text.lines().enumerate() {
            if line.starts_with("<!--") {
                is_generated = line.contains(":begin");
            }
            let columns = line.chars().count();
            if columns > COLUMNS_MAX && !line.starts_with('|') && !is_generated {
                faults.push(format!("{}:{}: {columns} columns", page.path, index + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn pages_hold_no_marks_of_a_merge() {
    let mut faults = Vec::new();
    for page in pages() {
        for (index, line) in page.text.lines().enumerate() {
            if ["<<<<<<< ", ">>>>>>> ", "======="]
                .iter()
                .any(|mark| line.starts_with(mark))
            {
                faults.push(format!("{}:{}: {line}", page.path, index + 1));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_page_on_performance_and_the_notes_on_design_are_short() {
    for page in pages() {
        let words_max = match page.path.as_str() {
            "docs/performance.md" => PERFORMANCE_WORDS_MAX,
            path if path.starts_with("docs/design/") => NOTE_WORDS_MAX,
            _ => continue,
        };
        let words = page.text.split_whitespace().count();
        assert!(
            words <= words_max,
            "{}: {words} words, cut it to {words_max}",
            page.path
        );
    }
}

#[test]
fn links_lead_to_pages_and_headings_that_exist() {
    let mut faults = Vec::new();
    for page in pages() {
        for target in links(&page.text) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            if file.contains("://") || target.is_empty() {
                continue;
            }
            let folder = Path::new(&page.path).parent().expect("a folder");
            let path = if file.is_empty() {
                PathBuf::from(&page.path)
            } else {
                normal(&folder.join(file))
            };
            let leaves_the_site = page.path.starts_with("docs/") && !path.starts_with("docs");
            if !root().join(&path).exists() || leaves_the_site {
                faults.push(format!("{} links to {target}", page.path));
            } else if !heading.is_empty() && !headings(&path).contains(heading) {
                faults.push(format!("{}: {target} has no such heading", page.path));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_site_has_every_page() {
    let summary = read(Path::new("docs/SUMMARY.md"));
    let listed: BTreeSet<String> = links(&summary)
        .filter(|target| !target.is_empty())
        .map(|target| format!("docs/{target}"))
        .collect();
    let there: BTreeSet<String> = pages()
        .map(|page| page.path)
        .filter(|path| path.starts_with("docs/") && path != "docs/SUMMARY.md")
        .collect();
    assert_eq!(listed, there);
}

#[test]
fn programs_and_benches_that_pages_name_exist() {
    let mut faults = Vec::new();
    for page in pages() {
        for words in page.text.lines().map(words_of) {
            for word in &words {
                let is_program = ["scripts/", "benches/", ".ci/", "tensorflow/bench/"]
                    .iter()
                    .any(|folder| word.starts_with(folder) && !word.ends_with('/'));
                if is_program && !root().join(word).exists() {
                    faults.push(format!("{}: there is no {word}", page.path));
                }
            }
            for pair in words.windows(2).filter(|pair| pair[0] == "--bench") {
                if !has_bench(&pair[1]) {
                    faults.push(format!("{}: there is no bench {}", page.path, pair[1]));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn every_fuzz_target_has_a_row_and_a_corpus() {
    let page = read(&root().join("fuzz/README.md"));
    let manifest = read(&root().join("fuzz/Cargo.toml"));
    let mut targets = 0;
    for entry in std::fs::read_dir(root().join("fuzz/fuzz_targets")).unwrap() {
        let path = entry.unwrap().path();
        let target = path.file_stem().unwrap().to_str().unwrap();
        assert!(
            page.contains(&format!("`{target}`")),
            "fuzz/README.md lacks {target}"
        );
        assert!(
            manifest.contains(&format!("name = \"{target}\"")),
            "{target} is not built"
        );
        let corpus = root().join("fuzz/corpus").join(target);
        assert!(
            corpus
                .read_dir()
                .is_ok_and(|mut inputs| inputs.next().is_some()),
            "{target}"
        );
        targets += 1;
    }
    assert!(targets > 20, "{targets}");
}

#[test]
fn the_walks_name_functions_that_are_there() {
    let page = read(Path::new("docs/design/walks.md")).replace("\n  `", " `");
    let mut found = 0;
    for line in page.lines().filter(|line| line.starts_with("- `")) {
        let mut names = line.split('`').skip(1).step_by(2);
        let path = names.next().expect("each line names a file");
        let code = read(Path::new(path));
        for name in names {
            found += 1;
            let is_there = ["(", "<"]
                .iter()
                .any(|behind| code.contains(&format!("fn {name}{behind}")));
            assert!(is_there, "docs/design/walks.md: {path} has no fn {name}");
        }
    }
    assert!(found > 50, "{found} functions are named");
}

/// The plugin replaces defaults of the engine; its page says by which.
#[test]
fn the_page_of_tensorflow_gives_the_defaults_of_the_plugin() {
    let plugin = read(Path::new("tensorflow/plugin/engine.cc"));
    let (_, settings) = plugin
        .split_once("kSettings[] = {")
        .expect("the plugin has settings");
    let (settings, _) = settings.split_once("};").expect("they end");
    let page = read(Path::new("docs/tensorflow.md"));
    let mut found = 0;
    for setting in settings.lines().map(str::trim) {
        let quoted: Vec<&str> = setting.split('"').collect();
        let [_, name, _, value, _] = quoted[..] else {
            continue;
        };
        found += 1;
        let default = format!("| `{value}` here |");
        let is_told = page
            .lines()
            .any(|row| row.contains(&format!("`{name}`")) && row.contains(&default));
        assert!(
            is_told,
            "docs/tensorflow.md: {name} is {value} in the plugin"
        );
    }
    assert!(found > 0, "the plugin has settings");
}

struct Page {
    path: String,
    text: String,
}

fn pages() -> impl Iterator<Item = Page> {
    let mut paths: Vec<PathBuf> = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
    ]
    .iter()
    .map(PathBuf::from)
    .collect();
    for folder in ["docs", "docs/design"] {
        let entries = std::fs::read_dir(root().join(folder)).expect("folders are readable");
        let names = entries.map(|entry| entry.expect("folders are readable").file_name());
        paths.extend(
            names
                .map(|name| Path::new(folder).join(name))
                .filter(|path| path.extension().is_some_and(|extension| extension == "md")),
        );
    }
    paths.into_iter().map(|path| Page {
        text: read(&path),
        path: path.to_str().expect("paths are UTF-8").to_owned(),
    })
}

fn links(text: &str) -> impl Iterator<Item = &str> {
    text.split("](")
        .skip(1)
        .map(|piece| piece.split(')').next().unwrap_or_default())
}

/// The names that headings of a page have in links.
fn headings(path: &Path) -> BTreeSet<String> {
    read(path)
        .lines()
        .filter(|line| line.starts_with('#'))
        .map(|line| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title
                .chars()
                .filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter));
            kept.map(|letter| if letter == ' ' { '-' } else { letter })
                .collect()
        })
        .collect()
}

fn words_of(line: &str) -> Vec<String> {
    line.split(|letter: char| letter.is_whitespace() || "`|(),:".contains(letter))
        .map(|word| word.trim_start_matches("./").trim_end_matches('.'))
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// A bench of any crate: a manifest names it.
fn has_bench(name: &str) -> bool {
    let line = format!("name = \"{name}\"");
    let mut folders = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        let text = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        let is_there = text
            .split("[[")
            .any(|table| table.starts_with("bench]]") && table.contains(&line));
        if is_there {
            return true;
        }
        let entries = std::fs::read_dir(&folder).expect("folders are readable");
        folders.extend(
            entries
                .map(|entry| entry.expect("folders are readable").path())
                .filter(|path| {
                    path.is_dir() && !path.ends_with("target") && !path.ends_with(".git")
                }),
        );
    }
    false
}

/// `path` without `..`, which links go up by.
fn normal(path: &Path) -> PathBuf {
    let mut parts = PathBuf::new();
    for part in path.components() {
        if part.as_os_str() == ".." {
            parts.pop();
        } else {
            parts.push(part);
        }
    }
    parts
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

const COLUMNS_MAX: usize = 100;
const PERFORMANCE_WORDS_MAX: usize = 1_500;
/// About a page.
const NOTE_WORDS_MAX: usize = 600;
