use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use grpcxx_memory::Buffer;
use grpcxx_rpc::proto;
use grpcxx_rpc::{
    Code, GraphCall, NamedTensors, Response, Right, Status, Tensor, TensorStore, Text,
};
use prost::Message;

use crate::command::Shared;
use crate::compute::Pace;
use crate::function::{Function, HoldWatch};
use crate::listing::{Lister, STORE_LIST};
use crate::service::{MethodReport, Methods, Registered, ServiceReport};
use crate::staging::{Act, STORE_COMMIT, STORE_DISCARD, STORE_STAGE};

/// Name of the built-in function that returns tensors of the store: one fetch for each name.
pub const STORE_PULL: &str = "grpcxx.store.pull";
/// Name of the built-in function that puts tensors into the store: one feed for each name.
pub const STORE_PUSH: &str = "grpcxx.store.push";

/// Name of the function by which a task that listens tells what it waits for, which needs the right
/// *admin*. Fetches `json` (a scalar string), as the page `/inspect` shows it. Peers that are not
/// grpcxx do not have it.
pub const SERVER_INSPECT: &str = "grpcxx.server.inspect";

/// The right that a call of the function with this name needs.
pub(crate) fn right_of_function(name: &str) -> Right {
    match name {
        STORE_PULL | STORE_LIST => Right::Pull,
        STORE_PUSH | STORE_STAGE | STORE_COMMIT | STORE_DISCARD => Right::Push,
        SERVER_INSPECT => Right::Admin,
        _ => Right::Call,
    }
}

/// The functions that peers may call, by name.
#[derive(Clone, Default)]
pub(crate) struct Functions {
    entries: BTreeMap<Text, Entry>,
    services: BTreeMap<&'static str, ServiceReport>,
    methods: HashMap<Text, Arc<Registered>, RandomState>,
}

#[derive(Clone)]
pub(crate) enum Entry {
    /// Answered on the shard, for it only looks up references; where those are many, by the
    /// function.
    Pull(Arc<dyn Function>),
    /// Run as those of the program are, on threads of the engine.
    Push(Arc<dyn Function>, Arc<Pace>),
    /// A method of a service, by its path.
    Method(Arc<Registered>),
    Function(Arc<dyn Function>, Arc<Pace>),
    /// A function that counts what each peer has not read of its answers.
    List(Arc<Lister>),
    /// A function over what the connection has staged.
    Staging(Act),
}

impl Functions {
    /// The built-in functions over `store`.
    pub(crate) fn builtin(store: &Shared<TensorStore>) -> Self {
        let mut functions = Self::default();
        let pulled = store.clone();
        let pull: Arc<dyn Function> =
            Arc::new(move |call: GraphCall| fetch_all(&pulled.load_full(), &call.fetches));
        functions
            .entries
            .insert(Text::from(STORE_PULL), Entry::Pull(pull));
        let lister = Arc::new(Lister::of(store));
        (functions.entries).insert(Text::from(STORE_LIST), Entry::List(lister));
        let push = store.clone();
        let push = Arc::new(move |call: GraphCall| push_store(&push, call));
        (functions.entries).insert(Text::from(STORE_PUSH), Entry::Push(push, Arc::default()));
        for (name, act) in [
            (STORE_STAGE, Act::Stage),
            (STORE_COMMIT, Act::Commit),
            (STORE_DISCARD, Act::Discard),
        ] {
            (functions.entries).insert(Text::from(name), Entry::Staging(act));
        }
        functions
    }

    pub(crate) fn insert(&mut self, name: Text, function: Arc<dyn Function>) {
        let pace = Arc::default();
        self.entries.insert(name, Entry::Function(function, pace));
    }

    /// Takes in a service; one of that name is replaced, with the numbers of its methods.
    /// Methods may hold a shard for `held_max` before the log names them.
    pub(crate) fn insert_service(
        &mut self,
        service: &Methods,
        shards: usize,
        held_max: Option<Duration>,
    ) {
        let prefix = format!("/{}/", service.service);
        self.methods.retain(|path, _| !path.starts_with(&prefix));
        self.entries.retain(|name, _| !name.starts_with(&prefix));
        for (name, method) in &service.methods {
            let path = Text::from(format!("{prefix}{name}"));
            let method = method.clone();
            let watch = HoldWatch::new(path.clone(), held_max);
            let method = Arc::new(Registered::new(watch, method, service, shards));
            (self.entries).insert(path.clone(), Entry::Method(Arc::clone(&method)));
            self.methods.insert(path, method);
        }
        let report = ServiceReport::new(service.service, service.descriptors);
        self.services.insert(service.service, report);
    }

    /// The method at this path.
    pub(crate) fn method(&self, path: &str) -> Option<&Arc<Registered>> {
        self.methods.get(path)
    }

    /// The text for a caller of a path that is not there.
    pub(crate) fn unknown_path(&self, path: &str) -> String {
        let names: Vec<&str> = self.services.keys().copied().collect();
        let names = names.join(", ");
        format!("no method \"{path}\" is served here; the services are: {names}")
    }

    /// The services, in the order of their names.
    pub(crate) fn services(&self) -> Vec<ServiceReport> {
        self.services.values().cloned().collect()
    }

    /// What was counted of each method, in the order of their paths.
    pub(crate) fn method_reports(&self) -> Vec<MethodReport> {
        let methods = self.methods.iter();
        let mut reports: Vec<_> = methods
            .map(|(path, method)| method.stats.report(path))
            .collect();
        reports.sort_by(|a, b| a.path.cmp(&b.path));
        reports
    }

    pub(crate) fn find(&self, name: &Text) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// The text for a caller who asks for a function that is not there.
    pub(crate) fn unknown(&self, name: &Text) -> String {
        let names = self
            .entries
            .keys()
            .map(|name| name.escape_debug().to_string());
        let names = names.collect::<Vec<_>>().join(", ");
        let name = name.as_str();
        format!("no function {name:?} is registered here; there are: {names}")
    }
}

/// Most tensors that a shard looks up while all else that it does waits.
pub(crate) const PULL_ON_SHARD_MAX: usize = 32_767;

/// The tensors of the store with these names, as the answer to a call.
pub(crate) fn pull(store: &TensorStore, names: &[Text]) -> Result<Response, Status> {
    fetch_all(store, names).map(Response::Fetched)
}

fn fetch_all(store: &TensorStore, names: &[Text]) -> Result<NamedTensors, Status> {
    let mut tensors = NamedTensors::with_capacity(names.len());
    for name in names {
        tensors.push((name.clone(), store.fetch(name)?));
    }
    Ok(tensors)
}

/// Empties the store, as TensorFlow's CleanupAll empties resource containers: the default container
/// holds all tensors, other containers hold none.
pub(crate) fn cleanup_all(store: &Shared<TensorStore>, body: &Buffer) -> Result<Response, Status> {
    let request = proto::CleanupAllRequest::decode(&body[..]).map_err(|error| {
        Status::new(Code::InvalidArgument, format!("CleanupAllRequest: {error}"))
    })?;
    let names_default =
        request.container.is_empty() || request.container.iter().any(String::is_empty);
    if names_default {
        store.rcu(|store| {
            let mut store = TensorStore::clone(store);
            store.clear();
            store
        });
    }
    Ok(Response::Message(Buffer::new()))
}

/// Puts tensors into the store, all or none.
pub(crate) fn put_all(
    store: &Shared<TensorStore>,
    mut tensors: Vec<(Text, Tensor)>,
) -> Result<(), Status> {
    for (name, _) in &mut tensors {
        // It may be a part of a message, all of which it would keep.
        *name = Text::from(name.as_str());
    }
    let mut outcome = Ok(());
    store.rcu(|current| {
        let mut next = TensorStore::clone(current);
        outcome = tensors.iter().try_for_each(|(name, tensor)| {
            match next.put(name.clone(), tensor.clone()) {
                Ok(_replaced) => Ok(()),
                Err(rejected) => Err(rejected.status),
            }
        });
        match outcome {
            Ok(()) => Arc::new(next),
            Err(_) => Arc::clone(current),
        }
    });
    outcome
}

/// Forgets the tensors of these names.
pub(crate) fn remove_all(store: &Shared<TensorStore>, names: &[Text]) {
    store.rcu(|current| {
        let mut next = TensorStore::clone(current);
        for name in names {
            next.remove(name);
        }
        next
    });
}

fn push_store(store: &Shared<TensorStore>, call: GraphCall) -> Result<NamedTensors, Status> {
    if !call.fetches.is_empty() {
        return Err(Status::new(
            Code::InvalidArgument,
            format!("{STORE_PUSH} returns nothing; fetch nothing"),
        ));
    }
    put_all(store, call.feeds.into_vec())?;
    Ok(NamedTensors::new())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use arc_swap::ArcSwap;
    use grpcxx_rpc::{DType, Method, Request, Shape};

    use super::*;
    use crate::{Engine, EngineOptions};

    /// Memory that tells on which thread it is dropped.
    struct Told(Mutex<Sender<String>>);

    impl AsRef<[u8]> for Told {
        fn as_ref(&self) -> &[u8] {
            b"data"
        }
    }

    impl Drop for Told {
        fn drop(&mut self) {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or_default().to_owned();
            let _ = self.0.lock().unwrap().send(name);
        }
    }

    fn told() -> (Buffer, impl Fn() -> String) {
        let (sender, dropped) = channel();
        let memory = Buffer::from_owner(Told(Mutex::new(sender)));
        let patience = Duration::from_secs(20);
        (memory, move || dropped.recv_timeout(patience).unwrap())
    }

    #[test]
    fn a_shard_does_not_drop_what_was_in_a_store() {
        let engine = Engine::start(EngineOptions::default()).unwrap();
        let (memory, dropped_on) = told();
        let tensor = Tensor::new(DType::UInt8, Shape::vector(4), memory).unwrap();
        (engine.store_put(vec![(Text::from("a"), tensor)])).unwrap();
        let request = Request::Message {
            method: Method::CleanupAll,
            body: Buffer::new(),
        };
        engine.serve(request, None).wait().unwrap();
        let thread = dropped_on();
        assert!(thread.starts_with("chores"), "{thread}");
        assert!(engine.stored().is_empty());
    }

    #[test]
    fn the_name_of_a_tensor_does_not_keep_the_message_that_it_came_in() {
        let store = Arc::new(ArcSwap::from_pointee(TensorStore::new(
            grpcxx_rpc::StoreLimits::default(),
        )));
        let (message, dropped_on) = told();
        let name = Text::try_from(message).unwrap();
        put_all(&store, vec![(name, Tensor::scalar(1_u8))]).unwrap();
        dropped_on();
        assert!(store.load().fetch("data").is_ok());
    }
}
