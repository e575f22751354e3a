//! What an authority says of whom.

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
