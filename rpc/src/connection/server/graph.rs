use grpcxx_memory::Buffer;
use grpcxx_transport::Next;

use super::answers::Expected;
use super::inbound::{Arriving, Inbound};
use crate::connection::cursor::Cursor;
use crate::connection::landings::checked;
use crate::connection::records::Records;
use crate::connection::server::{RequestId, ServerConnection, State};
use crate::connection::{Landings, PeerViolation};
use crate::wire::{HEADER_BYTES, Malformed, RequestHeader, decode_graph_metadata};
use crate::{Code, Request, Status};

impl ServerConnection {
    pub(crate) fn begin_graph(
        &mut self,
        arriving: Arriving,
        header: RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let allowed_max = self.limits.names_bytes as u64;
        let len =
            PeerViolation::checked_length("graph metadata", header.metadata_bytes, allowed_max)?;
        let inbound = Inbound::Metadata {
            arriving,
            feeds_bytes: header.payload_bytes.saturating_sub(len as u64),
        };
        if len == 0 {
            self.inbound = inbound;
            return Ok(self.land(Buffer::new(), cursor));
        }
        let there_bytes = cursor.there(len as u64);
        match checked(landings.message(len, there_bytes), there_bytes, len as u64) {
            Ok(buffer) => Ok(self.want(inbound, buffer, len, cursor)),
            Err(status) => {
                // Without the metadata nobody knows the number of feeds, so the header has to say how much to skip.
                self.refuse(arriving.id, status);
                Ok(cursor.skip(header.payload_bytes.max(len as u64), HEADER_BYTES))
            }
        }
    }

    pub(crate) fn metadata_landed(
        &mut self,
        arriving: Arriving,
        metadata: &Buffer,
    ) -> Result<(), Malformed> {
        let (call, names) = decode_graph_metadata(metadata, self.limits.records)?;
        let token = RequestId(arriving.id).token();
        self.inbound = Inbound::Feeds {
            arriving,
            call: Box::new(call),
            records: Records::new(token, names.len(), metadata.len() as u64)
                .beside(self.beside_bytes()),
            names,
        };
        Ok(())
    }

    pub(crate) fn read_feeds(
        &mut self,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let Inbound::Feeds {
            arriving, records, ..
        } = &mut self.inbound
        else {
            unreachable!("the caller has looked");
        };
        let served = self.served.find(arriving.id);
        if served.is_none_or(|served| served.state != State::Arriving) {
            records.fail(Status::new(
                Code::Cancelled,
                "the request has been answered",
            ));
        }
        let next = records.advance(cursor, &self.limits, landings)?;
        self.finish_feeds();
        Ok(next)
    }

    /// Delivers or refuses a graph call if all of its feeds are there or dropped.
    pub(crate) fn finish_feeds(&mut self) {
        if let Inbound::Feeds { records, .. } = &self.inbound
            && records.is_complete()
            && let Inbound::Feeds {
                arriving,
                mut call,
                names,
                records,
            } = std::mem::replace(&mut self.inbound, Inbound::Header)
        {
            match records.into_result(|index| names.get(index).cloned()) {
                Ok((tensors, _)) => {
                    call.feeds.extend(names.into_iter().zip(tensors));
                    let expected = Expected::Fetched {
                        names: call.fetches.clone(),
                    };
                    self.deliver(arriving, Request::StarRunGraph(call), expected);
                }
                Err(status) => self.refuse(arriving.id, status),
            }
        }
    }
}
