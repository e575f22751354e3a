//! Places that peers hold, each peer up to a share of them; the one that has been idle for longest
//! gives way to a newcomer.
//!
//! A limit that only refuses can be used to shut others out: whoever takes all places and does
//! nothing keeps them. Here such places are the first to go.

use std::collections::BTreeSet;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::Account;

/// The places of one kind, each with a value of its holder. `At` is whatever tells earlier from
/// later.
#[derive(Debug)]
pub struct Places<T, At> {
    places_max: usize,
    /// Most places of one account.
    share_max: usize,
    held: HashMap<u64, Held<T, At>, RandomState>,
    idle: Idle<At>,
    accounts: HashMap<Account, Holding<At>, RandomState>,
    /// Places given out so far; the number of a place is never given again.
    given: u64,
}

/// Places that are not in use, by the time since when.
type Idle<At> = BTreeSet<(At, u64)>;

#[derive(Debug)]
struct Held<T, At> {
    value: T,
    account: Account,
    uses: usize,
    idle_since: At,
}

/// What one account holds.
#[derive(Debug)]
struct Holding<At> {
    count: usize,
    idle: Idle<At>,
}

/// A place that was given.
#[derive(Debug, PartialEq, Eq)]
pub struct Given<T> {
    /// Its number.
    pub place: u64,
    /// The value of the place that had to give way.
    pub gave_way: Option<T>,
}

impl<T, At: Ord + Copy> Places<T, At> {
    /// So many places, of which one account gets `share_percent`, but one at least.
    pub fn new(places_max: usize, share_percent: u8) -> Self {
        let share = places_max.saturating_mul(share_percent.into()) / 100;
        Self {
            places_max,
            share_max: share.max(1),
            held: HashMap::default(),
            idle: Idle::new(),
            accounts: HashMap::default(),
            given: 0,
        }
    }

    /// Gives a place, which is idle at first. If there is none left, or none for this account, the
    /// idlest one of all, or of the account, gives way.
    ///
    /// # Errors
    /// The value comes back: all places that could give way are in use.
    pub fn take(&mut self, account: Account, value: T, now: At) -> Result<Given<T>, T> {
        let holding = self.accounts.get(&account);
        let crowd = match holding {
            Some(holding) if holding.count >= self.share_max => Some(&holding.idle),
            Some(_) | None if self.held.len() >= self.places_max => Some(&self.idle),
            Some(_) | None => None,
        };
        let idlest = match crowd.map(BTreeSet::first) {
            Some(Some(&(_, place))) => Some(place),
            Some(None) => return Err(value),
            None => None,
        };
        let gave_way = idlest.and_then(|place| self.release(place));
        self.given += 1;
        let place = self.given;
        let held = Held {
            value,
            account,
            uses: 0,
            idle_since: now,
        };
        self.held.insert(place, held);
        self.idle.insert((now, place));
        let holding = self.accounts.entry(account).or_insert_with(|| Holding {
            count: 0,
            idle: Idle::new(),
        });
        holding.count += 1;
        holding.idle.insert((now, place));
        Ok(Given { place, gave_way })
    }

    /// Notes that a place is in use until as many calls of [`Places::end_use`].
    pub fn begin_use(&mut self, place: u64) {
        let Some(held) = self.held.get_mut(&place) else {
            return;
        };
        held.uses += 1;
        if held.uses == 1 {
            let entry = (held.idle_since, place);
            self.idle.remove(&entry);
            if let Some(holding) = self.accounts.get_mut(&held.account) {
                holding.idle.remove(&entry);
            }
        }
    }

    /// Notes that a use of a place is over.
    pub fn end_use(&mut self, place: u64, now: At) {
        let Some(held) = self.held.get_mut(&place) else {
            return;
        };
        held.uses -= 1;
        if held.uses == 0 {
            held.idle_since = now;
            self.idle.insert((now, place));
            if let Some(holding) = self.accounts.get_mut(&held.account) {
                holding.idle.insert((now, place));
            }
        }
    }

    /// Gives a place up. `None` if it had to give way before.
    pub fn release(&mut self, place: u64) -> Option<T> {
        let held = self.held.remove(&place)?;
        let entry = (held.idle_since, place);
        self.idle.remove(&entry);
        if let Some(holding) = self.accounts.get_mut(&held.account) {
            holding.idle.remove(&entry);
            holding.count -= 1;
            if holding.count == 0 {
                self.accounts.remove(&held.account);
            }
        }
        Some(held.value)
    }

    /// The value of a place that has been idle since then or longer, whose place is free now.
    pub fn take_idle_since(&mut self, latest: At) -> Option<T> {
        let &(since, place) = self.idle.first()?;
        (since <= latest).then(|| self.release(place)).flatten()
    }

    /// The value of any place, whose place is free then.
    pub fn take_any(&mut self) -> Option<T> {
        let &place = self.held.keys().next()?;
        self.release(place)
    }

    /// How many places are taken.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether no place is taken.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// How many places there are.
    pub fn places_max(&self) -> usize {
        self.places_max
    }

    /// How many of them one account gets.
    pub fn share_max(&self) -> usize {
        self.share_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(last: u8) -> Account {
        Account::of([10, 0, 0, last].into())
    }

    #[test]
    fn the_idlest_place_gives_way_and_those_in_use_do_not() {
        let mut places = Places::new(3, 100);
        for second in 1..=3 {
            let given = places.take(account(1), second, second).unwrap();
            assert_eq!(given.gave_way, None);
        }
        places.begin_use(1);
        let given = places.take(account(2), 4, 4).unwrap();
        assert_eq!(given.gave_way, Some(2));
        places.begin_use(1);
        places.end_use(1, 5);
        places.begin_use(3);
        places.begin_use(given.place);
        assert_eq!(places.take(account(2), 5, 6), Err(5));
        places.end_use(1, 7);
        let given = places.take(account(2), 6, 8).unwrap();
        assert_eq!(given.gave_way, Some(1));
        assert_eq!(places.release(1), None);
        assert_eq!(places.len(), 3);
    }

    #[test]
    fn an_account_beyond_its_share_loses_its_own_places() {
        let mut places = Places::new(4, 50);
        places.take(account(1), "quiet", 0).unwrap();
        for second in 1..9 {
            let given = places.take(account(2), "greedy", second).unwrap();
            let expected = (second > 2).then_some("greedy");
            assert_eq!(given.gave_way, expected);
        }
        assert_eq!(places.len(), 3);
        let mut alone = Places::new(1, 1);
        assert!(alone.take(account(1), 0, 0).is_ok());
        assert_eq!(alone.share_max(), 1);
    }

    #[test]
    fn places_expire_when_nobody_has_used_them_for_long() {
        let mut places = Places::new(4, 100);
        for second in 1..=3 {
            places.take(account(1), second, second).unwrap();
        }
        places.begin_use(1);
        assert_eq!(places.take_idle_since(1), None);
        assert_eq!(places.take_idle_since(2), Some(2));
        assert_eq!(places.take_idle_since(2), None);
        places.end_use(1, 12);
        assert_eq!(places.take_idle_since(11), Some(3));
        assert_eq!(places.take_any(), Some(1));
        assert_eq!(places.take_any(), None);
        assert!(places.is_empty() && places.accounts.is_empty());
    }
}
