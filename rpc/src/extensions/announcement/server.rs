//! Whether a client is the task that it says it is.

use super::claim::Certified;
use crate::connection::server::ServerConnection;
use crate::wire::Announcement;
use crate::{Code, Reason, Status, Text};

impl ServerConnection {
    /// Notes which task the certificate of the peer names. The peer must not claim to be another
    /// one.
    pub fn certify(&mut self, certified: Certified) {
        self.gate.certified = Some(Box::new(certified));
    }

    /// Which task the peer says that it is.
    pub fn claimed_task(&self) -> Option<&Text> {
        self.gate.claimed.as_ref()
    }

    /// What the peer has claimed to be, once, if its certificate names another task.
    pub fn take_false_claim(&mut self) -> Option<Text> {
        self.gate.take_false_claim()
    }

    /// Takes what the announcement of the peer says of the task that it is. A peer that claims to
    /// be another one than its certificate names has no rights on this connection.
    ///
    /// # Errors
    /// Its certificate names another task.
    pub(crate) fn take_claim(&mut self, announcement: &Announcement) -> Result<(), Status> {
        self.gate.note_claim(announcement.task.clone());
        let (Some(claimed), Some(certified)) = (&announcement.task, &self.gate.certified) else {
            return Ok(());
        };
        if *claimed == certified.task {
            return Ok(());
        }
        let text = format!(
            "the client says that it is {claimed}, and its certificate is that of {}; give it the \
             certificate of {claimed} (GRPCXX_TLS_CERT, GRPCXX_TLS_KEY), or start it as {}",
            certified.name, certified.task
        );
        self.gate.deny(claimed.clone());
        Err(Status::new(Code::Unauthenticated, text).because(Reason::Unproven))
    }
}
