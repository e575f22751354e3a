use std::collections::HashMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

use grpcxx_rpc::{Tensor, TensorMeta};

use super::format::{self, HEADER_BYTES_MAX, METADATA_KEY, Record};
use super::output::Output;
use super::{FileAction, ModelError, npy};

/// Writes a safetensors file whose tensors may come in any order; nothing appears at its path
/// before [`SafetensorsWriter::finish`].
#[derive(Debug)]
pub struct SafetensorsWriter {
    output: Output,
    data_offset: u64,
    missing: HashMap<String, Place>,
}

#[derive(Debug)]
struct Place {
    meta: TensorMeta,
    offset: u64,
}

impl SafetensorsWriter {
    /// Lays out a file at `path` for `tensors` and writes its header, with `metadata` as its free
    /// texts.
    ///
    /// # Errors
    /// A name is there twice, a type has no place in a safetensors file, there are too many tensors
    /// for one, or the file cannot be written.
    pub fn create<'a>(
        path: &Path,
        tensors: impl IntoIterator<Item = (&'a str, &'a TensorMeta)>,
        metadata: &[(String, String)],
    ) -> Result<Self, ModelError> {
        let mut records = Vec::new();
        for (name, meta) in tensors {
            records.push(record(path, name, meta)?);
        }
        place(&mut records);
        let mut missing = HashMap::with_capacity(records.len());
        for record in &records {
            let place = Place {
                meta: TensorMeta {
                    dtype: record.dtype,
                    shape: record.shape.clone(),
                    is_dead: false,
                    data_bytes: record.end - record.begin,
                },
                offset: record.begin,
            };
            if missing.insert(record.name.clone(), place).is_some() {
                return Err(refuse(path, &record.name, "it is to be written twice"));
            }
        }
        let header = format::build_header(&records, metadata);
        if header.len() as u64 > HEADER_BYTES_MAX {
            let problem = format!(
                "the names, types and places of {} tensors take {} bytes, and a safetensors file \
                 has at most {HEADER_BYTES_MAX} for them; write them in parts, chosen by patterns",
                records.len(),
                header.len()
            );
            return Err(ModelError::Malformed {
                path: path.to_owned(),
                problem,
            });
        }
        let output = Output::create(path)?;
        output
            .file()
            .write_all_at(&header, 0)
            .map_err(ModelError::io(FileAction::Write, path))?;
        Ok(Self {
            output,
            data_offset: header.len() as u64,
            missing,
        })
    }

    /// Why no safetensors file holds a tensor of this name and type, and what helps; `None` if one
    /// can.
    pub fn refusal(name: &str, meta: &TensorMeta) -> Option<String> {
        if format::dtype_name(meta.dtype).is_none() {
            let npy = match npy::has_type(meta.dtype) {
                true => ", or pull it into a .npy file",
                false => "",
            };
            return Some(format!(
                "safetensors has no type for {}; leave this tensor out{npy}",
                meta.dtype
            ));
        }
        if format::whole_bytes(meta.dtype, &meta.shape) != Some(meta.data_bytes.into()) {
            return Some(
                "its last byte is not full, as no safetensors file has it; leave this tensor out"
                    .to_owned(),
            );
        }
        (name == METADATA_KEY)
            .then(|| "this name is reserved in safetensors files; rename the tensor".to_owned())
    }

    /// Writes the data of one of the announced tensors to its place.
    ///
    /// # Errors
    /// The tensor was not announced, was written already, differs from its announcement or is dead,
    /// or the file cannot be written.
    pub fn write(&mut self, name: &str, tensor: &Tensor) -> Result<(), ModelError> {
        let path = self.output.path();
        let Some(place) = self.missing.get(name) else {
            return Err(refuse(path, name, "it was not announced, or came twice"));
        };
        if tensor.meta() != place.meta {
            return Err(refuse(
                path,
                name,
                &format!(
                    "a {} tensor of shape {}{} came where {} of shape {} was announced",
                    tensor.dtype,
                    tensor.shape,
                    if tensor.is_dead { " (dead)" } else { "" },
                    place.meta.dtype,
                    place.meta.shape
                ),
            ));
        }
        self.output
            .file()
            .write_all_at(&tensor.data, self.data_offset + place.offset)
            .map_err(ModelError::io(FileAction::Write, path))?;
        self.missing.remove(name);
        Ok(())
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// A tensor is missing, or the file cannot be written; then nothing appears.
    pub fn finish(self) -> Result<(), ModelError> {
        if let Some(name) = self.missing.keys().min() {
            return Err(refuse(self.output.path(), name, "its data never came"));
        }
        self.output.finish()
    }
}

fn record(path: &Path, name: &str, meta: &TensorMeta) -> Result<Record, ModelError> {
    if let Some(problem) = SafetensorsWriter::refusal(name, meta) {
        return Err(refuse(path, name, &problem));
    }
    Ok(Record {
        name: name.to_owned(),
        dtype: meta.dtype,
        shape: meta.shape.clone(),
        begin: 0,
        end: meta.data_bytes,
    })
}

/// Wide elements first, so that each tensor is aligned to its element; then by name.
fn place(records: &mut [Record]) {
    records.sort_unstable_by(|a, b| {
        let width = |record: &Record| record.dtype.element_bytes().unwrap_or(1);
        (width(b), &a.name).cmp(&(width(a), &b.name))
    });
    let mut offset = 0;
    for record in records {
        let data_bytes = record.end - record.begin;
        record.begin = offset;
        offset += data_bytes;
        record.end = offset;
    }
}

fn refuse(path: &Path, name: &str, problem: &str) -> ModelError {
    ModelError::Tensor {
        path: path.to_owned(),
        tensor: name.to_owned(),
        problem: problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Fingerprint, Model, ModelFingerprint};
    use grpcxx_rpc::{DType, Shape};

    fn tensors() -> Vec<(&'static str, Tensor)> {
        let tensor = |dtype, dims: &[u64], data: &[u8]| {
            Tensor::new(dtype, Shape::new(dims).unwrap(), data.to_vec()).unwrap()
        };
        vec![
            ("odd", tensor(DType::UInt8, &[3], &[1, 2, 3])),
            ("wide", tensor(DType::Float64, &[1], &[7; 8])),
            ("scalar", tensor(DType::BFloat16, &[], &[5, 6])),
            ("empty", tensor(DType::Float32, &[0, 9], &[])),
        ]
    }

    fn metas(tensors: &[(&'static str, Tensor)]) -> Vec<(&'static str, TensorMeta)> {
        tensors
            .iter()
            .map(|(name, tensor)| (*name, tensor.meta()))
            .collect()
    }

    fn create(path: &Path, metas: &[(&'static str, TensorMeta)]) -> SafetensorsWriter {
        let announced = metas.iter().map(|(name, meta)| (*name, meta));
        SafetensorsWriter::create(path, announced, &[("format".to_owned(), "pt".to_owned())])
            .unwrap()
    }

    #[test]
    fn a_file_written_in_any_order_reads_back_and_pleases_the_reference_reader() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.safetensors");
        let tensors = tensors();
        let mut writer = create(&path, &metas(&tensors));
        for (name, tensor) in tensors.iter().rev() {
            assert!(!path.exists());
            writer.write(name, tensor).unwrap();
        }
        writer.finish().unwrap();

        let model = Model::open(&[&path]).unwrap();
        let expected = ModelFingerprint::of(
            tensors
                .iter()
                .map(|(name, tensor)| (*name, Fingerprint::of(name, tensor))),
        );
        assert_eq!(model.fingerprint().unwrap(), expected);

        let bytes = std::fs::read(&path).unwrap();
        let (header_bytes, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header_bytes % 8, 0);
        assert_eq!(metadata.metadata().as_ref().unwrap()["format"], "pt");
        let reference = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(reference.len(), tensors.len());
        for (name, tensor) in &tensors {
            let view = reference.tensor(name).unwrap();
            assert_eq!(view.data(), &tensor.data[..]);
            let dims: Vec<u64> = view.shape().iter().map(|dim| *dim as u64).collect();
            assert_eq!(dims, tensor.shape.dims());
        }
    }

    #[test]
    fn an_unfinished_file_leaves_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.safetensors");
        let tensors = tensors();
        let mut writer = create(&path, &metas(&tensors));
        writer.write("odd", &tensors[0].1).unwrap();
        let error = writer.finish().unwrap_err();
        assert!(error.to_string().contains("\"empty\""), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn tensors_that_differ_from_their_announcement_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.safetensors");
        let tensors = tensors();
        let mut writer = create(&path, &metas(&tensors));
        assert!(writer.write("odd", &tensors[1].1).is_err());
        assert!(writer.write("none", &tensors[1].1).is_err());
        assert!(writer.write("empty", &Tensor::dead()).is_err());
        writer.write("odd", &tensors[0].1).unwrap();
        assert!(writer.write("odd", &tensors[0].1).is_err());
    }

    #[test]
    fn types_without_a_name_in_safetensors_are_refused() {
        let meta = TensorMeta {
            dtype: DType::QInt8,
            shape: Shape::SCALAR,
            is_dead: false,
            data_bytes: 1,
        };
        let error = SafetensorsWriter::create(Path::new("never"), [("q", &meta)], &[]).unwrap_err();
        assert!(error.to_string().contains("qint8"), "{error}");
    }

    #[test]
    fn more_than_a_file_can_name_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.safetensors");
        let names: Vec<String> = (0..1600).map(|n| format!("{n:0>65000}")).collect();
        let meta = TensorMeta {
            dtype: DType::UInt8,
            shape: Shape::vector(0),
            is_dead: false,
            data_bytes: 0,
        };
        let tensors = names.iter().map(|name| (name.as_str(), &meta));
        let refused = SafetensorsWriter::create(&path, tensors, &[]).unwrap_err();
        assert!(refused.to_string().contains("1600 tensors"), "{refused}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
