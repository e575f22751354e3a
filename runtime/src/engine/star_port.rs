//! Whether a star port may be taken before its task starts, by an outgoing connection of another
//! program: the system gives those any port of a range.

use std::fs;
use std::ops::RangeInclusive;

/// What a user has to know of star ports that the system may give to outgoing connections. `None`
/// if it gives none of them.
pub fn outgoing_ports_warning(ports: &[u16]) -> Option<String> {
    let read = |path| fs::read_to_string(path).ok();
    // A system without these files tells nothing, and nothing is to be said.
    warning(ports, &read(RANGE)?, &read(RESERVED).unwrap_or_default())
}

fn warning(ports: &[u16], range: &str, reserved: &str) -> Option<String> {
    let (first, last) = range.trim().split_once(char::is_whitespace)?;
    let range: RangeInclusive<u16> = first.parse().ok()?..=last.trim().parse().ok()?;
    let is_reserved = |port: u16| {
        reserved.trim().split(',').any(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let ends = first.parse::<u16>().ok().zip(last.parse::<u16>().ok());
            ends.is_some_and(|(first, last)| (first..=last).contains(&port))
        })
    };
    let mut outgoing: Vec<u16> = ports.to_vec();
    outgoing.retain(|port| *port != 0 && range.contains(port) && !is_reserved(*port));
    outgoing.sort_unstable();
    outgoing.dedup();
    if outgoing.is_empty() {
        return None;
    }
    let shown: Vec<String> = outgoing
        .iter()
        .take(SHOWN_MAX)
        .map(u16::to_string)
        .collect();
    let more = match outgoing.len() - shown.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (subject, verb) = match outgoing.len() {
        1 => ("the star port", "lies"),
        _ => ("the star ports", "lie"),
    };
    Some(format!(
        "{subject} {}{more} {verb} among the ports from {} to {}, which the system gives to \
         outgoing connections, so another program may have it when the task starts; choose a port \
         outside of them, or add it to net.ipv4.ip_local_reserved_ports",
        shown.join(", "),
        range.start(),
        range.end()
    ))
}

const RANGE: &str = "/proc/sys/net/ipv4/ip_local_port_range";
const RESERVED: &str = "/proc/sys/net/ipv4/ip_local_reserved_ports";
/// Most ports that a warning names.
const SHOWN_MAX: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    const SYSTEM: &str = "32768\t60999\n";

    #[test]
    fn ports_that_the_system_gives_away_are_told_with_the_cure() {
        let text = warning(&[40_000], SYSTEM, "\n").unwrap();
        assert!(
            text.contains("the star port 40000 lies") && text.contains("32768 to 60999"),
            "{text}"
        );
        assert!(text.contains("net.ipv4.ip_local_reserved_ports"), "{text}");
        let all: Vec<u16> = (50_000..50_006).chain([50_000, 7]).collect();
        let text = warning(&all, SYSTEM, "").unwrap();
        let wanted = "the star ports 50000, 50001, 50002, 50003 and 2 more lie";
        assert!(text.contains(wanted), "{text}");
    }

    #[test]
    fn other_ports_are_not_told() {
        for (port, reserved) in [
            (0, ""),
            (32_767, ""),
            (61_000, ""),
            (40_000, "8080,40000\n"),
            (40_000, "39999-40001"),
        ] {
            assert_eq!(
                warning(&[port], SYSTEM, reserved),
                None,
                "{port} {reserved}"
            );
        }
        for nonsense in ["", "a b", "1", "70000 80000"] {
            assert_eq!(warning(&[40_000], nonsense, ""), None, "{nonsense}");
        }
        assert!(warning(&[40_000], SYSTEM, "40000-x,-,1-2-3").is_some());
    }
}
