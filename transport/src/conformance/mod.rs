//! One suite for every transport: what the contracts of this crate mean, as cases that run.
//!
//! A transport brings an [`Environment`]: how to make two of them that reach each other, and how
//! time passes. [`run`] then plays all cases, each with fresh transports behind a [`Ledger`], and
//! checks each byte that arrives. [`park::run`] does the same for transports that can sleep. A case
//! that fails panics with the environment's name, its own name, and what happened.

mod books;
mod closing;
mod crowd;
mod ledger;
mod opening;
pub mod park;
mod reader;
mod scene;
mod stream;
mod streaming;

use std::net::SocketAddr;
use std::time::Duration;

pub use books::Tally;
pub use ledger::Ledger;

use crate::{LinkId, LinkLimits, Time, Transport};
use scene::Scene;

/// Where the suite runs.
pub trait Environment {
    /// The transport under test.
    type Transport: Transport;

    /// What is tested, with all that is needed to repeat a failure: `sim, seed 7`.
    fn name(&self) -> String;

    /// Two fresh transports that can reach each other. Earlier ones are gone by then.
    fn pair(&mut self, limits: LinkLimits) -> [Self::Transport; 2];

    /// An address with port 0 on which the transport of this side, 0 or 1, can listen and be
    /// dialled.
    fn address(&self, side: usize) -> SocketAddr;

    /// Lets a little time pass, and says what time it is. A simulator jumps to its next event, a
    /// real environment reads the clock.
    fn advance(&mut self) -> Time;

    /// What the suite may ask for.
    fn bounds(&self) -> Bounds;

    /// Breaks a link of the first transport of the pair, as a network does that fails. Says whether
    /// it could.
    fn sever(&mut self, transport: &mut Self::Transport, link: LinkId) -> bool;
}

/// What the suite may ask of an environment.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Largest landing and largest frame that are tried. 16 MiB is what a real transport should
    /// bear.
    pub landing_bytes_max: usize,
    /// Most events that one turn may have while frames are 32 bytes or larger.
    pub events_per_turn_max: usize,
    /// Most links at a time, at least 4.
    pub links_max: usize,
    /// Longest that the suite waits for one thing to happen, by the environment's clock.
    pub patience: Duration,
    /// Whether peers fetch payload: any number of frames has left then, however little the peer
    /// reads.
    pub peers_fetch: bool,
    /// Seed of the cases that are random.
    pub seed: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            landing_bytes_max: 16 << 20,
            events_per_turn_max: 4096,
            links_max: 200,
            patience: Duration::from_secs(30),
            peers_fetch: false,
            seed: 0,
        }
    }
}

/// Plays every case.
///
/// # Panics
/// At the first case that fails.
pub fn run<E: Environment>(environment: &mut E) {
    for case in cases::<E>() {
        play(environment, &case);
    }
}

/// Plays the one case with this name.
///
/// # Panics
/// If it fails, or there is none.
pub fn run_case<E: Environment>(environment: &mut E, name: &str) {
    let case = cases::<E>()
        .find(|case| case.name == name)
        .unwrap_or_else(|| panic!("no case of the suite is called {name}"));
    play(environment, &case);
}

/// The names of all cases, in the order in which [`run`] plays them.
pub fn case_names<E: Environment>() -> Vec<&'static str> {
    cases::<E>().map(|case| case.name).collect()
}

struct Case<E: Environment> {
    name: &'static str,
    limits: LinkLimits,
    run: fn(&mut Scene<'_, E>),
}

impl<E: Environment> Case<E> {
    fn new(name: &'static str, run: fn(&mut Scene<'_, E>)) -> Self {
        Self {
            name,
            limits: LinkLimits::default(),
            run,
        }
    }

    fn with_limits(mut self, queued_frames: usize, links: usize) -> Self {
        self.limits = LinkLimits {
            queued_frames,
            links,
        };
        self
    }
}

fn cases<E: Environment>() -> impl Iterator<Item = Case<E>> {
    opening::cases()
        .into_iter()
        .chain(streaming::cases())
        .chain(closing::cases())
        .chain(crowd::cases())
}

fn play<E: Environment>(environment: &mut E, case: &Case<E>) {
    let mut scene = Scene::new(environment, case.name, case.limits);
    (case.run)(&mut scene);
    scene.settle();
}
