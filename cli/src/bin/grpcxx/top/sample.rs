//! What a task tells of itself at one moment, and what happened between two of them.

use std::collections::BTreeMap;
use std::time::Instant;

use serde::Serialize;

/// The numbers of a task, of those that `top` shows.
#[derive(Debug)]
pub(super) struct Sample {
    at: Instant,
    /// Sums over all labels.
    numbers: BTreeMap<String, f64>,
    shards: BTreeMap<u32, ShardNumbers>,
    links: BTreeMap<String, u64>,
    histograms: BTreeMap<Kind, Histogram>,
    peers: BTreeMap<Link, PeerNumbers>,
}

/// A kind of calls: method, end (`client` or `server`), medium.
type Kind = (String, &'static str, String);
/// The links with a peer: its name, end (`client` if this task dials), medium.
type Link = (String, &'static str, String);
/// Calls by the upper end of their class in nanoseconds, each class with all below it.
type Histogram = BTreeMap<u64, u64>;

#[derive(Debug, Default)]
struct PeerNumbers {
    received_bytes: u64,
    sent_bytes: u64,
    /// By method.
    histograms: BTreeMap<String, Histogram>,
}

#[derive(Debug, Default)]
struct ShardNumbers {
    cpu_seconds: f64,
    arena_bytes: u64,
    arena_used_bytes: u64,
    arena_beyond_bytes: u64,
}

/// What a task did in an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    pub(super) calls_per_second: f64,
    pub(super) requests_per_second: f64,
    pub(super) errors_per_second: f64,
    pub(super) received_bytes_per_second: f64,
    pub(super) sent_bytes_per_second: f64,
    /// CPU time of all shards in the time of the interval: 1.0 is one CPU.
    pub(super) cpus: f64,
    pub(super) arena_bytes: u64,
    pub(super) arena_used_bytes: u64,
    pub(super) arena_beyond_bytes: u64,
    pub(super) stored_bytes: u64,
    pub(super) parked_bytes: u64,
    pub(super) receives_waiting: u64,
    pub(super) receive_oldest_seconds: f64,
    pub(super) shards_silent: u64,
    pub(super) links: BTreeMap<String, u64>,
    pub(super) methods: Vec<MethodRates>,
    pub(super) peers: Vec<PeerRates>,
    pub(super) shards: Vec<ShardRates>,
}

/// The calls of one kind in an interval, most frequent kind first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct MethodRates {
    pub(super) method: String,
    pub(super) side: &'static str,
    pub(super) medium: String,
    pub(super) calls_per_second: f64,
    /// Upper end of the class of the median; absent without calls.
    pub(super) p50_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
}

/// What went on with one peer over one medium in an interval, those with most bytes first.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct PeerRates {
    pub(super) peer: String,
    pub(super) side: &'static str,
    pub(super) medium: String,
    pub(super) received_bytes_per_second: f64,
    pub(super) sent_bytes_per_second: f64,
    pub(super) methods: Vec<MethodRates>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct ShardRates {
    pub(super) shard: u32,
    pub(super) cpus: f64,
    pub(super) arena_bytes: u64,
    pub(super) arena_used_bytes: u64,
    pub(super) arena_beyond_bytes: u64,
}

impl Sample {
    /// Reads Prometheus' text format; what it does not know, it leaves out.
    pub(super) fn parse(text: &str, at: Instant) -> Self {
        let mut sample = Self {
            at,
            numbers: BTreeMap::new(),
            shards: BTreeMap::new(),
            links: BTreeMap::new(),
            histograms: BTreeMap::new(),
            peers: BTreeMap::new(),
        };
        for line in text.lines().take(LINES_MAX) {
            if let Some((name, labels, value)) = line_parts(line) {
                sample.add(name, labels, value);
            }
        }
        sample
    }

    fn add(&mut self, name: &str, labels: &str, value: f64) {
        let count = value as u64;
        let text = |label_name| label(labels, label_name).unwrap_or_default().to_owned();
        let histogram = match name {
            "grpcxx_call_seconds_bucket" => Some((false, "client")),
            "grpcxx_request_seconds_bucket" => Some((false, "server")),
            "grpcxx_peer_call_seconds_bucket" => Some((true, "client")),
            "grpcxx_peer_request_seconds_bucket" => Some((true, "server")),
            _ => None,
        };
        if let Some((is_of_peer, side)) = histogram {
            let bound = label(labels, "le").and_then(|bound| bound.parse::<f64>().ok());
            let Some(bound) = bound else { return };
            let (method, medium) = (text("method"), text("medium"));
            let counts = match is_of_peer {
                true => self
                    .peer((text("peer"), side, medium))
                    .and_then(|peer| entry(&mut peer.histograms, method, METHODS_MAX)),
                false => entry(&mut self.histograms, (method, side, medium), KINDS_MAX),
            };
            if let Some(counts) = counts {
                // Infinity becomes the largest number.
                *counts.entry((bound * 1e9) as u64).or_default() += count;
            }
            return;
        }
        let is_received = name == "grpcxx_peer_received_bytes_total";
        if is_received || name == "grpcxx_peer_sent_bytes_total" {
            let side = match label(labels, "side") {
                Some("client") => "client",
                _ => "server",
            };
            if let Some(peer) = self.peer((text("peer"), side, text("medium"))) {
                match is_received {
                    true => peer.received_bytes = count,
                    false => peer.sent_bytes = count,
                }
            }
            return;
        }
        if !SHOWN.contains(&name) {
            return;
        }
        *self.numbers.entry(name.to_owned()).or_default() += value;
        if name == "grpcxx_links" && self.links.len() < KINDS_MAX {
            self.links.insert(text("medium"), count);
        }
        let shard = label(labels, "shard").and_then(|shard| shard.parse().ok());
        let Some(shard) = shard.filter(|shard| *shard < SHARDS_MAX) else {
            return;
        };
        let numbers = self.shards.entry(shard).or_default();
        match name {
            "grpcxx_shard_cpu_seconds_total" => numbers.cpu_seconds = value,
            "grpcxx_arena_bytes" => numbers.arena_bytes = count,
            "grpcxx_arena_used_bytes" => numbers.arena_used_bytes = count,
            "grpcxx_arena_beyond_bytes" => numbers.arena_beyond_bytes = count,
            _ => {}
        }
    }

    fn peer(&mut self, link: Link) -> Option<&mut PeerNumbers> {
        entry(&mut self.peers, link, PEERS_MAX)
    }

    fn number(&self, name: &str) -> f64 {
        self.numbers.get(name).copied().unwrap_or(0.0)
    }

    /// What happened since `before`.
    pub(super) fn since(&self, before: &Self) -> Rates {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(1e-3);
        // A task that was started anew counts from 0.
        let rate = |name| (self.number(name) - before.number(name)).max(0.0) / seconds;
        let whole = |name| self.number(name) as u64;
        let shards: Vec<ShardRates> = (self.shards.iter())
            .map(|(shard, now)| {
                let then = before
                    .shards
                    .get(shard)
                    .map_or(now.cpu_seconds, |then| then.cpu_seconds);
                ShardRates {
                    shard: *shard,
                    cpus: (now.cpu_seconds - then).max(0.0) / seconds,
                    arena_bytes: now.arena_bytes,
                    arena_used_bytes: now.arena_used_bytes,
                    arena_beyond_bytes: now.arena_beyond_bytes,
                }
            })
            .collect();
        let mut methods: Vec<MethodRates> = (self.histograms.iter())
            .map(|(kind, counts)| method_rates(kind, counts, before.histograms.get(kind), seconds))
            .collect();
        by_calls(&mut methods);
        let mut peers: Vec<PeerRates> = (self.peers.iter())
            .map(|(link, now)| peer_rates(link, now, before.peers.get(link), seconds))
            .collect();
        let bytes = |peer: &PeerRates| peer.received_bytes_per_second + peer.sent_bytes_per_second;
        peers.sort_by(|a, b| bytes(b).total_cmp(&bytes(a)));
        Rates {
            calls_per_second: rate("grpcxx_calls_total"),
            requests_per_second: rate("grpcxx_requests_total"),
            errors_per_second: rate("grpcxx_calls_failed_total")
                + rate("grpcxx_requests_failed_total"),
            received_bytes_per_second: rate("grpcxx_received_bytes_total"),
            sent_bytes_per_second: rate("grpcxx_sent_bytes_total"),
            cpus: shards.iter().map(|shard| shard.cpus).sum(),
            arena_bytes: whole("grpcxx_arena_bytes"),
            arena_used_bytes: whole("grpcxx_arena_used_bytes"),
            arena_beyond_bytes: whole("grpcxx_arena_beyond_bytes"),
            stored_bytes: whole("grpcxx_stored_bytes"),
            parked_bytes: whole("grpcxx_parked_bytes"),
            receives_waiting: whole("grpcxx_receives_waiting"),
            receive_oldest_seconds: self.number("grpcxx_receive_oldest_seconds"),
            shards_silent: whole("grpcxx_shards_silent"),
            links: self.links.clone(),
            methods,
            peers,
            shards,
        }
    }
}

impl Rates {
    /// The largest 99th percentile of all kinds of calls.
    pub(super) fn p99_ns(&self) -> Option<u64> {
        self.methods.iter().filter_map(|method| method.p99_ns).max()
    }
}

fn method_rates(
    (method, side, medium): &Kind,
    counts: &Histogram,
    before: Option<&Histogram>,
    seconds: f64,
) -> MethodRates {
    let then = |bound| before.and_then(|before| before.get(bound)).copied();
    let grown: Vec<(u64, u64)> = (counts.iter())
        .map(|(bound, count)| (*bound, count.saturating_sub(then(bound).unwrap_or(0))))
        .collect();
    let total = grown.last().map_or(0, |(_, count)| *count);
    let quantile = |share: f64| {
        let rank = (share * total as f64).ceil() as u64;
        let found = grown.iter().find(|(_, count)| total > 0 && *count >= rank);
        found.map(|(bound, _)| *bound)
    };
    MethodRates {
        method: method.clone(),
        side,
        medium: medium.clone(),
        calls_per_second: total as f64 / seconds,
        p50_ns: quantile(0.5),
        p99_ns: quantile(0.99),
    }
}

fn by_calls(methods: &mut [MethodRates]) {
    methods.sort_by(|a, b| b.calls_per_second.total_cmp(&a.calls_per_second));
}

fn peer_rates(
    (peer, side, medium): &Link,
    now: &PeerNumbers,
    before: Option<&PeerNumbers>,
    seconds: f64,
) -> PeerRates {
    let none = PeerNumbers::default();
    let before = before.unwrap_or(&none);
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
    let mut methods: Vec<MethodRates> = (now.histograms.iter())
        .map(|(method, counts)| {
            let kind = (method.clone(), *side, medium.clone());
            method_rates(&kind, counts, before.histograms.get(method), seconds)
        })
        .collect();
    by_calls(&mut methods);
    PeerRates {
        peer: peer.clone(),
        side,
        medium: medium.clone(),
        received_bytes_per_second: rate(now.received_bytes, before.received_bytes),
        sent_bytes_per_second: rate(now.sent_bytes, before.sent_bytes),
        methods,
    }
}

/// The entry of a key, which is made if there are not too many.
fn entry<K: Ord, V: Default>(map: &mut BTreeMap<K, V>, key: K, most: usize) -> Option<&mut V> {
    let is_full = map.len() >= most && !map.contains_key(&key);
    (!is_full).then(|| map.entry(key).or_default())
}

/// Name, labels and value of a line; none of comments and of what is no number.
fn line_parts(line: &str) -> Option<(&str, &str, f64)> {
    let (series, value) = line.rsplit_once(' ')?;
    let value = value.parse::<f64>().ok().filter(|value| *value >= 0.0)?;
    let (name, labels) = match series.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (series, ""),
    };
    (!name.starts_with('#')).then_some((name, labels, value))
}

/// The value of a label. Those of the names that are read here hold no quotes.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let found = labels.split(',').find_map(|pair| {
        let value = pair.strip_prefix(name)?.strip_prefix("=\"")?;
        value.strip_suffix('"')
    })?;
    Some(found)
}

/// The numbers that are shown, beside the histograms.
const SHOWN: [&str; 16] = [
    "grpcxx_arena_beyond_bytes",
    "grpcxx_arena_bytes",
    "grpcxx_arena_used_bytes",
    "grpcxx_calls_failed_total",
    "grpcxx_calls_total",
    "grpcxx_links",
    "grpcxx_parked_bytes",
    "grpcxx_receive_oldest_seconds",
    "grpcxx_received_bytes_total",
    "grpcxx_receives_waiting",
    "grpcxx_requests_failed_total",
    "grpcxx_requests_total",
    "grpcxx_sent_bytes_total",
    "grpcxx_shard_cpu_seconds_total",
    "grpcxx_shards_silent",
    "grpcxx_stored_bytes",
];

/// Most lines of an answer that are read.
const LINES_MAX: usize = 1 << 17;
/// Most kinds of calls, and of links, that are kept of a task.
const KINDS_MAX: usize = 256;
/// Most peers, by end and medium, that are kept of a task, and methods of each.
const PEERS_MAX: usize = 1024;
const METHODS_MAX: usize = 64;
/// Numbers of shards are below this.
const SHARDS_MAX: u32 = 4096;

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;

    pub(in crate::top) const BEFORE: &str = "\
# HELP grpcxx_calls_total Calls begun.
grpcxx_calls_total 10
grpcxx_requests_total 100
grpcxx_shard_cpu_seconds_total{shard=\"0\"} 1.5
grpcxx_received_bytes_total{medium=\"shm\",shard=\"0\"} 1000
grpcxx_peer_received_bytes_total{peer=\"10.0.0.7\",side=\"server\",medium=\"shm\"} 1000
grpcxx_peer_sent_bytes_total{peer=\"10.0.0.7\",side=\"server\",medium=\"shm\"} 5
grpcxx_request_seconds_bucket{method=\"Ping\",medium=\"shm\",shard=\"0\",le=\"0.001\"} 100
grpcxx_request_seconds_bucket{method=\"Ping\",medium=\"shm\",shard=\"0\",le=\"+Inf\"} 100
";
    pub(in crate::top) const AFTER: &str = "\
grpcxx_calls_total 10
grpcxx_requests_total 300
grpcxx_arena_bytes{shard=\"0\"} 1000000
grpcxx_arena_used_bytes{shard=\"0\"} 250000
grpcxx_arena_beyond_bytes{shard=\"0\"} 3000000
grpcxx_links{medium=\"shm\"} 3
grpcxx_receives_waiting 2
grpcxx_receive_oldest_seconds 4.5
grpcxx_shard_cpu_seconds_total{shard=\"0\"} 2.5
grpcxx_received_bytes_total{medium=\"shm\",shard=\"0\"} 2000
grpcxx_received_bytes_total{medium=\"tcp\",shard=\"0\"} 1000
grpcxx_sent_bytes_total{medium=\"shm\",shard=\"0\"} 4000000
grpcxx_peer_received_bytes_total{peer=\"10.0.0.7\",side=\"server\",medium=\"shm\"} 2000
grpcxx_peer_sent_bytes_total{peer=\"10.0.0.7\",side=\"server\",medium=\"shm\"} 4000005
grpcxx_peer_sent_bytes_total{peer=\"ps:2222\",side=\"client\",medium=\"tcp\"} 8
grpcxx_peer_request_seconds_bucket{peer=\"10.0.0.7\",method=\"Ping\",medium=\"shm\",le=\"0.001\"} 30
grpcxx_peer_request_seconds_bucket{peer=\"10.0.0.7\",method=\"Ping\",medium=\"shm\",le=\"+Inf\"} 40
grpcxx_request_seconds_bucket{method=\"Ping\",medium=\"shm\",shard=\"0\",le=\"0.001\"} 290
grpcxx_request_seconds_bucket{method=\"Ping\",medium=\"shm\",shard=\"0\",le=\"0.01\"} 300
grpcxx_request_seconds_bucket{method=\"Ping\",medium=\"shm\",shard=\"0\",le=\"+Inf\"} 300
";

    pub(in crate::top) fn rates(before: &str, after: &str) -> Rates {
        let start = Instant::now();
        let before = Sample::parse(before, start);
        Sample::parse(after, start + Duration::from_secs(2)).since(&before)
    }

    #[test]
    fn the_page_of_the_tools_has_all_fields() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");
        let page = std::fs::read_to_string(page).expect("the page");
        let row = page.lines().find(|line| line.starts_with("| `top "));
        let row = row.expect("its row of top");
        let (of_task, of_shards) = row.split_once("shards: [{").expect("its shards");
        let rates = serde_json::to_value(rates(BEFORE, AFTER)).expect("numbers and texts");
        for (fields, told) in [
            (&rates, [of_task, "shards"].join(" ")),
            (&rates["shards"][0], of_shards.to_owned()),
        ] {
            let is_end = |letter: char| letter != '_' && !letter.is_ascii_alphanumeric();
            let told: Vec<&str> = told.split(is_end).collect();
            for field in fields.as_object().expect("fields").keys() {
                assert!(told.contains(&field.as_str()), "{field}");
            }
        }
    }

    #[test]
    fn rates_and_quantiles_are_those_of_the_interval() {
        let rates = rates(BEFORE, AFTER);
        assert_eq!(rates.requests_per_second, 100.0);
        assert_eq!(rates.calls_per_second, 0.0);
        assert_eq!(rates.cpus, 0.5);
        assert_eq!(rates.links["shm"], 3);
        assert_eq!(rates.links.len(), 1);
        assert_eq!(rates.received_bytes_per_second, 1_000.0);
        assert_eq!(rates.sent_bytes_per_second, 2e6);
        let ping = &rates.methods[0];
        assert_eq!(
            (ping.p50_ns, ping.p99_ns),
            (Some(1_000_000), Some(10_000_000))
        );
        assert_eq!(rates.p99_ns(), ping.p99_ns);
    }

    #[test]
    fn peers_have_rates_of_bytes_and_calls_by_method() {
        let peers = rates(BEFORE, AFTER).peers;
        let [host, ps] = &peers[..] else {
            panic!("{peers:?}")
        };
        assert_eq!(
            (&*host.peer, host.side, &*host.medium),
            ("10.0.0.7", "server", "shm")
        );
        assert_eq!(host.received_bytes_per_second, 500.0);
        assert_eq!(host.sent_bytes_per_second, 2e6);
        let [ping] = &host.methods[..] else {
            panic!("{host:?}")
        };
        assert_eq!((&*ping.method, ping.calls_per_second), ("Ping", 20.0));
        assert_eq!(
            (ping.p50_ns, ping.p99_ns),
            (Some(1_000_000), Some(u64::MAX))
        );
        assert_eq!((ps.side, ps.sent_bytes_per_second), ("client", 4.0));
        assert!(ps.methods.is_empty());
    }

    #[test]
    fn a_task_that_was_started_anew_has_no_negative_rates() {
        let rates = rates(AFTER, BEFORE);
        assert_eq!(rates.requests_per_second, 0.0);
        assert_eq!((rates.cpus, rates.methods[0].p50_ns), (0.0, None));
    }

    #[test]
    fn answers_that_make_no_sense_give_nothing() {
        let text = "grpcxx_calls_total -1\ngrpcxx_calls_total NaN\ngrpcxx_links{ 3\n\
                    grpcxx_links} 3\n{} 1\n \ngrpcxx_shard_cpu_seconds_total{shard=\"9999999\"} 1\n";
        let sample = Sample::parse(text, Instant::now());
        assert!(sample.links.is_empty() && sample.shards.is_empty());
        assert_eq!(sample.number("grpcxx_calls_total"), 0.0);
        let many: String = (0..10_000)
            .map(|at| format!("grpcxx_call_seconds_bucket{{method=\"{at}\",le=\"1\"}} 1\n"))
            .collect();
        assert_eq!(
            Sample::parse(&many, Instant::now()).histograms.len(),
            KINDS_MAX
        );
    }
}
