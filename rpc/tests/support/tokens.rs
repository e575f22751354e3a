//! Strangers at a connection that asks for the token of a cluster: what they may get, and what not.

use std::sync::Arc;

use grpcxx_rpc::wire::{Announcement, HEADER_BYTES, ResponseHeader};
use grpcxx_rpc::{
    CallOptions, ClientConnection, Code, Credentials, Features, Gate, Method, Nonce, Provable,
    Proving, Response, Right, Rights, ServerConnection, Status, Token,
};
use grpcxx_transport::Time;

use super::driver::{ClientEnd, Port, ServerEnd};
use super::fuzz::{answer, limits, piece_bytes};
use super::make::receive;

/// How far a client comes before the bytes of the fuzzer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Prelude {
    Nothing,
    /// An announcement of a client that has the token.
    Hello,
    /// That, and the proof.
    Proof,
    /// An announcement, and the proof that another connection has seen.
    RecordedProof,
}

/// Shows bytes to a server with a token. The first byte says in which pieces they come, the second
/// what has come before them. Who has not proved the token gets no request through, no offer and no
/// right.
pub fn token_server(data: &[u8]) {
    let [pieces, prelude, data @ ..] = data else {
        return;
    };
    let prelude = match prelude % 4 {
        0 => Prelude::Nothing,
        1 => Prelude::Hello,
        2 => Prelude::Proof,
        _ => Prelude::RecordedProof,
    };
    let mut server = server(SERVER_NONCE);
    begin(&mut server, prelude);
    let mut is_proven = server.end.poll_proving() == Some(Proving::Proven);
    assert_eq!(is_proven, prelude == Prelude::Proof);
    for piece in data.chunks(piece_bytes(*pieces)) {
        server.offer(piece);
        match server.end.poll_proving() {
            Some(Proving::Proven) => panic!("a stranger has proved the token"),
            Some(Proving::Failed) => is_proven = false,
            None => {}
        }
        assert!(is_proven || server.end.rights() == Rights::NONE);
        serve(&mut server, is_proven);
        server.end.take_refused();
        while server.end.poll_cancelled().is_some() {}
        server.resume();
    }
    server.close(&Status::new(Code::Unavailable, "gone"));
}

/// Answers what is let through, and looks at what leaves.
fn serve(server: &mut ServerEnd, is_proven: bool) {
    while let Some(incoming) = server.end.poll_request() {
        let method = incoming.request.method();
        assert!(is_proven || method == Some(Method::GetStatus), "{method:?}");
        let result = match method {
            Some(Method::GetStatus) => Ok(Response::Message(Vec::new().into())),
            _ => answer(&incoming.request),
        };
        assert!(server.end.answer(incoming.id, result));
    }
    let bytes = server.drain();
    let mut rest = &bytes[..];
    while let Some(head) = rest.first_chunk::<HEADER_BYTES>() {
        let header = ResponseHeader::decode(head).expect("a response begins with BBBB");
        let (payload, next) = rest[HEADER_BYTES..].split_at(header.payload_bytes as usize);
        rest = next;
        if !is_proven && header.status == 0 {
            let found = Announcement::find(payload).expect("an answer to GetStatus");
            assert!(found.is_none_or(|found| found.offer.is_empty()));
        }
    }
}

/// Brings a server as far as the prelude says.
fn begin(server: &mut ServerEnd, prelude: Prelude) {
    if prelude == Prelude::Nothing {
        return;
    }
    let mut client = Port::new(client(TOKEN, CLIENT_NONCE, false));
    server.offer(&client.drain());
    answer_hello(server, &mut client);
    match prelude {
        Prelude::Nothing | Prelude::Hello => {}
        Prelude::Proof => server.offer(&client.drain()),
        Prelude::RecordedProof => {
            let mut other = self::server([3; 32]);
            let mut client = Port::new(self::client(TOKEN, CLIENT_NONCE, false));
            other.offer(&client.drain());
            answer_hello(&mut other, &mut client);
            server.offer(&client.drain());
        }
    }
}

fn answer_hello(server: &mut ServerEnd, client: &mut ClientEnd) {
    let hello = server.end.poll_request().expect("the announcement");
    let status = Ok(Response::Message(Vec::new().into()));
    assert!(server.end.answer(hello.id, status));
    client.offer(&server.drain());
}

/// Who a client with a token has dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialled {
    /// Somebody whose first bytes are those of the fuzzer.
    Stranger,
    /// A server that has the token, until the bytes of the fuzzer.
    Member,
    /// A stranger whom the client trusts.
    Trusted,
    /// Somebody who has recorded what a server said to another client.
    Recorder,
    /// A server with another token.
    OtherCluster,
}

/// Shows bytes to a client with a token that has two calls to make. The first byte says in which
/// pieces they come, the second who answers before them. No call leaves before the server has
/// proved the token, and each ends once.
pub fn token_client(data: &[u8]) {
    let [pieces, dialled, data @ ..] = data else {
        return;
    };
    let dialled = match dialled % 5 {
        0 => Dialled::Stranger,
        1 => Dialled::Member,
        2 => Dialled::Trusted,
        3 => Dialled::Recorder,
        _ => Dialled::OtherCluster,
    };
    let trusts = dialled == Dialled::Trusted;
    let mut client = Port::new(client(TOKEN, CLIENT_NONCE, trusts));
    let calls = ["one", "two"].map(|key| {
        let options = CallOptions::default();
        let call = client.end.call(Time::ZERO, receive(key), options);
        call.expect("there is room")
    });
    let hello = client.drain();
    assert!(client.drain().is_empty(), "calls wait for the proof");
    greet(&mut client, dialled, &hello);
    let may_call = matches!(dialled, Dialled::Member | Dialled::Trusted);
    assert!(client.drain().is_empty() || dialled == Dialled::Member);
    for piece in data.chunks(piece_bytes(*pieces)) {
        client.offer(piece);
        let left = client.drain();
        assert!(may_call || left.is_empty(), "a stranger got {left:?}");
    }
    client.close(&Status::new(Code::Unavailable, "gone"));
    let finished = std::iter::from_fn(|| client.end.poll_finished());
    let mut finished: Vec<_> = finished.map(|finished| finished.call).collect();
    finished.sort_unstable();
    assert_eq!(finished, calls, "each call ends once");
}

/// Answers the client's announcement, if anybody does.
fn greet(client: &mut ClientEnd, dialled: Dialled, hello: &[u8]) {
    let (mut server, hello) = match dialled {
        Dialled::Stranger | Dialled::Trusted => return,
        Dialled::Member => (server(SERVER_NONCE), hello.to_vec()),
        Dialled::Recorder => {
            let mut other = Port::new(self::client(TOKEN, [4; 32], false));
            (server(SERVER_NONCE), other.drain())
        }
        Dialled::OtherCluster => {
            let provable = provable(b"the token of another cluster", SERVER_NONCE);
            (guarded(provable), hello.to_vec())
        }
    };
    server.offer(&hello);
    answer_hello(&mut server, client);
}

fn client(token: &[u8], nonce: Nonce, trusts_unproven: bool) -> ClientConnection {
    let credentials = Credentials {
        token: Arc::new(Token::new(token).expect("a token")),
        nonce,
        trusts_unproven,
    };
    ClientConnection::with_token(limits(), WITH_TOKEN, Some(credentials))
}

fn server(nonce: Nonce) -> ServerEnd {
    guarded(provable(TOKEN, nonce))
}

fn provable(token: &[u8], nonce: Nonce) -> Provable {
    Provable {
        token: Arc::new(Token::new(token).expect("a token")),
        nonce,
        incarnation: 7,
        rights: Rights::of(&[Right::Step]),
    }
}

fn guarded(provable: Provable) -> ServerEnd {
    let mut server = ServerConnection::new(limits(), WITH_TOKEN);
    server.guard(Gate::new(Rights::NONE, |_| Right::Step).with_token(provable));
    server.set_offer(vec![9; 20]);
    Port::new(server)
}

const WITH_TOKEN: Features = Features::from_bits(Features::ALL.bits() | Features::TOKEN.bits());
const TOKEN: &[u8] = b"the token of this cluster";
const CLIENT_NONCE: Nonce = [1; 32];
const SERVER_NONCE: Nonce = [2; 32];
