//! What a task answers when it is asked who may do what.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use grpcxx_rpc::{
    Account, Code, Credentials, Gate, Nonce, Provable, Reason, Right, Rights, Status, Token,
    TokenLength,
};

use super::step_makers::{Maker, StepMakers};
use super::task_hosts::TaskHosts;
use super::{AddressRanges, Identity, Policy, Proof, StoreAccess};
use crate::client::Lookups;
use crate::cluster::TaskId;

/// What decides who may do what on a task. The star port and the gRPC endpoint hold the same one.
#[derive(Debug)]
pub struct Authority {
    allow: Option<AddressRanges>,
    admin: AddressRanges,
    members: AddressRanges,
    /// Where tasks are in a cluster of which nothing else says who belongs to it.
    tasks: Arc<TaskHosts>,
    /// The rights of peers of which nothing is known but their address, which is in none of the
    /// ranges.
    strangers: Rights,
    token: Option<Arc<Token>>,
    is_open: bool,
    step_makers: StepMakers,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    connections_refused: AtomicU64,
    requests_forbidden: AtomicU64,
    proofs_failed: AtomicU64,
    steps_forgotten: AtomicU64,
}

/// What an authority has refused since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuthorityCounters {
    /// Connections that were closed when they came, because of their address.
    pub connections_refused: u64,
    /// Requests without the right that they need.
    pub requests_forbidden: u64,
    /// Proofs of the token, and claims to be a task, that were wrong.
    pub proofs_failed: u64,
    /// Steps whose maker was forgotten before they were over.
    pub steps_forgotten: u64,
}

/// Why there is no authority.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The token is none.
    #[error("GRPCXX_TOKEN holds {error}")]
    Key {
        /// Why.
        error: TokenLength,
    },
    /// The file of the token is none.
    #[error("GRPCXX_TOKEN_FILE={} holds {error}", path.display())]
    FileKey {
        /// The file.
        path: PathBuf,
        /// Why.
        error: TokenLength,
    },
    /// The file of the token cannot be read.
    #[error("GRPCXX_TOKEN_FILE={} cannot be read: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
}

impl Authority {
    /// Makes an authority of what was set.
    ///
    /// # Errors
    /// The token cannot be read.
    pub fn new(policy: &Policy) -> Result<Self, PolicyError> {
        let token = policy
            .token
            .as_ref()
            .map(|token| token.read())
            .transpose()?;
        let is_open = policy.is_open();
        let on_this_machine = || match token {
            Some(_) => AddressRanges::default(),
            None => AddressRanges::loopback(),
        };
        let unsaid = if is_open {
            StoreAccess::ReadOnly
        } else {
            StoreAccess::Off
        };
        let store = policy.store.unwrap_or(unsaid).rights();
        Ok(Self {
            allow: policy.allow.clone(),
            admin: policy.admin.clone().unwrap_or_else(on_this_machine),
            members: policy.members.clone().unwrap_or_default(),
            tasks: Arc::new(TaskHosts::new(if is_open { &policy.tasks } else { &[] })),
            strangers: if is_open { store.or(OF_STEPS) } else { store },
            token: token.map(Arc::new),
            is_open,
            step_makers: StepMakers::default(),
            counts: Counts::default(),
        })
    }

    /// Whether nothing limits who may connect, call functions and take part in steps.
    pub fn is_open(&self) -> bool {
        self.is_open && self.allow.is_none()
    }

    /// Whether a connection from there is taken. One that is not is counted and logged.
    pub fn admits(&self, peer: SocketAddr) -> bool {
        let is_allowed = (self.allow.as_ref()).is_none_or(|allow| allow.contain(peer.ip()));
        if !is_allowed {
            count(&self.counts.connections_refused, 1);
            tracing::warn!(
                %peer,
                "refused a connection from an address that GRPCXX_ALLOW does not name"
            );
        }
        is_allowed
    }

    /// What a peer may do.
    pub fn rights(&self, identity: &Identity) -> Rights {
        match identity.proof {
            Proof::Token | Proof::Certificate | Proof::SameUser => Rights::ALL,
            Proof::Nothing if self.admin.contain(identity.address) => Rights::ALL,
            Proof::Nothing if self.has_member_at(identity.address) => OF_TASKS.or(self.strangers),
            Proof::Nothing => self.strangers,
        }
    }

    /// Whether a peer is known to belong to the cluster, by a proof or by its address.
    pub fn knows(&self, identity: &Identity) -> bool {
        identity.proof != Proof::Nothing
            || self.admin.contain(identity.address)
            || self.has_member_at(identity.address)
    }

    /// Whether a peer has proven to belong to the cluster, or is where a task of it is.
    pub(crate) fn knows_task(&self, identity: &Identity) -> bool {
        identity.proof != Proof::Nothing || self.tasks.contain(identity.address)
    }

    fn has_member_at(&self, address: IpAddr) -> bool {
        self.members.contain(address) || self.tasks.contain(address)
    }

    /// Looks up where the tasks of the cluster are, and waits for that as long as a start may take.
    pub(crate) fn find_tasks(&self, lookups: &Lookups) {
        self.tasks.look_up(lookups);
        self.tasks.wait(START_PATIENCE);
    }

    /// Looks up again where the tasks of the cluster are: somebody has come from elsewhere,
    /// or was refused there.
    pub(crate) fn find_tasks_again(&self, lookups: &Lookups) {
        self.tasks.look_up(lookups);
    }

    /// How often tasks of the cluster were found at other addresses.
    #[inline]
    pub(crate) fn moves_of_tasks(&self) -> u64 {
        self.tasks.changes()
    }

    /// A peer, or this task itself, makes a graph call in a step. Returns whether the step is its
    /// own: whether nobody else has called in it before. Where strangers take no part in steps
    /// nothing is noted.
    pub(crate) fn note_step(&self, maker: Account, step_id: i64) -> bool {
        if !self.strangers.has(Right::Step) {
            return true;
        }
        let noted = self.step_makers.note(maker, step_id);
        if noted.has_forgotten {
            count(&self.counts.steps_forgotten, 1);
        }
        !noted.is_of_another
    }

    /// Lets a peer end a step that is not known to belong to the cluster: one that it has made. A
    /// request that does not pass is counted and logged.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`, with who may end the step.
    pub fn check_end_of_step(&self, peer: SocketAddr, step_id: i64) -> Result<(), Status> {
        self.check_end(peer, step_id, false)
    }

    /// As [`Authority::check_end_of_step`], on a task that also takes part in steps of which the
    /// star port hears nothing.
    ///
    /// # Errors
    /// `PERMISSION_DENIED`: another peer has made the step.
    pub(crate) fn check_end_of_shared_step(
        &self,
        peer: SocketAddr,
        step_id: i64,
    ) -> Result<(), Status> {
        self.check_end(peer, step_id, true)
    }

    fn check_end(
        &self,
        peer: SocketAddr,
        step_id: i64,
        may_be_unknown: bool,
    ) -> Result<(), Status> {
        match self.step_makers.maker(Account::of(peer.ip()), step_id) {
            Maker::Itself => {}
            Maker::Unknown if may_be_unknown => {}
            Maker::Another | Maker::Unknown => {
                self.forbade(peer, Right::Step, 1);
                return Err(not_its_step(step_id));
            }
        }
        self.step_makers.end(step_id);
        Ok(())
    }

    /// A step is over.
    pub(crate) fn step_ended(&self, step_id: i64) {
        self.step_makers.end(step_id);
    }

    /// Lets a request pass whose caller has the right that it needs. One that does not pass is
    /// counted and logged.
    ///
    /// # Errors
    /// What to answer instead.
    pub fn check(&self, peer: SocketAddr, rights: Rights, right: Right) -> Result<(), Status> {
        if rights.has(right) {
            return Ok(());
        }
        self.forbade(peer, right, 1);
        Err(right.missing())
    }

    /// Counts and logs requests that were refused.
    pub(crate) fn forbade(&self, peer: SocketAddr, right: Right, requests: u64) {
        count(&self.counts.requests_forbidden, requests);
        tracing::warn!(
            %peer,
            %right,
            requests,
            "refused what the peer has no right to; give it the token of this task \
             (GRPCXX_TOKEN_FILE), or set here: {}",
            right.setting()
        );
    }

    /// Counts and logs a proof of the token that was wrong.
    pub(crate) fn disproved(&self, peer: SocketAddr) {
        count(&self.counts.proofs_failed, 1);
        tracing::warn!(
            %peer,
            "the peer has another token than this task; give both the same GRPCXX_TOKEN_FILE"
        );
    }

    /// Counts and logs a peer that claims to be another task than its certificate names.
    pub(crate) fn misnamed(&self, peer: SocketAddr, claimed: &str, certified: Option<&TaskId>) {
        count(&self.counts.proofs_failed, 1);
        let certified = certified.map(TaskId::in_certificates);
        tracing::warn!(
            %peer,
            claimed,
            certified,
            "refused a peer that claims to be another task than its certificate names; give it its \
             own certificate (GRPCXX_TLS_CERT), or start it as the task of that"
        );
    }

    /// What a connection from a peer lets through, where `right_of_function` says which right the
    /// call of a function needs. `incarnation` is that of this task.
    pub(crate) fn gate(
        &self,
        identity: &Identity,
        right_of_function: fn(&str) -> Right,
        incarnation: u64,
    ) -> Gate {
        let gate = Gate::new(self.rights(identity), right_of_function);
        let Some((token, nonce)) = self.fresh_token() else {
            return gate;
        };
        gate.with_token(Provable {
            token,
            nonce,
            incarnation,
            rights: self.rights(&identity.clone().proven(Proof::Token)),
        })
    }

    /// How a connection to a peer proves the token, if there is one. A peer whose address is that
    /// of a member may know no tokens.
    pub(crate) fn credentials(&self, peer: Option<SocketAddr>) -> Option<Credentials> {
        let trusts_unproven = peer.is_some_and(|peer| self.members.contain(peer.ip()));
        let (token, nonce) = self.fresh_token()?;
        Some(Credentials {
            token,
            nonce,
            trusts_unproven,
        })
    }

    /// The token, and a number that nobody else has.
    fn fresh_token(&self) -> Option<(Arc<Token>, Nonce)> {
        let token = self.token.as_ref()?;
        let mut nonce = Nonce::default();
        match getrandom::fill(&mut nonce) {
            Ok(()) => Some((Arc::clone(token), nonce)),
            Err(error) => {
                tracing::error!(%error, "the system gives no random numbers, which proofs need");
                None
            }
        }
    }

    /// Whether there is a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// What the metadata `authorization` of a gRPC call says, if there is a token. `now` is the
    /// time since 1970.
    pub fn prove_call(&self, path: &str, now: Duration) -> Option<String> {
        let token = self.token.as_ref()?;
        Some(token.prove_call(path, now))
    }

    /// Who calls a method over gRPC with this metadata `authorization`. `now` is the time since
    /// 1970.
    ///
    /// # Errors
    /// The metadata proves nothing, though it claims to. It is counted and logged.
    pub fn identify_call(
        &self,
        peer: SocketAddr,
        identity: &Identity,
        path: &str,
        authorization: Option<&str>,
        now: Duration,
    ) -> Result<Identity, Status> {
        let (Some(token), Some(authorization)) = (&self.token, authorization) else {
            return Ok(identity.clone());
        };
        match token.verify_call(path, authorization, now) {
            Ok(()) => Ok(identity.clone().proven(Proof::Token)),
            Err(error) => {
                count(&self.counts.proofs_failed, 1);
                tracing::warn!(%peer, %error, "refused a gRPC call that proves no token");
                let status = Status::new(Code::Unauthenticated, error.to_string());
                Err(status.because(Reason::Unproven))
            }
        }
    }

    /// What has been refused.
    pub fn counters(&self) -> AuthorityCounters {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed);
        AuthorityCounters {
            connections_refused: value(&self.counts.connections_refused),
            requests_forbidden: value(&self.counts.requests_forbidden),
            proofs_failed: value(&self.counts.proofs_failed),
            steps_forgotten: value(&self.counts.steps_forgotten),
        }
    }
}

impl AuthorityCounters {
    /// Name, meaning and value of each counter.
    pub fn entries(&self) -> [(&'static str, &'static str, u64); 4] {
        [
            (
                "connections_refused",
                "Connections closed when they came, because GRPCXX_ALLOW does not name their address.",
                self.connections_refused,
            ),
            (
                "requests_forbidden",
                "Requests refused because their peer lacks the right that they need.",
                self.requests_forbidden,
            ),
            (
                "proofs_failed",
                "Proofs of the token, and claims to be a task, that were wrong.",
                self.proofs_failed,
            ),
            (
                "steps_forgotten",
                "Steps whose maker was forgotten before they were over, because there were too many.",
                self.steps_forgotten,
            ),
        ]
    }
}

impl Default for Authority {
    /// The authority of a policy of which nothing was set.
    fn default() -> Self {
        Self::new(&Policy::default()).expect("there is no token to be read")
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.allow {
            Some(allow) => write!(f, "allow={allow}")?,
            None => f.write_str("allow=all")?,
        }
        let token = if self.has_token() { "set" } else { "none" };
        write!(f, " token={token} admin={} members=", self.admin)?;
        if self.tasks.is_empty() {
            write!(f, "{}", self.members)?;
        } else {
            f.write_str("cluster-spec")?;
        }
        write!(f, " others={}", self.strangers)
    }
}

/// The authority of [`Policy::lenient`], for tests.
#[cfg(all(any(test, fuzzing), not(loom)))]
pub(crate) fn lenient() -> Authority {
    Authority::new(&Policy::lenient()).expect("there is no token to be read")
}

/// Longest wait of a start for the addresses of the cluster's tasks.
const START_PATIENCE: Duration = Duration::from_secs(1);

/// How the end of a step is refused to a peer that has not made it.
fn not_its_step(step_id: i64) -> Status {
    let text = format!(
        "step {step_id} was not made from this address, so this caller cannot end it; give both \
         the same GRPCXX_TOKEN_FILE, or set on the task: {}",
        Right::Step.setting()
    );
    Status::new(Code::PermissionDenied, text).because(Reason::Forbidden)
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// What calling functions and taking part in steps needs.
const OF_STEPS: Rights = Rights::of(&[Right::Call, Right::Step]);

/// What a task of the cluster may do.
const OF_TASKS: Rights = OF_STEPS.or(StoreAccess::Push.rights());

#[cfg(all(test, not(loom)))]
mod tests;
