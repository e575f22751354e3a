//! What ranks can do together, and what each of them gets.

use grpcxx_rpc::{Code, Shape, Status};

use crate::description::Kind;
use crate::dtype::ReduceOp;

/// What the ranks of a group do with the tensors that they bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// Combines the tensors of all ranks; each gets the result.
    AllReduce(ReduceOp),
    /// Combines the tensors of all ranks; each rank gets its part of the result, cut along the
    /// first dimension, which the number of ranks divides.
    ReduceScatter(ReduceOp),
    /// Each rank gets the tensors of all ranks, put together along the first dimension.
    AllGather,
    /// Each rank gets the tensor of rank `root`. The others bring a tensor of the same type and
    /// shape, whose values do not count.
    Broadcast {
        /// Whose tensor it is.
        root: u32,
    },
    /// Combines the tensors of all ranks; rank `root` gets the result.
    Reduce {
        /// How values are combined.
        op: ReduceOp,
        /// Who gets the result.
        root: u32,
    },
    /// Rank `root` gets the tensors of all ranks, put together along the first dimension.
    Gather {
        /// Who gets the result.
        root: u32,
    },
    /// Each rank gets its part of the tensor of rank `root`, cut along the first dimension, which
    /// the number of ranks divides. The others bring a tensor of the type and shape of a part,
    /// whose values do not count.
    Scatter {
        /// Whose tensor it is.
        root: u32,
    },
    /// Each rank sends a part of its tensor to each rank, in their order, and gets one of each; the
    /// parts are cut along the first dimension, which the number of ranks divides.
    AllToAll,
    /// Ends when all ranks have called it. What they bring does not count.
    Barrier,
}

impl Operator {
    /// The shape of what this rank gets for a tensor of `shape`; `None` if it gets nothing.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the tensor cannot be cut as the operator demands.
    pub fn result_shape(
        self,
        rank: u32,
        size: u32,
        shape: &Shape,
    ) -> Result<Option<Shape>, Status> {
        match self {
            Self::AllReduce(_) | Self::Broadcast { .. } => Ok(Some(shape.clone())),
            Self::ReduceScatter(_) => divided(shape, size).map(Some),
            Self::AllGather => multiplied(shape, size).map(Some),
            Self::Reduce { root, .. } => Ok((rank == root).then(|| shape.clone())),
            Self::Gather { root } => {
                let shape = multiplied(shape, size)?;
                Ok((rank == root).then_some(shape))
            }
            Self::Scatter { .. } => self.agreed_shape(rank, size, shape).map(Some),
            Self::AllToAll => {
                divided(shape, size)?;
                Ok(Some(shape.clone()))
            }
            Self::Barrier => Ok(None),
        }
    }

    /// The shape on which all ranks must agree.
    pub(crate) fn agreed_shape(self, rank: u32, size: u32, shape: &Shape) -> Result<Shape, Status> {
        match self {
            Self::Scatter { root } if rank == root => divided(shape, size),
            Self::Barrier => Ok(Shape::vector(0)),
            _ => Ok(shape.clone()),
        }
    }

    pub(crate) fn kind(self) -> Kind {
        match self {
            Self::AllReduce(_) => Kind::AllReduce,
            Self::ReduceScatter(_) => Kind::ReduceScatter,
            Self::AllGather => Kind::AllGather,
            Self::Broadcast { .. } => Kind::Broadcast,
            Self::Reduce { .. } => Kind::Reduce,
            Self::Gather { .. } => Kind::Gather,
            Self::Scatter { .. } => Kind::Scatter,
            Self::AllToAll => Kind::AllToAll,
            Self::Barrier => Kind::Barrier,
        }
    }

    pub(crate) fn op(self) -> Option<ReduceOp> {
        match self {
            Self::AllReduce(op) | Self::ReduceScatter(op) | Self::Reduce { op, .. } => Some(op),
            Self::AllGather
            | Self::Broadcast { .. }
            | Self::Gather { .. }
            | Self::Scatter { .. }
            | Self::AllToAll
            | Self::Barrier => None,
        }
    }

    /// The root, or 0 where there is none.
    pub(crate) fn root(self) -> u32 {
        match self {
            Self::Broadcast { root }
            | Self::Reduce { root, .. }
            | Self::Gather { root }
            | Self::Scatter { root } => root,
            Self::AllReduce(_)
            | Self::ReduceScatter(_)
            | Self::AllGather
            | Self::AllToAll
            | Self::Barrier => 0,
        }
    }
}

/// The shape of the part that one rank gets.
fn divided(shape: &Shape, size: u32) -> Result<Shape, Status> {
    let size = u64::from(size);
    match shape.dims().split_first() {
        Some((&first, rest)) if first % size == 0 => {
            let dims: Vec<u64> = [first / size].iter().chain(rest).copied().collect();
            Ok(Shape::new(&dims)?)
        }
        Some(_) | None => {
            let text = format!(
                "a tensor of shape {shape} cannot be cut along its first dimension into {size} \
                 equal parts"
            );
            Err(Status::new(Code::InvalidArgument, text))
        }
    }
}

/// The shape of the tensors of all ranks together.
fn multiplied(shape: &Shape, size: u32) -> Result<Shape, Status> {
    let size = u64::from(size);
    let dims: Vec<u64> = match shape.dims().split_first() {
        Some((&first, rest)) => {
            let first = [first.saturating_mul(size)];
            first.iter().chain(rest).copied().collect()
        }
        None => vec![size],
    };
    Ok(Shape::new(&dims)?)
}
