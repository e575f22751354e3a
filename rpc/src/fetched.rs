//! The tensors that a function returns, by name.

use crate::{Code, NamedTensors, Status, Tensor, Text};

/// The results of a function: tensors by name, in the order in which the function gave them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fetched(NamedTensors);

impl Fetched {
    /// The result with this name.
    ///
    /// # Errors
    /// `NOT_FOUND` with the names that there are.
    pub fn get(&self, name: &str) -> Result<&Tensor, Status> {
        find(&self.0, name, "results").map(|place| &self.0[place].1)
    }

    /// Takes the result with this name out, so that it need not be cloned.
    ///
    /// # Errors
    /// `NOT_FOUND` with the names that are left.
    pub fn take(&mut self, name: &str) -> Result<Tensor, Status> {
        let place = find(&self.0, name, "results")?;
        Ok(self.0.swap_remove(place).1)
    }

    /// Number of results.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no result.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and tensors.
    pub fn iter(&self) -> impl Iterator<Item = (&Text, &Tensor)> {
        self.0.iter().map(|(name, tensor)| (name, tensor))
    }
}

impl From<Vec<(Text, Tensor)>> for Fetched {
    fn from(results: Vec<(Text, Tensor)>) -> Self {
        Self(results.into())
    }
}

impl From<NamedTensors> for Fetched {
    fn from(results: NamedTensors) -> Self {
        Self(results)
    }
}

impl<N: Into<Text>, const COUNT: usize> From<[(N, Tensor); COUNT]> for Fetched {
    #[inline]
    fn from(results: [(N, Tensor); COUNT]) -> Self {
        let mut named = NamedTensors::with_capacity(COUNT);
        for (name, tensor) in results {
            named.push((name.into(), tensor));
        }
        Self(named)
    }
}

impl<N: Into<Text>> FromIterator<(N, Tensor)> for Fetched {
    fn from_iter<I: IntoIterator<Item = (N, Tensor)>>(results: I) -> Self {
        let named = results.into_iter();
        Self(named.map(|(name, tensor)| (name.into(), tensor)).collect())
    }
}

impl From<Fetched> for Vec<(Text, Tensor)> {
    fn from(fetched: Fetched) -> Self {
        fetched.0.into_vec()
    }
}

impl From<Fetched> for NamedTensors {
    fn from(fetched: Fetched) -> Self {
        fetched.0
    }
}

impl IntoIterator for Fetched {
    type Item = (Text, Tensor);
    type IntoIter = smallvec::IntoIter<[(Text, Tensor); 1]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// Where `name` is among `tensors`, which an error calls `what`.
pub(crate) fn find(tensors: &[(Text, Tensor)], name: &str, what: &str) -> Result<usize, Status> {
    let found = tensors.iter().position(|(found, _)| found == name);
    found.ok_or_else(|| {
        let quoted = tensors.iter().take(NAMES_QUOTED_MAX);
        let mut names: Vec<&str> = quoted.map(|(name, _)| name.as_str()).collect();
        if tensors.len() > names.len() {
            names.push("...");
        }
        let names = match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        };
        Status::new(
            Code::NotFound,
            format!("there is no \"{name}\" among the {what}; there are: {names}"),
        )
    })
}

/// Most names that an error lists.
const NAMES_QUOTED_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_found_and_taken_by_name() {
        let mut fetched = Fetched::from([("a", Tensor::scalar(1i32)), ("b", Tensor::scalar(2i32))]);
        assert_eq!(fetched.get("b"), Ok(&Tensor::scalar(2i32)));
        assert_eq!(fetched.take("a"), Ok(Tensor::scalar(1i32)));
        let status = fetched.take("a").unwrap_err();
        assert_eq!(status.code, Code::NotFound);
        assert_eq!(
            status.message,
            "there is no \"a\" among the results; there are: b"
        );
        assert_eq!(fetched.len(), 1);
    }

    #[test]
    fn an_error_lists_a_few_names() {
        let many: Fetched = (0..1000)
            .map(|index| (index.to_string(), Tensor::scalar(index)))
            .collect();
        let status = many.get("x").unwrap_err();
        assert!(status.message.ends_with("14, 15, ..."), "{status}");
        let status = Fetched::default().get("x").unwrap_err();
        assert!(status.message.ends_with("there are: none"), "{status}");
    }
}
