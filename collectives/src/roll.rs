//! What ranks tell each other when they meet: each who it is, and rank 0 who all are.

use grpcxx_memory::Buffer;
use grpcxx_rpc::{Code, Fetched, GraphCall, NamedTensors, Response, Shape, Status, Tensor, Text};

use crate::group::GroupBuilder;
use crate::member::Who;

/// What every rank knows once all have met.
#[derive(Clone, Debug)]
pub(crate) struct Roll {
    pub(crate) step_id: i64,
    pub(crate) ranks: Vec<Who>,
}

/// What a rank says when it comes.
pub(crate) struct Greeting {
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) generation: u64,
    pub(crate) who: Who,
}

impl Greeting {
    pub(crate) fn call(&self, function: Text) -> Result<GraphCall, Status> {
        Ok(GraphCall::new(function)
            .with_feed("version", Tensor::scalar(VERSION))
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

    /// # Errors
    /// `FAILED_PRECONDITION` if the rank speaks another version.
    pub(crate) fn of(call: &GraphCall) -> Result<Self, Status> {
        // Nothing else is what it seems to be before that is known.
        let version = call.feed("version").map_or(Ok(0), Tensor::value::<u32>)?;
        if version != VERSION {
            let rank: u32 = call.feed("rank")?.value()?;
            let text = format!(
                "rank {rank} speaks version {version} of groups and rank 0 version {VERSION}; \
                 install the same grpcxx everywhere"
            );
            return Err(Status::new(Code::FailedPrecondition, text));
        }
        let text = |name: &str| text_of(call.feed(name)?);
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
    /// The list of all, and a step of its own for the group.
    pub(crate) fn new(ranks: impl Iterator<Item = Who>) -> Result<Self, Status> {
        let mut number = [0; 8];
        getrandom::fill(&mut number).map_err(|error| {
            let text = format!("the system gives no random number for a step: {error}");
            Status::new(Code::Internal, text)
        })?;
        Ok(Self {
            step_id: i64::from_le_bytes(number) & i64::MAX,
            ranks: ranks.collect(),
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

    pub(crate) fn of(answer: Fetched, builder: &GroupBuilder) -> Result<Self, Status> {
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

/// What rank 0 tells the others of the end.
pub(crate) fn answer(end: &Result<Roll, Status>) -> Result<Response, Status> {
    let roll = end.as_ref().map_err(Status::clone)?;
    roll.results()
        .map(|results| Response::Fetched(results.into()))
}

/// What rank 0 says of the ranks that are missing.
pub(crate) fn told_missing(text: &str) -> Result<Response, Status> {
    let told = (Text::from(MISSING), texts(&[text])?);
    Ok(Response::Fetched(NamedTensors::from_iter([told])))
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

/// The first text of a tensor.
pub(crate) fn text_of(tensor: &Tensor) -> Result<String, Status> {
    let first = texts_of(tensor)?.into_iter().next();
    first.ok_or_else(|| invalid("a text of a rank is empty".to_owned()))
}

pub(crate) fn invalid(text: String) -> Status {
    Status::new(Code::InvalidArgument, text)
}

/// What a rank fetches that asks which ranks are missing.
pub(crate) const MISSING: &str = "missing";

/// Changes with what ranks say to each other, also under which keys they do.
const VERSION: u32 = 1;

const STEP: &str = "step";
const ADDRESSES: &str = "addresses";
const DEVICES: &str = "devices";
const INCARNATIONS: &str = "incarnations";
const BOARDS: &str = "boards";
