use super::opening::expect_not_open;
use super::reader::Step;
use super::scene::Scene;
use super::stream::Piece;
use super::{Case, Environment};
use crate::{CloseReason, LinkId, Refusal, Transport};

/// How links end, from this side, from the peer's, and from neither.
pub(super) fn cases<E: Environment>() -> Vec<Case<E>> {
    vec![
        Case::new("a close with flush sends what was accepted", flush),
        Case::new("a close without flush gives everything back", no_flush).with_limits(8, 16),
        Case::new(
            "a flush towards a peer that does not read ends",
            stuck_flush,
        )
        .with_limits(8, 16),
        Case::new("a link is closed once", twice),
        Case::new("a stream ends behind its frames", stream_ends),
        Case::new(
            "a stream that ends gives the landing back",
            stream_ends_in_landing,
        ),
        Case::new("a close gives the landing back", landing_back),
        Case::new("the peer closes in a landing", peer_in_landing),
        Case::new("the peer closes in a head", peer_in_head),
        Case::new("the peer closes while frames wait", peer_while_sending).with_limits(8, 16),
        Case::new("the peer closes an idle link", peer_idle),
        Case::new("the peer closes at each byte of a frame", peer_at_each_byte),
        Case::new("a pause keeps what came before the end", end_in_pause),
        Case::new("a link that breaks gives everything back", broken).with_limits(8, 16),
    ]
}

fn flush<E: Environment>(scene: &mut Scene<'_, E>) {
    let links = scene.open(&[], &[]);
    let size = scene.bounds.landing_bytes_max.min(10_000);
    for _ in 0..20 {
        scene.send(0, links[0], &[Piece::Copied(32), Piece::Spliced(size)]);
    }
    scene.transport(0).close(links[0], true);
    expect_not_open(scene, 0, links[0], "that is flushing");
    both_closed(scene, links);
    let (near, far) = (scene.end(0, links[0]), scene.end(1, links[1]));
    scene.check(near.frames_lost == 0, "a flush lost frames");
    scene.check(
        far.read_bytes == near.written_bytes,
        "the peer has not read all that was flushed",
    );
    scene.check(
        near.closed == Some(CloseReason::Local) && far.closed == Some(CloseReason::EndOfStream),
        "a flush must end as closed by this side here, and as the end of the stream there",
    );
}

fn no_flush<E: Environment>(scene: &mut Scene<'_, E>) {
    let links = stuffed(scene);
    let accepted = scene.in_flight(0) + scene.end(0, links[0]).frames_done;
    scene.transport(0).close(links[0], false);
    scene.until_closed(0, links[0]);
    let end = scene.end(0, links[0]);
    scene.check(
        end.frames_done + end.frames_lost == accepted,
        "not every frame came back",
    );
    scene.check(
        end.frames_lost > 0 || scene.bounds.peers_fetch,
        "frames left that had no room",
    );
    scene.check(
        end.closed == Some(CloseReason::Local),
        "the reason must be that this side closed it",
    );
    scene.resume(1, links[1]);
    scene.until_closed(1, links[1]);
    let (near, far) = (scene.end(0, links[0]), scene.end(1, links[1]));
    scene.check(
        far.read_bytes < near.written_bytes && far.closed != Some(CloseReason::Local),
        "the peer read frames that were given back as lost",
    );
}

fn stuck_flush<E: Environment>(scene: &mut Scene<'_, E>) {
    let links = stuffed(scene);
    scene.transport(0).close(links[0], true);
    scene.until_closed(0, links[0]);
    let end = scene.end(0, links[0]);
    scene.check(
        end.frames_lost > 0 || scene.bounds.peers_fetch,
        "frames left that had no room",
    );
}

fn twice<E: Environment>(scene: &mut Scene<'_, E>) {
    for flushes in [[false, false], [true, false], [false, true], [true, true]] {
        let links = scene.open(&[], &[]);
        scene.send(0, links[0], &[Piece::Copied(100)]);
        for flush in flushes {
            scene.transport(0).close(links[0], flush);
        }
        scene.until_closed(0, links[0]);
        scene.transport(0).close(links[0], false);
        scene.until_closed(1, links[1]);
        scene.turns(10);
    }
}

fn stream_ends<E: Environment>(scene: &mut Scene<'_, E>) {
    for close in [None, Some(true), Some(false)] {
        let links = scene.open(&[], &[]);
        let size = scene.bounds.landing_bytes_max.min(10_000);
        for _ in 0..20 {
            scene.send(0, links[0], &[Piece::Copied(32), Piece::Spliced(size)]);
        }
        scene.transport(0).end_stream(links[0]);
        expect_no_frames(scene, links[0]);
        scene.until_closed(1, links[1]);
        if let Some(flush) = close {
            scene.transport(0).close(links[0], flush);
        }
        scene.transport(0).end_stream(links[0]);
        both_closed(scene, links);
        let (near, far) = (scene.end(0, links[0]), scene.end(1, links[1]));
        scene.check(
            near.frames_lost == 0 && far.read_bytes == near.written_bytes,
            "the peer has not read all that was accepted before the end",
        );
        scene.check(
            far.closed == Some(CloseReason::EndOfStream),
            "the peer must see the end of the stream",
        );
    }
}

fn stream_ends_in_landing<E: Environment>(scene: &mut Scene<'_, E>) {
    for (size, sent) in [(100, 40), (50_000, 0), (50_000, 20_000)] {
        let links = scene.open(&[Step::Land(size)], &[]);
        if sent > 0 {
            scene.send(1, links[1], &[Piece::Spliced(sent)]);
            scene.until("the frame has left", |scene| {
                scene.end(1, links[1]).frames_done == 1
            });
            scene.turns(3);
        }
        scene.transport(0).end_stream(links[0]);
        both_closed(scene, links);
        let near = scene.end(0, links[0]);
        scene.check(
            (near.landings_lost, near.landings_done) == (1, 0),
            "the landing is not back, or full",
        );
    }
}

/// A link whose stream ends takes no further frame.
fn expect_no_frames<E: Environment>(scene: &mut Scene<'_, E>, link: LinkId) {
    let frame = scene.frame(0, link, &[Piece::Copied(8)]);
    match scene.transport(0).send(link, frame) {
        Ok(()) => scene.fail("a frame was accepted behind the end of the stream"),
        Err(refused) => scene.check(
            refused.refusal == Refusal::NotOpen,
            "a frame behind the end of the stream must be refused as not open",
        ),
    }
}

fn landing_back<E: Environment>(scene: &mut Scene<'_, E>) {
    for (size, sent) in [(100, 0), (100, 40), (50_000, 0), (50_000, 20_000)] {
        let links = scene.open(&[], &[Step::Land(size)]);
        if sent > 0 {
            scene.send(0, links[0], &[Piece::Spliced(sent)]);
            scene.until("the frame has left", |scene| {
                scene.end(0, links[0]).frames_done == 1
            });
        }
        scene.turns(20);
        scene.transport(1).close(links[1], false);
        both_closed(scene, links);
        let end = scene.end(1, links[1]);
        scene.check(
            end.landings_lost == 1 && end.landings_done == 0,
            "the landing did not come back as lost",
        );
        scene.check(
            end.closed == Some(CloseReason::Local),
            "the reason must be that this side closed it",
        );
    }
}

fn peer_in_landing<E: Environment>(scene: &mut Scene<'_, E>) {
    for (size, sent) in [(100, 40), (50_000, 20_000)] {
        let links = scene.open(&[], &[Step::Land(size)]);
        scene.send(0, links[0], &[Piece::Spliced(sent)]);
        scene.transport(0).close(links[0], true);
        both_closed(scene, links);
        let end = scene.end(1, links[1]);
        scene.check(
            end.landings_lost == 1 && end.landings_done == 0,
            "the landing did not come back as lost",
        );
        scene.check(
            end.closed == Some(CloseReason::EndOfStream),
            "the reason must be the end of the stream",
        );
    }
}

fn peer_in_head<E: Environment>(scene: &mut Scene<'_, E>) {
    let links = scene.open(&[], &[Step::head(100)]);
    scene.send(0, links[0], &[Piece::Copied(99)]);
    scene.transport(0).close(links[0], true);
    both_closed(scene, links);
    let end = scene.end(1, links[1]);
    scene.check(
        end.received_events == 0,
        "a head was shown that was not complete",
    );
    scene.check(
        end.closed == Some(CloseReason::EndOfStream),
        "the reason must be the end of the stream",
    );
}

fn peer_while_sending<E: Environment>(scene: &mut Scene<'_, E>) {
    let links = stuffed(scene);
    let waiting = scene.in_flight(0);
    scene.transport(1).close(links[1], false);
    both_closed(scene, links);
    let (near, far) = (scene.end(0, links[0]), scene.end(1, links[1]));
    scene.check(
        (near.frames_lost > 0 || scene.bounds.peers_fetch) && near.frames_lost <= waiting,
        "the frames that waited did not come back as lost",
    );
    scene.check(
        near.closed != Some(CloseReason::Local) && far.closed == Some(CloseReason::Local),
        "the reasons do not say who closed it",
    );
}

fn peer_idle<E: Environment>(scene: &mut Scene<'_, E>) {
    for flush in [false, true] {
        let links = scene.open(&[], &[]);
        scene.transport(1).close(links[1], flush);
        both_closed(scene, links);
        let reason = scene.end(0, links[0]).closed.clone();
        scene.check(
            reason == Some(CloseReason::EndOfStream),
            "the reason must be the end of the stream",
        );
    }
}

/// Checklist 18: a peer may disappear at any byte of a frame.
fn peer_at_each_byte<E: Environment>(scene: &mut Scene<'_, E>) {
    for bytes in 0..60 {
        let links = scene.open(&[], &[Step::head(32), Step::Land(28), Step::head(32)]);
        if bytes > 0 {
            scene.send(
                0,
                links[0],
                &[Piece::Copied(bytes / 2), Piece::Spliced(bytes - bytes / 2)],
            );
        }
        scene.transport(0).close(links[0], true);
        both_closed(scene, links);
        let end = scene.end(1, links[1]);
        scene.check(
            end.received_events == usize::from(bytes >= 32)
                && end.landings_lost == usize::from(bytes >= 32)
                && end.landings_done == 0
                && end.closed == Some(CloseReason::EndOfStream),
            &format!("cut after {bytes} of 60 bytes: {end:?}"),
        );
    }
}

fn end_in_pause<E: Environment>(scene: &mut Scene<'_, E>) {
    let links = scene.open(&[], &[Step::head(8), Step::Pause]);
    scene.send(0, links[0], &[Piece::Copied(500)]);
    scene.transport(0).close(links[0], true);
    scene.until("the link is paused", |scene| {
        scene.end(1, links[1]).is_paused()
    });
    scene.turns(20);
    scene.check(
        scene.end(1, links[1]).closed.is_none(),
        "a paused link was closed before the bytes it holds were taken",
    );
    scene.resume(1, links[1]);
    both_closed(scene, links);
    let (near, end) = (scene.end(0, links[0]), scene.end(1, links[1]));
    // A link that holds less than the frame may give up the flush before the pause ends.
    let arrived = end.read_bytes == 500 || near.frames_lost == 1;
    scene.check(
        arrived && end.closed == Some(CloseReason::EndOfStream),
        "bytes from before the end of the stream are missing",
    );
}

fn broken<E: Environment>(scene: &mut Scene<'_, E>) {
    let links = stuffed(scene);
    if !scene.sever(links[0]) {
        return;
    }
    scene.until_closed(0, links[0]);
    if scene.end(1, links[1]).closed.is_none() {
        scene.resume(1, links[1]);
    }
    scene.until_closed(1, links[1]);
    for (side, link) in links.into_iter().enumerate() {
        let failed = matches!(scene.end(side, link).closed, Some(CloseReason::Failed(_)));
        scene.check(failed, "the reason must be a failure");
    }
    scene.check(
        scene.end(0, links[0]).frames_lost > 0 || scene.bounds.peers_fetch,
        "the frames that waited did not come back as lost",
    );
}

/// A link whose far end is paused and whose queue at side 0 is full.
fn stuffed<E: Environment>(scene: &mut Scene<'_, E>) -> [LinkId; 2] {
    let links = scene.open(&[], &[Step::Pause]);
    let size = scene.bounds.landing_bytes_max.min(8 << 20);
    let mut refused_in_a_row = 0;
    while refused_in_a_row < 100 {
        let accepted = scene.try_send(0, links[0], &[Piece::Copied(32), Piece::Spliced(size)]);
        refused_in_a_row = if accepted { 0 } else { refused_in_a_row + 1 };
        scene.check(
            scene.end(0, links[0]).frames_done < 100,
            "frames leave for ever although nobody reads them",
        );
        scene.turn();
    }
    links
}

fn both_closed<E: Environment>(scene: &mut Scene<'_, E>, links: [LinkId; 2]) {
    for (side, link) in links.into_iter().enumerate() {
        scene.until_closed(side, link);
    }
}
