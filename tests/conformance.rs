//! `docs/conformance.md` has each point of the checklist, and what it points to is there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

#[test]
fn each_point_has_a_row_and_its_files_name_it() {
    let said = points_of_the_page();
    let mut found: BTreeMap<u32, BTreeSet<String>> = BTreeMap::new();
    for path in sources() {
        let text = std::fs::read_to_string(&path).expect("sources are readable");
        let name = path.strip_prefix(root()).expect("below the root");
        let name = name.to_str().expect("paths are UTF-8").to_owned();
        for point in points_of_a_source(&text) {
            found.entry(point).or_default().insert(name.clone());
        }
    }
    let mut faults = Vec::new();
    for point in 1..=POINTS {
        let Some(said) = said.get(&point) else {
            faults.push(format!(
                "docs/conformance.md has no row for point {point:02}"
            ));
            continue;
        };
        let found = found.remove(&point).unwrap_or_default();
        for file in said.difference(&found) {
            faults.push(format!("point {point:02}: {file} does not name it"));
        }
    }
    for (point, files) in found {
        faults.push(format!("there is no point {point:02}: {files:?}"));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The files of each row.
fn points_of_the_page() -> BTreeMap<u32, BTreeSet<String>> {
    let page = root().join("docs/conformance.md");
    let text = std::fs::read_to_string(page).expect("docs/conformance.md is readable");
    text.lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.splitn(3, " | ");
            let point = cells.next()?.parse().ok()?;
            let held_by = cells.nth(1)?;
            let files = held_by.split('`').skip(1).step_by(2);
            Some((point, files.map(str::to_owned).collect()))
        })
        .collect()
}

/// Numbers of two digits behind `checklist`, also several with commas between them.
fn points_of_a_source(text: &str) -> BTreeSet<u32> {
    let mut points = BTreeSet::new();
    for (at, word) in text.match_indices("checklist") {
        let mut rest = text[at + word.len()..].chars().skip(1).collect::<Digits>();
        while let Some(point) = rest.next_point() {
            points.insert(point);
        }
    }
    points
}

/// The first characters behind a mark.
struct Digits(Vec<char>);

impl FromIterator<char> for Digits {
    fn from_iter<T: IntoIterator<Item = char>>(characters: T) -> Self {
        Self(characters.into_iter().take(40).collect())
    }
}

impl Digits {
    /// Takes `NN`, or `, NN` after another one.
    fn next_point(&mut self) -> Option<u32> {
        while matches!(self.0.first(), Some(',' | ' ')) {
            self.0.remove(0);
        }
        let [tens, ones] = [self.0.first()?.to_digit(10)?, self.0.get(1)?.to_digit(10)?];
        self.0.drain(..2);
        Some(10 * tens + ones)
    }
}

fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = [
        "cli",
        "control",
        "fusion",
        "memory",
        "rpc",
        "runtime",
        "src",
        "tests",
        "transport",
    ]
    .iter()
    .map(|folder| root().join(folder))
    .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("folders are readable") {
            let path = entry.expect("folders are readable").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "rs")
                && !path.ends_with(file!())
            {
                found.push(path);
            }
        }
    }
    found
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

const POINTS: u32 = 30;
