//! What a task answers when it is asked who may do what.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use grpcxx_rpc::{
    Code, Credentials, Gate, Nonce, Provable, Reason, Right, Rights, Status, Token, TokenLength,
};

use super::{AddressRanges, Identity, Policy, Proof, StoreAccess};

/// What decides who may do what on a task. The star port and the gRPC endpoint hold the same one.
#[derive(Debug)]
pub struct Authority {
    allow: Option<AddressRanges>,
    admin: AddressRanges,
    members: AddressRanges,
    /// The rights of peers of which nothing is known but their address, which is in none of the
    /// ranges.
    strangers: Rights,
    token: Option<Arc<Token>>,
    is_open: bool,
    counts: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    connections_refused: AtomicU64,
    requests_forbidden: AtomicU64,
    proofs_failed: AtomicU64,
}

/// What an authority has refused since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AuthorityCounters {
    /// Connections that were closed when they came, because of their address.
    pub connections_refused: u64,
    /// Requests without the right that they need.
    pub requests_forbidden: u64,
    /// Proofs of the token that were wrong.
    pub proofs_failed: u64,
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
        #[source]
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
            strangers: if is_open { store.or(OF_STEPS) } else { store },
            token: token.map(Arc::new),
            is_open,
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
            Proof::Nothing if self.members.contain(identity.address) => OF_TASKS,
            Proof::Nothing => self.strangers,
        }
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
        }
    }
}

impl AuthorityCounters {
    /// Name, meaning and value of each counter.
    pub fn entries(&self) -> [(&'static str, &'static str, u64); 3] {
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
                "Proofs of the token that were wrong.",
                self.proofs_failed,
            ),
        ]
    }
}

impl Default for Authority {
    /// That of a policy of which nothing was set.
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
        write!(
            f,
            " token={token} admin={} members={} others={}",
            self.admin, self.members, self.strangers
        )
    }
}

/// The authority of [`Policy::lenient`], for tests.
#[cfg(all(test, not(loom)))]
pub(crate) fn lenient() -> Authority {
    Authority::new(&Policy::lenient()).expect("there is no token to be read")
}

fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

/// What calling functions and taking part in steps needs.
const OF_STEPS: Rights = Rights::of(&[Right::Call, Right::Step]);

/// What a task of the cluster may do.
const OF_TASKS: Rights = OF_STEPS.or(StoreAccess::Push.rights());

#[cfg(all(test, not(loom)))]
mod tests {
    use std::io::Write;

    use super::super::{Secret, TokenSource};
    use super::*;

    const KEY: &str = "a key of sixteen bytes and more";

    fn ranges(text: &str) -> Option<AddressRanges> {
        Some(text.parse().unwrap())
    }

    fn rights_at(authority: &Authority, address: &str) -> String {
        let address = SocketAddr::new(address.parse().unwrap(), 1);
        authority.rights(&Identity::at(address)).to_string()
    }

    fn with_token(policy: Policy) -> Authority {
        Authority::new(&Policy {
            token: Some(TokenSource::Key(Secret::new(KEY))),
            ..policy
        })
        .unwrap()
    }

    #[test]
    fn in_an_open_cluster_strangers_take_part_and_change_nothing_that_stays() {
        let authority = Authority::default();
        assert!(authority.is_open());
        assert_eq!(rights_at(&authority, "10.0.0.1"), "pull+call+step");
        for here in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(rights_at(&authority, here), "pull+push+call+step+admin");
        }
    }

    #[test]
    fn a_token_closes_what_nothing_else_opens() {
        let authority = with_token(Policy::default());
        for address in ["10.0.0.1", "127.0.0.1"] {
            assert_eq!(rights_at(&authority, address), "nothing");
        }
        let authority = with_token(Policy {
            admin: ranges("loopback"),
            members: ranges("10.1.0.0/16"),
            store: Some(StoreAccess::ReadOnly),
            ..Policy::default()
        });
        assert!(!authority.is_open());
        assert_eq!(
            rights_at(&authority, "127.0.0.1"),
            "pull+push+call+step+admin"
        );
        assert_eq!(rights_at(&authority, "10.1.2.3"), "pull+push+call+step");
        assert_eq!(rights_at(&authority, "10.2.2.3"), "pull");
    }

    #[test]
    fn members_close_a_cluster_to_others() {
        let authority = Authority::new(&Policy {
            members: ranges("10.1.0.0/16"),
            ..Policy::default()
        })
        .unwrap();
        assert_eq!(rights_at(&authority, "10.1.2.3"), "pull+push+call+step");
        assert_eq!(rights_at(&authority, "10.2.2.3"), "nothing");
    }

    #[test]
    fn the_store_is_as_open_as_is_said() {
        let cases = [
            (StoreAccess::Off, "call+step"),
            (StoreAccess::ReadOnly, "pull+call+step"),
            (StoreAccess::Push, "pull+push+call+step"),
            (StoreAccess::Admin, "pull+push+call+step+admin"),
        ];
        for (store, rights) in cases {
            let policy = Policy {
                store: Some(store),
                ..Policy::default()
            };
            let authority = Authority::new(&policy).unwrap();
            assert_eq!(rights_at(&authority, "10.0.0.1"), rights);
        }
    }

    #[test]
    fn whoever_proves_to_belong_to_the_cluster_may_do_all() {
        let authority = with_token(Policy::default());
        for proof in [Proof::Token, Proof::Certificate, Proof::SameUser] {
            let peer = Identity::at(SocketAddr::from(([10, 0, 0, 1], 1))).proven(proof);
            assert_eq!(authority.rights(&peer), Rights::ALL, "{proof}");
        }
    }

    #[test]
    fn connections_from_elsewhere_are_counted_and_not_taken() {
        let authority = Authority::new(&Policy {
            allow: ranges("10.0.0.0/8"),
            ..Policy::default()
        })
        .unwrap();
        assert!(authority.admits(SocketAddr::from(([10, 9, 9, 9], 1))));
        assert!(!authority.admits(SocketAddr::from(([127, 0, 0, 1], 1))));
        assert_eq!(authority.counters().connections_refused, 1);
    }

    #[test]
    fn a_token_comes_from_a_file_without_its_line_end() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "{KEY}").unwrap();
        let of_file = Authority::new(&Policy {
            token: Some(TokenSource::File(file.path().to_owned())),
            ..Policy::default()
        })
        .unwrap();
        let now = Duration::from_secs(5);
        let proof = of_file.prove_call("/a/B", now);
        assert_eq!(proof, with_token(Policy::default()).prove_call("/a/B", now));
        assert!(proof.is_some());
    }

    #[test]
    fn a_token_that_is_none_is_told_with_its_place() {
        let short = tempfile::NamedTempFile::new().unwrap();
        let missing = PathBuf::from("/nowhere/token");
        let cases = [
            (
                TokenSource::Key(Secret::new("secret")),
                "GRPCXX_TOKEN holds a token of 6 bytes",
            ),
            (
                TokenSource::File(short.path().to_owned()),
                "holds a token of 0 bytes, allowed are 16 to 4096",
            ),
            (
                TokenSource::File(missing),
                "/nowhere/token cannot be read: No such file",
            ),
        ];
        for (token, wanted) in cases {
            let policy = Policy {
                token: Some(token),
                ..Policy::default()
            };
            assert!(!format!("{policy:?}").contains("secret"));
            let error = Authority::new(&policy).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_policy_is_told_in_one_line() {
        let authority = Authority::default().to_string();
        let wanted = "allow=all token=none admin=loopback members=none others=pull+call+step";
        assert_eq!(authority, wanted);
        let authority = with_token(Policy {
            allow: ranges("10.0.0.0/8"),
            ..Policy::default()
        });
        let wanted = "allow=10.0.0.0/8 token=set admin=none members=none others=nothing";
        assert_eq!(authority.to_string(), wanted);
    }

    #[test]
    fn a_call_that_claims_the_token_and_has_it_not_is_refused() {
        let authority = with_token(Policy::default());
        let peer = SocketAddr::from(([10, 0, 0, 1], 1));
        let nobody = Identity::at(peer);
        let now = Duration::from_secs(1000);
        let identify = |authorization: Option<&str>| {
            authority.identify_call(peer, &nobody, "/a/B", authorization, now)
        };
        let proof = authority.prove_call("/a/B", now).unwrap();
        assert_eq!(identify(Some(&proof)).unwrap().proof, Proof::Token);
        assert_eq!(identify(None).unwrap(), nobody);
        let other = authority.prove_call("/a/C", now).unwrap();
        for wrong in [other.as_str(), "Bearer x"] {
            assert_eq!(
                identify(Some(wrong)).unwrap_err().code,
                Code::Unauthenticated
            );
        }
        assert_eq!(authority.counters().proofs_failed, 2);
    }
}
