//! The suite of transports whose thread can sleep. It uses the real clock and other threads.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::reader::Step;
use super::scene::Scene;
use super::stream::Piece;
use super::{Case, Environment};
use crate::{LinkId, Park, Transport};

/// Plays every case about sleeping.
///
/// # Panics
/// At the first case that fails.
pub fn run<E: Environment>(environment: &mut E)
where
    E::Transport: Park,
{
    for case in cases::<E>() {
        super::play(environment, &case);
    }
}

fn cases<E: Environment>() -> [Case<E>; 9]
where
    E::Transport: Park,
{
    [
        Case::new("a park ends after its timeout", timeout),
        Case::new("bytes end a park", bytes),
        Case::new("a dial and a close end a park", dial_and_close),
        Case::new("no park outlasts what was submitted before it", submitted),
        Case::new("a waker ends the present park", wake_during),
        Case::new("a waker ends the next park", wake_before),
        Case::new("no wake-up is lost", wake_rounds),
        Case::new(
            "the descriptor becomes readable with bytes",
            descriptor_bytes,
        ),
        Case::new(
            "the descriptor becomes readable with a waker",
            descriptor_waker,
        ),
    ]
}

fn timeout<E: Environment>(scene: &mut Scene<'_, E>)
where
    E::Transport: Park,
{
    scene.open(&[], &[]);
    quiet(scene);
    let start = Instant::now();
    let mut parks = 0;
    while start.elapsed() < SHORT {
        let left = SHORT.saturating_sub(start.elapsed());
        park(scene, left);
        scene.turn_side(0);
        parks += 1;
    }
    scene.check(
        parks <= EARLY_RETURNS_MAX,
        &format!("{parks} parks were needed to sleep {SHORT:?}"),
    );
}

fn bytes<E: Environment>(scene: &mut Scene<'_, E>)
where
    E::Transport: Park,
{
    let links = scene.open(&[], &[]);
    for round in 0..ROUNDS {
        quiet(scene);
        let read = scene.end(0, links[0]).read_bytes;
        send_and_leave(scene, links[1], 1 + round * 50);
        park_until(scene, "the frame is read", |scene| {
            scene.end(0, links[0]).read_bytes > read
        });
    }
}

fn dial_and_close<E: Environment>(scene: &mut Scene<'_, E>)
where
    E::Transport: Park,
{
    let (_, address) = scene.listen(0);
    for _ in 0..20 {
        quiet(scene);
        let near = scene.dial(1, address, &[]);
        scene.turn_side(1);
        let start = Instant::now();
        while scene.accepted_count(0) == 0 {
            scene.check(start.elapsed() < PROMPT, "nobody is accepted");
            // The dial may need turns of its own side to get going.
            park(scene, SHORT);
            scene.turn_side(1);
            scene.turn_side(0);
        }
        let far = scene.accept(0, &[]);
        scene.until("the dial succeeds", |scene| scene.end(1, near).connected);
        quiet(scene);
        scene.transport(1).close(near, false);
        let start = Instant::now();
        while scene.end(1, near).closed.is_none() {
            scene.check(start.elapsed() < PROMPT, "a close without flush takes long");
            scene.turn_side(1);
        }
        park_until(scene, "the peer's close is noticed", |scene| {
            scene.end(0, far).closed.is_some()
        });
    }
}

fn submitted<E: Environment>(scene: &mut Scene<'_, E>)
where
    E::Transport: Park,
{
    let links = scene.open(&[Step::head(10), Step::Pause], &[]);
    scene.send(1, links[1], &[Piece::Copied(30)]);
    scene.until("the link is paused", |scene| {
        scene.end(0, links[0]).is_paused()
    });
    quiet(scene);
    scene.resume(0, links[0]);
    park_until(scene, "a resumed link shows what it holds", |scene| {
        scene.end(0, links[0]).read_bytes == 30
    });
    for count in 1..50 {
        quiet(scene);
        scene.send(0, links[0], &[Piece::Spliced(1000)]);
        park_until(scene, "the frame has left", |scene| {
            scene.end(0, links[0]).frames_done == count
        });
    }
    quiet(scene);
    scene.transport(0).close(links[0], true);
    park_until(scene, "the link is closed", |scene| {
        scene.turn_side(1);
        scene.end(0, links[0]).closed.is_some()
    });
}

fn wake_during<E: Environment>(scene: &mut Scene<'_, E>)
where
    E::Transport: Park,
{
    for _ in 0..5 {
        quiet(scene);
        let woken = Arc::new(AtomicU32::new(0));
        let (waker, flag) = (scene.transport(0).waker(), Arc::clone(&woken));
        let thread = thread::spawn(move || {
            thread::sleep(SHORT);
            flag.store(1, Ordering::Release);
            waker.wake_by_ref();
        });
        park_until(scene, "the waker is used", |_| {
            woken.load(Ordering::Acquire) == 1
        });
        join(scene, thread);
    }
}

fn wake_before<E: Environment>(scene: &mut Scene<'_, E>)
where
    E::Transport: Park,
{
    for times in 1..5 {
        quiet(scene);
        let waker = scene.transport(0).waker();
        for _ in 0..times {
            waker.wake_by_ref();
        }
        park(scene, LONG);
        scene.turn_side(0);
    }
    // The wake-ups of the last round are used up by now, so this one sleeps.
    scene.turns(10);
    timeout(scene);
}

fn wake_rounds<E: Environment>(scene: &mut Scene<'_, E>)
where
    E::Transport: Park,
{
    let waker = scene.transport(0).waker();
    let (asked, answered) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let thread = {
        let (asked, answered) = (Arc::clone(&asked), Arc::clone(&answered));
        thread::spawn(move || {
            for round in 1..=WAKE_ROUNDS {
                let start = Instant::now();
                while asked.load(Ordering::Acquire) < round {
                    if start.elapsed() > LONG {
                        return;
                    }
                    thread::yield_now();
                }
                answered.store(round, Ordering::Release);
                waker.wake_by_ref();
            }
        })
    };
    for round in 1..=WAKE_ROUNDS {
        asked.store(round, Ordering::Release);
        park_until(scene, "the waker is used", |_| {
            answered.load(Ordering::Acquire) == round
        });
    }
    join(scene, thread);
}

fn descriptor_bytes<E: Environment>(scene: &mut Scene<'_, E>)
where
    E::Transport: Park,
{
    let links = scene.open(&[], &[]);
    for round in 0..ROUNDS {
        quiet(scene);
        let read = scene.end(0, links[0]).read_bytes;
        // Bytes come before the preparation in even rounds, after it in odd ones.
        let early = round % 2 == 0;
        if early {
            send_and_leave(scene, links[1], 100);
        }
        let descriptor = prepare(scene);
        if !early {
            send_and_leave(scene, links[1], 100);
        }
        wait_readable(scene, descriptor);
        let start = Instant::now();
        while scene.end(0, links[0]).read_bytes == read {
            scene.check(
                start.elapsed() < PROMPT,
                "bytes do not arrive after the descriptor was readable",
            );
            scene.turn_side(0);
        }
    }
}

fn descriptor_waker<E: Environment>(scene: &mut Scene<'_, E>)
where
    E::Transport: Park,
{
    for round in 0..ROUNDS {
        quiet(scene);
        let waker = scene.transport(0).waker();
        if round % 2 == 0 {
            waker.wake_by_ref();
        }
        let descriptor = prepare(scene);
        let thread = thread::spawn(move || waker.wake());
        wait_readable(scene, descriptor);
        join(scene, thread);
        scene.turn_side(0);
    }
    let links = scene.open(&[], &[]);
    super::opening::exchange(scene, links);
}

/// Parks side 0, and turns it after each park, until something holds.
fn park_until<E: Environment>(
    scene: &mut Scene<'_, E>,
    what: &str,
    mut holds: impl FnMut(&mut Scene<'_, E>) -> bool,
) where
    E::Transport: Park,
{
    let start = Instant::now();
    while !holds(scene) {
        scene.check(
            start.elapsed() < LONG,
            &format!("parked in vain until {what}"),
        );
        park(scene, LONG);
        scene.turn_side(0);
    }
}

/// Parks side 0 once, and checks that the sleep ended in time.
fn park<E: Environment>(scene: &mut Scene<'_, E>, timeout: Duration)
where
    E::Transport: Park,
{
    let start = Instant::now();
    if let Err(error) = scene.transport(0).park(Some(timeout)) {
        scene.fail(&format!("cannot park: {error}"));
    }
    let slept = start.elapsed();
    scene.check(
        slept < PROMPT,
        &format!("a park with a timeout of {timeout:?} took {slept:?}"),
    );
}

/// Prepares side 0 for sleep. The descriptor is a duplicate, so that the scene can go on.
fn prepare<E: Environment>(scene: &mut Scene<'_, E>) -> Option<OwnedFd>
where
    E::Transport: Park,
{
    let descriptor = scene.transport(0).park_fd()?;
    match descriptor.try_clone_to_owned() {
        Ok(duplicate) => Some(duplicate),
        Err(error) => scene.fail(&format!("cannot duplicate a descriptor: {error}")),
    }
}

/// Waits until a prepared descriptor says that the sleep is over, and ends the preparation.
fn wait_readable<E: Environment>(scene: &mut Scene<'_, E>, descriptor: Option<OwnedFd>)
where
    E::Transport: Park,
{
    let Some(descriptor) = descriptor else {
        return;
    };
    let timeout = Timespec {
        tv_sec: PROMPT.as_secs() as i64,
        tv_nsec: 0,
    };
    let ready = poll(
        &mut [PollFd::new(&descriptor, PollFlags::IN)],
        Some(&timeout),
    );
    scene.check(ready == Ok(1), "the descriptor did not become readable");
    scene.transport(0).unpark();
}

/// Turns until there is nothing left to do.
fn quiet<E: Environment>(scene: &mut Scene<'_, E>) {
    scene.turns(20);
}

/// Sends a frame from side 1 and turns that side until the frame has left.
fn send_and_leave<E: Environment>(scene: &mut Scene<'_, E>, link: LinkId, bytes: usize) {
    let done = scene.end(1, link).frames_done;
    scene.send(1, link, &[Piece::Spliced(bytes)]);
    let start = Instant::now();
    while scene.end(1, link).frames_done == done {
        scene.check(start.elapsed() < PROMPT, "a small frame does not leave");
        scene.turn_side(1);
    }
}

fn join<E: Environment>(scene: &Scene<'_, E>, thread: thread::JoinHandle<()>) {
    if thread.join().is_err() {
        scene.fail("a thread of the case panicked");
    }
}

/// How long a park may take that something should end.
const PROMPT: Duration = Duration::from_secs(5);

/// A timeout that should not be reached.
const LONG: Duration = Duration::from_secs(20);

const SHORT: Duration = Duration::from_millis(30);

/// A park may return though nothing happened, but not always.
const EARLY_RETURNS_MAX: usize = 50;

const ROUNDS: usize = 100;

const WAKE_ROUNDS: u32 = 1000;
