//! What graph calls of a connection have in common with those before them.

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;

use crate::wire::{GRAPH_TAIL_BYTES, Malformed, decode_graph_metadata, decode_graph_tail};
use crate::{GraphCall, Names, Text};

/// The functions that a peer has called lately, with the names that it feeds and fetches, so that
/// the same call is not parsed anew and its names need no memory of their own.
///
/// The hash of all that two calls have in common names the one place in which their signature is
/// kept. One that misses its place is kept if it does so twice without another between: names that
/// differ with each call cost no copies.
#[derive(Debug, Default)]
pub(crate) struct Signatures {
    /// Empty before the first call.
    places: Vec<Place>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct Place {
    kept: Option<Box<Signature>>,
    /// The hash that missed last.
    missed: u64,
}

/// A call without its tensors, and the names of those.
#[derive(Debug)]
struct Signature {
    bytes: Box<[u8]>,
    call: GraphCall,
    feeds: Names,
}

impl Signatures {
    /// Reads the metadata of a call that is like one before it. Returns the names of its feeds.
    pub(crate) fn read(
        &mut self,
        metadata: &[u8],
        names_max: usize,
        call: &mut GraphCall,
    ) -> Option<Names> {
        let (bytes, tail) = metadata.split_last_chunk::<GRAPH_TAIL_BYTES>()?;
        let (step_id, ps_graph_count, should_trace) = decode_graph_tail(tail)?;
        if bytes.len() > BYTES_MAX {
            return None;
        }
        let hash = self.hash(bytes);
        if self.places.is_empty() {
            self.places.resize_with(PLACES, Place::default);
        }
        let place = &mut self.places[hash as usize % PLACES];
        match &place.kept {
            Some(signature) if *signature.bytes == *bytes && signature.names() <= names_max => {
                call.graph_handle = signature.call.graph_handle.clone();
                call.fetches = copied(&signature.call.fetches);
                call.step_id = step_id;
                call.ps_graph_count = ps_graph_count;
                call.should_trace = should_trace;
                Some(copied(&signature.feeds))
            }
            Some(_) | None => {
                if std::mem::replace(&mut place.missed, hash) == hash {
                    place.kept = Signature::of(bytes, metadata).ok().flatten();
                }
                None
            }
        }
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write(bytes);
        hasher.finish()
    }
}

/// The same names. Most lists have one, for which a loop is long.
#[inline]
fn copied(names: &Names) -> Names {
    match &names[..] {
        [name] => Names::from_buf([name.clone()]),
        names => names.iter().cloned().collect(),
    }
}

impl Signature {
    /// Feeds or fetches, whatever are more.
    fn names(&self) -> usize {
        self.feeds.len().max(self.call.fetches.len())
    }

    /// The signature of a call with this metadata, in memory of its own. `None` if it has many
    /// names.
    fn of(bytes: &[u8], metadata: &[u8]) -> Result<Option<Box<Self>>, Malformed> {
        let (call, feeds) = decode_graph_metadata(&metadata.to_vec().into(), NAMES_MAX)?;
        if feeds.len() + call.fetches.len() > NAMES_MAX {
            return Ok(None);
        }
        let own = |name: &Text| Text::from(name.as_str());
        Ok(Some(Box::new(Self {
            bytes: bytes.into(),
            feeds: feeds.iter().map(own).collect(),
            call: GraphCall {
                graph_handle: own(&call.graph_handle),
                fetches: call.fetches.iter().map(own).collect(),
                ..GraphCall::default()
            },
        })))
    }
}

/// Signatures that a connection keeps, and the longest of them: a peer gets some tens of kilobytes.
const PLACES: usize = 32;
const BYTES_MAX: usize = 512;

/// Most names of a call that is kept.
const NAMES_MAX: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;
    use crate::wire::encode_graph_metadata;

    fn metadata(function: &str, step_id: u64) -> Vec<u8> {
        let call = GraphCall::new(function)
            .with_feed("x", Tensor::dead())
            .with_fetch("y")
            .with_step(step_id);
        let mut bytes = Vec::new();
        encode_graph_metadata(&call, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn the_third_call_of_a_kind_is_read_as_the_first_was() {
        let mut signatures = Signatures::default();
        for step_id in 1..4 {
            let bytes = metadata("f", step_id);
            let mut call = GraphCall::default();
            let feeds = signatures.read(&bytes, 9, &mut call);
            assert_eq!(feeds.is_some(), step_id == 3);
            if let Some(feeds) = feeds {
                let (parsed, names) = decode_graph_metadata(&bytes.into(), 9).unwrap();
                assert_eq!((call, feeds), (parsed, names));
            }
        }
        let mut call = GraphCall::default();
        assert_eq!(signatures.read(&metadata("g", 3), 9, &mut call), None);
        assert_eq!(call, GraphCall::default());
    }

    #[test]
    fn calls_that_are_long_or_not_well_formed_are_not_kept() {
        let mut signatures = Signatures::default();
        let long = metadata(&"f".repeat(BYTES_MAX), 1);
        let mut traced = metadata("f", 1);
        let at = traced.len() - 4;
        traced[at] = 1;
        traced.push(b'?');
        let mut garbage = metadata("f", 1);
        garbage[0] = 9;
        for bytes in [long, traced, garbage, vec![0; GRAPH_TAIL_BYTES], Vec::new()] {
            for _ in 0..3 {
                let mut call = GraphCall::default();
                assert_eq!(signatures.read(&bytes, 9, &mut call), None, "{bytes:?}");
            }
        }
    }
}
