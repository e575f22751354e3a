use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use foldhash::fast::RandomState;

use crate::blame::survive;
use crate::watch::RequestWatch;

/// Who wants to hear what becomes of a request, by its token. Nearly always nobody.
pub(super) struct Watches(HashMap<u64, Arc<dyn RequestWatch>, RandomState>);

impl Watches {
    pub(super) fn new() -> Self {
        Self(HashMap::default())
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn insert(&mut self, token: u64, watch: Arc<dyn RequestWatch>) {
        self.0.insert(token, watch);
    }

    pub(super) fn has(&self, token: u64) -> bool {
        self.0.contains_key(&token)
    }

    #[inline]
    pub(super) fn take(&mut self, token: u64) -> Option<Arc<dyn RequestWatch>> {
        if self.is_empty() {
            return None;
        }
        self.0.remove(&token)
    }

    /// Tells all that nobody wants their answers any more, because the shard has died.
    pub(super) fn withdraw_all(&mut self) {
        for (_, watch) in self.0.drain() {
            survive("the watch of a request", || watch.withdrawn());
        }
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watches({})", self.0.len())
    }
}
