//! What a connection lets its peer do.

use crate::extensions::announcement::claim::Certified;
use crate::extensions::token::claim::{Provable, TokenGate};
use crate::{Method, Right, Rights, Text};

/// What a server's connection lets its peer do. Decided when the connection begins, so that a
/// request costs the look at one bit.
#[derive(Debug)]
pub struct Gate {
    rights: Rights,
    right_of_function: fn(&str) -> Right,
    pub(crate) token: Option<TokenGate>,
    refused: Option<Refused>,
    /// Whether the peer has proved something, or failed to, since somebody looked.
    has_proof: bool,
    /// Which task the certificate of the peer names.
    pub(crate) certified: Option<Box<Certified>>,
    /// Which task it says that it is.
    pub(crate) claimed: Option<Text>,
    /// Which other task it has claimed to be, as long as nobody has looked.
    false_claim: Option<Text>,
    /// Whether the peer has no rights, whatever it proves.
    is_denied: bool,
    /// Whether there is anything for somebody to look at.
    has_news: bool,
}

/// Requests that the peer had no right to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The right that the last of them needed.
    pub right: Right,
    /// Their number since this was asked last.
    pub count: u64,
}

impl Gate {
    /// A gate with these rights. `right_of_function` says which right the call of a function needs.
    pub fn new(rights: Rights, right_of_function: fn(&str) -> Right) -> Self {
        Self {
            rights,
            right_of_function,
            token: None,
            refused: None,
            has_proof: false,
            certified: None,
            claimed: None,
            false_claim: None,
            is_denied: false,
            has_news: false,
        }
    }

    /// Gives other rights to a peer that proves the token.
    #[must_use]
    pub fn with_token(mut self, provable: Provable) -> Self {
        self.token = Some(TokenGate::new(provable));
        self
    }

    /// What the peer may do now.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Notes that the peer has sent a proof, which gives it these rights if it is right.
    pub(crate) fn note_proof(&mut self, rights: Option<Rights>) {
        self.set_rights(rights.unwrap_or(self.rights));
        self.has_proof = true;
        self.has_news = true;
    }

    /// Whether something happened at the gate since somebody looked.
    #[inline]
    pub(crate) fn has_news(&self) -> bool {
        self.has_news
    }

    /// What became of the peer's proof, if it has sent one since somebody looked.
    pub(crate) fn take_news(&mut self) -> Option<&TokenGate> {
        let has_proof = std::mem::take(&mut self.has_proof);
        self.has_news = self.refused.is_some() || self.false_claim.is_some();
        self.token.as_ref().filter(|_| has_proof)
    }

    pub(crate) fn set_rights(&mut self, rights: Rights) {
        if !self.is_denied {
            self.rights = rights;
        }
    }

    /// Notes which task the peer says that it is, which somebody may want to know. Who says it once
    /// and announces more later is still that task.
    pub(crate) fn note_claim(&mut self, claimed: Option<Text>) {
        if claimed.is_some() {
            self.has_news = true;
            self.claimed = claimed;
        }
    }

    /// Takes all rights from a peer that claims to be this task, whose certificate names another.
    pub(crate) fn deny(&mut self, claimed: Text) {
        self.rights = Rights::NONE;
        self.is_denied = true;
        self.false_claim = Some(claimed);
        self.has_news = true;
    }

    /// Which other task the peer has claimed to be since somebody looked.
    pub(crate) fn take_false_claim(&mut self) -> Option<Text> {
        self.has_news = self.has_proof || self.refused.is_some();
        self.false_claim.take()
    }

    /// The right that a request of `method` needs and the peer lacks. Which function a graph call
    /// names is not known yet, so it may begin if there is any that the peer may call.
    #[inline]
    pub(crate) fn missing_for(&mut self, method: Method) -> Option<Right> {
        match Right::of_method(method) {
            Some(right) => self.missing(right),
            None if method == Method::StarRunGraph && self.rights == Rights::NONE => {
                self.missing(Right::Call)
            }
            None => None,
        }
    }

    /// The right that the call of a function needs and the peer lacks. A call that counts towards
    /// the end of a step needs that step too.
    #[inline]
    pub(crate) fn missing_for_call(&mut self, function: &Text, is_of_step: bool) -> Option<Right> {
        if self.rights == Rights::ALL {
            return None;
        }
        let right = (self.right_of_function)(function.as_str());
        let of_step = is_of_step.then_some(Right::Step);
        (self.missing(right)).or_else(|| of_step.and_then(|right| self.missing(right)))
    }

    /// `right`, if the peer lacks it.
    #[inline]
    pub(crate) fn missing(&mut self, right: Right) -> Option<Right> {
        if self.rights.has(right) {
            return None;
        }
        self.refuse(right)
    }

    #[cold]
    fn refuse(&mut self, right: Right) -> Option<Right> {
        let count = self.refused.map_or(0, |refused| refused.count) + 1;
        self.refused = Some(Refused { right, count });
        self.has_news = true;
        Some(right)
    }

    pub(crate) fn take_refused(&mut self) -> Option<Refused> {
        self.has_news = self.has_proof || self.false_claim.is_some();
        self.refused.take()
    }
}

impl Default for Gate {
    /// A gate that lets everything through.
    fn default() -> Self {
        Self::new(Rights::ALL, |_| Right::Call)
    }
}
