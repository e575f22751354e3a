//! Lists of hosts as Slurm writes them: `node[01-04,7]-ib,login1`.

/// The hosts of a list, in its order; `None` if it is no such list, or too long.
pub(super) fn hosts_of(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for part in parts(list) {
        hosts.extend(expand(part)?);
        if hosts.len() > HOSTS_MAX {
            return None;
        }
    }
    Some(hosts)
}

/// What stands between the commas outside of brackets.
fn parts(list: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    list.split(move |letter| {
        match letter {
            '[' => is_inside = true,
            ']' => is_inside = false,
            _ => {}
        }
        letter == ',' && !is_inside
    })
}

/// The hosts of `node[01-04,7]-ib`.
fn expand(part: &str) -> Option<Vec<String>> {
    let mut hosts = vec![String::new()];
    let mut rest = part;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, after) = after.split_once(']')?;
        let numbers = numbers(ranges)?;
        if hosts.len() * numbers.len() > HOSTS_MAX {
            return None;
        }
        hosts = hosts
            .iter()
            .flat_map(|host| {
                numbers
                    .iter()
                    .map(move |number| format!("{host}{before}{number}"))
            })
            .collect();
        rest = after;
    }
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || "-._".contains(letter);
    for host in &mut hosts {
        host.push_str(rest);
        if host.is_empty() || !host.chars().all(is_name) {
            return None;
        }
    }
    Some(hosts)
}

/// The numbers of `01-04,7`, each as wide as its range is written.
fn numbers(ranges: &str) -> Option<Vec<String>> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let is_digits = text.bytes().all(|byte| byte.is_ascii_digit());
            is_digits.then(|| text.parse::<u32>().ok()).flatten()
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to || (to - from) as usize + numbers.len() >= HOSTS_MAX {
            return None;
        }
        let width = first.len();
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Some(numbers)
}

/// Most hosts of a list.
const HOSTS_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_expanded_in_their_order() {
        for (list, hosts) in [
            ("node1", "node1"),
            ("b,a", "b a"),
            ("n[01-03]", "n01 n02 n03"),
            ("n[9-10]", "n9 n10"),
            ("n[7,9]-ib,x", "n7-ib n9-ib x"),
            ("r[1-2]n[3-4]", "r1n3 r1n4 r2n3 r2n4"),
        ] {
            assert_eq!(hosts_of(list).unwrap().join(" "), hosts, "{list}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for list in [
            "", "n[", "n[]", "n[a-b]", "n[1", "a b", "[,]", "n[2-1]", "n]", "n[[1]]", "a,", "n[+1]",
        ] {
            assert_eq!(hosts_of(list), None, "{list}");
        }
    }

    #[test]
    fn long_lists_take_no_memory() {
        for list in [
            "n[0-4294967295]",
            "n[0-65535]m[0-65535]",
            "n[1-60000],m[1-60000]",
            "n[1-60000,1-60000]",
        ] {
            assert_eq!(hosts_of(list), None, "{list}");
        }
        assert_eq!(hosts_of("n[0-65534]").unwrap().len(), 65_535);
    }
}
