use std::borrow::Cow;

use bytes::Bytes;
use grpcxx_rpc::{Code, Reason, Status};

use crate::limits::{DETAILED_TEXT_BYTES_MAX, DETAILS_BYTES_MAX, ERROR_TEXT_BYTES_MAX};

/// A failure as a gRPC status: the code number for number, the text as long as headers allow, and
/// its details, unless these are too long for headers: then the text says so.
pub(crate) fn to_grpc(status: &Status) -> tonic::Status {
    let code = tonic::Code::from(i32::from(status.code as u8));
    match status.details() {
        [] => tonic::Status::new(code, shortened(&status.message, ERROR_TEXT_BYTES_MAX)),
        details if details.len() <= DETAILS_BYTES_MAX => {
            let text = shortened(&status.message, DETAILED_TEXT_BYTES_MAX);
            tonic::Status::with_details(code, text, Bytes::copy_from_slice(details))
        }
        details => {
            let remark = format!(
                " (its details of {} bytes were left out, allowed are {DETAILS_BYTES_MAX})",
                details.len()
            );
            let text = shortened(&status.message, ERROR_TEXT_BYTES_MAX - remark.len());
            tonic::Status::new(code, format!("{text}{remark}"))
        }
    }
}

/// A failure that came from a gRPC peer.
pub(crate) fn from_grpc(status: &tonic::Status) -> Status {
    let code = Code::from_number(status.code() as i32).unwrap_or(Code::Unknown);
    let details = Bytes::copy_from_slice(status.details());
    Status::with_details(code, status.message().to_owned(), details).because(Reason::Peer)
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
            let status = Status::with_details(code, "why", vec![1, 2].into());
            let grpc = to_grpc(&status);
            assert_eq!(grpc.code() as i32, i32::from(code as u8));
            assert_eq!(from_grpc(&grpc), status.because(Reason::Peer));
        }
    }

    #[test]
    fn details_that_are_too_long_for_headers_are_named_in_the_text() {
        let text = "x".repeat(ERROR_TEXT_BYTES_MAX);
        let details = vec![7; DETAILS_BYTES_MAX + 1];
        let grpc = to_grpc(&Status::with_details(Code::Aborted, text, details.into()));
        assert!(grpc.details().is_empty());
        assert!(grpc.message().len() <= ERROR_TEXT_BYTES_MAX);
        let end = "... (its details of 4097 bytes were left out, allowed are 4096)";
        assert!(grpc.message().ends_with(end), "{grpc}");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let text = "ä".repeat(ERROR_TEXT_BYTES_MAX);
        let cut = shortened(&text, ERROR_TEXT_BYTES_MAX);
        assert!(cut.len() <= ERROR_TEXT_BYTES_MAX && cut.ends_with("ä..."));
        assert_eq!(shortened("short", 5), "short");
    }
}
