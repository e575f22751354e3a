//! What a server asks of a client, and how it answers one that has the token.

use crate::connection::gate::{Provable, Refused};
use crate::connection::server::ServerConnection;
use crate::wire::{Announcement, Features};
use crate::{Challenge, Code, Gate, Nonce, Proof, Prover, Reason, Rights, Status};

/// How far a client has come with proving the token.
#[derive(Debug)]
pub(crate) struct TokenGate {
    provable: Provable,
    /// The client's number, once it has sent one.
    client: Option<Nonce>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unproven,
    Proven,
    Failed,
}

/// What became of a client's proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proving {
    /// It has the token.
    Proven,
    /// It has another one, or none.
    Failed,
}

impl TokenGate {
    pub(crate) fn new(provable: Provable) -> Self {
        Self {
            provable,
            client: None,
            state: State::Unproven,
        }
    }

    fn challenge(&self, client: Nonce) -> Challenge {
        Challenge {
            client,
            server: self.provable.nonce,
            incarnation: self.provable.incarnation,
        }
    }

    /// Checks the proof of a client. It proves nothing that has not begun with a nonce.
    fn check(&mut self, proof: &Proof) -> bool {
        let is_right = self.client.is_some_and(|client| {
            let challenge = self.challenge(client);
            (self.provable.token).verifies(Prover::Client, &challenge, proof)
        });
        self.state = match is_right {
            true => State::Proven,
            false => State::Failed,
        };
        is_right
    }
}

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

    /// Whether [`ServerConnection::take_refused`] or [`ServerConnection::poll_proving`] have something to say.
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

    /// Whether the link may be offered to the peer for a move: not before it has the rights that its proof will give.
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
