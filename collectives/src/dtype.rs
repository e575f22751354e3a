//! Which operators there are, and which element types each of them takes.

use std::fmt;

use grpcxx_rpc::{Code, DType, Status};

/// How the values of all ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// The sum. Sums of integers wrap.
    Sum = 1,
    /// The sum divided by the number of ranks, for floating point alone.
    Mean = 2,
    /// The smallest value; NaN if one is NaN.
    Min = 3,
    /// The largest value; NaN if one is NaN.
    Max = 4,
    /// The product. Products of integers wrap.
    Prod = 5,
}

/// How elements of a type are computed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    F32,
    F64,
    F16,
    BF16,
    I8,
    I16,
    I32,
    I64,
    U8,
    U16,
    U32,
    U64,
}

impl ReduceOp {
    /// All operators.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Mean, Self::Min, Self::Max, Self::Prod];

    /// The operator with this name.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with the names that there are.
    pub fn from_name(name: &str) -> Result<Self, Status> {
        let found = Self::ALL.into_iter().find(|op| op.name() == name);
        found.ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|op| op.name()).collect();
            let text = format!("there is no operator {name:?}; use {}", names.join(", "));
            Status::new(Code::InvalidArgument, text)
        })
    }

    /// The operator with this number, as C has it.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with the numbers that there are.
    pub fn from_number(number: i32) -> Result<Self, Status> {
        let found = Self::ALL.into_iter().find(|op| *op as i32 == number);
        found.ok_or_else(|| {
            let known = Self::ALL.map(|op| format!("{} ({op})", op as i32));
            let text = format!("there is no operator {number}; use {}", known.join(", "));
            Status::new(Code::InvalidArgument, text)
        })
    }

    /// The name, as Python has it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Min => "min",
            Self::Max => "max",
            Self::Prod => "prod",
        }
    }

    /// How this operator computes with elements of `dtype`.
    pub(crate) fn arithmetic(self, dtype: DType) -> Result<Arithmetic, Status> {
        let complex = match dtype {
            DType::Complex64 => Some(Arithmetic::F32),
            DType::Complex128 => Some(Arithmetic::F64),
            _ => None,
        };
        let found = match self {
            // Complex numbers are added part by part.
            Self::Sum | Self::Mean if complex.is_some() => complex,
            _ => real(dtype),
        };
        let refused = |why: &str| {
            let text = format!("{self} of {dtype} is not defined: {why}");
            Err(Status::new(Code::InvalidArgument, text))
        };
        match found {
            None => refused(
                "reduce integers of 8 to 64 bits, floating point of 16 to 64 bits or, by sum and \
                 mean, complex numbers of 64 and 128 bits; convert it first",
            ),
            Some(arithmetic) if self == Self::Mean && !arithmetic.is_float() => {
                refused("the mean of integers is no integer; reduce their sum")
            }
            Some(arithmetic) => Ok(arithmetic),
        }
    }
}

impl Arithmetic {
    fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64 | Self::F16 | Self::BF16)
    }
}

fn real(dtype: DType) -> Option<Arithmetic> {
    match dtype {
        DType::Float32 => Some(Arithmetic::F32),
        DType::Float64 => Some(Arithmetic::F64),
        DType::Float16 => Some(Arithmetic::F16),
        DType::BFloat16 => Some(Arithmetic::BF16),
        DType::Int8 => Some(Arithmetic::I8),
        DType::Int16 => Some(Arithmetic::I16),
        DType::Int32 => Some(Arithmetic::I32),
        DType::Int64 => Some(Arithmetic::I64),
        DType::UInt8 => Some(Arithmetic::U8),
        DType::UInt16 => Some(Arithmetic::U16),
        DType::UInt32 => Some(Arithmetic::U32),
        DType::UInt64 => Some(Arithmetic::U64),
        _ => None,
    }
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
