//! The safetensors header: 8 bytes of length, JSON, then the data of all tensors without holes.
//!
//! Written after the format description at <https://huggingface.co/docs/safetensors>, with its
//! length limit.

use std::fmt;

use grpcxx_rpc::{DType, DTypeClass, Shape};
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

/// What a header describes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The tensors, in the order of their data.
    pub(super) records: Vec<Record>,
    /// Those of types that are not known here.
    pub(super) skipped: Vec<SkippedRecord>,
}

/// A tensor of a type that is not known here.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SkippedRecord {
    pub(super) name: String,
    /// The name of its type in the file.
    pub(super) dtype: String,
    begin: u64,
    end: u64,
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

/// Reads the JSON part and checks all of it against the `data_bytes` that follow it in the file. A
/// type that is not known costs its tensors alone, for later formats have more types.
pub(super) fn parse_header(json: &[u8], data_bytes: u64) -> Result<Header, Flaw> {
    let members: Members = serde_json::from_slice(json).map_err(|error| {
        flaw(format!(
            "the header is not the JSON object of a safetensors file ({error}); the file is damaged or of another format"
        ))
    })?;
    let mut records = Vec::with_capacity(members.0.len());
    let mut skipped = Vec::new();
    for (name, value) in members.0 {
        let entry = entry(&name, value)?;
        match DTYPES.iter().find(|(known, _)| *known == entry.dtype) {
            Some((_, dtype)) => records.push(record(name, entry, *dtype)?),
            None => skipped.push(SkippedRecord {
                name,
                dtype: entry.dtype,
                begin: entry.data_offsets.0,
                end: entry.data_offsets.1,
            }),
        }
    }
    records.sort_by(|a, b| (a.begin, a.end, &a.name).cmp(&(b.begin, b.end, &b.name)));
    let known = records.iter().map(|it| (it.begin, it.end, &*it.name));
    let unknown = skipped.iter().map(|it| (it.begin, it.end, &*it.name));
    let mut places: Vec<Place<'_>> = known.chain(unknown).collect();
    places.sort_unstable();
    check_coverage(&places, data_bytes)?;
    check_names(&places)?;
    Ok(Header { records, skipped })
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

/// The types that are known here, as safetensors names them.
pub(super) fn known_types() -> String {
    let known: Vec<&str> = DTYPES.iter().map(|(known, _)| *known).collect();
    known.join(", ")
}

/// Begin, end and name of a tensor.
type Place<'a> = (u64, u64, &'a str);

struct Members(Vec<(String, serde_json::Value)>);

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MembersVisitor)
    }
}

struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with one member for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
        // A map type would keep the last of two equal names and hide the damage.
        let mut entries = Vec::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value::<serde_json::Value>()?;
            if name != METADATA_KEY {
                entries.push((name, value));
            }
        }
        Ok(Members(entries))
    }
}

fn entry(name: &str, value: serde_json::Value) -> Result<Entry, Flaw> {
    serde_json::from_value(value).map_err(|error| {
        tensor_flaw(
            name,
            format!(
                "its entry needs dtype, shape and data_offsets ({error}); the header is damaged"
            ),
        )
    })
}

fn record(name: String, entry: Entry, dtype: DType) -> Result<Record, Flaw> {
    let shape = Shape::new(&entry.shape).map_err(|error| tensor_flaw(&name, error.to_string()))?;
    let (begin, end) = entry.data_offsets;
    let expected = whole_bytes(dtype, &shape);
    if end.checked_sub(begin).map(u128::from) != expected || expected.is_none() {
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
        dtype,
        shape,
        begin,
        end,
    })
}

/// Length of the data of a tensor, if its elements end with a byte.
pub(super) fn whole_bytes(dtype: DType, shape: &Shape) -> Option<u128> {
    let num_elements = shape.num_elements();
    match dtype.class() {
        DTypeClass::Packed { element_bits }
            if !(u128::from(num_elements) * element_bits as u128).is_multiple_of(8) =>
        {
            None
        }
        _ => dtype.data_bytes(num_elements),
    }
}

fn check_coverage(places: &[Place<'_>], data_bytes: u64) -> Result<(), Flaw> {
    let mut covered = 0;
    for &(begin, end, name) in places {
        if begin != covered {
            let relation = if begin < covered {
                "overlap"
            } else {
                "leave a hole behind"
            };
            return Err(tensor_flaw(
                name,
                format!(
                    "data_offsets [{begin}, {end}] {relation} the tensor before it, which ends at {covered}; the header is damaged"
                ),
            ));
        }
        if end < begin {
            return Err(tensor_flaw(
                name,
                format!(
                    "data_offsets [{begin}, {end}] end before they begin; the header is damaged"
                ),
            ));
        }
        covered = end;
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
        tensor: places.last().map(|(_, _, name)| (*name).to_owned()),
        problem: format!(
            "the tensors need {covered} bytes behind the header, but the file has {data_bytes}; {advice}"
        ),
    })
}

fn check_names(places: &[Place<'_>]) -> Result<(), Flaw> {
    let mut names: Vec<&str> = places.iter().map(|(_, _, name)| *name).collect();
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
    ("F8_E4M3", DType::Float8E4M3Fn),
    ("F8_E5M2", DType::Float8E5M2),
    ("F8_E8M0", DType::Float8E8M0FnU),
    ("F8_E4M3FNUZ", DType::Float8E4M3FnUz),
    ("F8_E5M2FNUZ", DType::Float8E5M2FnUz),
    ("F6_E2M3", DType::Float6E2M3FnPacked),
    ("F6_E3M2", DType::Float6E3M2FnPacked),
    ("F4", DType::Float4E2M1FnPacked),
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
                r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}"#,
                2,
                "do not hold",
            ),
            (
                r#"{"a":{"dtype":"F9","shape":[3],"data_offsets":[2,0]}}"#,
                2,
                "leave a hole",
            ),
            (
                r#"{"b":{"dtype":"F9","shape":[3],"data_offsets":[0,2]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#,
                2,
                "overlap",
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
    fn a_type_that_is_not_known_costs_its_tensors_alone() {
        let json = r#"{"a":{"dtype":"F8_E9M9","shape":[4],"data_offsets":[0,5]},"b":{"dtype":"F6_E2M3","shape":[2,4],"data_offsets":[5,11]}}"#;
        let header = parse_header(json.as_bytes(), 11).unwrap();
        assert_eq!(header.records.len(), 1);
        assert_eq!(header.records[0].dtype, DType::Float6E2M3FnPacked);
        assert_eq!(header.skipped.len(), 1);
        assert_eq!(
            (&*header.skipped[0].name, &*header.skipped[0].dtype),
            ("a", "F8_E9M9")
        );
    }

    #[test]
    fn all_types_of_the_reference_are_known() {
        for dtype in [
            "BOOL",
            "F4",
            "F6_E2M3",
            "F6_E3M2",
            "U8",
            "I8",
            "F8_E5M2",
            "F8_E4M3",
            "F8_E8M0",
            "F8_E4M3FNUZ",
            "F8_E5M2FNUZ",
            "I16",
            "U16",
            "F16",
            "BF16",
            "I32",
            "U32",
            "F32",
            "C64",
            "F64",
            "I64",
            "U64",
        ] {
            let reference: safetensors::Dtype =
                serde_json::from_str(&format!("{dtype:?}")).unwrap();
            let (_, known) = DTYPES.iter().find(|(name, _)| *name == dtype).unwrap();
            assert_eq!(
                known.data_bytes(8),
                Some(reference.bitsize() as u128),
                "{dtype}"
            );
        }
        assert_eq!(DTYPES.len(), 22);
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
        assert_eq!(parse_header(&header[8..], 6).unwrap().records, records);
    }
}
