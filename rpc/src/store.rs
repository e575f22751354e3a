//! Tensors that stay, by name.

use std::collections::BTreeMap;
use std::ops::Bound;

use wildmatch::WildMatch;

use crate::{Code, Reason, Rejected, Status, Tensor, TensorMeta, Text};

/// Named tensors that stay: the parameters of a model.
///
/// The data is shared, so a clone is a replica for another shard that costs one reference per
/// tensor.
#[derive(Clone, Debug)]
pub struct TensorStore {
    limits: StoreLimits,
    tensors: BTreeMap<Text, Tensor>,
    stored_bytes: u64,
}

/// Bounds of a [`TensorStore`]. Whatever would go beyond one is refused with `RESOURCE_EXHAUSTED`
/// and a text that names the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreLimits {
    /// Most tensors.
    pub tensors: usize,
    /// Longest name, in bytes.
    pub name_bytes: usize,
    /// Most bytes of all tensors, as [`TensorStore::entry_bytes`] counts them.
    pub stored_bytes: u64,
}

impl StoreLimits {
    /// These limits with what `change` sets; fields that it leaves alone keep their values.
    ///
    /// ```
    /// use grpcxx_rpc::StoreLimits;
    ///
    /// let limits = StoreLimits::default().with(|limits| limits.tensors = 1024);
    /// assert_eq!(limits.tensors, 1024);
    /// ```
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self {
            tensors: 1 << 20,
            // Names on the wire carry a 16-bit length.
            name_bytes: 65_535,
            stored_bytes: 1 << 40,
        }
    }
}

impl TensorStore {
    /// A store without tensors.
    pub fn new(limits: StoreLimits) -> Self {
        Self {
            limits,
            tensors: BTreeMap::new(),
            stored_bytes: 0,
        }
    }

    /// Keeps a tensor under a name and returns the one that had the name before. It changes by
    /// calls alone: of what another process lends, the store keeps a copy.
    ///
    /// # Errors
    /// The tensor comes back, with `INVALID_ARGUMENT` if the name is empty, too long or the tensor
    /// is dead, with `RESOURCE_EXHAUSTED` beyond a limit.
    #[expect(
        clippy::result_large_err,
        reason = "the tensor goes back without an allocation, also when memory is short"
    )]
    pub fn put(
        &mut self,
        name: Text,
        mut tensor: Tensor,
    ) -> Result<Option<Tensor>, Rejected<Tensor>> {
        if let Err(status) = self.admit(&name, &tensor) {
            return Err(Rejected {
                value: tensor,
                status,
            });
        }
        tensor.make_private();
        self.stored_bytes -= self.bytes_of(&name);
        self.stored_bytes += Self::entry_bytes(&name, &tensor);
        Ok(self.tensors.insert(name, tensor))
    }

    /// The tensor of this name, sharing its data.
    ///
    /// # Errors
    /// `NOT_FOUND` with the names nearest in order.
    pub fn fetch(&self, name: &str) -> Result<Tensor, Status> {
        match self.tensors.get(name) {
            Some(tensor) => Ok(tensor.clone()),
            None => Err(self.not_found(name)),
        }
    }

    /// Forgets the tensor of this name and returns it.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        self.stored_bytes -= self.bytes_of(name);
        self.tensors.remove(name)
    }

    /// Forgets all tensors.
    pub fn clear(&mut self) {
        self.tensors.clear();
        self.stored_bytes = 0;
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Names and tensors in byte order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&Text, &Tensor)> {
        self.tensors.iter()
    }

    /// The names in byte order.
    pub fn names(&self) -> impl Iterator<Item = &Text> {
        self.tensors.keys()
    }

    /// Names and descriptions in byte order of the names.
    pub fn metas(&self) -> impl Iterator<Item = (&Text, TensorMeta)> {
        self.iter().map(|(name, tensor)| (name, tensor.meta()))
    }

    /// The names that a pattern selects, in byte order. `*` stands for any text, `?` for any one
    /// character, everything else for itself.
    pub fn matching(&self, pattern: &str) -> impl Iterator<Item = &Text> {
        let pattern = WildMatch::new(pattern);
        self.names().filter(move |name| pattern.matches(name))
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The bounds of this store.
    pub fn limits(&self) -> &StoreLimits {
        &self.limits
    }

    /// Bytes of all tensors, as [`TensorStore::entry_bytes`] counts them.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// The bytes for which a tensor under this name counts: its data, its name, and
    /// [`ENTRY_BYTES`](Self::ENTRY_BYTES).
    pub fn entry_bytes(name: &str, tensor: &Tensor) -> u64 {
        Self::ENTRY_BYTES + name.len() as u64 + tensor.data.len() as u64
    }

    /// The bytes for which a tensor counts beside its name and its data, so that empty ones are
    /// limited too: what the store keeps of each.
    pub const ENTRY_BYTES: u64 = 256;

    /// Whether a tensor may be kept under this name, as far as that does not depend on what is
    /// kept besides.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the name is empty, too long or the tensor is dead.
    pub fn check(&self, name: &Text, tensor: &Tensor) -> Result<(), Status> {
        if name.is_empty() || name.len() > self.limits.name_bytes {
            return Err(Status::new(
                Code::InvalidArgument,
                format!(
                    "a tensor's name of {} bytes; 1 to {} are allowed (name_bytes)",
                    name.len(),
                    self.limits.name_bytes
                ),
            ));
        }
        if tensor.is_dead {
            return Err(Status::new(
                Code::InvalidArgument,
                format!("the tensor for {name} is dead and has no value to keep"),
            ));
        }
        Ok(())
    }

    /// Whether so many tensors may wait to be put in, with so many bytes in all. The bytes count
    /// beside those that are stored; the tensors by themselves, since most replace others.
    ///
    /// # Errors
    /// `RESOURCE_EXHAUSTED` beyond a limit.
    pub fn check_staged(&self, tensors: usize, bytes: u64) -> Result<(), Status> {
        let text = if tensors > self.limits.tensors {
            format!(
                "{tensors} tensors would be staged, and the limit of the store is tensors = {}; \
                 push fewer at once",
                self.limits.tensors
            )
        } else if self.stored_bytes.saturating_add(bytes) > self.limits.stored_bytes {
            format!(
                "{bytes} bytes would be staged beside the {} bytes of the store, and its limit is \
                 stored_bytes = {}; push fewer at once, or remove some first",
                self.stored_bytes, self.limits.stored_bytes
            )
        } else {
            return Ok(());
        };
        Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit))
    }

    fn admit(&self, name: &Text, tensor: &Tensor) -> Result<(), Status> {
        self.check(name, tensor)?;
        if !self.contains(name) && self.tensors.len() >= self.limits.tensors {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "{name} would be one more tensor than the limit tensors = {} of the store; \
                     remove some first",
                    self.limits.tensors
                ),
            )
            .because(Reason::Limit));
        }
        let others = self.stored_bytes - self.bytes_of(name);
        let left = self.limits.stored_bytes.saturating_sub(others);
        let bytes = Self::entry_bytes(name, tensor);
        if bytes > left {
            return Err(Status::new(
                Code::ResourceExhausted,
                format!(
                    "{name} takes {bytes} bytes, with its name and {} for its place, {left} are \
                     left of the limit stored_bytes = {} of the store; remove some first",
                    Self::ENTRY_BYTES,
                    self.limits.stored_bytes
                ),
            )
            .because(Reason::Limit));
        }
        Ok(())
    }

    /// The bytes for which the tensor of this name counts now.
    fn bytes_of(&self, name: &str) -> u64 {
        let kept = self.tensors.get(name);
        kept.map_or(0, |tensor| Self::entry_bytes(name, tensor))
    }

    fn not_found(&self, name: &str) -> Status {
        let after = self
            .tensors
            .range::<str, _>((Bound::Included(name), Bound::Unbounded))
            .next()
            .map(|(near, _)| shown(near));
        let before = self
            .tensors
            .range::<str, _>((Bound::Unbounded, Bound::Excluded(name)))
            .next_back()
            .map(|(near, _)| shown(near));
        let near = match (before, after) {
            (None, None) => "the store is empty".to_owned(),
            (Some(near), None) | (None, Some(near)) => format!("the nearest name is {near}"),
            (Some(before), Some(after)) => format!("the nearest names are {before} and {after}"),
        };
        Status::new(
            Code::NotFound,
            format!("no tensor is named {}; {near}", shown(name)),
        )
    }
}

impl Default for TensorStore {
    fn default() -> Self {
        Self::new(StoreLimits::default())
    }
}

const _: () = assert!(size_of::<(Text, Tensor)>() as u64 <= TensorStore::ENTRY_BYTES);

/// The beginning of a name for an error, on one line.
fn shown(name: &str) -> String {
    let letters = name.chars().take(SHOWN_CHARS_MAX);
    letters.flat_map(char::escape_debug).collect()
}

/// So much of a name is repeated in the error text.
const SHOWN_CHARS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::borrowed::borrowed;
    use crate::{DType, Shape};

    #[test]
    fn what_is_kept_is_nobody_elses_memory() {
        let shape = Shape::new(&[3]).unwrap();
        let lent = Tensor::new(DType::UInt8, shape, borrowed(&[1, 2, 3])).unwrap();
        let mut store = TensorStore::default();
        store.put(Text::from("a"), lent).unwrap();
        let kept = store.fetch("a").unwrap();
        assert!(!kept.data.is_borrowed() && kept.data[..] == [1, 2, 3]);
    }

    fn bytes(count: usize) -> Tensor {
        let shape = Shape::new(&[count as u64]).unwrap();
        Tensor::new(DType::UInt8, shape, vec![7; count]).unwrap()
    }

    fn store(names: &[&str]) -> TensorStore {
        let mut store = TensorStore::default();
        for name in names {
            store.put(Text::from(*name), bytes(name.len())).unwrap();
        }
        store
    }

    /// What tensors count for under so many bytes of names, with so many bytes of data.
    fn counted(tensors: u64, name_bytes: u64, data_bytes: u64) -> u64 {
        tensors * TensorStore::ENTRY_BYTES + name_bytes + data_bytes
    }

    #[test]
    fn names_come_in_byte_order_and_bytes_are_counted() {
        let mut store = store(&["b", "a.weight", "B", "é", "a"]);
        let names: Vec<&str> = store.names().map(Text::as_str).collect();
        assert_eq!(names, ["B", "a", "a.weight", "b", "é"]);
        assert_eq!(store.stored_bytes(), counted(5, 13, 1 + 8 + 1 + 2 + 1));
        assert_eq!(
            store.put(Text::from("b"), bytes(5)).unwrap(),
            Some(bytes(1))
        );
        assert_eq!(store.stored_bytes(), counted(5, 13, 17));
        assert_eq!(store.remove("b"), Some(bytes(5)));
        assert_eq!(store.remove("b"), None);
        let left = counted(4, 12, 12);
        assert_eq!((store.len(), store.stored_bytes()), (4, left));
        store.clear();
        assert_eq!((store.len(), store.stored_bytes()), (0, 0));
    }

    #[test]
    fn a_replica_shares_the_data() {
        let store = store(&["w"]);
        let replica = store.clone();
        let (here, there) = (store.fetch("w").unwrap(), replica.fetch("w").unwrap());
        assert_eq!(here.data.as_ptr(), there.data.as_ptr());
    }

    #[test]
    fn patterns_select_names() {
        let store = store(&["layer.0.bias", "layer.0.weight", "layer.10.weight", "norm"]);
        let select = |pattern| -> Vec<&str> { store.matching(pattern).map(Text::as_str).collect() };
        assert_eq!(select("*").len(), 4);
        assert_eq!(select("layer.?.weight"), ["layer.0.weight"]);
        assert_eq!(select("*weight"), ["layer.0.weight", "layer.10.weight"]);
        assert_eq!(select("norm"), ["norm"]);
        assert!(select("nor").is_empty());
        assert!(select("").is_empty());
    }

    #[test]
    fn an_unknown_name_shows_its_neighbours() {
        let store = store(&["a", "c"]);
        let status = store.fetch("b").unwrap_err();
        assert_eq!(status.code, Code::NotFound);
        assert!(
            status.message.contains("b; the nearest names are a and c"),
            "{status}"
        );
        assert!(
            TensorStore::default()
                .fetch("b")
                .unwrap_err()
                .message
                .contains("empty")
        );
    }

    #[test]
    fn limits_hand_the_tensor_back() {
        let mut store = TensorStore::new(StoreLimits {
            tensors: 2,
            name_bytes: 3,
            stored_bytes: counted(2, 2, 10),
        });
        let mut refuse = |name: &str, count: usize, code: Code, word: &str| {
            let rejected = store.put(Text::from(name), bytes(count)).unwrap_err();
            assert_eq!(rejected.value, bytes(count));
            assert_eq!(rejected.status.code, code);
            assert!(rejected.status.message.contains(word), "{rejected}");
        };
        refuse("", 1, Code::InvalidArgument, "name_bytes");
        refuse("long", 1, Code::InvalidArgument, "name_bytes");
        let beyond = counted(1, 1, 11) as usize;
        refuse("a", beyond, Code::ResourceExhausted, "stored_bytes");
        store.put(Text::from("a"), bytes(6)).unwrap();
        store.put(Text::from("a"), bytes(9)).unwrap();
        store.put(Text::from("b"), bytes(1)).unwrap();
        let full = store.put(Text::from("c"), bytes(0)).unwrap_err();
        assert!(full.status.message.contains("tensors = 2"), "{full}");
        let dead = store.put(Text::from("a"), Tensor::dead()).unwrap_err();
        assert_eq!(dead.status.code, Code::InvalidArgument);
    }

    #[test]
    fn long_names_of_empty_tensors_are_limited() {
        let limits = StoreLimits::default().with(|limits| limits.stored_bytes = 10_000);
        let mut store = TensorStore::new(limits);
        let name = |index: usize| Text::from(format!("{index:0>1000}"));
        let put = (0..20).take_while(|&index| store.put(name(index), bytes(0)).is_ok());
        assert_eq!(put.count(), 10_000 / 1_256);
        let short = store.put(Text::from("a"), bytes(2_000)).unwrap_err();
        assert_eq!(short.status.code, Code::ResourceExhausted);
    }
}
