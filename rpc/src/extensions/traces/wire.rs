//! The context of a trace: which span of the caller a call belongs to, as it travels with the call.
//!
//! Its text is the header `traceparent` of the W3C's Trace Context. In a graph call it is the span
//! context, which originals leave empty; in calls by path it is the metadata of that name.

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};

/// Which span of which trace a call was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace_id: NonZeroU128,
    span_id: NonZeroU64,
    is_sampled: bool,
}

impl TraceContext {
    /// The name of the metadata that has the context of a call by path.
    pub const METADATA: &'static str = "traceparent";

    /// The context of a span. `None` if one of the two numbers is 0, which no span has.
    pub fn new(trace_id: u128, span_id: u64, is_sampled: bool) -> Option<Self> {
        Some(Self {
            trace_id: NonZeroU128::new(trace_id)?,
            span_id: NonZeroU64::new(span_id)?,
            is_sampled,
        })
    }

    /// Reads the text of a context. What is none is ignored, as the W3C has it: a call is never
    /// refused for its trace.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let fields = text.first_chunk::<TEXT_BYTES>()?;
        let version = hexadecimal(&fields[..2])?;
        let is_later = version > 0 && version < 0xff;
        let ends = text.len() == TEXT_BYTES || (is_later && text[TEXT_BYTES] == b'-');
        let dashes = [fields[2], fields[35], fields[52]];
        if !(version == 0 || is_later) || !ends || dashes != [b'-'; 3] {
            return None;
        }
        let trace_id = hexadecimal(&fields[3..35])?;
        let span_id = u64::try_from(hexadecimal(&fields[36..52])?).ok()?;
        let flags = hexadecimal(&fields[53..])?;
        Self::new(trace_id, span_id, flags & SAMPLED != 0)
    }

    /// The number of the trace, which all of its spans share.
    pub fn trace_id(self) -> u128 {
        self.trace_id.get()
    }

    /// The number of the span.
    pub fn span_id(self) -> u64 {
        self.span_id.get()
    }

    /// Whether whoever made the span records it.
    pub fn is_sampled(self) -> bool {
        self.is_sampled
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.is_sampled);
        write!(
            f,
            "00-{:032x}-{:016x}-{flags:02x}",
            self.trace_id, self.span_id
        )
    }
}

/// The number that digits of lower case say.
fn hexadecimal(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

const TEXT_BYTES: usize = 55;
const SAMPLED: u128 = 1;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &[u8] = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn the_text_of_the_standard_is_read_and_written() {
        let context = TraceContext::parse(TEXT).unwrap();
        assert_eq!(
            context.trace_id(),
            0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c
        );
        assert_eq!(context.span_id(), 0xb7ad_6b71_6920_3331);
        assert!(context.is_sampled());
        assert_eq!(context.to_string().as_bytes(), TEXT);
    }

    #[test]
    fn later_versions_may_say_more() {
        let later = [b"cc", &TEXT[2..], b"-what the future will be like"].concat();
        assert_eq!(TraceContext::parse(&later), TraceContext::parse(TEXT));
        let longer = [TEXT, b"-00"].concat();
        assert_eq!(TraceContext::parse(&longer), None);
    }

    #[test]
    fn what_is_no_context_is_ignored() {
        for (at, byte) in [
            (0, b'f'),
            (1, b'g'),
            (2, b' '),
            (5, b'A'),
            (35, b'0'),
            (52, b'_'),
        ] {
            let mut text = TEXT.to_vec();
            text[at] = byte;
            let is_version = at == 0;
            if is_version {
                text[1] = b'f';
            }
            assert_eq!(TraceContext::parse(&text), None, "byte {at}");
        }
        let mut no_trace = TEXT.to_vec();
        no_trace[3..35].fill(b'0');
        assert_eq!(TraceContext::parse(&no_trace), None);
        let mut no_span = TEXT.to_vec();
        no_span[36..52].fill(b'0');
        assert_eq!(TraceContext::parse(&no_span), None);
    }

    proptest! {
        #[test]
        fn contexts_round_trip(trace in 1u128.., span in 1u64.., sampled: bool) {
            let context = TraceContext::new(trace, span, sampled).unwrap();
            let text = context.to_string();
            prop_assert_eq!(TraceContext::parse(text.as_bytes()), Some(context));
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            if let Some(context) = TraceContext::parse(&bytes) {
                prop_assert!(context.trace_id() != 0 && context.span_id() != 0);
            }
        }
    }
}
