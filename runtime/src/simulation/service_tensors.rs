use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use grpcxx_rpc::{Request, Tensor, Text};

use super::calls::Kind;
use super::cluster::Cluster;
use super::functions::locked;
use super::operations::LONG_TIMEOUT;
use super::tensors::tensor;

/// Tensors that a service keeps: whoever asks gets them, as often as they ask.
#[derive(Debug, Default)]
pub(super) struct ServiceTensors {
    lists: Mutex<BTreeMap<Vec<String>, Arc<[Tensor]>>>,
}

impl ServiceTensors {
    /// The tensor of a key, if it is one of these.
    pub(super) fn one(&self, key: &Text) -> Option<Tensor> {
        Some(self.list(std::slice::from_ref(key))?[0].clone())
    }

    /// The tensors that a request asks for, if they are these. The same keys get the same list.
    pub(super) fn of(&self, request: &Request) -> Option<Arc<[Tensor]>> {
        match request {
            Request::RecvTensor { key, .. } => self.list(std::slice::from_ref(key)),
            Request::FuseRecvTensor { keys, .. } => self.list(keys),
            _ => None,
        }
    }

    fn list(&self, keys: &[Text]) -> Option<Arc<[Tensor]>> {
        if !keys.iter().all(|key| key.starts_with(PREFIX)) {
            return None;
        }
        let make = || keys.iter().map(|key| tensor(bytes(key))).collect();
        // Keys may lie in memory that the task has to give back.
        let names = keys.iter().map(|key| key.as_str().to_owned()).collect();
        let mut lists = locked(&self.lists);
        let list = lists.entry(names).or_insert_with(make);
        Some(Arc::clone(list))
    }

    /// Whether no answer holds any of them.
    pub(super) fn is_at_rest(&self) -> bool {
        (locked(&self.lists).values()).all(|list| Arc::strong_count(list) == 1)
    }
}

impl Cluster {
    /// A request for one of these tensors.
    pub(super) fn service_tensor(&mut self) -> (Kind, Request) {
        let key = key(self.random.usize(..SERVICE_TENSORS));
        let step_id = self.any_step();
        let keys = vec![key.clone()];
        (
            Kind::ServiceTensors { keys },
            Request::RecvTensor { step_id, key },
        )
    }

    /// Asks for tensors that the service of a task keeps.
    pub(super) fn call_service_tensors(&mut self) {
        let (Some(caller), Some(callee)) = (self.any_caller(), self.any_task()) else {
            return;
        };
        let Some(peer) = self.peer(caller, callee) else {
            return;
        };
        let step_id = self.any_step();
        let first = self.random.usize(..SERVICE_TENSORS);
        let count = match self.random.u32(..3) {
            0 => 1,
            _ => self.random.usize(1..=SERVICE_TENSORS),
        };
        let numbers = first..first + count;
        let keys: Vec<Text> = numbers
            .map(|number| key(number % SERVICE_TENSORS))
            .collect();
        let request = match &keys[..] {
            [key] if self.random.bool() => Request::RecvTensor {
                step_id,
                key: key.clone(),
            },
            _ => Request::FuseRecvTensor {
                step_id,
                keys: keys.clone().into(),
            },
        };
        let kind = Kind::ServiceTensors { keys };
        let timeout = (self.random.u32(..4) == 0).then(|| self.pause(20));
        if self.random.u32(..4) == 0 {
            let timeout = timeout.unwrap_or(LONG_TIMEOUT);
            self.call_with_handler(caller, &peer, kind, request, timeout);
        } else {
            let id = self.call_future(caller, &peer, kind, request, timeout);
            self.maybe_drop(id);
        }
    }
}

/// The key of a tensor of a service.
fn key(number: usize) -> Text {
    Text::from(format!("{PREFIX}{number}"))
}

/// The bytes of a tensor of a service: from a few bytes to more than share a frame with others.
pub(super) fn bytes(key: &str) -> Vec<u8> {
    let number = key.bytes().last().map_or(0, usize::from);
    key.bytes().cycle().take(20 << (number % 7)).collect()
}

const PREFIX: &str = "service_";

/// Tensors that each service keeps.
const SERVICE_TENSORS: usize = 8;
