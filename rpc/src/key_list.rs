use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::Text;

/// The keys of a request for several tensors, shared: a copy costs as much as that of one key.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyList(Arc<[Text]>);

impl KeyList {
    /// Whether both share the same list, so that their keys are equal without a look at them.
    #[inline]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Deref for KeyList {
    type Target = [Text];

    #[inline]
    fn deref(&self) -> &[Text] {
        &self.0
    }
}

impl From<Vec<Text>> for KeyList {
    fn from(keys: Vec<Text>) -> Self {
        Self(keys.into())
    }
}

impl FromIterator<Text> for KeyList {
    fn from_iter<T: IntoIterator<Item = Text>>(keys: T) -> Self {
        Self(keys.into_iter().collect())
    }
}

impl<'a> IntoIterator for &'a KeyList {
    type Item = &'a Text;
    type IntoIter = std::slice::Iter<'a, Text>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl fmt::Debug for KeyList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
