use std::borrow::Cow;

use grpcxx_rpc::{Code, Reason, Status};

use crate::limits::ERROR_TEXT_BYTES_MAX;

/// A failure as a gRPC status: the code number for number, the text as long as headers allow.
pub(crate) fn to_grpc(status: &Status) -> tonic::Status {
    let code = tonic::Code::from(i32::from(status.code as u8));
    tonic::Status::new(code, shortened(&status.message, ERROR_TEXT_BYTES_MAX))
}

/// A failure that came from a gRPC peer.
pub(crate) fn from_grpc(status: &tonic::Status) -> Status {
    let code = Code::from_number(status.code() as i32).unwrap_or(Code::Unknown);
    Status::new(code, status.message().to_owned()).because(Reason::Peer)
}

/// `text`, cut at a character boundary to at most `bytes_max` bytes.
pub(crate) fn shortened(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if text.len() <= bytes_max {
        return Cow::Borrowed(text);
    }
    let mut end = bytes_max.saturating_sub(ELLIPSIS.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    Cow::Owned(format!("{}{ELLIPSIS}", &text[..end]))
}

const ELLIPSIS: &str = "...";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_keeps_its_number_both_ways() {
        for &code in Code::ALL {
            let status = Status::new(code, "why");
            let grpc = to_grpc(&status);
            assert_eq!(grpc.code() as i32, i32::from(code as u8));
            assert_eq!(from_grpc(&grpc), status.because(Reason::Peer));
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = "ä".repeat(ERROR_TEXT_BYTES_MAX);
        let cut = shortened(&text, ERROR_TEXT_BYTES_MAX);
        assert!(cut.len() <= ERROR_TEXT_BYTES_MAX && cut.ends_with("ä..."));
        assert_eq!(shortened("short", 5), "short");
    }
}
