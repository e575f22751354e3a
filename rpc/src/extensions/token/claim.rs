//! What a client has claimed of the token, and whether that is true.

use std::sync::Arc;

use crate::{Challenge, Nonce, Proof, Prover, Rights, Token};

/// How a client proves a token, and what it may do then.
#[derive(Clone, Debug)]
pub struct Provable {
    /// The token.
    pub token: Arc<Token>,
    /// A number that no other connection has.
    pub nonce: Nonce,
    /// The incarnation of this task.
    pub incarnation: u64,
    /// The rights of who has the token.
    pub rights: Rights,
}

/// How far a client has come with proving the token.
#[derive(Debug)]
pub(crate) struct TokenGate {
    pub(super) provable: Provable,
    /// The client's number, once it has sent one.
    pub(super) client: Option<Nonce>,
    pub(super) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
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

    pub(super) fn challenge(&self, client: Nonce) -> Challenge {
        Challenge {
            client,
            server: self.provable.nonce,
            incarnation: self.provable.incarnation,
        }
    }

    /// Checks the proof of a client. It proves nothing that has not begun with a nonce.
    pub(super) fn check(&mut self, proof: &Proof) -> bool {
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
