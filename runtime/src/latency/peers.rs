//! Which peers have figures of their own, over all shards of an engine.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::CallSide;

/// The peers that are counted by name. Locked only where a connection begins or ends, and where
/// somebody asks for figures.
///
/// Beyond [`PEERS_COUNTED_MAX`] at each end, a new peer takes the place of one that has no
/// connection; if all have one, it is counted with [`OTHER_PEERS`].
#[derive(Debug, Default)]
pub(crate) struct CountedPeers(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    places: [Vec<Place>; CallSide::ALL.len()],
    ids: u64,
}

#[derive(Debug)]
struct Place {
    name: Arc<str>,
    id: u64,
    connections: usize,
}

/// A connection that is counted for a peer, until it is dropped.
#[derive(Debug)]
pub(crate) struct CountedPeer {
    peers: Arc<CountedPeers>,
    pub(super) key: PeerKey,
    pub(super) name: Arc<str>,
}

/// A peer at one end of calls. Numbers are never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PeerKey {
    pub(super) side: CallSide,
    /// None for those that are counted together.
    id: Option<u64>,
}

impl CountedPeers {
    /// Counts a connection for the peer of this name.
    pub(crate) fn join(self: &Arc<Self>, side: CallSide, name: &str) -> CountedPeer {
        let name = plain(name);
        let (id, name) = self.lock().join(side, &name);
        CountedPeer {
            peers: Arc::clone(self),
            key: PeerKey { side, id },
            name,
        }
    }

    /// Whether a peer still has figures of its own.
    pub(super) fn has(&self, key: PeerKey) -> bool {
        let counted = self.lock();
        let mut places = counted.places[key.side as usize].iter();
        key.id.is_none_or(|id| places.any(|place| place.id == id))
    }

    fn lock(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counted {
    fn join(&mut self, side: CallSide, name: &str) -> (Option<u64>, Arc<str>) {
        let places = &mut self.places[side as usize];
        if let Some(place) = places.iter_mut().find(|place| *place.name == *name) {
            place.connections += 1;
            return (Some(place.id), Arc::clone(&place.name));
        }
        if places.len() >= PEERS_COUNTED_MAX {
            // Those that came first are at the front.
            let Some(oldest) = places.iter().position(|place| place.connections == 0) else {
                return (None, Arc::from(OTHER_PEERS));
            };
            places.remove(oldest);
        }
        self.ids += 1;
        let name = Arc::<str>::from(name);
        places.push(Place {
            name: Arc::clone(&name),
            id: self.ids,
            connections: 1,
        });
        (Some(self.ids), name)
    }
}

impl Drop for CountedPeer {
    fn drop(&mut self) {
        let mut counted = self.peers.lock();
        let mut places = counted.places[self.key.side as usize].iter_mut();
        if let Some(place) = places.find(|place| Some(place.id) == self.key.id) {
            place.connections -= 1;
        }
    }
}

/// The name without what would have to be escaped in reports, and not too long.
fn plain(name: &str) -> String {
    let signs = name.chars().take(NAME_CHARS_MAX);
    let plain = |sign: char| match sign {
        '"' | '\\' | ',' | '{' | '}' => '_',
        sign if sign.is_ascii_graphic() => sign,
        _ => '_',
    };
    signs.map(plain).collect()
}

/// Most peers at one end of calls that have figures of their own.
pub const PEERS_COUNTED_MAX: usize = 64;

/// The name of all peers together that have no figures of their own.
pub const OTHER_PEERS: &str = "other";

/// Most letters of a name.
const NAME_CHARS_MAX: usize = 128;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_peer_keeps_its_figures_over_connections_and_others_share_theirs() {
        let peers = Arc::new(CountedPeers::default());
        let join = |name: &str| peers.join(CallSide::Server, name);
        let first = join("10.0.0.0");
        let key = first.key;
        drop(first);
        let again = join("10.0.0.0");
        assert_eq!(again.key, key);
        let rest: Vec<_> = (1..PEERS_COUNTED_MAX)
            .map(|at| join(&format!("10.0.0.{at}")))
            .collect();
        let other = join("10.1.0.0");
        assert_eq!(&*other.name, OTHER_PEERS);
        assert_eq!(other.key, join("10.1.0.1").key);
        // The other end has places of its own.
        let called = peers.join(CallSide::Client, "10.1.0.0");
        assert_eq!(&*called.name, "10.1.0.0");

        drop((again, rest));
        assert!(peers.has(key));
        assert_eq!(&*join("10.2.0.0").name, "10.2.0.0");
        assert!(!peers.has(key), "the oldest without a connection goes");
        assert_ne!(join("10.0.0.0").key, key);
    }

    #[test]
    fn names_need_no_escapes() {
        let peers = Arc::new(CountedPeers::default());
        let name = &peers.join(CallSide::Client, "a\"b\\c\nd,{}é").name;
        assert_eq!(&**name, "a_b_c_d____");
        let long = "a".repeat(1_000);
        let name = &peers.join(CallSide::Client, &long).name;
        assert_eq!(name.len(), NAME_CHARS_MAX);
    }
}
