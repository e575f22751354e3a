//! The histograms of one shard, by end of the call, medium and method.

use grpcxx_rpc::{Method, Request};
use grpcxx_transport::Time;

use super::{CallLatency, CallSide, Latency, LinkMedium};

/// How long the calls and requests of one shard took.
///
/// A histogram is made when the first call of its kind ends, so that the steady state allocates
/// nothing.
#[derive(Debug)]
pub(crate) struct LatencyTable {
    latencies: [Option<Box<Latency>>; SIDES * CARRIERS * KINDS],
    /// When the answered calls began that are counted together, and how many they are.
    answers: (CallStart, u64),
}

/// What a call asks for: a method of star, or one of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallKind(u8);

/// What carried a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Link(LinkMedium),
    /// The task asked itself.
    Local,
    /// It ended before there was a connection.
    None,
}

/// When a call began, and of which kind it is: nanoseconds above, kind below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallStart(u64);

impl CallKind {
    pub(crate) const RECV_TENSOR: Self = Self::of_method(Method::RecvTensor);
    const SERVICE: Self = Self(Method::ALL.len() as u8);

    pub(crate) fn of(request: &Request) -> Self {
        request.method().map_or(Self::SERVICE, Self::of_method)
    }

    const fn of_method(method: Method) -> Self {
        Self(method.number() as u8)
    }

    pub(crate) fn name(self) -> &'static str {
        Method::from_number(self.0.into()).map_or("service", Method::name)
    }
}

impl CallStart {
    #[inline(always)]
    pub(crate) fn new(now: Time, kind: CallKind) -> Self {
        Self((now.as_nanos() << KIND_BITS) | u64::from(kind.0))
    }

    pub(crate) fn kind(self) -> CallKind {
        CallKind((self.0 & ((1 << KIND_BITS) - 1)) as u8)
    }

    pub(crate) fn at(self) -> Time {
        Time::from_nanos(self.0 >> KIND_BITS)
    }
}

impl Carrier {
    const fn index(self) -> usize {
        match self {
            Self::Link(LinkMedium::Tcp) => 0,
            Self::Link(LinkMedium::SharedMemory) => 1,
            Self::Link(LinkMedium::Rdma) => 2,
            Self::Local => 3,
            Self::None => 4,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Link(medium) => medium.name(),
            Self::Local => "local",
            Self::None => "none",
        }
    }
}

impl CallSide {
    const ALL: [Self; SIDES] = [Self::Client, Self::Server];
}

impl LatencyTable {
    pub(crate) fn new() -> Self {
        Self {
            latencies: [const { None }; SIDES * CARRIERS * KINDS],
            answers: (CallStart(0), 0),
        }
    }

    /// Notes that so many calls that had begun then have ended now.
    #[inline(never)]
    pub(crate) fn record(
        &mut self,
        (side, carrier): (CallSide, Carrier),
        begun: CallStart,
        now: Time,
        calls: u64,
    ) {
        let index = index(side, carrier, begun.kind());
        let took_ns = now.as_nanos().saturating_sub(begun.at().as_nanos());
        let latency = self.latencies[index].get_or_insert_with(first);
        latency.record(took_ns, calls);
    }

    /// Counts a call over this medium that has its answer. Those that began in one turn are noted
    /// together: most calls cost a comparison and a sum.
    #[inline(always)]
    pub(crate) fn count_answer(&mut self, begun: CallStart, medium: LinkMedium, now: Time) {
        if begun != self.answers.0 {
            self.end_answers(medium, now);
            self.answers.0 = begun;
        }
        self.answers.1 += 1;
    }

    /// Notes the answered calls that were counted: all came over this medium, in this turn.
    #[inline(never)]
    pub(crate) fn end_answers(&mut self, medium: LinkMedium, now: Time) {
        let (begun, calls) = self.answers;
        self.answers.1 = 0;
        if calls > 0 {
            self.record((CallSide::Client, Carrier::Link(medium)), begun, now, calls);
        }
    }

    /// A copy of all that there is.
    pub(crate) fn snapshot(&self, shard: usize) -> Vec<CallLatency> {
        let mut all = Vec::new();
        for side in CallSide::ALL {
            for carrier in CARRIERS_ALL {
                for kind in (0..KINDS as u8).map(CallKind) {
                    if let Some(latency) = &self.latencies[index(side, carrier, kind)] {
                        all.push(CallLatency {
                            shard,
                            side,
                            method: kind.name(),
                            medium: carrier.name(),
                            latency: Latency::clone(latency),
                        });
                    }
                }
            }
        }
        all
    }
}

#[inline]
fn index(side: CallSide, carrier: Carrier, kind: CallKind) -> usize {
    (side as usize * CARRIERS + carrier.index()) * KINDS + usize::from(kind.0)
}

#[cold]
fn first() -> Box<Latency> {
    Box::new(Latency::new())
}

const SIDES: usize = 2;

const CARRIERS: usize = CARRIERS_ALL.len();

const CARRIERS_ALL: [Carrier; 5] = [
    Carrier::Link(LinkMedium::Tcp),
    Carrier::Link(LinkMedium::SharedMemory),
    Carrier::Link(LinkMedium::Rdma),
    Carrier::Local,
    Carrier::None,
];

/// All methods of star, and services.
const KINDS: usize = Method::ALL.len() + 1;

/// Bits for the kind of a call; the others hold 18 years of nanoseconds.
const KIND_BITS: u32 = 5;

const _: () = assert!(KINDS <= 1 << KIND_BITS);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_began_is_found_again_in_one_number() {
        for kind in (0..KINDS as u8).map(CallKind) {
            let now = Time::from_nanos(17 << 40 | 31);
            let begun = CallStart::new(now, kind);
            assert_eq!((begun.at(), begun.kind()), (now, kind));
        }
        assert_eq!(CallKind::RECV_TENSOR.name(), "RecvTensor");
        assert_eq!(CallKind::SERVICE.name(), "service");
    }

    #[test]
    fn each_kind_of_call_has_a_histogram_of_its_own() {
        let mut table = LatencyTable::new();
        let now = Time::from_nanos(5_000);
        for side in CallSide::ALL {
            for carrier in CARRIERS_ALL {
                for kind in (0..KINDS as u8).map(CallKind) {
                    let begun = CallStart::new(Time::from_nanos(1_000), kind);
                    table.record((side, carrier), begun, now, 1);
                }
            }
        }
        let all = table.snapshot(3);
        assert_eq!(all.len(), SIDES * CARRIERS * KINDS);
        assert!(all.iter().all(|one| one.latency.count() == 1));
        assert!(all.iter().all(|one| one.latency.seconds() == 4e-6));
        assert_eq!((all[0].shard, all[0].medium), (3, "tcp"));
    }
}
