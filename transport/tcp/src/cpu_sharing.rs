use std::os::fd::OwnedFd;

use nix::sched::sched_getcpu;
use rustix::net::sockopt;
use rustix::thread::{sched_getaffinity, sched_setaffinity};

/// Keeps a thread off the CPU of the peer on this host that feeds it.
///
/// Bytes from this host arrive where their sender runs, and the system likes to wake the receiver
/// there too, on hosts with few CPUs even while another one is idle. Once both run on one CPU they
/// take turns instead of working at the same time, and nothing moves them apart as long as both
/// sleep now and then.
#[derive(Debug, Default)]
pub(crate) struct CpuSharing {
    waits: u32,
    meetings: u32,
}

impl CpuSharing {
    /// To be called when the calling thread is about to wait for payload of `socket`, whose peer is
    /// on this host.
    pub(crate) fn avoid(&mut self, socket: &OwnedFd) {
        self.waits += 1;
        if self.waits < WAITS_PER_LOOK {
            return;
        }
        self.waits = 0;
        let Some(own_cpu) = own_cpu() else {
            return;
        };
        let is_shared = sockopt::socket_incoming_cpu(socket)
            .is_ok_and(|cpu| usize::try_from(cpu) == Ok(own_cpu));
        self.meetings = if is_shared { self.meetings + 1 } else { 0 };
        if self.meetings == MEETINGS_MAX {
            self.meetings = 0;
            // Where it is refused, the thread works on as before.
            let _ = step_aside(own_cpu);
        }
    }
}

/// The CPU on which the calling thread runs, if the system says.
pub fn own_cpu() -> Option<usize> {
    // The function of rustix panics where the kernel lends none for it, as User Mode Linux.
    sched_getcpu().ok()
}

/// Moves the calling thread from this CPU to another one, if it may use one; it may come back
/// later.
///
/// # Errors
/// The system refuses to move it.
pub fn step_aside(cpu: usize) -> rustix::io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let mut others = allowed;
    others.unset(cpu);
    if others.count() == 0 {
        return Ok(());
    }
    sched_setaffinity(None, &others)?;
    sched_setaffinity(None, &allowed)
}

/// Waits for payload between two looks: one costs two system calls.
const WAITS_PER_LOOK: u32 = 4;

/// Looks in a row that found the sender here. Packets that it sent before it moved say nothing.
const MEETINGS_MAX: u32 = 2;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    #[expect(clippy::print_stderr, reason = "a test that cannot run says so")]
    fn a_thread_that_meets_its_sender_moves_and_keeps_its_cpus() {
        let allowed = sched_getaffinity(None).unwrap();
        if allowed.count() < 2 {
            eprintln!("SKIPPED: there is no other CPU to move to");
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = listener.accept().unwrap();
        let socket = OwnedFd::from(receiver.try_clone().unwrap());
        let mut cpu_sharing = CpuSharing::default();
        // This thread is the sender too. Other work may move it in between, so that one try is not
        // enough.
        let has_moved = (0..100).any(|_| {
            let cpu = sched_getcpu().unwrap();
            for _ in 0..WAITS_PER_LOOK * MEETINGS_MAX {
                sender.write_all(&[0; 64]).unwrap();
                receiver.read_exact(&mut [0; 64]).unwrap();
                cpu_sharing.avoid(&socket);
            }
            sched_getcpu().unwrap() != cpu
        });
        assert!(has_moved);
        assert_eq!(sched_getaffinity(None).unwrap(), allowed);
    }
}
