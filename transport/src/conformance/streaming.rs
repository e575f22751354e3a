use super::opening::{exchange, expect_not_paused};
use super::reader::Step;
use super::scene::Scene;
use super::stream::Piece;
use super::{Case, Environment};
use crate::HEAD_BYTES_MAX;

/// Heads, landings, discards and pauses; frames of all shapes; full queues.
pub(super) fn cases<E: Environment>() -> Vec<Case<E>> {
    vec![
        Case::new("heads of every size", heads),
        Case::new("heads that are used up in parts", partial_heads),
        Case::new("landings of every size", landings),
        Case::new("landings that let the link go on", landings_beside),
        Case::new("a landing first, a discard first", first_orders),
        Case::new("discards of every size", discards),
        Case::new("frames of thousands of splices", splices),
        Case::new("frames of no bytes", empty_frames),
        Case::new("small frames in a pipeline", pipeline),
        Case::new("both ways at once", both_ways),
        Case::new("a pause after every head", pauses),
        Case::new("only paused links resume", resume_refused),
        Case::new("nothing completes where it is submitted", submission),
        Case::new("a full queue refuses, and other links go on", back_pressure).with_limits(8, 16),
    ]
}

fn heads<E: Environment>(scene: &mut Scene<'_, E>) {
    let steps: Vec<Step> = (1..=HEAD_BYTES_MAX).map(Step::head).collect();
    let links = scene.open(&[], &steps);
    write_in_frames(
        scene,
        0,
        links,
        steps.iter().map(|step| len_of(*step)).sum(),
        &[7, 300, 1],
    );
    check_read(scene, links);
}

fn partial_heads<E: Environment>(scene: &mut Scene<'_, E>) {
    let steps: Vec<Step> = (1..=HEAD_BYTES_MAX)
        .map(|ask| Step::Head {
            ask,
            take: ask.div_ceil(3),
        })
        .collect();
    let links = scene.open(&[], &steps);
    // What the last heads want to see beyond what they take is read by the end of the script.
    let bytes: usize = steps.iter().map(|step| len_of(*step)).sum();
    write_in_frames(scene, 0, links, bytes + HEAD_BYTES_MAX, &[64, 3, 1000]);
    check_read(scene, links);
}

fn landings<E: Environment>(scene: &mut Scene<'_, E>) {
    let sizes = [
        0,
        1,
        2,
        511,
        4096,
        8191,
        8192,
        8193,
        100_000,
        1 << 20,
        16 << 20,
    ];
    let max = scene.bounds.landing_bytes_max;
    let sizes: Vec<usize> = sizes.into_iter().filter(|size| *size <= max).collect();
    let steps: Vec<Step> = (sizes.iter())
        .flat_map(|size| [Step::head(37), Step::Land(*size)])
        .collect();
    let links = scene.open(&[], &steps);
    for size in &sizes {
        scene.send(0, links[0], &[Piece::Copied(37), Piece::Spliced(*size)]);
    }
    check_read(scene, links);
    let end = scene.end(1, links[1]);
    scene.check(
        end.landings_done == sizes.len() && end.landings_lost == 0,
        "not every landing came back full",
    );
}

/// Several landings at a time, between heads, small landings and others that wait.
fn landings_beside<E: Environment>(scene: &mut Scene<'_, E>) {
    let sizes = [
        20_000,
        100_000,
        70_000,
        3_000,
        1 << 20,
        65_536,
        9_000,
        200,
        300_000,
    ];
    let max = scene.bounds.landing_bytes_max;
    let sizes: Vec<usize> = sizes.into_iter().filter(|size| *size <= max).collect();
    let mut steps = Vec::new();
    let mut frames = Vec::new();
    for round in 0..6 {
        for (index, size) in sizes.iter().enumerate() {
            steps.push(Step::head(37));
            steps.push(match (index + round) % 4 {
                3 => Step::Land(*size),
                _ => Step::LandBeside(*size),
            });
            frames.push(vec![Piece::Copied(37), Piece::Spliced(*size)]);
        }
        // A frame without payload, and the head that the last landing lets the link show.
        steps.push(Step::head(37));
        frames.push(vec![Piece::Copied(37)]);
    }
    let links = scene.open(&[], &steps);
    for frame in &frames {
        scene.send(0, links[0], frame);
    }
    check_read(scene, links);
    scene.until("every landing came back", |scene| {
        scene.end(1, links[1]).landings_done == 6 * sizes.len()
    });
}

fn first_orders<E: Environment>(scene: &mut Scene<'_, E>) {
    let first = [
        Step::Land(0),
        Step::Land(1),
        Step::Land(10_000),
        Step::Discard { bytes: 0, ask: 5 },
        Step::Discard {
            bytes: 9000,
            ask: 1,
        },
    ];
    for step in first {
        let links = scene.open(&[step], &[step, Step::Land(0), step]);
        for side in [0, 1] {
            write_in_frames(scene, side, links, 20_000, &[9000, 400]);
        }
        check_read(scene, links);
    }
}

fn discards<E: Environment>(scene: &mut Scene<'_, E>) {
    let sizes = [0, 1, 100, 8192, 70_000];
    let steps: Vec<Step> = (sizes.iter())
        .flat_map(|bytes| {
            [
                Step::Discard {
                    bytes: *bytes,
                    ask: 32,
                },
                Step::Land(50),
            ]
        })
        .collect();
    let links = scene.open(&[], &steps);
    write_in_frames(scene, 0, links, 80_000, &[1000, 17]);
    check_read(scene, links);
}

fn splices<E: Environment>(scene: &mut Scene<'_, E>) {
    let links = scene.open(&[], &[]);
    for count in [1023, 1024, 1025, 5000] {
        let pieces: Vec<Piece> = (0..count)
            .map(|index| match index % 5 {
                0 => Piece::Copied(index % 31),
                _ => Piece::Spliced(1 + index % 60),
            })
            .collect();
        scene.send(0, links[0], &pieces);
        scene.send(0, links[0], &[Piece::Spliced(1)]);
    }
    check_read(scene, links);
}

fn empty_frames<E: Environment>(scene: &mut Scene<'_, E>) {
    let links = scene.open(&[], &[]);
    scene.send(0, links[0], &[]);
    scene.until("an empty frame comes back", |scene| {
        scene.end(0, links[0]).frames_done == 1
    });
    for _ in 0..20 {
        scene.send(0, links[0], &[]);
        scene.send(0, links[0], &[Piece::Copied(33)]);
        scene.send(0, links[0], &[Piece::Copied(0), Piece::Spliced(0)]);
    }
    check_read(scene, links);
    scene.until("all frames came back", |scene| {
        scene.end(0, links[0]).frames_done == 61
    });
}

/// Checklist 06: frames of a link never interleave.
fn pipeline<E: Environment>(scene: &mut Scene<'_, E>) {
    let links = scene.open(&[], &vec![Step::head(32); PIPELINED_FRAMES]);
    for index in 0..PIPELINED_FRAMES {
        let piece = if index % 2 == 0 {
            Piece::Copied(32)
        } else {
            Piece::Spliced(32)
        };
        scene.send(0, links[0], &[piece]);
    }
    check_read(scene, links);
    scene.until("all frames came back", |scene| {
        scene.end(0, links[0]).frames_done == PIPELINED_FRAMES
    });
}

fn both_ways<E: Environment>(scene: &mut Scene<'_, E>) {
    let size = scene.bounds.landing_bytes_max.min(300_000);
    let steps = [Step::head(16), Step::Land(size)].repeat(10);
    let links = scene.open(&steps, &steps);
    for _ in 0..10 {
        for side in [0, 1] {
            scene.send(
                side,
                links[side],
                &[Piece::Copied(16), Piece::Spliced(size)],
            );
        }
    }
    check_read(scene, links);
    for side in [0, 1] {
        scene.check(
            scene.end(side, links[side]).landings_done == 10,
            "not every landing came back",
        );
    }
}

fn pauses<E: Environment>(scene: &mut Scene<'_, E>) {
    let steps = [
        Step::head(32),
        Step::Pause,
        Step::Land(20_000),
        Step::Pause,
        Step::Head { ask: 200, take: 8 },
        Step::Pause,
        Step::Pause,
        Step::Discard { bytes: 60, ask: 1 },
    ];
    let links = scene.open(&[], &[[Step::Pause].as_slice(), &steps.repeat(10)].concat());
    for _ in 0..12 {
        scene.send(0, links[0], &[Piece::Copied(32), Piece::Spliced(20_100)]);
    }
    for _ in 0..41 {
        scene.until("the link is paused", |scene| {
            scene.end(1, links[1]).is_paused()
        });
        let read = scene.end(1, links[1]).read_bytes;
        scene.turns(20);
        let end = scene.end(1, links[1]);
        scene.check(
            end.read_bytes == read && end.is_paused(),
            "a paused link went on",
        );
        scene.resume(1, links[1]);
    }
    check_read(scene, links);
}

fn resume_refused<E: Environment>(scene: &mut Scene<'_, E>) {
    let links = scene.open(&[], &[Step::Land(10)]);
    expect_not_paused(scene, 0, links[0]);
    expect_not_paused(scene, 1, links[1]);
    write_in_frames(scene, 0, links, 30, &[30]);
    check_read(scene, links);
    scene.check(
        scene.end(1, links[1]).landings_done == 1,
        "the landing from before did not come back",
    );
}

fn submission<E: Environment>(scene: &mut Scene<'_, E>) {
    let links = scene.open(&[], &[Step::Pause]);
    for count in 1..=20 {
        let accepted = scene.try_send(0, links[0], &[Piece::Copied(100), Piece::Spliced(100)]);
        let in_flight = scene.in_flight(0);
        scene.check(
            accepted && in_flight == count,
            "a frame is not in flight right after it was accepted",
        );
    }
    scene.resume(1, links[1]);
    check_read(scene, links);
    scene.until("the frames came back", |scene| scene.in_flight(0) == 0);
}

/// Checklist 19: a slow reader stops its own link only.
fn back_pressure<E: Environment>(scene: &mut Scene<'_, E>) {
    let slow = scene.open(&[], &[Step::Pause]);
    let size = scene.bounds.landing_bytes_max.min(8 << 20);
    let pieces = [Piece::Copied(32), Piece::Spliced(size)];
    let mut refused_in_a_row = 0;
    while refused_in_a_row < 300 {
        if scene.try_send(0, slow[0], &pieces) {
            refused_in_a_row = 0;
        } else {
            refused_in_a_row += 1;
        }
        scene.check(
            scene.end(0, slow[0]).frames_done < 100,
            "frames leave for ever although nobody reads them",
        );
        scene.turn();
    }
    scene.check(
        scene.in_flight(0) == 8,
        "the queue is full with another number of frames than its limit",
    );
    let quick = scene.open(&[], &[]);
    for _ in 0..20 {
        exchange(scene, quick);
    }
    scene.check(
        scene.end(1, slow[1]).read_bytes == 0,
        "a paused link was read",
    );
    scene.resume(1, slow[1]);
    check_read(scene, slow);
    scene.until("all frames came back", |scene| scene.in_flight(0) == 0);
}

/// Writes `bytes` bytes from `side` in frames whose sizes repeat.
fn write_in_frames<E: Environment>(
    scene: &mut Scene<'_, E>,
    side: usize,
    links: [crate::LinkId; 2],
    bytes: usize,
    sizes: &[usize],
) {
    let mut left = bytes;
    for size in sizes.iter().cycle() {
        if left == 0 {
            return;
        }
        let size = left.min(*size);
        scene.send(
            side,
            links[side],
            &[Piece::Copied(size / 2), Piece::Spliced(size - size / 2)],
        );
        left -= size;
    }
}

/// Waits until both ends have read what the other has written.
fn check_read<E: Environment>(scene: &mut Scene<'_, E>, links: [crate::LinkId; 2]) {
    scene.until("all that was written is read", |scene| {
        [0, 1].iter().all(|side| {
            scene.end(*side, links[*side]).written_bytes == 0 || scene.is_drained(*side, links)
        })
    });
}

fn len_of(step: Step) -> usize {
    match step {
        Step::Head { take, .. } => take,
        Step::Land(bytes) | Step::LandBeside(bytes) => bytes,
        Step::Discard { bytes, ask } => bytes as usize + ask,
        Step::Pause => 0,
    }
}

const PIPELINED_FRAMES: usize = 10_000;
