use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use grpcxx_memory::BufferMut;
use grpcxx_rpc::{DType, Shape, Tensor, TensorMeta};
use grpcxx_runtime::open_regular_file;

use super::format::{self, Flaw, PREFIX_BYTES};
use super::index::{self, Source};
use super::{FileAction, Fingerprint, ModelError, ModelFingerprint, npy_header};

/// The named tensors of one or more safetensors files, described but not read.
#[derive(Debug)]
pub struct Model {
    files: Vec<SourceFile>,
    entries: Vec<Entry>,
    skipped: Vec<Skipped>,
}

/// A tensor of a file that is left out, because its type is not known here. Its text says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The file.
    pub path: PathBuf,
    /// The tensor's name.
    pub tensor: String,
    /// Its type, as the file names it.
    pub dtype: String,
}

/// One tensor of a [`Model`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The tensor's name.
    pub name: String,
    /// Type, shape and length.
    pub meta: TensorMeta,
    file: usize,
    offset: u64,
}

#[derive(Debug)]
struct SourceFile {
    path: PathBuf,
    file: File,
}

impl Model {
    /// Opens `paths` and checks their headers whole: types, shapes, offsets, names, lengths. They
    /// are safetensors files, the index of such (`model.safetensors.index.json`), which names files
    /// beside it, and files of NumPy, whose array has the name of the file without `.npy`.
    ///
    /// No tensor is read. The files stay open, so that a later rename or removal changes nothing.
    ///
    /// # Errors
    /// A file cannot be read, is damaged, or a name is there twice. A tensor of a safetensors file
    /// whose type is not known is none: [`Model::skipped`] has it.
    pub fn open<P: AsRef<Path>>(paths: &[P]) -> Result<Self, ModelError> {
        let mut files = Vec::with_capacity(paths.len());
        let mut by_name: BTreeMap<String, Entry> = BTreeMap::new();
        let mut sources = Vec::with_capacity(paths.len());
        for path in paths {
            sources.append(&mut index::sources(path.as_ref())?);
        }
        let mut skipped = Vec::new();
        for Source { path, wanted } in sources {
            let file = open_regular_file(&path).map_err(ModelError::io(FileAction::Open, &path))?;
            let mut contents = read_header(&path, &file, files.len())?;
            take_wanted(&path, &mut contents, wanted)?;
            skipped.append(&mut contents.skipped);
            for entry in contents.entries {
                if let Some(first) = by_name.get(&entry.name) {
                    let first: &SourceFile = &files[first.file];
                    return Err(ModelError::Duplicate {
                        tensor: entry.name,
                        first: first.path.clone(),
                        second: path,
                    });
                }
                by_name.insert(entry.name.clone(), entry);
            }
            files.push(SourceFile { path, file });
        }
        Ok(Self {
            files,
            entries: by_name.into_values().collect(),
            skipped,
        })
    }

    /// The tensors that are left out, because their types are not known here.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// A line for each of the first tensors that are left out, and one for all others together.
    pub fn skipped_lines(&self) -> impl Iterator<Item = String> {
        let (shown, rest) = self.skipped.split_at(self.skipped.len().min(SKIPPED_SHOWN));
        let rest = (!rest.is_empty())
            .then(|| format!("{} more tensors are left out for their types", rest.len()));
        shown.iter().map(ToString::to_string).chain(rest)
    }

    /// All tensors in byte order of their names.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The tensor of this name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        let index = self
            .entries
            .binary_search_by(|entry| entry.name.as_str().cmp(name))
            .ok()?;
        Some(&self.entries[index])
    }

    /// Length of all data together.
    pub fn data_bytes(&self) -> u64 {
        self.entries.iter().map(|entry| entry.meta.data_bytes).sum()
    }

    /// Reads one tensor into memory of its own.
    ///
    /// # Errors
    /// The file cannot be read, or was shortened since it was opened.
    ///
    /// # Panics
    /// If `entry` belongs to another model with more files.
    pub fn read(&self, entry: &Entry) -> Result<Tensor, ModelError> {
        let source = &self.files[entry.file];
        let mut data = BufferMut::zeroed(entry.meta.data_bytes as usize);
        source
            .file
            .read_exact_at(&mut data, entry.offset)
            .map_err(ModelError::io(FileAction::ReadTensor, &source.path))?;
        Ok(Tensor {
            dtype: entry.meta.dtype,
            shape: entry.meta.shape.clone(),
            is_dead: false,
            data: data.freeze(),
        })
    }

    /// Reads every tensor once and fingerprints all of them.
    ///
    /// # Errors
    /// As for [`Model::read`].
    pub fn fingerprint(&self) -> Result<ModelFingerprint, ModelError> {
        let mut fingerprints = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            let tensor = self.read(entry)?;
            fingerprints.push((entry.name.as_str(), Fingerprint::of(&entry.name, &tensor)));
        }
        Ok(ModelFingerprint::of(fingerprints))
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: tensor {:?} is left out: its type {:?} is none of {}",
            self.path.display(),
            self.tensor,
            self.dtype,
            format::known_types()
        )
    }
}

/// What one file holds.
struct Contents {
    entries: Vec<Entry>,
    skipped: Vec<Skipped>,
}

/// Keeps the tensors that an index wants of a file.
fn take_wanted(
    path: &Path,
    contents: &mut Contents,
    wanted: Option<BTreeSet<String>>,
) -> Result<(), ModelError> {
    let Some(wanted) = wanted else {
        return Ok(());
    };
    let Contents { entries, skipped } = contents;
    entries.retain(|entry| wanted.contains(&entry.name));
    skipped.retain(|skipped| wanted.contains(&skipped.tensor));
    if entries.len() + skipped.len() == wanted.len() {
        return Ok(());
    }
    let known = entries.iter().map(|entry| &entry.name);
    let unknown = skipped.iter().map(|skipped| &skipped.tensor);
    let found: BTreeSet<&String> = known.chain(unknown).collect();
    match wanted.iter().find(|name| !found.contains(name)) {
        None => Ok(()),
        Some(missing) => Err(ModelError::Tensor {
            path: path.to_owned(),
            tensor: missing.clone(),
            problem: "the index says that it is in this file, and it is not; copy both again"
                .to_owned(),
        }),
    }
}

fn read_header(path: &Path, file: &File, index: usize) -> Result<Contents, ModelError> {
    let metadata = file
        .metadata()
        .map_err(ModelError::io(FileAction::Examine, path))?;
    if !metadata.is_file() {
        return Err(ModelError::Malformed {
            path: path.to_owned(),
            problem: "this is not a regular file; name a .safetensors file".to_owned(),
        });
    }
    let file_bytes = metadata.len();
    if let Some(entry) = read_npy(path, file, file_bytes, index)? {
        return Ok(Contents {
            entries: vec![entry],
            skipped: Vec::new(),
        });
    }
    let mut prefix = [0; PREFIX_BYTES];
    if file_bytes < prefix.len() as u64 {
        return Err(ModelError::Malformed {
            path: path.to_owned(),
            problem: format!(
                "the file has {file_bytes} bytes, but a safetensors file has at least 8; it was cut off, copy it again"
            ),
        });
    }
    let read = |bytes: &mut [u8], offset| {
        file.read_exact_at(bytes, offset)
            .map_err(ModelError::io(FileAction::ReadHeader, path))
    };
    read(&mut prefix, 0)?;
    let header_bytes = format::header_bytes(prefix, file_bytes).map_err(|flaw| at(path, flaw))?;
    let mut json = vec![0; header_bytes];
    read(&mut json, PREFIX_BYTES as u64)?;
    let data_offset = (PREFIX_BYTES + header_bytes) as u64;
    let header =
        format::parse_header(&json, file_bytes - data_offset).map_err(|flaw| at(path, flaw))?;
    let entry = |record: format::Record| Entry {
        name: record.name,
        meta: meta(record.dtype, record.shape, record.end - record.begin),
        file: index,
        offset: data_offset + record.begin,
    };
    let skipped = |record: format::SkippedRecord| Skipped {
        path: path.to_owned(),
        tensor: record.name,
        dtype: record.dtype,
    };
    Ok(Contents {
        entries: header.records.into_iter().map(entry).collect(),
        skipped: header.skipped.into_iter().map(skipped).collect(),
    })
}

/// The one tensor of a file of NumPy; `None` if it is none.
fn read_npy(
    path: &Path,
    file: &File,
    file_bytes: u64,
    index: usize,
) -> Result<Option<Entry>, ModelError> {
    let mut start = vec![0; file_bytes.min(npy_header::HEADER_BYTES_ENOUGH as u64) as usize];
    file.read_exact_at(&mut start, 0)
        .map_err(ModelError::io(FileAction::ReadHeader, path))?;
    if !npy_header::is_npy(&start) {
        let is_named_so = path.extension().is_some_and(|extension| extension == "npy");
        return match is_named_so {
            true => Err(ModelError::Malformed {
                path: path.to_owned(),
                problem: format!(
                    "the file has {file_bytes} bytes and does not begin as one of NumPy; it was cut off or is something else, save it again with numpy.save"
                ),
            }),
            false => Ok(None),
        };
    }
    let (record, offset) = npy_header::parse(&start, file_bytes).map_err(|flaw| at(path, flaw))?;
    // Two names that differ in such bytes alone would become one.
    let Some(name) = path.file_stem().unwrap_or_default().to_str() else {
        return Err(ModelError::Malformed {
            path: path.to_owned(),
            problem:
                "the array would have the name of this file, which is no UTF-8; rename the file"
                    .to_owned(),
        });
    };
    Ok(Some(Entry {
        name: name.to_owned(),
        meta: meta(record.dtype, record.shape, record.end),
        file: index,
        offset,
    }))
}

fn meta(dtype: DType, shape: Shape, data_bytes: u64) -> TensorMeta {
    TensorMeta {
        dtype,
        shape,
        is_dead: false,
        data_bytes,
    }
}

fn at(path: &Path, flaw: Flaw) -> ModelError {
    let path = path.to_owned();
    match flaw.tensor {
        Some(tensor) => ModelError::Tensor {
            path,
            tensor,
            problem: flaw.problem,
        },
        None => ModelError::Malformed {
            path,
            problem: flaw.problem,
        },
    }
}

/// Tensors that are left out and have a line of their own.
const SKIPPED_SHOWN: usize = 16;

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;
    use proptest::prelude::*;

    fn save(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
        let path = folder.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn image(json: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend(json.bytes());
        bytes.extend(data);
        bytes
    }

    const TWO: &str = r#"{"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"I16","shape":[],"data_offsets":[2,4]}}"#;

    #[test]
    fn entries_come_by_name_and_read_their_own_bytes() {
        let folder = tempfile::tempdir().unwrap();
        let path = save(folder.path(), "m", &image(TWO, &[1, 2, 3, 4]));
        let model = Model::open(&[path]).unwrap();
        let names: Vec<&str> = model.entries().iter().map(|entry| &*entry.name).collect();
        assert_eq!(names, ["a", "b"]);
        let tensor = model.read(model.entry("a").unwrap()).unwrap();
        assert_eq!(
            (tensor.dtype, &tensor.data[..]),
            (DType::Int16, &[3, 4][..])
        );
        assert_eq!(model.data_bytes(), 4);
        assert!(model.entry("c").is_none());
    }

    #[test]
    fn a_name_in_two_files_is_refused_with_both_paths() {
        let folder = tempfile::tempdir().unwrap();
        let first = save(folder.path(), "first", &image(TWO, &[1, 2, 3, 4]));
        let second = save(folder.path(), "second", &image(TWO, &[1, 2, 3, 4]));
        let text = Model::open(&[first, second]).unwrap_err().to_string();
        assert!(text.contains("first") && text.contains("second"), "{text}");
    }

    #[test]
    fn an_index_says_which_tensor_is_in_which_file() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), "1.safetensors", &image(TWO, &[1, 2, 3, 4]));
        save(folder.path(), "2.safetensors", &image(TWO, &[5, 6, 7, 8]));
        let index = |map: &str| {
            let text = format!(r#"{{"metadata":{{"total_size":4}},"weight_map":{map}}}"#);
            let path = save(
                folder.path(),
                "model.safetensors.index.json",
                text.as_bytes(),
            );
            Model::open(&[path])
        };
        let model = index(r#"{"a":"2.safetensors","b":"1.safetensors"}"#).unwrap();
        let bytes = |name| {
            model
                .read(model.entry(name).unwrap())
                .unwrap()
                .data
                .to_vec()
        };
        assert_eq!((bytes("a"), bytes("b")), (vec![7, 8], vec![1, 2]));
        for (map, what) in [
            (r#"{"c":"1.safetensors"}"#, "\"c\": the index says"),
            (r#"{"a":"3.safetensors"}"#, "3.safetensors"),
            (r#"{"a":"../1.safetensors"}"#, "without folders"),
            (r#"{"a":"/etc/passwd"}"#, "without folders"),
            (r#"["a"]"#, "no index"),
        ] {
            let text = index(map).unwrap_err().to_string();
            assert!(text.contains(what), "{text}");
        }
    }

    /// As a format of later years may have them.
    #[test]
    fn tensors_of_unknown_types_are_left_out_and_named() {
        let folder = tempfile::tempdir().unwrap();
        let json = TWO.replace("I16", "F7_NEW");
        let path = save(folder.path(), "m.safetensors", &image(&json, &[1, 2, 3, 4]));
        let index = r#"{"weight_map":{"a":"m.safetensors","b":"m.safetensors"}}"#;
        let index = save(folder.path(), "m.index.json", index.as_bytes());
        for path in [path, index] {
            let model = Model::open(&[path]).unwrap();
            let bytes = model.read(model.entry("b").unwrap()).unwrap().data;
            assert_eq!((model.entries().len(), &bytes[..]), (1, &[1, 2][..]));
            let lines: Vec<String> = model.skipped_lines().collect();
            let [line] = &lines[..] else {
                panic!("{lines:?}")
            };
            for part in ["m.safetensors", "\"a\"", "\"F7_NEW\"", "F8_E4M3"] {
                assert!(line.contains(part), "{line}");
            }
        }
    }

    #[test]
    fn an_array_of_numpy_has_the_name_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let shape = Shape::new(&[2, 1]).unwrap();
        let tensor = Tensor::new(DType::UInt16, shape, vec![1, 0, 2, 0]).unwrap();
        let path = folder.path().join("layer.0.weight.npy");
        crate::model::write_npy(&path, "any", &tensor).unwrap();
        let model = Model::open(&[path]).unwrap();
        let entry = model.entry("layer.0.weight").unwrap();
        assert_eq!(
            (entry.meta.dtype, entry.meta.shape.dims()),
            (DType::UInt16, &[2, 1][..])
        );
        assert_eq!(model.read(entry).unwrap().data, tensor.data);
    }

    #[test]
    fn a_name_that_is_no_text_names_no_array() {
        let folder = tempfile::tempdir().unwrap();
        let tensor = Tensor::new(DType::UInt8, Shape::new(&[1]).unwrap(), vec![7]).unwrap();
        let path = folder.path().join(OsStr::from_bytes(b"a\xff.npy"));
        crate::model::write_npy(&path, "any", &tensor).unwrap();
        let text = Model::open(&[&path]).unwrap_err().to_string();
        assert!(text.contains("no UTF-8; rename the file"), "{text}");
        // Tensors of other files have names of their own.
        std::fs::write(&path, image(TWO, &[1, 2, 3, 4])).unwrap();
        let other = path.with_extension("safetensors");
        std::fs::rename(path, &other).unwrap();
        assert_eq!(Model::open(&[other]).unwrap().entries().len(), 2);
    }

    #[test]
    fn missing_short_and_foreign_files_say_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let text = |path: &Path| Model::open(&[path]).unwrap_err().to_string();
        assert!(text(&folder.path().join("none")).contains("cannot open"));
        assert!(text(folder.path()).contains("not a regular file"));
        assert!(text(&save(folder.path(), "short", b"1234567")).contains("cut off"));
        assert!(text(&save(folder.path(), "text", b"hello, world")).contains("no safetensors"));
        for bytes in [&b""[..], b"\x93NUM", b"hello, world"] {
            let text = text(&save(folder.path(), "array.npy", bytes));
            assert!(text.contains("one of NumPy"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn whatever_is_accepted_the_reference_reader_accepts_too(
            at in 0usize..128, value: u8, cut in 0usize..8
        ) {
            let folder = tempfile::tempdir().unwrap();
            let mut bytes = image(TWO, &[1, 2, 3, 4]);
            let at = at % bytes.len();
            bytes[at] = value;
            bytes.truncate(bytes.len() - cut);
            let path = save(folder.path(), "m", &bytes);
            if Model::open(&[path]).is_ok_and(|model| model.skipped().is_empty()) {
                prop_assert!(safetensors::SafeTensors::deserialize(&bytes).is_ok());
            }
        }
    }
}
