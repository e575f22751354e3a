//! How a client reads frames, in chunks or not.

use grpcxx_memory::Buffer;
use grpcxx_transport::{Next, Time};

use super::reader::{Chunks, TakesChunks};
use crate::Status;
use crate::connection::client::ClientConnection;
use crate::connection::client::inbound::Inbound;
use crate::connection::client::messages::reason_lost;
use crate::connection::cursor::Cursor;
use crate::connection::{Landings, PeerViolation};
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

    #[cold]
    fn give_up(&mut self, left_bytes: u64, status: Status) -> Next {
        let (id, behind_bytes, status) = match std::mem::take(&mut self.inbound) {
            Inbound::Message { id } => (id, 0, status),
            Inbound::ErrorText { id, status: number } => (id, 0, reason_lost(number, &status)),
            Inbound::Names { id, behind_bytes } => (id, behind_bytes, status),
            Inbound::Heads { id, data_bytes } => (id, data_bytes, status),
            Inbound::Records { id, mut records } => {
                let (behind_bytes, then_at_least_bytes) = records.give_up(status);
                if records.is_complete() {
                    let result = self.response(id, records);
                    self.complete(id, result);
                } else {
                    self.inbound = Inbound::Records { id, records };
                }
                return Next::Discard {
                    bytes: left_bytes.saturating_add(behind_bytes),
                    then_at_least_bytes,
                };
            }
            Inbound::Header | Inbound::Bundle { .. } => {
                unreachable!("what shares a frame has all of its memory")
            }
        };
        self.complete(id, Err(status));
        Next::Discard {
            bytes: left_bytes.saturating_add(behind_bytes),
            then_at_least_bytes: HEADER_BYTES,
        }
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
                        self.frames += 1;
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
