//! Somebody with an encoder of its own, so that no check of the product's codec stands between it
//! and the engine, and servers for it to ask.

#![allow(dead_code, reason = "each test file uses a part")]

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use grpcxx_memory::ArenaOptions;
use grpcxx_rpc::{DType, Shape, Tensor, Text};
use grpcxx_runtime::cluster::TaskId;
use grpcxx_runtime::policy::{Policy, Secret, StoreAccess, TokenSource};
use grpcxx_runtime::{Engine, EngineOptions, STORE_PULL, STORE_PUSH};
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};

pub(crate) const GET_STATUS: i32 = 0;
pub(crate) const RUN_GRAPH: i32 = 6;
pub(crate) const STAR_RUN_GRAPH: i32 = 7;
pub(crate) const CLEANUP_GRAPH: i32 = 8;
pub(crate) const CLEANUP_ALL: i32 = 9;
pub(crate) const RECV_TENSOR: i32 = 10;
pub(crate) const OK: i32 = 0;
pub(crate) const PERMISSION_DENIED: i32 = 7;
pub(crate) const ABORTED: i32 = 10;
pub(crate) const UNAUTHENTICATED: i32 = 16;
pub(crate) const UINT8: i32 = 4;

/// Where the tasks of the cluster are, and where a stranger is.
pub(crate) const MEMBER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
pub(crate) const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

pub(crate) const KEY: &str = "the key that two tasks share";

/// Lets the tasks of the cluster do what tasks do, and strangers only read the store.
pub(crate) fn members_only() -> Policy {
    Policy {
        admin: Some("none".parse().unwrap()),
        members: Some("127.0.0.1".parse().unwrap()),
        store: Some(StoreAccess::ReadOnly),
        ..Policy::default()
    }
}

pub(crate) fn with_token(key: &str) -> Policy {
    Policy {
        token: Some(TokenSource::Key(Secret::new(key))),
        ..Policy::default()
    }
}

pub(crate) fn options(job: &str, policy: Policy) -> EngineOptions {
    EngineOptions::default().with(|options| {
        options.task = TaskId::new(job, 0);
        options.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.arena = Some(ArenaOptions::default().with(|options| {
            options.capacity_bytes = 64 << 20;
            options.huge_pages = false;
        }));
        options.shm = None;
        options.policy = policy;
    })
}

pub(crate) fn engine(job: &str, policy: Policy) -> Engine {
    Engine::start(options(job, policy)).unwrap()
}

/// A server with one tensor in its store, of these bytes.
pub(crate) fn server_with_model(policy: Policy) -> Engine {
    let server = engine("ps", policy);
    let tensors = vec![(Text::from("weights"), bytes_tensor(&[7; 100]))];
    server.store_put(tensors).unwrap();
    server
}

pub(crate) fn bytes_tensor(data: &[u8]) -> Tensor {
    let shape = Shape::new(&[data.len() as u64]).unwrap();
    Tensor::new(DType::UInt8, shape, data.to_vec()).unwrap()
}

/// The bytes of the tensor in the store, if it is there.
pub(crate) fn model(server: &Engine) -> Option<Vec<u8>> {
    let stored = server.stored();
    let (_, tensor) = stored.iter().find(|(name, _)| name == "weights")?;
    Some(tensor.data.to_vec())
}

/// A connection of somebody at this address.
pub(crate) struct Hostile {
    pub(crate) stream: TcpStream,
    tag: u64,
}

impl Hostile {
    pub(crate) fn at(address: Ipv4Addr, engine: &Engine) -> Self {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::new(address.into(), 0)).unwrap();
        connect(&socket, &engine.local_addr().unwrap()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        Self { stream, tag: 0 }
    }

    /// Sends a request, and returns the status and the payload of its answer.
    pub(crate) fn ask(&mut self, method: i32, metadata: i32, payload: &[u8]) -> (i32, Vec<u8>) {
        self.send(method, metadata, payload);
        self.read_answer()
    }

    fn send(&mut self, method: i32, metadata: i32, payload: &[u8]) {
        self.tag += 1;
        let mut bytes = b"AAAA".to_vec();
        bytes.extend(method.to_le_bytes());
        bytes.extend(self.tag.to_le_bytes());
        bytes.extend(0_i32.to_le_bytes());
        bytes.extend(metadata.to_le_bytes());
        bytes.extend((payload.len() as u64).to_le_bytes());
        bytes.extend(payload);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The status and the payload of the answer to the last request.
    pub(crate) fn read_answer(&mut self) -> (i32, Vec<u8>) {
        let mut head = [0; 32];
        self.stream.read_exact(&mut head).unwrap();
        assert_eq!(&head[..4], b"BBBB");
        assert_eq!(head[8..16], self.tag.to_le_bytes());
        let status = i32::from_le_bytes(head[16..20].try_into().unwrap());
        let len = u64::from_le_bytes(head[24..].try_into().unwrap());
        let mut body = vec![0; len as usize];
        self.stream.read_exact(&mut body).unwrap();
        (status, body)
    }

    /// Calls a function that is fed one tensor called `weights`, and fetches nothing or that.
    pub(crate) fn call(
        &mut self,
        function: &str,
        step: u64,
        graphs: i32,
        feed: &[u8],
    ) -> (i32, Vec<u8>) {
        let is_fed = !feed.is_empty();
        let mut payload = i32::from(is_fed).to_le_bytes().to_vec();
        payload.extend(if is_fed { name("weights") } else { vec![] });
        payload.extend(i32::from(!is_fed).to_le_bytes());
        payload.extend(if is_fed { vec![] } else { name("weights") });
        payload.extend(name(function));
        payload.extend(step.to_le_bytes());
        payload.extend(graphs.to_le_bytes());
        payload.push(0);
        payload.extend([name(""), name("")].concat());
        let metadata = payload.len() as i32;
        if is_fed {
            payload.push(0);
            payload.extend(UINT8.to_le_bytes());
            payload.extend((feed.len() as u32).to_le_bytes());
            payload.extend([0; 8]);
            payload.extend([0, UINT8 as u8, 1, 1]);
            payload.extend((feed.len() as i64).to_le_bytes());
            payload.extend((feed.len() as u64).to_le_bytes());
            payload.extend(feed);
        }
        self.ask(STAR_RUN_GRAPH, metadata, &payload)
    }

    pub(crate) fn push(&mut self, data: &[u8]) -> (i32, Vec<u8>) {
        self.call(STORE_PUSH, 1, 0, data)
    }

    pub(crate) fn pull(&mut self) -> (i32, Vec<u8>) {
        self.call(STORE_PULL, 1, 0, &[])
    }

    pub(crate) fn receive(&mut self, step: u8, key: &Text) -> (i32, Vec<u8>) {
        self.begin_receive(step, key);
        self.read_answer()
    }

    /// Asks for a tensor, whose answer comes once it is there.
    pub(crate) fn begin_receive(&mut self, step: u8, key: &Text) {
        let mut payload = vec![0x08, step, 0x12, key.len() as u8];
        if key.len() > 127 {
            payload = vec![0x08, step, 0x12, key.len() as u8 | 0x80, 1];
        }
        payload.extend(key.as_bytes());
        self.send(RECV_TENSOR, 0, &payload);
    }

    /// Waits until the engine ends the connection, which it does without a word.
    pub(crate) fn await_end(&mut self) {
        match self.stream.read(&mut [0; 64]) {
            Ok(count) => assert_eq!(count, 0, "bytes instead of the end"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
        }
    }
}

pub(crate) fn name(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u16).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

pub(crate) fn assert_refused((status, text): (i32, Vec<u8>), right: &str, setting: &str) {
    let text = String::from_utf8(text).unwrap();
    assert_eq!(status, PERMISSION_DENIED, "{text}");
    for wanted in [right, setting] {
        assert!(text.contains(wanted), "{text}");
    }
}

/// A tensor that waits in step 5 of the server, and its key.
pub(crate) fn waiting_tensor(server: &Engine) -> Text {
    let key = server.key(&TaskId::new("worker", 0), "edge").unwrap();
    server.send(5, key.clone(), bytes_tensor(&[3; 10])).unwrap();
    key
}

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
