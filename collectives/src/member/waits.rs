//! Who keeps whom waiting: for whom this rank waits, and what those say of themselves.
//!
//! A rank that waits for long asks those that it waits for whom they wait for. Whoever waits itself
//! for another rank is not to blame: that one is, and who waits for it finds that out.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grpcxx_runtime::Time;

use super::State;
use super::lane::Lane;

/// Ranks that keep this one waiting.
pub(super) struct Stall {
    pub(super) ranks: Vec<u32>,
    pub(super) waited: Duration,
    /// What they have yet to do.
    pub(super) what: String,
}

/// What was asked of ranks that keep this one waiting, and what they say.
#[derive(Debug, Default)]
pub(super) struct Words(BTreeMap<u32, Word>);

/// What a rank says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// Nothing yet: it was asked.
    Asked,
    /// It waits for these ranks.
    WaitsFor(Vec<u32>),
    /// It lives, and does not say.
    Nothing,
}

/// What comes of a look for ranks that do not answer.
pub(super) enum Look {
    /// These are to be asked whom they wait for.
    GoesOn { asks: Vec<u32> },
    /// Somebody has kept this rank waiting for too long.
    Ends(Silence),
}

/// Who has kept this rank waiting for too long.
pub(super) struct Silence {
    pub(super) ranks: Vec<u32>,
    what: String,
    /// Whether it is these ranks, and no other one for which they wait.
    is_sure: bool,
}

/// Looks for ranks that do not answer.
pub(super) fn look(state: &mut State, own: u32, (now, patience): (Time, Duration)) -> Look {
    let mut stalls: Vec<Stall> = (state.lanes.values_mut())
        .filter_map(|lane| lane.stall(now))
        .collect();
    let slow = state.outbox.slow(now).into_iter();
    stalls.extend(slow.map(|(rank, waited)| Stall {
        ranks: vec![rank],
        waited,
        what: "take what this rank has sent".to_owned(),
    }));
    stalls.retain(|stall| stall.waited >= patience / 2);
    let mut judged = stalls.iter();
    if let Some(silence) = judged.find_map(|stall| state.words.judge(stall, own, patience)) {
        return Look::Ends(silence);
    }
    let ranks = stalls.into_iter().flat_map(|stall| stall.ranks);
    Look::GoesOn {
        asks: state.words.ask(ranks.collect()),
    }
}

/// The ranks that keep this one waiting.
pub(super) fn waits_for(state: &State) -> Vec<u32> {
    let lanes = state.lanes.values();
    let mut ranks: BTreeSet<u32> = lanes.flat_map(Lane::waits_for).collect();
    ranks.extend(state.outbox.debtors());
    ranks.into_iter().collect()
}

impl Words {
    /// What a rank says that was asked.
    pub(super) fn hear(&mut self, from: u32, word: Word) {
        self.0.insert(from, word);
    }

    /// A rank was asked in vain; it may be asked again.
    pub(super) fn forget(&mut self, from: u32) {
        self.0.remove(&from);
    }

    /// Those of these ranks that are to be asked. What others have said is of no use any more.
    fn ask(&mut self, ranks: BTreeSet<u32>) -> Vec<u32> {
        self.0.retain(|rank, _| ranks.contains(rank));
        let ranks = ranks.into_iter();
        ranks
            .filter(|&rank| self.0.insert(rank, Word::Asked) != Some(Word::Asked))
            .collect()
    }

    /// Who is to blame, if this has lasted for too long.
    fn judge(&self, stall: &Stall, own: u32, patience: Duration) -> Option<Silence> {
        if stall.waited < patience {
            return None;
        }
        let guilty = stall.ranks.iter().copied();
        let guilty: Vec<u32> = guilty.filter(|rank| self.is_guilty(*rank, own)).collect();
        let is_nobody = guilty.is_empty();
        // Each waits for another one, and they in a circle, or that one goes on now and then.
        let is_hopeless = stall.waited >= 2 * patience
            && stall.ranks.iter().all(|rank| self.0.contains_key(rank));
        if is_nobody && !is_hopeless {
            return None;
        }
        let is_sure = !is_nobody && guilty.iter().all(|rank| self.0[rank] != Word::Nothing);
        Some(Silence {
            ranks: if is_nobody {
                stall.ranks.clone()
            } else {
                guilty
            },
            what: stall.what.clone(),
            is_sure,
        })
    }

    /// Whether a rank was asked, and has not said that it waits for another one than this.
    fn is_guilty(&self, rank: u32, own: u32) -> bool {
        match self.0.get(&rank) {
            None => false,
            Some(Word::Asked | Word::Nothing) => true,
            Some(Word::WaitsFor(ranks)) => ranks.iter().all(|&other| other == own),
        }
    }
}

impl Silence {
    /// What this rank says then.
    pub(super) fn text(&self, names: &str, patience: Duration) -> String {
        let or = match self.is_sure {
            true => "",
            false => ", or whoever keeps it waiting,",
        };
        format!("{names}{or} did not {} within {patience:?}", self.what)
    }
}
