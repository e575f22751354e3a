//! A peer that plays an original over real sockets, with an encoder of its own.
//!
//! One thread writes the packets of all connections, oldest first, as a shard of an original does.
//! If a connection is gone while a packet is written to it, and another packet is queued for it,
//! the thread never writes again. A connection whose peer has ended its stream is never closed.
#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part")]

pub mod encode;
pub mod store;

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use encode::{HEADER_BYTES, Header};

/// A server that is an original.
pub struct Original {
    pub address: SocketAddr,
    shard: Arc<Shard>,
}

/// A request that it has read.
pub struct Asked {
    pub method: i32,
    pub tag: u64,
    /// Length of the metadata of a graph call.
    pub metadata_bytes: usize,
    pub payload: Vec<u8>,
}

/// Bytes for the peer who asked.
pub struct Packet {
    pub bytes: Vec<u8>,
    /// How late it is queued.
    pub after: Duration,
    /// Whether the stream ends behind it.
    pub ends_stream: bool,
}

struct Shard {
    state: Mutex<State>,
    changed: Condvar,
    /// How long it pauses behind each piece that it writes.
    pause: Duration,
}

#[derive(Default)]
struct State {
    connections: HashMap<usize, Arc<TcpStream>>,
    packets: VecDeque<(usize, Packet)>,
    is_wedged: bool,
    written_bytes: u64,
}

impl Packet {
    pub fn now(bytes: Vec<u8>) -> Self {
        Self {
            bytes,
            after: Duration::ZERO,
            ends_stream: false,
        }
    }
}

impl Original {
    /// Starts one that answers each request with what `serve` says, and pauses so long behind each
    /// piece.
    pub fn start(
        pause: Duration,
        serve: impl Fn(&Asked) -> Vec<Packet> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shard = Arc::new(Shard {
            state: Mutex::default(),
            changed: Condvar::new(),
            pause,
        });
        let writing = Arc::clone(&shard);
        thread::spawn(move || writing.write());
        let accepting = Arc::clone(&shard);
        let serve = Arc::new(serve);
        thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                let stream = Arc::new(stream.unwrap());
                let mut state = accepting.state();
                state.connections.insert(number, Arc::clone(&stream));
                drop(state);
                let (shard, serve) = (Arc::clone(&accepting), Arc::clone(&serve));
                thread::spawn(move || shard.read(number, &stream, &*serve));
            }
        });
        Self { address, shard }
    }

    /// Whether it will never send again.
    pub fn is_wedged(&self) -> bool {
        self.shard.state().is_wedged
    }

    pub fn written_bytes(&self) -> u64 {
        self.shard.state().written_bytes
    }

    /// Waits until it has written so many bytes.
    pub fn until_written(&self, bytes: u64) {
        self.until("it has written enough", |state| {
            state.written_bytes >= bytes
        });
    }

    /// Waits until so many packets are queued behind the one that it writes.
    pub fn until_queued(&self, packets: usize) {
        self.until("packets are queued", |state| state.packets.len() >= packets);
    }

    /// Waits until it has stopped sending for ever.
    pub fn until_wedged(&self) {
        self.until("it has stopped", |state| state.is_wedged);
    }

    fn until(&self, what: &str, holds: impl Fn(&State) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds(&self.shard.state()) {
            assert!(Instant::now() < end, "waited too long until {what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Asks it for its status as another peer would. False if it does not answer any more.
    pub fn answers_others(&self) -> bool {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let request = encode::request(encode::GET_STATUS, 7, 0, b"");
        stream.write_all(&request).unwrap();
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).is_ok() && Header::of(&header).tag == 7
    }
}

impl Shard {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Reads requests until the stream ends; the connection then stays as it is.
    fn read(
        self: &Arc<Self>,
        connection: usize,
        mut stream: &TcpStream,
        serve: &dyn Fn(&Asked) -> Vec<Packet>,
    ) {
        let mut bytes = [0; HEADER_BYTES];
        while stream.read_exact(&mut bytes).is_ok() {
            let header = Header::of(&bytes);
            assert_eq!(&header.id, b"AAAA");
            let mut payload = vec![0; usize::try_from(header.payload_bytes).unwrap()];
            if stream.read_exact(&mut payload).is_err() {
                return;
            }
            let asked = Asked {
                method: header.method,
                tag: header.tag,
                metadata_bytes: usize::try_from(header.user_data).unwrap(),
                payload,
            };
            for packet in serve(&asked) {
                self.queue(connection, packet);
            }
        }
    }

    fn queue(self: &Arc<Self>, connection: usize, mut packet: Packet) {
        let after = std::mem::take(&mut packet.after);
        if !after.is_zero() {
            let shard = Arc::clone(self);
            thread::spawn(move || {
                thread::sleep(after);
                shard.queue(connection, packet);
            });
            return;
        }
        self.state().packets.push_back((connection, packet));
        self.changed.notify_all();
    }

    fn write(&self) {
        let mut state = self.state();
        while !state.is_wedged {
            let Some((connection, packet)) = state.packets.pop_front() else {
                state = self.changed.wait(state).unwrap();
                continue;
            };
            let Some(stream) = state.connections.get(&connection).cloned() else {
                continue;
            };
            drop(state);
            let is_written = self.write_packet(&stream, &packet.bytes);
            if is_written && packet.ends_stream {
                stream.shutdown(std::net::Shutdown::Write).unwrap();
            }
            state = self.state();
            if !is_written {
                // The descriptor is closed and nobody watches it; the next packet for it waits for
                // ever.
                state.connections.remove(&connection);
                state.is_wedged = state.packets.iter().any(|(other, _)| *other == connection);
            }
        }
    }

    fn write_packet(&self, mut stream: &TcpStream, bytes: &[u8]) -> bool {
        for piece in bytes.chunks(PIECE_BYTES) {
            if stream.write_all(piece).is_err() {
                return false;
            }
            self.state().written_bytes += piece.len() as u64;
            if !self.pause.is_zero() {
                thread::sleep(self.pause);
            }
        }
        true
    }
}

const PIECE_BYTES: usize = 128 << 10;

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(20);
