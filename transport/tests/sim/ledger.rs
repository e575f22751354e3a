use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use grpcxx_memory::BufferMut;
use grpcxx_transport::sim::{SimAccepted, SimOptions, SimTransport};
use grpcxx_transport::{
    CloseReason, Frame, Landing, LinkHandler, LinkId, ListenerId, Migration, Next, Outcome,
    Progress, Reading, Refusal, Refused, Time, Transport, forward_transport, links_stay,
};

use crate::support::{World, host};

/// How a transport breaks its contracts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sabotage {
    None,
    SwallowSent,
    InventSent,
    SwapSent,
    ReceiveTooLittle,
    ReceiveWhilePaused,
    LandTwice,
    LandHalf,
    CloseTwice,
    CloseUnasked,
    CloseBeforeSent,
    MiscountEvents,
    MiscountFrames,
    RefuseAnotherFrame,
    ConnectTwice,
}

struct Saboteur {
    inner: SimTransport,
    sabotage: Sabotage,
    swallowed: usize,
    kept: Option<Box<Frame>>,
}

impl Transport for Saboteur {
    type Accepted = SimAccepted;

    forward_transport!(inner: listen unlisten adopt connect resume end_stream close submit);
    links_stay!();

    fn name(&self) -> &'static str {
        "saboteur"
    }

    fn send(&mut self, link: LinkId, frame: Box<Frame>) -> Result<(), Refused<Box<Frame>>> {
        if self.sabotage == Sabotage::RefuseAnotherFrame {
            return Err(Refused {
                value: Box::new(Frame::new()),
                refusal: Refusal::Full,
            });
        }
        self.inner.send(link, frame)
    }

    fn turn(&mut self, now: Time, handler: &mut dyn LinkHandler<SimAccepted>) -> usize {
        let mut accomplice = Accomplice {
            sabotage: self.sabotage,
            handler,
            more_events: 0,
            swallowed: &mut self.swallowed,
            kept: &mut self.kept,
        };
        let events = self.inner.turn(now, &mut accomplice) as isize + accomplice.more_events;
        let miscount = self.sabotage == Sabotage::MiscountEvents && events > 0;
        events as usize + usize::from(miscount)
    }

    fn frames_in_flight(&self) -> usize {
        let miscount = self.sabotage == Sabotage::MiscountFrames;
        self.inner.frames_in_flight() + self.swallowed + usize::from(miscount)
    }

    fn reading(&mut self, link: LinkId) -> Option<Reading> {
        self.inner.reading(link)
    }
}

struct Accomplice<'a> {
    sabotage: Sabotage,
    handler: &'a mut dyn LinkHandler<SimAccepted>,
    more_events: isize,
    swallowed: &'a mut usize,
    kept: &'a mut Option<Box<Frame>>,
}

impl LinkHandler<SimAccepted> for Accomplice<'_> {
    fn accepted(&mut self, listener: ListenerId, peer: SocketAddr, accepted: SimAccepted) {
        self.handler.accepted(listener, peer, accepted);
    }

    fn connected(&mut self, link: LinkId) -> Next {
        if self.sabotage == Sabotage::ConnectTwice {
            self.handler.connected(link);
        }
        self.handler.connected(link)
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        if self.sabotage == Sabotage::ReceiveTooLittle {
            return self.handler.received(link, &bytes[..3]);
        }
        let progress = self.handler.received(link, bytes);
        if self.sabotage == Sabotage::ReceiveWhilePaused {
            self.handler.received(link, bytes);
        }
        progress
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        let bytes = landing.filled_bytes();
        match self.sabotage {
            Sabotage::LandHalf => {
                let empty = Landing::new(BufferMut::zeroed(bytes));
                self.handler.landed(link, empty, outcome)
            }
            Sabotage::LandTwice => {
                self.handler.landed(link, landing, outcome);
                let again = Landing::new(BufferMut::zeroed(bytes));
                self.handler.landed(link, again, Outcome::Lost)
            }
            _ => self.handler.landed(link, landing, outcome),
        }
    }

    fn sent(&mut self, link: LinkId, frame: Box<Frame>, outcome: Outcome) {
        match self.sabotage {
            Sabotage::SwallowSent => {
                *self.swallowed += 1;
                self.more_events -= 1;
            }
            Sabotage::InventSent => {
                self.handler.sent(link, frame, outcome);
                self.handler.sent(link, Box::default(), outcome);
            }
            Sabotage::SwapSent if self.kept.is_none() => {
                *self.kept = Some(frame);
                *self.swallowed += 1;
                self.more_events -= 1;
            }
            Sabotage::CloseBeforeSent => {
                self.handler.closed(link, &CloseReason::EndOfStream);
                self.handler.sent(link, frame, outcome);
            }
            Sabotage::CloseUnasked => self.handler.closed(link, &CloseReason::Local),
            _ => self.handler.sent(link, frame, outcome),
        }
    }

    fn closed(&mut self, link: LinkId, reason: &CloseReason) {
        self.handler.closed(link, reason);
        if self.sabotage == Sabotage::CloseTwice {
            self.handler.closed(link, reason);
        }
    }

    fn proven(&mut self, _: LinkId, _: Option<&grpcxx_transport::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

/// Two messages and a close, with a saboteur at the side that dials, or at the one that accepts.
fn play(sabotage: Sabotage, by_dialler: bool) {
    let mut world = World::new(SimOptions::reliable(1), 2, |network, index| Saboteur {
        inner: network.transport(host(index)),
        sabotage: if by_dialler == (index == 0) {
            sabotage
        } else {
            Sabotage::None
        },
        swallowed: 0,
        kept: None,
    });
    let [near, _] = world.open(0, 1);
    for bytes in [1000, 2000] {
        world.nodes[0].say(near, bytes);
    }
    world.run_for(Duration::from_secs(1));
    world.nodes[0].transport.close(near, true);
    world.run_for(Duration::from_secs(1));
    for node in &world.nodes {
        node.transport.assert_settled();
    }
}

#[test]
fn the_ledger_notices_every_broken_contract() {
    play(Sabotage::None, true);
    let table = [
        (
            Sabotage::SwallowSent,
            true,
            "before it gave everything back",
        ),
        (
            Sabotage::InventSent,
            true,
            "the oldest accepted and not given back",
        ),
        (
            Sabotage::SwapSent,
            true,
            "the oldest accepted and not given back",
        ),
        (
            Sabotage::ReceiveTooLittle,
            false,
            "received 3 bytes while it was Open",
        ),
        (Sabotage::ReceiveWhilePaused, false, "with the order Land"),
        (
            Sabotage::LandTwice,
            false,
            "gave a landing of 1000 bytes back",
        ),
        (Sabotage::LandHalf, false, "as done that is not full"),
        (
            Sabotage::CloseTwice,
            true,
            "closed, but there is no such link",
        ),
        (
            Sabotage::CloseUnasked,
            true,
            "before it gave everything back",
        ),
        (
            Sabotage::CloseBeforeSent,
            true,
            "before it gave everything back",
        ),
        (Sabotage::MiscountEvents, true, "but the handler saw"),
        (Sabotage::MiscountFrames, true, "frames are in flight, but"),
        (
            Sabotage::RefuseAnotherFrame,
            true,
            "handed another one back",
        ),
        (Sabotage::ConnectTwice, true, "connected while it was Open"),
    ];
    for (sabotage, by_dialler, expected) in table {
        let panic = catch_unwind(AssertUnwindSafe(|| play(sabotage, by_dialler)))
            .expect_err("the ledger has not noticed");
        let text = panic.downcast_ref::<String>().expect("the ledger's text");
        assert!(
            text.contains(expected) && text.contains("GRPCXX_SEED=1"),
            "{sabotage:?} was noticed as: {text}"
        );
    }
}
