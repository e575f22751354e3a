//! What a rank says of an operation before it takes part, so that ranks which call different ones
//! learn of it.
//!
//! A description is 64 bytes, little-endian: `GXC2`, kind u8, operator u8 (0: none), element type
//! u8, number of dimensions u8, root u32, 4 zeros, number of the operation u64, a digest of the
//! whole shape u64, and the first 4 dimensions u64.

use std::fmt;

use grpcxx_rpc::{Code, DType, Shape, Status};

use crate::dtype::ReduceOp;

/// Which operation it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    Barrier = 1,
    AllReduce = 2,
    ReduceScatter = 3,
    AllGather = 4,
    Broadcast = 5,
    Reduce = 6,
    Gather = 7,
    Scatter = 8,
    AllToAll = 9,
}

/// What a rank says of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    pub(crate) kind: Kind,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) dtype: DType,
    pub(crate) root: u32,
    /// The number of the operation among those of its tag.
    pub(crate) number: u64,
    /// What the rank brings; of a scatter, what each rank gets.
    pub(crate) shape: Shape,
}

/// What was read of a peer's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Read {
    kind: Kind,
    op: Option<ReduceOp>,
    dtype: DType,
    rank_of_shape: u8,
    root: u32,
    number: u64,
    digest: u64,
    dims: [u64; DIMS_SHOWN],
}

impl Kind {
    const ALL: [Self; 9] = [
        Self::Barrier,
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::Broadcast,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
        }
    }

    pub(crate) const fn has_root(self) -> bool {
        matches!(
            self,
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter
        )
    }
}

impl Description {
    /// That of a rank which has refused what was called.
    pub(crate) fn of_nothing() -> Self {
        Self {
            kind: Kind::Barrier,
            op: None,
            dtype: DType::UInt8,
            root: ROOT_OF_NOTHING,
            number: 0,
            shape: Shape::vector(0),
        }
    }

    pub(crate) fn to_bytes(&self) -> [u8; DESCRIPTION_BYTES] {
        let read = self.as_read();
        let mut bytes = [0; DESCRIPTION_BYTES];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = read.kind as u8;
        bytes[5] = read.op.map_or(0, |op| op as u8);
        bytes[6] = read.dtype.number();
        bytes[7] = read.rank_of_shape;
        bytes[8..12].copy_from_slice(&read.root.to_le_bytes());
        bytes[16..24].copy_from_slice(&read.number.to_le_bytes());
        bytes[24..32].copy_from_slice(&read.digest.to_le_bytes());
        for (place, dim) in bytes[32..].chunks_exact_mut(8).zip(read.dims) {
            place.copy_from_slice(&dim.to_le_bytes());
        }
        bytes
    }

    /// A number that descriptions share which agree, but for the number of the operation, and
    /// others hardly ever do.
    pub(crate) fn digest(&self) -> u32 {
        let read = self.as_read();
        let op = read.op.map_or(0, |op| op as u64);
        let what = [
            read.kind as u64,
            op,
            u64::from(read.dtype.number()),
            u64::from(read.root),
        ];
        let digest = digest(&what) ^ read.digest;
        (digest ^ digest >> 32) as u32
    }

    /// Compares this description, of `own` rank, with that of rank `other`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with what each of the two ranks has called, `DATA_LOSS` if the bytes are
    /// no description.
    pub(crate) fn check(&self, own: u32, other: u32, bytes: &[u8]) -> Result<(), Status> {
        let ours = self.as_read();
        let Some(theirs) = Read::parse(bytes) else {
            let text = format!(
                "rank {other} began {} {} with {} bytes that describe no operation; do all ranks \
                 have the same version?",
                self.kind.name(),
                self.number,
                bytes.len()
            );
            return Err(Status::new(Code::DataLoss, text));
        };
        if ours == theirs {
            return Ok(());
        }
        let (first, second) = match own < other {
            true => ((own, ours), (other, theirs)),
            false => ((other, theirs), (own, ours)),
        };
        let text = format!(
            "rank {} called {}, but rank {} called {} as operation {}; all ranks of a group call \
             the same operations in the same order",
            first.0, first.1, second.0, second.1, self.number
        );
        Err(Status::new(Code::InvalidArgument, text))
    }

    fn as_read(&self) -> Read {
        let mut dims = [0; DIMS_SHOWN];
        for (place, &dim) in dims.iter_mut().zip(self.shape.dims()) {
            *place = dim;
        }
        Read {
            kind: self.kind,
            op: self.op,
            dtype: self.dtype,
            rank_of_shape: u8::try_from(self.shape.rank()).unwrap_or(u8::MAX),
            root: self.root,
            number: self.number,
            digest: digest(self.shape.dims()),
            dims,
        }
    }
}

impl Read {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; DESCRIPTION_BYTES] = bytes.get(..DESCRIPTION_BYTES)?.try_into().ok()?;
        if &bytes[..4] != MAGIC {
            return None;
        }
        let u64_at = |at: usize| bytes[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        let op = match bytes[5] {
            0 => None,
            number => Some(ReduceOp::ALL.into_iter().find(|op| *op as u8 == number)?),
        };
        let mut dims = [0; DIMS_SHOWN];
        for (index, dim) in dims.iter_mut().enumerate() {
            *dim = u64_at(32 + 8 * index)?;
        }
        Some(Self {
            kind: Kind::ALL.into_iter().find(|kind| *kind as u8 == bytes[4])?,
            op,
            dtype: DType::from_number(i32::from(bytes[6]))?,
            rank_of_shape: bytes[7],
            root: u32::from_le_bytes(bytes[8..12].try_into().ok()?),
            number: u64_at(16)?,
            digest: u64_at(24)?,
            dims,
        })
    }
}

impl fmt::Display for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.kind == Kind::Barrier && self.root == ROOT_OF_NOTHING {
            return f.write_str("what it refused");
        }
        f.write_str(self.kind.name())?;
        if self.kind == Kind::Barrier {
            return Ok(());
        }
        let shown = usize::from(self.rank_of_shape).min(DIMS_SHOWN);
        let dims: Vec<String> = self.dims[..shown].iter().map(u64::to_string).collect();
        write!(f, "({} [{}", self.dtype, dims.join(", "))?;
        if usize::from(self.rank_of_shape) > DIMS_SHOWN {
            f.write_str(", ...")?;
        }
        f.write_str("]")?;
        if let Some(op) = self.op {
            write!(f, ", {op}")?;
        }
        if self.kind.has_root() {
            write!(f, ", root {}", self.root)?;
        }
        f.write_str(")")
    }
}

/// FNV-1a over numbers, such as the dimensions of a shape: equal ones have equal digests in all
/// processes.
fn digest(numbers: &[u64]) -> u64 {
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Length of a description. What follows it keeps the alignment of 64 bytes.
pub(crate) const DESCRIPTION_BYTES: usize = 64;

/// In place of the root of a barrier, which has none: the rank has refused what was called.
const ROOT_OF_NOTHING: u32 = u32::MAX;

/// Dimensions that a description holds in full.
const DIMS_SHOWN: usize = 4;

const MAGIC: &[u8; 4] = b"GXC2";

#[cfg(test)]
mod tests {
    use super::*;

    fn description(dims: &[u64]) -> Description {
        Description {
            kind: Kind::AllReduce,
            op: Some(ReduceOp::Sum),
            dtype: DType::Float32,
            root: 0,
            number: 7,
            shape: Shape::new(dims).unwrap(),
        }
    }

    #[test]
    fn equal_operations_agree_and_others_are_named_on_both_sides() {
        let ours = description(&[2, 3]);
        assert_eq!(ours.check(0, 1, &ours.to_bytes()), Ok(()));
        let theirs = Description {
            kind: Kind::Broadcast,
            op: None,
            dtype: DType::Int32,
            root: 1,
            ..description(&[2, 3, 4, 5, 6])
        };
        let wanted = "rank 0 called all_reduce(float32 [2, 3], sum), but rank 1 called \
                      broadcast(int32 [2, 3, 4, 5, ...], root 1) as operation 7; all ranks of a \
                      group call the same operations in the same order";
        let here = ours.check(0, 1, &theirs.to_bytes()).unwrap_err();
        let there = theirs.check(1, 0, &ours.to_bytes()).unwrap_err();
        assert_eq!(here.message, wanted);
        assert_eq!(there.message, wanted);
    }

    #[test]
    fn dimensions_that_are_not_shown_count() {
        let ours = description(&[1, 1, 1, 1, 2, 3]);
        let theirs = description(&[1, 1, 1, 1, 3, 2]);
        assert!(ours.check(0, 1, &theirs.to_bytes()).is_err());
    }

    #[test]
    fn digests_tell_what_was_called_and_not_when() {
        let ours = description(&[2, 3]);
        let later = Description {
            number: 9,
            ..ours.clone()
        };
        assert_eq!(later.digest(), ours.digest());
        let others = [
            Description {
                kind: Kind::Reduce,
                ..ours.clone()
            },
            Description {
                op: Some(ReduceOp::Max),
                ..ours.clone()
            },
            Description {
                dtype: DType::Int32,
                ..ours.clone()
            },
            Description {
                root: 1,
                ..ours.clone()
            },
            description(&[3, 2]),
        ];
        for other in others {
            assert_ne!(other.digest(), ours.digest(), "{other:?}");
        }
    }

    #[test]
    fn bytes_that_describe_nothing_are_refused() {
        let ours = description(&[2]);
        let mut wrong = ours.to_bytes();
        wrong[4] = 77;
        for bytes in [&wrong[..], &[], b"GXC2", &[0; 64]] {
            let status = ours.check(0, 1, bytes).unwrap_err();
            assert_eq!(status.code, Code::DataLoss);
        }
    }
}
