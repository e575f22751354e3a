use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use http::uri::PathAndQuery;
use serde_json::json;
use tonic::Request;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};

use crate::codec::{BytesCodec, Parts};
use crate::keyvalue;
use crate::lookup::{self, Ids};
use crate::serve::WINDOW_BYTES;
use crate::typed;
use crate::{Failure, HEAD_BYTES, LOOKUP, Options, PULL, PUSH, USAGE, cpu_time};

/// Steps that begin after the warm-up are measured.
pub(crate) struct Times {
    from: Instant,
    until: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    nanoseconds: Vec<u64>,
}

impl Times {
    pub(crate) fn record(&mut self, begin: Instant, end: Instant) {
        if begin >= self.from {
            self.first = Some(self.first.map_or(begin, |first| first.min(begin)));
            self.last = Some(end);
            self.nanoseconds.push((end - begin).as_nanos() as u64);
        }
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        now >= self.until && !self.nanoseconds.is_empty()
    }

    fn quantile_us(&self, part: f64) -> f64 {
        let index = (part * self.nanoseconds.len() as f64) as usize;
        self.nanoseconds[index.min(self.nanoseconds.len() - 1)] as f64 / 1e3
    }
}

async fn call(channel: &Channel, head: &[u64], tensors: &Parts) -> Result<Bytes, Failure> {
    let mut bytes = Vec::with_capacity(HEAD_BYTES);
    for field in head {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.resize(HEAD_BYTES, 0);
    let mut parts = vec![Bytes::from(bytes)];
    parts.extend(tensors.iter().cloned());
    let mut grpc = Grpc::new(channel.clone())
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX);
    grpc.ready().await?;
    let path = PathAndQuery::from_static("/bench/Call");
    let answer = grpc.unary(Request::new(parts), path, BytesCodec).await?;
    Ok(answer.into_inner())
}

async fn server_seconds(channel: &Channel) -> Result<f64, Failure> {
    let mut answer = call(channel, &[USAGE], &Vec::new()).await?;
    Ok(answer.get_f64_le())
}

/// One slot: a step after the other until the time is over.
async fn steps(
    channel: Channel,
    options: Rc<Options>,
    tensors: Rc<Parts>,
    times: Rc<RefCell<Times>>,
) -> Result<(), Failure> {
    if let "unary" | "stream" = options.op.as_str() {
        return typed::steps(channel, options, times).await;
    }
    let (size, count) = (options.size as u64, options.count as u64);
    let mut ids = Ids::new();
    loop {
        let batch = vec![ids.batch(options.count)];
        let begin = Instant::now();
        if options.op == "lookup" {
            let answer = call(&channel, &[LOOKUP, size, count], &batch).await?;
            if answer.len() != options.size * options.count * 4 {
                return Err("an answer has the wrong length".into());
            }
        } else if options.op != "push" {
            let answer = call(&channel, &[PULL, size, count], &Vec::new()).await?;
            if answer.len() != options.size * options.count {
                return Err("an answer has the wrong length".into());
            }
        }
        if options.op == "push" || options.op == "ps" {
            call(&channel, &[PUSH, size, count], &tensors).await?;
        }
        let end = Instant::now();
        let mut times = times.borrow_mut();
        times.record(begin, end);
        if times.is_over(end) {
            return Ok(());
        }
    }
}

#[expect(clippy::print_stdout, reason = "the result")]
pub(crate) async fn run(options: Options) -> Result<(), Failure> {
    let mut channels = Vec::new();
    for _ in 0..options.connections {
        let endpoint = Endpoint::from_shared(format!("http://{}", options.address))?
            .tcp_nodelay(true)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(WINDOW_BYTES);
        channels.push(endpoint.connect().await?);
    }
    if let "get" | "put" | "scan" = options.op.as_str() {
        return keyvalue::load(&options, channels.swap_remove(0)).await;
    }
    let pushes = options.op == "push" || options.op == "ps";
    let tensors: Parts = (0..options.count * usize::from(pushes))
        .map(|_| Bytes::from(vec![7; options.size]))
        .collect();
    if options.op == "lookup" {
        for batch in lookup::all() {
            call(&channels[0], &[LOOKUP, options.size as u64], &vec![batch]).await?;
        }
    }
    let server_before = server_seconds(&channels[0]).await?;
    let client_before = cpu_time();
    let warm_up = Duration::from_secs_f64((options.seconds / 8.0).clamp(0.05, 1.0));
    let from = Instant::now() + warm_up;
    let times = Rc::new(RefCell::new(Times {
        from,
        until: from + Duration::from_secs_f64(options.seconds),
        first: None,
        last: None,
        nanoseconds: Vec::new(),
    }));
    let (options, tensors) = (Rc::new(options), Rc::new(tensors));
    let mut slots = Vec::new();
    for channel in &channels {
        for _ in 0..options.depth {
            let slot = steps(
                channel.clone(),
                options.clone(),
                tensors.clone(),
                times.clone(),
            );
            slots.push(tokio::task::spawn_local(slot));
        }
    }
    for slot in slots {
        slot.await??;
    }
    let cpu_client = cpu_time() - client_before;
    let cpu_server = server_seconds(&channels[0]).await? - server_before;
    let mut times = times.borrow_mut();
    times.nanoseconds.sort_unstable();
    let elapsed = match (times.first, times.last) {
        (Some(first), Some(last)) => (last - first).as_secs_f64(),
        _ => return Err("no step was measured".into()),
    };
    let steps = times.nanoseconds.len() as f64 / elapsed;
    let comes_back = options.op != "push";
    let goes_out = pushes || options.op == "unary";
    let crossings = f64::from(u8::from(comes_back) + u8::from(goes_out));
    let calls = if options.op == "unary" {
        1.0
    } else {
        crossings
    };
    let object = json!({
        "op": options.op, "size": options.size, "count": options.count,
        "conns": options.connections, "depth": options.depth,
        "p50_us": times.quantile_us(0.5), "p99_us": times.quantile_us(0.99),
        "p999_us": times.quantile_us(0.999), "req_per_s": steps * calls,
        "gb_per_s": steps * crossings * (options.size * options.count) as f64 / 1e9,
        "steps_per_s": steps, "cpu_s_client": cpu_client.as_secs_f64(),
        "cpu_s_server": cpu_server, "transport": "grpc", "driver": "tonic",
    });
    println!("{object}");
    Ok(())
}
