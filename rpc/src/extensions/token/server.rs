//! What a server asks of a client, and how it answers one that has the token.

use super::claim::{Proving, State};
use crate::connection::gate::Refused;
use crate::connection::server::ServerConnection;
use crate::wire::{Announcement, Features};
use crate::{Code, Gate, Prover, Reason, Rights, Status};

impl ServerConnection {
    /// Sets what the peer may do.
    pub fn guard(&mut self, gate: Gate) {
        self.gate = gate;
    }

    /// What the peer may do.
    pub fn rights(&self) -> Rights {
        self.gate.rights()
    }

    /// Lets the peer do what is said of it now.
    pub fn set_rights(&mut self, rights: Rights) {
        self.gate.set_rights(rights);
    }

    /// Whether [`ServerConnection::take_refused`] or [`ServerConnection::poll_proving`] have
    /// something to say.
    #[inline]
    pub fn has_news(&self) -> bool {
        self.gate.has_news()
    }

    /// Requests that were refused since this was asked last, because the peer had no right to them.
    pub fn take_refused(&mut self) -> Option<Refused> {
        self.gate.take_refused()
    }

    /// What became of the peer's proof, once.
    pub fn poll_proving(&mut self) -> Option<Proving> {
        let gate = self.gate.take_news()?;
        match gate.state {
            State::Proven => Some(Proving::Proven),
            State::Failed => Some(Proving::Failed),
            State::Unproven => None,
        }
    }

    /// Takes what the announcement of the peer says of the token.
    ///
    /// # Errors
    /// Its proof is wrong.
    pub(crate) fn take_proof(&mut self, announcement: &Announcement) -> Result<(), Status> {
        let has_token = self.has(Features::TOKEN);
        let Some(token) = self.gate.token.as_mut().filter(|_| has_token) else {
            return Ok(());
        };
        if let Some(nonce) = announcement.nonce {
            token.client = Some(nonce);
        }
        let Some(proof) = &announcement.proof else {
            return Ok(());
        };
        let rights = token.check(proof).then_some(token.provable.rights);
        self.gate.note_proof(rights);
        if rights.is_some() {
            return Ok(());
        }
        let text = "the proof of the client does not fit the token of this task; give both the \
                    same GRPCXX_TOKEN_FILE";
        Err(Status::new(Code::Unauthenticated, text).because(Reason::Unproven))
    }

    /// Adds the server's half of the proof to its announcement.
    pub(crate) fn add_proof(&self, announcement: &mut Announcement) {
        if let Some(token) = self
            .gate
            .token
            .as_ref()
            .filter(|_| self.has(Features::TOKEN))
            && token.state == State::Unproven
            && let Some(client) = token.client
        {
            let challenge = token.challenge(client);
            announcement.nonce = Some(challenge.server);
            announcement.incarnation = Some(challenge.incarnation);
            announcement.proof = Some(token.provable.token.prove(Prover::Server, &challenge));
        }
    }

    /// Whether the link may be offered to the peer for a move: not before it has the rights that
    /// its proof will give.
    pub(crate) fn may_offer(&self) -> bool {
        let Some(token) = &self.gate.token else {
            return true;
        };
        match token.state {
            State::Proven => true,
            State::Unproven | State::Failed => {
                !self.has(Features::TOKEN) && self.gate.rights() != Rights::NONE
            }
        }
    }
}
