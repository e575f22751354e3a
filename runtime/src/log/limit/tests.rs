use std::sync::Mutex as StdMutex;

use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::with_default;
use tracing::{Metadata, Subscriber};

use super::*;

/// Asks a limit for each event, at a time that the test chooses.
struct Asks {
    limit: Limit,
    now: StdMutex<Instant>,
    answers: StdMutex<Vec<bool>>,
    summaries: StdMutex<Vec<Summary>>,
}

impl Subscriber for &'static Asks {
    fn enabled(&self, _metadata: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _span: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _span: &Id, _values: &Record<'_>) {}
    fn record_follows_from(&self, _span: &Id, _follows: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let now = *self.now.lock().unwrap();
        let (is_admitted, ended) = self.limit.admit(event, now);
        self.answers.lock().unwrap().push(is_admitted);
        self.summaries.lock().unwrap().extend(ended);
    }
    fn enter(&self, _span: &Id) {}
    fn exit(&self, _span: &Id) {}
}

impl Asks {
    fn new() -> &'static Self {
        Box::leak(Box::new(Self {
            limit: Limit::new(),
            now: StdMutex::new(Instant::now()),
            answers: StdMutex::default(),
            summaries: StdMutex::default(),
        }))
    }

    /// How many events of `log` were admitted.
    fn admitted(&'static self, log: impl FnOnce()) -> usize {
        with_default(self, log);
        let answers = std::mem::take(&mut *self.answers.lock().unwrap());
        answers.into_iter().filter(|admitted| *admitted).count()
    }

    fn pass(&self, time: Duration) {
        *self.now.lock().unwrap() += time;
    }

    fn end_windows(&self, all: bool) -> Vec<Summary> {
        self.limit.end_windows(*self.now.lock().unwrap(), all).0
    }
}

fn violation(peer: &str) {
    tracing::warn!(peer, reason = "some bytes", "a peer broke the protocol");
}

fn summary(peer: Option<&str>, suppressed: u64) -> Summary {
    Summary {
        level: Level::WARN,
        sample: "a peer broke the protocol".to_owned(),
        peer: peer.map(str::to_owned),
        suppressed,
    }
}

#[test]
fn a_peer_gets_a_few_lines_and_then_a_count() {
    let asks = Asks::new();
    let admitted = asks.admitted(|| {
        for port in 1..=1000 {
            violation(&format!("10.0.0.1:{port}"));
        }
        violation("10.0.0.2:1");
    });
    assert_eq!(admitted, LINES_PER_PEER as usize + 1);
    assert_eq!(asks.end_windows(false), []);
    asks.pass(WINDOW);
    assert_eq!(asks.end_windows(false), [summary(Some("10.0.0.1"), 995)]);
    assert_eq!(asks.end_windows(true), []);
}

#[test]
fn many_peers_together_get_a_bounded_number_of_lines_and_of_memory() {
    let asks = Asks::new();
    let admitted = asks.admitted(|| {
        for peer in 0..100_000_u32 {
            violation(&format!(
                "[2001:db8::{:x}:{:x}]:7",
                peer >> 16,
                peer & 0xffff
            ));
        }
    });
    assert_eq!(admitted, LINES_PER_KIND as usize);
    assert_eq!(
        asks.limit.kinds.lock().unwrap()[0].peers.len(),
        LINES_PER_KIND as usize
    );
    assert_eq!(asks.end_windows(true), [summary(None, 99_950)]);
}

#[test]
fn the_next_window_has_lines_again_and_the_count_of_the_last_comes_first() {
    let asks = Asks::new();
    let eight = || (0..8).for_each(|_| violation("ps0:2222"));
    assert_eq!(asks.admitted(eight), 5);
    asks.pass(WINDOW);
    assert_eq!(asks.admitted(eight), 5);
    let summaries = std::mem::take(&mut *asks.summaries.lock().unwrap());
    assert_eq!(summaries, [summary(Some("ps0:2222"), 3)]);
}

#[test]
fn kinds_do_not_take_each_others_lines_and_details_are_not_limited() {
    let asks = Asks::new();
    assert_eq!(asks.admitted(|| (0..60).for_each(|_| violation("a"))), 5);
    let other = || (0..60).for_each(|_| tracing::error!("another kind, about nobody"));
    assert_eq!(asks.admitted(other), LINES_PER_KIND as usize);
    let details = || (0..60).for_each(|line| tracing::debug!(peer = "a", line, "a detail"));
    assert_eq!(asks.admitted(details), 60);
}

#[test]
fn what_the_log_says_of_lines_that_are_missing_is_not_limited() {
    let asks = Asks::new();
    let told = || (0..60).for_each(|_| summary(Some("a"), 3).tell());
    assert_eq!(asks.admitted(told), 60);
}

#[test]
fn long_texts_are_cut_between_characters() {
    let asks = Asks::new();
    let long = "ä".repeat(1000);
    let log = || (0..60).for_each(|_| tracing::warn!("x{long}"));
    asks.admitted(log);
    let summaries = asks.end_windows(true);
    assert_eq!(summaries[0].sample, format!("x{}", "ä".repeat(99)));
    assert_eq!(summaries[0].suppressed, 10);
}
