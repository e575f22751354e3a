use std::os::fd::OwnedFd;

use grpcxx_transport::{CloseReason, LinkId, Next, Time};

use crate::channel::{Channel, broken};
use crate::link::{Link, Phase};
use crate::segment::Segment;

/// One link: its stream on the medium that it began on, and where that goes on.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    /// The link on the first medium, while it is there.
    pub(crate) base: Option<LinkId>,
    /// Bytes of all frames that the first medium has accepted.
    pub(crate) sent_bytes: u64,
    /// Frames that the first medium has accepted and not given back.
    pub(crate) base_frames: usize,
    /// Bytes of the first medium that the handler is done with.
    taken_bytes: u64,
    order: Order,
    pub(crate) stage: Stage,
}

/// How far a link has come on its way to shared memory.
#[derive(Debug, Default)]
pub(crate) enum Stage {
    /// Nothing was said about it.
    #[default]
    Base,
    /// The dialler may ask, if it knows the secret.
    Offered { secret: u64 },
    /// The acceptor was asked.
    Asked {
        socket: OwnedFd,
        segment: Segment,
        since: Time,
    },
    /// The dialler may switch.
    Welcomed(Channel),
    /// All that is sent goes into shared memory, and what comes is read there from the peer's cut on.
    Moved(Link),
}

/// What the first medium was told to do next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    /// Nothing yet.
    #[default]
    None,
    Head {
        at_least_bytes: usize,
    },
    Land {
        bytes: u64,
    },
    Paused,
}

impl Flow {
    /// Whether the first medium is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.order == Order::Paused
    }

    /// The channel of a flow that has moved.
    pub(crate) fn channel(&mut self) -> Option<&mut Channel> {
        match &mut self.stage {
            Stage::Moved(link) => link.channel.as_mut(),
            Stage::Base | Stage::Offered { .. } | Stage::Asked { .. } | Stage::Welcomed(_) => None,
        }
    }

    /// Whether the handler's orders go to shared memory.
    pub(crate) fn reads_channel(&mut self) -> bool {
        self.channel().is_some_and(|channel| channel.is_open())
    }

    /// Frames that wait in shared memory.
    pub(crate) fn queued_frames(&self) -> usize {
        match &self.stage {
            Stage::Moved(link) => link.queued_frames(),
            Stage::Base | Stage::Offered { .. } | Stage::Asked { .. } | Stage::Welcomed(_) => 0,
        }
    }

    /// Notes that the handler is done with bytes of the first medium.
    pub(crate) fn take(&mut self, bytes: usize) {
        self.taken_bytes += bytes as u64;
    }

    /// Notes that the landing of the last order is full. It may have had bytes before, which are not of the link.
    pub(crate) fn take_landing(&mut self) {
        if let Order::Land { bytes } = self.order {
            self.taken_bytes += bytes;
        }
    }

    /// Divides an order of the handler: returns what the first medium shall do, and lets shared memory do what is
    /// beyond the peer's cut.
    pub(crate) fn steer(&mut self, next: Next) -> Next {
        let taken_bytes = self.taken_bytes;
        if let Some(channel) = self.channel()
            && let Some(cut) = channel.cut()
            && !channel.is_open()
        {
            if taken_bytes == cut {
                channel.open(next);
                return Next::Pause;
            }
            if let Next::Discard {
                bytes,
                then_at_least_bytes,
            } = next
                && taken_bytes < cut
                && bytes >= cut - taken_bytes
            {
                let here_bytes = cut - taken_bytes;
                channel.open(Next::Discard {
                    bytes: bytes - here_bytes,
                    then_at_least_bytes,
                });
                self.taken_bytes = cut;
                return Next::Discard {
                    bytes: here_bytes,
                    then_at_least_bytes,
                };
            }
        }
        self.note(&next);
        self.check_cut();
        next
    }

    /// Notes an order that the first medium has taken.
    pub(crate) fn note(&mut self, next: &Next) {
        self.order = match next {
            Next::Head { at_least_bytes } => Order::Head {
                at_least_bytes: *at_least_bytes,
            },
            Next::Land(landing) => Order::Land {
                bytes: landing.remaining_bytes() as u64,
            },
            Next::Discard {
                bytes,
                then_at_least_bytes,
            } => {
                self.taken_bytes += bytes;
                Order::Head {
                    at_least_bytes: *then_at_least_bytes,
                }
            }
            Next::Pause => Order::Paused,
        };
    }

    /// Lets shared memory take over if all bytes before the peer's cut are dealt with.
    pub(crate) fn try_move(&mut self) {
        let (taken_bytes, order) = (self.taken_bytes, self.order);
        if let Some(channel) = self.channel()
            && !channel.is_open()
            && channel.cut() == Some(taken_bytes)
        {
            match order {
                Order::Head { at_least_bytes } => channel.open(Next::Head { at_least_bytes }),
                Order::Paused => channel.open(Next::Pause),
                Order::None | Order::Land { .. } => {}
            }
        }
        self.check_cut();
    }

    /// Ends the flow if the peer's cut cannot be: it lies between frames, and so never in a landing.
    fn check_cut(&mut self) {
        let needed_bytes = match self.order {
            Order::Land { bytes } => self.taken_bytes + bytes,
            Order::None | Order::Head { .. } | Order::Paused => self.taken_bytes,
        };
        if let Stage::Moved(link) = &mut self.stage
            && let Some(channel) = &link.channel
            && !channel.is_open()
            && channel.cut().is_some_and(|cut| cut < needed_bytes)
        {
            let error = broken("it moved to shared memory within a frame");
            link.phase.end(CloseReason::Failed(error));
        }
    }

    /// Ends a flow whose peer sends on the first medium what should be in shared memory.
    pub(crate) fn fail_stray(&mut self) {
        if let Stage::Moved(link) = &mut self.stage {
            let error = broken("it sends beyond its cut");
            link.phase.end(CloseReason::Failed(error));
        }
    }

    /// Notes that the first medium has given a frame back. Those in shared memory wait for the last of them.
    pub(crate) fn note_sent(&mut self) {
        self.base_frames -= 1;
        if self.base_frames == 0
            && let Some(channel) = self.channel()
        {
            channel.hold(false);
        }
    }

    /// Goes over to shared memory for all that is sent from now on.
    pub(crate) fn switch(&mut self, mut channel: Channel) {
        channel.hold(self.base_frames > 0);
        self.stage = Stage::Moved(Link {
            phase: Phase::Open,
            channel: Some(channel),
        });
    }
}
