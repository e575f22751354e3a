//! Ranks that are lost: who has gone, and who says why the group is over.

use grpcxx_rpc::{Code, Reason, Status};

use super::outbox::Outbox;

/// Why nothing comes from a rank any more.
pub(super) struct Lost {
    pub(super) status: Status,
    how: How,
}

/// How a rank is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// It has said why the group is over.
    Verdict,
    /// It has left, and so has taken all that it needs.
    Left,
    /// It has died, or stopped.
    Gone,
}

impl Lost {
    /// What this rank, `own`, has asked of another one has failed. How groups fail has codes of its
    /// own: with one of them the rank says itself why the group is over.
    pub(super) fn of(name: &str, own: &str, status: Status) -> Self {
        if !is_gone(&status) {
            let how = match *status.message == *left(name) {
                true => How::Left,
                false => How::Verdict,
            };
            return Self { status, how };
        }
        let text = match status.reason {
            // It answers, and so stops in order; what it said of that may come later than this.
            Reason::Peer => format!("{}: {status}", left(name)),
            Reason::Stopping => format!("the engine of {own} stops: {status}"),
            _ => format!("{name} has died, or left without a word: {status}"),
        };
        Self {
            status: Status::new(Code::Aborted, text).because(status.reason),
            how: How::Gone,
        }
    }

    /// A rank was lost that no operation here waits for. That ends the group if it has ended for
    /// that rank, since others may learn it only from here; or if that rank has yet to take what
    /// an operation has sent it, which nobody would wait for otherwise.
    pub(super) fn ends_group(self, outbox: &Outbox, from: u32) -> Result<(), Status> {
        match self.how {
            How::Verdict => Err(self.status),
            How::Gone if outbox.owes(from) => Err(self.status),
            How::Gone | How::Left => Ok(()),
        }
    }
}

/// Whether a rank that has failed so has died or stopped, and hears nothing any more.
pub(super) fn is_gone(status: &Status) -> bool {
    let is_over = matches!(
        status.code,
        Code::Aborted | Code::InvalidArgument | Code::DeadlineExceeded | Code::DataLoss
    );
    !is_over || status.reason != Reason::Peer
}

/// What a rank says that has left.
pub(super) fn left(name: &str) -> String {
    format!("{name} has left the group")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_lost_is_named_and_not_the_other() {
        let text = |reason| {
            let status = Status::new(Code::Unavailable, "why").because(reason);
            let lost = Lost::of("rank 0 (there:1)", "rank 1 (here:1)", status);
            lost.status.message.into_owned()
        };
        let died = text(Reason::ConnectionLost);
        assert!(died.starts_with("rank 0 (there:1) has died"), "{died}");
        let stopped = text(Reason::Stopping);
        assert!(
            stopped.starts_with("the engine of rank 1 (here:1) stops"),
            "{stopped}"
        );
        let left = text(Reason::Peer);
        assert!(left.starts_with("rank 0 (there:1) has left"), "{left}");
    }
}
