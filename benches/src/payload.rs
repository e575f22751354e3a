use std::fmt;
use std::str::FromStr;

use fastrand::Rng;
use grpcxx_rpc::{Code, DType, Shape, Status, Tensor};
use serde::{Deserialize, Serialize};

/// How the sizes of the tensors of a step are chosen, as in TF-gRPC-Bench (Biswas, Lu and Panda,
/// 2018).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mix {
    /// All have the same size.
    #[default]
    Same,
    /// Small, medium and large in turn.
    Uniform,
    /// Small, medium or large by chance.
    Random,
    /// 6 of 10 large, 3 medium, 1 small.
    Skewed,
}

/// The tensors of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PayloadSpec {
    /// Size of each tensor where all have the same.
    pub size_bytes: u64,
    /// Number of tensors.
    pub count: usize,
    /// How sizes are chosen.
    pub mix: Mix,
    /// Tensors of strings, which each side has to serialize and parse, instead of tensors of bytes.
    pub serialized: bool,
    /// Where chance begins: for random sizes, and for the contents.
    pub seed: u64,
}

/// The tensors of a step, with their contents.
pub(super) struct Payload {
    tensors: Vec<Tensor>,
    serialized: bool,
}

impl PayloadSpec {
    /// The size of each tensor.
    pub fn sizes(&self) -> Vec<u64> {
        let mut rng = Rng::with_seed(self.seed);
        let classes = [SMALL_BYTES, MEDIUM_BYTES, LARGE_BYTES];
        (0..self.count)
            .map(|index| match self.mix {
                Mix::Same => self.size_bytes,
                Mix::Uniform => classes[index % classes.len()],
                Mix::Random => classes[rng.usize(..classes.len())],
                Mix::Skewed => SKEWED[index % SKEWED.len()],
            })
            .collect()
    }

    /// Bytes of all tensors together.
    pub fn total_bytes(&self) -> u64 {
        match self.mix {
            Mix::Same => self.size_bytes.saturating_mul(self.count as u64),
            _ => self.sizes().iter().sum(),
        }
    }

    /// Refuses what neither side could hold.
    ///
    /// # Errors
    /// A text that says what was asked for and what is allowed.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=COUNT_MAX).contains(&self.count) {
            return Err(format!(
                "count is {}; a step can have 1 to {COUNT_MAX} tensors",
                self.count
            ));
        }
        let total = self.total_bytes();
        if total > TOTAL_BYTES_MAX {
            return Err(format!(
                "{} tensors of {} bytes are {total} bytes; a step can have {TOTAL_BYTES_MAX}, take smaller or fewer tensors",
                self.count, self.size_bytes
            ));
        }
        Ok(())
    }
}

impl Default for PayloadSpec {
    fn default() -> Self {
        Self {
            size_bytes: 64,
            count: 1,
            mix: Mix::Same,
            serialized: false,
            seed: 1,
        }
    }
}

impl Payload {
    /// Makes the tensors of `spec`, each in memory of its own.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the spec is beyond a limit.
    pub(super) fn new(spec: &PayloadSpec) -> Result<Self, Status> {
        spec.check()
            .map_err(|text| Status::new(Code::InvalidArgument, text))?;
        let tensors = spec
            .sizes()
            .into_iter()
            .enumerate()
            .map(|(index, size)| {
                let mut bytes = vec![0_u8; usize::try_from(size).unwrap_or(usize::MAX)];
                Rng::with_seed(spec.seed.wrapping_add(index as u64)).fill(&mut bytes);
                let shape = Shape::new(&[size]).map_err(too_large)?;
                Tensor::new(DType::UInt8, shape, bytes)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            tensors,
            serialized: spec.serialized,
        })
    }

    /// Tensors of `spec` that only arrive and are not compared: no memory is taken for them.
    pub(super) fn unknown(spec: &PayloadSpec) -> Self {
        Self {
            tensors: Vec::new(),
            serialized: spec.serialized,
        }
    }

    /// Whether tensors are serialized anew each time that they are sent.
    pub(super) fn is_serialized(&self) -> bool {
        self.serialized
    }

    /// A tensor as it is sent: by reference, or serialized anew.
    ///
    /// # Errors
    /// `NOT_FOUND` if there is no such tensor, `RESOURCE_EXHAUSTED` if it is too long for a tensor
    /// of strings.
    pub(super) fn outgoing(&self, index: usize) -> Result<Tensor, Status> {
        let tensor = self.tensors.get(index).ok_or_else(|| {
            Status::new(
                Code::NotFound,
                format!("there is no tensor {index} to send"),
            )
        })?;
        if self.serialized {
            return Tensor::from_strings(Shape::SCALAR, [&tensor.data[..]]);
        }
        Ok(tensor.clone())
    }

    /// Takes a tensor apart as its user would, and compares it with what is expected if `verify`.
    ///
    /// # Errors
    /// `DATA_LOSS` if something else arrived, `INVALID_ARGUMENT` if strings cannot be parsed.
    pub(super) fn accept(
        &self,
        index: usize,
        arrived: &Tensor,
        verify: bool,
    ) -> Result<(), Status> {
        let result = if self.serialized {
            arrived.strings().and_then(|strings| match &strings[..] {
                [bytes] => self.compare(index, bytes, verify),
                _ => Err(Status::new(
                    Code::DataLoss,
                    format!("{} strings arrived instead of one", strings.len()),
                )),
            })
        } else {
            self.compare(index, &arrived.data, verify)
        };
        result.map_err(|status| {
            let text = format!("tensor {index}: {}", status.message);
            status.with_message(text)
        })
    }

    fn compare(&self, index: usize, arrived: &[u8], verify: bool) -> Result<(), Status> {
        let expected = self.tensors.get(index).filter(|_| verify);
        match expected {
            Some(tensor) if tensor.data[..] != *arrived => Err(Status::new(
                Code::DataLoss,
                format!(
                    "{} bytes arrived that differ from the {} that were sent",
                    arrived.len(),
                    tensor.data.len()
                ),
            )),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} tensors)", self.tensors.len())
    }
}

fn too_large(error: grpcxx_rpc::ShapeError) -> Status {
    Status::new(Code::InvalidArgument, error.to_string())
}

impl Mix {
    const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Uniform => "uniform",
            Self::Random => "random",
            Self::Skewed => "skewed",
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Mix {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::Same, Self::Uniform, Self::Random, Self::Skewed]
            .into_iter()
            .find(|mix| mix.name() == text)
            .ok_or_else(|| {
                format!("{text:?} is no mix of sizes; write same, uniform, random or skewed")
            })
    }
}

/// Reads a size such as `64`, `4KiB` or `large`.
///
/// # Errors
/// A text that says what can be written.
pub fn parse_size(text: &str) -> Result<u64, String> {
    match text {
        "small" => return Ok(SMALL_BYTES),
        "medium" => return Ok(MEDIUM_BYTES),
        "large" => return Ok(LARGE_BYTES),
        _ => {}
    }
    let digits = text.trim_end_matches(|character: char| character.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => 0,
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(unit))
        .filter(|_| unit > 0)
        .ok_or_else(|| {
            format!("{text:?} is no size; write bytes such as 64, 4KiB, 16MiB or 1GiB, or small, medium or large")
        })
}

/// A small tensor of TF-gRPC-Bench.
pub const SMALL_BYTES: u64 = 10;
/// A medium tensor of TF-gRPC-Bench.
pub const MEDIUM_BYTES: u64 = 10 << 10;
/// A large tensor of TF-gRPC-Bench.
pub const LARGE_BYTES: u64 = 1 << 20;
/// Six large ones, three medium ones and a small one.
const SKEWED: [u64; 10] = [
    LARGE_BYTES,
    MEDIUM_BYTES,
    LARGE_BYTES,
    LARGE_BYTES,
    SMALL_BYTES,
    LARGE_BYTES,
    MEDIUM_BYTES,
    LARGE_BYTES,
    MEDIUM_BYTES,
    LARGE_BYTES,
];
/// Most tensors of a step.
pub const COUNT_MAX: usize = 100_000;
/// Most bytes of a step, which each side keeps in memory.
pub const TOTAL_BYTES_MAX: u64 = 16 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_units_and_names() {
        assert_eq!(parse_size("64"), Ok(64));
        assert_eq!(parse_size("4KiB"), Ok(4096));
        assert_eq!(parse_size("16MiB"), Ok(16 << 20));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("medium"), Ok(10 << 10));
        for wrong in ["", "KiB", "4 KiB", "4kb", "-1", "99999999999GiB", "1.5MiB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn mixes_follow_the_paper() {
        let sizes = |mix| {
            let spec = PayloadSpec {
                count: 1000,
                mix,
                ..PayloadSpec::default()
            };
            assert_eq!(spec.total_bytes(), spec.sizes().iter().sum::<u64>());
            let count = |size| spec.sizes().iter().filter(|found| **found == size).count();
            [count(SMALL_BYTES), count(MEDIUM_BYTES), count(LARGE_BYTES)]
        };
        assert_eq!(sizes(Mix::Same), [0, 0, 0]);
        assert_eq!(sizes(Mix::Uniform), [334, 333, 333]);
        assert_eq!(sizes(Mix::Skewed), [100, 300, 600]);
        assert!(
            sizes(Mix::Random)
                .iter()
                .all(|count| (250..420).contains(count))
        );
    }

    #[test]
    fn contents_are_the_same_on_both_sides_and_a_changed_byte_is_found() {
        for serialized in [false, true] {
            let spec = PayloadSpec {
                size_bytes: 100,
                count: 3,
                serialized,
                ..PayloadSpec::default()
            };
            let (near, far) = (Payload::new(&spec).unwrap(), Payload::new(&spec).unwrap());
            for index in 0..spec.count {
                let tensor = far.outgoing(index).unwrap();
                near.accept(index, &tensor, true).unwrap();
                let status = near.accept((index + 1) % 3, &tensor, true).unwrap_err();
                assert_eq!(status.code, Code::DataLoss, "{status}");
            }
        }
    }

    #[test]
    fn too_much_is_refused_before_memory_is_taken() {
        let spec = PayloadSpec {
            size_bytes: u64::MAX,
            count: 2,
            ..PayloadSpec::default()
        };
        assert!(spec.check().unwrap_err().contains("smaller or fewer"));
        let status = Payload::new(&spec).unwrap_err();
        assert_eq!(status.code, Code::InvalidArgument);
    }
}
