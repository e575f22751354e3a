//! How a call failed: a code, a reason and a text.

use std::borrow::Cow;
use std::fmt;

use crate::Reason;

macro_rules! codes {
    ($($variant:ident = $number:literal, $name:literal;)*) => {
        /// gRPC's status codes without OK.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Code {
            $(
                #[doc = concat!("`", $name, "`, number ", $number)]
                $variant = $number,
            )*
        }

        impl Code {
            /// All codes.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The code with this number; 0 is not an error and has none.
            pub const fn from_number(number: i32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The name in gRPC's spelling.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }
    };
}

codes! {
    Cancelled = 1, "CANCELLED";
    Unknown = 2, "UNKNOWN";
    InvalidArgument = 3, "INVALID_ARGUMENT";
    DeadlineExceeded = 4, "DEADLINE_EXCEEDED";
    NotFound = 5, "NOT_FOUND";
    AlreadyExists = 6, "ALREADY_EXISTS";
    PermissionDenied = 7, "PERMISSION_DENIED";
    ResourceExhausted = 8, "RESOURCE_EXHAUSTED";
    FailedPrecondition = 9, "FAILED_PRECONDITION";
    Aborted = 10, "ABORTED";
    OutOfRange = 11, "OUT_OF_RANGE";
    Unimplemented = 12, "UNIMPLEMENTED";
    Internal = 13, "INTERNAL";
    Unavailable = 14, "UNAVAILABLE";
    DataLoss = 15, "DATA_LOSS";
    Unauthenticated = 16, "UNAUTHENTICATED";
}

/// How a call failed: a code, a reason for code that decides, and a text that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Status {
    /// The kind of failure.
    pub code: Code,
    /// Why it failed, as far as this process knows.
    pub reason: Reason,
    /// The failure in words; never empty.
    pub message: Cow<'static, str>,
}

impl Status {
    /// A failure. An empty text is replaced by one that says so: star cannot carry an empty one.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        let mut message = message.into();
        if message.is_empty() {
            message = Cow::Borrowed("the peer gave no reason");
        }
        Self {
            code,
            reason: Reason::Unspecified,
            message,
        }
    }

    /// Names the reason of this failure.
    #[must_use]
    pub fn because(self, reason: Reason) -> Self {
        Self { reason, ..self }
    }

    /// Replaces the text, and keeps the code and the reason.
    #[must_use]
    pub fn with_message(self, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(self.code, message).because(self.reason)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A reason fits into the bytes beside the code: results on the hot path do not grow by it.
const _: () = assert!(size_of::<Status>() == 32);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_names_of_reasons_are_those_of_their_places() {
        for (place, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(
                *reason as usize, place,
                "C and Python know the number of {reason}"
            );
            let same = Reason::ALL
                .iter()
                .filter(|other| other.name() == reason.name());
            assert_eq!(same.count(), 1, "{reason}");
        }
    }

    #[test]
    fn another_text_keeps_code_and_reason() {
        let status = Status::new(Code::Unavailable, "gone").because(Reason::ConnectionLost);
        let longer = status.with_message("ps:0 is gone");
        assert_eq!(longer.code, Code::Unavailable);
        assert_eq!(longer.reason, Reason::ConnectionLost);
        assert_eq!(longer.message, "ps:0 is gone");
    }
}
