//! Requests that are one message, as a server reads them.

use grpcxx_memory::Buffer;
use grpcxx_transport::Next;

use super::answers::Expected;
use super::inbound::{Arriving, RequestPart, tensors_of};
use crate::connection::cursor::Cursor;
use crate::connection::encode::unsupported;
use crate::connection::limits::STAR_RECORDS_MAX;
use crate::connection::reader::{Whole, read_into, read_whole};
use crate::connection::records::message_too_long;
use crate::connection::server::ServerConnection;
use crate::connection::{Landings, PeerViolation};
use crate::wire::{Announcement, Features, PlainReceive, RequestHeader, decode_receive};
use crate::{Method, Request, Status};

impl ServerConnection {
    pub(crate) fn begin_message(
        &mut self,
        arriving: Arriving,
        method: Method,
        header: RequestHeader,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Result<Option<Next>, PeerViolation> {
        let len = header.payload_bytes;
        let whole = Whole {
            what: RequestPart::Message { arriving, method },
            len_bytes: len as usize,
            behind_bytes: 0,
        };
        let limits = &self.reader.limits;
        if len > limits.message_bytes {
            let status = message_too_long(len, limits);
            return read_into(self, whole, Err(status), cursor, landings);
        }
        if let Some(request) = self.known_receive(method, len as usize, cursor, landings) {
            let expected = tensors_of(&request);
            self.deliver(arriving, request, expected);
            return Ok(None);
        }
        read_whole(self, whole, cursor, landings)
    }

    /// Most keys of one request for tensors: originals make no more.
    fn keys_max(&self) -> usize {
        self.reader.limits.records.min(STAR_RECORDS_MAX)
    }

    /// Takes a request for tensors whose keys are all known, if all of it is there.
    fn known_receive(
        &self,
        method: Method,
        len: usize,
        cursor: &mut Cursor<'_>,
        landings: &mut dyn Landings,
    ) -> Option<Request> {
        let keys_max = match method {
            Method::RecvTensor => 1,
            Method::FuseRecvTensor => self.keys_max(),
            _ => return None,
        };
        let mut bytes = PlainReceive::read(cursor.peek(len)?)?;
        let step_id = bytes.step_id;
        let request = if method == Method::RecvTensor {
            let key = landings.known_key(bytes.next()?)?;
            Request::RecvTensor { step_id, key }
        } else {
            let mut keys = Vec::with_capacity(keys_max.min(bytes.keys_max()));
            while keys.len() < keys_max
                && let Some(key) = bytes.next()
            {
                keys.push(landings.known_key(key)?);
            }
            let keys = keys.into();
            Request::FuseRecvTensor { step_id, keys }
        };
        // Whoever asks for nothing, or for something else too, is answered with care.
        let is_empty = matches!(&request, Request::FuseRecvTensor { keys, .. } if keys.is_empty());
        if is_empty || !bytes.is_empty() {
            return None;
        }
        cursor.slice(len);
        Some(request)
    }

    pub(crate) fn message_landed(&mut self, arriving: Arriving, method: Method, body: Buffer) {
        let decoded = match method {
            Method::RecvTensor => decode_receive(&body, 1)
                .map(|mut message| {
                    let key = message.keys.pop().expect("a decoded request has a key");
                    let step_id = message.step_id;
                    tensors_asked(Request::RecvTensor { step_id, key })
                })
                .map_err(Status::from),
            Method::FuseRecvTensor => decode_receive(&body, self.keys_max().max(2))
                .map(|message| {
                    tensors_asked(Request::FuseRecvTensor {
                        step_id: message.step_id,
                        keys: message.keys.into_vec().into(),
                    })
                })
                .map_err(Status::from),
            Method::GetStatus => self.status_asked(&body).map(|announce| {
                let request = Request::Message { method, body };
                (request, Expected::Message { announce })
            }),
            _ => {
                let request = Request::Message { method, body };
                Ok((request, Expected::Message { announce: false }))
            }
        };
        match decoded {
            Ok((request, expected)) => self.deliver(arriving, request, expected),
            Err(status) => self.refuse(arriving.id, status),
        }
    }

    /// Notes what the peer announces, and whether its answer shall carry an announcement.
    fn status_asked(&mut self, body: &Buffer) -> Result<bool, Status> {
        let Some(announcement) = Announcement::find(body)? else {
            return Ok(false);
        };
        if self.peer.is_none() && self.holding.is_short_of_keys() {
            self.announced = self.announced.without(Features::OF_KEYS);
        }
        self.meet(announcement.features);
        self.take_claim(&announcement)?;
        self.take_proof(&announcement)?;
        Ok(!self.announced.is_empty())
    }
}

fn tensors_asked(request: Request) -> (Request, Expected) {
    let expected = tensors_of(&request);
    (request, expected)
}

/// Why a method is refused without asking the service.
pub(crate) fn refusal(method: Method) -> Option<&'static str> {
    match method {
        // Originals answer with the bare names, and their callers look for nothing else.
        Method::Logging => Some("Logging"),
        Method::Tracing => Some("Tracing"),
        method => unsupported(method),
    }
}
