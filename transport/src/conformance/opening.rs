use grpcxx_memory::BufferMut;

use super::scene::Scene;
use super::stream::Piece;
use super::{Case, Environment};
use crate::{CloseReason, Frame, Landing, LinkId, Next, Refusal, Transport};

/// Listening, dialling, adopting, and the ids of links.
pub(super) fn cases<E: Environment>() -> Vec<Case<E>> {
    vec![
        Case::new("listen, dial and adopt on a free port", free_port),
        Case::new("a dial that nobody answers fails", refused_dial),
        Case::new("a dial can be closed at once", dial_closed),
        Case::new("nothing can be sent before the dial succeeds", early_send),
        Case::new("an accepted connection that is dropped closes", dropped),
        Case::new("unlisten stops new links and keeps old ones", unlisten),
        Case::new("ids of links that are gone do nothing", stale_ids),
        Case::new("the limit of links holds for dials", dial_limit)
            .with_limits(8, LINKS_OF_LIMIT_CASES),
        Case::new("the limit of links holds for adoptions", adopt_limit)
            .with_limits(8, LINKS_OF_LIMIT_CASES),
    ]
}

fn free_port<E: Environment>(scene: &mut Scene<'_, E>) {
    let (listener, address) = scene.listen(1);
    scene.check(address.port() != 0, "the address in use has port 0");
    let (other, other_address) = scene.listen(1);
    scene.check(
        listener != other && address != other_address,
        "two listeners share an id or an address",
    );
    let near = scene.dial(0, other_address, &[]);
    scene.until("the connection is accepted", |scene| {
        scene.accepted_count(1) > 0
    });
    let at = scene.reader(1).accepted.front().map(|(id, _, _)| *id);
    scene.check(at == Some(other), "accepted at the wrong listener");
    let far = scene.accept(1, &[]);
    scene.until("the dial succeeds", |scene| scene.end(0, near).connected);
    scene.join(near, far);
    exchange(scene, [near, far]);
}

fn refused_dial<E: Environment>(scene: &mut Scene<'_, E>) {
    let (listener, address) = scene.listen(1);
    scene.transport(1).unlisten(listener);
    scene.turns(20);
    let link = scene.dial(0, address, &[]);
    scene.until_closed(0, link);
    let end = scene.end(0, link);
    scene.check(!end.connected, "a dial that failed was connected");
    let failed = matches!(&end.closed, Some(CloseReason::Failed(error)) if !error.operation.is_empty() && !error.message.is_empty());
    scene.check(failed, "the reason does not say what failed, and why");
}

fn dial_closed<E: Environment>(scene: &mut Scene<'_, E>) {
    let (_, address) = scene.listen(1);
    for flush in [false, true] {
        let link = scene.dial(0, address, &[]);
        scene.transport(0).close(link, flush);
        scene.until_closed(0, link);
        let end = scene.end(0, link);
        scene.check(!end.connected, "connected after it was closed");
        scene.check(
            end.closed == Some(CloseReason::Local),
            "the reason must be that this side closed it",
        );
    }
}

fn early_send<E: Environment>(scene: &mut Scene<'_, E>) {
    let (_, address) = scene.listen(1);
    let near = scene.dial(0, address, &[]);
    expect_not_open(scene, 0, near, "before the dial succeeded");
    let far = scene.accept(1, &[]);
    scene.until("the dial succeeds", |scene| scene.end(0, near).connected);
    scene.join(near, far);
    exchange(scene, [near, far]);
}

fn dropped<E: Environment>(scene: &mut Scene<'_, E>) {
    let (_, address) = scene.listen(1);
    let link = scene.dial(0, address, &[]);
    scene.until("the connection is accepted", |scene| {
        scene.accepted_count(1) > 0
    });
    scene.reader(1).accepted.clear();
    scene.until_closed(0, link);
    let reason = scene.end(0, link).closed.clone();
    scene.check(
        reason != Some(CloseReason::Local),
        "the peer dropped the connection, but the reason says this side",
    );
}

fn unlisten<E: Environment>(scene: &mut Scene<'_, E>) {
    let (listener, address) = scene.listen(1);
    let near = scene.dial(0, address, &[]);
    let far = scene.accept(1, &[]);
    scene.until("the dial succeeds", |scene| scene.end(0, near).connected);
    scene.join(near, far);
    scene.transport(1).unlisten(listener);
    scene.turns(20);
    let late = scene.dial(0, address, &[]);
    scene.until_closed(0, late);
    scene.check(scene.accepted_count(1) == 0, "accepted after unlisten");
    exchange(scene, [near, far]);
    scene.transport(1).unlisten(listener);
}

fn stale_ids<E: Environment>(scene: &mut Scene<'_, E>) {
    let never = LinkId {
        slot: 3_000_000,
        generation: 7,
    };
    expect_not_open(scene, 0, never, "that never was");
    let mut stale = Vec::new();
    for round in 0..10 {
        let links = scene.open(&[], &[]);
        for old in &stale {
            expect_not_open(scene, 0, *old, "that is gone");
            scene.transport(0).close(*old, round % 2 == 0);
        }
        exchange(scene, links);
        scene.transport(0).close(links[0], false);
        expect_not_open(scene, 0, links[0], "that is closing");
        scene.until_closed(0, links[0]);
        scene.until_closed(1, links[1]);
        stale.push(links[0]);
    }
}

fn dial_limit<E: Environment>(scene: &mut Scene<'_, E>) {
    let (_, address) = scene.listen(1);
    let links: Vec<LinkId> = (0..LINKS_OF_LIMIT_CASES)
        .map(|_| scene.dial(0, address, &[]))
        .collect();
    let refused = scene.transport(0).connect(address).is_err();
    scene.check(refused, "a link more than the limit was dialled");
    scene.transport(0).close(links[0], false);
    scene.until_closed(0, links[0]);
    scene.dial(0, address, &[]);
}

fn adopt_limit<E: Environment>(scene: &mut Scene<'_, E>) {
    let (_, address) = scene.listen(1);
    for _ in 1..LINKS_OF_LIMIT_CASES {
        scene.open(&[], &[]);
    }
    // One link of side 1's limit is used by a dial of its own.
    let (_, back) = scene.listen(0);
    scene.dial(1, back, &[]);
    let link = scene.dial(0, address, &[]);
    scene.until("a connection is accepted", |scene| {
        scene.accepted_count(1) > 0
    });
    let accepted = scene.reader(1).accepted.pop_front();
    if let Some((_, _, accepted)) = accepted {
        let adopted = scene
            .transport(1)
            .adopt(accepted, Next::Head { at_least_bytes: 1 });
        scene.check(adopted.is_err(), "a link more than the limit was adopted");
    }
    scene.until_closed(0, link);
}

/// A small frame each way, and back.
pub(super) fn exchange<E: Environment>(scene: &mut Scene<'_, E>, links: [LinkId; 2]) {
    for side in [0, 1] {
        scene.send(side, links[side], &[Piece::Copied(10), Piece::Spliced(20)]);
    }
    scene.until("a frame went each way", |scene| {
        scene.is_drained(0, links) && scene.is_drained(1, links)
    });
}

/// Checks that a link that is not open takes nothing and hands everything back.
pub(super) fn expect_not_open<E: Environment>(
    scene: &mut Scene<'_, E>,
    side: usize,
    link: LinkId,
    which: &str,
) {
    let mut frame = Box::new(Frame::new());
    frame.bytes_mut().extend_from_slice(b"unwanted");
    frame.token = 99;
    match scene.transport(side).send(link, frame) {
        Ok(()) => scene.fail(&format!("a link {which} accepted a frame")),
        Err(refused) => {
            scene.check(
                refused.refusal == Refusal::NotOpen,
                &format!("a link {which} refused a frame as: {}", refused.refusal),
            );
            scene.check(
                refused.value.bytes() == b"unwanted",
                "the refused frame came back changed",
            );
        }
    }
    match scene.transport(side).resume(link, Next::Pause) {
        Ok(()) => scene.fail(&format!("a link {which} could be resumed")),
        Err(refused) => scene.check(
            refused.refusal == Refusal::NotOpen,
            &format!("a link {which} refused to resume as: {}", refused.refusal),
        ),
    }
}

/// Checks that a link that is not paused cannot be resumed.
pub(super) fn expect_not_paused<E: Environment>(
    scene: &mut Scene<'_, E>,
    side: usize,
    link: LinkId,
) {
    let next = Next::Land(Landing::new(BufferMut::zeroed(3)));
    match scene.transport(side).resume(link, next) {
        Ok(()) => scene.fail("a link that was not paused could be resumed"),
        Err(refused) => {
            scene.check(
                refused.refusal == Refusal::WrongState,
                &format!("a link that was not paused refused as: {}", refused.refusal),
            );
            scene.check(
                matches!(refused.value, Next::Land(_)),
                "the refused order came back changed",
            );
        }
    }
}

const LINKS_OF_LIMIT_CASES: usize = 3;
