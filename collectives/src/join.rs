//! How the ranks of a group find each other: they meet at rank 0, by a function that it registers.
//!
//! Each rank sends its number, the size and the generation that it expects, and where it is. When
//! all have come, each gets the places of all and the step in which the group works.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use grpcxx_memory::Buffer;
use grpcxx_rpc::{
    Code, Fetched, GraphCall, NamedTensors, Reason, RendezvousKey, Response, Shape, Status, Tensor,
    Text,
};
use grpcxx_runtime::{Client, Engine, Function, Peer, Remote, Responder, SharedMemory};

use crate::boards::{Boards, Offer, Refused};
use crate::group::GroupBuilder;
use crate::member::{Member, Names, Who};
use crate::place;
use crate::plan::DIRECT_RANKS_MAX;

/// What every rank knows once all have met.
#[derive(Clone, Debug)]
struct Roll {
    step_id: i64,
    ranks: Vec<Who>,
}

/// The meeting, at rank 0.
struct Meeting {
    size: u32,
    generation: u64,
    state: Mutex<State>,
    came: Condvar,
}

struct State {
    arrivals: BTreeMap<u32, Arrival>,
    end: Option<Result<Roll, Status>>,
}

struct Arrival {
    who: Who,
    /// Rank 0 has none: it is here.
    responder: Option<Responder>,
}

/// What a rank says when it comes.
struct Greeting {
    rank: u32,
    size: u32,
    generation: u64,
    who: Who,
}

/// A rank that is about to meet the others.
pub(crate) struct Joining {
    builder: GroupBuilder,
    client: Client,
    road: Road,
    offer: Result<Offer, Refused>,
}

/// Whether the ranks of a group can show each other what they bring.
pub(crate) enum Found {
    /// There is no other rank.
    Alone,
    /// A rank shows nothing, as all know.
    Nowhere(Refused),
    /// This rank sees the boards of all others.
    Here(Boards),
    /// This rank does not see all of them.
    Refused(Refused),
}

/// How a rank meets the others.
enum Road {
    /// They come to it.
    Host(Arc<Meeting>),
    /// It goes to rank 0.
    Guest(Remote, Box<GraphCall>),
}

impl Joining {
    /// From now on the others can meet this rank, if it is rank 0.
    pub(crate) fn begin(builder: GroupBuilder, engine: &Engine) -> Result<Self, Status> {
        let (rank, size) = (builder.rank, builder.size);
        if size == 0 || size > RANKS_MAX || rank >= size {
            return Err(invalid(format!(
                "there is no rank {rank} in a group of {size}; a group has 1 to {RANKS_MAX} \
                 ranks, numbered from 0"
            )));
        }
        if builder.name.len() > NAME_BYTES_MAX {
            return Err(invalid(format!(
                "the name of a group has at most {NAME_BYTES_MAX} bytes, not {}",
                builder.name.len()
            )));
        }
        let offer = offer(&builder, engine);
        let who = Who {
            address: place::told(&builder, engine)?,
            device: engine.device_attributes().name.clone(),
            incarnation: engine.incarnation(),
            board: offer.as_ref().map_or("", |offer| offer.told()).to_owned(),
        };
        let function = Text::from(format!("{FUNCTION}/{}", builder.name));
        let generation = builder.generation;
        let road = if rank == 0 {
            let meeting = Arc::new(Meeting::new(size, generation, who));
            engine.register(function, Arc::clone(&meeting) as Arc<dyn Function>);
            Road::Host(meeting)
        } else {
            let greeting = Greeting {
                rank,
                size,
                generation,
                who,
            };
            let remote = engine.connect(&builder.rendezvous)?;
            Road::Guest(remote, Box::new(greeting.call(function)?))
        };
        Ok(Self {
            builder,
            client: engine.client(),
            road,
            offer,
        })
    }

    /// Waits until all have met.
    pub(crate) fn wait(self) -> Result<(Member, Found), Status> {
        let roll = match &self.road {
            Road::Host(meeting) => meeting.wait(&self.builder)?,
            Road::Guest(remote, call) => ask(&self.builder, remote, call)?,
        };
        let (rank, client) = (self.builder.rank, self.client);
        let own = client.own_peer(roll.step_id);
        let shard = own.shard();
        let peers = roll.ranks.iter().enumerate().map(|(index, who)| {
            let is_own = index == rank as usize;
            // Rank 0 was reached there, whatever it takes for its address.
            let address = match index {
                0 => &self.builder.rendezvous,
                _ => &who.address,
            };
            let peer = || {
                // Where there are certificates, a rank proves by its own who it says that it is.
                if let Some(task) = who.task() {
                    client.expect_task(address, task);
                }
                client.peer_on(address, shard)
            };
            (!is_own).then(peer).transpose()
        });
        let peers: Vec<Option<Peer>> = peers.collect::<Result<_, Status>>()?;
        let names = Names::new(rank, &roll.ranks)?;
        let member = Member::new(
            (rank, self.builder.size),
            client,
            (roll.step_id, shard),
            (own, peers),
            names,
            self.builder.timeout,
        );
        Ok((member, found(rank, self.offer, &roll.ranks)))
    }
}

/// What this rank shows to others, unless it has nothing for that, or there are too many of them.
fn offer(builder: &GroupBuilder, engine: &Engine) -> Result<Offer, Refused> {
    let size = builder.size;
    if !(2..=DIRECT_RANKS_MAX).contains(&size) {
        let text = format!("the group has {size} ranks, and 2 to {DIRECT_RANKS_MAX} can use it");
        return Err(Refused(text));
    }
    match &engine.start_report().shared_memory {
        SharedMemory::On { .. } => Offer::new(),
        SharedMemory::Off { why } => Err(Refused(format!("that of this rank is off ({why})"))),
    }
}

/// Opens the boards of the others, unless a rank has none.
fn found(rank: u32, offer: Result<Offer, Refused>, ranks: &[Who]) -> Found {
    if ranks.len() == 1 {
        return Found::Alone;
    }
    let offer = match offer {
        Ok(offer) => offer,
        Err(why) => return Found::Nowhere(why),
    };
    let told: Vec<&str> = ranks.iter().map(|who| who.board.as_str()).collect();
    match told.iter().position(|told| told.is_empty()) {
        Some(other) => Found::Nowhere(Refused(format!("rank {other} has none"))),
        None => offer
            .open(rank, &told)
            .map_or_else(Found::Refused, Found::Here),
    }
}

/// Asks rank 0 until all have come.
fn ask(builder: &GroupBuilder, remote: &Remote, call: &GraphCall) -> Result<Roll, Status> {
    let until = Instant::now() + builder.join_timeout;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // Rank 0 says which ranks are missing, so it may answer a little later.
        let timeout = left + ANSWER_TIME;
        let status = match remote
            .clone()
            .with_timeout(timeout)
            .run(call.clone())
            .wait()
        {
            Ok(answer) => return Roll::of(answer, builder),
            Err(status) => status,
        };
        // Somebody else may listen there before rank 0 does, such as a proxy, or rank 0 itself in
        // the generation before.
        let may_come = status.code == Code::NotFound
            || matches!(
                status.reason,
                Reason::NoConnection | Reason::ConnectionLost | Reason::PeerViolation
            );
        if may_come && Instant::now() < until {
            std::thread::sleep(RETRY_TIME);
            continue;
        }
        if !may_come && status.reason != Reason::Deadline {
            return Err(status);
        }
        let text = format!(
            "rank {} did not meet the group {:?} at {} within {:?}: {}",
            builder.rank, builder.name, builder.rendezvous, builder.join_timeout, status.message
        );
        return Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline));
    }
}

impl Meeting {
    /// Rank 0 is there.
    fn new(size: u32, generation: u64, who: Who) -> Self {
        let arrival = Arrival {
            who,
            responder: None,
        };
        let state = State {
            arrivals: BTreeMap::from([(0, arrival)]),
            end: None,
        };
        Self {
            size,
            generation,
            state: Mutex::new(state),
            came: Condvar::new(),
        }
    }

    fn wait(&self, builder: &GroupBuilder) -> Result<Roll, Status> {
        let until = Instant::now() + builder.join_timeout;
        let mut state = self.state();
        while state.arrivals.len() < self.size as usize {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.came.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let missing = (0..self.size).filter(|rank| !state.arrivals.contains_key(rank));
        let missing: Vec<u32> = missing.collect();
        let end = match missing.is_empty() {
            true => Roll::new(&state.arrivals),
            false => {
                let shown: Vec<String> = missing
                    .iter()
                    .take(MISSING_SHOWN_MAX)
                    .map(u32::to_string)
                    .collect();
                let text = format!(
                    "the group {:?} did not get full within {:?}: {} of {} ranks are missing ({}{})",
                    builder.name,
                    builder.join_timeout,
                    missing.len(),
                    self.size,
                    shown.join(", "),
                    if missing.len() > shown.len() {
                        ", ..."
                    } else {
                        ""
                    },
                );
                Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline))
            }
        };
        state.end = Some(end.clone());
        let responders = state.arrivals.values_mut();
        let responders: Vec<Responder> = responders
            .filter_map(|arrival| arrival.responder.take())
            .collect();
        drop(state);
        for responder in responders {
            responder.answer(answer(&end));
        }
        end
    }

    fn come(&self, greeting: Greeting, responder: Responder) {
        let Greeting { rank, who, .. } = &greeting;
        let (rank, mut state) = (*rank, self.state());
        let known = state.arrivals.get(&rank);
        if let Some(known) = known
            && known.who != *who
        {
            let text = format!(
                "rank {rank} has come twice: from {} and from {}",
                known.who.address, who.address
            );
            drop(state);
            return responder.answer(Err(Status::new(Code::AlreadyExists, text)));
        }
        match &state.end {
            // It asks again, since it did not get the answer.
            Some(end) if known.is_some() || end.is_err() => {
                let answer = answer(end);
                drop(state);
                responder.answer(answer);
            }
            Some(_) | None => {
                let arrival = Arrival {
                    who: greeting.who,
                    responder: Some(responder),
                };
                let before = state.arrivals.insert(rank, arrival);
                self.came.notify_all();
                drop(state);
                drop(before);
            }
        }
    }

    fn check(&self, greeting: &Greeting) -> Result<(), Status> {
        let Greeting {
            rank,
            size,
            generation,
            who,
        } = greeting;
        if *generation > self.generation {
            // Rank 0 has yet to hear that the group is over, and comes again; the others ask again.
            let text = format!(
                "rank 0 is still in generation {} of the group, and rank {rank} expects {generation}",
                self.generation
            );
            return Err(Status::new(Code::NotFound, text));
        }
        if (*size, *generation) != (self.size, self.generation) {
            return Err(Status::new(
                Code::FailedPrecondition,
                format!(
                    "rank {rank} expects {size} ranks in generation {generation}, and rank 0 \
                     expects {} in generation {}",
                    self.size, self.generation
                ),
            ));
        }
        let is_long = who.address.len() > ADDRESS_BYTES_MAX || who.board.len() > BOARD_BYTES_MAX;
        if *rank == 0 || *rank >= self.size || is_long {
            return Err(invalid(format!(
                "rank {rank} with an address of {} bytes and a board of {} cannot join a group of \
                 {}",
                who.address.len(),
                who.board.len(),
                self.size
            )));
        }
        RendezvousKey::new(&who.device, who.incarnation, &who.device, "check").map(|_| ())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Function for Meeting {
    fn call(&self, _call: GraphCall) -> Result<NamedTensors, Status> {
        let text = "ranks of a group meet by a call of their own";
        Err(Status::new(Code::Unimplemented, text))
    }

    fn start(&self, call: GraphCall, responder: Responder) {
        let greeting = Greeting::of(&call);
        let checked = greeting.and_then(|greeting| self.check(&greeting).map(|()| greeting));
        match checked {
            Ok(greeting) => self.come(greeting, responder),
            Err(status) => responder.answer(Err(status)),
        }
    }

    fn may_block(&self) -> bool {
        false
    }

    fn runs_anywhere(&self) -> bool {
        true
    }
}

impl Greeting {
    fn call(&self, function: Text) -> Result<GraphCall, Status> {
        Ok(GraphCall::new(function)
            .with_feed("rank", Tensor::scalar(self.rank))
            .with_feed("size", Tensor::scalar(self.size))
            .with_feed("generation", Tensor::scalar(self.generation))
            .with_feed("incarnation", Tensor::scalar(self.who.incarnation))
            .with_feed("address", texts(&[&self.who.address])?)
            .with_feed("device", texts(&[&self.who.device])?)
            .with_feed("board", texts(&[&self.who.board])?)
            .with_fetch(STEP)
            .with_fetch(ADDRESSES)
            .with_fetch(DEVICES)
            .with_fetch(INCARNATIONS)
            .with_fetch(BOARDS))
    }

    fn of(call: &GraphCall) -> Result<Self, Status> {
        let text = |name: &str| {
            let texts = texts_of(call.feed(name)?)?;
            let first = texts.into_iter().next();
            first.ok_or_else(|| invalid(format!("{name} is empty")))
        };
        Ok(Self {
            rank: call.feed("rank")?.value()?,
            size: call.feed("size")?.value()?,
            generation: call.feed("generation")?.value()?,
            who: Who {
                address: text("address")?,
                device: text("device")?,
                incarnation: call.feed("incarnation")?.value()?,
                board: text("board")?,
            },
        })
    }
}

impl Roll {
    fn new(arrivals: &BTreeMap<u32, Arrival>) -> Result<Self, Status> {
        let mut number = [0; 8];
        getrandom::fill(&mut number).map_err(|error| {
            let text = format!("the system gives no random number for a step: {error}");
            Status::new(Code::Internal, text)
        })?;
        Ok(Self {
            step_id: i64::from_le_bytes(number) & i64::MAX,
            ranks: arrivals
                .values()
                .map(|arrival| arrival.who.clone())
                .collect(),
        })
    }

    fn results(&self) -> Result<Vec<(Text, Tensor)>, Status> {
        let all = |of: fn(&Who) -> &str| texts(&self.ranks.iter().map(of).collect::<Vec<_>>());
        let incarnations = self.ranks.iter().map(|who| who.incarnation).collect();
        Ok(vec![
            (Text::from(STEP), Tensor::scalar(self.step_id)),
            (Text::from(ADDRESSES), all(|who| &who.address)?),
            (Text::from(DEVICES), all(|who| &who.device)?),
            (Text::from(BOARDS), all(|who| &who.board)?),
            (
                Text::from(INCARNATIONS),
                Tensor::vector::<u64>(incarnations),
            ),
        ])
    }

    fn of(answer: Fetched, builder: &GroupBuilder) -> Result<Self, Status> {
        let step_id = answer.get(STEP)?.value()?;
        let addresses = texts_of(answer.get(ADDRESSES)?)?;
        let devices = texts_of(answer.get(DEVICES)?)?;
        let boards = texts_of(answer.get(BOARDS)?)?;
        let incarnations = answer.get(INCARNATIONS)?.elements::<u64>()?.into_owned();
        let counts = [
            addresses.len(),
            devices.len(),
            boards.len(),
            incarnations.len(),
        ];
        if counts != [builder.size as usize; 4] {
            let text = format!(
                "rank 0 answered with {counts:?} names for a group of {}",
                builder.size
            );
            return Err(Status::new(Code::DataLoss, text));
        }
        let names = addresses.into_iter().zip(devices);
        let ranks = names.zip(boards).zip(incarnations);
        let ranks = ranks.map(|(((address, device), board), incarnation)| Who {
            address,
            device,
            incarnation,
            board,
        });
        Ok(Self {
            step_id,
            ranks: ranks.collect(),
        })
    }
}

fn answer(end: &Result<Roll, Status>) -> Result<Response, Status> {
    let roll = end.as_ref().map_err(Status::clone)?;
    roll.results()
        .map(|results| Response::Fetched(results.into()))
}

fn texts(texts: &[&str]) -> Result<Tensor, Status> {
    let bytes = texts.iter().map(|text| text.as_bytes());
    Tensor::from_strings(Shape::vector(texts.len()), bytes)
}

fn texts_of(tensor: &Tensor) -> Result<Vec<String>, Status> {
    let text = |bytes: Buffer| {
        String::from_utf8(bytes.to_vec())
            .map_err(|error| invalid(format!("a name of a rank is no text: {error}")))
    };
    tensor.strings()?.into_iter().map(text).collect()
}

fn invalid(text: String) -> Status {
    Status::new(Code::InvalidArgument, text)
}

/// What the function of a group is called, before its name.
const FUNCTION: &str = "grpcxx.group.join";

const STEP: &str = "step";
const ADDRESSES: &str = "addresses";
const DEVICES: &str = "devices";
const INCARNATIONS: &str = "incarnations";
const BOARDS: &str = "boards";

/// Most ranks of a group.
const RANKS_MAX: u32 = 4096;

/// Longest name of a group.
const NAME_BYTES_MAX: usize = 200;

/// Longest address of a rank.
const ADDRESS_BYTES_MAX: usize = 300;

/// Longest text by which a rank tells where its board is.
const BOARD_BYTES_MAX: usize = 200;

/// How long rank 0 may take to say that the time is over.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Time from a meeting that is not there yet to the next attempt.
const RETRY_TIME: Duration = Duration::from_millis(20);

/// Most missing ranks that an error names.
const MISSING_SHOWN_MAX: usize = 16;
