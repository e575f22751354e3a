//! What a client makes of a server's proof, and how it proves the token once the server has.

use super::proving::{Credentials, Proving, Unproven};
use crate::connection::client::ClientConnection;
use crate::wire::{Announcement, Features};
use crate::{Challenge, Code, Prover, Reason, Status};

impl ClientConnection {
    /// Sends nothing, not even the announcement: the peer is not the one that was dialled.
    pub fn distrust(&mut self, why: Unproven) {
        self.proving = Proving::Failed(why);
    }

    /// Ends all calls if the server does not believe which task this side is. What it answers
    /// behind that counts no more.
    pub(crate) fn note_refusal(&mut self) {
        if let Some(status) = &self.announcement_failed
            && status.code == Code::Unauthenticated
            && self.task.is_some()
        {
            let why = Unproven::Refused((*status.message).into());
            let refused = Status::new(Code::Unauthenticated, why.to_string());
            self.proving = Proving::Failed(why);
            self.leave(&refused.because(Reason::Unproven));
        }
    }

    /// Checks what the server says of the token, and queues the proof of this side before all that
    /// waits.
    pub(crate) fn take_proof(&mut self, announcement: &Announcement) {
        let Proving::Asked { credentials, .. } = &self.proving else {
            return;
        };
        let Credentials {
            token,
            nonce,
            trusts_unproven,
        } = credentials;
        let both_know = announcement.features.contains(Features::TOKEN);
        let (server, incarnation) = (announcement.nonce, announcement.incarnation);
        let (Some(server), Some(incarnation), Some(proof), true) =
            (server, incarnation, &announcement.proof, both_know)
        else {
            self.proving = match trusts_unproven {
                true => Proving::Unused,
                false => Proving::Failed(Unproven::Missing),
            };
            return;
        };
        let challenge = Challenge {
            client: *nonce,
            server,
            incarnation,
        };
        if !token.verifies(Prover::Server, &challenge, proof) {
            self.proving = Proving::Failed(Unproven::Wrong);
            return;
        }
        let proof = token.prove(Prover::Client, &challenge);
        self.proving = Proving::Proved {
            is_first_over: false,
        };
        self.announce_first(&Announcement {
            features: self.announced,
            proof: Some(proof),
            task: self.task.clone(),
            ..Announcement::default()
        });
    }
}
