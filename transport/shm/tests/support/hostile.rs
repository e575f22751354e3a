//! A peer that writes anything into the segment of a link, and says anything over its socket.

use std::fs::File;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_shm::{Accepted, RING_BYTES_MIN, ShmOptions, ShmTransport};
use grpcxx_transport::conformance::Ledger;
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress, Time, Transport,
};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};

/// Offsets in a segment, as `docs/wire.md` has them.
pub const TAIL: u64 = 0;
pub const HEAD_OF_THE_OTHER_LANE: u64 = 512 + 128;
pub const ENDED: u64 = 256;
pub const HINTS: u64 = 1280;
pub const RING: u64 = 4096;

/// Links that a peer tries, the way the bytes say, and checks that each ends as every link does.
pub fn peer(data: &[u8]) {
    let options = ShmOptions::default().with(|options| options.ring_bytes = RING_BYTES_MIN);
    let transport = ShmTransport::open(options).unwrap();
    let mut victim = Ledger::new(transport, "the victim of a hostile peer");
    let (_, address) = victim.listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let mut prey = Prey::default();
    let mut clock = Clock::default();
    let mut script = Script(data);
    let peer = Peer::dial(address);
    peer.hello(RING_BYTES_MIN as u64, Some(peer.segment.as_fd()));
    while prey.accepted.is_none() {
        victim.turn(clock.tick(), &mut prey);
    }
    let link = victim.adopt(
        prey.accepted.take().unwrap(),
        Next::Head { at_least_bytes: 8 },
    );
    let link = link.unwrap();
    prey.orders = script.take(1)[0];
    // Half of the peers take, or say so, what the victim copies for them into memory that they map.
    peer.write(HINTS, &u32::from(prey.orders % 2).to_le_bytes());
    let tensor = Buffer::from(vec![7; 20_000]);
    peer.act(&mut script, || {
        victim.turn(clock.tick(), &mut prey);
        if prey.paused {
            prey.paused = false;
            let _ = victim.resume(link, Next::Head { at_least_bytes: 1 });
        }
        let mut frame = Box::new(Frame::new());
        frame.bytes_mut().resize(100, 7);
        frame.attach(tensor.clone());
        let _ = victim.send(link, frame);
    });
    for turn in 0.. {
        assert!(turn < 10_000, "the link does not end");
        if prey.closed {
            break;
        }
        if turn == 10 {
            victim.close(link, false);
        }
        victim.turn(clock.tick(), &mut prey);
    }
    victim.assert_settled();
}

/// The hostile end of a link.
pub struct Peer {
    pub socket: OwnedFd,
    pub segment: File,
}

impl Peer {
    pub fn dial(address: SocketAddr) -> Self {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        let name = format!("grpcxx-shm-{address}");
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).unwrap();
        rustix::net::connect(&socket, &name).unwrap();
        let segment = sealed_memory(RING as usize + 2 * RING_BYTES_MIN);
        Self { socket, segment }
    }

    pub fn hello(&self, ring_bytes: u64, descriptor: Option<BorrowedFd<'_>>) {
        let mut hello = vec![1, 3];
        hello.extend_from_slice(&[0; 16]);
        hello.extend_from_slice(&ring_bytes.to_le_bytes());
        self.say(&hello, descriptor);
    }

    pub fn say(&self, bytes: &[u8], descriptor: Option<BorrowedFd<'_>>) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = descriptor.as_slice();
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = SendFlags::NOSIGNAL;
        let _ = rustix::net::sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, flags);
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        let at = at % (RING + 2 * RING_BYTES_MIN as u64 - bytes.len() as u64);
        self.segment.write_at(bytes, at).unwrap();
    }

    /// Lets the victim find that it can read this process.
    pub fn be_seen(&self) {
        let mut look = vec![7];
        look.extend_from_slice(&(MARK.as_ptr().addr() as u64).to_le_bytes());
        look.extend_from_slice(&MARK[..16]);
        self.say(&look, None);
    }

    /// Does what the script says, and lets the victim turn in between.
    fn act(&self, script: &mut Script<'_>, mut turn: impl FnMut()) {
        let mut tail = 0u64;
        for _ in 0..200 {
            if script.0.is_empty() {
                return;
            }
            match script.take(1)[0] % 14 {
                0 => turn(),
                // Anything anywhere.
                1 => self.write(script.number(), &script.take(8)),
                2 => self.write(TAIL, &script.take(8)),
                3 => self.write(HEAD_OF_THE_OTHER_LANE, &script.take(8)),
                4 => self.write(ENDED, &script.take(1)),
                // A record that is as it should be, with bytes of the script.
                5 => {
                    let len = usize::from(script.take(1)[0]) + 1;
                    let mut record = (1 << 32 | len as u64).to_le_bytes().to_vec();
                    record.extend_from_slice(&script.take(len));
                    record.resize(8 + len.next_multiple_of(8), 0);
                    self.put(&mut tail, &record);
                }
                // A loan of anything, or nearly of what there is.
                6 => {
                    let mut record = (2u64 << 32 | 24).to_le_bytes().to_vec();
                    record.extend_from_slice(&script.take(24));
                    self.put(&mut tail, &record);
                }
                7 => {
                    let mut record = (2u64 << 32 | 24).to_le_bytes().to_vec();
                    record.extend_from_slice(&[0, 0, 0, 0, script.take(1)[0], 0, 0, 0]);
                    record.extend_from_slice(&(script.number() & 0xff).to_le_bytes());
                    record.extend_from_slice(&(script.number() & 0x1fff).to_le_bytes());
                    self.put(&mut tail, &record);
                }
                8 => self.say(&[6], Some(sealed_memory(8192).as_fd())),
                9 => self.say(&[6], Some(self.socket.as_fd())),
                10 => {
                    let len = usize::from(script.take(1)[0] % 32);
                    self.say(&script.take(len), None);
                }
                11 => self.be_seen(),
                // Memory that is there, and a slot and a length of any kind.
                12 => {
                    let at = script.number() % MARK.len() as u64;
                    let len = script.number() % (MARK.len() as u64 - at);
                    let slot = script.number() & 0x3ff;
                    let address = MARK.as_ptr().addr() as u64 + at;
                    self.put(&mut tail, &shown(slot as u32, address, len));
                }
                _ => {
                    let head = script.take(16);
                    self.put(&mut tail, &head);
                }
            }
        }
    }

    /// Puts bytes at the tail of the ring that the victim reads.
    fn put(&self, tail: &mut u64, bytes: &[u8]) {
        for (index, byte) in bytes.iter().enumerate() {
            let at = (*tail + index as u64) % RING_BYTES_MIN as u64;
            self.segment.write_at(&[*byte], RING + at).unwrap();
        }
        *tail += bytes.len() as u64;
        self.write(TAIL, &tail.to_le_bytes());
    }
}

/// A record of bytes that the victim shall read by itself.
pub fn shown(slot: u32, address: u64, len: u64) -> Vec<u8> {
    let mut record = (3u64 << 32 | 24).to_le_bytes().to_vec();
    record.extend_from_slice(&[0; 4]);
    record.extend_from_slice(&slot.to_le_bytes());
    record.extend_from_slice(&address.to_le_bytes());
    record.extend_from_slice(&len.to_le_bytes());
    record
}

/// What the victim may see.
pub static MARK: [u8; 4096] = [0x5a; 4096];

/// Memory that can be mapped by others, filled with a pattern.
pub fn sealed_memory(len: usize) -> File {
    sealed_memory_called("hostile", len)
}

/// Such memory with a name by which its mappings can be found.
pub fn sealed_memory_called(name: &str, len: usize) -> File {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut memory = File::from(rustix::fs::memfd_create(name, flags).unwrap());
    memory.write_all(&vec![0; len]).unwrap();
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW).unwrap();
    memory
}

struct Script<'a>(&'a [u8]);

impl Script<'_> {
    /// The next bytes, zeros behind the end.
    fn take(&mut self, len: usize) -> Vec<u8> {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        let mut bytes = bytes.to_vec();
        bytes.resize(len, 0);
        bytes
    }

    fn number(&mut self) -> u64 {
        let bytes = self.take(2);
        u64::from(bytes[0]) | u64::from(bytes[1]) << 8
    }
}

#[derive(Default)]
struct Clock(u64);

impl Clock {
    fn tick(&mut self) -> Time {
        self.0 += 150_000;
        Time::from_nanos(self.0)
    }
}

/// Takes what comes, with orders of all kinds.
#[derive(Default)]
struct Prey {
    accepted: Option<Accepted>,
    orders: u8,
    paused: bool,
    closed: bool,
}

impl Prey {
    fn next(&mut self) -> Next {
        self.orders = self.orders.wrapping_mul(5).wrapping_add(3);
        let bytes = usize::from(self.orders) * 40;
        match self.orders >> 5 {
            0 => Next::Land(Landing::new(BufferMut::zeroed(bytes))),
            1 | 2 => Next::Land(Landing::replaceable(BufferMut::zeroed(bytes))),
            3 => {
                self.paused = true;
                Next::Pause
            }
            4 => Next::Discard {
                bytes: bytes as u64,
                then_at_least_bytes: 1,
            },
            _ => Next::Head { at_least_bytes: 1 },
        }
    }
}

impl LinkHandler<Accepted> for Prey {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, accepted: Accepted) {
        self.accepted = Some(accepted);
    }

    fn connected(&mut self, _: LinkId) -> Next {
        unreachable!("the victim does not dial")
    }

    fn received(&mut self, _: LinkId, bytes: &[u8]) -> Progress {
        Progress {
            consumed_bytes: bytes.len(),
            next: self.next(),
        }
    }

    fn landed(&mut self, _: LinkId, landing: Landing, outcome: Outcome) -> Next {
        if outcome == Outcome::Done {
            let sum: u64 = landing.into_shared().iter().map(|&b| u64::from(b)).sum();
            std::hint::black_box(sum);
        }
        self.next()
    }

    fn sent(&mut self, _: LinkId, _: Box<Frame>, _: Outcome) {}

    fn closed(&mut self, _: LinkId, _: &CloseReason) {
        self.closed = true;
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}
