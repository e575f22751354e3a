//! Lets a fuzz target see its corpus, for the tests of the crates that have one.

use std::path::Path;

/// Runs a target with each input of its corpus, of which there must be some.
pub(crate) fn replay(target: &str, fuzz: fn(&[u8])) {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let corpora = crate_folder
        .ancestors()
        .map(|folder| folder.join("fuzz/corpus"));
    let folder = corpora
        .map(|corpora| corpora.join(target))
        .find(|folder| folder.is_dir());
    let folder = folder.unwrap_or_else(|| panic!("there is no fuzz/corpus/{target}"));
    let inputs = std::fs::read_dir(&folder).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        fuzz(&std::fs::read(path).unwrap());
    });
    assert!(inputs.count() > 0, "{} is empty", folder.display());
}
