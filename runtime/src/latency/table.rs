//! What one shard has counted of its calls: a row for each end, peer and medium, with histograms
//! by method and the bytes that went over the links.

use std::mem;
use std::sync::Arc;

use grpcxx_rpc::{Method, Request};
use grpcxx_transport::{Next, Time};

use super::peers::{CountedPeer, CountedPeers, PEERS_COUNTED_MAX, PeerKey};
use super::{CallLatency, CallSide, Latency, LinkMedium, LinkTraffic, ShardCalls};

/// How long the calls and requests of one shard took, and how many bytes went over its links.
///
/// A row is made when a connection begins or migrates, a histogram when the first call of its kind
/// ends, so that the steady state allocates nothing.
#[derive(Debug)]
pub(crate) struct CallTable {
    rows: Vec<Row>,
    peers: Arc<CountedPeers>,
    /// When the answered calls began that are counted together, and how many they are.
    answers: (CallStart, u64),
}

/// Calls at one end, of one peer, over one medium.
#[derive(Debug)]
struct Row {
    latencies: [Option<Box<Latency>>; 1 << KIND_BITS],
    side: CallSide,
    /// None for calls that are of no peer, and for peers that have no figures of their own any
    /// more.
    peer: Option<(PeerKey, Arc<str>)>,
    carrier: Carrier,
    traffic: Traffic,
}

/// Where the calls over a link are counted: the number of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallPlace(u32);

/// Bytes that went over a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
}

/// What a call asks for: a method of star, or one of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallKind(u8);

/// What carried a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Link(LinkMedium),
    /// The task asked itself.
    Local,
    /// It ended before there was a connection.
    None,
}

/// When a call began, and of which kind it is: nanoseconds above, kind below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallStart(u64);

impl CallPlace {
    /// Calls of the task to itself.
    pub(crate) const LOCAL: Self = Self(0);
    /// Calls that ended before there was a connection.
    pub(crate) const NONE: Self = Self(1);
}

impl Traffic {
    /// Counts bytes that a connection has taken, and those that it orders from its link.
    #[inline(always)]
    pub(crate) fn take(&mut self, taken_bytes: usize, next: &Next) {
        let ordered_bytes = match next {
            Next::Land(landing) => landing.remaining_bytes() as u64,
            Next::Discard { bytes, .. } => *bytes,
            Next::Head { .. } | Next::Pause => 0,
        };
        self.received_bytes += taken_bytes as u64 + ordered_bytes;
    }

    fn add(&mut self, other: Self) {
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
    }
}

impl CallKind {
    pub(crate) const RECV_TENSOR: Self = Self::of_method(Method::RecvTensor);
    pub(crate) const STAR_RUN_GRAPH: Self = Self::of_method(Method::StarRunGraph);
    pub(crate) const SERVICE: Self = Self(Method::ALL.len() as u8);

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
    const fn name(self) -> &'static str {
        match self {
            Self::Link(medium) => medium.name(),
            Self::Local => "local",
            Self::None => "none",
        }
    }
}

impl Row {
    fn new(side: CallSide, peer: Option<(PeerKey, Arc<str>)>, carrier: Carrier) -> Self {
        Self {
            latencies: [const { None }; 1 << KIND_BITS],
            side,
            peer,
            carrier,
            traffic: Traffic::default(),
        }
    }

    fn is_of(&self, side: CallSide, peer: Option<PeerKey>, carrier: Carrier) -> bool {
        let found = self.peer.as_ref().map(|(key, _)| *key);
        (self.side, found, self.carrier) == (side, peer, carrier)
    }
}

impl CallTable {
    pub(crate) fn new(peers: Arc<CountedPeers>) -> Self {
        let row = |carrier| Row::new(CallSide::Client, None, carrier);
        Self {
            rows: vec![row(Carrier::Local), row(Carrier::None)],
            peers,
            answers: (CallStart(0), 0),
        }
    }

    /// Where calls over a link of this peer are counted.
    pub(crate) fn place(&mut self, peer: &CountedPeer, medium: LinkMedium) -> CallPlace {
        let (key, carrier) = (peer.key, Carrier::Link(medium));
        let mut rows = self.rows.iter();
        let found = rows.position(|row| row.is_of(key.side, Some(key), carrier));
        let row = found.unwrap_or_else(|| {
            let row = Row::new(key.side, Some((key, Arc::clone(&peer.name))), carrier);
            self.make(row)
        });
        CallPlace(row as u32)
    }

    /// Adds a row, in place of one that no link of any shard counts in where there are many.
    fn make(&mut self, row: Row) -> usize {
        let peers = &self.peers;
        let is_over = |row: &Row| row.peer.as_ref().is_some_and(|(key, _)| !peers.has(*key));
        let many = self.rows.len() >= ROWS_MAX;
        let Some(over) = many.then(|| self.rows.iter().position(is_over)).flatten() else {
            self.rows.push(row);
            return self.rows.len() - 1;
        };
        let gone = mem::replace(&mut self.rows[over], row);
        let (side, carrier) = (gone.side, gone.carrier);
        let mut rows = self.rows.iter();
        let sum = rows.position(|row| row.is_of(side, None, carrier));
        let sum = sum.unwrap_or_else(|| {
            self.rows.push(Row::new(side, None, carrier));
            self.rows.len() - 1
        });
        let sum = &mut self.rows[sum];
        sum.traffic.add(gone.traffic);
        for (sum, gone) in sum.latencies.iter_mut().zip(gone.latencies) {
            match (sum, gone) {
                (Some(sum), Some(gone)) => sum.add(&gone),
                (sum @ None, gone @ Some(_)) => *sum = gone,
                (_, None) => {}
            }
        }
        over
    }

    /// Notes that so many calls that had begun then have ended now.
    #[inline(never)]
    pub(crate) fn record(&mut self, place: CallPlace, begun: CallStart, now: Time, calls: u64) {
        let took_ns = now.as_nanos().saturating_sub(begun.at().as_nanos());
        let latencies = &mut self.rows[place.0 as usize].latencies;
        let latency = latencies[usize::from(begun.kind().0)].get_or_insert_with(first);
        latency.record(took_ns, calls);
    }

    /// Counts a call over the link of this place that has its answer. Those that began in one turn
    /// are noted together: most calls cost a comparison and a sum.
    #[inline(always)]
    pub(crate) fn count_answer(&mut self, begun: CallStart, place: CallPlace, now: Time) {
        if begun != self.answers.0 {
            self.end_answers(place, now);
            self.answers.0 = begun;
        }
        self.answers.1 += 1;
    }

    /// Notes the answered calls that were counted: all came over the link of this place, in this
    /// turn.
    #[inline(never)]
    pub(crate) fn end_answers(&mut self, place: CallPlace, now: Time) {
        let (begun, calls) = self.answers;
        self.answers.1 = 0;
        if calls > 0 {
            self.record(place, begun, now, calls);
        }
    }

    /// Takes over what went over a link.
    pub(crate) fn count_traffic(&mut self, place: CallPlace, traffic: &mut Traffic) {
        let row = &mut self.rows[place.0 as usize];
        row.traffic.add(mem::take(traffic));
    }

    /// A copy of all that there is.
    pub(crate) fn snapshot(&self, shard: usize) -> ShardCalls {
        let mut told = ShardCalls::default();
        for row in &self.rows {
            let peer = row.peer.as_ref().filter(|(key, _)| self.peers.has(*key));
            let peer = peer.map(|(_, name)| Arc::clone(name));
            for kind in (0..KINDS as u8).map(CallKind) {
                if let Some(latency) = &row.latencies[usize::from(kind.0)] {
                    told.latencies.push(CallLatency {
                        shard,
                        side: row.side,
                        peer: peer.clone(),
                        method: kind.name(),
                        medium: row.carrier.name(),
                        latency: Latency::clone(latency),
                    });
                }
            }
            if row.traffic != Traffic::default() {
                told.traffic.push(LinkTraffic {
                    shard,
                    side: row.side,
                    peer,
                    medium: row.carrier.name(),
                    received_bytes: row.traffic.received_bytes,
                    sent_bytes: row.traffic.sent_bytes,
                });
            }
        }
        told
    }
}

#[cold]
fn first() -> Box<Latency> {
    Box::new(Latency::new())
}

/// All methods of star, and services.
const KINDS: usize = Method::ALL.len() + 1;

/// Bits for the kind of a call; the others hold 18 years of nanoseconds.
const KIND_BITS: u32 = 5;

const _: () = assert!(KINDS <= 1 << KIND_BITS);

/// Rows from which on new ones take the place of others: at both ends, for peers by name and the
/// others, over three media; and the two of calls without a link. Sums of those that gave way come
/// on top, one for each end and medium.
const ROWS_MAX: usize = 2 * (PEERS_COUNTED_MAX + 1) * 3 + 2;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn table() -> (CallTable, Arc<CountedPeers>) {
        let peers = Arc::new(CountedPeers::default());
        (CallTable::new(Arc::clone(&peers)), peers)
    }

    fn call(kind: u8) -> CallStart {
        CallStart::new(Time::from_nanos(1_000), CallKind(kind))
    }

    const NOW: Time = Time::from_nanos(5_000);
    const MEDIA: [LinkMedium; 3] = [LinkMedium::Tcp, LinkMedium::SharedMemory, LinkMedium::Rdma];

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
        let (mut table, peers) = table();
        let mut places = vec![CallPlace::LOCAL, CallPlace::NONE];
        for (side, name) in [
            (CallSide::Client, "ps:1"),
            (CallSide::Client, "ps:2"),
            (CallSide::Server, "10.0.0.1"),
        ] {
            let peer = peers.join(side, name);
            places.extend(MEDIA.map(|medium| table.place(&peer, medium)));
        }
        for place in &places {
            for kind in 0..KINDS as u8 {
                table.record(*place, call(kind), NOW, 1);
            }
        }
        let all = table.snapshot(3).latencies;
        assert_eq!(all.len(), places.len() * KINDS);
        assert!(all.iter().all(|one| one.latency.count() == 1));
        assert!(all.iter().all(|one| one.latency.seconds() == 4e-6));
        assert!(all.iter().all(|one| one.shard == 3));
        let of = |name: &'static str| {
            let is_of = move |one: &&CallLatency| one.peer.as_deref() == Some(name);
            all.iter().filter(is_of)
        };
        assert_eq!(of("ps:2").count(), MEDIA.len() * KINDS);
        assert!(of("10.0.0.1").all(|one| one.side == CallSide::Server));
    }

    #[test]
    fn peers_that_come_and_go_take_no_more_rows_and_no_call_is_lost() {
        let (mut table, peers) = table();
        let stays = peers.join(CallSide::Server, "stays");
        let place = table.place(&stays, LinkMedium::Rdma);
        table.record(place, call(0), NOW, 1);
        let visits = 5 * PEERS_COUNTED_MAX;
        for visit in 0..visits {
            let peer = peers.join(CallSide::Server, &visit.to_string());
            for medium in MEDIA {
                let place = table.place(&peer, medium);
                table.record(place, call(0), NOW, 1);
                let mut traffic = Traffic {
                    received_bytes: 3,
                    sent_bytes: 5,
                };
                table.count_traffic(place, &mut traffic);
                assert_eq!(traffic, Traffic::default());
            }
        }
        assert!(
            table.rows.len() <= ROWS_MAX + 2 * 3,
            "{} rows",
            table.rows.len()
        );
        assert_eq!(table.place(&stays, LinkMedium::Rdma), place);
        let told = table.snapshot(0);
        let count = |is_named: bool| {
            let calls = told.latencies.iter();
            let calls = calls.filter(|one| one.peer.is_some() == is_named);
            calls.map(|one| one.latency.count()).sum::<u64>()
        };
        assert_eq!(count(true) + count(false), 1 + 3 * visits as u64);
        assert_eq!(count(true), 1 + 3 * (PEERS_COUNTED_MAX as u64 - 1));
        let sent = told.traffic.iter().map(|one| one.sent_bytes).sum::<u64>();
        assert_eq!(sent, 5 * 3 * visits as u64);
    }
}
