//! How a call failed: a code, a reason and a text.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;

use crate::Reason;

macro_rules! codes {
    ($($variant:ident = $number:literal, $name:literal, $make:ident;)*) => {
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

        impl Status {
            $(
                #[doc = concat!("A failure with the code `", $name, "`.")]
                pub fn $make(message: impl Into<String>) -> Self {
                    Self::new(Code::$variant, message.into())
                }
            )*
        }
    };
}

codes! {
    Cancelled = 1, "CANCELLED", cancelled;
    Unknown = 2, "UNKNOWN", unknown;
    InvalidArgument = 3, "INVALID_ARGUMENT", invalid_argument;
    DeadlineExceeded = 4, "DEADLINE_EXCEEDED", deadline_exceeded;
    NotFound = 5, "NOT_FOUND", not_found;
    AlreadyExists = 6, "ALREADY_EXISTS", already_exists;
    PermissionDenied = 7, "PERMISSION_DENIED", permission_denied;
    ResourceExhausted = 8, "RESOURCE_EXHAUSTED", resource_exhausted;
    FailedPrecondition = 9, "FAILED_PRECONDITION", failed_precondition;
    Aborted = 10, "ABORTED", aborted;
    OutOfRange = 11, "OUT_OF_RANGE", out_of_range;
    Unimplemented = 12, "UNIMPLEMENTED", unimplemented;
    Internal = 13, "INTERNAL", internal;
    Unavailable = 14, "UNAVAILABLE", unavailable;
    DataLoss = 15, "DATA_LOSS", data_loss;
    Unauthenticated = 16, "UNAUTHENTICATED", unauthenticated;
}

/// How a call failed: a code, a reason for code that decides, and a text that says what to do.
///
/// ```
/// use grpcxx_rpc::{Code, Status};
///
/// let status = Status::not_found("no model \"m\" here: push it first");
/// assert_eq!(status.code(), Code::NotFound);
/// let detailed = Status::with_details(Code::NotFound, "no model", vec![8, 5].into());
/// assert_eq!(detailed.details(), [8, 5]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Status {
    /// The kind of failure.
    pub code: Code,
    /// Why it failed, as far as this process knows.
    pub reason: Reason,
    /// The failure in words; never empty.
    pub message: Cow<'static, str>,
    details: Option<Box<Bytes>>,
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
            details: None,
        }
    }

    /// A failure with more about it for programs: bytes, by convention a serialized
    /// `google.rpc.Status`. They travel to clients of gRPC, and over star to peers that know the
    /// extension *status details*, as far as the limits there allow.
    pub fn with_details(code: Code, message: impl Into<String>, details: Bytes) -> Self {
        let details = (!details.is_empty()).then(|| Box::new(details));
        Self {
            details,
            ..Self::new(code, message.into())
        }
    }

    /// The kind of failure.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The failure in words.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// What [`with_details`](Self::with_details) was given; empty if there is nothing more.
    pub fn details(&self) -> &[u8] {
        self.details.as_deref().map_or(&[], |details| details)
    }

    /// Names the reason of this failure.
    #[must_use]
    pub fn because(self, reason: Reason) -> Self {
        Self { reason, ..self }
    }

    /// Replaces the text, and keeps the code, the reason and the details.
    #[must_use]
    pub fn with_message(self, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason: self.reason,
            details: self.details,
            ..Self::new(self.code, message)
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A reason fits into the bytes beside the code, and details are behind one pointer: results on the
/// hot path are larger than a failure anyway.
const _: () = assert!(size_of::<Status>() == 40);

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
        assert_eq!(longer.message(), "ps:0 is gone");
        let detailed = Status::with_details(Code::Aborted, "why", vec![1].into());
        assert_eq!(detailed.with_message("because").details(), [1]);
    }

    #[test]
    fn each_code_has_a_constructor() {
        assert_eq!(Status::cancelled("a").code(), Code::Cancelled);
        assert_eq!(
            Status::deadline_exceeded("a").code(),
            Code::DeadlineExceeded
        );
        assert_eq!(Status::unauthenticated("a").code(), Code::Unauthenticated);
        assert_eq!(Status::not_found("a"), Status::new(Code::NotFound, "a"));
        assert!(
            Status::with_details(Code::Internal, "a", Bytes::new())
                .details()
                .is_empty()
        );
    }
}
