//! Real threads that sleep and wake each other: a lost wake-up hangs the test until its time is up.

use std::sync::Arc;
use std::sync::mpsc;
use std::task::Wake;
use std::thread;
use std::time::Duration;

use super::{Inbox, Mesh, Sleeper, doorbell, inbox, mesh};

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

const VALUES: u64 = if cfg!(miri) { 100 } else { 20_000 };
const SHARDS: usize = 3;
const OUTSIDE_THREADS: u64 = 2;
const TIME_LIMIT: Duration = Duration::from_secs(60);

#[test]
fn sleeping_shards_miss_nothing() {
    let (done, results) = mpsc::channel();
    thread::spawn(move || {
        let sums = run();
        done.send(sums).expect("the test waits for the result");
    });
    let sums = results
        .recv_timeout(TIME_LIMIT)
        .expect("a wake-up was lost: shards still sleep");
    let ring_sum = VALUES * (VALUES - 1) / 2;
    let from_shards = ring_sum * (SHARDS as u64 - 1);
    assert_eq!(sums, [from_shards + ring_sum * OUTSIDE_THREADS; SHARDS]);
}

fn run() -> Vec<u64> {
    let (bells, sleepers): (Vec<_>, Vec<_>) = (0..SHARDS).map(|_| doorbell()).unzip();
    let mut meshes = mesh(16, &bells);
    let (senders, inboxes): (Vec<_>, Vec<_>) =
        bells.iter().map(|bell| inbox(8, bell.clone())).unzip();
    let shards: Vec<_> = meshes
        .drain(..)
        .zip(sleepers)
        .zip(inboxes)
        .map(|((mesh, sleeper), inbox)| thread::spawn(move || shard(mesh, sleeper, inbox)))
        .collect();
    let outside: Vec<_> = (0..OUTSIDE_THREADS)
        .map(|_| {
            let senders = senders.clone();
            thread::spawn(move || {
                for mut value in 0..VALUES {
                    for sender in &senders {
                        while let Err(refused) = sender.push(value, drop) {
                            value = refused.value;
                            thread::yield_now();
                        }
                    }
                }
            })
        })
        .collect();
    for thread in outside {
        thread.join().expect("an outside thread ends");
    }
    let sums = shards
        .into_iter()
        .map(|shard| shard.join().expect("a shard ends"));
    sums.collect()
}

fn shard(mut mesh: Mesh<u64>, mut sleeper: Sleeper, mut inbox: Inbox<u64>) -> u64 {
    sleeper.install(Arc::new(Unpark(thread::current())).into());
    let others: Vec<usize> = (0..SHARDS).filter(|shard| *shard != mesh.shard()).collect();
    let mut to_send = vec![0; others.len()];
    let mut to_receive = VALUES * (others.len() as u64 + OUTSIDE_THREADS);
    let mut sum = 0;
    while to_receive > 0 || to_send.iter().any(|next| *next < VALUES) {
        let mut events =
            mesh.drain(4, |_, value| sum += value) + inbox.drain(4, |value| sum += value);
        to_receive -= events as u64;
        let mut is_blocked = false;
        for (target, next) in others.iter().zip(&mut to_send) {
            while *next < VALUES {
                if mesh.send(*target, *next).is_err() {
                    is_blocked = true;
                    break;
                }
                *next += 1;
                events += 1;
            }
        }
        mesh.flush();
        if events == 0 && is_blocked {
            thread::yield_now();
        } else if events == 0 && sleeper.may_sleep(|| !mesh.is_empty() || !inbox.is_empty()) {
            thread::park();
            sleeper.awake();
        }
    }
    sum
}
