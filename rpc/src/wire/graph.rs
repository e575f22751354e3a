//! The bytes of graph metadata and of names.

use std::ops::Range;

use grpcxx_memory::Buffer;
use smallvec::SmallVec;

use super::reader::{Malformed, Problem, Reader};
use crate::{Code, GraphCall, NamedTensors, Names, Status, Text, TraceContext};

/// Appends the metadata of a `StarRunGraph` request and returns its length.
///
/// # Errors
/// `INVALID_ARGUMENT` if a name or a count is too long for its field; then nothing is appended.
pub fn encode_graph_metadata(call: &GraphCall, out: &mut Vec<u8>) -> Result<usize, Status> {
    let feeds = call.feeds.iter().map(|(name, _)| name);
    for name in feeds.clone().chain(&call.fetches) {
        check_short(name, "the name")?;
    }
    check_short(&call.graph_handle, "the graph handle")?;
    let feed_count = checked_count(call.feeds.len(), "feeds")?;
    let fetch_count = checked_count(call.fetches.len(), "fetches")?;

    let start = out.len();
    out.extend_from_slice(&feed_count.to_le_bytes());
    feeds.for_each(|name| encode_short(name, out));
    out.extend_from_slice(&fetch_count.to_le_bytes());
    call.fetches.iter().for_each(|name| encode_short(name, out));
    encode_short(&call.graph_handle, out);
    let mut tail = [0; GRAPH_TAIL_BYTES];
    tail[..8].copy_from_slice(&call.step_id.to_le_bytes());
    tail[8..12].copy_from_slice(&call.ps_graph_count.to_le_bytes());
    tail[12] = u8::from(call.should_trace);
    match call.trace {
        Some(trace) => {
            out.extend_from_slice(&tail[..13]);
            encode_short(&trace.to_string().into(), out);
            encode_short(&Text::default(), out);
        }
        // Two empty texts.
        None => out.extend_from_slice(&tail),
    }
    Ok(out.len() - start)
}

/// Reads the metadata of a `StarRunGraph` request: the call without its feeds, and the names of
/// those.
///
/// # Errors
/// It does not parse to its last byte, a count is above `names_max`, or a fetch occurs twice.
pub fn decode_graph_metadata(
    metadata: &Buffer,
    names_max: usize,
) -> Result<(GraphCall, Names), Malformed> {
    let mut reader = Reader::new("graph metadata", metadata);
    let count = reader.count("the number of feeds", names_max)?;
    let feeds = texts(&mut reader, "the name of a feed", count, metadata)?;
    let count = reader.count("the number of fetches", names_max)?;
    let fetches = texts(&mut reader, "the name of a fetch", count, metadata)?;
    let graph_handle = reader.short_text("the graph handle", metadata)?;
    let step_id = u64::from_le_bytes(reader.array("the step id")?);
    let ps_graph_count = i32::from_le_bytes(reader.array("the number of graphs")?);
    let [tracing] = reader.array("the tracing flag")?;
    let span_context = short_bytes(&mut reader, "the span context")?;
    let trace = TraceContext::parse(&metadata[span_context]);
    short_bytes(&mut reader, "the device name")?;
    reader.finish()?;
    if let Err(found) = sorted_by_name(&fetches) {
        return Err(reader.malformed("the fetches", Problem::Duplicate { found }));
    }
    let call = GraphCall {
        graph_handle,
        step_id,
        feeds: NamedTensors::with_capacity(feeds.len()),
        fetches,
        ps_graph_count,
        should_trace: tracing == 1,
        trace,
    };
    Ok((call, feeds))
}

/// Step, number of graphs and tracing flag at the end of metadata in which no span context and no
/// device name follow.
#[inline]
pub(crate) fn decode_graph_tail(tail: &[u8; GRAPH_TAIL_BYTES]) -> Option<(u64, i32, bool)> {
    let (step_id, rest) = tail.split_first_chunk()?;
    let (ps_graph_count, rest) = rest.split_first_chunk()?;
    let [tracing, 0, 0, 0, 0] = rest else {
        return None;
    };
    let ps_graph_count = i32::from_le_bytes(*ps_graph_count);
    Some((u64::from_le_bytes(*step_id), ps_graph_count, *tracing == 1))
}

/// Length of step, number of graphs, tracing flag and two empty texts.
pub(crate) const GRAPH_TAIL_BYTES: usize = 8 + 4 + 1 + 2 + 2;

/// Appends the names of a `StarRunGraph` response and returns their length.
///
/// # Errors
/// `INVALID_ARGUMENT` if a name is too long for its field; then nothing is appended.
pub fn encode_names<'a>(
    names: impl Iterator<Item = &'a Text> + Clone,
    out: &mut Vec<u8>,
) -> Result<usize, Status> {
    for name in names.clone() {
        check_short(name, "the name")?;
    }
    let start = out.len();
    names.for_each(|name| encode_short(name, out));
    Ok(out.len() - start)
}

/// Reads the names of a `StarRunGraph` response, in the order of their records.
///
/// # Errors
/// They do not parse to their last byte, or are more than `names_max`.
pub fn decode_names(names: &Buffer, names_max: usize) -> Result<Vec<Text>, Malformed> {
    let mut reader = Reader::new("response names", names);
    let mut texts = Vec::new();
    while !reader.is_empty() {
        if texts.len() == names_max {
            return Err(reader.malformed(
                "the number of names",
                Problem::OutOfRange {
                    found: names_max as i64 + 1,
                    allowed_max: names_max as u64,
                },
            ));
        }
        texts.push(reader.short_text("a name", names)?);
    }
    Ok(texts)
}

/// The indexes of `names` in the order of their bytes.
///
/// # Errors
/// A name occurs twice; the name.
pub(crate) fn sorted_by_name(names: &[Text]) -> Result<Order, Text> {
    let mut order: Order = indexes(names.len()).collect();
    order.sort_unstable_by(|&a, &b| names[a as usize].cmp(&names[b as usize]));
    match order
        .windows(2)
        .find(|pair| names[pair[0] as usize] == names[pair[1] as usize])
    {
        Some(pair) => Err(names[pair[0] as usize].clone()),
        None => Ok(order),
    }
}

/// Indexes in an order.
pub(crate) type Order = SmallVec<[u32; 8]>;

fn indexes(len: usize) -> Range<u32> {
    0..u32::try_from(len).expect("the number of names is bounded by the records of a frame")
}

fn texts(
    reader: &mut Reader<'_>,
    field: &'static str,
    count: usize,
    buffer: &Buffer,
) -> Result<Names, Malformed> {
    // Each name takes two bytes at least, so the count cannot make us reserve more than the peer
    // has sent.
    if count > reader.left_bytes() / 2 {
        return Err(reader.malformed(
            field,
            Problem::Short {
                wanted_bytes: 2 * count as u64,
                left_bytes: reader.left_bytes(),
            },
        ));
    }
    (0..count)
        .map(|_| reader.short_text(field, buffer))
        .collect()
}

fn short_bytes(reader: &mut Reader<'_>, field: &'static str) -> Result<Range<usize>, Malformed> {
    let len = u16::from_le_bytes(reader.array(field)?);
    reader.range(field, u64::from(len))
}

fn encode_short(text: &Text, out: &mut Vec<u8>) {
    let bytes = text.as_buffer();
    let len = u16::try_from(bytes.len()).expect("the length was checked before");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(bytes);
}

fn check_short(text: &Text, what: &str) -> Result<(), Status> {
    if u16::try_from(text.as_buffer().len()).is_ok() {
        return Ok(());
    }
    let start: String = text.chars().take(40).collect();
    Err(Status::new(
        Code::InvalidArgument,
        format!(
            "{what} \"{start}...\" has {} bytes, allowed are {}",
            text.len(),
            u16::MAX
        ),
    ))
}

fn checked_count(count: usize, what: &str) -> Result<i32, Status> {
    i32::try_from(count).map_err(|_| {
        Status::new(
            Code::InvalidArgument,
            format!("{count} {what} are more than the protocol can count"),
        )
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Tensor;

    fn call(feeds: &[&str], fetches: &[&str]) -> GraphCall {
        GraphCall {
            graph_handle: "handle".into(),
            step_id: 0x0102_0304_0506_0708,
            feeds: feeds
                .iter()
                .map(|&name| (name.into(), Tensor::dead()))
                .collect(),
            fetches: fetches.iter().map(|&name| name.into()).collect(),
            ps_graph_count: -1,
            should_trace: true,
            trace: None,
        }
    }

    fn encoded(call: &GraphCall) -> Vec<u8> {
        let mut out = vec![9];
        let len = encode_graph_metadata(call, &mut out).unwrap();
        assert_eq!(len, out.len() - 1);
        out.split_off(1)
    }

    /// checklist 09
    #[test]
    fn metadata_has_the_length_the_protocol_derives() {
        let bytes = encoded(&call(&["ab", ""], &["y:0"]));
        assert_eq!(bytes.len(), 27 + (2 + 2) + 2 + (2 + 3) + "handle".len());
        assert_eq!(&bytes[..8], [2, 0, 0, 0, 2, 0, b'a', b'b']);
        assert_eq!(&bytes[bytes.len() - 5..], [1, 0, 0, 0, 0]);
    }

    /// checklist 09
    #[test]
    fn metadata_round_trips() {
        let call = call(&["f1", "f1", ""], &["b", "a"]);
        let (decoded, feeds) = decode_graph_metadata(&encoded(&call).into(), 3).unwrap();
        assert_eq!(feeds[..], ["f1", "f1", ""]);
        let expected = GraphCall {
            feeds: NamedTensors::new(),
            ..call
        };
        assert_eq!(decoded, expected);
    }

    #[test]
    fn a_span_context_is_carried_and_one_that_is_none_is_ignored() {
        let trace = TraceContext::new(7, 9, true);
        let traced = GraphCall {
            trace,
            ..call(&[], &[])
        };
        let bytes = encoded(&traced);
        let (decoded, _) = decode_graph_metadata(&bytes.clone().into(), 0).unwrap();
        assert_eq!(decoded.trace, trace);
        assert_eq!(bytes.len(), encoded(&call(&[], &[])).len() + 55);

        let mut garbage = bytes;
        let at = garbage.len() - 2 - 55;
        garbage[at] = 0xff;
        let (decoded, _) = decode_graph_metadata(&garbage.into(), 0).unwrap();
        assert_eq!(decoded.trace, None);
    }

    #[test]
    fn any_tracing_byte_is_accepted() {
        let mut bytes = encoded(&call(&[], &[]));
        let at = bytes.len() - 5;
        for byte in 0..=255 {
            bytes[at] = byte;
            let (call, _) = decode_graph_metadata(&bytes.clone().into(), 0).unwrap();
            assert_eq!(call.should_trace, byte == 1);
        }
    }

    #[test]
    fn every_cut_and_every_surplus_is_named() {
        let bytes = encoded(&call(&["feed"], &["fetch"]));
        for len in 0..bytes.len() {
            let error = decode_graph_metadata(&bytes[..len].to_vec().into(), 9).unwrap_err();
            assert!(matches!(error.problem, Problem::Short { .. }), "{error}");
        }
        let mut longer = bytes;
        longer.push(0);
        assert_eq!(
            decode_graph_metadata(&longer.into(), 9)
                .unwrap_err()
                .to_string(),
            "graph metadata, byte 46: the end is 1 bytes too late"
        );
    }

    #[test]
    fn counts_beyond_the_limit_and_duplicate_fetches_are_refused() {
        let two = Buffer::from(encoded(&call(&["a", "b"], &[])));
        assert!(decode_graph_metadata(&two, 2).is_ok());
        assert_eq!(
            decode_graph_metadata(&two, 1).unwrap_err().to_string(),
            "graph metadata, byte 0: the number of feeds is 2, allowed are 0 to 1"
        );
        let huge = Buffer::from(vec![0xff, 0xff, 0xff, 0x7f, 0, 0]);
        assert!(decode_graph_metadata(&huge, usize::MAX).is_err());
        let twice = Buffer::from(encoded(&call(&[], &["x", "y", "x"])));
        assert!(
            decode_graph_metadata(&twice, 9)
                .unwrap_err()
                .to_string()
                .ends_with("the fetches has \"x\" twice, allowed is once")
        );
    }

    #[test]
    fn names_longer_than_their_length_field_are_not_sent() {
        let long = "x".repeat(65_536);
        let mut out = Vec::new();
        for call in [call(&[&long], &[]), call(&[], &[&long])] {
            let status = encode_graph_metadata(&call, &mut out).unwrap_err();
            assert_eq!(status.code, Code::InvalidArgument);
        }
        assert!(encode_names([Text::from(long)].iter(), &mut out).is_err());
        assert!(out.is_empty());
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let buffer = Buffer::from(bytes);
            if let Ok((mut call, feeds)) = decode_graph_metadata(&buffer, 64) {
                call.feeds = feeds.into_iter().map(|name| (name, Tensor::dead())).collect();
                let again = encoded(&call);
                prop_assert!(decode_graph_metadata(&again.into(), 64).is_ok());
            }
            if let Ok(names) = decode_names(&buffer, 64) {
                let mut out = Vec::new();
                encode_names(names.iter(), &mut out).unwrap();
                prop_assert_eq!(&out[..], &buffer[..]);
            }
        }
    }
}
