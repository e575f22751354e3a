//! Rendezvous keys: their text, and their parts.

use std::fmt;

use crate::{Code, Status, Text};

/// A rendezvous key: which tensor goes from which device to which.
///
/// The text form is `source;incarnation;target;edge;frame:iteration`, where devices are full names
/// as in `/job:ps/replica:0/task:0/device:CPU:0` and the incarnation is that of the source device
/// in 16 lower-case hex digits. The value borrows from the text it was parsed from.
///
/// ```
/// use grpcxx_rpc::RendezvousKey;
///
/// let text = "/job:ps/replica:0/task:0/device:CPU:0;0123456789abcdef;\
///             /job:worker/replica:0/task:0/device:CPU:0;edge_12_var_read;0:0";
/// let key = RendezvousKey::parse(text)?;
/// assert_eq!(key.edge_name(), "edge_12_var_read");
/// assert_eq!(key.to_string(), text);
/// # Ok::<(), grpcxx_rpc::Status>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RendezvousKey<'a> {
    source_device: &'a str,
    source_incarnation: u64,
    target_device: &'a str,
    edge_name: &'a str,
    frame_id: u64,
    iteration: i64,
}

impl<'a> RendezvousKey<'a> {
    /// A key of the top frame, `0:0`.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if a device is no full device name, or the edge name is empty or has a
    /// `;`.
    pub fn new(
        source_device: &'a str,
        source_incarnation: u64,
        target_device: &'a str,
        edge_name: &'a str,
    ) -> Result<Self, Status> {
        let key = Self {
            source_device,
            source_incarnation,
            target_device,
            edge_name,
            frame_id: 0,
            iteration: 0,
        };
        match key.fault() {
            None => Ok(key),
            Some(fault) => Err(invalid(&key, fault)),
        }
    }

    /// Reads a key.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with a text that begins `Invalid  rendezvous key: ` (two spaces, as
    /// unmodified peers write it), then the key, then what is wrong with it.
    pub fn parse(text: &'a str) -> Result<Self, Status> {
        Self::split(text).map_err(|fault| invalid(&text, fault))
    }

    /// This tensor in another frame and iteration of a loop.
    #[must_use]
    pub const fn in_frame(mut self, frame_id: u64, iteration: i64) -> Self {
        self.frame_id = frame_id;
        self.iteration = iteration;
        self
    }

    /// The device that produces the tensor.
    pub const fn source_device(&self) -> &'a str {
        self.source_device
    }

    /// The incarnation that the asker has seen of the source device.
    pub const fn source_incarnation(&self) -> u64 {
        self.source_incarnation
    }

    /// The device that wants the tensor.
    pub const fn target_device(&self) -> &'a str {
        self.target_device
    }

    /// The tensor's name within the step.
    pub const fn edge_name(&self) -> &'a str {
        self.edge_name
    }

    /// The control-flow frame, 0 at the top.
    pub const fn frame_id(&self) -> u64 {
        self.frame_id
    }

    /// The iteration within the frame.
    pub const fn iteration(&self) -> i64 {
        self.iteration
    }

    /// The text form, to send or to keep.
    pub fn to_text(&self) -> Text {
        Text::from(self.to_string())
    }

    fn split(text: &'a str) -> Result<Self, &'static str> {
        let (source_device, rest) = split_at(text, b';').ok_or(PARTS_FAULT)?;
        let (incarnation, rest) = split_at(rest, b';').ok_or(PARTS_FAULT)?;
        let (target_device, rest) = split_at(rest, b';').ok_or(PARTS_FAULT)?;
        let (edge_name, frame_and_iteration) = split_at(rest, b';').ok_or(PARTS_FAULT)?;
        if frame_and_iteration.as_bytes().contains(&b';') {
            return Err(PARTS_FAULT);
        }
        let source_incarnation = parse_incarnation(incarnation).ok_or(INCARNATION_FAULT)?;
        let (frame, iteration) = split_at(frame_and_iteration, b':').ok_or(FRAME_FAULT)?;
        if !starts_with_digit(frame) || iteration.as_bytes().first() == Some(&b'+') {
            return Err(FRAME_FAULT);
        }
        let key = Self {
            source_device,
            source_incarnation,
            target_device,
            edge_name,
            frame_id: frame.parse().map_err(|_| FRAME_FAULT)?,
            iteration: iteration.parse().map_err(|_| FRAME_FAULT)?,
        };
        match key.fault() {
            None => Ok(key),
            Some(fault) => Err(fault),
        }
    }

    fn fault(&self) -> Option<&'static str> {
        if !is_full_device_name(self.source_device) {
            Some(SOURCE_FAULT)
        } else if !is_full_device_name(self.target_device) {
            Some(TARGET_FAULT)
        } else if self.edge_name.is_empty() || self.edge_name.as_bytes().contains(&b';') {
            Some(EDGE_FAULT)
        } else {
            None
        }
    }
}

impl fmt::Display for RendezvousKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{};{:016x};{};{};{}:{}",
            self.source_device,
            self.source_incarnation,
            self.target_device,
            self.edge_name,
            self.frame_id,
            self.iteration
        )
    }
}

/// Whether this is a name like `/job:ps/replica:0/task:0/device:CPU:0`.
///
/// Read byte by byte, in one pass: each key that was not seen before is asked twice.
pub(crate) fn is_full_device_name(name: &str) -> bool {
    let rest = Some(name.as_bytes())
        .and_then(|rest| identifier_behind(b"/job:", rest))
        .and_then(|rest| index_behind(b"/replica:", rest))
        .and_then(|rest| index_behind(b"/task:", rest))
        .and_then(|rest| identifier_behind(b"/device:", rest))
        .and_then(|rest| index_behind(b":", rest));
    rest.is_some_and(<[u8]>::is_empty)
}

/// What follows `prefix` and a letter with letters, digits and underscores behind it.
fn identifier_behind<'a>(prefix: &[u8], text: &'a [u8]) -> Option<&'a [u8]> {
    let text = text.strip_prefix(prefix)?;
    if !text.first()?.is_ascii_alphabetic() {
        return None;
    }
    let is_other = |byte: &u8| !byte.is_ascii_alphanumeric() && *byte != b'_';
    let end = text.iter().position(is_other).unwrap_or(text.len());
    Some(&text[end..])
}

/// What follows `prefix` and a number of 31 bits.
fn index_behind<'a>(prefix: &[u8], text: &'a [u8]) -> Option<&'a [u8]> {
    let text = text.strip_prefix(prefix)?;
    let is_other = |byte: &u8| !byte.is_ascii_digit();
    let end = text.iter().position(is_other).unwrap_or(text.len());
    let add = |value: u32, digit: &u8| {
        let value = value
            .checked_mul(10)?
            .checked_add(u32::from(digit - b'0'))?;
        i32::try_from(value).is_ok().then_some(value)
    };
    text[..end].first()?;
    text[..end].iter().try_fold(0, add)?;
    Some(&text[end..])
}

/// The text before the first `separator`, which is ASCII, and the text behind it.
fn split_at(text: &str, separator: u8) -> Option<(&str, &str)> {
    let at = text.bytes().position(|byte| byte == separator)?;
    Some((&text[..at], &text[at + 1..]))
}

fn starts_with_digit(text: &str) -> bool {
    text.as_bytes().first().is_some_and(u8::is_ascii_digit)
}

fn parse_incarnation(text: &str) -> Option<u64> {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if text.len() != 16 || !text.bytes().all(is_digit) {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

fn invalid(key: &dyn fmt::Display, fault: &str) -> Status {
    let key = key.to_string();
    let shown: &str = match key.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => &key[..end],
        None => &key,
    };
    Status::new(
        Code::InvalidArgument,
        format!("Invalid  rendezvous key: {shown} ({fault})"),
    )
}

/// So much of a bad key is repeated in the error text.
const SHOWN_CHARS_MAX: usize = 512;

const PARTS_FAULT: &str =
    "expected exactly five parts, source;incarnation;target;edge;frame:iteration";
const SOURCE_FAULT: &str =
    "the source device is no full name like /job:ps/replica:0/task:0/device:CPU:0";
const TARGET_FAULT: &str =
    "the target device is no full name like /job:worker/replica:0/task:0/device:CPU:0";
const INCARNATION_FAULT: &str =
    "the incarnation must be the source device's, in exactly 16 lower-case hex digits";
const EDGE_FAULT: &str = "the edge name must not be empty nor contain ';'";
const FRAME_FAULT: &str = "the last part must be frame:iteration in decimal, as in 0:0";

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PS: &str = "/job:ps/replica:0/task:0/device:CPU:0";
    const WORKER: &str = "/job:worker/replica:0/task:11/device:XLA_CPU:1";

    #[test]
    fn a_key_survives_its_text() {
        let key = RendezvousKey::new(PS, 0xab, WORKER, "edge_12_var_read").unwrap();
        let text = format!("{PS};00000000000000ab;{WORKER};edge_12_var_read;0:0");
        assert_eq!(key.to_string(), text);
        assert_eq!(RendezvousKey::parse(&text).unwrap(), key);

        let looped = key.in_frame(u64::MAX, -1);
        let text = looped.to_text();
        assert_eq!(RendezvousKey::parse(&text).unwrap(), looped);
    }

    #[test]
    fn checklist_26_bad_keys_are_invalid_arguments_with_two_spaces() {
        let good = format!("{PS};0123456789abcdef;{WORKER};e;0:0");
        assert!(RendezvousKey::parse(&good).is_ok());
        let bad = [
            String::new(),
            ";;;;".to_owned(),
            format!("{good};"),
            format!("{PS};0123456789abcdef;{WORKER};e"),
            format!("{PS};0123456789abcde;{WORKER};e;0:0"),
            format!("{PS};0123456789ABCDEF;{WORKER};e;0:0"),
            format!("{PS};+123456789abcdef;{WORKER};e;0:0"),
            format!("{PS};0123456789abcdef;{WORKER};;0:0"),
            format!("{PS};0123456789abcdef;{WORKER};e;0"),
            format!("{PS};0123456789abcdef;{WORKER};e;+0:0"),
            format!("{PS};0123456789abcdef;{WORKER};e;0:+0"),
            format!("{PS};0123456789abcdef;{WORKER};e;99999999999999999999:0"),
            format!("CPU:0;0123456789abcdef;{WORKER};e;0:0"),
            format!("{PS}/x;0123456789abcdef;{WORKER};e;0:0"),
            format!("{PS};0123456789abcdef;/job:worker;e;0:0"),
        ];
        for text in bad {
            let status = RendezvousKey::parse(&text).unwrap_err();
            assert_eq!(status.code, Code::InvalidArgument, "{text}");
            let start = format!("Invalid  rendezvous key: {text} (");
            assert!(status.message.starts_with(&start), "{}", status.message);
        }
        assert!(RendezvousKey::new(PS, 0, WORKER, "a;b").is_err());
        assert!(RendezvousKey::new("ps", 0, WORKER, "a").is_err());
    }

    #[test]
    fn the_error_for_a_huge_key_is_short() {
        let status = RendezvousKey::parse(&"ä".repeat(100_000)).unwrap_err();
        assert!(status.message.len() < 4 * SHOWN_CHARS_MAX);
    }

    /// Whether a name is that of a device, written down as the rule says it.
    fn is_full_device_name_by_parts(name: &str) -> bool {
        let is_index = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_digit()) && text.parse::<i32>().is_ok()
        };
        let is_identifier = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        };
        let parts: Vec<&str> = name.split('/').collect();
        let [before, job, replica, task, device] = parts[..] else {
            return false;
        };
        before.is_empty()
            && job.strip_prefix("job:").is_some_and(is_identifier)
            && replica.strip_prefix("replica:").is_some_and(is_index)
            && task.strip_prefix("task:").is_some_and(is_index)
            && device.strip_prefix("device:").is_some_and(|device| {
                device
                    .split_once(':')
                    .is_some_and(|(kind, index)| is_identifier(kind) && is_index(index))
            })
    }

    proptest! {
        #[test]
        fn device_names_are_what_the_rule_says(
            name in "/?(/job:[a-z_0-9]{0,3}|job:x)(/replica:[0-9a]{0,11}|/)\
                (/task:(0|2147483647|2147483648|1x|))(/device:[A-Z_0-9:]{0,6}|)[/0-9]{0,2}"
        ) {
            let by_parts = is_full_device_name_by_parts(&name);
            prop_assert_eq!(is_full_device_name(&name), by_parts, "{}", name);
        }

        #[test]
        fn what_parses_prints_as_a_key_that_parses_the_same(
            text in "(/job:[a-z]{1,2}/replica:[0-9]/task:[0-9]/device:[A-Z]:[0-9];[0-9a-f]{16};|\
                [/:;a0-9]{0,9}){1,3}[a-z;]{0,3}[0-9:;-]{0,6}"
        ) {
            if let Ok(key) = RendezvousKey::parse(&text) {
                let printed = key.to_string();
                prop_assert_eq!(RendezvousKey::parse(&printed).unwrap(), key);
            }
        }
    }
}
