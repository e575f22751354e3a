//! Whether the gRPC of TensorFlow dials tasks through a proxy for the web, where nothing answers.

/// What a user has to know whose variables send calls to some of these hosts through a proxy. They
/// are read as every gRPC's core reads them that TensorFlow has had.
pub fn warning(
    hosts: impl IntoIterator<Item = impl AsRef<str>>,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let Proxied {
        proxy,
        exempt_name,
        exempt,
        through,
    } = Proxied::find(hosts, variable)?;
    let more = through.len().saturating_sub(HOSTS_TOLD);
    let names = through.get(..HOSTS_TOLD).unwrap_or(&through).join(",");
    Some(match more {
        0 => format!(
            "{proxy} is set, and {exempt_name} does not cover {names}: TensorFlow's gRPC dials \
             through the proxy and may hang; export {exempt_name}={}",
            joined(exempt, &through)
        ),
        _ => format!(
            "{proxy} is set, and {exempt_name} does not cover {names} and {more} more: \
             TensorFlow's gRPC dials them through the proxy and may hang; add them to {exempt_name}"
        ),
    })
}

/// The variable, with its value, that lets processes reach all of these hosts without the proxy
/// that is set; `None` if they do without it.
pub fn exemption(
    hosts: impl IntoIterator<Item = impl AsRef<str>>,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<(&'static str, String)> {
    let found = Proxied::find(hosts, variable)?;
    Some((found.exempt_name, joined(found.exempt, &found.through)))
}

/// Hosts that are dialled through a proxy.
struct Proxied {
    proxy: &'static str,
    exempt_name: &'static str,
    exempt: String,
    through: Vec<String>,
}

impl Proxied {
    fn find(
        hosts: impl IntoIterator<Item = impl AsRef<str>>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<Self> {
        let set = |name: &&&str| variable(name).is_some_and(|value| !value.is_empty());
        let proxy = PROXIES.iter().find(set)?;
        let exempt_name = EXEMPT.iter().find(set).unwrap_or(&EXEMPT[1]);
        let exempt = variable(exempt_name).unwrap_or_default();
        let mut through: Vec<String> = Vec::new();
        for host in hosts {
            let host = host.as_ref();
            if !is_exempt(host, &exempt) && !through.iter().any(|known| known == host) {
                through.push(host.to_owned());
            }
        }
        (!through.is_empty()).then_some(Self {
            proxy,
            exempt_name,
            exempt,
            through,
        })
    }
}

/// The list of hosts with more of them.
fn joined(list: String, more: &[String]) -> String {
    let list = Some(list).filter(|list| !list.is_empty());
    let all: Vec<String> = list.into_iter().chain(more.iter().cloned()).collect();
    all.join(",")
}

/// Whether an entry of the list is the end of the host's name. Ranges of addresses, and entries
/// with blanks, count for none: the gRPC of older TensorFlow knows neither, and a host that is
/// listed twice does no harm.
fn is_exempt(host: &str, exempt: &str) -> bool {
    let name = host.to_ascii_lowercase();
    exempt
        .split(',')
        .any(|entry| !entry.is_empty() && name.ends_with(&entry.to_ascii_lowercase()))
}

/// Variables that name a proxy, in the order in which gRPC's core looks at them.
const PROXIES: [&str; 3] = ["grpc_proxy", "https_proxy", "http_proxy"];

/// Lists of hosts that are dialled without them, in the order in which gRPC's core looks at them.
const EXEMPT: [&str; 2] = ["no_grpc_proxy", "no_proxy"];

/// Most hosts that a text names.
const HOSTS_TOLD: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(hosts: &[&str], set: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        warning(hosts, variable)
    }

    #[test]
    fn hosts_behind_a_proxy_are_named_with_the_cure() {
        let hosts = ["ps-0.train", "10.1.0.5", "ps-0.train", "127.0.0.1"];
        assert_eq!(warned(&hosts, &[("no_proxy", "x")]), None);
        assert_eq!(warned(&hosts, &[("http_proxy", "")]), None);
        let proxy = ("http_proxy", "http://proxy:3128");
        let text = warned(&hosts, &[proxy, ("no_proxy", "localhost,127.0.0.1")]).unwrap();
        assert!(
            text.starts_with("http_proxy is set, and no_proxy does not cover ps-0.train,10.1.0.5:")
        );
        assert!(
            text.ends_with("export no_proxy=localhost,127.0.0.1,ps-0.train,10.1.0.5"),
            "{text}"
        );
        let covered = ("no_proxy", ".TRAIN,10.1.0.5,127.0.0.1");
        assert_eq!(warned(&hosts, &[proxy, covered]), None);
        // Older gRPC knows no ranges, and takes a blank for a part of the name.
        let covered_by_new_ones = ("no_proxy", ".train, 127.0.0.1,10.0.0.0/8");
        let text = warned(&hosts, &[proxy, covered_by_new_ones]).unwrap();
        assert!(
            text.contains("does not cover 10.1.0.5,127.0.0.1:"),
            "{text}"
        );
        let own = [
            proxy,
            covered,
            ("grpc_proxy", "http://other"),
            ("no_grpc_proxy", "10.1.0.5"),
        ];
        let text = warned(&hosts, &own).unwrap();
        assert!(text.starts_with(
            "grpc_proxy is set, and no_grpc_proxy does not cover ps-0.train,127.0.0.1:"
        ));
    }

    #[test]
    fn a_list_is_completed_where_a_proxy_is_set() {
        let exempted = |set: &[(&str, &str)]| {
            let variable = |name: &str| {
                let found = set.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| (*value).to_owned())
            };
            exemption(["127.0.0.1", "ps-0", "127.0.0.1"], variable)
        };
        let proxy = ("http_proxy", "http://proxy:3128");
        let list = |name, value: &str| Some((name, value.to_owned()));
        assert_eq!(exempted(&[]), None);
        assert_eq!(exempted(&[proxy]), list("no_proxy", "127.0.0.1,ps-0"));
        let own = ("no_grpc_proxy", "ps-0");
        assert_eq!(
            exempted(&[proxy, own]),
            list("no_grpc_proxy", "ps-0,127.0.0.1")
        );
        assert_eq!(exempted(&[proxy, ("no_proxy", "ps-0,127.0.0.1")]), None);
    }

    #[test]
    fn many_hosts_are_counted() {
        let hosts: Vec<String> = (0..100).map(|index| format!("worker-{index}")).collect();
        let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let text = warned(&hosts, &[("https_proxy", "http://proxy")]).unwrap();
        assert!(text.contains("worker-7 and 92 more"), "{text}");
    }
}
