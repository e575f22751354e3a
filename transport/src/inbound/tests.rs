use std::collections::VecDeque;
use std::net::SocketAddr;

use grpcxx_memory::BufferMut;
use proptest::prelude::*;

use super::*;
use crate::{CloseReason, Frame, ListenerId, Migration, Progress};

const LINK: LinkId = LinkId {
    slot: 1,
    generation: 2,
};

/// What a handler does with the next bytes of the stream.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// Asks for `ask` bytes, consumes `take` of them (`take <= ask`) and shows the rest to the next
    /// order.
    Head {
        ask: usize,
        take: usize,
    },
    Land(usize),
    Discard(u64),
    Pause,
}

/// What happened, in a form that does not depend on how the stream was cut.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Event {
    Head(Vec<u8>),
    Landed(Vec<u8>),
}

/// Follows a list of orders; an order of the list is never shown fewer bytes than it asked for.
struct Scripted {
    orders: VecDeque<Order>,
    current: Option<Order>,
    events: Vec<Event>,
    discarded: u64,
    calls: usize,
}

impl Scripted {
    fn new(orders: &[Order]) -> (Self, Next) {
        let mut scripted = Self {
            orders: orders.iter().copied().collect(),
            current: None,
            events: Vec::new(),
            discarded: 0,
            calls: 0,
        };
        let next = scripted.next(0);
        (scripted, next)
    }

    /// The next order as a `Next`. Heads that `left` bytes satisfy must have been dealt with
    /// before.
    fn next(&mut self, left: usize) -> Next {
        self.current = self.orders.pop_front();
        match self.current {
            Some(Order::Head { ask, .. }) => {
                if ask > left {
                    Next::Head {
                        at_least_bytes: ask,
                    }
                } else {
                    // Bytes are left over which satisfy the head: an empty discard shows them
                    // again.
                    Next::Discard {
                        bytes: 0,
                        then_at_least_bytes: ask,
                    }
                }
            }
            Some(Order::Land(bytes)) => Next::Land(Landing::new(BufferMut::zeroed(bytes))),
            Some(Order::Discard(bytes)) => {
                self.discarded += bytes;
                // The head behind a discard is the next order's business, so it must be one.
                self.current = self.orders.pop_front();
                let Some(Order::Head { ask, .. }) = self.current else {
                    self.current = None;
                    return Next::Discard {
                        bytes,
                        then_at_least_bytes: HEAD_BYTES_MAX,
                    };
                };
                Next::Discard {
                    bytes,
                    then_at_least_bytes: ask,
                }
            }
            Some(Order::Pause) | None => Next::Pause,
        }
    }
}

impl LinkHandler<()> for Scripted {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, (): ()) {
        unreachable!()
    }

    fn connected(&mut self, _: LinkId) -> Next {
        unreachable!()
    }

    fn received(&mut self, link: LinkId, bytes: &[u8]) -> Progress {
        assert_eq!(link, LINK);
        self.calls += 1;
        let Some(Order::Head { ask, take }) = self.current else {
            return Progress {
                consumed_bytes: 0,
                next: Next::Pause,
            };
        };
        assert!(
            bytes.len() >= ask,
            "shown {} of {ask} bytes asked for",
            bytes.len()
        );
        self.events.push(Event::Head(bytes[..take].to_vec()));
        Progress {
            consumed_bytes: take,
            next: self.next(bytes.len() - take),
        }
    }

    fn landed(&mut self, link: LinkId, landing: Landing, outcome: Outcome) -> Next {
        assert_eq!(link, LINK);
        self.calls += 1;
        assert_eq!(outcome, Outcome::Done);
        assert!(landing.is_full());
        self.events
            .push(Event::Landed(landing.into_buffer().to_vec()));
        self.next(0)
    }

    fn sent(&mut self, _: LinkId, _: Box<Frame>, _: Outcome) {
        unreachable!()
    }

    fn closed(&mut self, _: LinkId, _: &CloseReason) {
        unreachable!()
    }

    fn proven(&mut self, _: LinkId, _: Option<&crate::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

/// The events that the orders make of a whole stream, worked out without `Inbound`.
fn oracle(orders: &[Order], stream: &[u8]) -> Vec<Event> {
    let mut events = Vec::new();
    let mut rest = stream;
    for order in orders {
        match *order {
            Order::Head { ask, take } => {
                if rest.len() < ask {
                    return events;
                }
                events.push(Event::Head(rest[..take].to_vec()));
                rest = &rest[take..];
            }
            Order::Land(bytes) => {
                if rest.len() < bytes {
                    return events;
                }
                events.push(Event::Landed(rest[..bytes].to_vec()));
                rest = &rest[bytes..];
            }
            Order::Discard(bytes) => {
                let bytes = usize::try_from(bytes).unwrap();
                if rest.len() < bytes {
                    return events;
                }
                rest = &rest[bytes..];
            }
            Order::Pause => {}
        }
    }
    events
}

/// Plays a driver: reads as `target` says, in pieces of the given sizes, and resumes at every
/// pause.
fn play(orders: &[Order], stream: &[u8], pieces: &[usize]) -> Vec<Event> {
    let (mut handler, next) = Scripted::new(orders);
    let mut inbound = Inbound::new(next);
    let mut events = inbound.offer(LINK, &[], &mut handler);
    let mut rest = stream;
    let mut pieces = pieces.iter().copied().cycle();
    loop {
        let piece = pieces.next().unwrap_or(1).clamp(1, rest.len().max(1));
        match inbound.target() {
            ReadTarget::Direct(memory) => {
                let count = piece.min(memory.len()).min(rest.len());
                memory[..count].copy_from_slice(&rest[..count]);
                rest = &rest[count..];
                events += inbound.landed_direct(LINK, count, &mut handler);
            }
            ReadTarget::Staging => {
                let (now, later) = rest.split_at(piece.min(rest.len()));
                rest = later;
                events += inbound.offer(LINK, now, &mut handler);
            }
            ReadTarget::Paused => {
                if handler.orders.is_empty() {
                    break;
                }
                let next = handler.next(0);
                inbound.resume(next).unwrap();
                events += inbound.offer(LINK, &[], &mut handler);
                continue;
            }
        }
        if rest.is_empty() && !inbound.is_paused() {
            break;
        }
    }
    assert_eq!(events, handler.calls, "events counted and handler calls");
    handler.events
}

fn orders() -> impl Strategy<Value = Vec<Order>> {
    let head = (1..=HEAD_BYTES_MAX).prop_flat_map(|ask| {
        (Just(ask), prop_oneof![Just(ask), 0..=ask]).prop_map(|(ask, take)| Order::Head {
            ask,
            // A head that takes nothing and is followed by the same head would turn in circles.
            take: take.max(1),
        })
    });
    let land = prop_oneof![
        4 => 0..600_usize,
        1 => DIRECT_BYTES_MIN - 2..DIRECT_BYTES_MIN + 600,
        1 => 20_000..40_000_usize,
    ]
    .prop_map(Order::Land);
    let discard = (0..5000_u64, head.clone());
    let step = prop_oneof![
        4 => head.prop_map(|order| vec![order]),
        3 => land.prop_map(|order| vec![order]),
        1 => discard.prop_map(|(bytes, head)| vec![Order::Discard(bytes), head]),
        1 => Just(vec![Order::Pause]),
    ];
    proptest::collection::vec(step, 1..30).prop_map(|steps| steps.concat())
}

fn stream_of(len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(0x9e37_79b9) >> 11) as u8)
        .collect()
}

/// Bytes that the orders take, and what the last heads want to see beyond that.
fn wanted(orders: &[Order]) -> usize {
    HEAD_BYTES_MAX
        + orders
            .iter()
            .map(|order| match *order {
                Order::Head { take, .. } => take,
                Order::Land(bytes) => bytes,
                Order::Discard(bytes) => usize::try_from(bytes).unwrap(),
                Order::Pause => 0,
            })
            .sum::<usize>()
}

proptest! {
    /// Checklist 18: events do not depend on where the stream was cut, at any byte.
    #[test]
    fn any_split_of_a_stream_gives_the_events_of_the_whole(
        orders in orders(),
        pieces in proptest::collection::vec(prop_oneof![1..4_usize, 1..600_usize, 1..20_000_usize], 1..40),
        cut in 0.0..1.0_f64,
    ) {
        let whole = stream_of(wanted(&orders));
        let stream = if cut < 0.5 { &whole[..] } else { &whole[..(whole.len() as f64 * (cut - 0.5) * 2.0) as usize] };
        prop_assert_eq!(play(&orders, stream, &pieces), oracle(&orders, stream));
    }
}

#[test]
fn every_pair_of_cuts_of_a_short_stream_gives_the_same_events() {
    let orders = [
        Order::Head { ask: 5, take: 3 },
        Order::Head { ask: 4, take: 4 },
        Order::Land(6),
        Order::Pause,
        Order::Land(0),
        Order::Discard(3),
        Order::Head { ask: 2, take: 2 },
        Order::Head { ask: 9, take: 9 },
    ];
    let stream = stream_of(27);
    let expected = oracle(&orders, &stream);
    assert_eq!(expected.len(), 6);
    for first in 1..stream.len() {
        for second in 1..stream.len() {
            assert_eq!(
                play(&orders, &stream, &[first, second, stream.len()]),
                expected,
                "cut after {first}, then after {second} more"
            );
        }
    }
}

#[test]
fn a_head_in_pieces_does_not_grow_the_memory_of_a_link() {
    let orders = [Order::Head {
        ask: 256,
        take: 256,
    }; 50];
    let (mut handler, next) = Scripted::new(&orders);
    let mut inbound = Inbound::new(next);
    let memory = inbound.held.as_ptr();
    for piece in stream_of(50 * 256).chunks(100) {
        inbound.offer(LINK, piece, &mut handler);
    }
    assert_eq!(handler.events.len(), 50);
    assert_eq!(inbound.held.as_ptr(), memory);
    assert_eq!(inbound.held.capacity(), HEAD_BYTES_MAX);
}

#[test]
fn what_a_pause_holds_back_comes_before_what_is_read_later() {
    let orders = [
        Order::Head { ask: 1, take: 1 },
        Order::Pause,
        Order::Land(DIRECT_BYTES_MIN + 10),
    ];
    let stream = stream_of(DIRECT_BYTES_MIN + 11);
    let (mut handler, next) = Scripted::new(&orders);
    let mut inbound = Inbound::new(next);
    inbound.offer(LINK, &stream[..6], &mut handler);
    assert!(inbound.is_paused());
    assert_eq!(inbound.held_bytes(), 5);
    inbound.offer(LINK, &stream[6..7], &mut handler);
    let next = handler.next(0);
    inbound.resume(next).unwrap();
    assert!(
        matches!(inbound.target(), ReadTarget::Staging),
        "a direct read would overtake the bytes that are held"
    );
    inbound.offer(LINK, &[], &mut handler);
    assert!(matches!(inbound.target(), ReadTarget::Direct(_)));
    inbound.offer(LINK, &stream[7..], &mut handler);
    assert_eq!(handler.events, oracle(&orders, &stream));
}

#[test]
fn only_a_paused_link_can_be_resumed() {
    let head = || Next::Head { at_least_bytes: 4 };
    let mut inbound = Inbound::new(head());
    assert!(matches!(inbound.resume(Next::Pause), Err(Next::Pause)));
    let mut paused = Inbound::new(Next::Pause);
    assert!(matches!(paused.target(), ReadTarget::Paused));
    assert!(paused.resume(head()).is_ok());
    assert!(paused.resume(head()).is_err());
}

/// Counts what a dying link gives back.
#[derive(Default)]
struct Losses(Vec<usize>);

impl LinkHandler<()> for Losses {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, (): ()) {}

    fn connected(&mut self, _: LinkId) -> Next {
        Next::Pause
    }

    fn received(&mut self, _: LinkId, bytes: &[u8]) -> Progress {
        Progress {
            consumed_bytes: bytes.len() + 1,
            next: Next::Pause,
        }
    }

    fn landed(&mut self, _: LinkId, landing: Landing, outcome: Outcome) -> Next {
        assert_eq!(outcome, Outcome::Lost);
        self.0.push(landing.filled_bytes());
        Next::Pause
    }

    fn sent(&mut self, _: LinkId, _: Box<Frame>, _: Outcome) {}

    fn closed(&mut self, _: LinkId, _: &CloseReason) {}

    fn proven(&mut self, _: LinkId, _: Option<&crate::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

#[test]
fn a_lost_link_gives_its_landing_back_once_and_takes_nothing_more() {
    let mut losses = Losses::default();
    let mut inbound = Inbound::new(Next::Land(Landing::new(BufferMut::zeroed(10))));
    assert_eq!(inbound.offer(LINK, b"1234", &mut losses), 0);
    assert_eq!(inbound.lose(LINK, &mut losses), 1);
    assert_eq!(inbound.lose(LINK, &mut losses), 0);
    assert_eq!(losses.0, [4]);
    assert_eq!(inbound.offer(LINK, b"56789a", &mut losses), 0);
    assert!(matches!(inbound.target(), ReadTarget::Paused));
    assert!(inbound.resume(Next::Pause).is_err());

    let mut waiting = Inbound::new(Next::Head { at_least_bytes: 4 });
    waiting.offer(LINK, b"123", &mut losses);
    assert_eq!(waiting.lose(LINK, &mut losses), 0);
    assert_eq!(waiting.held_bytes(), 0);
}

#[test]
#[should_panic(expected = "shown 3 bytes and claims to have consumed 4")]
fn a_handler_cannot_consume_more_than_it_was_shown() {
    let mut inbound = Inbound::new(Next::Head { at_least_bytes: 1 });
    inbound.offer(LINK, b"abc", &mut Losses::default());
}

#[test]
#[should_panic(expected = "1 to 256 are allowed")]
fn a_head_has_a_limit() {
    Inbound::new(Next::Head {
        at_least_bytes: HEAD_BYTES_MAX + 1,
    });
}

#[test]
#[should_panic(expected = "no landing waits")]
fn a_direct_read_needs_a_landing() {
    Inbound::new(Next::Pause).landed_direct(LINK, 1, &mut Losses::default());
}

/// Answers with a fixed order and never consumes a byte.
struct Lazy(fn() -> Next);

impl LinkHandler<()> for Lazy {
    fn accepted(&mut self, _: ListenerId, _: SocketAddr, (): ()) {}

    fn connected(&mut self, _: LinkId) -> Next {
        (self.0)()
    }

    fn received(&mut self, _: LinkId, _: &[u8]) -> Progress {
        Progress {
            consumed_bytes: 0,
            next: (self.0)(),
        }
    }

    fn landed(&mut self, _: LinkId, _: Landing, _: Outcome) -> Next {
        (self.0)()
    }

    fn sent(&mut self, _: LinkId, _: Box<Frame>, _: Outcome) {}

    fn closed(&mut self, _: LinkId, _: &CloseReason) {}

    fn proven(&mut self, _: LinkId, _: Option<&crate::PeerName>) {}

    fn migration(&mut self, _: LinkId, _: Migration<'_>) {}
}

#[test]
#[should_panic(expected = "must consume what it can use")]
fn a_handler_cannot_ask_for_what_it_has() {
    let order = || Next::Head { at_least_bytes: 2 };
    Inbound::new(order()).offer(LINK, b"abc", &mut Lazy(order));
}

#[test]
#[should_panic(expected = "without taking a byte")]
fn a_handler_cannot_turn_in_circles() {
    let order = || Next::Discard {
        bytes: 0,
        then_at_least_bytes: 1,
    };
    Inbound::new(order()).offer(LINK, b"abc", &mut Lazy(order));
}

#[test]
fn reading_tells_what_has_come_and_what_is_begun() {
    let orders = [
        Order::Head { ask: 4, take: 4 },
        Order::Land(3),
        Order::Pause,
    ];
    let (mut scripted, next) = Scripted::new(&orders);
    let mut inbound = Inbound::new(next);
    let mut reading = |inbound: &mut Inbound, bytes: &[u8]| {
        inbound.offer(LINK, bytes, &mut scripted);
        let Reading {
            taken_bytes,
            is_begun,
            asks,
        } = inbound.reading();
        (taken_bytes, is_begun, asks)
    };
    assert_eq!(reading(&mut inbound, b""), (0, false, true));
    assert_eq!(reading(&mut inbound, b"hea"), (3, true, true));
    assert_eq!(reading(&mut inbound, b"dla"), (6, true, true));
    assert_eq!(reading(&mut inbound, b"n"), (7, false, false));
}
