//! What is counted of each method.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use grpcxx_rpc::{Code, Envelope, Status};

use crate::latency::Latency;

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
    /// Made when the first call ends.
    latency: Option<Latency>,
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
    /// How long the calls took that have ended.
    pub latency: Latency,
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
        let code = match answer {
            Ok(envelope) => {
                part.answer_bytes += envelope.message_bytes() as u64;
                0
            }
            Err(status) => status.code as usize,
        };
        part.by_code[code] += 1;
        let took_ns = took.as_nanos().min(u128::from(u64::MAX)) as u64;
        let latency = part.latency.get_or_insert_default();
        latency.record(took_ns, 1);
    }

    /// Counts messages of streams.
    pub(super) fn add_bytes(&self, shard: usize, request_bytes: u64, answer_bytes: u64) {
        let mut part = self.part(shard);
        part.request_bytes += request_bytes;
        part.answer_bytes += answer_bytes;
    }

    /// The sum over all shards.
    pub(crate) fn report(&self, path: &str) -> MethodReport {
        let mut report = MethodReport {
            path: path.to_owned(),
            ..MethodReport::default()
        };
        let mut by_code = [0; CODES];
        for shard in 0..self.shards.len() {
            let part = self.part(shard);
            report.in_flight += part.begun - part.ended;
            report.request_bytes += part.request_bytes;
            report.answer_bytes += part.answer_bytes;
            for (sum, count) in by_code.iter_mut().zip(part.by_code) {
                *sum += count;
            }
            if let Some(latency) = &part.latency {
                report.latency.add(latency);
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

/// Codes of gRPC, success included.
const CODES: usize = 17;

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
        assert_eq!((report.latency.count(), report.in_flight), (2, 1));
        assert_eq!(report.latency.within(10.0), 2);
    }
}
