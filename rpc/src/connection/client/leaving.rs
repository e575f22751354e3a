//! How a client leaves a connection whose peer may still write to it.

use grpcxx_memory::Buffer;
use grpcxx_transport::SlotId;

use super::inbound::{ResponsePart, gone};
use crate::Status;
use crate::connection::body::Body;
use crate::connection::calls::Expected;
use crate::connection::client::ClientConnection;
use crate::connection::reader::{Part, Side, Whole};

impl ClientConnection {
    /// Ends all calls with `status` and takes no more, because this side leaves. What the peer
    /// still answers is read and dropped; [`ClientConnection::is_drained`] says when that is over.
    pub fn leave(&mut self, status: &Status) {
        self.close();
        let ids: Vec<SlotId> = self.calls.iter().map(|(id, _)| id).collect();
        for id in ids {
            let Some(call) = self.calls.find(id) else {
                continue;
            };
            match call.expected {
                _ if !call.state.is_sent() => self.finish(id, Err(status.clone())),
                // Its answer is owed, and nobody waits for it.
                Expected::Announcement => {}
                Expected::Message
                | Expected::Tensors { .. }
                | Expected::Fetched { .. }
                | Expected::Unary
                | Expected::Stream { .. } => {
                    if !call.state.has_ended() {
                        self.give_up(id, status.clone(), false);
                    }
                }
            }
        }
    }

    /// Whether the peer owes no answer, and none is on its way in.
    pub fn is_drained(&self) -> bool {
        self.calls.is_empty() && self.reader.is_between_frames()
    }

    /// Notes that the link has given a landing back, drops the rest of its bytes, and shows what
    /// follows them. `false` says that it is not known any more what that is.
    pub fn handle_landing_dropped(&mut self) -> bool {
        if self.reader.chunks.is_inside() || !self.aside.is_empty() {
            return false;
        }
        match std::mem::take(&mut self.reader.part) {
            Part::Header => {}
            Part::Whole(Whole {
                what:
                    what @ (ResponsePart::Message { .. }
                    | ResponsePart::Failure { .. }
                    | ResponsePart::Unary { .. }),
                ..
            }) => self.drop_whole(what, gone()),
            Part::Tensors {
                of: id,
                body: Body::Records(mut records),
            } if records.is_landing() => {
                records.fail(gone());
                records.landed(Buffer::new());
                if records.is_complete() {
                    self.complete(id, Err(gone()));
                } else {
                    let body = Body::Records(records);
                    self.reader.part = Part::Tensors { of: id, body };
                }
            }
            Part::Whole(_) | Part::Tensors { .. } => return false,
        }
        true
    }
}
