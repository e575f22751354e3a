use std::ffi::c_int;
use std::ptr::NonNull;

use super::device::{PortReport, packet_bytes};
use super::ffi::{self, Functions};
use crate::options::RdmaOptions;

/// The port in use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Port {
    pub(super) number: u8,
    pub(super) mtu: u8,
    pub(super) lid: u16,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    pub(super) is_ethernet: bool,
}

/// All ports of a device, with what is needed to use them.
pub(super) fn ports(
    functions: &'static Functions,
    context: NonNull<ffi::Context>,
) -> Vec<(PortReport, ffi::PortAttributes)> {
    let mut ports = Vec::new();
    for number in 1..=PORTS_MAX {
        let mut attributes = ffi::PortAttributes::default();
        // SAFETY: the context is open and the attributes are ours to be written.
        let refused =
            unsafe { (functions.ibv_query_port)(context.as_ptr(), number, &mut attributes) };
        if refused != 0 {
            break;
        }
        let report = PortReport {
            number,
            is_active: attributes.state == ffi::PORT_ACTIVE,
            is_ethernet: attributes.link_layer == ffi::LINK_LAYER_ETHERNET,
            packet_bytes: packet_bytes(attributes.active_mtu as u8),
        };
        ports.push((report, attributes));
    }
    ports
}

/// The port that is asked for, or the first that is active, with its best global identifier.
///
/// # Errors
/// Why the device will not do.
pub(super) fn choose_port(
    functions: &'static Functions,
    context: NonNull<ffi::Context>,
    name: &str,
    options: &RdmaOptions,
) -> Result<Port, String> {
    let ports = ports(functions, context);
    let chosen = ports.iter().find(|(report, _)| match options.port {
        Some(number) => report.number == number,
        None => report.is_active,
    });
    let Some((report, attributes)) = chosen else {
        return Err(match options.port {
            Some(number) => format!("has no port {number}, only {}", ports.len()),
            None => "no port is active".to_owned(),
        });
    };
    if !report.is_active {
        return Err(format!("port {} is not active", report.number));
    }
    let gid_of = |index: u8| {
        let mut gid = [0; 16];
        // SAFETY: the context is open and the identifier is ours to be written.
        let refused = unsafe {
            (functions.ibv_query_gid)(
                context.as_ptr(),
                report.number,
                c_int::from(index),
                &mut gid,
            )
        };
        (refused == 0 && gid != [0; 16]).then_some(gid)
    };
    let entries = attributes.gid_table_len.clamp(0, GID_ENTRIES_MAX) as u8;
    let gid_index = match options.gid_index {
        Some(index) => Some(index),
        None => (0..entries)
            .filter_map(|index| {
                Some((
                    rank_of(&gid_of(index)?, &kind_of(name, report.number, index)),
                    index,
                ))
            })
            .min()
            .map(|(_, index)| index),
    };
    let gid = gid_index.and_then(gid_of);
    let (gid_index, gid) = match (gid_index, gid) {
        (Some(index), Some(gid)) => (index, gid),
        (Some(index), None) => {
            return Err(format!(
                "port {} has no global identifier {index}",
                report.number
            ));
        }
        (None, _) if report.is_ethernet => {
            return Err(format!(
                "port {} has no global identifier; does its network device have an address?",
                report.number
            ));
        }
        (None, _) => (0, [0; 16]),
    };
    Ok(Port {
        number: report.number,
        mtu: attributes.active_mtu.clamp(1, 5) as u8,
        lid: attributes.lid,
        gid_index,
        gid,
        is_ethernet: report.is_ethernet,
    })
}

/// How the kernel calls the kind of an entry: `RoCE v2`.
fn kind_of(name: &str, port: u8, index: u8) -> String {
    let path = format!("/sys/class/infiniband/{name}/ports/{port}/gid_attrs/types/{index}");
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Smaller is better: RoCE version 2 with an IPv4 address, then version 2 with a global one, then
/// others.
fn rank_of(gid: &[u8; 16], kind: &str) -> u8 {
    let is_v2 = kind.trim() == "RoCE v2";
    let is_ipv4 = gid[..10] == [0; 10] && gid[10..12] == [0xff; 2];
    let is_link_local = gid[0] == 0xfe && gid[1] & 0xc0 == 0x80;
    match (is_v2, is_ipv4, is_link_local) {
        (true, true, _) => 0,
        (true, false, false) => 1,
        (true, false, true) => 2,
        (false, _, _) => 3,
    }
}

/// No device has more.
const PORTS_MAX: u8 = 8;

/// Entries of the table of global identifiers that are looked at.
const GID_ENTRIES_MAX: c_int = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identifier_with_an_ipv4_address_is_taken_first() {
        let mut ipv4 = [0; 16];
        ipv4[10..12].fill(0xff);
        let mut link_local = [0; 16];
        link_local[..2].copy_from_slice(&[0xfe, 0x80]);
        let mut global = [0; 16];
        global[..2].copy_from_slice(&[0xfd, 0x77]);
        let ranks = [
            rank_of(&ipv4, "RoCE v2\n"),
            rank_of(&global, "RoCE v2\n"),
            rank_of(&link_local, "RoCE v2\n"),
            rank_of(&ipv4, "IB/RoCE v1\n"),
        ];
        assert!(ranks.is_sorted() && ranks[0] < ranks[3], "{ranks:?}");
    }
}
