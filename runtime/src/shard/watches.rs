use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::fate::survive;
use crate::function::RequestWatch;

/// Who wants to hear what becomes of a request or a call, by its name. Nearly always nobody.
pub(super) struct Watches<K>(HashMap<K, Arc<dyn RequestWatch>, RandomState>);

impl<K: Eq + Hash> Watches<K> {
    pub(super) fn new() -> Self {
        Self(HashMap::default())
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, name: K, watch: Arc<dyn RequestWatch>) {
        self.0.insert(name, watch);
    }

    pub(super) fn has(&self, name: &K) -> bool {
        self.0.contains_key(name)
    }

    #[inline]
    pub(super) fn take(&mut self, name: &K) -> Option<Arc<dyn RequestWatch>> {
        if self.is_empty() {
            return None;
        }
        self.0.remove(name)
    }

    /// Tells all that nobody wants their answers any more, because the shard has died.
    pub(super) fn withdraw_all(&mut self) {
        for (_, watch) in self.0.drain() {
            survive("the watch of a request", || watch.withdrawn());
        }
    }
}

impl<K> fmt::Debug for Watches<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watches({})", self.0.len())
    }
}
