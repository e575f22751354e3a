//! The same calls by bare sockets: what the system leaves to any server.
//!
//! One thread each side, epoll, 64 bytes each way, a `recv` and a `send` for each call and nothing
//! else.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use grpcxx_benches::sockets::spinning;
use rustix::event::{Timespec, epoll};

use crate::Failure;

/// Sends back what it gets. Says where it listens, and ends with its process.
pub(crate) fn serve() -> Result<(), Failure> {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
    // The standard library's queue is short: who does not fit tries again after a second.
    rustix::net::listen(&listener, QUEUE)?;
    println!("{}", listener.local_addr()?);
    let mut set = Set::new()?;
    listener.set_nonblocking(true)?;
    set.watch(listener.as_fd(), LISTENER)?;
    loop {
        set.wait(None)?;
        for event in 0..set.events.len() {
            match set.events[event].data.u64() {
                LISTENER => {
                    while let Ok((socket, _)) = listener.accept() {
                        set.add(socket)?;
                    }
                }
                index => {
                    set.answer(index)?;
                }
            }
        }
    }
}

/// Makes one call after another on each connection.
pub(crate) fn call(address: &str, connections: usize, duration: Duration) -> Result<(), Failure> {
    let begin = Instant::now();
    let mut set = Set::new()?;
    for _ in 0..connections {
        set.add(TcpStream::connect(address)?)?;
    }
    println!("{}", begin.elapsed().as_secs_f64());
    std::io::stdin().read_line(&mut String::new())?;
    for socket in &mut set.sockets {
        socket.write_all(&[7; MESSAGE_BYTES])?;
    }
    let begin = Instant::now();
    let mut calls = 0_u64;
    while begin.elapsed() < duration {
        set.wait(Some(duration))?;
        for event in 0..set.events.len() {
            let index = set.events[event].data.u64();
            calls += u64::from(set.answer(index)?);
        }
    }
    println!("{}", calls as f64 / begin.elapsed().as_secs_f64());
    Ok(())
}

/// Sockets that are waited for together. Events name them by their index.
struct Set {
    epoll: OwnedFd,
    sockets: Vec<TcpStream>,
    events: Vec<epoll::Event>,
}

impl Set {
    fn new() -> Result<Self, Failure> {
        grpcxx_benches::raise_open_files();
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sockets: Vec::new(),
            events: Vec::with_capacity(EVENTS_MAX),
        })
    }

    fn watch(&self, socket: BorrowedFd<'_>, name: u64) -> Result<(), Failure> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        Ok(epoll::add(
            &self.epoll,
            socket,
            epoll::EventData::new_u64(name),
            flags,
        )?)
    }

    fn add(&mut self, socket: TcpStream) -> Result<(), Failure> {
        let socket = spinning(socket)?;
        self.watch(socket.as_fd(), self.sockets.len() as u64)?;
        self.sockets.push(socket);
        Ok(())
    }

    fn wait(&mut self, longest: Option<Duration>) -> Result<(), Failure> {
        let longest = longest.map(Timespec::try_from).transpose()?;
        self.events.clear();
        let buffer = rustix::buffer::spare_capacity(&mut self.events);
        epoll::wait(&self.epoll, buffer, longest.as_ref())?;
        Ok(())
    }

    /// Sends a message back, if one is there: there is one at a time. A peer that has gone sends
    /// none.
    fn answer(&mut self, index: u64) -> Result<bool, Failure> {
        let mut bytes = [0; MESSAGE_BYTES];
        let socket = &mut self.sockets[index as usize];
        match socket.read(&mut bytes) {
            Ok(MESSAGE_BYTES) => {
                socket.write_all(&bytes)?;
                Ok(true)
            }
            Ok(0) => Ok(false),
            Ok(part) => Err(format!("a message came in parts, the first of {part} bytes").into()),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::ConnectionReset => Ok(false),
                _ => Err(error.into()),
            },
        }
    }
}

const MESSAGE_BYTES: usize = 64;

/// Most connections that the listener has not taken yet; the system may allow fewer
/// (`net.core.somaxconn`).
const QUEUE: i32 = 4096;

/// Names the listener.
const LISTENER: u64 = u64::MAX;

/// As many as the drivers of the TCP transport take at once.
const EVENTS_MAX: usize = 256;
