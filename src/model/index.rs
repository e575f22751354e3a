//! Models in several files: the index that names the file of each tensor, as
//! `model.safetensors.index.json`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};

use grpcxx_runtime::open_regular_file;
use serde::Deserialize;

use super::format::HEADER_BYTES_MAX;
use super::{FileAction, ModelError};

/// One file of a model.
pub(super) struct Source {
    pub(super) path: PathBuf,
    /// The tensors that are taken out of it; `None`: all.
    pub(super) wanted: Option<BTreeSet<String>>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// The files that a path stands for: those that an index names, or itself.
///
/// # Errors
/// The index cannot be read, or names something that is not a file beside it.
pub(super) fn sources(path: &Path) -> Result<Vec<Source>, ModelError> {
    if !path.to_string_lossy().ends_with(INDEX_ENDING) {
        return Ok(vec![Source {
            path: path.to_owned(),
            wanted: None,
        }]);
    }
    let malformed = |problem: String| ModelError::Malformed {
        path: path.to_owned(),
        problem,
    };
    let file = open_regular_file(path).map_err(ModelError::io(FileAction::Open, path))?;
    let mut text = Vec::new();
    file.take(HEADER_BYTES_MAX + 1)
        .read_to_end(&mut text)
        .map_err(ModelError::io(FileAction::ReadHeader, path))?;
    if text.len() as u64 > HEADER_BYTES_MAX {
        return Err(malformed(format!(
            "the index has more than {HEADER_BYTES_MAX} bytes; name the .safetensors files themselves"
        )));
    }
    let index: Index = serde_json::from_slice(&text).map_err(|error| {
        malformed(format!(
            "this is no index of a model ({error}); it is to have a weight_map of names to files"
        ))
    })?;
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (tensor, file) in index.weight_map {
        files.entry(file).or_default().insert(tensor);
    }
    let folder = path.parent().unwrap_or(Path::new(""));
    let source = |(name, wanted): (String, BTreeSet<String>)| {
        let is_beside = Path::new(&name)
            .file_name()
            .is_some_and(|own| own == name.as_str());
        if !is_beside {
            return Err(malformed(format!(
                "weight_map names {name:?}, but only files beside the index are read; write a file name without folders"
            )));
        }
        Ok(Source {
            path: folder.join(name),
            wanted: Some(wanted),
        })
    };
    files.into_iter().map(source).collect()
}

/// How the name of an index ends.
const INDEX_ENDING: &str = ".index.json";
