//! A group of tasks, as one of its ranks holds it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use grpcxx_memory::{Buffer, BufferMut};
use grpcxx_rpc::{Code, DType, Reason, Shape, Status, Tensor};
use grpcxx_runtime::Engine;

use crate::boards::Boards;
use crate::bucket::{Buckets, packed};
use crate::description::{Description, Kind};
use crate::dtype::ReduceOp;
use crate::join::{Found, Joining};
use crate::machine::{Machine, Task};
use crate::member::{AGREEMENT_TAG, Lookout, Member};
use crate::operation::{Ending, Operation};
use crate::operator::Operator;
use crate::plan::{Plan, Scheme};
use crate::way::{self, Told};

/// One rank of a group of tasks.
///
/// All ranks call the same operations, with the same types and shapes, in the same order. Each
/// method begins its operation at once and returns an [`Operation`], a future of its result;
/// operations of one tag go one after the other, those of different tags at the same time.
///
/// When a rank dies, does not answer, leaves, or calls something else than the others, the
/// operations of all ranks end with an error that names it, and so do all later ones. Those that
/// are left can join a new group with another generation.
#[derive(Clone)]
pub struct Group {
    member: Arc<Member>,
    tag: u16,
    told: Arc<Told>,
}

/// What a group is made of, to be changed and joined.
#[derive(Clone, Debug)]
#[must_use = "a builder makes a group when it is joined"]
pub struct GroupBuilder {
    pub(crate) name: String,
    pub(crate) rank: u32,
    pub(crate) size: u32,
    pub(crate) rendezvous: String,
    pub(crate) address: Option<String>,
    pub(crate) generation: u64,
    pub(crate) timeout: Duration,
    pub(crate) join_timeout: Duration,
}

impl Group {
    /// The group of `size` ranks that meet at the star port of rank 0, `rendezvous`.
    pub fn builder(rank: u32, size: u32, rendezvous: impl Into<String>) -> GroupBuilder {
        GroupBuilder {
            name: "default".to_owned(),
            rank,
            size,
            rendezvous: rendezvous.into(),
            address: None,
            generation: 0,
            timeout: TIMEOUT_DEFAULT,
            join_timeout: JOIN_TIMEOUT_DEFAULT,
        }
    }

    /// The number of this rank.
    pub fn rank(&self) -> u32 {
        self.member.rank
    }

    /// The number of ranks.
    pub fn size(&self) -> u32 {
        self.member.size
    }

    /// Why the group is over, if it is.
    pub fn failure(&self) -> Option<Status> {
        self.member.failure()
    }

    /// This group, for operations that go beside those of other tags.
    #[must_use]
    pub fn with_tag(&self, tag: u16) -> Self {
        Self {
            tag,
            ..self.clone()
        }
    }

    /// Does something with the tensors of all ranks. The result, if this rank gets one, lies in
    /// `output` if that is given, which must be as long; only the root of a broadcast gets its own
    /// tensor back.
    pub fn run(
        &self,
        operator: Operator,
        tensor: Tensor,
        output: Option<BufferMut>,
    ) -> Operation<Option<Tensor>> {
        let (rank, size, dtype) = (self.rank(), self.size(), tensor.dtype);
        let shape = operator.result_shape(rank, size, &tensor.shape);
        let is_given = matches!(operator, Operator::Broadcast { root } if root == rank);
        let own = is_given.then(|| tensor.clone());
        let result = shape.clone();
        let (operation, ending) = Operation::new(move |output: Option<BufferMut>| match own {
            Some(own) => Ok(Some(own)),
            None => {
                let made = |shape| Tensor::new(dtype, shape, output.unwrap_or_default().freeze());
                result?.map(made).transpose()
            }
        });
        let machine = shape.and_then(|_| self.machine(operator, tensor, output, &ending));
        // A group that is over says why. One may be kept longer than its engine, though, and what
        // lies in shared memory would do.
        let ended = self.member.client.ended();
        match (ended.filter(|_| self.failure().is_none()), machine) {
            (Some(status), _) => ending.fail(status),
            (None, Ok(machine)) => {
                self.explain(operator.kind(), machine.scheme());
                self.member.call(self.tag, machine, ending);
            }
            (None, Err(status)) => {
                ending.fail(status);
                self.refuse();
            }
        }
        let operation = operation.on(&self.member.client, self.member.shard);
        match self.member.goes_by_boards(self.tag) {
            true => operation.looked_for(Lookout {
                member: Arc::clone(&self.member),
                tag: self.tag,
            }),
            false => operation,
        }
    }

    /// Takes the place of an operation that was called here and cannot be, as the methods do that
    /// begin one: else the next one would meet what other ranks have called for this one. Where
    /// they have called another operation, the group ends; where all have refused, it goes on.
    pub fn refuse(&self) {
        let (_, ending) = Operation::<()>::new(|_| Ok(()));
        let plan = Plan {
            kind: Kind::Barrier,
            rank: self.rank(),
            size: self.size(),
            root: 0,
            bytes: 0,
            element_bytes: 1,
            has_boards: self.member.goes_by_boards(self.tag),
        };
        let task = Task {
            plan,
            description: Description::of_nothing(),
            arithmetic: None,
            input: Buffer::new(),
        };
        let machine = Machine::new(task, |_| Vec::new());
        self.member.call(self.tag, machine, ending);
    }

    /// The shape of what an output of [`Group::run`] gets, and how many bytes it must have; `None`
    /// where this rank gets nothing, or its own tensor.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the tensor cannot be cut as the operator demands.
    pub fn output(
        &self,
        operator: Operator,
        tensor: &Tensor,
    ) -> Result<Option<(Shape, u64)>, Status> {
        let is_own = matches!(operator, Operator::Broadcast { root } if root == self.rank());
        let shape = operator.result_shape(self.rank(), self.size(), &tensor.shape)?;
        let element_bytes = tensor.dtype.element_bytes().unwrap_or(0) as u64;
        Ok(shape.filter(|_| !is_own).map(|shape| {
            let bytes = shape.num_elements().saturating_mul(element_bytes);
            (shape, bytes)
        }))
    }

    /// [`Operator::AllReduce`].
    pub fn all_reduce(&self, tensor: Tensor, op: ReduceOp) -> Operation<Tensor> {
        self.result(Operator::AllReduce(op), tensor)
    }

    /// [`Operator::AllReduce`], with the result in `output`, which must be as long as the tensor.
    pub fn all_reduce_into(
        &self,
        tensor: Tensor,
        op: ReduceOp,
        output: BufferMut,
    ) -> Operation<Tensor> {
        let operation = self.run(Operator::AllReduce(op), tensor, Some(output));
        operation.and_then(present)
    }

    /// Combines tensors one by one, as [`Group::all_reduce`] does with one. Small ones of the same
    /// type travel together.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a type that cannot be combined.
    pub fn all_reduce_many(
        &self,
        tensors: Vec<Tensor>,
        op: ReduceOp,
    ) -> Result<Operations, Status> {
        let check = |tensor| self.check(Operator::AllReduce(op), tensor);
        tensors
            .iter()
            .try_for_each(check)
            .inspect_err(|_| self.refuse())?;
        let buckets = Buckets::of(&tensors);
        let begin = |bucket: &[usize]| Ok(self.all_reduce(packed(&tensors, bucket)?, op));
        let operations = buckets.iter().map(begin);
        let operations = operations.collect::<Result<VecDeque<_>, Status>>()?;
        let metas = tensors
            .iter()
            .map(|tensor| (tensor.dtype, tensor.shape.clone()));
        Ok(Operations {
            operations,
            ended: Vec::new(),
            metas: metas.collect(),
            buckets,
        })
    }

    /// [`Operator::ReduceScatter`].
    pub fn reduce_scatter(&self, tensor: Tensor, op: ReduceOp) -> Operation<Tensor> {
        self.result(Operator::ReduceScatter(op), tensor)
    }

    /// [`Operator::AllGather`].
    pub fn all_gather(&self, tensor: Tensor) -> Operation<Tensor> {
        self.result(Operator::AllGather, tensor)
    }

    /// [`Operator::Broadcast`].
    pub fn broadcast(&self, tensor: Tensor, root: u32) -> Operation<Tensor> {
        self.result(Operator::Broadcast { root }, tensor)
    }

    /// [`Operator::Reduce`].
    pub fn reduce(&self, tensor: Tensor, op: ReduceOp, root: u32) -> Operation<Option<Tensor>> {
        self.run(Operator::Reduce { op, root }, tensor, None)
    }

    /// [`Operator::Gather`].
    pub fn gather(&self, tensor: Tensor, root: u32) -> Operation<Option<Tensor>> {
        self.run(Operator::Gather { root }, tensor, None)
    }

    /// [`Operator::Scatter`].
    pub fn scatter(&self, tensor: Tensor, root: u32) -> Operation<Tensor> {
        self.result(Operator::Scatter { root }, tensor)
    }

    /// [`Operator::AllToAll`].
    pub fn all_to_all(&self, tensor: Tensor) -> Operation<Tensor> {
        self.result(Operator::AllToAll, tensor)
    }

    /// [`Operator::Barrier`].
    pub fn barrier(&self) -> Operation<()> {
        let nothing = Tensor::vector::<u8>(Vec::new());
        let operation = self.run(Operator::Barrier, nothing, None);
        operation.and_then(|_| Ok(()))
    }

    /// Leaves the group, once the others have what this rank has sent; a forked child lets go of
    /// it. Operations that begin later, through clones too, fail on all ranks, and name this one.
    /// If the group has failed, this waits until the others have heard why, for 2 seconds at most.
    /// It never takes longer than an operation may.
    ///
    /// # Errors
    /// `DEADLINE_EXCEEDED` if a rank does not take what was sent in that time, though the group has
    /// not failed; this one has left all the same.
    pub fn leave(self) -> Result<(), Status> {
        if self.member.client.inherited().is_some() {
            // In a forked child, which has no thread that could give back what this one needs.
            std::mem::forget(self);
            return Ok(());
        }
        let most = match self.failure() {
            Some(_) => self.member.farewell_wait(),
            None => self.member.patience,
        };
        match self.member.leave().recv_timeout(most) {
            Ok(()) | Err(RecvTimeoutError::Disconnected) => Ok(()),
            // What was sent is of no use any more.
            Err(RecvTimeoutError::Timeout) if self.failure().is_some() => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                let text = "the other ranks did not take all that this one has sent";
                Err(Status::new(Code::DeadlineExceeded, text).because(Reason::Deadline))
            }
        }
    }

    /// As [`Group::leave`], without waiting for the others.
    pub fn leave_without_waiting(self) {
        if self.member.client.inherited().is_some() {
            return std::mem::forget(self);
        }
        drop(self.member.leave());
    }

    /// An operation of which each rank gets a result.
    fn result(&self, operator: Operator, tensor: Tensor) -> Operation<Tensor> {
        self.run(operator, tensor, None).and_then(present)
    }

    fn check(&self, operator: Operator, tensor: &Tensor) -> Result<(), Status> {
        let refused = |text: String| Err(Status::new(Code::InvalidArgument, text));
        let (root, name) = (operator.root(), operator.kind().name());
        if root >= self.size() {
            return refused(format!(
                "rank {root} is the root of a {name}, and the group has the ranks 0 to {}",
                self.size() - 1
            ));
        }
        if tensor.dtype.element_bytes().is_none() || tensor.is_dead {
            let what = match tensor.is_dead {
                true => "dead",
                false => tensor.dtype.name(),
            };
            return refused(format!("{name} takes numbers, not a {what} tensor"));
        }
        match operator.op() {
            Some(op) => op.arithmetic(tensor.dtype).map(|_| ()),
            None => Ok(()),
        }
    }

    fn machine(
        &self,
        operator: Operator,
        tensor: Tensor,
        output: Option<BufferMut>,
        ending: &Arc<Ending>,
    ) -> Result<Box<Machine>, Status> {
        self.check(operator, &tensor)?;
        let shape = operator.agreed_shape(self.rank(), self.size(), &tensor.shape)?;
        let element_bytes = tensor.dtype.element_bytes().unwrap_or(1);
        let elements = usize::try_from(shape.num_elements()).ok();
        let bytes = elements.and_then(|elements| elements.checked_mul(element_bytes));
        let bytes = bytes.ok_or_else(|| {
            let text = format!("a tensor of shape {shape} is too long");
            Status::new(Code::InvalidArgument, text)
        })?;
        let plan = Plan {
            kind: operator.kind(),
            rank: self.rank(),
            size: self.size(),
            root: operator.root(),
            bytes,
            element_bytes,
            has_boards: self.member.goes_by_boards(self.tag),
        };
        let output_bytes = plan.output_bytes();
        if let (Some(output), Some(allowed)) = (&output, output_bytes)
            && output.len() != allowed
        {
            let text = format!("the output has {} bytes, not {allowed}", output.len());
            return Err(Status::new(Code::InvalidArgument, text));
        }
        let op = operator.op();
        let arithmetic = op.map(|op| op.arithmetic(tensor.dtype)).transpose()?;
        let description = Description {
            kind: plan.kind,
            op,
            dtype: tensor.dtype,
            root: plan.root,
            number: 0,
            shape,
        };
        let input = match plan.input_bytes() {
            0 => Buffer::new(),
            _ => ending.lend(tensor.data),
        };
        let task = Task {
            plan,
            description,
            arithmetic,
            input,
        };
        Ok(Machine::new(task, |ends| {
            let output = output.unwrap_or_else(|| BufferMut::zeroed(output_bytes.unwrap_or(0)));
            let ending = Arc::clone(ending);
            output.split(ends, move |whole| ending.give_back(whole))
        }))
    }

    /// The boards of all ranks, if each of them sees all others.
    fn agree_on(&self, boards: Found) -> Result<Option<Boards>, Status> {
        let rank = self.rank();
        let (boards, why) = match boards {
            Found::Alone => return Ok(None),
            Found::Nowhere(why) => {
                way::tell_of_messages(rank, Some(&why));
                return Ok(None);
            }
            Found::Here(boards) => (Some(boards), None),
            Found::Refused(why) => (None, Some(why)),
        };
        let agreed = self.with_tag(AGREEMENT_TAG);
        let own = Tensor::vector(vec![u8::from(boards.is_some())]);
        // Where others have failed meanwhile, the first operation says so.
        let Ok(all) = agreed.all_reduce(own, ReduceOp::Min).wait() else {
            return Ok(None);
        };
        let all: u8 = all.elements()?[0];
        match all {
            0 => way::tell_of_messages(rank, why.as_ref()),
            _ => way::tell_of_boards(rank),
        }
        Ok(boards.filter(|_| all == 1))
    }

    /// Logs once for each way how arrays travel.
    fn explain(&self, kind: Kind, scheme: Scheme) {
        if self.tag != AGREEMENT_TAG {
            let has_boards = self.member.goes_by_boards(self.tag);
            let ranks = (self.rank(), self.size());
            self.told.tell(ranks, kind, (scheme, has_boards));
        }
    }
}

/// Tensors that are combined one by one.
#[derive(Debug)]
#[must_use = "an operation may fail"]
pub struct Operations {
    /// One for each bucket, in their order.
    operations: VecDeque<Operation<Tensor>>,
    ended: Vec<Tensor>,
    buckets: Buckets,
    metas: Vec<(DType, Shape)>,
}

impl Operations {
    /// Blocks the calling thread until all have ended; the results are in the order of the tensors.
    ///
    /// # Errors
    /// Why the group failed.
    pub fn wait(mut self) -> Result<Vec<Tensor>, Status> {
        for operation in self.operations {
            self.ended.push(operation.wait()?);
        }
        parted(&self.ended, &self.buckets, &self.metas)
    }

    /// Blocks the calling thread until all have ended, at most for `limit` while none ends. Not for
    /// use again when it has given the results.
    pub fn wait_timeout(&mut self, limit: Duration) -> Option<Result<Vec<Tensor>, Status>> {
        while let Some(operation) = self.operations.front_mut() {
            match operation.wait_timeout(limit)? {
                Ok(tensor) => self.ended.push(tensor),
                Err(status) => return Some(Err(status)),
            }
            self.operations.pop_front();
        }
        Some(parted(&self.ended, &self.buckets, &self.metas))
    }
}

/// The tensors that are parts of the results of buckets.
fn parted(
    ended: &[Tensor],
    buckets: &Buckets,
    metas: &[(DType, Shape)],
) -> Result<Vec<Tensor>, Status> {
    let mut results: Vec<Option<Tensor>> = metas.iter().map(|_| None).collect();
    for (tensor, bucket) in ended.iter().zip(buckets.iter()) {
        let mut start = 0;
        for &index in bucket {
            let (dtype, shape) = metas[index].clone();
            let bytes = dtype.element_bytes().unwrap_or(0) * shape.num_elements() as usize;
            let part = tensor.data.slice(start..start + bytes);
            results[index] = Some(Tensor::new(dtype, shape, part)?);
            start += bytes;
        }
    }
    Ok(results.into_iter().flatten().collect())
}

impl GroupBuilder {
    /// Tells groups apart that meet at the same task. Default: `default`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Where other ranks reach this one, `host:port`. Default: the address at which the engine
    /// listens.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self
    }

    /// Which forming of the group it is; all ranks must give the same number. Those that are left
    /// when a rank has failed meet again with the next one. Default: 0.
    pub fn generation(mut self, generation: u64) -> Self {
        self.generation = generation;
        self
    }

    /// How long an operation may go on without a message of the ranks that it waits for. Default:
    /// 60 s; a century at most.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout.min(TIMEOUT_MAX);
        self
    }

    /// How long the ranks may take to meet. Default: 60 s; a century at most.
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = timeout.min(TIMEOUT_MAX);
        self
    }

    /// Meets the other ranks. Blocks the calling thread; not for use on a shard.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` for a rank, a size or an address that cannot be, or other than those of
    /// the other ranks, `ALREADY_EXISTS` if the rank has come before, `DEADLINE_EXCEEDED` with the
    /// ranks that are missing.
    pub fn join(self, engine: &Engine) -> Result<Group, Status> {
        self.begin(engine)?.wait()
    }

    /// Begins to meet the other ranks, so that the engine need not be held while it takes.
    ///
    /// # Errors
    /// As of [`GroupBuilder::join`], but for what others say.
    pub fn begin(self, engine: &Engine) -> Result<JoiningGroup, Status> {
        Joining::begin(self, engine).map(JoiningGroup)
    }
}

/// A group whose ranks are about to meet.
#[must_use = "the others wait for this rank"]
pub struct JoiningGroup(Joining);

impl JoiningGroup {
    /// Waits for the other ranks.
    ///
    /// # Errors
    /// As of [`GroupBuilder::join`].
    pub fn wait(self) -> Result<Group, Status> {
        let (member, boards) = self.0.wait()?;
        let group = Group {
            member,
            tag: 0,
            told: Arc::default(),
        };
        let boards = group.agree_on(boards)?;
        group.member.prepare(boards)?;
        Ok(group)
    }
}

impl fmt::Debug for JoiningGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JoiningGroup").finish_non_exhaustive()
    }
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("rank", &self.rank())
            .field("size", &self.size())
            .field("tag", &self.tag)
            .finish_non_exhaustive()
    }
}

/// The result of an operation that gives one to each rank.
fn present(result: Option<Tensor>) -> Result<Tensor, Status> {
    result.ok_or_else(|| Status::new(Code::Internal, "the operation has no result"))
}

/// How long an operation may go on without a message.
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// How long the ranks may take to meet.
const JOIN_TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);

/// Longer times than a century are as good as it, and clocks go on for so long.
const TIMEOUT_MAX: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
