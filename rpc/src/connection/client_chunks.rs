//! How a client reads frames, in chunks or not.

use grpcxx_memory::Buffer;
use grpcxx_transport::{Next, Time};

use super::chunks::{Chunks, TakesChunks};
use super::client::ClientConnection;
use super::client_inbound::Inbound;
use super::cursor::Cursor;
use super::{Landings, PeerViolation};
use crate::wire::{Features, HEADER_BYTES, ResponseHeader};

impl TakesChunks for ClientConnection {
    type Inbound = Inbound;

    fn chunks(&mut self) -> &mut Chunks<Inbound> {
        &mut self.chunks
    }

    fn inbound(&mut self) -> &mut Inbound {
        &mut self.inbound
    }

    fn is_between_frames(&self) -> bool {
        matches!(self.inbound, Inbound::Header)
    }

    fn landings_out(&self) -> usize {
        match &self.inbound {
            Inbound::Records { records, .. } => records.landings_out(),
            _ => 0,
        }
    }

    fn land(&mut self, memory: Buffer, _: &mut Cursor<'_>) -> Result<Option<Next>, PeerViolation> {
        self.land(memory)?;
        Ok(None)
    }

    fn read_frames(
        &mut self,
        _now: Time,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Next, PeerViolation> {
        loop {
            let next = match &self.inbound {
                Inbound::Header if self.chunks.is_opened() => Some(self.first_order()),
                Inbound::Header => match cursor.array::<HEADER_BYTES>() {
                    Some(bytes) => {
                        let header = ResponseHeader::decode(bytes).map_err(|cause| {
                            PeerViolation::WrongId {
                                place: "response header",
                                cause,
                            }
                        })?;
                        let most = self.limits.frame_bytes;
                        if self.announced.contains(Features::CHUNKS)
                            && self.chunks.begin(bytes, &mut self.inbound, most)?
                        {
                            return Ok(Next::Pause);
                        }
                        self.chunks.open(header.tag)?;
                        self.begin(header, cursor, landings)?
                    }
                    None => Some(self.first_order()),
                },
                Inbound::Records { .. } => self.read_records(cursor, landings)?,
                Inbound::Bundle { .. } => {
                    self.read_bundle(landings)?;
                    None
                }
                Inbound::Message { .. }
                | Inbound::ErrorText { .. }
                | Inbound::Names { .. }
                | Inbound::Heads { .. } => {
                    unreachable!("the link shows bytes only when its landing is done")
                }
            };
            if let Some(next) = next {
                return Ok(next);
            }
        }
    }
}
