//! Records of TLS 1.3 as they lie on the wire, and what may be wrong with them.

/// Header of a record: type, version, length.
pub(crate) const HEADER_BYTES: usize = 5;

/// Most text of a record.
pub(crate) const TEXT_BYTES_MAX: usize = 16_384;

/// Tag of each of the ciphers.
pub(crate) const TAG_BYTES: usize = 16;

/// What a record has beyond its text: header, the byte that tells its content, tag.
pub(crate) const OVERHEAD_BYTES: usize = HEADER_BYTES + 1 + TAG_BYTES;

/// Length of a record that has as much text as it may.
pub(crate) const FULL_RECORD_BYTES: usize = TEXT_BYTES_MAX + OVERHEAD_BYTES;

/// Longest record that a peer may send: text, padding and tag have so many bytes at most.
pub(crate) const RECORD_BYTES_MAX: usize = HEADER_BYTES + TEXT_BYTES_MAX + 256;

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    Alert,
    Handshake,
    Data,
}

impl Content {
    /// The byte that stands for it.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Alert => 21,
            Self::Handshake => 22,
            Self::Data => 23,
        }
    }

    fn of(code: u8) -> Result<Self, Fault> {
        [Self::Alert, Self::Handshake, Self::Data]
            .into_iter()
            .find(|content| content.code() == code)
            .ok_or(Fault::UnknownContent { code })
    }
}

/// The first byte of a TLS connection, which no star connection begins with.
pub(crate) const FIRST_BYTE: u8 = Content::Handshake.code();

/// What a peer did that ends its link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A record that is not sealed.
    #[error("a record of type {code} came where sealed records (type 23) are allowed alone")]
    NotSealed {
        /// The type in its header.
        code: u8,
    },
    /// A record of another protocol version.
    #[error("a record has version {version:#06x}, TLS 1.3 writes 0x0303")]
    Version {
        /// The version in its header.
        version: u16,
    },
    /// A record that is too long, or too short for its tag.
    #[error("a record announces {bytes} bytes, 17 to 16640 are allowed")]
    Length {
        /// The length in its header.
        bytes: usize,
    },
    /// A record that is not of the peer, not the next one, or changed on its way.
    #[error("record {sequence} does not open: it was forged, changed, repeated or left out")]
    Forged {
        /// Its number under the present key.
        sequence: u64,
    },
    /// A sealed record without a type.
    #[error("a sealed record has padding alone")]
    NoContent,
    /// A sealed record with more text than there may be.
    #[error("a sealed record has {bytes} bytes of text, at most 16384 are allowed")]
    TextLength {
        /// Its text.
        bytes: usize,
    },
    /// A sealed record of a type that has no business here.
    #[error("a sealed record holds type {code}: 21, 22 and 23 are allowed")]
    UnknownContent {
        /// The type.
        code: u8,
    },
    /// A message that is not allowed once the handshake is over.
    #[error(
        "handshake message {kind} came after the handshake, or cut: 4 and 24 are allowed, whole"
    )]
    Message {
        /// The type of the message, 0 if it is not even there.
        kind: u8,
    },
    /// An alert that is not two bytes long.
    #[error("an alert has {bytes} bytes, 2 are allowed")]
    AlertLength {
        /// Its length.
        bytes: usize,
    },
    /// Records that carry nothing, over and over.
    #[error("{IDLE_RECORDS_MAX} records in a row carried no data")]
    Idle,
    /// The peer ended the connection with an alert.
    #[error("the peer ended it with alert {code}{}", alert_name(*code))]
    Alert {
        /// The description of the alert.
        code: u8,
    },
    /// The system ended the stream, the peer did not: something may be missing.
    #[error("the stream ended without a close_notify of the peer: it was cut off")]
    Truncated,
    /// No new keys could be had.
    #[error("no new keys: {message}")]
    NoKeys {
        /// Why.
        message: String,
    },
}

impl Fault {
    /// The alert that tells the peer; none if it has ended the connection itself.
    pub(crate) fn alert(&self) -> Option<u8> {
        match self {
            Self::NotSealed { .. }
            | Self::NoContent
            | Self::UnknownContent { .. }
            | Self::Message { .. }
            | Self::Idle => Some(UNEXPECTED_MESSAGE),
            Self::Version { .. } => Some(PROTOCOL_VERSION),
            Self::Length { .. } | Self::TextLength { .. } => Some(RECORD_OVERFLOW),
            Self::Forged { .. } => Some(BAD_RECORD_MAC),
            Self::AlertLength { .. } => Some(DECODE_ERROR),
            Self::NoKeys { .. } => Some(INTERNAL_ERROR),
            Self::Alert { .. } | Self::Truncated => None,
        }
    }

    /// Whether the peer does not accept our certificate, or misses one.
    pub(crate) fn is_of_certificates(&self) -> bool {
        matches!(self, Self::Alert { code } if is_alert_of_certificates(*code))
    }
}

/// Whether an alert says that its sender does not accept our certificate, or misses one. A decrypt
/// error (51) is told where a signature is not that of the authority whose name it bears.
pub(crate) fn is_alert_of_certificates(code: u8) -> bool {
    matches!(code, 42..=46 | 48 | 49 | 51 | 113 | 116)
}

/// Length of the record that begins with this header.
pub(crate) fn record_bytes(header: &[u8; HEADER_BYTES]) -> Result<usize, Fault> {
    let [code, major, minor, high, low] = *header;
    if code != Content::Data.code() {
        return Err(Fault::NotSealed { code });
    }
    let version = u16::from_be_bytes([major, minor]);
    if version != VERSION {
        return Err(Fault::Version { version });
    }
    let bytes = usize::from(u16::from_be_bytes([high, low]));
    if !(1 + TAG_BYTES..=RECORD_BYTES_MAX - HEADER_BYTES).contains(&bytes) {
        return Err(Fault::Length { bytes });
    }
    Ok(HEADER_BYTES + bytes)
}

/// The header of a sealed record with so many bytes behind it.
pub(crate) fn header(bytes: usize) -> [u8; HEADER_BYTES] {
    let length = u16::try_from(bytes).expect("records have at most 16 KiB and some");
    let ([major, minor], [high, low]) = (VERSION.to_be_bytes(), length.to_be_bytes());
    [Content::Data.code(), major, minor, high, low]
}

/// Divides what was sealed: what it is, and its text without the padding.
pub(crate) fn content(inner: &[u8]) -> Result<(Content, &[u8]), Fault> {
    let end = inner.iter().rposition(|&byte| byte != 0);
    let end = end.ok_or(Fault::NoContent)?;
    if end > TEXT_BYTES_MAX {
        return Err(Fault::TextLength { bytes: end });
    }
    Ok((Content::of(inner[end])?, &inner[..end]))
}

/// Fewest bytes that must still come before `text_bytes` more bytes of text are there, of which
/// `begun` has come as the beginning of a record: no more than a peer sends that fills its records.
pub(crate) fn bytes_to_come(text_bytes: usize, begun: &[u8]) -> Result<usize, Fault> {
    let fresh = |text_bytes: usize| {
        text_bytes.saturating_add(OVERHEAD_BYTES * text_bytes.div_ceil(TEXT_BYTES_MAX))
    };
    let Some(header) = begun.first_chunk() else {
        let bytes = fresh(text_bytes).max(HEADER_BYTES);
        return Ok(bytes - begun.len());
    };
    let record_bytes = record_bytes(header)?;
    // Padding and the tag have no text; that there is none is as little as can come.
    let of_record = (record_bytes - HEADER_BYTES - TAG_BYTES - 1).min(text_bytes);
    Ok(record_bytes.saturating_sub(begun.len()) + fresh(text_bytes - of_record))
}

fn alert_name(code: u8) -> &'static str {
    match code {
        UNEXPECTED_MESSAGE => " (unexpected message)",
        BAD_RECORD_MAC => " (bad record mac)",
        RECORD_OVERFLOW => " (record overflow)",
        40 => " (handshake failure)",
        42 => " (bad certificate)",
        44 => " (certificate revoked)",
        45 => " (certificate expired)",
        46 => " (certificate unknown)",
        48 => " (unknown authority)",
        49 => " (access denied)",
        DECODE_ERROR => " (decode error)",
        51 => " (decrypt error)",
        PROTOCOL_VERSION => " (protocol version)",
        INTERNAL_ERROR => " (internal error)",
        116 => " (certificate required)",
        _ => "",
    }
}

/// The version that each record of TLS 1.3 has for the sake of what stands between.
const VERSION: u16 = 0x0303;

pub(crate) const CLOSE_NOTIFY: u8 = 0;
pub(crate) const USER_CANCELED: u8 = 90;
const UNEXPECTED_MESSAGE: u8 = 10;
const BAD_RECORD_MAC: u8 = 20;
const RECORD_OVERFLOW: u8 = 22;
const DECODE_ERROR: u8 = 50;
const PROTOCOL_VERSION: u8 = 70;
const INTERNAL_ERROR: u8 = 80;

/// Records without data that a peer may send in a row: empty ones, tickets, new keys, warnings.
pub(crate) const IDLE_RECORDS_MAX: u32 = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_how_long_their_record_is() {
        for bytes in [17, 18, 16_640] {
            assert_eq!(record_bytes(&header(bytes)), Ok(5 + bytes));
        }
        for bytes in [0, 1, 16, 16_641, 65_535] {
            let error = record_bytes(&header(bytes));
            assert_eq!(error, Err(Fault::Length { bytes }));
        }
        for code in [0, 20, 21, 22, 24, b'A', 255] {
            let error = record_bytes(&[code, 3, 3, 0, 99]);
            assert_eq!(error, Err(Fault::NotSealed { code }));
        }
        let error = record_bytes(&[23, 3, 4, 0, 99]);
        assert_eq!(error, Err(Fault::Version { version: 0x0304 }));
    }

    #[test]
    fn padding_is_taken_off_and_must_not_be_all() {
        assert_eq!(content(b"ab\x17"), Ok((Content::Data, &b"ab"[..])));
        assert_eq!(content(b"ab\x17\0\0\0"), Ok((Content::Data, &b"ab"[..])));
        assert_eq!(content(b"\x17"), Ok((Content::Data, &b""[..])));
        assert_eq!(content(b"a\0\x16\0"), Ok((Content::Handshake, &b"a\0"[..])));
        assert_eq!(content(b""), Err(Fault::NoContent));
        assert_eq!(content(b"\0\0\0"), Err(Fault::NoContent));
        assert_eq!(content(b"a\x14"), Err(Fault::UnknownContent { code: 20 }));
        let long = [1; TEXT_BYTES_MAX + 2];
        let bytes = TEXT_BYTES_MAX + 1;
        assert_eq!(content(&long), Err(Fault::TextLength { bytes }));
    }

    /// Less than comes would only cost a further read; more would be waited for in vain.
    #[test]
    fn no_more_bytes_are_waited_for_than_a_peer_sends_that_fills_its_records() {
        for text_bytes in [0, 1, 100, 16_383, 16_384, 16_385, 40_000, 1 << 20] {
            let mut stream = Vec::new();
            let mut left = text_bytes;
            while left > 0 || stream.is_empty() {
                let text = left.min(TEXT_BYTES_MAX);
                stream.extend(header(text + 1 + TAG_BYTES));
                stream.resize(stream.len() + text + 1 + TAG_BYTES, 0);
                left -= text;
            }
            for begun in 0..stream.len().min(60) {
                let wanted = bytes_to_come(text_bytes, &stream[..begun]).unwrap();
                let comes = stream.len() - begun;
                let waits_well = wanted == comes || (text_bytes == 0 && wanted <= comes);
                assert!(waits_well && wanted > 0, "{text_bytes}, {begun}: {wanted}");
            }
        }
    }

    #[test]
    fn texts_of_faults_say_what_is_allowed() {
        let text = Fault::Alert { code: 48 }.to_string();
        assert_eq!(text, "the peer ended it with alert 48 (unknown authority)");
        assert!(
            Fault::Length { bytes: 3 }
                .to_string()
                .contains("17 to 16640")
        );
    }
}
