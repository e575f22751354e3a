//! The bytes of star: headers, tensor records, graph metadata, and the hot protobuf messages.
//!
//! Encoders append to memory that the caller reuses. Decoders take bytes of any origin: they never
//! panic, and check every length and count before they ask for memory. `docs/wire.md` describes the
//! layout. The bytes of an extension lie with it, and are told of here.

mod graph;
pub(crate) mod header;
pub(crate) mod reader;
mod receive;
mod record;
mod record_cache;
mod strings;

pub use crate::extensions::announcement::wire::{Announcement, Features};
pub(crate) use crate::extensions::bundles::wire::{
    AnswerForm, BUNDLE_BYTES_MAX, BUNDLE_METHOD, BUNDLE_TAG, BundleReader, BundledReceive,
    KeyReference, NUMBERED_BYTES_MAX, NUMBERED_KEY_BYTES_MAX, NUMBERED_KEYS_MAX, RECEIVE_BYTES,
};
pub use crate::extensions::chunks::wire::{CHUNK_METHOD, ChunkHeader};
pub use crate::extensions::heads_first::wire::{
    DATA_ALIGNMENT_BYTES, Heads, HeadsError, RUN_BYTES, encode_heads, filled_up,
};
pub use crate::extensions::services::wire::UNARY_METHOD;
pub use crate::extensions::streams::wire::{STREAM_METHOD, STREAM_OPEN_METHOD, STREAM_TAG};
pub(crate) use graph::{GRAPH_TAIL_BYTES, Order, decode_graph_tail, sorted_by_name};
pub use graph::{decode_graph_metadata, decode_names, encode_graph_metadata, encode_names};
pub use header::{CANCEL_METHOD, HEADER_BYTES, RequestHeader, ResponseHeader, WrongId};
pub use reader::{Malformed, Problem, Reader};
pub(crate) use receive::PlainReceive;
pub use receive::{ReceiveRequest, decode_receive, encode_receive, receive_bytes};
pub(crate) use record::is_of_star;
pub use record::{RECORD_BYTES, RecordError, ShapeForms, decode_record, encode_record};
pub(crate) use record_cache::RecordCache;
