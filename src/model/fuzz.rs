//! What a fuzzer does with the headers of safetensors and NumPy files. Only tests and fuzzers have
//! this module.

use super::format::{Header, METADATA_KEY, PREFIX_BYTES, build_header, header_bytes, parse_header};
use super::npy_header;

/// Whatever is a header has the same tensors when it is written again, and they cover the data. The
/// first byte says how many bytes of data follow the header.
///
/// # Panics
/// If this is not true.
pub fn safetensors_header(data: &[u8]) {
    let Some((&data_bytes, file)) = data.split_first() else {
        return;
    };
    let data_bytes = u64::from(data_bytes);
    let Some((prefix, json)) = file.split_first_chunk::<PREFIX_BYTES>() else {
        return;
    };
    let file_bytes = file.len() as u64 + data_bytes;
    let json = match header_bytes(*prefix, file_bytes) {
        // The announced part may reach into the data.
        Ok(len) if len <= json.len() => &json[..len],
        Ok(_) | Err(_) => json,
    };
    let Ok(Header { records, skipped }) = parse_header(json, data_bytes) else {
        return;
    };
    if !skipped.is_empty() {
        return;
    }
    let covered: u64 = records.iter().map(|record| record.end - record.begin).sum();
    assert_eq!(covered, data_bytes);
    assert!(records.iter().all(|record| record.name != METADATA_KEY));
    let again = build_header(&records, &[("format".to_owned(), "pt".to_owned())]);
    assert_eq!(
        parse_header(&again[PREFIX_BYTES..], data_bytes).map(|header| header.records),
        Ok(records)
    );
}

/// Whatever is a header says how long the file is. The first byte says how many bytes of data
/// follow the header.
///
/// # Panics
/// If this is not true.
pub fn numpy_header(data: &[u8]) {
    let Some((&data_bytes, start)) = data.split_first() else {
        return;
    };
    let file_bytes = start.len() as u64 + u64::from(data_bytes);
    if let Ok((record, data_offset)) = npy_header::parse(start, file_bytes) {
        assert_eq!(record.begin, 0);
        assert_eq!(data_offset + record.end, file_bytes);
    }
}

#[cfg(test)]
#[path = "../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::replay::replay;
    use super::*;

    #[test]
    fn the_corpora_of_the_fuzzers_hold() {
        replay("safetensors_header", safetensors_header);
        replay("numpy_header", numpy_header);
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_refused(
            data_bytes in 0u8..9,
            json in r#"\{("[ab]":\{"dtype":"(U8|F32|C64|F4|F6_E2M3|F9)","shape":\[[0-4]?\],"data_offsets":\[[0-9],[0-9]\]\},?){0,3}\}"#,
        ) {
            let prefix = (json.len() as u64).to_le_bytes();
            safetensors_header(&[&[data_bytes], &prefix[..], json.as_bytes()].concat());
        }
    }
}
