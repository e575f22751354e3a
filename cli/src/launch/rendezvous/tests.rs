#[path = "../../../../runtime/tests/support/ports.rs"]
mod ports;

use std::io::{Read, Write};

use super::super::message::ORDER_BYTES_MAX;
use super::super::{End, EndKind, Member, Roles};
use super::*;
use ports::held_address;

fn rendezvous(size: u32, timeout_ms: u64) -> Rendezvous {
    Rendezvous {
        address: held_address().to_string(),
        job: "test".to_owned(),
        size,
        timeout: Duration::from_millis(timeout_ms),
    }
}

fn join_all(place: &Rendezvous) -> Vec<Member> {
    let joins: Vec<_> = (0..place.size)
        .map(|rank| {
            let place = place.clone();
            let ports = [100 + rank as u16, 200 + rank as u16];
            thread::spawn(move || Member::join(&place, rank, ports).unwrap())
        })
        .collect();
    joins.into_iter().map(|join| join.join().unwrap()).collect()
}

fn end(kind: EndKind) -> End {
    End {
        kind,
        how: "exit status: 3".to_owned(),
        last_lines: vec!["no luck".to_owned()],
    }
}

#[test]
fn the_name_of_the_rendezvous_may_come_later_than_rank_0() {
    let place = rendezvous(1, 20_000);
    let own = place.address.parse().unwrap();
    let asked = std::cell::Cell::new(0);
    let look_up = || {
        asked.set(asked.get() + 1);
        match asked.get() {
            1..=2 => Err(io::Error::other("failed to lookup address information")),
            _ => Ok(vec![own]),
        }
    };
    assert_eq!(listen(&place, look_up).unwrap().local_addr().unwrap(), own);
    let never = || Err(io::Error::other("failed to lookup address information"));
    let failed = listen(&rendezvous(1, 0), never).unwrap_err();
    assert!(failed.to_string().contains("failed to lookup"), "{failed}");
    let senseless = || Err(io::ErrorKind::InvalidInput.into());
    assert!(listen(&place, senseless).is_err());
}

#[test]
fn ranks_learn_of_each_other_and_end_together() {
    let place = rendezvous(3, 20_000);
    let gang = Gang::new(Roles::new(3, 1, false).unwrap(), 1);
    let leader = lead(&place, Some(gang)).unwrap();
    let members = join_all(&place);
    for member in &members {
        let ports: Vec<u16> = member.addresses().iter().map(|found| found.star).collect();
        assert_eq!(ports, [200, 201, 202]);
        assert!(
            member
                .addresses()
                .iter()
                .all(|found| found.ip.is_loopback())
        );
    }
    let orders: Vec<_> = members
        .iter()
        .map(|member| member.orders().unwrap())
        .collect();
    members[2].report(0, end(EndKind::Failed)).unwrap();
    for (member, orders) in members.iter().zip(&orders) {
        assert_eq!(orders.recv().unwrap(), Order::Stop(1));
        member.report_stopped(1).unwrap();
    }
    for orders in &orders {
        assert_eq!(orders.recv().unwrap(), Order::Start(1));
    }
    members[1].report(1, end(EndKind::Success)).unwrap();
    members[2].report(1, end(EndKind::Failed)).unwrap();
    for orders in &orders {
        let Order::Fail(reason) = orders.recv().unwrap() else {
            panic!("the second failure is the last");
        };
        assert!(
            reason.contains("worker:1") && reason.contains("no luck"),
            "{reason}"
        );
    }
    let hung_up = Instant::now();
    drop(members);
    leader.join().unwrap();
    assert!(hung_up.elapsed() < LEAVE_TIMEOUT);
}

#[test]
fn ranks_that_never_come_are_named_to_those_that_did() {
    let place = rendezvous(5, 300);
    let _leader = lead(&place, None).unwrap();
    let text = Member::join(&place, 1, [1, 2]).unwrap_err().to_string();
    assert!(text.contains("ranks 0, 2-4 of 5"), "{text}");
}

#[test]
fn who_is_wrong_there_is_told_and_stops_nobody() {
    let place = rendezvous(1, 20_000);
    let _leader = lead(&place, None).unwrap();
    let mut stranger = TcpStream::connect(&place.address).unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(stranger.read(&mut [0; 16]).unwrap_or(0), 0);
    let other_size = Rendezvous {
        size: 2,
        ..place.clone()
    };
    let text = Member::join(&other_size, 1, [1, 2])
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("waits for 1 ranks") && text.contains("told of 2"),
        "{text}"
    );
    let other_job = Rendezvous {
        job: "else".to_owned(),
        ..place.clone()
    };
    let text = Member::join(&other_job, 0, [1, 2]).unwrap_err().to_string();
    assert!(text.contains("another job"), "{text}");
    Member::join(&place, 0, [1, 2]).unwrap();
}

#[test]
fn a_rank_of_another_version_is_told() {
    let place = rendezvous(1, 20_000);
    let _leader = lead(&place, None).unwrap();
    let mut stream = TcpStream::connect(&place.address).unwrap();
    let hello = r#"{"job":"test","rank":0,"size":1,"grpc_port":1,"star_port":2}"#;
    stream.write_all(format!("{hello}\n").as_bytes()).unwrap();
    let answer: Welcome = message::read(&mut BufReader::new(stream), ORDER_BYTES_MAX).unwrap();
    let Welcome::Refused(reason) = answer else {
        panic!("{answer:?}");
    };
    assert!(reason.contains("speaks version 0"), "{reason}");
}

#[test]
fn a_rank_is_told_of_a_rank_0_of_another_version() {
    let ranks = r#"{"ranks":[{"ip":"127.0.0.1","grpc":1,"star":2}]}"#;
    for (known, version) in [("\"heard\"", 0), (r#"{"known":3}"#, 3)] {
        let place = rendezvous(1, 20_000);
        let listener = TcpListener::bind(&place.address).unwrap();
        let answers = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _: Hello = message::read(&mut BufReader::new(&stream), REPORT_BYTES_MAX).unwrap();
            let _ = stream.write_all(format!("{known}\n{ranks}\n").as_bytes());
        });
        let text = Member::join(&place, 0, [1, 2]).unwrap_err().to_string();
        let words =
            format!("speaks version {VERSION} of the rendezvous and rank 0 version {version}");
        assert!(text.contains(&words), "{text}");
        answers.join().unwrap();
    }
}

#[test]
fn a_rank_without_a_rendezvous_says_where_it_looked() {
    let place = rendezvous(2, 200);
    let text = Member::join(&place, 1, [1, 2]).unwrap_err().to_string();
    assert!(
        text.contains(&place.address) && text.contains("rank 1"),
        "{text}"
    );
}

#[test]
fn a_rendezvous_on_another_host_is_an_error_at_once() {
    let place = Rendezvous {
        address: "192.0.2.200:10300".to_owned(),
        ..rendezvous(2, 200)
    };
    let text = lead(&place, None).unwrap_err().to_string();
    assert!(
        text.contains("192.0.2.200:10300") && text.contains("rank 0"),
        "{text}"
    );
}

/// Comes as a rank whose process ends before all are there.
fn come_and_leave(place: &Rendezvous, rank: u32) {
    let stream = TcpStream::connect(&place.address).unwrap();
    let hello = Hello {
        version: VERSION,
        job: place.job.clone(),
        rank,
        size: place.size,
        grpc_port: 1,
        star_port: 2,
    };
    message::write(&stream, &hello).unwrap();
    let mut reader = BufReader::new(&stream);
    let welcome: Welcome = message::read(&mut reader, ORDER_BYTES_MAX).unwrap();
    assert!(matches!(welcome, Welcome::Known(VERSION)));
}

#[test]
fn a_rank_that_ended_before_all_were_there_may_come_again() {
    let place = rendezvous(2, 20_000);
    let _leader = lead(&place, None).unwrap();
    come_and_leave(&place, 1);
    for member in join_all(&place) {
        assert_eq!(member.addresses()[1].star, 201);
    }
}

#[test]
fn a_rank_that_ended_is_missing_when_the_last_one_comes() {
    let place = rendezvous(2, 3_000);
    let _leader = lead(&place, None).unwrap();
    come_and_leave(&place, 1);
    let text = Member::join(&place, 0, [1, 2]).unwrap_err().to_string();
    assert!(text.contains("rank 1 of 2"), "{text}");
}

#[test]
fn a_rank_that_lives_is_not_replaced() {
    let place = rendezvous(2, 20_000);
    let _leader = lead(&place, None).unwrap();
    let (sender, ends) = channel();
    for ports in [[1, 2], [3, 4]] {
        let (place, sender) = (place.clone(), sender.clone());
        thread::spawn(move || sender.send(Member::join(&place, 1, ports)));
    }
    // One of them is refused, and the other waits on.
    let error = ends.recv().unwrap().unwrap_err();
    assert!(error.to_string().contains("here already"), "{error}");
    Member::join(&place, 0, [5, 6]).unwrap();
    ends.recv().unwrap().unwrap();
}

#[test]
fn lists_of_ranks_are_short() {
    assert_eq!(
        ranges([0, 2, 3, 4, 9].into_iter()),
        (4 + 1, "0, 2-4, 9".to_owned())
    );
}

/// Answers the first `strangers` connections at the address by `says`, and then leaves it.
fn stranger(place: &Rendezvous, says: &'static [u8], strangers: usize) -> thread::JoinHandle<()> {
    let listener = TcpListener::bind(&place.address).unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().take(strangers) {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 512]);
            let _ = stream.write_all(says);
        }
    })
}

#[test]
fn a_rank_goes_on_past_a_stranger_that_leaves() {
    for says in [
        b"".as_slice(),
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff\x00",
    ] {
        let place = rendezvous(1, 20_000);
        let left = stranger(&place, says, 2);
        let joins = thread::spawn({
            let place = place.clone();
            move || Member::join(&place, 0, [1, 2])
        });
        left.join().unwrap();
        let _leader = lead(&place, None).unwrap();
        joins.join().unwrap().unwrap();
    }
}

#[test]
fn a_stranger_that_stays_is_described_when_the_time_is_over() {
    for (says, words) in [
        (b"".as_slice(), "hangs up without an answer"),
        (
            b"HTTP/1.1 400 Bad Request\r\n\r\n",
            "\"HTTP/1.1 400 Bad Request\"",
        ),
        (b"\xff\x00", "is no rank 0"),
        (b"\"dance\"\n", "is no rank 0"),
    ] {
        let place = rendezvous(2, 400);
        let _stranger = stranger(&place, says, 1000);
        let started = Instant::now();
        let text = Member::join(&place, 1, [1, 2]).unwrap_err().to_string();
        assert!(started.elapsed() >= place.timeout, "{text}");
        assert!(
            text.contains(words) && text.contains(&place.address),
            "{text}"
        );
    }
}

#[test]
fn a_silent_stranger_takes_no_more_than_the_time() {
    let place = rendezvous(2, 300);
    let listener = TcpListener::bind(&place.address).unwrap();
    let started = Instant::now();
    // It sends a byte from time to time, and never a line.
    let drips = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        while stream.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(50));
        }
    });
    let text = Member::join(&place, 1, [1, 2]).unwrap_err().to_string();
    assert!(text.contains("says nothing"), "{text}");
    assert!(started.elapsed() < Duration::from_secs(20));
    drips.join().unwrap();
}

#[test]
fn a_rank_0_that_dies_ends_those_that_it_has_heard() {
    let place = rendezvous(2, 20_000);
    let listener = TcpListener::bind(&place.address).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        message::write(&mut stream, &Welcome::Known(VERSION)).unwrap();
    });
    let started = Instant::now();
    let text = Member::join(&place, 1, [1, 2]).unwrap_err().to_string();
    assert!(
        text.contains("rank 0") && text.contains("hung up"),
        "{text}"
    );
    assert!(started.elapsed() < Duration::from_secs(15));
}

#[test]
fn all_who_wait_at_the_door_are_let_in_together() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let place = listener.local_addr().unwrap();
    // As many as the system lets wait without a retry.
    let silent: Vec<TcpStream> = (0..120)
        .map(|_| TcpStream::connect(place).unwrap())
        .collect();
    let strangers = Arc::default();
    let (mut let_in, mut together) = (0, 0);
    // The system may not have shown all of them by the first look.
    while let_in < silent.len() {
        greet_all(&listener, &channel().0, &strangers);
        let now = strangers.load(Ordering::Relaxed);
        together = together.max(now - let_in);
        let_in = now;
    }
    assert!(together >= silent.len() / 2, "{together}");
}
