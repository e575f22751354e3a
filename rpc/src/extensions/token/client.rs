//! What a client makes of a server's proof, and how it proves the token once the server has.

use super::proving::{Credentials, Proving, Unproven};
use crate::connection::client::ClientConnection;
use crate::wire::{Announcement, Features};
use crate::{Challenge, Prover};

impl ClientConnection {
    /// Sends nothing, not even the announcement: the peer is not the one that was dialled.
    pub fn distrust(&mut self) {
        self.proving = Proving::Failed(Unproven::OtherTask);
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
            ..Announcement::default()
        });
    }
}
