//! What the log says of an engine: which code holds its shard, and which step waits.

#[path = "support/log.rs"]
mod log;

use std::thread::sleep;
use std::time::Duration;

use grpcxx_rpc::proto::CleanupGraphRequest;
use grpcxx_rpc::{GraphCall, RendezvousKey, Status, Tensor};
use grpcxx_runtime::service::{Methods, Place, Request, Response, ServiceClient, TypedService};
use grpcxx_runtime::{Engine, EngineOptions};
use log::Log;

/// Long enough to be told.
const HELD: Duration = Duration::from_millis(600);

fn start(change: impl FnOnce(&mut EngineOptions)) -> Engine {
    let options = EngineOptions::default().with(|options| {
        options.listen = Some(([127, 0, 0, 1], 0).into());
        options.shard_held_max = Some(HELD / 2);
    });
    Engine::start(options.with(change)).unwrap()
}

type Answer = Result<[(&'static str, Tensor); 1], Status>;

fn answer() -> Answer {
    Ok([("y", Tensor::scalar(1.0f32))])
}

struct Sleepy;

impl TypedService for Sleepy {
    const NAME: &'static str = "told.Sleepy";

    fn into_methods(self) -> Methods {
        let methods = Methods::new(Self::NAME, &[], Place::Shard);
        methods.unary(
            "Sleep",
            |request: Request<CleanupGraphRequest>| async move {
                sleep(HELD);
                Ok(Response::new(request.into_inner()))
            },
        )
    }
}

#[test]
fn code_that_holds_its_shard_is_named_once() {
    let log = Log::start();
    let server = start(|_| {});
    server.register_short("slow short", |_: GraphCall| {
        sleep(HELD);
        answer()
    });
    server.register_short("quick short", |_: GraphCall| answer());
    server.register_async("slow future", |_: GraphCall| async {
        sleep(HELD);
        answer()
    });
    let patient = |_: GraphCall| async {
        grpcxx_runtime::local::sleep(2 * HELD).await;
        answer()
    };
    server.register_async("patient future", patient);
    server.add_service(Sleepy);
    let caller = start(|_| {});
    let address = server.local_addr().unwrap().to_string();
    let remote = caller.connect(&address).unwrap();
    for name in ["patient future", "quick short", "slow short", "slow future"] {
        for _ in 0..3 {
            let call = GraphCall::new(name).with_fetch("y");
            remote.run(call).wait().unwrap();
        }
    }
    let client = ServiceClient::new(remote);
    for _ in 0..3 {
        let request = Request::new(CleanupGraphRequest::default());
        let call = client.unary::<_, CleanupGraphRequest>("/told.Sleepy/Sleep", request);
        call.wait().unwrap();
    }
    for name in ["slow short", "slow future", "/told.Sleepy/Sleep"] {
        let lines = log.await_lines(&["held its shard", name]);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].contains("held_ms=") && lines[0].contains("compute pool"));
    }
    let told = log.await_lines(&["held its shard"]);
    assert_eq!(told.len(), 3, "{told:?}");
}

#[test]
fn a_step_that_waits_long_is_told_with_its_key_and_who_asks() {
    let log = Log::start();
    let wait = Duration::from_millis(20);
    let server = start(|options| options.patience.step_wait = Some(wait));
    let caller = start(|_| {});
    let device = &server.device_attributes().name;
    let receiver = "/job:worker/replica:0/task:0/device:CPU:0";
    let key = RendezvousKey::new(device, server.incarnation(), receiver, "missing edge");
    let key = key.unwrap().to_text();
    let address = server.local_addr().unwrap().to_string();
    let remote = caller.connect(&address).unwrap();
    let receives = [
        remote.receive(77, key.clone()),
        remote.receive(77, key.clone()),
    ];
    let lines = log.await_lines(&["a step waits for a tensor that is not there"]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let waited = lines[0].split_once("waited_ms=").unwrap().1;
    let waited: String = waited.chars().take_while(char::is_ascii_digit).collect();
    assert!(
        waited.parse::<u128>().unwrap() >= wait.as_millis(),
        "{lines:?}"
    );
    for part in [
        "WARN",
        "peer=\"127.0.0.1:",
        "step=77",
        &format!("under key {:?}", key.as_str()),
    ] {
        assert!(lines[0].contains(part), "{part} is not in {}", lines[0]);
    }
    drop(receives);
}
