//! How the files that this process may open are divided among those who connect to it.

use rustix::process::{Resource, getrlimit};

/// Most connections of each kind, so that no kind takes the files that others need.
///
/// What one address gets of all of them is no more than half of the files: its part of the star
/// port, half of the gRPC port and of the metrics page, and all meetings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DescriptorParts {
    /// Connections of one peer to the star port.
    pub peer: usize,
    /// Connections to the star port.
    pub star: usize,
    /// Connections to the gRPC port.
    pub grpc: usize,
    /// Connections to the metrics page.
    pub metrics: usize,
    /// Processes of this host that have dialled to share memory, and said nothing yet.
    pub meetings: usize,
}

impl DescriptorParts {
    /// The parts of what this process may open now.
    pub fn of_process() -> Self {
        let files = getrlimit(Resource::Nofile).current;
        Self::of(files.map_or(usize::MAX, |files| files as usize))
    }

    fn of(files: usize) -> Self {
        let part = |of_32: usize| (files / 32).saturating_mul(of_32).max(1);
        Self {
            peer: part(12),
            star: part(20),
            grpc: part(4),
            metrics: part(2),
            meetings: part(1),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_address_gets_no_more_than_half_and_something_is_left() {
        for files in [64, 256, 1024, 4096, 1 << 20] {
            let parts = DescriptorParts::of(files);
            let of_address = parts.peer + parts.grpc / 2 + parts.metrics / 2 + parts.meetings;
            assert!(of_address <= files / 2, "{parts:?}");
            let of_all = parts.star + parts.grpc + parts.metrics + parts.meetings;
            assert!(of_all <= files - files / 8, "{parts:?}");
        }
        assert_eq!(DescriptorParts::of(0).star, 1);
    }
}
