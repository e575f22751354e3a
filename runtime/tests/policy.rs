//! Peers over real sockets that ask for what they have no right to. The hostile ones have an
//! encoder of their own, so that no check of the product's codec stands between them and the
//! engine.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, GraphCall, Reason, Request, Response, Status, Tensor, Text};
use grpcxx_runtime::policy::{Policy, StoreAccess};
use grpcxx_runtime::{Engine, EngineOptions, STORE_PULL, STORE_PUSH};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::stranger::*;

#[test]
fn a_stranger_cannot_empty_the_model() {
    let server = server_with_model(members_only());
    for address in [STRANGER, MEMBER] {
        let answer = Hostile::at(address, &server).ask(CLEANUP_ALL, 0, &[]);
        assert_refused(answer, "admin", "GRPCXX_ADMIN");
    }
    assert_eq!(model(&server), Some(vec![7; 100]));
    assert_eq!(server.authority().counters().requests_forbidden, 2);
}

#[test]
fn where_nothing_is_set_this_machine_may_empty_the_model() {
    let server = server_with_model(Policy::default());
    let (status, _) = Hostile::at(MEMBER, &server).ask(CLEANUP_ALL, 0, &[]);
    assert_eq!((status, model(&server)), (OK, None));
}

#[test]
fn a_stranger_may_read_the_store_and_not_write_it() {
    let server = server_with_model(members_only());
    let mut stranger = Hostile::at(STRANGER, &server);
    for len in [1, 100, 1 << 20] {
        assert_refused(stranger.push(&vec![9; len]), "push", "GRPCXX_STORE=push");
    }
    assert_eq!(model(&server), Some(vec![7; 100]));
    assert_eq!(stranger.pull().0, OK);
    assert_eq!(Hostile::at(MEMBER, &server).push(&[9; 3]).0, OK);
    assert_eq!(model(&server), Some(vec![9; 3]));
}

#[test]
fn a_stranger_cannot_call_functions() {
    let server = engine("ps", members_only());
    server.register_fn("answer", |_: GraphCall| {
        Ok([("weights", Tensor::scalar(42_u8))])
    });
    assert_eq!(Hostile::at(MEMBER, &server).call("answer", 1, 0, &[]).0, OK);
    let answer = Hostile::at(STRANGER, &server).call("answer", 1, 0, &[]);
    assert_refused(answer, "call", "GRPCXX_MEMBERS");
}

#[test]
fn a_stranger_can_neither_take_the_tensors_of_a_step_nor_end_it() {
    let server = engine("ps", members_only());
    let key = waiting_tensor(&server);
    let mut stranger = Hostile::at(STRANGER, &server);
    assert_refused(stranger.receive(5, &key), "step", "GRPCXX_MEMBERS");
    let end_of_step = [0x08, 5];
    let answer = stranger.ask(CLEANUP_GRAPH, 0, &end_of_step);
    assert_refused(answer, "step", "GRPCXX_MEMBERS");
    let (status, record) = Hostile::at(MEMBER, &server).receive(5, &key);
    assert_eq!((status, &record[37..]), (OK, &[3; 10][..]));
}

#[test]
fn a_stranger_cannot_count_a_step_to_its_end() {
    let server = server_with_model(members_only());
    let key = waiting_tensor(&server);
    let answer = Hostile::at(STRANGER, &server).call(STORE_PULL, 5, 1, &[]);
    assert_refused(answer, "step", "GRPCXX_MEMBERS");
    let (status, record) = Hostile::at(MEMBER, &server).receive(5, &key);
    assert_eq!((status, &record[37..]), (OK, &[3; 10][..]));
}

#[test]
fn an_address_that_is_not_allowed_is_not_even_answered() {
    let server = engine(
        "ps",
        Policy {
            allow: Some("127.0.0.1/32,::1".parse().unwrap()),
            ..Policy::default()
        },
    );
    let mut stranger = Hostile::at(STRANGER, &server);
    stranger.await_end();
    assert_eq!(Hostile::at(MEMBER, &server).ask(GET_STATUS, 0, &[]).0, OK);
    assert_eq!(server.authority().counters().connections_refused, 1);
    assert_eq!(server.counters().accepted, 1);
}

/// Calls the function that gives a tensor of the store.
fn pull_with(client: &Engine, server: &Engine) -> Result<Response, Status> {
    pull_from(client, server.local_addr().unwrap())
}

fn pull_from(client: &Engine, server: SocketAddr) -> Result<Response, Status> {
    let call = GraphCall::new(STORE_PULL).with_fetch("weights");
    let peer = client.client().peer(&server.to_string()).unwrap();
    let request = Request::StarRunGraph(Box::new(call));
    client.client().call(&peer, request, Some(PATIENCE)).wait()
}

fn push_with(client: &Engine, server: &Engine, data: &[u8]) -> Result<Response, Status> {
    let call = GraphCall::new(STORE_PUSH).with_feed("weights", bytes_tensor(data));
    let address = server.local_addr().unwrap().to_string();
    let peer = client.client().peer(&address).unwrap();
    let request = Request::StarRunGraph(Box::new(call));
    client.client().call(&peer, request, Some(PATIENCE)).wait()
}

#[test]
fn tasks_with_one_token_work_with_each_other_and_others_do_not() {
    let server = server_with_model(with_token(KEY));
    let friend = engine("worker", with_token(KEY));
    assert!(push_with(&friend, &server, &[8; 5]).is_ok());
    assert!(pull_with(&friend, &server).is_ok());

    let unknowing = engine("worker", Policy::default());
    let refused = push_with(&unknowing, &server, &[1]).unwrap_err();
    assert_eq!(refused.code, Code::PermissionDenied, "{refused}");
    let other = engine("worker", with_token("the key that somebody else has"));
    let refused = push_with(&other, &server, &[1]).unwrap_err();
    let expected = (Code::Unauthenticated, Reason::Unproven);
    assert_eq!((refused.code, refused.reason), expected, "{refused}");
    assert!(refused.message.contains("GRPCXX_TOKEN_FILE"), "{refused}");
    assert_eq!(model(&server), Some(vec![8; 5]));
}

#[test]
fn a_task_with_a_token_calls_none_without_but_those_that_it_is_told_of() {
    let server = server_with_model(Policy::default());
    let careful = engine("worker", with_token(KEY));
    let refused = pull_with(&careful, &server).unwrap_err();
    assert_eq!(refused.reason, Reason::Unproven, "{refused}");
    assert!(refused.message.contains("GRPCXX_MEMBERS"), "{refused}");
    let trusting = engine(
        "worker",
        Policy {
            members: Some("127.0.0.1".parse().unwrap()),
            ..with_token(KEY)
        },
    );
    assert!(pull_with(&trusting, &server).is_ok());
}

#[test]
fn a_token_needs_the_extensions() {
    let error =
        Engine::start(options("ps", with_token(KEY)).with(|options| options.extensions = false))
            .unwrap_err();
    assert!(error.to_string().contains("GRPCXX_EXTENSIONS"), "{error}");
}

/// Field 23117 of GetStatus with features, and one field of 32 bytes.
fn announcement(features: u16, field: u8, bytes: &[u8; 32]) -> Vec<u8> {
    let varint = [features as u8 & 0x7f | 0x80, (features >> 7) as u8];
    let content = [&[0x08, 1, 0x10][..], &varint, &[field << 3 | 2, 32], bytes].concat();
    [&[0xea, 0xa4, 0x0b, content.len() as u8], &content[..]].concat()
}

const TOKEN_BIT: u16 = 1 << 9;
const NONCE: u8 = 4;
const PROOF: u8 = 5;

fn proof_of_client(server_nonce: &[u8], incarnation: u64, label: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(KEY.as_bytes()).unwrap();
    mac.update(label);
    mac.update(&[1; 32]);
    mac.update(server_nonce);
    mac.update(&incarnation.to_le_bytes());
    mac.finalize().into_bytes().into()
}

/// Says hello with a nonce of ones, and returns the nonce and the proof of the server.
fn challenge(peer: &mut Hostile) -> (Vec<u8>, Vec<u8>) {
    let (status, body) = peer.ask(GET_STATUS, 0, &announcement(TOKEN_BIT, NONCE, &[1; 32]));
    assert_eq!(status, OK);
    let at = |field: u8| {
        let mark = [field << 3 | 2, 32];
        let found = body.windows(2).rposition(|pair| pair == mark).unwrap();
        body[found + 2..][..32].to_vec()
    };
    (at(NONCE), at(PROOF))
}

const CLIENT_LABEL: &[u8] = b"grpcxx token client\n";
const SERVER_LABEL: &[u8] = b"grpcxx token server\n";

#[test]
fn a_client_that_was_written_from_the_document_proves_the_token() {
    let server = server_with_model(with_token(KEY));
    let mut peer = Hostile::at(STRANGER, &server);
    assert_refused(peer.push(&[1]), "call", "GRPCXX_MEMBERS");
    let (nonce, proof) = challenge(&mut peer);
    let incarnation = server.incarnation();
    assert_eq!(proof, proof_of_client(&nonce, incarnation, SERVER_LABEL));
    let own = proof_of_client(&nonce, incarnation, CLIENT_LABEL);
    assert_eq!(
        peer.ask(GET_STATUS, 0, &announcement(TOKEN_BIT, PROOF, &own))
            .0,
        OK
    );
    assert_eq!(peer.push(&[1]).0, OK);
    assert_eq!(peer.ask(CLEANUP_ALL, 0, &[]).0, OK);
    assert_eq!(model(&server), None);
}

#[test]
fn a_proof_that_was_recorded_reflected_or_guessed_opens_nothing() {
    let server = server_with_model(with_token(KEY));
    let mut honest = Hostile::at(MEMBER, &server);
    let (nonce, proof) = challenge(&mut honest);
    let recorded = proof_of_client(&nonce, server.incarnation(), CLIENT_LABEL);
    for claim in [recorded, proof.try_into().unwrap(), [0; 32]] {
        let mut hostile = Hostile::at(STRANGER, &server);
        challenge(&mut hostile);
        let (status, text) = hostile.ask(GET_STATUS, 0, &announcement(TOKEN_BIT, PROOF, &claim));
        assert_eq!(status, UNAUTHENTICATED);
        assert!(
            String::from_utf8(text)
                .unwrap()
                .contains("GRPCXX_TOKEN_FILE")
        );
        assert_refused(hostile.push(&[1]), "call", "GRPCXX_MEMBERS");
    }
    assert_eq!(server.authority().counters().proofs_failed, 3);
    assert_eq!(model(&server), Some(vec![7; 100]));
}

#[test]
fn a_process_of_the_same_user_may_do_all_once_it_shares_memory() {
    let policy = Policy {
        members: Some("none".parse().unwrap()),
        ..members_only()
    };
    let shared_memory =
        |options: EngineOptions| options.with(|changed| changed.shm = EngineOptions::default().shm);
    let server = Engine::start(shared_memory(options("ps", policy))).unwrap();
    server
        .store_put(vec![(Text::from("weights"), bytes_tensor(&[7; 100]))])
        .unwrap();
    let client = Engine::start(shared_memory(options("worker", Policy::default()))).unwrap();
    assert!(pull_with(&client, &server).is_ok());
    let until = Instant::now() + PATIENCE;
    while let Err(status) = push_with(&client, &server, &[8; 5]) {
        assert_eq!(status.code, Code::PermissionDenied, "{status}");
        assert!(Instant::now() < until, "the connection does not move");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(model(&server), Some(vec![8; 5]));
}

#[test]
fn rights_of_addresses_hold_over_ipv6_too() {
    let listen = Some(SocketAddr::from((IpAddr::from([0_u16; 8]), 0)));
    let server = Engine::start(
        options(
            "ps",
            Policy {
                admin: Some("::1".parse().unwrap()),
                store: Some(StoreAccess::Off),
                ..members_only()
            },
        )
        .with(|options| options.listen = listen),
    )
    .unwrap();
    let tensors = vec![(Text::from("weights"), bytes_tensor(&[7; 100]))];
    server.store_put(tensors).unwrap();
    let port = server.local_addr().unwrap().port();
    let client = engine("worker", Policy::default());
    let over_ipv6 = SocketAddr::from(([0_u16, 0, 0, 0, 0, 0, 0, 1], port));
    assert!(pull_from(&client, over_ipv6).is_ok());
    // An IPv4 address that came to the same socket is that address.
    assert!(pull_from(&client, SocketAddr::from((MEMBER, port))).is_ok());
    assert_eq!(server.authority().counters().requests_forbidden, 0);
}
