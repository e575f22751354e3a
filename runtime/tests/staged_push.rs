//! Pushes of several calls: staged on a connection, and visible at once.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, GraphCall, RendezvousLimits, Request, Status, Text};
use grpcxx_runtime::policy::Policy;
use grpcxx_runtime::{
    Engine, Patience, PeerShares, Remote, STORE_COMMIT, STORE_DISCARD, STORE_LIST, STORE_STAGE,
    StagedPush,
};

use crate::page::told;
use crate::stranger::{
    Hostile, PERMISSION_DENIED, STRANGER, bytes_tensor, engine, members_only, options,
};

const MIB: usize = 1 << 20;

fn remote(caller: &Engine, server: &Engine, connection: usize) -> Remote {
    let address = server.local_addr().unwrap().to_string();
    let client = caller.client();
    let peer = client.peer_over(&address, connection).unwrap();
    Remote::new(client, peer).with_timeout(Duration::from_secs(10))
}

fn weights(count: usize, len: usize) -> Vec<(Text, grpcxx_rpc::Tensor)> {
    let tensor = |index| (Text::from(format!("w{index}")), bytes_tensor(&vec![3; len]));
    (0..count).map(tensor).collect()
}

/// What the metrics tell of bytes that are staged.
fn staged_bytes(server: &Engine) -> u64 {
    told(server, "grpcxx_staged_bytes ")
}

fn await_staged_bytes(server: &Engine, wanted: u64) {
    let end = Instant::now() + Duration::from_secs(10);
    while staged_bytes(server) != wanted {
        assert!(Instant::now() < end, "{} bytes", staged_bytes(server));
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn code(result: Result<grpcxx_rpc::Response, Status>) -> Code {
    result.unwrap_err().code
}

#[test]
fn batches_become_visible_with_their_commit_and_only_who_staged_may_commit() {
    let (server, caller) = (
        engine("ps", Policy::default()),
        engine("worker", Policy::default()),
    );
    let (first, second) = (remote(&caller, &server, 0), remote(&caller, &server, 1));
    let push = StagedPush::new();
    first.call(push.begin()).wait().unwrap();
    for tensors in weights(4, 1000).chunks(2) {
        first.call(push.stage(tensors.to_vec())).wait().unwrap();
    }
    assert_eq!(staged_bytes(&server), 4000);
    assert!(server.stored().is_empty());
    // The number is of the connection: another one neither ends it nor sees it.
    assert_eq!(code(second.call(push.commit()).wait()), Code::NotFound);
    assert_eq!(
        code(first.call(StagedPush::new().commit()).wait()),
        Code::NotFound
    );
    second.call(push.begin()).wait().unwrap();
    second.call(push.stage(weights(1, 7))).wait().unwrap();
    first.call(push.commit()).wait().unwrap();
    assert_eq!(server.stored().len(), 4);
    assert_eq!(server.store_fetch("w0").unwrap().data.len(), 1000);
    second.call(push.commit()).wait().unwrap();
    assert_eq!(server.store_fetch("w0").unwrap().data.len(), 7);
    assert_eq!(staged_bytes(&server), 0);
}

#[test]
fn functions_that_hold_the_compute_pool_leave_the_store_to_others() {
    let server = engine("ps", Policy::default());
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    server.register_fn("holds", move |_: GraphCall| {
        // Ends once the sender is gone.
        let _ = held.lock().unwrap().recv();
        Ok(Vec::new())
    });
    let caller = engine("worker", Policy::default());
    let remote = remote(&caller, &server, 0);
    let holding: Vec<_> = (0..64)
        .map(|_| remote.run(GraphCall::new("holds")))
        .collect();
    let push = StagedPush::new();
    remote.call(push.begin()).wait().unwrap();
    remote.call(push.stage(weights(2, 10))).wait().unwrap();
    remote.call(push.commit()).wait().unwrap();
    // More than it takes for them to count as short.
    for _ in 0..100 {
        remote.push(weights(2, 10)).wait().unwrap();
    }
    let mut list = GraphCall::new(STORE_LIST);
    list.fetches = [Text::from("names")].into();
    let listed = remote.run(list).wait().unwrap();
    assert_eq!(listed.get("names").unwrap().strings().unwrap().len(), 2);
    drop(release);
    for call in holding {
        call.wait().unwrap();
    }
}

/// A loader may read for long between two calls of a push.
#[test]
fn a_connection_with_a_push_under_way_is_in_use() {
    let brief = Some(Duration::from_millis(300));
    let idle = Patience::default().with(|patience| patience.idle = brief);
    let old = Patience::default().with(|patience| patience.age = brief);
    for patience in [idle, old] {
        let with_patience =
            options("ps", Policy::default()).with(|options| options.patience = patience);
        let server = Engine::start(with_patience).unwrap();
        let caller = engine("worker", Policy::default());
        let remote = remote(&caller, &server, 0);
        let push = StagedPush::new();
        remote.call(push.begin()).wait().unwrap();
        remote.call(push.stage(weights(1, 10))).wait().unwrap();
        // One that came later, and that nobody uses.
        let mut later = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        later
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        assert_eq!(
            later.read_to_end(&mut Vec::new()).unwrap(),
            0,
            "it is closed"
        );
        remote.call(push.stage(weights(2, 10))).wait().unwrap();
        remote.call(push.commit()).wait().unwrap();
        assert_eq!(server.stored().len(), 2);
        let end = Instant::now() + Duration::from_secs(20);
        while server.counters().unused_closed < 2 {
            assert!(Instant::now() < end, "nobody uses it any more");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn what_a_client_has_staged_goes_with_it() {
    let server = engine("ps", Policy::default());
    server.store_put(weights(1, 10)).unwrap();
    let caller = engine("worker", Policy::default());
    let push = StagedPush::new();
    let remote = remote(&caller, &server, 0);
    remote.call(push.begin()).wait().unwrap();
    remote.call(push.stage(weights(3, MIB))).wait().unwrap();
    assert_eq!(staged_bytes(&server), 3 * MIB as u64);
    remote.disconnect();
    await_staged_bytes(&server, 0);
    // The next connection begins anew.
    assert_eq!(
        code(remote.call(push.stage(weights(1, 1))).wait()),
        Code::NotFound
    );
    assert_eq!(code(remote.call(push.commit()).wait()), Code::NotFound);
    assert_eq!(server.store_fetch("w0").unwrap().data.len(), 10);

    let push = StagedPush::new();
    remote.call(push.begin()).wait().unwrap();
    remote.call(push.stage(weights(3, MIB))).wait().unwrap();
    push.discard(&caller.client(), remote.peer());
    await_staged_bytes(&server, 0);
}

/// A server that gives its peers other shares.
fn sharing(change: impl FnOnce(&mut PeerShares)) -> Engine {
    let shares = PeerShares::of(&RendezvousLimits::default(), 100).with(change);
    let options = options("ps", Policy::default()).with(|options| options.shares = Some(shares));
    Engine::start(options).unwrap()
}

#[test]
fn a_push_that_nobody_goes_on_with_is_dropped() {
    let server = sharing(|shares| shares.staged_patience = Duration::from_millis(300));
    let caller = engine("worker", Policy::default());
    let remote = remote(&caller, &server, 0);
    let push = StagedPush::new();
    remote.call(push.begin()).wait().unwrap();
    remote.call(push.stage(weights(1, MIB))).wait().unwrap();
    await_staged_bytes(&server, 0);
    let gone = remote.call(push.commit()).wait().unwrap_err();
    assert!(gone.message.contains("300ms after its last call"), "{gone}");
    assert!(server.stored().is_empty());
}

#[test]
fn a_push_that_gets_a_little_again_and_again_ends() {
    let server = sharing(|shares| shares.staged_life = Duration::from_millis(500));
    let caller = engine("worker", Policy::default());
    let remote = remote(&caller, &server, 0);
    let push = StagedPush::new();
    remote.call(push.begin()).wait().unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    let gone = loop {
        assert!(Instant::now() < end, "it lasts");
        if let Err(status) = remote.call(push.stage(weights(1, 10))).wait() {
            break status;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(gone.message.contains("500ms"), "{gone}");
    await_staged_bytes(&server, 0);
}

#[test]
fn a_push_outlasts_the_time_that_its_next_call_is_on_its_way() {
    let shares = PeerShares::of(&RendezvousLimits::default(), 100);
    let shares = shares.with(|shares| shares.staged_patience = Duration::from_millis(400));
    let options = options("ps", Policy::default()).with(|options| options.shares = Some(shares));
    let server = Engine::start(options).unwrap();
    let relay = slow_relay(server.local_addr().unwrap());
    let caller = engine("worker", Policy::default());
    let client = caller.client();
    let peer = client.peer_over(&relay.to_string(), 0).unwrap();
    let remote = Remote::new(client, peer).with_timeout(Duration::from_secs(60));
    let push = StagedPush::new();
    remote.call(push.begin()).wait().unwrap();
    let begin = Instant::now();
    remote.call(push.stage(weights(1, 4 * MIB))).wait().unwrap();
    assert!(begin.elapsed() > Duration::from_millis(800), "not slow");
    remote.call(push.commit()).wait().unwrap();
    assert_eq!(server.stored().len(), 1);
}

/// Passes bytes of one connection on to a server, slowly, and back.
fn slow_relay(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(server).unwrap();
        let (mut answers, mut back) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
        let (mut near, mut far) = (near, far);
        let mut piece = vec![0; 64 << 10];
        while let Ok(count @ 1..) = near.read(&mut piece)
            && far.write_all(&piece[..count]).is_ok()
        {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    address
}

#[test]
fn staging_needs_the_right_to_push() {
    let server = engine("ps", members_only());
    let mut stranger = Hostile::at(STRANGER, &server);
    for function in [STORE_STAGE, STORE_COMMIT, STORE_DISCARD] {
        let (status, _) = stranger.call(function, 1, 0, &[1, 2, 3]);
        assert_eq!(status, PERMISSION_DENIED, "{function}");
    }
}

#[test]
fn a_task_that_stages_at_itself_is_told_that_it_cannot() {
    let server = engine("ps", Policy::default());
    let call = GraphCall::new(STORE_STAGE);
    let call = server.serve(Request::StarRunGraph(Box::new(call)), None);
    let refused = call.wait().unwrap_err();
    assert!(StagedPush::is_unknown(&refused), "{refused}");
}
