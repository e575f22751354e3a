/// When tensors share a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanLimits {
    /// Longest frame in bytes that tensors share, with everything in it; below 4 GiB, because
    /// original peers keep the length of a frame in 32 bits.
    pub frame_bytes: u64,
    /// Longest frame in bytes of a tensor that travels alone.
    pub lone_frame_bytes: u64,
    /// Most tensors of one frame. Original peers before release 2208 let other frames come into the
    /// middle of one that has more than about 250.
    pub tensors_per_frame: usize,
    /// Tensors that share are spread over about this many frames, as long as each has
    /// [`SPREAD_TENSORS_MIN`] of them, or half as many with [`SPREAD_BYTES_MIN`]: both ends then
    /// work at once, one on a frame behind the other's.
    pub frames_wanted: usize,
    /// A tensor with more data than this has a frame of its own.
    pub shared_tensor_bytes: u64,
    /// Where fewer tensors than this could share, each has a frame of its own.
    pub shared_tensors_min: usize,
    /// Bytes of a frame before its first tensor.
    pub frame_overhead_bytes: u64,
    /// Bytes in front of the data of each tensor.
    pub tensor_overhead_bytes: u64,
}

impl Default for PlanLimits {
    fn default() -> Self {
        Self {
            frame_bytes: (1 << 32) - 1,
            lone_frame_bytes: (1 << 32) - 1,
            tensors_per_frame: 250,
            frames_wanted: 8,
            shared_tensor_bytes: 32 << 10,
            shared_tensors_min: 2,
            frame_overhead_bytes: 32,
            tensor_overhead_bytes: 37,
        }
    }
}

impl PlanLimits {
    /// Limits toward a peer that is known to be grpcxx: a frame has as many tensors as its format
    /// can say, one piece for the head and two for each tensor, 65,535 in all. How long the frame
    /// of one tensor may be is for the connection to say, which knows whether its ends take long
    /// frames. Two or three small tensors cost less by themselves, since the connection lets their
    /// requests and answers travel together.
    pub fn between_grpcxx() -> Self {
        Self {
            lone_frame_bytes: i64::MAX as u64,
            tensors_per_frame: 32_767,
            shared_tensors_min: 4,
            ..Self::default()
        }
    }

    /// Most tensors of one frame if `count` share, with `data_bytes` of data in all.
    fn tensors_of_a_frame(&self, count: usize, data_bytes: u64) -> usize {
        if count < self.shared_tensors_min {
            return 1;
        }
        let spread = count.div_ceil(self.frames_wanted.max(1));
        let few = SPREAD_TENSORS_MIN / 2;
        let is_worth_half = data_bytes / SPREAD_BYTES_MIN >= (count / few) as u64;
        let spread_min = if is_worth_half {
            few
        } else {
            SPREAD_TENSORS_MIN
        };
        self.tensors_per_frame.min(spread.max(spread_min))
    }
}

/// Groups of tensors, each for one frame. Keeps its memory when it is filled again.
///
/// ```
/// use grpcxx_fusion::{Plan, PlanLimits};
///
/// let mut plan = Plan::new();
/// plan.fill([4, 64 << 20, 8], &PlanLimits::default())?;
/// let groups: Vec<Vec<usize>> = plan
///     .groups()
///     .map(|group| group.tensors().map(|tensor| tensor.index).collect())
///     .collect();
/// assert_eq!(groups, [vec![0, 2], vec![1]]);
/// # Ok::<(), grpcxx_fusion::TooLarge>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Tensors in the order of the groups.
    tensors: Vec<Planned>,
    groups: Vec<GroupEnd>,
    /// Tensors that have a frame of their own, until all others have theirs.
    alone: Vec<Planned>,
}

/// Tensors that share a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    tensors: &'a [Planned],
    frame_bytes: u64,
}

/// A tensor's place in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Which of the given tensors this is.
    pub index: usize,
    /// From the start of the frame to the tensor's data.
    pub data_offset_bytes: u64,
    /// Length of the tensor's data.
    pub data_bytes: u64,
}

/// A tensor that fits into no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "tensor {index} has {data_bytes} bytes, and a frame takes one of {allowed_bytes} at most; split the tensor"
)]
pub struct TooLarge {
    /// Which of the given tensors.
    pub index: usize,
    /// Length of its data.
    pub data_bytes: u64,
    /// Longest data of a tensor that is alone in a frame.
    pub allowed_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct GroupEnd {
    end: usize,
    frame_bytes: u64,
}

impl Plan {
    /// An empty plan.
    pub fn new() -> Self {
        Self::default()
    }

    /// Plans anew: each of the tensors with these data sizes is in exactly one group. Small ones
    /// fill frames in the order given; those with a frame of their own follow, also in the order
    /// given.
    ///
    /// # Errors
    /// A tensor fits into no frame; the plan is empty then.
    pub fn fill(
        &mut self,
        sizes: impl IntoIterator<Item = u64>,
        limits: &PlanLimits,
    ) -> Result<(), TooLarge> {
        self.clear();
        let first_data = limits
            .frame_overhead_bytes
            .saturating_add(limits.tensor_overhead_bytes);
        for (index, data_bytes) in sizes.into_iter().enumerate() {
            let is_shared = data_bytes <= limits.shared_tensor_bytes;
            let frame_bytes = if is_shared {
                limits.frame_bytes
            } else {
                limits.lone_frame_bytes
            };
            if first_data.saturating_add(data_bytes) > frame_bytes {
                self.clear();
                return Err(TooLarge {
                    index,
                    data_bytes,
                    allowed_bytes: frame_bytes.saturating_sub(first_data),
                });
            }
            let planned = Planned {
                index,
                data_offset_bytes: first_data,
                data_bytes,
            };
            if is_shared {
                self.tensors.push(planned);
            } else {
                self.alone.push(planned);
            }
        }
        self.group_shared(limits);
        for at in 0..self.alone.len() {
            let planned = self.alone[at];
            self.tensors.push(planned);
            self.end_group(
                self.tensors.len(),
                planned.data_offset_bytes + planned.data_bytes,
            );
        }
        Ok(())
    }

    /// Fills frames with the tensors that share, in their order.
    fn group_shared(&mut self, limits: &PlanLimits) {
        let data_bytes = self.tensors.iter().map(|tensor| tensor.data_bytes).sum();
        let tensors_max = limits.tensors_of_a_frame(self.tensors.len(), data_bytes);
        let (mut group_start, mut frame_bytes) = (0, limits.frame_overhead_bytes);
        for at in 0..self.tensors.len() {
            let record_bytes = limits.tensor_overhead_bytes + self.tensors[at].data_bytes;
            let tensors = at - group_start;
            let is_full = tensors >= tensors_max || record_bytes > limits.frame_bytes - frame_bytes;
            if tensors > 0 && is_full {
                self.end_group(at, frame_bytes);
                group_start = at;
                frame_bytes = limits.frame_overhead_bytes;
            }
            self.tensors[at].data_offset_bytes = frame_bytes + limits.tensor_overhead_bytes;
            frame_bytes += record_bytes;
        }
        if self.tensors.len() > group_start {
            self.end_group(self.tensors.len(), frame_bytes);
        }
    }

    /// The groups, each for one frame.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = Group<'_>> {
        (0..self.groups.len()).map(|at| self.group(at))
    }

    fn group(&self, at: usize) -> Group<'_> {
        let start = at
            .checked_sub(1)
            .map_or(0, |before| self.groups[before].end);
        let GroupEnd { end, frame_bytes } = self.groups[at];
        Group {
            tensors: &self.tensors[start..end],
            frame_bytes,
        }
    }

    fn end_group(&mut self, end: usize, frame_bytes: u64) {
        self.groups.push(GroupEnd { end, frame_bytes });
    }

    fn clear(&mut self) {
        self.tensors.clear();
        self.groups.clear();
        self.alone.clear();
    }
}

impl<'a> Group<'a> {
    /// The tensors in ascending order of their indices, which is that of their places.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = Planned> + use<'a> {
        self.tensors.iter().copied()
    }

    /// Number of tensors, at least 1.
    #[expect(clippy::len_without_is_empty, reason = "no group is empty")]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Length of the frame, with everything in it.
    pub fn frame_bytes(&self) -> u64 {
        self.frame_bytes
    }
}

/// Fewest tensors of a frame for the sake of spreading: below, what a call costs by itself weighs
/// more.
pub const SPREAD_TENSORS_MIN: usize = 250;

/// Bytes of data that make a frame with half as many tensors worth its call.
pub const SPREAD_BYTES_MIN: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SMALL: PlanLimits = PlanLimits {
        frame_bytes: 1000,
        lone_frame_bytes: 1000,
        tensors_per_frame: 4,
        frames_wanted: 8,
        shared_tensor_bytes: 300,
        shared_tensors_min: 2,
        frame_overhead_bytes: 32,
        tensor_overhead_bytes: 37,
    };

    fn indices(sizes: &[u64], limits: &PlanLimits) -> Vec<Vec<usize>> {
        let mut plan = Plan::new();
        plan.fill(sizes.iter().copied(), limits).unwrap();
        let groups = plan.groups();
        groups
            .map(|group| group.tensors().map(|tensor| tensor.index).collect())
            .collect()
    }

    #[test]
    fn small_tensors_share_and_large_ones_travel_alone() {
        assert!(indices(&[], &SMALL).is_empty());
        assert_eq!(indices(&[0], &SMALL), [[0]]);
        assert_eq!(indices(&[1, 300, 301, 2], &SMALL), [&[0, 1, 3][..], &[2]]);
        assert_eq!(
            indices(&[1; 9], &SMALL),
            [&[0, 1, 2, 3][..], &[4, 5, 6, 7], &[8]]
        );
        // 32 + 3 * (37 + 285) = 998, and the fourth does not fit.
        assert_eq!(indices(&[285; 4], &SMALL), [&[0, 1, 2][..], &[3]]);
    }

    #[test]
    fn many_tensors_spread_over_a_few_frames_where_the_peer_takes_so_many() {
        let frames_of = |size: u64, count: usize, limits: &PlanLimits| {
            let groups = indices(&vec![size; count], limits);
            (groups.len(), groups.iter().map(Vec::len).max().unwrap())
        };
        let frames = |count, limits: &PlanLimits| frames_of(64, count, limits);
        let ours = PlanLimits::between_grpcxx();
        assert_eq!(frames(250, &ours), (1, 250));
        assert_eq!(frames(1_000, &ours), (4, 250));
        assert_eq!(frames(3_000, &ours), (8, 375));
        assert_eq!(frames(10_000, &ours), (8, 1_250));
        assert_eq!(frames(10_000, &PlanLimits::default()), (40, 250));
        assert_eq!(frames_of(1024, 100, &ours), (1, 100));
        assert_eq!(frames_of(1024, 250, &ours), (2, 125));
        assert_eq!(frames_of(512, 1_000, &ours), (4, 250));
        assert_eq!(frames_of(1024, 1_000, &ours), (8, 125));
        assert_eq!(frames_of(1024, 3_000, &ours), (8, 375));
        let few = PlanLimits {
            frames_wanted: 0,
            ..ours
        };
        assert_eq!(frames(100_000, &few), (4, 32_767));
    }

    #[test]
    fn few_small_tensors_travel_alone_where_their_requests_share_frames_anyway() {
        let ours = PlanLimits::between_grpcxx();
        assert_eq!(indices(&[8; 3], &ours), [[0], [1], [2]]);
        assert_eq!(indices(&[8; 4], &ours), [[0, 1, 2, 3]]);
        assert_eq!(indices(&[8, 1 << 20, 8, 8], &ours), [[0], [2], [3], [1]]);
        assert_eq!(indices(&[8; 2], &PlanLimits::default()), [[0, 1]]);
    }

    #[test]
    fn a_tensor_that_fits_into_no_frame_is_named() {
        let mut plan = Plan::new();
        let error = plan.fill([1, 932], &SMALL).unwrap_err();
        assert_eq!((error.index, error.allowed_bytes), (1, 931));
        assert_eq!(plan.groups().len(), 0);
        plan.fill([931], &SMALL).unwrap();
        assert_eq!(plan.groups().next().unwrap().frame_bytes(), 1000);
        assert!(plan.fill([u64::MAX], &PlanLimits::default()).is_err());
        assert!(
            plan.fill([u64::MAX], &PlanLimits::between_grpcxx())
                .is_err()
        );
        plan.fill([1 << 40], &PlanLimits::between_grpcxx()).unwrap();
        let no_room = PlanLimits {
            frame_bytes: 60,
            ..SMALL
        };
        assert!(plan.fill([0], &no_room).is_err());
    }

    #[test]
    fn checklist_12_no_frame_reaches_four_gibibytes() {
        let limits = PlanLimits {
            shared_tensor_bytes: u64::MAX,
            ..PlanLimits::default()
        };
        let mut plan = Plan::new();
        let sizes = [1 << 31, 1 << 31, (1 << 32) - 70, 1];
        plan.fill(sizes, &limits).unwrap();
        assert_eq!(plan.groups().len(), 4);
        assert!(plan.groups().all(|group| group.frame_bytes() < 1 << 32));
        assert!(plan.fill([(1 << 32) - 69], &limits).is_err());
    }

    proptest! {
        #[test]
        fn each_tensor_is_in_one_frame_that_keeps_the_limits(
            sizes in proptest::collection::vec(0u64..600, 0..80),
            frame_bytes in 669u64..3000,
            tensors_per_frame in 1usize..10,
            shared_tensor_bytes in 0u64..700
        ) {
            let limits = PlanLimits { frame_bytes, lone_frame_bytes: frame_bytes, tensors_per_frame, shared_tensor_bytes, ..SMALL };
            let mut plan = Plan::new();
            plan.fill([1, 2, 3], &limits).unwrap();
            plan.fill(sizes.iter().copied(), &limits).unwrap();
            let mut seen = vec![0; sizes.len()];
            for group in plan.groups() {
                prop_assert!(group.len() >= 1 && group.len() <= tensors_per_frame);
                prop_assert!(group.frame_bytes() <= frame_bytes);
                let mut end = limits.frame_overhead_bytes;
                let mut previous = None;
                for tensor in group.tensors() {
                    prop_assert!(previous < Some(tensor.index));
                    previous = Some(tensor.index);
                    seen[tensor.index] += 1;
                    prop_assert_eq!(tensor.data_bytes, sizes[tensor.index]);
                    prop_assert!(group.len() == 1 || tensor.data_bytes <= shared_tensor_bytes);
                    end += limits.tensor_overhead_bytes;
                    prop_assert_eq!(tensor.data_offset_bytes, end);
                    end += tensor.data_bytes;
                }
                prop_assert_eq!(group.frame_bytes(), end);
            }
            prop_assert!(seen.iter().all(|&times| times == 1));
        }
    }
}
