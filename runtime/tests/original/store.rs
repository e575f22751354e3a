//! What an original needs to be pulled from: the functions of a store, as graph calls.

use super::encode::{self, INT32, INT64, STRING, UINT8};
use super::{Asked, Packet};

/// Serves tensors of bytes by name, in the packets of an original: names first, then each tensor.
pub fn serve(model: &[(String, Vec<u8>)], asked: &Asked) -> Vec<Packet> {
    if asked.method != encode::STAR_RUN_GRAPH {
        return vec![Packet::now(encode::response(asked.tag, 0, 0, b""))];
    }
    let (mut fetches, handle) = encode::graph_call(&asked.payload[..asked.metadata_bytes]);
    fetches.sort_unstable();
    let names = encode::names(fetches.iter().map(String::as_str));
    let records = fetches.iter().map(|fetch| match handle.as_str() {
        "grpcxx.store.list" => column(model, fetch),
        "grpcxx.store.pull" => {
            let (_, data) = model.iter().find(|(name, _)| name == fetch).unwrap();
            encode::record(UINT8, u32::try_from(data.len()).unwrap(), data)
        }
        other => panic!("{other} is not served"),
    });
    let names_bytes = i32::try_from(names.len()).unwrap();
    let payload = [names, records.collect::<Vec<_>>().concat()].concat();
    vec![Packet::now(encode::response(
        asked.tag,
        0,
        names_bytes,
        &payload,
    ))]
}

fn column(model: &[(String, Vec<u8>)], name: &str) -> Vec<u8> {
    let rows = u32::try_from(model.len()).unwrap();
    let texts = |texts: Vec<String>| encode::record(STRING, rows, &encode::strings(&texts));
    match name {
        "names" => texts(model.iter().map(|(name, _)| name.clone()).collect()),
        "shapes" => {
            let shapes = model.iter().map(|(_, data)| format!("[{}]", data.len()));
            texts(shapes.collect())
        }
        "dtypes" => {
            let dtypes = model.iter().map(|_| i32::from(UINT8).to_le_bytes());
            encode::record(INT32, rows, &dtypes.collect::<Vec<_>>().concat())
        }
        "bytes" => {
            let bytes = model
                .iter()
                .map(|(_, data)| (data.len() as i64).to_le_bytes());
            encode::record(INT64, rows, &bytes.collect::<Vec<_>>().concat())
        }
        other => panic!("there is no column {other}"),
    }
}
