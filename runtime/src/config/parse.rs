//! How the text of each setting is read. The messages complete the sentence "X is not …".

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use grpcxx_tls::TlsMode;

use super::table::Invalid;
use super::{
    AddressRanges, CoreLimit, DriverSetting, LogFormat, RdmaSetting, Secret, ShmSetting,
    StoreAccess,
};
use crate::host::HostSetting;
use crate::placement::CpuList;
use crate::policy::BadRange;

type Parsed<T> = Result<T, Invalid>;

pub(super) fn core_limit(text: &str) -> Parsed<CoreLimit> {
    let number = integer(text)?;
    let Ok(cores) = u64::try_from(number) else {
        return Ok(CoreLimit::Unlimited);
    };
    let cores = u16::try_from(cores).unwrap_or(u16::MAX);
    NonZeroU16::new(cores)
        .map(CoreLimit::AtMost)
        .ok_or_else(|| {
            Invalid::Refused(
                "a task needs at least 1 shard; write 1 or more, or a negative number for no limit"
                    .to_owned(),
            )
        })
}

pub(super) fn boolean(text: &str) -> Parsed<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" => Ok(true),
        "false" | "0" => Ok(false),
        _ => Err(unreadable("true, false, 1 or 0")),
    }
}

/// One of our own settings that is on or off. Where a switch may be on, the engine decides what is
/// possible.
pub(super) fn switch(text: &str) -> Parsed<bool> {
    match text.to_ascii_lowercase().as_str() {
        "on" | "true" | "1" | "yes" | "auto" => Ok(true),
        "off" | "false" | "0" | "no" => Ok(false),
        _ => Err(unreadable(
            "on, true, 1, yes or auto, nor off, false, 0 or no",
        )),
    }
}

pub(super) fn connection_timeout(text: &str) -> Parsed<Duration> {
    let number = integer(text)?;
    Ok(Duration::from_millis(u64::try_from(number).unwrap_or(0)))
}

pub(super) fn count(text: &str) -> Parsed<u32> {
    within(text, 0..=u32::MAX)
}

pub(super) fn index(text: &str) -> Parsed<Option<u32>> {
    optional(text, |text| within(text, 0..=u32::MAX))
}

pub(super) fn path(text: &str) -> Parsed<Option<PathBuf>> {
    Ok((!text.is_empty()).then(|| PathBuf::from(text)))
}

pub(super) fn text(text: &str) -> Parsed<Option<String>> {
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

pub(super) fn required_text(text: &str) -> Parsed<String> {
    Ok(text.to_owned())
}

pub(super) fn shards(text: &str) -> Parsed<Option<u16>> {
    optional(text, |text| within(text, 1..=256))
}

pub(super) fn threads(text: &str) -> Parsed<Option<u16>> {
    optional(text, |text| within(text, 1..=1024))
}

pub(super) fn port_offset(text: &str) -> Parsed<u16> {
    within(text, 1..=65_534)
}

pub(super) fn positive_count(text: &str) -> Parsed<u32> {
    within(text, 1..=16_777_216)
}

pub(super) fn optional_count(text: &str) -> Parsed<Option<u32>> {
    optional(text, positive_count)
}

pub(super) fn spin(text: &str) -> Parsed<Duration> {
    within(text, 0..=1_000_000).map(Duration::from_micros)
}

pub(super) fn cpu_latency(text: &str) -> Parsed<Option<Duration>> {
    optional(text, |text| within(text, 0..=1_000_000)).map(|us| us.map(Duration::from_micros))
}

pub(super) fn redial(text: &str) -> Parsed<Duration> {
    within(text, 1..=3_600_000).map(Duration::from_millis)
}

pub(super) fn grace(text: &str) -> Parsed<Duration> {
    within(text, 0..=3_600_000).map(Duration::from_millis)
}

pub(super) fn arena_bytes(text: &str) -> Parsed<Option<u64>> {
    optional(text, |text| bytes(text, MIB..=16 * TIB))
}

pub(super) fn drain_bytes(text: &str) -> Parsed<u64> {
    bytes(text, 0..=16 * TIB)
}

pub(super) fn optional_bytes(text: &str) -> Parsed<Option<u64>> {
    optional(text, |text| bytes(text, 0..=16 * TIB))
}

/// A time in milliseconds, of which 0 means no limit.
pub(super) fn time_limit(text: &str) -> Parsed<Option<Duration>> {
    let ms = within(text, 0..=3_600_000)?;
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

/// As [`time_limit`], up to a week.
pub(super) fn long_time_limit(text: &str) -> Parsed<Option<Duration>> {
    let ms = within(text, 0..=604_800_000)?;
    Ok((ms > 0).then(|| Duration::from_millis(ms)))
}

pub(super) fn percent(text: &str) -> Parsed<u8> {
    within(text, 1..=100)
}

pub(super) fn progress_bytes(text: &str) -> Parsed<u64> {
    bytes(text, 0..=GIB)
}

pub(super) fn shm_ring_bytes(text: &str) -> Parsed<u64> {
    bytes(text, 16 * KIB..=64 * MIB)
}

pub(super) fn shm_lent_bytes(text: &str) -> Parsed<u64> {
    bytes(text, 0..=16 * TIB)
}

pub(super) fn shm_mapped_bytes(text: &str) -> Parsed<u64> {
    bytes(text, 0..=64 * TIB)
}

pub(super) fn rdma_chunk_bytes(text: &str) -> Parsed<u64> {
    bytes(text, 4 * KIB..=GIB)
}

pub(super) fn rdma_message_bytes(text: &str) -> Parsed<u64> {
    bytes(text, 256..=MIB)
}

pub(super) fn rdma_registered_bytes(text: &str) -> Parsed<u64> {
    bytes(text, 0..=16 * TIB)
}

pub(super) fn optional_rdma_chunk_bytes(text: &str) -> Parsed<Option<u64>> {
    optional(text, rdma_chunk_bytes)
}

pub(super) fn optional_rdma_message_bytes(text: &str) -> Parsed<Option<u64>> {
    optional(text, rdma_message_bytes)
}

pub(super) fn optional_rdma_registered_bytes(text: &str) -> Parsed<Option<u64>> {
    optional(text, rdma_registered_bytes)
}

pub(super) fn rdma_port(text: &str) -> Parsed<Option<u8>> {
    optional(text, |text| within(text, 1..=u8::MAX))
}

pub(super) fn rdma_gid_index(text: &str) -> Parsed<Option<u8>> {
    optional(text, |text| within(text, 0..=u8::MAX))
}

pub(super) fn frame_bytes(text: &str) -> Parsed<u64> {
    bytes(text, 64 * KIB..=16 * TIB)
}

pub(super) fn message_bytes(text: &str) -> Parsed<u64> {
    bytes(text, 64 * KIB..=2 * GIB)
}

pub(super) fn rendezvous_bytes(text: &str) -> Parsed<u64> {
    bytes(text, MIB..=16 * TIB)
}

pub(super) fn pool_bytes(text: &str) -> Parsed<u64> {
    bytes(text, 0..=16 * TIB)
}

pub(super) fn cpus(text: &str) -> Parsed<Option<CpuList>> {
    optional(text, |text| text.parse().map_err(Invalid::Refused))
}

pub(super) fn ranges(text: &str) -> Parsed<Option<AddressRanges>> {
    optional(text, |text| {
        text.parse()
            .map_err(|error: BadRange| Invalid::Refused(error.to_string()))
    })
}

pub(super) fn store(text: &str) -> Parsed<Option<StoreAccess>> {
    optional(text, |text| match text {
        "off" => Ok(StoreAccess::Off),
        "read-only" => Ok(StoreAccess::ReadOnly),
        "push" => Ok(StoreAccess::Push),
        "admin" => Ok(StoreAccess::Admin),
        _ => Err(unreadable("off, read-only, push or admin")),
    })
}

/// A text that no error repeats.
pub(super) fn secret(text: &str) -> Parsed<Option<Secret>> {
    Ok((!text.is_empty()).then(|| Secret::new(text)))
}

pub(super) fn driver(text: &str) -> Parsed<DriverSetting> {
    match text {
        "auto" => Ok(DriverSetting::Auto),
        "io_uring" => Ok(DriverSetting::IoUring),
        "epoll" => Ok(DriverSetting::Epoll),
        _ => Err(unreadable("auto, io_uring or epoll")),
    }
}

pub(super) fn tls(text: &str) -> Parsed<TlsMode> {
    text.parse()
        .map_err(|_| unreadable("off, accept, dial or require"))
}

pub(super) fn shm(text: &str) -> Parsed<ShmSetting> {
    Ok(match switch(text)? {
        true => ShmSetting::Auto,
        false => ShmSetting::Off,
    })
}

pub(super) fn rdma(text: &str) -> Parsed<RdmaSetting> {
    Ok(match switch(text)? {
        true => RdmaSetting::Auto,
        false => RdmaSetting::Off,
    })
}

pub(super) fn host(text: &str) -> Parsed<HostSetting> {
    match text {
        "auto" => Ok(HostSetting::Auto),
        "glommio" => Ok(HostSetting::Glommio),
        "native" => Ok(HostSetting::Native),
        _ => Err(unreadable("auto, glommio or native")),
    }
}

pub(super) fn log_format(text: &str) -> Parsed<LogFormat> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(unreadable("text or json")),
    }
}

pub(super) fn ip_address(text: &str) -> Parsed<Option<IpAddr>> {
    optional(text, |text| {
        text.parse()
            .map_err(|_| unreadable("an IP address such as 0.0.0.0, 127.0.0.1 or ::1"))
    })
}

pub(super) fn socket_address(text: &str) -> Parsed<Option<SocketAddr>> {
    optional(text, |text| {
        text.parse()
            .map_err(|_| unreadable("an IP address with a port, such as 127.0.0.1:9100"))
    })
}

fn optional<T>(text: &str, parse: impl Fn(&str) -> Parsed<T>) -> Parsed<Option<T>> {
    if text.is_empty() {
        Ok(None)
    } else {
        parse(text).map(Some)
    }
}

fn integer(text: &str) -> Parsed<i64> {
    text.trim()
        .parse()
        .map_err(|_| unreadable("a whole number"))
}

fn within<T>(text: &str, range: RangeInclusive<T>) -> Parsed<T>
where
    T: FromStr + PartialOrd + std::fmt::Display,
{
    match text.trim().parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(Invalid::Unreadable(format!(
            "a whole number from {} to {}",
            range.start(),
            range.end()
        ))),
    }
}

/// A number of bytes with or without one of the units KiB, MiB, GiB, TiB.
fn bytes(text: &str, range: RangeInclusive<u64>) -> Parsed<u64> {
    let text = text.trim();
    let (digits, unit) = UNITS
        .iter()
        .find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))
        .unwrap_or((text, 1));
    let number: Option<u64> = digits.trim().parse().ok();
    match number.and_then(|number| number.checked_mul(unit)) {
        Some(bytes) if range.contains(&bytes) => Ok(bytes),
        _ => Err(Invalid::Unreadable(format!(
            "a number of bytes from {} to {}, such as 512MiB or 4GiB",
            range.start(),
            range.end()
        ))),
    }
}

fn unreadable(wanted: &str) -> Invalid {
    Invalid::Unreadable(wanted.to_owned())
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
const UNITS: [(&str, u64); 4] = [("KiB", KIB), ("MiB", MIB), ("GiB", GIB), ("TiB", TIB)];
