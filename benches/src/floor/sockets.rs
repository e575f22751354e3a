use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use super::super::report::Measured;
use super::super::sockets::spinning;

/// What plain sockets carry: requests of one length, each with an answer of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exchange {
    pub(super) request_bytes: u64,
    pub(super) answer_bytes: u64,
    pub(super) connections: u64,
}

/// A socket that is read and written without waiting.
struct Pipe {
    socket: TcpStream,
    landing: Vec<u8>,
    incoming_unit: usize,
    /// Bytes of the unit that is arriving.
    arrived: usize,
    outgoing_unit: usize,
    /// Bytes of the unit that is leaving.
    left: usize,
    owed_units: u64,
}

impl Exchange {
    fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        let fields = [self.request_bytes, self.answer_bytes, self.connections];
        for (chunk, field) in bytes.chunks_exact_mut(8).zip(fields) {
            chunk.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Reads an exchange and refuses one that takes too much memory.
    fn from_bytes(bytes: [u8; 24]) -> io::Result<Self> {
        let field = |index: usize| {
            let mut field = [0; 8];
            field.copy_from_slice(&bytes[index * 8..index * 8 + 8]);
            u64::from_le_bytes(field)
        };
        let exchange = Self {
            request_bytes: field(0),
            answer_bytes: field(1),
            connections: field(2),
        };
        let sizes = [exchange.request_bytes, exchange.answer_bytes];
        let fits = sizes.iter().all(|size| (1..=UNIT_BYTES_MAX).contains(size))
            && (1..=CONNECTIONS_MAX).contains(&exchange.connections);
        fits.then_some(exchange).ok_or_else(|| {
            io::Error::new(
                ErrorKind::InvalidData,
                format!("{exchange:?} is beyond what plain sockets are measured with"),
            )
        })
    }
}

/// Serves one exchange to the client that connects first, until it closes its connections.
pub(super) fn serve(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut control = accept(listener)?;
    control.set_read_timeout(Some(QUIET_MAX))?;
    control.write_all(&[1])?;
    let mut order = [0; 24];
    match control.read_exact(&mut order) {
        // A client that only wants quiet on this CPU closes without an order.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(()),
        result => result?,
    }
    let exchange = Exchange::from_bytes(order)?;
    let mut source = vec![0; exchange.answer_bytes as usize];
    source.fill(3);
    let mut pipes = (0..exchange.connections)
        .map(|_| {
            Pipe::new(
                accept(listener)?,
                exchange.request_bytes,
                exchange.answer_bytes,
            )
        })
        .collect::<io::Result<Vec<_>>>()?;
    control.write_all(&[2])?;
    let mut last_byte = Instant::now();
    let mut vain_turns = 0_u32;
    while !pipes.is_empty() {
        let mut moved = false;
        pipes.retain_mut(|pipe| match pipe.turn(&source) {
            Ok((units, bytes)) => {
                pipe.owed_units += units;
                moved |= bytes > 0;
                true
            }
            Err(_) => false,
        });
        vain_turns = if moved { 0 } else { vain_turns.wrapping_add(1) };
        if moved {
            last_byte = Instant::now();
        } else if vain_turns.is_multiple_of(4096) && last_byte.elapsed() > QUIET_MAX {
            return Err(io::Error::new(
                ErrorKind::TimedOut,
                "the client says nothing",
            ));
        }
    }
    Ok(())
}

/// Connects to a server that waits in [`serve`].
pub(super) fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let mut control = TcpStream::connect(address)?;
    control.set_read_timeout(Some(QUIET_MAX))?;
    control.read_exact(&mut [0])?;
    Ok(control)
}

/// Makes exchanges, `depth` at once on each connection, for `duration`.
pub(super) fn measure(
    mut control: TcpStream,
    address: SocketAddr,
    exchange: Exchange,
    depth: usize,
    duration: Duration,
) -> io::Result<Measured> {
    control.write_all(&exchange.to_bytes())?;
    let mut pipes = (0..exchange.connections)
        .map(|_| {
            let socket = TcpStream::connect(address)?;
            let pipe = Pipe::new(socket, exchange.answer_bytes, exchange.request_bytes)?;
            Ok((pipe, VecDeque::with_capacity(depth)))
        })
        .collect::<io::Result<Vec<_>>>()?;
    control.read_exact(&mut [0])?;
    let source = vec![7; exchange.request_bytes as usize];
    let start = Instant::now();
    let from = start + duration / 8;
    let until = from + duration;
    let mut measured = Measured::default();
    let mut open = pipes.len();
    let mut first = from;
    let mut last = from;
    while open > 0 {
        let now = Instant::now();
        open = 0;
        for (pipe, begun) in &mut pipes {
            while begun.len() < depth && (now < until || (measured.steps == 0 && begun.is_empty()))
            {
                begun.push_back(now);
                pipe.owed_units += 1;
            }
            let (units, _) = pipe.turn(&source)?;
            if units > 0 {
                let end = Instant::now();
                for begin in begun.drain(..units as usize) {
                    if begin >= from {
                        if measured.steps == 0 {
                            first = begin;
                        }
                        measured.record(end - begin);
                        last = end;
                    }
                }
            }
            open += usize::from(!begun.is_empty() || now < until || measured.steps == 0);
        }
    }
    measured.calls = measured.steps;
    measured.elapsed = last - first;
    Ok(measured)
}

impl Pipe {
    fn new(socket: TcpStream, incoming_unit: u64, outgoing_unit: u64) -> io::Result<Self> {
        let socket = spinning(socket)?;
        let mut landing = vec![0; (incoming_unit as usize).max(SMALL_READ_BYTES)];
        landing.fill(1);
        Ok(Self {
            socket,
            landing,
            incoming_unit: incoming_unit as usize,
            arrived: 0,
            outgoing_unit: outgoing_unit as usize,
            left: 0,
            owed_units: 0,
        })
    }

    /// Reads and writes what is possible now. Returns the units that arrived and the bytes that
    /// moved.
    fn turn(&mut self, source: &[u8]) -> io::Result<(u64, usize)> {
        let mut moved = 0;
        if self.owed_units > 0 {
            moved += self.write(source)?;
        }
        let (units, bytes) = self.read()?;
        Ok((units, moved + bytes))
    }

    fn write(&mut self, source: &[u8]) -> io::Result<usize> {
        if self.outgoing_unit < SMALL_READ_BYTES && self.owed_units > 1 {
            return self.write_many(source);
        }
        let end = (self.left + CHUNK_BYTES).min(self.outgoing_unit);
        let bytes = would_block(self.socket.write(&source[self.left..end]))?;
        self.left += bytes;
        if self.left == self.outgoing_unit {
            self.left = 0;
            self.owed_units -= 1;
        }
        Ok(bytes)
    }

    /// Writes several small units with one call.
    fn write_many(&mut self, source: &[u8]) -> io::Result<usize> {
        let mut together = [0_u8; SMALL_READ_BYTES];
        let owed = (self.owed_units as usize).saturating_mul(self.outgoing_unit) - self.left;
        let len = owed.min(together.len());
        together[..len].fill(source[0]);
        let bytes = would_block(self.socket.write(&together[..len]))?;
        let total = self.left + bytes;
        self.owed_units -= (total / self.outgoing_unit) as u64;
        self.left = total % self.outgoing_unit;
        Ok(bytes)
    }

    fn read(&mut self) -> io::Result<(u64, usize)> {
        let start = if self.incoming_unit > SMALL_READ_BYTES {
            self.arrived
        } else {
            0
        };
        let end = (start + CHUNK_BYTES).min(self.landing.len());
        let bytes = match self.socket.read(&mut self.landing[start..end]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            result => would_block(result)?,
        };
        let total = self.arrived + bytes;
        self.arrived = total % self.incoming_unit;
        Ok(((total / self.incoming_unit) as u64, bytes))
    }
}

fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let deadline = Instant::now() + QUIET_MAX;
    loop {
        match listener.accept() {
            Ok((socket, _)) => {
                socket.set_nonblocking(false)?;
                return Ok(socket);
            }
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(_) if Instant::now() > deadline => return Err(ErrorKind::TimedOut.into()),
            Err(_) => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}

fn would_block(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok(0),
        result => result,
    }
}

/// Longest single read or write.
const CHUNK_BYTES: usize = 1 << 20;
/// Small units are read and written together up to this length.
const SMALL_READ_BYTES: usize = 32 << 10;
/// Longest request or answer.
const UNIT_BYTES_MAX: u64 = 4 << 30;
/// Most sockets; more than a few only measure the list of them.
pub(super) const CONNECTIONS_MAX: u64 = 1024;
/// How long a peer may be silent.
const QUIET_MAX: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(request_bytes: u64, answer_bytes: u64, connections: u64, depth: usize) -> Measured {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || serve(&listener));
        let exchange = Exchange {
            request_bytes,
            answer_bytes,
            connections,
        };
        let control = connect(address).unwrap();
        let duration = Duration::from_millis(60);
        let measured = measure(control, address, exchange, depth, duration).unwrap();
        server.join().unwrap().unwrap();
        measured
    }

    #[test]
    fn units_of_any_length_are_exchanged() {
        for (request, answer, connections, depth) in [
            (64, 64, 1, 1),
            (64, 64, 3, 32),
            (64, 3 << 20, 1, 1),
            (1 << 20, 64, 2, 2),
            (1, 33_000, 1, 5),
        ] {
            let measured = exchange(request, answer, connections, depth);
            assert!(
                measured.steps > 0,
                "{request} {answer} {connections} {depth}"
            );
            assert_eq!(measured.steps, measured.latency.len());
        }
    }

    #[test]
    fn orders_beyond_the_limits_are_refused() {
        let order = Exchange {
            request_bytes: 64,
            answer_bytes: 1 << 20,
            connections: 16,
        };
        assert_eq!(Exchange::from_bytes(order.to_bytes()).unwrap(), order);
        for wrong in [
            Exchange {
                request_bytes: 0,
                ..order
            },
            Exchange {
                answer_bytes: u64::MAX,
                ..order
            },
            Exchange {
                connections: 5000,
                ..order
            },
        ] {
            assert!(Exchange::from_bytes(wrong.to_bytes()).is_err(), "{wrong:?}");
        }
    }
}
