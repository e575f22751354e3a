//! Links that begin on a simulated network and migrate to a simulated device.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use grpcxx_rdma::sim::{SimAdapter, SimFabric, SimFabricOptions};
use grpcxx_rdma::{NearPeers, RdmaLinks, RdmaMedium, RdmaOptions};
use grpcxx_transport::conformance::Ledger;
use grpcxx_transport::sim::{SimAccepted, SimNetwork, SimOptions, SimTransport};
use grpcxx_transport::{Frame, HEAD_BYTES_MAX, LinkId, LinkLimits, Migrating, Time, Transport};

use crate::gpu::Gpu;
use crate::talker::{HEAD, Talker};
use crate::world::{host, seeds};

struct Side {
    transport: Ledger<Migrating<SimTransport, RdmaMedium<SimAdapter>>>,
    talker: Talker<SimAccepted>,
}

/// Two hosts, a link between them, and how far it has come.
pub(crate) struct Pair {
    network: SimNetwork,
    fabric: SimFabric,
    sides: [Side; 2],
    links: [LinkId; 2],
    address: SocketAddr,
    now: Time,
    queued_frames: usize,
}

impl Pair {
    pub(crate) fn new(seed: u64, devices: [bool; 2]) -> Self {
        Self::with_room(seed, devices, LinkLimits::default().queued_frames)
    }

    /// Two hosts with room for so many frames on each medium.
    fn with_room(seed: u64, devices: [bool; 2], queued_frames: usize) -> Self {
        let fabric = SimFabricOptions::reliable(seed);
        Self::with(seed, devices, queued_frames, fabric)
    }

    pub(crate) fn with(
        seed: u64,
        devices: [bool; 2],
        queued_frames: usize,
        fabric: SimFabricOptions,
    ) -> Self {
        let limits = LinkLimits {
            queued_frames,
            ..LinkLimits::default()
        };
        let network = SimNetwork::new(SimOptions {
            limits,
            ..SimOptions::reliable(seed)
        });
        let fabric = SimFabric::new(fabric);
        let mut sides = [0, 1].map(|side| {
            let base = network.transport(host(side));
            let mut transport = Migrating::new(base);
            if devices[side] {
                let options = RdmaOptions::default().with(|options| {
                    options.limits = LinkLimits {
                        links: LINKS,
                        ..limits
                    }
                });
                let links = RdmaLinks::new(fabric.adapter(), options);
                let medium = RdmaMedium::new(links, NearPeers::LeaveToBase);
                transport.enable(medium).expect("nothing to watch");
            }
            Side {
                transport: Ledger::new(transport, format!("GRPCXX_SEED={seed}, side {side}")),
                talker: Talker::new(None),
            }
        });
        let address = SocketAddr::new(host(1), 0);
        let (_, address) = sides[1].transport.listen(address).expect("a free port");
        let nowhere = LinkId {
            slot: u32::MAX,
            generation: 0,
        };
        let mut pair = Self {
            network,
            fabric,
            sides,
            links: [nowhere, nowhere],
            address,
            now: Time::ZERO,
            queued_frames,
        };
        pair.dial();
        pair
    }

    /// A new link between the two.
    fn dial(&mut self) {
        let Side { transport, talker } = &mut self.sides[0];
        let near = transport.connect(self.address).expect("a dial");
        talker.links.entry(near).or_default();
        let mut far = None;
        self.links[0] = near;
        while far.is_none() || !self.talk(0).is_open {
            self.turn();
            let Side { transport, talker } = &mut self.sides[1];
            if let Some(accepted) = talker.accepted.pop_front() {
                let link = transport.adopt(accepted, HEAD).expect("there is room");
                talker.links.entry(link).or_default().is_open = true;
                far = Some(link);
            }
        }
        self.links[1] = far.expect("it was adopted");
    }

    pub(crate) fn links_over_rdma(&mut self, side: usize) -> &mut RdmaLinks<SimAdapter> {
        let medium = self.sides[side].transport.inner_mut().medium_mut();
        medium.expect("it has a device").links_mut()
    }

    /// Lets a side send from memory of a GPU.
    pub(crate) fn place_payload(&mut self, side: usize, gpu: Arc<Gpu>) {
        self.sides[side].talker.gpu = Some(gpu);
    }

    fn has_migrated(&mut self, side: usize) -> bool {
        let link = self.links[side];
        let transport = self.sides[side].transport.inner_mut();
        transport.migrated_link(link).is_some()
    }

    /// One frame each way, and time to read them.
    pub(crate) fn exchange(&mut self) {
        assert!(self.send(0, 100) && self.send(1, 100));
        self.until("everything is read", Self::is_drained);
    }

    /// Stops the queue of a link that has moved; returns how long it takes both ends to close.
    fn break_queue(&mut self, side: usize) -> Duration {
        let link = self.links[side];
        let transport = self.sides[side].transport.inner_mut();
        let rdma = *transport.migrated_link(link).expect("it has migrated");
        assert!(self.links_over_rdma(side).break_queue(rdma));
        let start = self.now;
        self.until("both ends are closed", Pair::is_over);
        self.now.since(start)
    }

    fn talk(&self, side: usize) -> &crate::talker::Talk {
        &self.sides[side].talker.links[&self.links[side]]
    }

    fn turn(&mut self) {
        let next = [self.network.next_event_at(), self.fabric.next_event_at()];
        let little = self.now + Duration::from_micros(200);
        let next = next.into_iter().flatten().min().unwrap_or(little);
        self.now = self.now.max(next).min(little);
        for Side { transport, talker } in &mut self.sides {
            transport.turn(self.now, talker);
        }
    }

    /// Lets time go by in which only one side has turns.
    fn wait_alone(&mut self, side: usize, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + Duration::from_secs(1);
            let Side { transport, talker } = &mut self.sides[side];
            for _ in 0..3 {
                transport.turn(self.now, talker);
            }
        }
    }

    pub(crate) fn send(&mut self, side: usize, payload_bytes: usize) -> bool {
        let link = self.links[side];
        let Side { transport, talker } = &mut self.sides[side];
        let frame = talker.frame(link, payload_bytes);
        let sent = transport.send(link, frame).is_ok();
        let talk = talker.links.get_mut(&link).expect("known");
        if !sent {
            talk.sent -= 1;
            let there = (talk.sent - talk.left) as usize;
            assert!(there >= self.queued_frames, "{there} frames are no excuse");
        }
        sent
    }

    pub(crate) fn move_over(&mut self) -> bool {
        let Some(offer) = self.sides[1].transport.offer(self.links[1]) else {
            return false;
        };
        self.sides[0].transport.upgrade(self.links[0], &offer);
        true
    }

    /// Reaches the limit of links at the side that is asked, so that it refuses.
    fn fill_far_side(&mut self) {
        let links = self.links_over_rdma(1);
        for _ in 0..LINKS {
            assert!(links.offer().is_ok());
        }
    }

    pub(crate) fn until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let mut turns = 0;
        while !holds(self) {
            self.turn();
            turns += 1;
            assert!(turns < 200_000, "in vain until {what}");
        }
    }

    fn is_over(&self) -> bool {
        (0..2).all(|side| self.talk(side).closed.is_some())
    }

    pub(crate) fn is_drained(&self) -> bool {
        self.talk(0).sent == self.talk(1).read
            && self.talk(1).sent == self.talk(0).read
            && (0..2).all(|side| self.talk(side).left == self.talk(side).sent)
    }

    pub(crate) fn settle(mut self) {
        for (side, link) in self.sides.iter_mut().zip(self.links) {
            side.transport.close(link, false);
        }
        self.until("both ends are closed", Pair::is_over);
        for side in &self.sides {
            side.transport.assert_settled();
        }
        for _ in 0..200 {
            self.turn();
        }
        assert_eq!(self.fabric.queue_count(), 0, "a queue was left behind");
    }
}

#[test]
fn a_stream_moves_between_two_frames_whenever_that_is() {
    for seed in seeds(60) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pair = Pair::new(seed, [true, true]);
        let moves_at = random.usize(..150);
        for step in 0..400 {
            if step == moves_at {
                assert!(pair.move_over());
            }
            if random.bool() {
                let bits = random.u32(..17);
                let size = random.usize(..1 << bits);
                pair.send(random.usize(..2), size);
            }
            for _ in 0..random.usize(..4) {
                pair.turn();
            }
        }
        pair.until("everything is read", Pair::is_drained);
        for side in 0..2 {
            let counters = pair.links_over_rdma(side).counters();
            assert!(
                counters.messages_sent > 0,
                "it did not migrate, GRPCXX_SEED={seed}"
            );
        }
        pair.settle();
    }
}

#[test]
fn a_flush_takes_what_waits_for_the_answer_along() {
    for seed in seeds(40) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pair = Pair::new(seed, [true, true]);
        for _ in 0..random.usize(..5) {
            pair.send(0, 5000);
            pair.turn();
        }
        assert!(pair.move_over());
        for _ in 0..random.usize(..20) {
            pair.turn();
        }
        for _ in 0..random.usize(..10) {
            pair.send(0, 20_000);
        }
        let sent = pair.talk(0).sent;
        pair.sides[0].transport.close(pair.links[0], true);
        pair.until("both ends are closed", Pair::is_over);
        assert_eq!(
            (pair.talk(0).lost, pair.talk(1).read),
            (0, sent),
            "GRPCXX_SEED={seed}"
        );
        pair.settle();
    }
}

/// Neither a peer that asks late, nor one that is too busy to answer for a while, is misunderstood.
#[test]
fn a_link_moves_however_late_the_ends_are() {
    let mut pair = Pair::new(1, [true, true]);
    pair.send(0, 100);
    pair.until("everything is read", Pair::is_drained);
    pair.now = pair.now + Duration::from_secs(3600);
    assert!(pair.move_over());
    pair.wait_alone(0, Duration::from_secs(50));
    for _ in 0..2 {
        assert!(pair.send(0, 100) && pair.send(1, 100));
        pair.until("everything is read", Pair::is_drained);
    }
    for side in 0..2 {
        let counters = pair.links_over_rdma(side).counters();
        assert!(counters.messages_sent > 0, "it did not migrate");
    }
    pair.settle();
}

#[test]
fn a_link_ends_whose_peer_never_answers() {
    let mut pair = Pair::new(1, [true, true]);
    assert!(pair.move_over());
    assert!(pair.send(0, 100));
    pair.wait_alone(0, Duration::from_secs(62));
    let talk = pair.talk(0);
    let reason = talk.closed.as_ref().expect("a minute is over").to_string();
    assert!(reason.contains("did not answer"), "{reason}");
    assert_eq!(talk.lost, 1);
    pair.settle();
}

#[test]
fn a_link_stays_where_one_end_has_no_device() {
    for devices in [[false, true], [true, false], [false, false]] {
        let mut pair = Pair::new(1, devices);
        assert_eq!(pair.move_over(), devices[1]);
        for _ in 0..20 {
            pair.send(0, 3000);
            pair.send(1, 3000);
            pair.turn();
        }
        pair.until("everything is read", Pair::is_drained);
        pair.settle();
    }
}

#[test]
fn a_link_stays_where_the_peer_can_take_no_more() {
    let mut pair = Pair::new(1, [true, true]);
    pair.fill_far_side();
    assert!(pair.move_over());
    for _ in 0..20 {
        pair.send(0, 3000);
        pair.send(1, 3000);
        pair.turn();
    }
    pair.until("everything is read", Pair::is_drained);
    let counters = pair.links_over_rdma(0).counters();
    assert_eq!(counters.messages_sent, 0);
}

#[test]
fn a_device_that_fails_under_a_link_ends_it_and_later_links_stay_on_the_first_medium() {
    let mut pair = Pair::new(1, [true, true]);
    assert!(pair.move_over());
    pair.send(0, 100);
    pair.until("everything is read", Pair::is_drained);
    pair.send(0, 1 << 20);
    pair.turn();
    pair.links_over_rdma(0).adapter_mut().remove();
    pair.until("both ends are closed", |pair| {
        (0..2).all(|side| pair.talk(side).closed.is_some())
    });
    let talk = pair.talk(0);
    assert_eq!((talk.left, talk.lost), (2, 0), "it may have been read");
    pair.settle();
}

/// The next link carries calls at once on the base transport, and moves when RDMA has rested.
#[test]
fn a_link_whose_queue_fails_falls_back_within_50_ms_and_its_successor_moves_later() {
    let mut pair = Pair::new(1, [true, true]);
    assert!(pair.move_over());
    pair.exchange();
    let time = pair.break_queue(0);
    assert!(time < Duration::from_millis(50), "{time:?}");
    assert_eq!(pair.talk(0).failed_over, 1);

    pair.dial();
    assert!(pair.move_over());
    pair.exchange();
    assert!(!pair.has_migrated(0) && !pair.has_migrated(1));
    pair.now = pair.now + Duration::from_secs(11);
    pair.exchange();
    pair.exchange();
    assert!(pair.has_migrated(0) && pair.has_migrated(1));
    pair.settle();
}

#[test]
fn a_side_whose_queue_failed_refuses_until_rdma_has_rested_and_is_asked_again() {
    let mut pair = Pair::new(1, [true, true]);
    assert!(pair.move_over());
    pair.exchange();
    let time = pair.break_queue(1);
    assert!(time < Duration::from_millis(50), "{time:?}");
    assert_eq!(pair.talk(1).failed_over, 1);

    pair.dial();
    assert!(pair.move_over());
    pair.exchange();
    assert!(!pair.has_migrated(0) && !pair.has_migrated(1));
    assert_eq!((pair.talk(0).declined, pair.talk(1).declined), (1, 1));
    pair.now = pair.now + Duration::from_secs(61);
    pair.exchange();
    pair.exchange();
    assert!(pair.has_migrated(0) && pair.has_migrated(1));
    pair.settle();
}

/// The record takes a place among the frames of the base transport, and frames that are held move
/// on one by one.
#[test]
fn a_link_moves_with_room_for_few_frames() {
    for seed in seeds(40) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pair = Pair::with_room(seed, [true, true], random.usize(1..4));
        let moves_at = random.usize(..20);
        for step in 0..40 {
            if step == moves_at {
                assert!(pair.move_over());
            }
            for side in 0..2 {
                // As many as there is room for, so that a record finds none.
                while random.u32(..8) != 0 && pair.send(side, random.usize(..30_000)) {}
            }
            for _ in 0..random.usize(..4) {
                pair.turn();
            }
        }
        pair.until("everything is read", Pair::is_drained);
        assert!(
            pair.has_migrated(0) && pair.has_migrated(1),
            "GRPCXX_SEED={seed}"
        );
        pair.settle();
    }
}

#[test]
fn a_link_whose_peer_refuses_flushes_with_room_for_few_frames() {
    for seed in seeds(40) {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut pair = Pair::with_room(seed, [true, true], random.usize(1..4));
        pair.fill_far_side();
        let (side, other) = [(0, 1), (1, 0)][random.usize(..2)];
        let moves_at = random.usize(..20);
        for step in 0..30 {
            if step == moves_at {
                assert!(pair.move_over());
            }
            while random.u32(..8) != 0 && pair.send(side, random.usize(..30_000)) {}
            pair.turn();
        }
        pair.until("the peer has refused", |pair| pair.talk(1).declined == 1);
        while pair.send(side, random.usize(..30_000)) {}
        let (sent, start) = (pair.talk(side).sent, pair.now);
        pair.sides[side].transport.close(pair.links[side], true);
        pair.until("both ends are closed", Pair::is_over);
        assert_eq!(
            (pair.talk(side).lost, pair.talk(other).read),
            (0, sent),
            "GRPCXX_SEED={seed}"
        );
        let time = pair.now.since(start);
        assert!(
            time < Duration::from_millis(100),
            "{time:?}, GRPCXX_SEED={seed}"
        );
    }
}

/// The side that is asked sees the record and the end of the connection at once.
#[test]
fn a_peer_that_goes_right_behind_its_record_leaves_nothing() {
    let mut pair = Pair::new(1, [true, true]);
    pair.exchange();
    assert!(pair.move_over());
    pair.wait_alone(0, Duration::from_secs(3));
    pair.sides[0].transport.close(pair.links[0], false);
    pair.wait_alone(0, Duration::from_secs(3));
    assert!(pair.talk(0).closed.is_some());
    pair.until("the other end is closed too", Pair::is_over);
    pair.settle();
}

/// The side that has asked sees the answer and the end of the connection at once.
#[test]
fn a_peer_that_goes_right_behind_its_answer_leaves_nothing() {
    let mut pair = Pair::new(1, [true, true]);
    pair.exchange();
    assert!(pair.move_over());
    pair.wait_alone(0, Duration::from_secs(3));
    pair.wait_alone(1, Duration::from_secs(3));
    assert!(pair.has_migrated(1) && !pair.has_migrated(0));
    pair.sides[1].transport.close(pair.links[1], false);
    pair.wait_alone(1, Duration::from_secs(3));
    assert!(pair.talk(1).closed.is_some());
    let start = pair.now;
    pair.until("the other end is closed too", Pair::is_over);
    let time = pair.now.since(start);
    assert!(time < Duration::from_millis(5), "{time:?}");
    pair.settle();
}

#[test]
fn a_close_with_flush_does_not_wait_long_for_an_answer() {
    let mut pair = Pair::new(1, [true, true]);
    pair.exchange();
    assert!(pair.move_over());
    assert!(pair.send(0, 100));
    pair.sides[0].transport.close(pair.links[0], true);
    pair.wait_alone(0, Duration::from_secs(2));
    let talk = pair.talk(0);
    assert_eq!((talk.closed.is_some(), talk.lost), (true, 1));
    pair.settle();
}

/// A peer that asks again before it has read the refusal breaks the protocol, and nothing else.
#[test]
fn a_second_record_before_the_answer_to_the_first_ends_the_link() {
    let mut pair = Pair::new(1, [false, true]);
    let offer = pair.sides[1].transport.offer(pair.links[1]);
    let secret = offer.expect("it has a device")[..16].to_vec();
    // Behind this the answer waits as long as it is not read.
    assert!(pair.send(1, 8 << 20));
    for _ in 0..2 {
        let mut frame = Box::new(Frame::new());
        let mut record = [0; HEAD_BYTES_MAX];
        record[..16].copy_from_slice(&secret);
        frame.bytes_mut().extend_from_slice(&record);
        let Side { transport, talker } = &mut pair.sides[0];
        assert!(transport.send(pair.links[0], frame).is_ok());
        talker.links.get_mut(&pair.links[0]).expect("known").sent += 1;
        pair.wait_alone(0, Duration::from_secs(1));
        pair.wait_alone(1, Duration::from_secs(1));
    }
    pair.until("both ends are closed", Pair::is_over);
    let reason = pair.talk(1).closed.as_ref().expect("closed").to_string();
    assert!(
        reason.contains("before the answer to the last had left"),
        "{reason}"
    );
    pair.settle();
}

/// Links over RDMA that each side may have.
const LINKS: usize = 3;
