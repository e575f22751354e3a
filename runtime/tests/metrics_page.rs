//! The metrics page of an engine over real sockets.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, GraphCall, RendezvousKey, Request, Tensor};
use grpcxx_runtime::exposition::{
    AwaitedTensor, MetricKind, MetricsPage, ProgramPage, SERVER_METRICS,
};
use grpcxx_runtime::{Engine, EngineOptions};

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
const PATIENCE: Duration = Duration::from_secs(20);

fn engine() -> Engine {
    let mut options = EngineOptions::default();
    options.listen = Some(ANY);
    Engine::start(options).unwrap()
}

fn page(engine: &Engine) -> MetricsPage {
    MetricsPage::start(ANY, engine.exposition(), None, ProgramPage::default()).unwrap()
}

fn connect(page: &MetricsPage) -> TcpStream {
    let stream = TcpStream::connect(page.address()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn ask(page: &MetricsPage, request: &str) -> String {
    let mut stream = connect(page);
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn get(page: &MetricsPage, path: &str) -> String {
    ask(page, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
}

/// A place that a scrape has had is free again, whatever the program does within it.
#[test]
fn a_program_that_panics_leaves_the_page_to_others() {
    let engine = engine();
    let program = ProgramPage {
        metrics: Some(Arc::new(|_: &mut _| panic!("no numbers today"))),
        ..ProgramPage::default()
    };
    let page = MetricsPage::start(ANY, engine.exposition(), None, program).unwrap();
    for _ in 0..100 {
        let mut stream = connect(&page);
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
            .unwrap();
        // It ends without an answer.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert!(get(&page, "/healthz").starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn the_page_shows_the_engine_and_the_program() {
    let engine = engine();
    let more = |text: &mut grpcxx_runtime::exposition::MetricsText| {
        text.add("program_tensors", MetricKind::Counter, "Tensors.", 7);
    };
    let program = ProgramPage {
        metrics: Some(Arc::new(more)),
        ..ProgramPage::default()
    };
    let page = MetricsPage::start(ANY, engine.exposition(), None, program).unwrap();
    let text = get(&page, "/metrics?name=x");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    for part in [
        "text/plain; version=0.0.4",
        "\n# TYPE grpcxx_calls_total counter\n",
        "\n# TYPE grpcxx_call_seconds histogram\n",
        "\n# TYPE grpcxx_request_seconds histogram\n",
        "\ngrpcxx_shards_silent 0\n",
        "\ngrpcxx_stored_bytes 0\n",
        "\n# HELP grpcxx_program_tensors_total Tensors.\n",
        "\ngrpcxx_program_tensors_total 7\n",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

#[test]
fn peers_are_told_what_an_engine_and_its_program_count() {
    let engine = engine();
    let reads = engine.metrics().counter("reads_total", "Reads.", &[]);
    reads.unwrap().add(3);
    let kept = Arc::new(());
    let held = Arc::clone(&kept);
    engine.register_fn("holds", move |_: GraphCall| {
        let _held = &held;
        Ok([("y", Tensor::scalar(1.0f32))])
    });
    let caller = Engine::start(EngineOptions::default()).unwrap();
    let remote = caller.connect(&engine.local_addr().unwrap().to_string());
    let remote = remote.unwrap();
    let ask = |fetch: &str| {
        remote
            .run(GraphCall::new(SERVER_METRICS).with_fetch(fetch))
            .wait()
    };
    let told = ask("text").unwrap();
    let text = told.get("text").unwrap().strings().unwrap();
    let text = std::str::from_utf8(&text[0]).unwrap();
    for part in [
        "\n# TYPE grpcxx_calls_total counter\n",
        "\ngrpcxx_shards_silent 0\n",
        "\nreads_total 3\n",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
    let refused = ask("numbers").unwrap_err();
    assert_eq!(refused.code, Code::InvalidArgument, "{refused}");
    // Functions of an engine end with it, also those that know it.
    engine.shutdown(Duration::ZERO).unwrap();
    let end = Instant::now() + PATIENCE;
    while Arc::strong_count(&kept) > 1 {
        assert!(Instant::now() < end, "the functions are kept");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_page_shows_what_engine_and_program_wait_for() {
    let engine = engine();
    let awaited = |tensors: &mut Vec<AwaitedTensor>| {
        for (key, seconds) in [("b", 2), ("a", 7)] {
            tensors.push(AwaitedTensor {
                peer: "/job:ps/replica:0/task:0".to_owned(),
                step_id: 5,
                key: key.to_owned(),
                age: Duration::from_secs(seconds),
            });
        }
    };
    let program = ProgramPage {
        awaited: Some(Arc::new(awaited)),
        ..ProgramPage::default()
    };
    let page = MetricsPage::start(ANY, engine.exposition(), None, program).unwrap();
    let caller = Engine::start(EngineOptions::default()).unwrap();
    let peer = caller
        .client()
        .peer(&engine.local_addr().unwrap().to_string())
        .unwrap();
    // Nobody makes this tensor.
    let target = "/job:worker/replica:0/task:0/device:CPU:0";
    let source = engine.device_attributes().name.clone();
    let key = RendezvousKey::new(&source, engine.incarnation(), target, "never").unwrap();
    let request = Request::RecvTensor {
        step_id: 9,
        key: key.to_text(),
    };
    let receive = caller.client().call(&peer, request, None);
    let end = Instant::now() + PATIENCE;
    let told = loop {
        let text = get(&page, "/inspect");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
        assert!(
            head.contains("Content-Type: application/json\r\n"),
            "{head}"
        );
        let told: serde_json::Value = serde_json::from_str(body).unwrap();
        if told["receives_total"] == 1 {
            break told;
        }
        assert!(Instant::now() < end, "the request does not wait: {told:#}");
    };
    assert_eq!(told["receives"][0]["key"], key.to_text().as_str());
    assert_eq!(told["receives"][0]["step"], 9);
    assert_eq!(told["connections"][0]["side"], "server");
    assert_eq!(told["connections"][0]["is_connected"], true);
    assert_eq!(told["awaits_total"], 2);
    assert_eq!(told["awaits"][0]["key"], "a");
    assert_eq!(told["awaits"][0]["age_ms"], 7_000);
    assert_eq!(told["shards_silent"], 0);
    drop(receive);
}

#[test]
fn what_a_task_waits_for_is_told_to_admins_alone() {
    let engine = Engine::start(EngineOptions::default().with(|options| {
        options.listen = Some(ANY);
        options.policy.admin = Some("none".parse().unwrap());
    }));
    let page = page(&engine.unwrap());
    let refused = get(&page, "/inspect");
    assert!(
        refused.starts_with("HTTP/1.1 403 Forbidden\r\n"),
        "{refused}"
    );
    assert!(refused.contains("GRPCXX_ADMIN"), "{refused}");
    assert!(get(&page, "/metrics").starts_with("HTTP/1.1 200 OK\r\n"));
}

#[test]
fn health_and_wrong_requests_are_answered() {
    let engine = engine();
    let page = page(&engine);
    assert!(get(&page, "/healthz").ends_with("\r\n\r\nserving\n"));
    let alive = get(&page, "/livez");
    assert!(
        alive.starts_with("HTTP/1.1 200") && alive.ends_with("\r\n\r\nalive\n"),
        "{alive}"
    );
    let head = ask(&page, "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    assert!(get(&page, "/").starts_with("HTTP/1.1 404"));
    let post = "POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
    assert!(ask(&page, post).starts_with("HTTP/1.1 405"));
    assert!(ask(&page, "\u{1}\r\n\r\n").starts_with("HTTP/1.1 400"));
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(10_000));
    assert!(ask(&page, &long).starts_with("HTTP/1.1 431"));
    engine.shutdown(Duration::ZERO).unwrap();
    assert!(get(&page, "/livez").starts_with("HTTP/1.1 200"));
    let stopped = get(&page, "/healthz");
    assert!(
        stopped.starts_with("HTTP/1.1 503") && stopped.ends_with("stopping\n"),
        "{stopped}"
    );
}

#[test]
fn a_dead_engine_is_told() {
    let engine = engine();
    let page = page(&engine);
    engine.run_on(0, |_| panic!("asked to die")).unwrap();
    let end = Instant::now() + PATIENCE;
    while !get(&page, "/healthz").ends_with("failed\n") {
        assert!(Instant::now() < end, "nobody tells that the engine died");
    }
    let dead = get(&page, "/livez");
    assert!(
        dead.starts_with("HTTP/1.1 503") && dead.contains("asked to die"),
        "{dead}"
    );
    assert!(engine.shutdown(Duration::ZERO).is_err());
    assert!(get(&page, "/metrics").contains("\ngrpcxx_shards_silent 1\n"));
}

#[test]
fn who_asks_nothing_gives_way_and_the_end_waits_for_nobody() {
    let engine = engine();
    let page = page(&engine);
    let silent: Vec<_> = (0..100).map(|_| connect(&page)).collect();
    // Those that were closed to make room end at once.
    let end = Instant::now() + PATIENCE;
    let asked = || {
        let mut stream = connect(&page);
        let mut answer = String::new();
        // The connection may be one too many as long as the others are ending.
        let _ = stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n");
        let _ = stream.read_to_string(&mut answer);
        answer
    };
    while !asked().ends_with("serving\n") {
        assert!(Instant::now() < end, "silent connections keep the page");
    }
    let begin = Instant::now();
    drop(page);
    assert!(
        begin.elapsed() < Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
    drop(silent);
}

#[test]
fn addresses_that_may_not_connect_get_nothing() {
    let mut options = EngineOptions::default();
    options.listen = Some(ANY);
    options.policy.allow = Some("10.0.0.0/8".parse().unwrap());
    let engine = Engine::start(options).unwrap();
    let page = page(&engine);
    let mut answer = String::new();
    let mut stream = connect(&page);
    let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n");
    let _ = stream.read_to_string(&mut answer);
    assert_eq!(answer, "");
}
