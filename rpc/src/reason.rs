use std::fmt;

macro_rules! reasons {
    ($($(#[$attribute:meta])*
       $variant:ident = $number:literal, $name:literal, $meaning:literal;)*) => {
        /// Why a call failed, for code that decides what to do next.
        ///
        /// A reason is local: star carries a code and a text. What a peer answered has
        /// [`Reason::Peer`], whatever the reason was at the peer.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum Reason {
            $(
                #[doc = $meaning]
                $(#[$attribute])*
                $variant = $number,
            )*
        }

        impl Reason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The reason with this number, if there is one.
            pub fn from_number(number: u8) -> Option<Self> {
                Self::ALL.iter().copied().find(|reason| *reason as u8 == number)
            }

            /// The name in capitals, as Python has it; in C it stands behind `GRPCXX_REASON_`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

reasons! {
    #[default]
    Unspecified = 0, "UNSPECIFIED", "No more is known than the code and the text say.";
    Peer = 1, "PEER", "The peer, or the service that it runs, answered with this status.";
    Deadline = 2, "DEADLINE", "The time that the call was given is over.";
    Cancelled = 3, "CANCELLED", "The caller gave the call up.";
    NoConnection = 4, "NO_CONNECTION",
        "There was no connection to the peer. The call was not sent and may be made again.";
    ConnectionLost = 5, "CONNECTION_LOST",
        "The connection was lost behind the call, which the peer may have served.";
    PeerViolation = 6, "PEER_VIOLATION",
        "The peer broke the protocol, and the connection was closed behind the call.";
    Memory = 7, "MEMORY", "There is no memory for the payload.";
    QueueFull = 8, "QUEUE_FULL",
        "The shard's queue is full. The call was not begun and may be made again at once.";
    TooManyCalls = 9, "TOO_MANY_CALLS",
        "As many calls are under way as are allowed. The call was not sent; wait for others.";
    Limit = 10, "LIMIT", "A limit that the text names does not allow it.";
    Stopping = 11, "STOPPING", "This engine stops, or has stopped.";
    ShardDied = 12, "SHARD_DIED",
        "A shard of this engine died by a panic. All later calls fail; start the process again.";
    UnknownDevice = 13, "UNKNOWN_DEVICE", "The key names a device that this task has not.";
    OtherIncarnation = 14, "OTHER_INCARNATION",
        "The key is of a former run of this task, or of a later one.";
    StepOver = 15, "STEP_OVER", "The step was aborted or cleaned up.";
    Panicked = 16, "PANICKED", "The function or the callback that should answer panicked.";
    Unanswered = 17, "UNANSWERED", "The service let go of the request without an answer.";
    Forbidden = 18, "FORBIDDEN", "The task does not let the caller do this; the text says what would.";
    Unproven = 19, "UNPROVEN",
        "An end of the connection did not prove that it belongs to the cluster.";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
