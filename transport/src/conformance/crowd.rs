use super::reader::Step;
use super::scene::Scene;
use super::stream::Piece;
use super::{Case, Environment};
use crate::{LinkId, Transport};

/// Many links at once.
pub(super) fn cases<E: Environment>() -> Vec<Case<E>> {
    vec![
        Case::new("many links at once", many_links),
        Case::new("turns are bounded", bounded_turns),
        Case::new("links come and go", come_and_go),
        Case::new("random scripts on several links", random_scripts).with_limits(16, 64),
    ]
}

fn many_links<E: Environment>(scene: &mut Scene<'_, E>) {
    let count = scene.bounds.links_max.min(200);
    let size = scene.bounds.landing_bytes_max.min(9000);
    let links: Vec<_> = (0..count)
        .map(|_| scene.open(&[], &[Step::head(16), Step::Land(size)]))
        .collect();
    for pair in &links {
        scene.send(0, pair[0], &[Piece::Copied(16), Piece::Spliced(size)]);
        scene.send(1, pair[1], &[Piece::Spliced(700)]);
    }
    scene.until("all links have read everything", |scene| {
        links
            .iter()
            .all(|pair| scene.is_drained(0, *pair) && scene.is_drained(1, *pair))
    });
    for pair in links.iter().step_by(2) {
        scene.transport(0).close(pair[0], false);
    }
    for pair in links.iter().step_by(2) {
        scene.until_closed(1, pair[1]);
    }
    for pair in links.iter().skip(1).step_by(2) {
        scene.check(
            scene.end(0, pair[0]).closed.is_none(),
            "a link was closed that nobody closed",
        );
    }
}

/// No turn may have more events than the environment's bound; the scene checks each of them.
fn bounded_turns<E: Environment>(scene: &mut Scene<'_, E>) {
    let count = scene.bounds.links_max.min(50);
    let frames = EVENTS / count;
    let steps = vec![Step::head(32); frames];
    let links: Vec<_> = (0..count).map(|_| scene.open(&[], &steps)).collect();
    for _ in 0..frames {
        for pair in &links {
            scene.send(0, pair[0], &[Piece::Copied(32)]);
        }
    }
    scene.until("all frames are read and came back", |scene| {
        links
            .iter()
            .all(|pair| scene.is_drained(0, *pair) && scene.end(0, pair[0]).frames_done == frames)
    });
}

fn come_and_go<E: Environment>(scene: &mut Scene<'_, E>) {
    for round in 0..100 {
        let links = scene.open(&[], &[Step::head(10), Step::Land(100)]);
        scene.send(0, links[0], &[Piece::Copied(10), Piece::Spliced(50)]);
        let side = round % 2;
        scene.transport(side).close(links[side], round % 4 < 2);
        for (side, link) in links.into_iter().enumerate() {
            scene.until_closed(side, link);
        }
    }
}

fn random_scripts<E: Environment>(scene: &mut Scene<'_, E>) {
    let mut random = fastrand::Rng::with_seed(scene.bounds.seed);
    let land_max = scene.bounds.landing_bytes_max.min(60_000);
    let links: Vec<_> = (0..4)
        .map(|_| {
            let scripts = [(); 2].map(|()| script(&mut random, land_max));
            scene.open(&scripts[0], &scripts[1])
        })
        .collect();
    let mut frames_left = [150; 8];
    scene.until("all frames are sent and read", |scene| {
        for (index, left) in frames_left.iter_mut().enumerate() {
            let (pair, side) = (links[index / 2], index % 2);
            if *left > 0 && random.u8(..) < 128 {
                let pieces: Vec<Piece> = (0..random.usize(..6))
                    .map(|_| piece(&mut random, land_max))
                    .collect();
                *left -= usize::from(scene.try_send(side, pair[side], &pieces));
            }
            if scene.end(side, pair[side]).is_paused() && random.u8(..) < 60 {
                scene.resume(side, pair[side]);
            }
        }
        frames_left.iter().all(|left| *left == 0) && scene.in_flight(0) + scene.in_flight(1) == 0
    });
    for pair in links {
        close_at_random(scene, &mut random, pair);
    }
}

fn close_at_random<E: Environment>(
    scene: &mut Scene<'_, E>,
    random: &mut fastrand::Rng,
    links: [LinkId; 2],
) {
    let side = random.usize(..2);
    scene.transport(side).close(links[side], random.bool());
    for (side, link) in links.into_iter().enumerate() {
        scene.until("the link is closed, if its pauses are ended", |scene| {
            let end = scene.end(side, link);
            if end.is_paused() && end.closed.is_none() {
                let _ = scene.try_resume(side, link);
            }
            scene.end(side, link).closed.is_some()
        });
    }
}

fn script(random: &mut fastrand::Rng, land_max: usize) -> Vec<Step> {
    (0..random.usize(..100))
        .map(|_| match random.u8(..10) {
            0..4 => {
                let ask = random.usize(1..=crate::HEAD_BYTES_MAX);
                Step::Head {
                    ask,
                    take: random.usize(1..=ask),
                }
            }
            4..7 => Step::Land(random.usize(..land_max)),
            7 => Step::Discard {
                bytes: random.u64(..10_000),
                ask: random.usize(1..50),
            },
            _ => Step::Pause,
        })
        .collect()
}

fn piece(random: &mut fastrand::Rng, bytes_max: usize) -> Piece {
    let bytes = match random.u8(..3) {
        0 => random.usize(..40),
        1 => random.usize(..2000),
        _ => random.usize(..bytes_max / 4),
    };
    if random.bool() {
        Piece::Copied(bytes)
    } else {
        Piece::Spliced(bytes)
    }
}

const EVENTS: usize = 10_000;
