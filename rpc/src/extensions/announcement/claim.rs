//! Which task a client is, as far as its certificate says so.

use crate::Text;

/// Which task the certificate of a client names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certified {
    /// The task, as in `ps/0`.
    pub task: Text,
    /// The name in the certificate, as in `grpcxx://training/ps/0`.
    pub name: Text,
}
