//! The safetensors header: 8 bytes of length, JSON, then the data of all tensors without holes.
//!
//! Written after the format description at <https://huggingface.co/docs/safetensors>, with its
//! length limit.

use std::fmt;

use grpcxx_rpc::{DType, Shape};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};

/// One tensor as the header describes it; `begin..end` are offsets into the data behind the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    pub(super) begin: u64,
    pub(super) end: u64,
}

/// What is wrong with a header, and with which tensor if it is about one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    pub(super) tensor: Option<String>,
    pub(super) problem: String,
}

/// The length of the JSON part, from the first 8 bytes of a file of `file_bytes` bytes.
pub(super) fn header_bytes(prefix: [u8; PREFIX_BYTES], file_bytes: u64) -> Result<usize, Flaw> {
    let announced = u64::from_le_bytes(prefix);
    if announced > HEADER_BYTES_MAX {
        return Err(flaw(format!(
            "the first 8 bytes announce a header of {announced} bytes, but at most {HEADER_BYTES_MAX} are allowed; this is no safetensors file, convert the model first"
        )));
    }
    if announced + PREFIX_BYTES as u64 > file_bytes {
        return Err(flaw(format!(
            "the header needs {announced} bytes behind the first 8, but the file has only {file_bytes} bytes in all; it was cut off, copy it again"
        )));
    }
    Ok(announced as usize)
}

/// Reads the JSON part and checks all of it against the `data_bytes` that follow it in the file.
///
/// The records come in the order of their data.
pub(super) fn parse_header(json: &[u8], data_bytes: u64) -> Result<Vec<Record>, Flaw> {
    let header: Header = serde_json::from_slice(json).map_err(|error| {
        flaw(format!(
            "the header is not the JSON object of a safetensors file ({error}); the file is damaged or of another format"
        ))
    })?;
    let mut records = Vec::with_capacity(header.entries.len());
    for (name, value) in header.entries {
        records.push(record(name, value)?);
    }
    records
        .sort_by(|a, b| (a.begin, a.end, a.name.as_str()).cmp(&(b.begin, b.end, b.name.as_str())));
    check_coverage(&records, data_bytes)?;
    check_names(&records)?;
    Ok(records)
}

/// The header of a file that holds `records`, whose offsets are set, padded so that the data is
/// aligned.
pub(super) fn build_header(records: &[Record], metadata: &[(String, String)]) -> Vec<u8> {
    let mut object = serde_json::Map::new();
    if !metadata.is_empty() {
        let texts = metadata
            .iter()
            .map(|(key, value)| (key.clone(), serde_json::Value::from(value.as_str())));
        object.insert(
            METADATA_KEY.to_owned(),
            serde_json::Value::Object(texts.collect()),
        );
    }
    for record in records {
        let name = dtype_name(record.dtype).unwrap_or("unknown");
        object.insert(
            record.name.clone(),
            serde_json::json!({
                "dtype": name,
                "shape": record.shape.dims(),
                "data_offsets": [record.begin, record.end],
            }),
        );
    }
    let mut json = serde_json::Value::Object(object).to_string().into_bytes();
    let padded = json.len().next_multiple_of(DATA_ALIGNMENT_BYTES);
    json.resize(padded, b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    header
}

/// The name that safetensors gives to `dtype`; quantised types, strings and handles have none.
pub(super) fn dtype_name(dtype: DType) -> Option<&'static str> {
    DTYPES
        .iter()
        .find(|(_, known)| *known == dtype)
        .map(|(name, _)| *name)
}

struct Header {
    entries: Vec<(String, serde_json::Value)>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(HeaderVisitor)
    }
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one member for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        // A map type would keep the last of two equal names and hide the damage.
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value::<serde_json::Value>()?;
            if name != METADATA_KEY {
                entries.push((name, value));
            }
        }
        Ok(Header { entries })
    }
}

fn record(name: String, value: serde_json::Value) -> Result<Record, Flaw> {
    let entry: Entry = match serde_json::from_value(value) {
        Ok(entry) => entry,
        Err(error) => {
            return Err(tensor_flaw(
                &name,
                format!(
                    "its entry needs dtype, shape and data_offsets ({error}); the header is damaged"
                ),
            ));
        }
    };
    let Some((_, dtype)) = DTYPES.iter().find(|(known, _)| *known == entry.dtype) else {
        let known: Vec<&str> = DTYPES.iter().map(|(known, _)| *known).collect();
        return Err(tensor_flaw(
            &name,
            format!(
                "dtype {:?} cannot be sent, only {}; convert the tensor",
                entry.dtype,
                known.join(", ")
            ),
        ));
    };
    let shape = Shape::new(&entry.shape).map_err(|error| tensor_flaw(&name, error.to_string()))?;
    let (begin, end) = entry.data_offsets;
    let expected = dtype
        .element_bytes()
        .and_then(|element_bytes| shape.num_elements().checked_mul(element_bytes as u64));
    if end.checked_sub(begin) != expected {
        return Err(tensor_flaw(
            &name,
            format!(
                "data_offsets [{begin}, {end}] do not hold the {} elements of {} that shape {shape} asks for; the header is damaged",
                shape.num_elements(),
                entry.dtype
            ),
        ));
    }
    Ok(Record {
        name,
        dtype: *dtype,
        shape,
        begin,
        end,
    })
}

fn check_coverage(records: &[Record], data_bytes: u64) -> Result<(), Flaw> {
    let mut covered = 0;
    for record in records {
        if record.begin != covered {
            let relation = if record.begin < covered {
                "overlap"
            } else {
                "leave a hole behind"
            };
            return Err(tensor_flaw(
                &record.name,
                format!(
                    "data_offsets [{}, {}] {relation} the tensor before it, which ends at {covered}; the header is damaged",
                    record.begin, record.end
                ),
            ));
        }
        covered = record.end;
    }
    if covered == data_bytes {
        return Ok(());
    }
    let advice = if covered > data_bytes {
        "it was cut off, copy it again"
    } else {
        "something was appended to it, copy it again"
    };
    Err(Flaw {
        tensor: records.last().map(|record| record.name.clone()),
        problem: format!(
            "the tensors need {covered} bytes behind the header, but the file has {data_bytes}; {advice}"
        ),
    })
}

fn check_names(records: &[Record]) -> Result<(), Flaw> {
    let mut names: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
    names.sort_unstable();
    if let Some(name) = names.iter().find(|name| name.len() > NAME_BYTES_MAX) {
        return Err(tensor_flaw(
            &name.chars().take(64).collect::<String>(),
            format!(
                "this name has {} bytes, but at most {NAME_BYTES_MAX} can be sent; rename the tensor",
                name.len()
            ),
        ));
    }
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(tensor_flaw(
            pair[0],
            "the header names it twice; the header is damaged".to_owned(),
        )),
        None => Ok(()),
    }
}

pub(super) fn flaw(problem: String) -> Flaw {
    Flaw {
        tensor: None,
        problem,
    }
}

fn tensor_flaw(name: &str, problem: String) -> Flaw {
    Flaw {
        tensor: Some(name.to_owned()),
        problem,
    }
}

/// Bytes of the length in front of the header.
pub(super) const PREFIX_BYTES: usize = 8;
/// Longest header that the format allows.
pub(super) const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Longest name that a star call can carry.
const NAME_BYTES_MAX: usize = 65_535;
/// Writers align the data behind the header so that readers may map it.
const DATA_ALIGNMENT_BYTES: usize = 8;
/// The member of the header that is no tensor.
pub(super) const METADATA_KEY: &str = "__metadata__";
const DTYPES: &[(&str, DType)] = &[
    ("F64", DType::Float64),
    ("F32", DType::Float32),
    ("F16", DType::Float16),
    ("BF16", DType::BFloat16),
    ("I64", DType::Int64),
    ("I32", DType::Int32),
    ("I16", DType::Int16),
    ("I8", DType::Int8),
    ("U64", DType::UInt64),
    ("U32", DType::UInt32),
    ("U16", DType::UInt16),
    ("U8", DType::UInt8),
    ("BOOL", DType::Bool),
    ("C64", DType::Complex64),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(json: &str, data_bytes: u64) -> (Option<String>, String) {
        let flaw = parse_header(json.as_bytes(), data_bytes).unwrap_err();
        (flaw.tensor, flaw.problem)
    }

    #[test]
    fn each_damage_names_its_tensor_and_what_was_found() {
        let cases = [
            (
                r#"{"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}"#,
                4,
                "F8_E4M3",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}"#,
                4,
                "[0, 4] do not hold",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}"#,
                4,
                "[4, 0] do not hold",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#,
                8,
                "leave a hole",
            ),
            (
                r#"{"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#,
                3,
                "overlap",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
                3,
                "cut off",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
                5,
                "appended",
            ),
            (
                r#"{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}}"#,
                4,
                "63 bits",
            ),
            (r#"{"a":{"dtype":"F32","shape":[1]}}"#, 4, "data_offsets"),
            (
                r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}"#,
                4,
                "damaged",
            ),
            (
                r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#,
                0,
                "twice",
            ),
        ];
        for (json, data_bytes, expected) in cases {
            let (tensor, problem) = problem(json, data_bytes);
            assert_eq!(tensor.as_deref(), Some("a"), "{json}");
            assert!(problem.contains(expected), "{json}: {problem}");
        }
        for json in ["", "[]", "null", "{", "{}x"] {
            assert_eq!(problem(json, 0).0, None, "{json}");
        }
    }

    #[test]
    fn the_announced_header_length_is_checked_before_it_is_believed() {
        assert_eq!(header_bytes(2u64.to_le_bytes(), 10), Ok(2));
        let long = header_bytes(3u64.to_le_bytes(), 10).unwrap_err();
        assert!(long.problem.contains("cut off"), "{}", long.problem);
        let absurd = header_bytes([0xff; 8], 10).unwrap_err();
        assert!(
            absurd.problem.contains("no safetensors file"),
            "{}",
            absurd.problem
        );
    }

    #[test]
    fn metadata_is_written_and_skipped() {
        let records = [Record {
            name: "a".to_owned(),
            dtype: DType::BFloat16,
            shape: Shape::new(&[3]).unwrap(),
            begin: 0,
            end: 6,
        }];
        let header = build_header(&records, &[("format".to_owned(), "pt".to_owned())]);
        assert_eq!(header.len() % DATA_ALIGNMENT_BYTES, 0);
        assert!(
            std::str::from_utf8(&header[8..])
                .unwrap()
                .contains(r#""format":"pt""#)
        );
        assert_eq!(parse_header(&header[8..], 6).unwrap(), records);
    }
}
