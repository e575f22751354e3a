//! What is counted of each method.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use grpcxx_rpc::{Code, Envelope, Status};
use hdrhistogram::Histogram;

/// The numbers of one method, a part for each shard, which the shard has nearly for itself.
pub(crate) struct MethodStats {
    shards: Box<[Mutex<Part>]>,
}

#[derive(Default)]
struct Part {
    begun: u64,
    ended: u64,
    /// By the number of the status code; 0 is success.
    by_code: [u64; CODES],
    request_bytes: u64,
    answer_bytes: u64,
    seconds: f64,
    /// In nanoseconds; made when the first call ends.
    latency: Option<Histogram<u32>>,
}

/// What an engine has counted of one method since it was registered.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct MethodReport {
    /// The path, `/package.Service/Method`.
    pub path: String,
    /// Calls that have ended, by status code; `None` is success. Codes without calls are left out.
    pub calls: Vec<(Option<Code>, u64)>,
    /// Calls that have not ended.
    pub in_flight: u64,
    /// Bytes of messages that came.
    pub request_bytes: u64,
    /// Bytes of messages that were answered.
    pub answer_bytes: u64,
    /// Calls that took at most as long as each of [`LATENCY_BOUNDS_SECONDS`].
    pub within_bounds: Vec<u64>,
    /// Calls that have ended.
    pub ended: u64,
    /// Time of all calls that have ended, in seconds.
    pub seconds: f64,
    /// The median, in nanoseconds.
    pub p50_ns: u64,
    /// The 99th percentile, in nanoseconds.
    pub p99_ns: u64,
}

/// A service that an engine serves.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServiceReport {
    /// The name, with its package.
    pub name: &'static str,
    /// The serialized `FileDescriptorSet` that describes it.
    pub descriptors: &'static [u8],
}

impl ServiceReport {
    pub(crate) fn new(name: &'static str, descriptors: &'static [u8]) -> Self {
        Self { name, descriptors }
    }
}

impl MethodStats {
    pub(super) fn new(shards: usize) -> Self {
        Self {
            shards: (0..shards.max(1)).map(|_| Mutex::default()).collect(),
        }
    }

    fn part(&self, shard: usize) -> MutexGuard<'_, Part> {
        let part = &self.shards[shard % self.shards.len()];
        part.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(&self, shard: usize, message_bytes: usize) -> Instant {
        let mut part = self.part(shard);
        part.begun += 1;
        part.request_bytes += message_bytes as u64;
        Instant::now()
    }

    pub(super) fn end(&self, shard: usize, begun: Instant, answer: &Result<Envelope, Status>) {
        let took = begun.elapsed();
        let mut part = self.part(shard);
        part.ended += 1;
        part.seconds += took.as_secs_f64();
        let code = match answer {
            Ok(envelope) => {
                part.answer_bytes += envelope.message_bytes() as u64;
                0
            }
            Err(status) => status.code as usize,
        };
        part.by_code[code] += 1;
        let latency = part.latency.get_or_insert_with(|| {
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS)
                .expect("bounds and digits are those that the crate allows")
        });
        latency.saturating_record(took.as_nanos().min(u128::from(u64::MAX)) as u64);
    }

    /// The sum over all shards.
    pub(crate) fn report(&self, path: &str) -> MethodReport {
        let mut report = MethodReport {
            path: path.to_owned(),
            within_bounds: vec![0; LATENCY_BOUNDS_SECONDS.len()],
            ..MethodReport::default()
        };
        let mut by_code = [0; CODES];
        let mut whole: Option<Histogram<u32>> = None;
        for shard in 0..self.shards.len() {
            let part = self.part(shard);
            report.in_flight += part.begun - part.ended;
            report.ended += part.ended;
            report.seconds += part.seconds;
            report.request_bytes += part.request_bytes;
            report.answer_bytes += part.answer_bytes;
            for (sum, count) in by_code.iter_mut().zip(part.by_code) {
                *sum += count;
            }
            if let Some(latency) = &part.latency {
                match &mut whole {
                    Some(whole) => {
                        // Both have the same bounds, so nothing can be out of range.
                        let _in_range = whole.add(latency);
                    }
                    None => whole = Some(latency.clone()),
                }
            }
        }
        if let Some(whole) = whole {
            report.p50_ns = whole.value_at_quantile(0.5);
            report.p99_ns = whole.value_at_quantile(0.99);
            for (within, bound) in report.within_bounds.iter_mut().zip(LATENCY_BOUNDS_SECONDS) {
                *within = whole.count_between(0, (bound * 1e9) as u64);
            }
        }
        let codes = by_code
            .into_iter()
            .enumerate()
            .filter(|&(_, count)| count > 0);
        report.calls = codes
            .map(|(number, count)| (Code::from_number(number as i32), count))
            .collect();
        report
    }
}

/// Upper bounds of the latencies that are reported, in seconds.
pub const LATENCY_BOUNDS_SECONDS: [f64; 12] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0,
];

/// Codes of gRPC, success included.
const CODES: usize = 17;

/// Longer calls count as this long, in nanoseconds.
const LATENCY_NS_MAX: u64 = 3600 * 1_000_000_000;

/// Digits of a latency that are kept.
const LATENCY_DIGITS: u8 = 2;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn calls_are_counted_by_code_and_shard() {
        let stats = MethodStats::new(2);
        let begun = stats.begin(0, 10);
        stats.begin(1, 5);
        let report = stats.report("/a/b");
        assert_eq!((report.in_flight, report.request_bytes), (2, 15));
        stats.end(0, begun, &Err(Status::new(Code::NotFound, "no")));
        let begun = stats.begin(1, 0);
        stats.end(
            1,
            begun,
            &Ok(Envelope::answer(&Default::default(), 0).finish()),
        );
        let report = stats.report("/a/b");
        assert_eq!(report.calls, [(None, 1), (Some(Code::NotFound), 1)]);
        assert_eq!((report.ended, report.in_flight), (2, 1));
        assert_eq!(report.within_bounds.last(), Some(&2));
        assert!(report.p50_ns <= report.p99_ns);
    }
}
