//! Ends of a connection that prove to each other that they have the token of their cluster.

use std::sync::Arc;

use grpcxx_rpc::wire::{Announcement, HEADER_BYTES, RequestHeader, ResponseHeader};
use grpcxx_rpc::{
    Certified, Challenge, ClientConnection, Code, ConnectionLimits, Credentials, Features, Gate,
    Method, PeerViolation, Provable, Prover, Proving, Reason, Response, Right, Rights,
    ServerConnection, Text, Token, Unproven,
};

use crate::support::make::{KEY, bytes_tensor, receive};
use crate::support::{Pair, Port, tensors};

const INCARNATION: u64 = 7;
const WITH_TOKEN: Features = Features::from_bits(Features::ALL.bits() | Features::TOKEN.bits());

fn token(name: &str) -> Arc<Token> {
    Arc::new(Token::new(format!("the token called {name}").as_bytes()).unwrap())
}

fn credentials(name: &str, trusts_unproven: bool) -> Credentials {
    Credentials {
        token: token(name),
        nonce: [1; 32],
        trusts_unproven,
    }
}

fn client(name: Option<&str>, trusts_unproven: bool) -> ClientConnection {
    let credentials = name.map(|name| credentials(name, trusts_unproven));
    let features = match credentials {
        Some(_) => WITH_TOKEN,
        None => Features::ALL,
    };
    ClientConnection::with_token(ConnectionLimits::default(), features, credentials)
}

fn server(name: Option<&str>) -> ServerConnection {
    let Some(name) = name else {
        return ServerConnection::new(ConnectionLimits::default(), Features::ALL);
    };
    let mut server = ServerConnection::new(ConnectionLimits::default(), WITH_TOKEN);
    let gate = Gate::new(Rights::NONE, |_| Right::Call).with_token(Provable {
        token: token(name),
        nonce: [2; 32],
        incarnation: INCARNATION,
        rights: Rights::of(&[Right::Step]),
    });
    server.guard(gate);
    server.set_offer(vec![9; 20]);
    server
}

fn pair(client: ClientConnection, server: ServerConnection) -> Pair {
    Pair {
        client: Port::new(client),
        server: Port::new(server),
        piece_bytes: usize::MAX,
    }
}

/// Carries announcements until neither end has one to send.
fn get_acquainted(pair: &mut Pair) {
    exchange(pair, 2);
}

/// Carries so many announcements and their answers.
fn exchange(pair: &mut Pair, count: usize) {
    for _ in 0..count {
        pair.carry_requests();
        while let Some(request) = pair.server.end.poll_request() {
            assert_eq!(request.request.method(), Some(Method::GetStatus));
            let body = Ok(Response::Message(vec![].into()));
            assert!(pair.server.end.answer(request.id, body));
        }
        for piece in pair.server.drain().chunks(pair.piece_bytes) {
            pair.client.offer(piece);
        }
    }
}

#[test]
fn calls_leave_once_both_ends_have_proved_the_token() {
    for piece_bytes in [usize::MAX, 1, 13] {
        let mut pair = pair(client(Some("a"), false), server(Some("a")));
        pair.piece_bytes = piece_bytes;
        let call = pair.call(receive(KEY));
        let first = pair.client.drain();
        let header = RequestHeader::decode(first[..HEADER_BYTES].try_into().unwrap()).unwrap();
        assert_eq!(header.method, Method::GetStatus.number());
        assert_eq!(
            first.len() as u64,
            HEADER_BYTES as u64 + header.payload_bytes
        );
        assert!(pair.client.drain().is_empty(), "the call waits");
        pair.server.offer(&first);
        assert_eq!(pair.server.end.poll_proving(), None);
        let hello = pair.request();
        assert!(
            pair.server
                .end
                .answer(hello.id, Ok(Response::Message(vec![].into())))
        );
        pair.carry_responses();
        assert_eq!(
            pair.client.end.take_offer(),
            None,
            "no offer before the proof"
        );

        pair.carry_requests();
        assert_eq!(pair.server.end.poll_proving(), Some(Proving::Proven));
        assert_eq!(pair.server.end.poll_proving(), None);
        assert!(pair.server.end.rights().has(Right::Step));
        let proof = pair.request();
        assert!(
            pair.server
                .end
                .answer(proof.id, Ok(Response::Message(vec![].into())))
        );
        let asked = pair.request();
        assert!(
            pair.server
                .end
                .answer(asked.id, tensors([bytes_tensor(9, 1)]))
        );
        pair.carry_responses();
        let finished = pair.finished();
        assert_eq!((finished.call, finished.result.is_ok()), (call, true));
        assert_eq!(pair.client.end.take_offer(), Some(vec![9; 20]));
        pair.round_trip(receive("next"), tensors([bytes_tensor(9, 1)]));
    }
}

#[test]
fn a_server_with_another_token_or_none_gets_no_call() {
    let cases = [(Some("b"), Unproven::Wrong), (None, Unproven::Missing)];
    for (name, why) in cases {
        let mut pair = pair(client(Some("a"), false), server(name));
        pair.call(receive(KEY));
        get_acquainted(&mut pair);
        assert_eq!(pair.client.violation, Some(PeerViolation::Unproven(why)));
        assert!(pair.client.drain().is_empty());
        assert_eq!(pair.server.end.poll_request(), None);
    }
}

#[test]
fn a_client_that_claims_another_task_than_it_has_proven_gets_nothing() {
    let of_task = |task: Option<&str>| {
        let task = task.map(Text::from);
        ClientConnection::of_task(ConnectionLimits::default(), Features::ALL, None, task)
    };
    let certified = || {
        let mut server = ServerConnection::new(ConnectionLimits::default(), Features::ALL);
        server.certify(Certified {
            task: "ps/0".into(),
            name: "grpcxx://c/ps/0".into(),
        });
        server
    };
    for claim in [None, Some("ps/0")] {
        let mut pair = pair(of_task(claim), certified());
        get_acquainted(&mut pair);
        assert_eq!(pair.server.end.take_false_claim(), None);
        pair.round_trip(receive(KEY), tensors([bytes_tensor(9, 1)]));
    }

    let mut pair = pair(of_task(Some("ps/1")), certified());
    let call = pair.call(receive(KEY));
    pair.carry_requests();
    let answers = pair.server.drain();
    pair.client.offer(&answers);
    let finished = pair.finished();
    let status = finished.result.unwrap_err();
    assert_eq!((finished.call, status.code), (call, Code::Unauthenticated));
    assert_eq!(status.reason, Reason::Unproven);
    assert!(status.message.contains("says that it is ps/1"), "{status}");
    assert!(matches!(
        pair.client.violation,
        Some(PeerViolation::Unproven(Unproven::Refused(_)))
    ));
    assert_eq!(pair.server.end.poll_request(), None);
    assert_eq!(pair.server.end.take_false_claim(), Some("ps/1".into()));
    // Nothing that it is said to have proven besides gives it rights again.
    pair.server.end.set_rights(Rights::ALL);
    assert_eq!(pair.server.end.rights(), Rights::NONE);
}

/// What a task has is counted for it, and not for all tasks of its host.
#[test]
fn who_proves_the_token_stays_the_task_that_it_said_it_is() {
    let limits = ConnectionLimits::default();
    let (credentials, task) = (credentials("a", false), Text::from("ps/0"));
    let client = ClientConnection::of_task(limits, WITH_TOKEN, Some(credentials), Some(task));
    let mut pair = pair(client, server(Some("a")));
    get_acquainted(&mut pair);
    assert_eq!(pair.server.end.rights(), Rights::of(&[Right::Step]));
    assert_eq!(pair.server.end.claimed_task(), Some(&Text::from("ps/0")));
    // An older client says nothing of it beside its proof.
    pair.server.offer(&announce(9, &Announcement::default()));
    assert_eq!(pair.server.end.claimed_task(), Some(&Text::from("ps/0")));
}

#[test]
fn a_server_that_cannot_answer_counts_as_one_without_a_token() {
    for (trusts, violation) in [
        (false, Some(PeerViolation::Unproven(Unproven::Missing))),
        (true, None),
    ] {
        let mut pair = pair(client(Some("a"), trusts), server(None));
        pair.call(receive(KEY));
        pair.carry_requests();
        let hello = pair.request();
        let failure = grpcxx_rpc::Status::new(Code::Unavailable, "starting");
        assert!(pair.server.end.answer(hello.id, Err(failure)));
        let answer = pair.server.drain();
        pair.client.offer(&answer);
        assert_eq!(pair.client.violation, violation);
        assert_eq!(pair.client.drain().is_empty(), !trusts);
    }
}

#[test]
fn a_server_without_a_token_is_called_where_its_address_is_trusted() {
    let mut trusting = pair(client(Some("a"), true), server(None));
    trusting.call(receive(KEY));
    exchange(&mut trusting, 1);
    trusting.carry_requests();
    assert!(trusting.server.end.poll_request().is_some());
    // One with another token is no original.
    let mut pair = pair(client(Some("a"), true), server(Some("b")));
    get_acquainted(&mut pair);
    let wrong = PeerViolation::Unproven(Unproven::Wrong);
    assert_eq!(pair.client.violation, Some(wrong));
}

#[test]
fn a_client_without_a_token_keeps_the_rights_of_its_address() {
    let mut pair = pair(client(None, false), server(Some("a")));
    get_acquainted(&mut pair);
    assert_eq!(pair.client.end.take_offer(), None);
    pair.call(receive(KEY));
    pair.carry_requests();
    assert_eq!(pair.server.end.poll_request(), None);
    pair.carry_responses();
    assert_eq!(
        pair.finished().result.unwrap_err().code,
        Code::PermissionDenied
    );
}

/// A GetStatus request with an announcement.
fn announce(tag: u64, announcement: &Announcement) -> Vec<u8> {
    let header = RequestHeader {
        method: Method::GetStatus.number(),
        tag,
        payload_bytes: announcement.len_bytes() as u64,
        ..RequestHeader::default()
    };
    let mut bytes = header.encode().to_vec();
    announcement.encode(&mut bytes);
    bytes
}

#[test]
fn a_proof_that_is_wrong_or_of_another_connection_gives_nothing() {
    let right = |server_nonce, prover| {
        let challenge = Challenge {
            client: [1; 32],
            server: server_nonce,
            incarnation: INCARNATION,
        };
        token("a").prove(prover, &challenge)
    };
    let recorded = right([3; 32], Prover::Client);
    let reflected = right([2; 32], Prover::Server);
    for (proof, nonce) in [
        ([0; 32], Some([1; 32])),
        (recorded, Some([1; 32])),
        (reflected, Some([1; 32])),
        (right([2; 32], Prover::Client), None),
        (right([2; 32], Prover::Client), Some([8; 32])),
    ] {
        let mut server = Port::new(server(Some("a")));
        let hello = Announcement {
            features: WITH_TOKEN,
            nonce,
            ..Announcement::default()
        };
        server.offer(&announce(1, &hello));
        let asked = server.end.poll_request().unwrap();
        assert!(
            server
                .end
                .answer(asked.id, Ok(Response::Message(vec![].into())))
        );
        server.drain();
        let claim = Announcement {
            features: WITH_TOKEN,
            proof: Some(proof),
            ..Announcement::default()
        };
        server.offer(&announce(2, &claim));
        let answer = server.drain();
        let header = ResponseHeader::decode(answer[..HEADER_BYTES].try_into().unwrap()).unwrap();
        assert_eq!(header.status, Code::Unauthenticated as i32);
        assert_eq!(server.end.poll_proving(), Some(Proving::Failed));
        assert_eq!(server.end.rights(), Rights::NONE);
    }
}
