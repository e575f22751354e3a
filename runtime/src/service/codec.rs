//! Messages of prost into envelopes and out of them.

use bytes::Bytes;
use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Envelope, EnvelopeWriter, Metadata, Status};
use prost::Message;

use super::pieces::Pieces;

/// A request of the method at `path`.
pub(super) fn request(
    path: &str,
    metadata: &Metadata,
    message: &impl Message,
) -> Result<Envelope, Status> {
    let message_bytes = message.encoded_len();
    let writer = Envelope::request(path, metadata, message_bytes.min(RESERVED_BYTES_MAX))?;
    filled(writer, message)
}

/// An answer.
pub(super) fn answer(metadata: &Metadata, message: &impl Message) -> Result<Envelope, Status> {
    let message_bytes = message.encoded_len().min(RESERVED_BYTES_MAX);
    filled(Envelope::answer(metadata, message_bytes), message)
}

fn filled(mut writer: EnvelopeWriter, message: &impl Message) -> Result<Envelope, Status> {
    let encoded = message.encode(&mut Pieces(&mut writer));
    encoded.map_err(|error| Status::new(Code::ResourceExhausted, error.to_string()))?;
    Ok(writer.finish())
}

/// Reads a message. Long fields of `Bytes` share the memory that the message landed in.
pub(super) fn decode<M: Message + Default>(message: Buffer) -> Result<M, prost::DecodeError> {
    match message.len() {
        // The one who counts the references of a buffer costs more than a short copy.
        0..=COPIED_BYTES_MAX => M::decode(&message[..]),
        _ => M::decode(Bytes::from_owner(message)),
    }
}

/// Fields of messages up to this length are copied out.
const COPIED_BYTES_MAX: usize = 1024;

/// Memory that is asked for before a message is encoded. Most of one that is longer is attached.
const RESERVED_BYTES_MAX: usize = 16 << 10;
