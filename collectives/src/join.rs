//! How the ranks of a group find each other: they meet at rank 0, by a function that it registers.
//!
//! Each rank sends its number, the size and the generation that it expects, and where it is. When
//! all have come, each gets the places of all and the step in which the group works.

use std::sync::Arc;
use std::time::{Duration, Instant};

use grpcxx_rpc::{Code, Fetched, GraphCall, Reason, Status, Text};
use grpcxx_runtime::{Client, Engine, Function, Peer, Remote, SharedMemory};

use crate::boards::{Boards, Offer, Refused};
use crate::group::GroupBuilder;
use crate::meeting::{Meeting, not_full};
use crate::member::{Answers, Member, Names, Who};
use crate::place;
use crate::plan::DIRECT_RANKS_MAX;
use crate::roll::{Greeting, MISSING, Roll, invalid, text_of};

/// A rank that is about to meet the others.
pub(crate) struct Joining {
    builder: GroupBuilder,
    client: Client,
    road: Road,
    offer: Result<Offer, Refused>,
    answers: Arc<Answers>,
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
        let answers = Arc::new(Answers::default());
        let name = Answers::name(&builder.name, rank);
        engine.register(name, Arc::clone(&answers) as Arc<dyn Function>);
        let function = Text::from(format!("{FUNCTION}/{}", builder.name));
        let generation = builder.generation;
        let road = if rank == 0 {
            let meeting = Arc::new(Meeting::new(builder.name.clone(), size, generation, who));
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
            answers,
        })
    }

    /// Waits until all have met.
    pub(crate) fn wait(self) -> Result<(Arc<Member>, Found), Status> {
        let roll = match &self.road {
            Road::Host(meeting) => meeting.wait(self.builder.join_timeout)?,
            Road::Guest(remote, call) => {
                let way = Way {
                    builder: &self.builder,
                    client: &self.client,
                    remote,
                };
                way.ask(call)?
            }
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
                    client.expect_task(address, task)?;
                }
                client.peer_on(address, shard)
            };
            (!is_own).then(peer).transpose()
        });
        let peers: Vec<Option<Peer>> = peers.collect::<Result<_, Status>>()?;
        let names = Names::new(&self.builder.name, rank, &roll.ranks)?;
        let member = Arc::new(Member::new(
            (rank, self.builder.size),
            client,
            (roll.step_id, shard),
            (own, peers),
            names,
            self.builder.timeout,
        ));
        self.answers.speak_for(&member);
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

/// The way of a rank to rank 0.
struct Way<'a> {
    builder: &'a GroupBuilder,
    client: &'a Client,
    remote: &'a Remote,
}

impl Way<'_> {
    /// Asks rank 0 until all have come, or the time is over.
    fn ask(&self, call: &GraphCall) -> Result<Roll, Status> {
        let until = Instant::now() + self.builder.join_timeout;
        let mut hindrance = None;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = hindrance.unwrap_or_else(|| "there was no answer".to_owned());
                return Err(self.late(&text));
            }
            let status = match self.ask_once(call, left) {
                Ok(answer) => return Roll::of(answer, self.builder),
                Err(status) => status,
            };
            // Somebody else may listen there before rank 0 does, such as a proxy, or rank 0 itself
            // in the generation before.
            let may_come = status.code == Code::NotFound
                || matches!(
                    status.reason,
                    Reason::NoConnection | Reason::ConnectionLost | Reason::PeerViolation
                );
            match status.reason {
                Reason::Deadline => _ = hindrance.get_or_insert(status.message.to_string()),
                _ if may_come => hindrance = Some(status.message.to_string()),
                _ => return Err(status),
            }
            std::thread::sleep(RETRY_TIME.min(left));
        }
    }

    /// Asks rank 0 once. Who waits until the end learns which ranks are missing, if rank 0 says so.
    fn ask_once(&self, call: &GraphCall, left: Duration) -> Result<Fetched, Status> {
        let until = Instant::now() + left;
        let mut answer = self.remote.clone().with_timeout(left).run(call.clone());
        let shard = self.remote.peer().shard();
        let most = left - ANSWER_TIME.min(left / 4);
        if let Some(answer) = self.client.wait(shard, &mut answer, Some(most)) {
            return answer;
        }
        let left = until.saturating_duration_since(Instant::now());
        let question = GraphCall::new(call.graph_handle.clone()).with_fetch(MISSING);
        let told = self.remote.clone().with_timeout(left).run(question).wait();
        let missing = told.and_then(|told| text_of(told.get(MISSING)?));
        match (answer.wait(), missing) {
            (Err(status), Ok(missing)) if status.reason == Reason::Deadline => {
                let GroupBuilder {
                    name, join_timeout, ..
                } = self.builder;
                Err(not_full(name, *join_timeout, &missing))
            }
            (answer, _) => answer,
        }
    }

    fn late(&self, hindrance: &str) -> Status {
        let builder = self.builder;
        let text = format!(
            "rank {} did not meet the group {:?} at {} within {:?}: {hindrance}",
            builder.rank, builder.name, builder.rendezvous, builder.join_timeout
        );
        Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline)
    }
}

/// What the function of a group is called, before its name.
const FUNCTION: &str = "grpcxx.group.join";

/// Most ranks of a group.
const RANKS_MAX: u32 = 4096;

/// Longest name of a group.
const NAME_BYTES_MAX: usize = 200;

/// How long before the end of the time rank 0 is asked which ranks are missing.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// Time from a meeting that is not there yet to the next attempt.
const RETRY_TIME: Duration = Duration::from_millis(20);
