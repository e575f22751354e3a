//! A handler that checks streams of the conformance suite.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use grpcxx_memory::BufferMut;

use super::stream::Stream;
use crate::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress,
};

/// One order of a reader's script.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Wants `ask` bytes shown, uses up the first `take`.
    Head { ask: usize, take: usize },
    /// Wants this many bytes landed.
    Land(usize),
    /// Wants this many bytes landed, and lets the link show the head that comes next before they
    /// are.
    LandBeside(usize),
    /// Drops bytes, then wants `ask` shown, and uses those up.
    Discard { bytes: u64, ask: usize },
    /// Pauses until the scene resumes the link.
    Pause,
}

impl Step {
    /// A head that is used up whole.
    pub(super) fn head(bytes: usize) -> Self {
        Self::Head {
            ask: bytes,
            take: bytes,
        }
    }
}

/// What one end of a link has read and written. Behind its script, a reader takes whatever comes.
#[derive(Debug, Default)]
pub(super) struct End {
    /// Where in the stream this end starts to read.
    pub(super) read_base: u64,
    pub(super) read_bytes: u64,
    /// Where in the stream this end starts to write.
    pub(super) write_base: u64,
    /// Bytes of all frames that were accepted.
    pub(super) written_bytes: u64,
    steps: VecDeque<Step>,
    /// Where landings begin that were ordered with [`Step::LandBeside`] and are not back, oldest
    /// first.
    beside: VecDeque<u64>,
    current: Option<Step>,
    pub(super) connected: bool,
    pub(super) received_events: usize,
    pub(super) landings_done: usize,
    pub(super) landings_lost: usize,
    pub(super) frames_done: usize,
    pub(super) frames_lost: usize,
    pub(super) closed: Option<CloseReason>,
}

/// Plays the scripts of all links of one side and checks every byte that it is shown.
#[derive(Debug)]
pub(super) struct Reader<A> {
    pub(super) label: String,
    pub(super) stream: Stream,
    pub(super) ends: BTreeMap<LinkId, End>,
    pub(super) accepted: VecDeque<(ListenerId, SocketAddr, A)>,
    /// Frames that came back, to be used again.
    #[expect(clippy::vec_box, reason = "links take and return boxes")]
    pub(super) spare: Vec<Box<Frame>>,
}

impl End {
    pub(super) fn new(steps: &[Step]) -> Self {
        Self {
            steps: steps.iter().copied().collect(),
            ..Self::default()
        }
    }

    /// Whether the link waits to be resumed.
    pub(super) fn is_paused(&self) -> bool {
        matches!(self.current, Some(Step::Pause))
    }

    /// Takes the next step of the script as an order to the link.
    pub(super) fn next(&mut self) -> Next {
        self.current = self.steps.pop_front();
        match self.current {
            Some(Step::Head { ask, .. }) => Next::Head {
                at_least_bytes: ask,
            },
            Some(Step::Land(bytes)) => Next::Land(Landing::new(BufferMut::zeroed(bytes))),
            Some(Step::LandBeside(bytes)) => {
                self.beside.push_back(self.read_bytes);
                self.read_bytes += bytes as u64;
                let ask = match self.steps.front() {
                    Some(Step::Head { ask, .. }) => *ask,
                    _ => 1,
                };
                Next::Land(Landing::new(BufferMut::zeroed(bytes)).then_head(ask))
            }
            Some(Step::Discard { bytes, ask }) => {
                self.read_bytes += bytes;
                self.current = Some(Step::head(ask));
                Next::Discard {
                    bytes,
                    then_at_least_bytes: ask,
                }
            }
            Some(Step::Pause) => Next::Pause,
            None => Next::Head { at_least_bytes: 1 },
        }
    }
}

impl<A> Reader<A> {
    fn end(&mut self, link: LinkId) -> &mut End {
        let label = &self.label;
        self.ends
            .get_mut(&link)
            .unwrap_or_else(|| panic!("{label}: an event of {link:?}, which nobody opened"))
    }

    fn verify(&mut self, link: LinkId, bytes: &[u8]) {
        let read_bytes = self.end(link).read_bytes;
        self.verify_at(link, read_bytes, bytes);
    }

    fn verify_at(&mut self, link: LinkId, read_bytes: u64, bytes: &[u8]) {
        let offset = self.end(link).read_base + read_bytes;
        if let Some(index) = self.stream.mismatch(offset, bytes) {
            panic!(
                "{}: {link:?} reads {} bytes from {read_bytes} on, and byte {} is not what was sent",
                self.label,
                bytes.len(),
                read_bytes + index as u64
            );
        }
    }
}

impl<A> LinkHandler<A> for Reader<A> {
    fn accepted(&mut self, listener: ListenerId, peer: SocketAddr, accepted: A) {
        self.accepted.push_back((listener, peer, accepted));
    }

    fn connected(&mut self, link: LinkId) -> Next {
        let end = self.end(link);
        end.connected = true;
        end.next()
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        self.verify(link, bytes);
        let end = self.end(link);
        end.received_events += 1;
        if let Some(Step::LandBeside(_)) = end.current {
            end.next();
        }
        let mut consumed_bytes = 0;
        loop {
            let left = bytes.len() - consumed_bytes;
            let take = match end.current {
                Some(Step::Head { ask, take }) if ask <= left => take,
                Some(Step::Head { ask, .. }) => {
                    let next = Next::Head {
                        at_least_bytes: ask,
                    };
                    return Progress {
                        consumed_bytes,
                        next,
                    };
                }
                _ => left,
            };
            consumed_bytes += take;
            end.read_bytes += take as u64;
            let next = end.next();
            let again = matches!(next, Next::Head { at_least_bytes } if at_least_bytes <= bytes.len() - consumed_bytes);
            if !again {
                return Progress {
                    consumed_bytes,
                    next,
                };
            }
        }
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        let filled = landing.filled_bytes();
        let buffer = landing.into_buffer();
        if let Some(read_bytes) = self.end(link).beside.pop_front() {
            self.verify_at(link, read_bytes, &buffer[..filled]);
            let end = self.end(link);
            end.landings_done += usize::from(outcome == Outcome::Done);
            end.landings_lost += usize::from(outcome == Outcome::Lost);
            return match end.current {
                Some(Step::LandBeside(_)) if outcome == Outcome::Done && end.beside.is_empty() => {
                    end.next()
                }
                // The link has shown more, so this does not count.
                _ => Next::Pause,
            };
        }
        self.verify(link, &buffer[..filled]);
        let end = self.end(link);
        match outcome {
            Outcome::Done => {
                end.landings_done += 1;
                end.read_bytes += filled as u64;
                end.next()
            }
            Outcome::Lost => {
                end.landings_lost += 1;
                Next::Pause
            }
        }
    }

    fn sent(&mut self, link: LinkId, frame: Box<Frame>, outcome: Outcome) {
        let end = self.end(link);
        match outcome {
            Outcome::Done => end.frames_done += 1,
            Outcome::Lost => end.frames_lost += 1,
        }
        self.spare.push(frame);
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason) {
        self.end(link).closed = Some(reason.clone());
    }

    fn proven(&mut self, _: LinkId, _: Option<&crate::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}
