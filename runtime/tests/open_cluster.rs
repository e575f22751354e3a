//! Who may do what in a cluster in which nobody proves anything: strangers, and peers at the hosts
//! of the cluster spec.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use grpcxx_memory::Buffer;
use grpcxx_rpc::{Method, Request, Response};
use grpcxx_runtime::policy::Policy;
use grpcxx_runtime::{Engine, Later, Resolve, STORE_PULL, Served, Service};

use crate::stranger::*;

/// Lets nobody do more than strangers may in an open cluster.
fn open_to_strangers() -> Policy {
    Policy {
        admin: Some("none".parse().unwrap()),
        ..Policy::default()
    }
}

#[test]
fn in_an_open_cluster_a_step_is_ended_by_who_made_it() {
    let server = server_with_model(open_to_strangers());
    let key = waiting_tensor(&server);
    let end_of_step = [0x08, 5];
    // Nobody has made it yet: a stranger could close steps that are still to come.
    let mut stranger = Hostile::at(STRANGER, &server);
    let answer = stranger.ask(CLEANUP_GRAPH, 0, &end_of_step);
    assert_refused(answer, "step 5", "GRPCXX_MEMBERS");
    let mut maker = Hostile::at(MEMBER, &server);
    assert_eq!(maker.call(STORE_PULL, 5, 3, &[]).0, OK);
    let answer = stranger.ask(CLEANUP_GRAPH, 0, &end_of_step);
    assert_refused(answer, "step 5", "GRPCXX_MEMBERS");
    // It is answered, and does not count.
    for _ in 0..3 {
        assert_eq!(stranger.call(STORE_PULL, 5, 3, &[]).0, OK);
    }
    let (status, record) = maker.receive(5, &key);
    assert_eq!((status, &record[37..]), (OK, &[3; 10][..]));
    // On another connection it is still the maker, and may say so twice.
    let mut again = Hostile::at(MEMBER, &server);
    for _ in 0..2 {
        assert_eq!(again.ask(CLEANUP_GRAPH, 0, &end_of_step).0, OK);
    }
    assert_eq!(again.receive(5, &key).0, ABORTED);
    assert_eq!(server.authority().counters().requests_forbidden, 2);
}

#[test]
fn in_an_open_cluster_the_calls_of_the_maker_count_a_step_to_its_end() {
    let server = server_with_model(open_to_strangers());
    let key = waiting_tensor(&server);
    let mut stranger = Hostile::at(STRANGER, &server);
    for _ in 0..2 {
        assert_eq!(
            Hostile::at(MEMBER, &server).call(STORE_PULL, 5, 2, &[]).0,
            OK
        );
        assert_eq!(stranger.call(STORE_PULL, 5, 2, &[]).0, OK);
    }
    assert_eq!(stranger.receive(5, &key).0, ABORTED);
}

#[test]
fn in_an_open_cluster_strangers_end_no_step_of_a_task_that_is_known() {
    let server = server_with_model(with_tasks(&["127.0.0.1"]));
    let key = waiting_tensor(&server);
    let mut member = Hostile::at(MEMBER, &server);
    assert_eq!(member.call(STORE_PULL, 5, 3, &[]).0, OK);
    let mut stranger = Hostile::at(STRANGER, &server);
    for _ in 0..3 {
        assert_eq!(stranger.call(STORE_PULL, 5, 3, &[]).0, OK);
    }
    let answer = stranger.ask(CLEANUP_GRAPH, 0, &[0x08, 5]);
    assert_refused(answer, "step 5", "GRPCXX_MEMBERS");
    let (status, record) = member.receive(5, &key);
    assert_eq!((status, &record[37..]), (OK, &[3; 10][..]));
}

#[test]
fn a_task_that_is_known_ends_steps_of_others() {
    let server = server_with_model(members_only());
    let key = waiting_tensor(&server);
    let mut member = Hostile::at(MEMBER, &server);
    assert_eq!(member.ask(CLEANUP_GRAPH, 0, &[0x08, 5]).0, OK);
    assert_eq!(member.receive(5, &key).0, ABORTED);
}

/// Runs graphs and ends their steps, as a program of TensorFlow does.
struct Graphs;

impl Service for Graphs {
    fn serve(&self, request: Request, _: Later<'_>) -> Served {
        match request {
            Request::Message {
                method: Method::RunGraph | Method::CleanupGraph,
                ..
            } => Served::Now(Ok(Response::Message(Buffer::new()))),
            request => Served::Declined(request),
        }
    }
}

#[test]
fn steps_of_graphs_are_ended_by_who_runs_them_if_that_is_known() {
    let options = options("ps", open_to_strangers()).with(|options| {
        options.service = Some(Arc::new(Graphs));
    });
    let server = Engine::start(options).unwrap();
    let run_graph = [&[0x0a, 3], &b"abc"[..], &[0x10, 6, 0x50, 1]].concat();
    let mut master = Hostile::at(MEMBER, &server);
    assert_eq!(master.ask(RUN_GRAPH, 0, &run_graph).0, OK);
    let mut stranger = Hostile::at(STRANGER, &server);
    assert_eq!(stranger.ask(RUN_GRAPH, 0, &run_graph).0, OK);
    let answer = stranger.ask(CLEANUP_GRAPH, 0, &[0x08, 6]);
    assert_refused(answer, "step 6", "GRPCXX_MEMBERS");
    assert_eq!(master.ask(CLEANUP_GRAPH, 0, &[0x08, 6]).0, OK);
    // Its graphs may have been run over gRPC.
    assert_eq!(stranger.ask(CLEANUP_GRAPH, 0, &[0x08, 7]).0, OK);
}

/// Names whose address the test writes.
struct Names(Mutex<Ipv4Addr>);

impl Resolve for Names {
    fn resolve(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        match host {
            "worker-0.training" => Ok(vec![SocketAddr::from((*self.0.lock().unwrap(), port))]),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

fn with_tasks(tasks: &[&str]) -> Policy {
    Policy {
        tasks: tasks.iter().map(|&host| host.to_owned()).collect(),
        ..open_to_strangers()
    }
}

#[test]
fn peers_at_the_hosts_of_the_cluster_spec_are_members() {
    let server = server_with_model(with_tasks(&["127.0.0.1", "10.9.8.7"]));
    let key = waiting_tensor(&server);
    let mut stranger = Hostile::at(STRANGER, &server);
    assert_refused(stranger.push(&[9; 3]), "push", "GRPCXX_STORE=push");
    // The cluster is still open.
    assert_eq!(stranger.pull().0, OK);
    let mut member = Hostile::at(MEMBER, &server);
    assert_eq!(member.push(&[9; 3]).0, OK);
    assert_eq!(model(&server), Some(vec![9; 3]));
    assert_eq!(stranger.call(STORE_PULL, 5, 2, &[]).0, OK);
    assert_eq!(member.ask(CLEANUP_GRAPH, 0, &[0x08, 5]).0, OK);
    assert_eq!(member.receive(5, &key).0, ABORTED);
    assert_refused(member.ask(CLEANUP_ALL, 0, &[]), "admin", "GRPCXX_ADMIN");
}

#[test]
fn a_member_is_known_where_its_name_has_moved_to() {
    let names = Arc::new(Names(Mutex::new(MEMBER)));
    let options = options("ps", with_tasks(&["worker-0.training", "gone.training"]));
    let options = options.with(|options| options.resolver = names.clone());
    let server = Engine::start(options).unwrap();
    assert_eq!(Hostile::at(MEMBER, &server).push(&[1; 3]).0, OK);
    *names.0.lock().unwrap() = STRANGER;
    std::thread::sleep(Duration::from_millis(1100));
    let mut moved = Hostile::at(STRANGER, &server);
    let until = Instant::now() + PATIENCE;
    while moved.push(&[2; 3]).0 != OK {
        assert!(Instant::now() < until, "its name was not looked up again");
        std::thread::sleep(Duration::from_millis(5));
    }
    let left = Hostile::at(MEMBER, &server).push(&[3; 3]);
    assert_refused(left, "push", "GRPCXX_STORE=push");
    assert_eq!(model(&server), Some(vec![2; 3]));
}

#[test]
fn a_member_is_known_if_its_name_moves_after_it_has_connected() {
    let names = Arc::new(Names(Mutex::new(MEMBER)));
    let options = options("ps", with_tasks(&["worker-0.training"]));
    let options = options.with(|options| options.resolver = names.clone());
    let server = Engine::start(options).unwrap();
    let mut early = Hostile::at(STRANGER, &server);
    assert_refused(early.push(&[1; 3]), "push", "GRPCXX_STORE=push");
    *names.0.lock().unwrap() = STRANGER;
    let until = Instant::now() + PATIENCE;
    while early.push(&[2; 3]).0 != OK {
        assert!(Instant::now() < until, "its name was not looked up again");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(model(&server), Some(vec![2; 3]));
}

#[test]
fn a_token_counts_for_tasks_of_the_cluster_spec_too() {
    let policy = Policy {
        tasks: vec!["127.0.0.1".to_owned()],
        ..with_token(KEY)
    };
    let server = server_with_model(policy);
    let answer = Hostile::at(MEMBER, &server).pull();
    assert_refused(answer, "call", "GRPCXX_TOKEN_FILE");
}
