//! Links that are asked for bytes so often that epoll tells nothing of them any more; with both
//! drivers.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use grpcxx_memory::Buffer;
use grpcxx_tcp::{DriverRequest, TcpOptions};
use grpcxx_transport::{CloseReason, LinkId, Park, Transport};
use rustix::net::sockopt;

use crate::for_each_driver;
use crate::support::*;

/// A link of a side to a plain socket.
fn link(side: &mut Side, address: SocketAddr) -> (LinkId, TcpStream) {
    let peer = TcpStream::connect(address).unwrap();
    peer.set_nodelay(true).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.set_write_timeout(Some(PATIENCE)).unwrap();
    (side.accept(), peer)
}

/// A side with one such link, which is used to bytes.
fn warm(driver: DriverRequest) -> (Side, LinkId, TcpStream) {
    let mut side = Side::new(driver);
    let address = side.listen();
    let (link, mut peer) = link(&mut side, address);
    warm_up(&mut side, link, &mut peer);
    (side, link, peer)
}

/// Lets messages go to and fro until they are usual.
fn warm_up(side: &mut Side, link: LinkId, peer: &mut TcpStream) {
    for round in 0..20 {
        let payload = pattern(60, round);
        tell(side, peer, &payload);
        assert!(side.send(link, 0, &Buffer::from(payload.clone())));
        side.until("it was answered", |seen| !seen.sent.is_empty());
        side.seen.sent.clear();
        let mut answer = vec![0; framed(&payload).len()];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(answer, framed(&payload));
    }
}

/// Sends a message to a side that spins.
fn tell(side: &mut Side, peer: &mut TcpStream, payload: &[u8]) {
    peer.write_all(&framed(payload)).unwrap();
    side.until("it came", |seen| !seen.messages.is_empty());
    assert_eq!(side.seen.messages.pop_front().unwrap().1, payload);
}

fn framed(payload: &[u8]) -> Vec<u8> {
    [&(payload.len() as u64).to_le_bytes(), payload].concat()
}

/// Does something with a socket once its peer has had time to fall asleep.
fn later(peer: &TcpStream, action: impl FnOnce(TcpStream) + Send + 'static) -> JoinHandle<()> {
    let peer = peer.try_clone().unwrap();
    spawn(move || {
        sleep(Duration::from_millis(5));
        action(peer);
    })
}

/// Turns, and sleeps after each turn.
fn sleep_until(side: &mut Side, what: &str, done: impl Fn(&Seen) -> bool) {
    let start = Instant::now();
    while !done(&side.seen) {
        side.transport.park(Some(PATIENCE)).unwrap();
        assert!(start.elapsed() < SOON, "slept too long until {what}");
        side.turn();
    }
}

/// Turns so often that a link that is silent is not asked any more.
fn idle(side: &mut Side) {
    for _ in 0..1000 {
        side.turn();
    }
}

/// A socket that has always more small messages for its peer than that one reads in a turn.
struct Flood {
    peer: TcpStream,
    messages: Vec<u8>,
    sent_bytes: usize,
}

impl Flood {
    fn new(peer: TcpStream) -> Self {
        peer.set_nonblocking(true).unwrap();
        let messages = framed(&pattern(60, 0)).repeat(2000);
        Self {
            peer,
            messages,
            sent_bytes: 0,
        }
    }

    fn top_up(&mut self) {
        let full = loop {
            match self.peer.write(&self.messages[self.sent_bytes..]) {
                Ok(bytes) => self.sent_bytes = (self.sent_bytes + bytes) % self.messages.len(),
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
    }
}

for_each_driver! {
    fn bytes_and_ends_end_a_park_that_follows_an_echo(driver) {
        let (mut side, link, mut peer) = warm(driver);
        for round in 0..5 {
            let payload = pattern(60, round);
            let bytes = framed(&payload);
            let sender = later(&peer, move |mut peer| peer.write_all(&bytes).unwrap());
            sleep_until(&mut side, "a message came", |seen| !seen.messages.is_empty());
            sender.join().unwrap();
            assert_eq!(side.seen.messages.pop_front().unwrap().1, payload);
            warm_up(&mut side, link, &mut peer);
        }
        let closer = later(&peer, drop);
        drop(peer);
        sleep_until(&mut side, "the stream ended", |seen| !seen.closed.is_empty());
        closer.join().unwrap();
        assert_eq!(side.seen.closed[&link], CloseReason::EndOfStream);
    }

    fn lent_descriptor_tells_of_bytes_that_follow_an_echo(driver) {
        let (mut side, link, mut peer) = warm(driver);
        for round in 0..5 {
            let fd = lent(&mut side);
            assert!(!is_readable(fd.as_fd(), Duration::from_millis(1)));
            let payload = pattern(60, round);
            let bytes = framed(&payload);
            let sender = later(&peer, move |mut peer| peer.write_all(&bytes).unwrap());
            assert!(is_readable(fd.as_fd(), SOON));
            side.transport.unpark();
            sender.join().unwrap();
            side.until("it came", |seen| !seen.messages.is_empty());
            assert_eq!(side.seen.messages.pop_front().unwrap().1, payload);
            warm_up(&mut side, link, &mut peer);
        }
    }

    fn full_socket_goes_on_while_bytes_come_the_other_way(driver) {
        let (mut side, link, mut peer) = warm(driver);
        sockopt::set_socket_recv_buffer_size(&peer, 128 << 10).unwrap();
        let payload = Buffer::from(pattern(1 << 20, 1));
        for token in 0..16 {
            assert!(side.send(link, token, &payload));
        }
        // They keep the link from being left alone, which would end what is tested here.
        for round in 0..20 {
            tell(&mut side, &mut peer, &pattern(60, round));
        }
        assert!(side.seen.sent.len() < 16);
        let mut reader = peer.try_clone().unwrap();
        let reader = spawn(move || {
            let mut all = vec![0; 16 * (8 + (1 << 20))];
            reader.read_exact(&mut all).map(|()| all)
        });
        let end = Instant::now() + PATIENCE;
        while side.seen.sent.len() < 16 {
            tell(&mut side, &mut peer, &pattern(60, 0));
            assert!(Instant::now() < end, "there is room, and nobody uses it");
        }
        assert!(reader.join().unwrap().unwrap() == framed(&payload).repeat(16));
    }

    fn full_socket_goes_on_once_its_peer_reads(driver) {
        let (mut side, link, mut peer) = warm(driver);
        sockopt::set_socket_recv_buffer_size(&peer, 128 << 10).unwrap();
        let payload = Buffer::from(pattern(16 << 20, 1));
        assert!(side.send(link, 0, &payload));
        let reader = later(&peer.try_clone().unwrap(), move |mut peer| {
            let mut all = vec![0; 8 + payload.len()];
            peer.read_exact(&mut all).unwrap();
            assert!(all == framed(&payload));
        });
        sleep_until(&mut side, "all has left", |seen| !seen.sent.is_empty());
        reader.join().unwrap();
        side.seen.sent.clear();
        warm_up(&mut side, link, &mut peer);
    }

    fn ends_and_resets_that_follow_an_echo_are_told(driver) {
        let mut side = Side::new(driver);
        let address = side.listen();
        for (is_idle, is_reset) in [(false, false), (false, true), (true, false), (true, true)] {
            let (link, mut peer) = link(&mut side, address);
            warm_up(&mut side, link, &mut peer);
            if is_idle {
                idle(&mut side);
            }
            if is_reset {
                sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).unwrap();
            }
            drop(peer);
            side.until("it is over", |seen| seen.closed.contains_key(&link));
            match &side.seen.closed[&link] {
                CloseReason::EndOfStream => assert!(!is_reset),
                CloseReason::Failed(error) => assert_eq!((is_reset, error.errno), (true, 104)),
                CloseReason::Local => panic!("nobody closed it here"),
                CloseReason::Untrusted(_) => panic!("nobody has to prove anything"),
            }
        }
    }

    fn what_comes_in_a_pause_is_there_after_it(driver) {
        for is_idle in [false, true] {
            let (mut side, link, mut peer) = warm(driver);
            side.seen.pauses = true;
            tell(&mut side, &mut peer, &pattern(60, 1));
            if is_idle {
                idle(&mut side);
            }
            peer.write_all(&framed(&pattern(60, 2))).unwrap();
            idle(&mut side);
            assert!(side.seen.messages.is_empty());
            side.transport.resume(link, HEAD).unwrap();
            side.until("it came", |seen| !seen.messages.is_empty());
            assert_eq!(side.seen.messages.pop_front().unwrap().1, pattern(60, 2));
            drop(peer);
            idle(&mut side);
            side.transport.resume(link, HEAD).unwrap();
            side.until("it is over", |seen| !seen.closed.is_empty());
            assert_eq!(side.seen.closed[&link], CloseReason::EndOfStream);
        }
    }

    fn large_payload_that_follows_an_echo_arrives(driver) {
        let (mut side, link, mut peer) = warm(driver);
        for round in 0..6 {
            let bytes = framed(&pattern(4 << 20, round));
            let sender = later(&peer, move |mut peer| peer.write_all(&bytes).unwrap());
            match round % 2 {
                0 => side.until("it came", |seen| !seen.messages.is_empty()),
                _ => sleep_until(&mut side, "it came", |seen| !seen.messages.is_empty()),
            }
            sender.join().unwrap();
            assert!(side.seen.messages.pop_front().unwrap().1 == pattern(4 << 20, round));
            warm_up(&mut side, link, &mut peer);
        }
    }

    fn quiet_link_is_heard_while_others_flood(driver) {
        // Else a link is now and then empty, since its system asks for more only then.
        let receive_buffer_bytes = Some(1 << 20);
        let mut side = Side::with(TcpOptions::default().with(|options| { options.driver = driver; options.receive_buffer_bytes = receive_buffer_bytes;
}));
        let address = side.listen();
        let (_, mut peer) = link(&mut side, address);
        let mut floods: Vec<_> = (0..4).map(|_| Flood::new(link(&mut side, address).1)).collect();
        // Messages of no bytes are those that are kept.
        side.seen.recycles = true;
        for round in 0..5 {
            for _ in 0..20 {
                tell(&mut side, &mut peer, &[]);
            }
            let mut turn = || {
                floods.iter_mut().for_each(Flood::top_up);
                side.turn();
                side.seen.messages.pop_front()
            };
            // Fewer than those after which a silent link is left alone.
            assert!((0..50).all(|_| turn().is_none()));
            peer.write_all(&framed(&[])).unwrap();
            assert!((0..400).any(|_| turn().is_some()), "round {round}: it waits for ever");
        }
    }
}

/// How long a sleep lasts at most that bytes shall end.
const SOON: Duration = Duration::from_secs(10);
