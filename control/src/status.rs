use std::borrow::Cow;
use std::error::Error;

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
            let text = shortened(&status.message, ERROR_TEXT_BYTES_MAX - sent_bytes(&remark));
            tonic::Status::new(code, format!("{text}{remark}"))
        }
    }
}

/// A failure of a call over gRPC. The library makes a status of what happens to the connection too,
/// and such a status has a source, which no answer of a peer has.
pub(crate) fn from_grpc(status: &tonic::Status) -> Status {
    let code = Code::from_number(status.code() as i32).unwrap_or(Code::Unknown);
    let details = Bytes::copy_from_slice(status.details());
    let reason = match status.source() {
        None => Reason::Peer,
        Some(_) => Reason::ConnectionLost,
    };
    Status::with_details(code, status.message().to_owned(), details).because(reason)
}

/// `text`, cut between characters so that a header carries it in at most `bytes_max` bytes.
pub(crate) fn shortened(text: &str, bytes_max: usize) -> Cow<'_, str> {
    if sent_bytes(text) <= bytes_max {
        return Cow::Borrowed(text);
    }
    let mut left = bytes_max.saturating_sub(ELLIPSIS.len());
    let end = text.char_indices().find(|(_, character)| {
        let fits = left.checked_sub(sent_bytes_of(*character));
        left = fits.unwrap_or_default();
        fits.is_none()
    });
    let end = end.map_or(text.len(), |(at, _)| at);
    Cow::Owned(format!("{}{ELLIPSIS}", &text[..end]))
}

/// How long a text is in a header, at most.
fn sent_bytes(text: &str) -> usize {
    text.chars().map(sent_bytes_of).sum()
}

/// Headers have letters and some signs of ASCII as they are, and three bytes for each other byte.
fn sent_bytes_of(character: char) -> usize {
    let is_plain =
        character.is_ascii_alphanumeric() || "-_.,:;!()/'=+&*@[]|~$^".contains(character);
    if is_plain {
        1
    } else {
        3 * character.len_utf8()
    }
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

    /// What a header counts for in HTTP/2.
    fn header_bytes(status: &Status) -> usize {
        let response = to_grpc(status).into_http::<()>();
        let headers = response.headers().iter();
        headers
            .map(|(name, value)| name.as_str().len() + value.len() + 32)
            .sum()
    }

    #[test]
    fn texts_and_details_of_any_length_fit_into_the_headers_that_others_take() {
        for unit in ["x", " ", "ä", "%", "\n", "\u{1f980}"] {
            let text = unit.repeat(40_000);
            for details_bytes in [0, 1, DETAILS_BYTES_MAX, DETAILS_BYTES_MAX + 1] {
                let details = vec![0xff; details_bytes];
                let status = Status::with_details(Code::Aborted, text.clone(), details.into());
                let bytes = header_bytes(&status);
                assert!(bytes <= 8192, "{unit:?}, {details_bytes}: {bytes}");
                // Much of the text is there all the same.
                assert!(to_grpc(&status).message().len() > 600, "{unit:?}");
            }
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
