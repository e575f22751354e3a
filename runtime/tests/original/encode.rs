//! Frames as an original writes and reads them: a header, records that are images of memory,
//! hand-packed metadata.

pub const HEADER_BYTES: usize = 32;

pub const GET_STATUS: i32 = 0;
pub const STAR_RUN_GRAPH: i32 = 7;
pub const RECV_TENSOR: i32 = 10;

pub const INT32: u8 = 3;
pub const UINT8: u8 = 4;
pub const STRING: u8 = 7;
pub const INT64: u8 = 9;

/// The header of a frame in either direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub id: [u8; 4],
    pub method: i32,
    pub tag: u64,
    pub status: i32,
    pub user_data: i32,
    pub payload_bytes: u64,
}

impl Header {
    pub fn of(bytes: &[u8; HEADER_BYTES]) -> Self {
        let four = |at: usize| bytes[at..at + 4].try_into().unwrap();
        let eight = |at: usize| bytes[at..at + 8].try_into().unwrap();
        Self {
            id: four(0),
            method: i32::from_le_bytes(four(4)),
            tag: u64::from_le_bytes(eight(8)),
            status: i32::from_le_bytes(four(16)),
            user_data: i32::from_le_bytes(four(20)),
            payload_bytes: u64::from_le_bytes(eight(24)),
        }
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.id.to_vec();
        bytes.extend(self.method.to_le_bytes());
        bytes.extend(self.tag.to_le_bytes());
        bytes.extend(self.status.to_le_bytes());
        bytes.extend(self.user_data.to_le_bytes());
        bytes.extend(self.payload_bytes.to_le_bytes());
        bytes
    }
}

/// A request; `metadata_bytes` of its payload are metadata.
pub fn request(method: i32, tag: u64, metadata_bytes: i32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        id: *b"AAAA",
        method,
        tag,
        status: 0,
        user_data: metadata_bytes,
        payload_bytes: payload.len() as u64,
    };
    [&header.bytes(), payload].concat()
}

/// A response; `names_bytes` of its payload are names.
pub fn response(tag: u64, status: i32, names_bytes: i32, payload: &[u8]) -> Vec<u8> {
    let header = Header {
        id: *b"BBBB",
        method: 0,
        tag,
        status,
        user_data: names_bytes,
        payload_bytes: payload.len() as u64,
    };
    [&header.bytes(), payload].concat()
}

/// A tensor of one dimension, with leftovers of memory where the shape has no dimensions.
pub fn record(dtype: u8, len: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, dtype, 0, 0, 0];
    bytes.extend(len.to_le_bytes());
    bytes.extend([0xcc; 9]);
    bytes.extend([dtype, 1, 1]);
    bytes.extend(u64::from(len).to_le_bytes());
    bytes.extend((data.len() as u64).to_le_bytes());
    bytes.extend(data);
    bytes
}

/// A tensor of seven dimensions: a pointer stands in their place.
pub fn record_out_of_line(dtype: u8, len: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = record(dtype, len, data);
    bytes[5..13].copy_from_slice(&0x7fd9_6c00_1c30_u64.to_le_bytes());
    bytes[5 + 14] = 7;
    bytes[5 + 15] = 2;
    bytes
}

/// The data of a tensor of strings: a `TensorProto`.
pub fn strings(texts: &[String]) -> Vec<u8> {
    let mut content = Vec::new();
    for text in texts {
        varint(text.len(), &mut content);
    }
    for text in texts {
        content.extend(text.as_bytes());
    }
    let mut size = vec![0x08];
    varint(texts.len(), &mut size);
    let mut dimension = vec![0x12];
    varint(size.len(), &mut dimension);
    dimension.extend(size);
    let mut proto = vec![0x08, STRING, 0x12];
    varint(dimension.len(), &mut proto);
    proto.extend(dimension);
    proto.push(0x22);
    varint(content.len(), &mut proto);
    proto.extend(content);
    proto
}

/// Names of fetched tensors, as they precede the records.
pub fn names<'a>(names: impl Iterator<Item = &'a str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for name in names {
        bytes.extend(u16::try_from(name.len()).unwrap().to_le_bytes());
        bytes.extend(name.as_bytes());
    }
    bytes
}

/// Metadata of a graph call with these feeds and no fetches.
pub fn graph_metadata(handle: &str, feeds: &[&str]) -> Vec<u8> {
    let mut bytes = i32::try_from(feeds.len()).unwrap().to_le_bytes().to_vec();
    bytes.extend(names(feeds.iter().copied()));
    bytes.extend(0i32.to_le_bytes());
    bytes.extend(names([handle].into_iter()));
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(1i32.to_le_bytes());
    // Whether to trace is left to chance.
    bytes.push(0x5a);
    bytes.extend([0; 4]);
    bytes
}

/// The fetches and the handle of a graph call without feeds.
pub fn graph_call(metadata: &[u8]) -> (Vec<String>, String) {
    let mut at = 0;
    let mut take = |len: usize| {
        at += len;
        &metadata[at - len..at]
    };
    assert_eq!(take(4), [0; 4], "no feeds");
    let fetches = u32::from_le_bytes(take(4).try_into().unwrap());
    let mut name = || {
        let len = u16::from_le_bytes(take(2).try_into().unwrap());
        String::from_utf8(take(usize::from(len)).to_vec()).unwrap()
    };
    let fetches = (0..fetches).map(|_| name()).collect();
    (fetches, name())
}

fn varint(mut value: usize, bytes: &mut Vec<u8>) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}
