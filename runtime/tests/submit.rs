//! Calls that code on a shard makes, and what withdraws them.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use grpcxx_rpc::{Code, Reason, RendezvousKey, Request};
use grpcxx_runtime::{CallResult, CallSpec, Cancellation, CompletionHandler, Engine, ShardContext};

/// Tells how its calls end.
struct Ends(Mutex<Sender<(u64, CallResult)>>);

impl CompletionHandler for Ends {
    fn on_complete(self: Arc<Self>, token: u64, result: CallResult, _: &mut ShardContext<'_>) {
        let sender = self.0.lock().unwrap();
        sender.send((token, result)).expect("the test listens");
    }
}

/// From the shard of the peer and from another one, before the call is begun and later.
#[test]
fn a_cancellation_withdraws_a_call_that_a_shard_has_made() {
    let listen = || Engine::builder().listen("127.0.0.1:0").shards(2).start();
    let (server, worker) = (listen().unwrap(), listen().unwrap());
    let peer = (worker.client())
        .peer(&server.local_addr().unwrap().to_string())
        .unwrap();
    let device = &server.device_attributes().name;
    let key = RendezvousKey::new(device, server.incarnation(), device, "never sent").unwrap();
    let request = Request::RecvTensor {
        step_id: 1,
        key: key.to_text(),
    };
    let (sender, ends) = channel();
    let handler = Arc::new(Ends(Mutex::new(sender)));
    for token in 0..4 {
        let cancellation = Cancellation::new();
        let is_late = token >= 2;
        if !is_late {
            cancellation.cancel();
        }
        let (begun, is_begun) = channel();
        let (peer, request) = (peer.clone(), request.clone());
        let (handler, for_call) = (handler.clone(), cancellation.clone());
        let code = move |shard: &mut ShardContext<'_>| {
            let spec = CallSpec::new(&peer, request).with_cancellation(&for_call);
            shard.submit(spec, handler, token);
            begun.send(()).unwrap();
        };
        worker.run_on(token as usize % 2, code).unwrap();
        is_begun.recv_timeout(PATIENCE).unwrap();
        if is_late {
            assert!(ends.recv_timeout(Duration::from_millis(20)).is_err());
            cancellation.cancel();
        }
        let (ended, result) = ends.recv_timeout(PATIENCE).expect("the call hangs");
        let status = result.unwrap_err();
        assert_eq!(ended, token);
        assert_eq!(
            (status.code, status.reason),
            (Code::Cancelled, Reason::Cancelled)
        );
    }
}

/// Longer than a loaded machine takes for any of this.
const PATIENCE: Duration = Duration::from_secs(60);
