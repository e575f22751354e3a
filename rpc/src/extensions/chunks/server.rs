//! How a server reads frames, in chunks or not.

use grpcxx_memory::Buffer;
use grpcxx_transport::{Next, Time};

use super::reader::{Chunks, TakesChunks};
use crate::Status;
use crate::connection::cursor::Cursor;
use crate::connection::server::ServerConnection;
use crate::connection::server::inbound::Inbound;
use crate::connection::{Landings, PeerViolation};
use crate::wire::{Features, HEADER_BYTES, RequestHeader};

impl TakesChunks for ServerConnection {
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

    /// The link goes on behind none.
    fn landings_out(&self) -> usize {
        0
    }

    fn land(
        &mut self,
        memory: Buffer,
        cursor: &mut Cursor<'_>,
    ) -> Result<Option<Next>, PeerViolation> {
        Ok(self.land(memory, cursor))
    }

    #[cold]
    fn give_up(&mut self, left_bytes: u64, status: Status) -> Next {
        let (behind_bytes, then_at_least_bytes) = match std::mem::take(&mut self.inbound) {
            Inbound::Message { arriving, .. } => {
                self.refuse(arriving.id, status);
                (0, HEADER_BYTES)
            }
            Inbound::Metadata {
                arriving,
                feeds_bytes,
            } => {
                self.refuse(arriving.id, status);
                (feeds_bytes, HEADER_BYTES)
            }
            Inbound::Feeds {
                arriving,
                call,
                names,
                mut records,
            } => {
                records.give_up(status);
                let then_at_least_bytes = records.next_head_bytes();
                self.inbound = Inbound::Feeds {
                    arriving,
                    call,
                    names,
                    records,
                };
                self.finish_feeds();
                (0, then_at_least_bytes)
            }
            Inbound::Header | Inbound::Listed { .. } | Inbound::Bundle { .. } => {
                unreachable!("what shares a frame has all of its memory")
            }
        };
        Next::Discard {
            bytes: left_bytes.saturating_add(behind_bytes),
            then_at_least_bytes,
        }
    }

    fn read_frames(
        &mut self,
        now: Time,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Next, PeerViolation> {
        loop {
            let next = match &self.inbound {
                Inbound::Header if self.chunks.is_opened() => Some(self.first_order()),
                Inbound::Header if self.is_full() => {
                    self.is_paused = true;
                    Some(Next::Pause)
                }
                Inbound::Header => match cursor.array::<HEADER_BYTES>() {
                    Some(bytes) => {
                        let header = RequestHeader::decode(bytes).map_err(|cause| {
                            PeerViolation::WrongId {
                                place: "request header",
                                cause,
                            }
                        })?;
                        let most = self.limits.frame_bytes;
                        if self.has(Features::CHUNKS)
                            && self.chunks.begin(bytes, &mut self.inbound, most)?
                        {
                            return Ok(Next::Pause);
                        }
                        self.chunks.open(header.tag)?;
                        self.frames += 1;
                        self.begin(now, header, cursor, landings)?
                    }
                    None => Some(self.first_order()),
                },
                Inbound::Feeds { .. } => self.read_feeds(cursor, landings)?,
                Inbound::Bundle { .. } => {
                    self.read_bundle(landings)?;
                    None
                }
                Inbound::Listed { .. } => self.read_listed(cursor),
                Inbound::Message { .. } | Inbound::Metadata { .. } => {
                    unreachable!("the link shows bytes only when its landing is done")
                }
            };
            if let Some(next) = next {
                return Ok(next);
            }
        }
    }
}
