//! Values by their types, which travel with a request through this process.

use std::any::{Any, TypeId};
use std::fmt;

/// Values by their types, one of each: what interceptors tell methods. Without any it takes no
/// memory of its own.
///
/// ```
/// use grpcxx_runtime::service::Extensions;
///
/// let mut extensions = Extensions::default();
/// assert_eq!(extensions.insert("me"), None);
/// assert_eq!(extensions.insert("you"), Some("me"));
/// assert_eq!(extensions.get::<&str>(), Some(&"you"));
/// assert_eq!(extensions.remove::<u8>(), None);
/// ```
#[derive(Clone, Default)]
pub struct Extensions {
    /// There are few, so that a look at each is quicker than a hash.
    values: Vec<(TypeId, Box<dyn Value>)>,
}

/// A value of a type that only its user knows.
trait Value: Any + Send + Sync {
    fn cloned(&self) -> Box<dyn Value>;
}

impl<T: Clone + Send + Sync + 'static> Value for T {
    fn cloned(&self) -> Box<dyn Value> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Value> {
    fn clone(&self) -> Self {
        // The box is a value too; what is in it is to be cloned.
        (**self).cloned()
    }
}

impl Extensions {
    /// Keeps a value in place of that of its type, which comes back.
    pub fn insert<T: Clone + Send + Sync + 'static>(&mut self, value: T) -> Option<T> {
        let before = self.remove();
        self.values.push((TypeId::of::<T>(), Box::new(value)));
        before
    }

    /// The value of this type.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        let (_, value) = &self.values[self.position::<T>()?];
        let value: &dyn Any = &**value;
        value.downcast_ref()
    }

    /// The value of this type, to be changed.
    pub fn get_mut<T: 'static>(&mut self) -> Option<&mut T> {
        let position = self.position::<T>()?;
        let (_, value) = &mut self.values[position];
        let value: &mut dyn Any = &mut **value;
        value.downcast_mut()
    }

    /// Takes the value of this type out.
    pub fn remove<T: 'static>(&mut self) -> Option<T> {
        let (_, value) = self.values.swap_remove(self.position::<T>()?);
        let value: Box<dyn Any> = value;
        value.downcast().ok().map(|value| *value)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn position<T: 'static>(&self) -> Option<usize> {
        let wanted = TypeId::of::<T>();
        self.values.iter().position(|&(found, _)| found == wanted)
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = &self.values.len();
        f.debug_struct("Extensions").field("values", count).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_type_has_one_value_and_clones_have_their_own() {
        let mut extensions = Extensions::default();
        assert!(extensions.is_empty());
        assert_eq!(extensions.insert(1u32), None);
        assert_eq!(extensions.insert("text".to_owned()), None);
        let clone = extensions.clone();
        *extensions.get_mut::<u32>().unwrap() = 2;
        extensions.get_mut::<String>().unwrap().push('s');
        assert_eq!(clone.get(), Some(&1u32));
        assert_eq!(clone.get(), Some(&"text".to_owned()));
        assert_eq!(extensions.remove(), Some(2u32));
        assert_eq!(extensions.get::<u32>(), None);
        assert_eq!(
            extensions.insert("other".to_owned()),
            Some("texts".to_owned())
        );
        assert_eq!(format!("{clone:?}"), "Extensions { values: 2 }");
    }
}
