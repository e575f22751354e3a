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
pub(super) struct Words(BTreeMap<u32, Asked>);

/// A rank that was asked.
#[derive(Debug, Default)]
struct Asked {
    /// What it has said last.
    said: Option<Word>,
    /// Whether another answer is to come.
    is_under_way: bool,
}

/// What a rank says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// It waits for these ranks.
    WaitsFor(Vec<u32>),
    /// It does not say.
    Silent,
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
        let asked = Asked {
            said: Some(word),
            is_under_way: false,
        };
        self.0.insert(from, asked);
    }

    /// A rank was asked in vain; it may be asked again.
    pub(super) fn asked_in_vain(&mut self, from: u32) {
        self.0.entry(from).or_default().is_under_way = false;
    }

    /// Those of these ranks that are to be asked. What others have said is of no use any more.
    fn ask(&mut self, ranks: BTreeSet<u32>) -> Vec<u32> {
        self.0.retain(|rank, _| ranks.contains(rank));
        let mut is_to_be_asked = |rank: &u32| {
            let asked = self.0.entry(*rank).or_default();
            !std::mem::replace(&mut asked.is_under_way, true)
        };
        let ranks = ranks.into_iter();
        ranks.filter(|rank| is_to_be_asked(rank)).collect()
    }

    /// Who is to blame, if this has lasted for too long.
    fn judge(&self, stall: &Stall, own: u32, patience: Duration) -> Option<Silence> {
        if stall.waited < patience {
            return None;
        }
        let guilty = stall.ranks.iter().copied();
        let guilty: Vec<u32> = guilty.filter(|rank| self.is_guilty(*rank, own)).collect();
        let nobody_is_guilty = guilty.is_empty();
        // The ranks wait for each other in a circle, or the one that they wait for goes on now and
        // then.
        let is_hopeless = stall.waited >= 2 * patience
            && stall.ranks.iter().all(|rank| self.0.contains_key(rank));
        if nobody_is_guilty && !is_hopeless {
            return None;
        }
        let is_silent = |rank: &u32| self.0[rank].said == Some(Word::Silent);
        let is_sure = !nobody_is_guilty && !guilty.iter().any(is_silent);
        Some(Silence {
            ranks: if nobody_is_guilty {
                stall.ranks.clone()
            } else {
                guilty
            },
            what: stall.what.clone(),
            is_sure,
        })
    }

    /// Whether a rank was asked, and has not said that it waits for another one than this. What it
    /// has said counts until it says more: an answer may come late.
    fn is_guilty(&self, rank: u32, own: u32) -> bool {
        let Some(asked) = self.0.get(&rank) else {
            return false;
        };
        match &asked.said {
            None | Some(Word::Silent) => true,
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// What rank 0 says that waits for ranks 1 and 2, of which these words are known.
    fn judged(words: [Option<Word>; 2], seconds: u64) -> Option<String> {
        let stall = Stall {
            ranks: vec![1, 2],
            waited: Duration::from_secs(seconds),
            what: "sing".to_owned(),
        };
        let asked = |said| Asked {
            said,
            is_under_way: true,
        };
        let words = Words((1..).zip(words.map(asked)).collect());
        let silence = words.judge(&stall, 0, PATIENCE)?;
        Some(silence.text(&format!("{:?}", silence.ranks), PATIENCE))
    }

    #[test]
    fn who_waits_for_another_rank_is_not_to_blame() {
        let waits = |ranks: &[u32]| Some(Word::WaitsFor(ranks.to_vec()));
        let sure = Some("[2] did not sing within 60s".to_owned());
        assert_eq!(judged([waits(&[0, 2]), None], 60), sure);
        assert_eq!(judged([waits(&[0, 2]), waits(&[])], 60), sure);
        assert_eq!(judged([waits(&[0, 2]), waits(&[0])], 60), sure);
        assert_eq!(judged([waits(&[0, 2]), None], 59), None);
    }

    #[test]
    fn an_error_says_where_nobody_knows_who_is_to_blame() {
        let around = || [2, 1].map(|rank| Some(Word::WaitsFor(vec![rank])));
        assert_eq!(judged(around(), 119), None);
        let unsure = "[1, 2], or whoever keeps it waiting, did not sing within 60s";
        assert_eq!(judged(around(), 120).as_deref(), Some(unsure));
        let unsure = "[2], or whoever keeps it waiting, did not sing within 60s";
        let words = [Some(Word::WaitsFor(vec![2])), Some(Word::Silent)];
        assert_eq!(judged(words, 60).as_deref(), Some(unsure));
    }

    #[test]
    fn ranks_are_asked_once_until_they_answer_and_blamed_when_they_were_asked() {
        let mut words = Words::default();
        let stall = Stall {
            ranks: vec![3],
            waited: 9 * PATIENCE,
            what: "sing".to_owned(),
        };
        // This rank was stopped itself, and asks nobody until now.
        assert!(words.judge(&stall, 0, PATIENCE).is_none());
        assert_eq!(words.ask([3, 4].into()), [3, 4]);
        assert_eq!(words.ask([3, 4].into()), [0; 0]);
        words.hear(3, Word::WaitsFor(vec![4]));
        assert_eq!(words.ask([3].into()), [3]);
        assert_eq!(
            words.ask([3, 4].into()),
            [4],
            "4 was not waited for any more"
        );
        assert!(words.judge(&stall, 0, PATIENCE).is_some());
    }

    #[test]
    fn an_answer_that_comes_late_takes_nothing_back_that_was_said() {
        let mut words = Words::default();
        let mut stall = Stall {
            ranks: vec![3],
            waited: PATIENCE,
            what: "sing".to_owned(),
        };
        assert_eq!(words.ask([3].into()), [3]);
        words.hear(3, Word::WaitsFor(vec![4]));
        assert_eq!(words.ask([3].into()), [3]);
        assert!(words.judge(&stall, 0, PATIENCE).is_none());
        // Nor is a rank let off that can never be asked.
        words.asked_in_vain(3);
        stall.waited = 2 * PATIENCE;
        assert!(words.judge(&stall, 0, PATIENCE).is_some());
        let mut never = Words::default();
        assert_eq!(never.ask([3].into()), [3]);
        never.asked_in_vain(3);
        assert!(never.judge(&stall, 0, PATIENCE).is_some());
    }
}
