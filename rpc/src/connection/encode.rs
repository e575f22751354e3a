//! Fills frames with requests and responses of star.

use std::borrow::Cow;
use std::slice;

use grpcxx_memory::Buffer;
use grpcxx_transport::Frame;
use smallvec::SmallVec;

use super::limits::STAR_RECORDS_MAX;
use super::{COALESCE_BYTES_MAX, ConnectionLimits, SendLimits};
use crate::wire::{
    Announcement, CANCEL_METHOD, HEADER_BYTES, Order, RecordCache, RequestHeader, ResponseHeader,
    STREAM_OPEN_METHOD, UNARY_METHOD, encode_graph_metadata, encode_names, encode_receive,
    encode_record, sorted_by_name,
};
use crate::{Code, Envelope, GraphCall, Method, Reason, Request, Status, Tensor, Text};

/// Fills an empty frame with a request.
///
/// # Errors
/// The request cannot be sent; the frame has to be cleared.
pub(crate) fn request(
    frame: &mut Frame,
    tag: u64,
    timeout_ms: i32,
    request: &Request,
    limits: &SendLimits,
    records: &mut RecordCache,
) -> Result<(), Status> {
    let called = (request.method_number(), tag, timeout_ms);
    write_request(frame, called, limits, |frame| {
        match request {
            Request::Message { method, body } => {
                check_message_method(*method)?;
                check_message(body, limits)?;
                payload(frame, body);
            }
            Request::RecvTensor { step_id, key } => {
                encode_receive(*step_id, slice::from_ref(key).iter(), frame.bytes_mut());
            }
            Request::FuseRecvTensor { step_id, keys } => {
                if keys.is_empty() {
                    return Err(Status::new(
                        Code::InvalidArgument,
                        "FuseRecvTensor needs at least one key",
                    ));
                }
                check_records(keys.len(), limits.records.min(STAR_RECORDS_MAX))?;
                encode_receive(*step_id, keys.iter(), frame.bytes_mut());
            }
            Request::StarRunGraph(call) => return graph_call(frame, call, limits, records),
            Request::Unary(envelope) | Request::Stream(envelope) => {
                return enclose(frame, envelope, limits);
            }
        }
        Ok(0)
    })
}

/// Fills an empty frame with a graph call.
///
/// # Errors
/// The call cannot be sent; the frame has to be cleared.
pub(crate) fn graph_request(
    frame: &mut Frame,
    tag: u64,
    timeout_ms: i32,
    call: &GraphCall,
    limits: &SendLimits,
    records: &mut RecordCache,
) -> Result<(), Status> {
    let called = (Method::StarRunGraph.number(), tag, timeout_ms);
    write_request(frame, called, limits, |frame| {
        graph_call(frame, call, limits, records)
    })
}

/// Fills an empty frame with a call by path.
///
/// # Errors
/// The call cannot be sent; the frame has to be cleared.
pub(crate) fn unary_request(
    frame: &mut Frame,
    tag: u64,
    timeout_ms: i32,
    envelope: &Envelope,
    limits: &SendLimits,
) -> Result<(), Status> {
    let called = (UNARY_METHOD, tag, timeout_ms);
    write_request(frame, called, limits, |frame| {
        enclose(frame, envelope, limits)
    })
}

/// Fills an empty frame with a request that opens the stream of this number.
///
/// # Errors
/// The request cannot be sent; the frame has to be cleared.
pub(crate) fn open_stream(
    frame: &mut Frame,
    tag: u64,
    timeout_ms: i32,
    envelope: &Envelope,
    number: u32,
    limits: &SendLimits,
) -> Result<(), Status> {
    let called = (STREAM_OPEN_METHOD, tag, timeout_ms);
    write_request(frame, called, limits, |frame| {
        let metadata_bytes = enclose(frame, envelope, limits)?;
        frame.bytes_mut().extend_from_slice(&number.to_le_bytes());
        Ok(metadata_bytes)
    })
}

/// Fills an empty frame with a request of a method, a tag and a timeout, behind whose header `body`
/// writes. It returns the length of the metadata among that.
#[inline]
fn write_request(
    frame: &mut Frame,
    (method, tag, timeout_ms): (i32, u64, i32),
    limits: &SendLimits,
    body: impl FnOnce(&mut Frame) -> Result<i32, Status>,
) -> Result<(), Status> {
    reserve_header(frame);
    let header = RequestHeader {
        method,
        tag,
        timeout_ms,
        metadata_bytes: body(frame)?,
        payload_bytes: payload_bytes(frame, limits)?,
    };
    write_header(frame, &header.encode());
    Ok(())
}

/// Fills an empty frame with a `GetStatus` request that announces this side.
pub(crate) fn announcement(frame: &mut Frame, tag: u64, announcement: &Announcement) {
    let header = RequestHeader {
        method: Method::GetStatus.number(),
        tag,
        payload_bytes: announcement.len_bytes() as u64,
        ..RequestHeader::default()
    };
    frame.bytes_mut().extend_from_slice(&header.encode());
    announcement.encode(frame.bytes_mut());
}

/// Fills an empty frame with the order to give up a call.
pub(crate) fn cancel(frame: &mut Frame, tag: u64) {
    let header = RequestHeader {
        method: CANCEL_METHOD,
        tag,
        ..RequestHeader::default()
    };
    frame.bytes_mut().extend_from_slice(&header.encode());
}

/// Fills an empty frame with a response that is one message, and an announcement behind it.
///
/// # Errors
/// The response cannot be sent; the frame has to be cleared.
pub(crate) fn message_response(
    frame: &mut Frame,
    tag: u64,
    body: &Buffer,
    announce: Option<&Announcement>,
    limits: &SendLimits,
) -> Result<(), Status> {
    check_message(body, limits)?;
    reserve_header(frame);
    payload(frame, body);
    if let Some(announcement) = announce {
        announcement.encode(frame.bytes_mut());
    }
    finish_response(frame, tag, 0, limits)
}

/// Fills an empty frame with a response that is tensors alone.
///
/// # Errors
/// The response cannot be sent; the frame has to be cleared.
pub(crate) fn tensors_response(
    frame: &mut Frame,
    tag: u64,
    tensors: &[Tensor],
    limits: &SendLimits,
) -> Result<(), Status> {
    check_records(tensors.len(), limits.records)?;
    reserve_header(frame);
    for tensor in tensors {
        record(frame, tensor, limits)?;
    }
    finish_response(frame, tag, 0, limits)
}

/// Fills an empty frame with the response to a graph call that asked for `asked`.
///
/// # Errors
/// The response cannot be sent, or the tensors are not exactly those asked for; the frame has to be
/// cleared.
pub(crate) fn fetched_response(
    frame: &mut Frame,
    tag: u64,
    asked: &[Text],
    fetched: &[(Text, Tensor)],
    limits: &SendLimits,
    records: &mut RecordCache,
) -> Result<(), Status> {
    if let ([asked], [(name, tensor)]) = (asked, fetched)
        && asked == name
    {
        check_records(1, limits.records)?;
        reserve_header(frame);
        let names_bytes = encode_names(std::iter::once(name), frame.bytes_mut())?;
        let names_bytes = checked_names(names_bytes, limits)?;
        named_record(frame, tensor, limits, records)?;
        return finish_response(frame, tag, names_bytes, limits);
    }
    let order = fetch_order(asked, fetched)?;
    check_records(order.len(), limits.records)?;
    let sorted = order.iter().map(|&index| &fetched[index as usize]);
    reserve_header(frame);
    let names_bytes = encode_names(sorted.clone().map(|(name, _)| name), frame.bytes_mut())?;
    let names_bytes = checked_names(names_bytes, limits)?;
    for (_, tensor) in sorted {
        named_record(frame, tensor, limits, records)?;
    }
    finish_response(frame, tag, names_bytes, limits)
}

/// Fills an empty frame with the answer to a call by path.
///
/// # Errors
/// The response cannot be sent; the frame has to be cleared.
pub(crate) fn unary_response(
    frame: &mut Frame,
    tag: u64,
    envelope: &Envelope,
    limits: &SendLimits,
) -> Result<(), Status> {
    reserve_header(frame);
    let head_bytes = enclose(frame, envelope, limits)?;
    finish_response(frame, tag, head_bytes, limits)
}

/// Fills an empty frame with a failure. Details go behind the text if the peer knows them; the text
/// says so of those that are too long for that.
pub(crate) fn error_response(frame: &mut Frame, tag: u64, status: &Status, limits: &SendLimits) {
    let text = match status.message.as_ref() {
        // Originals take an empty text for the end of the connection.
        "" => status.code.name(),
        text => prefix(text, limits.error_text_bytes),
    };
    let (details, remark) = match status.details() {
        details if limits.details_bytes == 0 || details.len() <= limits.details_bytes => {
            (&details[..details.len().min(limits.details_bytes)], None)
        }
        details => (&[][..], Some(too_long(details.len(), limits.details_bytes))),
    };
    let text = match &remark {
        Some(remark) => {
            let text = prefix(text, limits.error_text_bytes.saturating_sub(remark.len()));
            Cow::Owned(format!("{text}{remark}"))
        }
        None => Cow::Borrowed(text),
    };
    let header = ResponseHeader {
        tag,
        status: status.code as i32,
        names_bytes: details.len() as i32,
        payload_bytes: (text.len() + details.len()) as u64,
    };
    frame.bytes_mut().extend_from_slice(&header.encode());
    frame.bytes_mut().extend_from_slice(text.as_bytes());
    frame.bytes_mut().extend_from_slice(details);
}

/// What is said of details that do not travel.
fn too_long(found: usize, allowed: usize) -> String {
    format!(" (its details of {found} bytes were left out, allowed are {allowed})")
}

/// Puts head and message behind a header. Returns the length of the head.
fn enclose(frame: &mut Frame, envelope: &Envelope, limits: &SendLimits) -> Result<i32, Status> {
    check_message_bytes(envelope.message_bytes() as u64, limits)?;
    let (own, pieces) = envelope.parts();
    frame.bytes_mut().extend_from_slice(own);
    for piece in pieces {
        payload(frame, piece);
    }
    checked_names(envelope.head_bytes(), limits)
}

fn graph_call(
    frame: &mut Frame,
    call: &GraphCall,
    limits: &SendLimits,
    records: &mut RecordCache,
) -> Result<i32, Status> {
    check_records(call.feeds.len(), limits.records)?;
    check_records(call.fetches.len(), limits.records)?;
    if call.fetches.len() > 1
        && let Err(name) = sorted_by_name(&call.fetches)
    {
        return Err(Status::new(
            Code::InvalidArgument,
            format!("the fetch {name:?} is asked for twice, allowed is once"),
        ));
    }
    let metadata_bytes = encode_graph_metadata(call, frame.bytes_mut())?;
    assert_ne!(
        metadata_bytes, 0,
        "a graph call without metadata ends the process of an original"
    );
    let metadata_bytes = checked_names(metadata_bytes, limits)?;
    for (_, tensor) in &call.feeds {
        named_record(frame, tensor, limits, records)?;
    }
    Ok(metadata_bytes)
}

/// The indexes of `fetched` sorted by name, if its names are exactly those of `asked`.
fn fetch_order(asked: &[Text], fetched: &[(Text, Tensor)]) -> Result<Order, Status> {
    let mut asked: SmallVec<[&Text; 8]> = asked.iter().collect();
    asked.sort_unstable();
    let mut order: Order = (0..).take(fetched.len()).collect();
    order.sort_unstable_by(|&a, &b| fetched[a as usize].0.cmp(&fetched[b as usize].0));
    let names = order.iter().map(|&index| &fetched[index as usize].0);
    if names.clone().eq(asked.iter().copied()) {
        return Ok(order);
    }
    let names: Vec<&Text> = names.take(NAMES_SHOWN).collect();
    asked.truncate(NAMES_SHOWN);
    Err(Status::new(
        Code::Internal,
        format!("the function returned {names:?}, asked for were {asked:?}"),
    ))
}

fn record(frame: &mut Frame, tensor: &Tensor, limits: &SendLimits) -> Result<(), Status> {
    frame
        .bytes_mut()
        .extend_from_slice(&encode_record(tensor, limits.shapes)?);
    payload(frame, &tensor.data);
    Ok(())
}

/// The record of a tensor of a call, which is often what that of the call before was.
fn named_record(
    frame: &mut Frame,
    tensor: &Tensor,
    limits: &SendLimits,
    records: &mut RecordCache,
) -> Result<(), Status> {
    frame
        .bytes_mut()
        .extend_from_slice(&records.encode(tensor, limits.shapes)?);
    payload(frame, &tensor.data);
    Ok(())
}

fn payload(frame: &mut Frame, buffer: &Buffer) {
    if buffer.len() <= COALESCE_BYTES_MAX {
        frame.bytes_mut().extend_from_slice(buffer);
    } else {
        frame.attach(buffer.clone());
    }
}

pub(crate) fn reserve_header(frame: &mut Frame) {
    frame.bytes_mut().extend_from_slice(&[0; HEADER_BYTES]);
}

/// Writes into the header of a frame without splices how long what follows it is.
#[inline]
pub(crate) fn note_length(frame: &mut Frame) {
    let bytes = frame.bytes_mut();
    let payload_bytes = (bytes.len() - HEADER_BYTES) as u64;
    bytes[HEADER_BYTES - 8..HEADER_BYTES].copy_from_slice(&payload_bytes.to_le_bytes());
}

pub(crate) fn write_header(frame: &mut Frame, header: &[u8; HEADER_BYTES]) {
    frame.bytes_mut()[..HEADER_BYTES].copy_from_slice(header);
}

pub(crate) fn finish_response(
    frame: &mut Frame,
    tag: u64,
    names_bytes: i32,
    limits: &SendLimits,
) -> Result<(), Status> {
    let header = ResponseHeader {
        tag,
        status: 0,
        names_bytes,
        payload_bytes: payload_bytes(frame, limits)?,
    };
    write_header(frame, &header.encode());
    Ok(())
}

fn payload_bytes(frame: &Frame, limits: &ConnectionLimits) -> Result<u64, Status> {
    check_frame(frame, limits)?;
    Ok(frame.len_bytes() - HEADER_BYTES as u64)
}

/// Whether a frame may be sent.
///
/// # Errors
/// It is too long.
pub(crate) fn check_frame(frame: &Frame, limits: &ConnectionLimits) -> Result<(), Status> {
    let frame_bytes = frame.len_bytes();
    if frame_bytes > limits.frame_bytes {
        return Err(exhausted(
            "a frame",
            "bytes",
            frame_bytes,
            limits.frame_bytes,
        ));
    }
    Ok(())
}

fn check_message(body: &Buffer, limits: &ConnectionLimits) -> Result<(), Status> {
    check_message_bytes(body.len() as u64, limits)
}

fn check_message_bytes(len: u64, limits: &ConnectionLimits) -> Result<(), Status> {
    if len > limits.message_bytes {
        return Err(exhausted("a message", "bytes", len, limits.message_bytes));
    }
    Ok(())
}

fn check_records(count: usize, allowed_max: usize) -> Result<(), Status> {
    if count > allowed_max {
        let text = format!(
            "a call with {count} tensors cannot be sent, allowed are {allowed_max} between these \
             ends; make several calls"
        );
        return Err(Status::new(Code::ResourceExhausted, text).because(Reason::Limit));
    }
    Ok(())
}

fn checked_names(len: usize, limits: &ConnectionLimits) -> Result<i32, Status> {
    match i32::try_from(len) {
        Ok(names_bytes) if len <= limits.names_bytes => Ok(names_bytes),
        _ => Err(exhausted(
            "a list of names",
            "bytes",
            len as u64,
            limits.names_bytes as u64,
        )),
    }
}

fn check_message_method(method: Method) -> Result<(), Status> {
    match method {
        Method::RecvTensor | Method::FuseRecvTensor | Method::StarRunGraph => Err(Status::new(
            Code::InvalidArgument,
            format!("{method} is not called with a message"),
        )),
        _ => match unsupported(method) {
            Some(text) => Err(Status::new(Code::Unimplemented, text)),
            None => Ok(()),
        },
    }
}

/// Why a method that has a number in star cannot be called with it.
pub(crate) fn unsupported(method: Method) -> Option<&'static str> {
    match method {
        Method::GetTopologyStatus => Some("GetTopologyStatus is not served over star"),
        Method::RecvBuf => Some("RecvBuf is not served over star"),
        Method::CompleteGroup => Some("CompleteGroup is not served over star"),
        Method::CompleteInstance => Some("CompleteInstance is not served over star"),
        Method::GetStepSequence => Some("GetStepSequence is not served over star"),
        Method::GetStatus
        | Method::CreateWorkerSession
        | Method::DeleteWorkerSession
        | Method::RegisterGraph
        | Method::DeregisterGraph
        | Method::RunGraph
        | Method::StarRunGraph
        | Method::CleanupGraph
        | Method::CleanupAll
        | Method::RecvTensor
        | Method::FuseRecvTensor
        | Method::Logging
        | Method::Tracing => None,
    }
}

fn exhausted(what: &str, unit: &str, found: u64, allowed: u64) -> Status {
    Status::new(
        Code::ResourceExhausted,
        format!("{what} of {found} {unit} cannot be sent, allowed are {allowed}"),
    )
    .because(Reason::Limit)
}

/// The longest start of `text` with at most `len_max` bytes that ends with a whole character.
fn prefix(text: &str, len_max: usize) -> &str {
    let mut len = text.len().min(len_max);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    &text[..len]
}

/// Names in one error text.
const NAMES_SHOWN: usize = 8;
