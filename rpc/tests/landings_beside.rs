//! A client on a link that fetches payload by itself: it shows what follows a landing before that
//! is back.

use std::collections::VecDeque;

use grpcxx_rpc::{ClientConnection, ConnectionLimits, Features, Response, Tensor};
use grpcxx_transport::{Landing, Next, Time};
use proptest::prelude::*;

use crate::support::make::{bytes_tensor, fuse, graph, named, receive};
use crate::support::{Pair, Port, tensors};

/// The receiving end of a link, which takes landings and gives them back later, in order.
struct Taker<'a> {
    client: &'a mut Port<ClientConnection>,
    wire: &'a [u8],
    at: usize,
    /// Landings that were taken, with where their bytes begin.
    taken: VecDeque<(Landing, usize)>,
    choices: Vec<u8>,
    chosen: usize,
}

impl Taker<'_> {
    fn run(&mut self) {
        let mut order = self.client.end.first_order();
        while self.at < self.wire.len() {
            order = match order {
                Next::Head { at_least_bytes } => self.show(at_least_bytes),
                Next::Land(landing) => self.land(landing),
                Next::Discard {
                    bytes,
                    then_at_least_bytes,
                } => {
                    self.at += bytes as usize;
                    Next::Head {
                        at_least_bytes: then_at_least_bytes,
                    }
                }
                Next::Pause => panic!("nobody pauses a client"),
            };
        }
        // What follows the last byte is an order for what never comes, or an empty landing.
        if let Next::Land(landing) = order {
            self.land(landing);
        }
        self.give_back(usize::MAX);
    }

    fn choose(&mut self, of: u8) -> u8 {
        self.chosen += 1;
        self.choices[self.chosen % self.choices.len()] % of
    }

    fn show(&mut self, at_least_bytes: usize) -> Next {
        if self.choose(2) == 0 {
            self.give_back(1);
        }
        let more = match self.choose(3) {
            0 => usize::from(self.choose(100)),
            _ => 0,
        };
        let left = self.wire.len() - self.at;
        assert!(at_least_bytes <= left, "more is waited for than comes");
        let shown = &self.wire[self.at..self.at + left.min(at_least_bytes + more)];
        let client = &mut *self.client;
        let progress = (client.end).handle_received(Time::ZERO, shown, &mut client.landings);
        let progress = progress.unwrap();
        self.at += progress.consumed_bytes;
        progress.next
    }

    fn land(&mut self, landing: Landing) -> Next {
        let from = self.at;
        self.at += landing.remaining_bytes();
        match landing.then_head_bytes() {
            Some(at_least_bytes) if self.choose(4) > 0 => {
                self.taken.push_back((landing, from));
                Next::Head { at_least_bytes }
            }
            _ => {
                self.give_back(usize::MAX);
                self.landed(landing, from)
            }
        }
    }

    /// Gives the oldest landings back. The link has gone on, so that the answer does not count.
    fn give_back(&mut self, count_max: usize) {
        for _ in 0..count_max.min(self.taken.len()) {
            if let Some((landing, from)) = self.taken.pop_front() {
                self.landed(landing, from);
            }
        }
    }

    fn landed(&mut self, mut landing: Landing, from: usize) -> Next {
        landing.fill_from(&self.wire[from..]);
        assert!(landing.is_full());
        let client = &mut *self.client;
        let next = (client.end).handle_landed(Time::ZERO, landing, &mut client.landings);
        next.unwrap()
    }
}

fn announced(limits: ConnectionLimits, features: Features) -> Pair {
    let mut pair = Pair::with_limits(limits, features, features);
    pair.answer_announcement();
    pair
}

proptest! {
    #[test]
    fn landings_that_come_back_late_are_taken_in_order(
        answers in proptest::collection::vec(
            proptest::collection::vec(
                prop_oneof![
                    0usize..1100,
                    1000usize..9000,
                    Just(2048),
                    (16usize..140).prop_map(|count| 64 * count),
                ],
                1..5,
            ),
            1..6,
        ),
        chunk_bytes in prop_oneof![100usize..9000, (1usize..4).prop_map(|count| 2048 * count)],
        whole_frame_bytes in 2000u64..40_000,
        bits in 0u64..4,
        shares in any::<bool>(),
        window_bytes in prop_oneof![Just(None), (1usize..3000).prop_map(Some)],
        choices in proptest::collection::vec(any::<u8>(), 1..50),
    ) {
        let optional = [Features::NONE, Features::CHUNKS, Features::HEADS_FIRST];
        let features = match bits {
            3 => Features::ALL,
            bits => Features::CANCEL | optional[bits as usize],
        };
        let limits = ConnectionLimits::default().with(|limits| {
            limits.chunk_bytes = chunk_bytes;
            limits.whole_frame_bytes = whole_frame_bytes;
});
        let mut pair = announced(limits, features);
        let mut calls = Vec::new();
        for (index, lens) in answers.iter().enumerate() {
            let keys: Vec<String> = (0..lens.len()).map(|key| key.to_string()).collect();
            let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
            calls.push(pair.call(match index % 3 {
                0 if lens.len() == 1 => receive("k"),
                0 | 1 => fuse(&keys),
                _ => graph("f", vec![], &keys),
            }));
        }
        pair.carry_requests();
        let mut expected = Vec::new();
        for (index, lens) in answers.iter().enumerate() {
            let id = pair.request().id;
            let made = (0..).zip(lens).map(|(seed, &len)| bytes_tensor(len, seed));
            let made: Vec<Tensor> = made.collect();
            let answer = if index % 3 == 2 {
                let keys: Vec<String> = (0..lens.len()).map(|key| key.to_string()).collect();
                let keys = keys.iter().map(String::as_str);
                Ok(Response::Fetched(named(keys.zip(made).collect())))
            } else {
                tensors(made)
            };
            assert!(pair.server.end.answer(id, answer.clone()));
            expected.push(answer);
        }
        let wire = pair.server.drain();
        pair.client.landings.shares = shares;
        pair.client.landings.window_bytes = window_bytes;
        let mut taker = Taker {
            client: &mut pair.client,
            wire: &wire,
            at: 0,
            taken: VecDeque::new(),
            choices,
            chosen: 0,
        };
        taker.run();
        let mut finished: Vec<_> = std::iter::from_fn(|| pair.client.end.poll_finished()).collect();
        finished.sort_by_key(|finished| finished.call);
        prop_assert_eq!(finished.len(), calls.len());
        for ((finished, call), answer) in finished.into_iter().zip(calls).zip(expected) {
            prop_assert_eq!(finished.call, call);
            prop_assert_eq!(finished.result, answer);
        }
    }
}
