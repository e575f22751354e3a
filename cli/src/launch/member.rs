//! A rank at the rendezvous, and its line to rank 0 while the job runs.

use std::io::{self, BufReader};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::answer::{Answer, ask};
use super::message::{self, Hello, ORDER_BYTES_MAX, Order, Report, VERSION, Welcome};
use super::{Address, End, LaunchError, Rendezvous};

/// A rank that has met all others.
#[derive(Debug)]
pub struct Member {
    addresses: Vec<Address>,
    stream: TcpStream,
}

impl Member {
    /// Goes to the rendezvous with the ports that this rank will listen on, and waits until all
    /// ranks are there.
    ///
    /// # Errors
    /// Rank 0 does not answer in time, refuses this rank, or misses another.
    pub fn join(
        rendezvous: &Rendezvous,
        rank: u32,
        [grpc_port, star_port]: [u16; 2],
    ) -> Result<Self, LaunchError> {
        let deadline = Instant::now() + rendezvous.timeout;
        let hello = Hello {
            version: VERSION,
            job: rendezvous.job.clone(),
            rank,
            size: rendezvous.size,
            grpc_port,
            star_port,
        };
        let mut is_told = false;
        loop {
            let stream = dial(rendezvous, rank, deadline)?;
            // Rank 0 gives up in time by itself, and says who is missing.
            let patience = rendezvous.timeout + ANSWER_MARGIN;
            let stranger = match ask(&stream, &hello, deadline + ANSWER_MARGIN, patience) {
                Answer::Rank0(Welcome::Ranks(addresses)) => {
                    return Ok(Self { addresses, stream });
                }
                Answer::Rank0(Welcome::Refused(reason)) => {
                    let address = rendezvous.address.clone();
                    return Err(LaunchError::Refused { address, reason });
                }
                Answer::Rank0(Welcome::Heard | Welcome::Known(_)) | Answer::Lost => {
                    let address = rendezvous.address.clone();
                    return Err(LaunchError::Lost { address });
                }
                Answer::Stranger(reason) => reason,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(not_found(rendezvous, rank, stranger));
            }
            // Rank 0 may come after it, such as behind a proxy that begins before rank 0.
            if !std::mem::replace(&mut is_told, true) {
                let address = &rendezvous.address;
                tracing::warn!(%address, "rank {rank} goes on looking for rank 0: {stranger}");
            }
            thread::sleep(DIAL_INTERVAL.min(left));
        }
    }

    /// Where all ranks are.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Tells rank 0 how the own process ended.
    ///
    /// # Errors
    /// Rank 0 is gone.
    pub fn report(&self, restart: u32, end: End) -> io::Result<()> {
        message::write(&self.stream, &Report::Ended { restart, end })
    }

    /// Tells rank 0 that the own process is stopped for a restart, as it has ordered.
    ///
    /// # Errors
    /// Rank 0 is gone.
    pub fn report_stopped(&self, restart: u32) -> io::Result<()> {
        message::write(&self.stream, &Report::Stopped(restart))
    }

    /// The orders of rank 0; they end when it is gone.
    ///
    /// # Errors
    /// The system gives no second handle, or no thread.
    pub fn orders(&self) -> io::Result<Receiver<Order>> {
        let stream = self.stream.try_clone()?;
        stream.set_read_timeout(None)?;
        let (sender, orders) = channel();
        thread::Builder::new()
            .name("orders".to_owned())
            .spawn(move || {
                let mut reader = BufReader::new(stream);
                while let Ok(order) = message::read(&mut reader, ORDER_BYTES_MAX) {
                    if sender.send(order).is_err() {
                        return;
                    }
                }
            })?;
        Ok(orders)
    }
}

/// Hangs up, although the thread of the orders has a handle of its own: rank 0 waits for that.
impl Drop for Member {
    fn drop(&mut self) {
        // It fails where rank 0 has hung up already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

fn dial(rendezvous: &Rendezvous, rank: u32, deadline: Instant) -> Result<TcpStream, LaunchError> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let error = match try_dial(&rendezvous.address, left.min(DIAL_TIMEOUT)) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if left.is_zero() {
            return Err(not_found(rendezvous, rank, error.to_string()));
        }
        // Rank 0 may start later, and its name may not be known yet.
        thread::sleep(DIAL_INTERVAL.min(left));
    }
}

fn try_dial(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for candidate in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, timeout.max(DIAL_INTERVAL)) {
            // A dial to a free port of this host can meet itself.
            Ok(stream) if stream.local_addr()? != stream.peer_addr()? => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Ok(_) => {}
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn not_found(rendezvous: &Rendezvous, rank: u32, reason: String) -> LaunchError {
    LaunchError::NoRendezvous {
        rank,
        address: rendezvous.address.clone(),
        waited: rendezvous.timeout,
        reason,
    }
}

const DIAL_INTERVAL: Duration = Duration::from_millis(100);
const DIAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after its own time a rank still waits for the answer of rank 0.
const ANSWER_MARGIN: Duration = Duration::from_secs(5);
