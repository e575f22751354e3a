use std::io::Write;
use std::path::Path;

use grpcxx_rpc::{DType, Tensor};

use super::output::Output;
use super::{FileAction, ModelError, format};

/// Writes one tensor as a NumPy file of version 1.0 (or 2.0 for headers beyond 64 KiB); the file
/// appears when it is complete. Types of ml_dtypes become raw bytes, as `numpy.save` has them:
/// `numpy.load(path).view(ml_dtypes.bfloat16)` is the array.
///
/// # Errors
/// NumPy has no type for the tensor's elements, or the file cannot be written.
pub fn write_npy(path: &Path, name: &str, tensor: &Tensor) -> Result<(), ModelError> {
    let Some(descr) = descr(tensor.dtype) else {
        return Err(ModelError::Tensor {
            path: path.to_owned(),
            tensor: name.to_owned(),
            problem: match format::dtype_name(tensor.dtype) {
                Some(_) => format!(
                    "NumPy has no type for {}; write a .safetensors file instead",
                    tensor.dtype
                ),
                None => format!("no file has a type for {}", tensor.dtype),
            },
        });
    };
    let header = header(descr, tensor.shape.dims());
    let output = Output::create(path)?;
    let mut file = output.file();
    file.write_all(&header)
        .and_then(|()| file.write_all(&tensor.data))
        .map_err(ModelError::io(FileAction::Write, path))?;
    output.finish()
}

/// Whether NumPy has a type for such elements.
pub(super) fn has_type(dtype: DType) -> bool {
    descr(dtype).is_some()
}

fn header(descr: &str, dims: &[u64]) -> Vec<u8> {
    let dims: Vec<String> = dims.iter().map(u64::to_string).collect();
    let shape = match dims.as_slice() {
        [only] => format!("({only},)"),
        _ => format!("({})", dims.join(", ")),
    };
    let text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    // Magic, version and length, then text, blanks and a line end: a multiple of 64 in all.
    let padded = |prefix_bytes: usize| {
        (prefix_bytes + text.len() + 1).next_multiple_of(ALIGNMENT_BYTES) - prefix_bytes
    };
    let mut bytes = MAGIC.to_vec();
    let text_bytes = match u16::try_from(padded(10)) {
        Ok(text_bytes) => {
            bytes.extend([1, 0]);
            bytes.extend(text_bytes.to_le_bytes());
            usize::from(text_bytes)
        }
        Err(_) => {
            let text_bytes = padded(12);
            bytes.extend([2, 0]);
            bytes.extend((text_bytes as u32).to_le_bytes());
            text_bytes
        }
    };
    bytes.extend(text.as_bytes());
    bytes.extend(std::iter::repeat_n(b' ', text_bytes - text.len() - 1));
    bytes.push(b'\n');
    bytes
}

/// The type that NumPy calls so, if it is one of this machine's byte order.
pub(super) fn dtype(name: &str) -> Option<DType> {
    match name {
        // `numpy.save` writes so what ml_dtypes adds, and does not say of which type it is beyond
        // these.
        "<V2" => return Some(DType::BFloat16),
        "<f1" => return Some(DType::Float8E5M2),
        "<V1" | "|V1" => return Some(DType::UInt8),
        _ => {}
    }
    let built_in = DType::ALL.iter().copied();
    built_in
        .filter(|dtype| !is_extra(*dtype))
        .find(|dtype| descr(*dtype) == Some(name))
}

/// Whether ml_dtypes has the type, and not NumPy.
fn is_extra(dtype: DType) -> bool {
    dtype == DType::BFloat16 || !dtype.is_star()
}

fn descr(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Float16 => "<f2",
        DType::Float32 => "<f4",
        DType::Float64 => "<f8",
        DType::Int8 => "|i1",
        DType::Int16 => "<i2",
        DType::Int32 => "<i4",
        DType::Int64 => "<i8",
        DType::UInt8 => "|u1",
        DType::UInt16 => "<u2",
        DType::UInt32 => "<u4",
        DType::UInt64 => "<u8",
        DType::Bool => "|b1",
        DType::Complex64 => "<c8",
        DType::Complex128 => "<c16",
        _ if is_extra(dtype) => match dtype.element_bytes()? {
            1 => "<V1",
            2 => "<V2",
            _ => "<V4",
        },
        _ => return None,
    })
}

pub(super) const MAGIC: &[u8] = b"\x93NUMPY";
const ALIGNMENT_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use grpcxx_rpc::Shape;

    #[test]
    fn headers_equal_those_of_numpy() {
        // numpy.lib.format.write_array_header_1_0 for float32 of shape (2, 3), (5,) and ().
        for (dims, shape) in [(&[2, 3][..], "(2, 3)"), (&[5][..], "(5,)"), (&[][..], "()")] {
            let bytes = header("<f4", dims);
            let mut expected = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
            expected.extend(
                format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}").bytes(),
            );
            expected.resize(127, b' ');
            expected.push(b'\n');
            assert_eq!(bytes, expected);
        }
    }

    #[test]
    fn types_of_ml_dtypes_are_written_as_their_bytes() {
        for &dtype in DType::ALL.iter().filter(|dtype| is_extra(**dtype)) {
            let written = dtype.element_bytes().map(|bytes| format!("<V{bytes}"));
            assert_eq!(descr(dtype), written.as_deref(), "{dtype}");
        }
    }

    #[test]
    fn long_headers_take_version_2() {
        let dims = vec![1; 30_000];
        let bytes = header("<f4", &dims);
        assert_eq!(bytes[6], 2);
        assert_eq!(bytes.len() % ALIGNMENT_BYTES, 0);
        let text_bytes = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        assert_eq!(text_bytes as usize + 12, bytes.len());
    }

    #[test]
    fn files_appear_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.npy");
        let shape = Shape::new(&[2]).unwrap();
        let tensor = Tensor::new(DType::Int16, shape.clone(), vec![1, 0, 2, 0]).unwrap();
        write_npy(&path, "a", &tensor).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 128 + 4);
        assert_eq!(bytes[128..], [1, 0, 2, 0]);

        let quantized = Tensor::new(DType::QInt16, shape, vec![0; 4]).unwrap();
        let error = write_npy(&folder.path().join("b.npy"), "b", &quantized).unwrap_err();
        assert!(error.to_string().contains("qint16"), "{error}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
