//! Element types that originals of star do not know.
//!
//! An original that gets such a number breaks down, and an older grpcxx closes the connection. So
//! they go only to peers that have announced [`Features::ELEMENT_TYPES`], in records that are as
//! those of all other types.

use crate::wire::Features;
use crate::{Code, DType, GraphCall, Request, Status};

/// What a graph call needs its peer to have announced.
#[inline]
pub(crate) fn wanted_of_call(call: &GraphCall) -> Features {
    match call.feeds.iter().all(|(_, feed)| feed.dtype.is_star()) {
        true => Features::NONE,
        false => Features::ELEMENT_TYPES,
    }
}

/// Refuses a request with types that the peer does not know, as [`check`] does.
#[inline]
pub(crate) fn check_request(common: Features, request: &Request) -> Result<(), Status> {
    match request {
        Request::StarRunGraph(call) => check(common, call.feeds.iter().map(|(_, feed)| feed.dtype)),
        _ => Ok(()),
    }
}

/// Refuses types that the peer does not know, where `common` is what both ends have announced.
///
/// # Errors
/// `UNIMPLEMENTED` with the first type that the peer does not know.
#[inline]
pub(crate) fn check(
    common: Features,
    mut dtypes: impl Iterator<Item = DType>,
) -> Result<(), Status> {
    if common.contains(Features::ELEMENT_TYPES) {
        return Ok(());
    }
    match dtypes.find(|dtype| !dtype.is_star()) {
        None => Ok(()),
        Some(dtype) => Err(unknown(dtype)),
    }
}

#[cold]
fn unknown(dtype: DType) -> Status {
    let text = format!(
        "a tensor of {dtype} cannot be sent to this peer, which knows no element types beyond \
         those of star: it is an original, or an older grpcxx; convert the tensor, or send its \
         bytes as uint8"
    );
    Status::new(Code::Unimplemented, text)
}
