//! Values of which each process has its own.

use std::sync::OnceLock;

use super::{generation, hear_of_forks};

/// A value that a child does not share with its parent, as one with a thread that serves it, or
/// with a lock that a thread may hold at the fork, which the child has not.
///
/// ```
/// use std::sync::Mutex;
///
/// use grpcxx_memory::forks::PerProcess;
///
/// static LINES: PerProcess<Mutex<Vec<String>>> = PerProcess::new();
///
/// let lines = LINES.get_or_make(|_parents| Mutex::default());
/// assert!(lines.lock().unwrap().is_empty());
/// ```
#[derive(Debug)]
pub struct PerProcess<T> {
    /// That of the first process which made one, and its generation.
    first: OnceLock<(u32, T)>,
    /// That of a child of it. The parent's stays as it is, since it may be in use.
    child: OnceLock<Box<Self>>,
}

impl<T> PerProcess<T> {
    /// One that no process has a value of yet.
    pub const fn new() -> Self {
        Self {
            first: OnceLock::new(),
            child: OnceLock::new(),
        }
    }

    /// The value of this process, if it has made one.
    pub fn get(&self) -> Option<&T> {
        let (of, value) = self.first.get()?;
        match *of == generation() {
            true => Some(value),
            false => self.child.get()?.get(),
        }
    }

    /// The value of this process. If it has none, one is made, in a child from that of the nearest
    /// parent which has one. Of those that threads make at once, one stays.
    pub fn get_or_make(&self, make: impl FnOnce(Option<&T>) -> T) -> &T {
        self.get_or_make_below(None, make)
    }

    fn get_or_make_below<'a>(
        &'a self,
        parents: Option<&'a T>,
        make: impl FnOnce(Option<&T>) -> T,
    ) -> &'a T {
        let Some((of, value)) = self.first.get() else {
            // Without memory for that, no child of this process gets one of its own.
            let _ = hear_of_forks();
            // Made outside of the cell: a child would wait for a thread that is inside.
            let made = (generation(), make(parents));
            return &self.first.get_or_init(|| made).1;
        };
        match *of == generation() {
            true => value,
            false => {
                let child = self.child.get_or_init(Box::default);
                child.get_or_make_below(Some(value), make)
            }
        }
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}
