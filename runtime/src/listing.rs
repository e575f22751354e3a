//! Listings of the store, and how much of them peers have not read.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use foldhash::fast::RandomState;
use grpcxx_memory::Buffer;
use grpcxx_rpc::{
    Account, Code, GraphCall, NamedTensors, Reason, Shape, Status, Tensor, TensorStore, Text,
    has_part,
};

use crate::command::Shared;
use crate::function::Function;

/// Name of the built-in function that describes the store. Fetches, each with one element for each
/// tensor in byte order of the names: `names` (string), `dtypes` (int32, TensorFlow's numbers),
/// `shapes` (string, as in `[2, 3]`), `bytes` (int64).
pub const STORE_LIST: &str = "grpcxx.store.list";

/// Answers listings of a store.
pub(crate) struct Lister {
    store: Shared<TensorStore>,
    listings: Mutex<Listings>,
}

/// What was listed of a store, as it is and as it was.
///
/// All answers about one state of the store share its columns, so who asks often and reads nothing
/// holds one listing of each state. Of the states before the last one, each peer holds no more than
/// its part.
#[derive(Default)]
struct Listings {
    store: Weak<TensorStore>,
    columns: Vec<(Text, Tensor)>,
    readers: Readers,
    former: Vec<Former>,
}

/// The listing of a state that is over, parts of which have not left this task.
struct Former {
    bytes: usize,
    readers: Readers,
}

/// Whose answers exist: all answers of a peer about one state hold its reference.
type Readers = HashMap<Account, Weak<()>, RandomState>;

/// A column in an answer to a peer.
struct Answered {
    column: Buffer,
    #[expect(dead_code, reason = "held to be dropped")]
    reader: Arc<()>,
}

impl Lister {
    /// A lister of this store.
    pub(crate) fn of(store: &Shared<TensorStore>) -> Self {
        Self {
            store: store.clone(),
            listings: Mutex::default(),
        }
    }

    /// The function that lists the store for a peer.
    pub(crate) fn for_peer(self: &Arc<Self>, peer: Account) -> Arc<dyn Function> {
        let lister = Arc::clone(self);
        Arc::new(move |call: GraphCall| {
            let listings = lister.listings.lock();
            let mut listings = listings.unwrap_or_else(PoisonError::into_inner);
            listings.answer(&lister.store.load_full(), &call, peer)
        })
    }
}

impl Listings {
    fn answer(
        &mut self,
        store: &Arc<TensorStore>,
        call: &GraphCall,
        peer: Account,
    ) -> Result<NamedTensors, Status> {
        if !std::ptr::eq(self.store.as_ptr(), Arc::as_ptr(store)) {
            self.begin(store);
        }
        let known_reader = self.readers.get(&peer).and_then(Weak::upgrade);
        let reader = match known_reader {
            Some(reader) => reader,
            None => self.join(peer)?,
        };
        let mut fetched = NamedTensors::with_capacity(call.fetches.len());
        for name in &call.fetches {
            let mut tensor = self.column(store, name)?;
            tensor.data = Buffer::from_owner(Answered {
                column: tensor.data,
                reader: Arc::clone(&reader),
            });
            fetched.push((name.clone(), tensor));
        }
        Ok(fetched)
    }

    /// Begins to list another state of the store.
    fn begin(&mut self, store: &Arc<TensorStore>) {
        let columns = std::mem::take(&mut self.columns);
        let lengths = columns.iter().map(|(_, column)| column.data.len());
        self.former.push(Former {
            bytes: lengths.sum::<usize>().max(FORMER_BYTES_MIN),
            readers: std::mem::take(&mut self.readers),
        });
        self.store = Arc::downgrade(store);
    }

    /// Makes a peer a reader of the state.
    ///
    /// # Errors
    /// It has not read too much of listings before.
    fn join(&mut self, peer: Account) -> Result<Arc<()>, Status> {
        self.former.retain_mut(Former::is_held);
        let (mut all, mut own) = (0, 0);
        for former in &self.former {
            all += former.bytes;
            if former.readers.contains_key(&peer) {
                own += former.bytes;
            }
        }
        // Whoever has read all is not refused for what others have not.
        if own > 0 && !has_part(own, all, UNREAD_BYTES_MAX) {
            let text = format!(
                "answers to {STORE_LIST} before changes of the store have {all} bytes that peers \
                 have not read, {own} of them this one, which has no larger part of the \
                 {UNREAD_BYTES_MAX} allowed; read the answers, or close the connections that \
                 wait for them"
            );
            return Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit));
        }
        let reader = Arc::default();
        self.readers.insert(peer, Arc::downgrade(&reader));
        Ok(reader)
    }

    fn column(&mut self, store: &TensorStore, name: &Text) -> Result<Tensor, Status> {
        if let Some((_, known)) = self.columns.iter().find(|(known, _)| known == name) {
            return Ok(known.clone());
        }
        let column = column(store, name)?;
        self.columns.push((name.clone(), column.clone()));
        Ok(column)
    }
}

impl Former {
    /// Whether answers of it exist. Forgets whose answers do not.
    fn is_held(&mut self) -> bool {
        self.readers.retain(|_, reader| reader.strong_count() > 0);
        !self.readers.is_empty()
    }
}

impl AsRef<[u8]> for Answered {
    fn as_ref(&self) -> &[u8] {
        &self.column
    }
}

fn column(store: &TensorStore, name: &Text) -> Result<Tensor, Status> {
    let shape = Shape::new(&[store.len() as u64])
        .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
    match name.as_str() {
        "names" => Tensor::from_strings(shape, store.iter().map(|(name, _)| name.as_bytes())),
        "shapes" => {
            let texts: Vec<String> = store
                .iter()
                .map(|(_, tensor)| tensor.shape.to_string())
                .collect();
            Tensor::from_strings(shape, texts.iter().map(String::as_bytes))
        }
        "dtypes" => {
            let numbers: Vec<i32> = store
                .iter()
                .map(|(_, tensor)| i32::from(tensor.dtype.number()))
                .collect();
            Tensor::from_slice(shape, &numbers)
        }
        "bytes" => {
            let sizes: Vec<i64> = store
                .iter()
                .map(|(_, tensor)| tensor.data.len() as i64)
                .collect();
            Tensor::from_slice(shape, &sizes)
        }
        _ => Err(Status::new(
            Code::InvalidArgument,
            format!("{STORE_LIST} has no \"{name}\"; fetch names, dtypes, shapes or bytes"),
        )),
    }
}

/// Bytes of listings before changes of the store that peers have not read, of which each peer has a
/// part. The columns of one more state come on top.
const UNREAD_BYTES_MAX: usize = 128 << 20;

/// What the listing of a small store counts at least, so that there are not too many.
const FORMER_BYTES_MIN: usize = 64 << 10;

#[cfg(all(test, not(loom)))]
mod tests {
    use grpcxx_rpc::StoreLimits;

    use super::*;

    fn peer(last: u8) -> Account {
        Account::of([10, 0, 0, last].into())
    }

    fn names(
        listings: &mut Listings,
        store: &Arc<TensorStore>,
        of: Account,
    ) -> Result<NamedTensors, Status> {
        let call = GraphCall {
            fetches: vec![Text::from("names"); 2].into(),
            ..GraphCall::default()
        };
        listings.answer(store, &call, of)
    }

    #[test]
    fn all_listings_of_a_store_are_the_same_memory() {
        let mut store = TensorStore::new(StoreLimits::default());
        let tensor = || Tensor::scalar(1.0_f32);
        store.put(Text::from("a"), tensor()).unwrap();
        let one = Arc::new(store.clone());
        store.put(Text::from("b"), tensor()).unwrap();
        let two = Arc::new(store);

        let mut listings = Listings::default();
        let mut names = |store: &Arc<TensorStore>, of: u8| {
            let answer = names(&mut listings, store, peer(of)).unwrap();
            assert_eq!(answer[0].1.data.as_ptr(), answer[1].1.data.as_ptr());
            answer[0].1.clone()
        };
        let (first, again, changed) = (names(&one, 1), names(&one, 2), names(&two, 1));
        assert_eq!(first.data.as_ptr(), again.data.as_ptr());
        assert_eq!(
            (first.shape.num_elements(), changed.shape.num_elements()),
            (1, 2)
        );
    }

    /// A store whose names take 25 MB.
    fn store_of_long_names() -> TensorStore {
        let mut store = TensorStore::new(StoreLimits::default());
        for index in 0..500 {
            let name = Text::from(format!("{index:0>50000}").as_str());
            store.put(name, Tensor::scalar(1.0_f32)).unwrap();
        }
        store
    }

    #[test]
    fn who_reads_nothing_has_a_part_and_others_go_on() {
        let store = store_of_long_names();
        let mut states = (0..20).map(|_| Arc::new(store.clone()));
        let mut listings = Listings::default();
        let mut unread = Vec::new();
        let refused = loop {
            let state = states.next().expect("it is refused before");
            match names(&mut listings, &state, peer(1)) {
                Ok(answer) => unread.push((state, answer)),
                Err(refused) => break refused,
            }
        };
        assert_eq!(unread.len(), 3);
        assert_eq!(refused.code, Code::ResourceExhausted);
        let told = "have 75004542 bytes that peers have not read, 75004542 of them this one";
        assert!(refused.message.contains(told), "{}", refused.message);

        // Another peer has its part, which lets the first one in no more than before.
        let state = states.next().unwrap();
        let read = names(&mut listings, &state, peer(2)).unwrap();
        assert!(names(&mut listings, &state, peer(1)).is_err());
        assert!(names(&mut listings, &state, peer(2)).is_ok());
        drop(read);
        // Who reads goes on.
        unread.clear();
        assert!(names(&mut listings, &states.next().unwrap(), peer(1)).is_ok());
        assert!(listings.former.is_empty());
    }

    #[test]
    fn who_holds_nothing_is_listed_whatever_others_hold() {
        let store = store_of_long_names();
        let mut listings = Listings::default();
        let mut unread = Vec::new();
        for last in 10..18 {
            let state = Arc::new(store.clone());
            let answer = names(&mut listings, &state, peer(last)).unwrap();
            unread.push((state, answer));
        }
    }
}
