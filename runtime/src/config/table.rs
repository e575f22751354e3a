use std::fmt::Write;

use super::{TABLE, Warning};

/// A setting, as the documentation shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Name in the environment.
    pub name: &'static str,
    /// What counts where it is not set; empty: nothing.
    pub default: &'static str,
    /// Unit of the value; empty: none.
    pub unit: &'static str,
    /// Who reads it.
    pub reader: &'static str,
    /// What it does, without a full stop.
    pub meaning: &'static str,
}

/// All settings: those of DeepRec, then ours.
pub static VARIABLES: &[Variable] = TABLE;

/// Why a value cannot be taken.
pub(super) enum Invalid {
    /// It cannot be read: says what can. DeepRec's variables then count as their default.
    Unreadable(String),
    /// It can be read but must not be: says why, and what to write.
    Refused(String),
}

/// Collects problems while settings are taken out of an environment.
pub(super) struct Reader<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
    problems: Vec<String>,
    warnings: Vec<Warning>,
}

/// The settings as two Markdown tables.
pub fn markdown() -> String {
    let (ours, theirs): (Vec<_>, Vec<_>) =
        VARIABLES.iter().partition(|variable| variable.is_ours());
    format!(
        "### Variables of DeepRec\n\n{}\n### Variables of grpcxx\n\n{}",
        rows(&theirs),
        rows(&ours)
    )
}

impl Variable {
    /// Whether it is ours, and so strict.
    pub fn is_ours(&self) -> bool {
        self.name.starts_with(PREFIX)
    }
}

impl<'a> Reader<'a> {
    pub(super) fn new(lookup: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Self {
            lookup,
            problems: Vec::new(),
            warnings: Vec::new(),
        }
    }

    pub(super) fn take<T>(
        &mut self,
        name: &str,
        default: &str,
        parse: fn(&str) -> Result<T, Invalid>,
    ) -> T {
        let is_ours = name.starts_with(PREFIX);
        let text = (self.lookup)(name)
            .filter(|text| !(is_ours && (text.is_empty() || is_service_url(name, text))));
        if let Some(text) = text {
            let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
            match parse(&text) {
                Ok(value) => return value,
                Err(Invalid::Unreadable(wanted)) if !is_ours => self.warnings.push(Warning {
                    message: format!(
                        "{name}=`{shown}` is not {wanted}; the default, `{default}`, counts"
                    ),
                }),
                Err(Invalid::Unreadable(wanted)) => {
                    self.problems
                        .push(format!("{name}=`{shown}` is not {wanted}"));
                }
                Err(Invalid::Refused(reason)) => {
                    self.problems.push(format!("{name}=`{shown}`: {reason}"));
                }
            }
        }
        match parse(default) {
            Ok(value) => value,
            Err(_) => unreachable!("the default of {name} can be read"),
        }
    }

    /// Warns of names that look like settings and are none. Names of others may begin as ours do,
    /// so they end nothing.
    pub(super) fn check_names<N: AsRef<str>>(&mut self, names: impl IntoIterator<Item = N>) {
        let mut unknown: Vec<String> = names
            .into_iter()
            .filter(|name| {
                name.as_ref().starts_with(PREFIX) && !self.is_service_link(name.as_ref())
            })
            .filter_map(|name| check_name(name.as_ref()).err())
            .collect();
        unknown.sort();
        let warnings = unknown.into_iter().map(|message| Warning {
            message: format!("{message}; it has no effect"),
        });
        self.warnings.extend(warnings);
    }

    /// Whether a container platform gave the variable, for a service whose name begins with
    /// `grpcxx`.
    fn is_service_link(&self, name: &str) -> bool {
        let name_of_service = ["_SERVICE_HOST", "_SERVICE_PORT"];
        let parts = ["_PROTO", "_PORT", "_ADDR"];
        let of_port = parts
            .iter()
            .find_map(|part| name.strip_suffix(part))
            .unwrap_or(name);
        let of_port = SERVICE_PROTOCOLS
            .iter()
            .find_map(|protocol| of_port.strip_suffix(protocol));
        let port = of_port.and_then(|of_port| of_port.rsplit_once("_PORT_"));
        name_of_service.iter().any(|end| name.ends_with(end))
            || name.contains("_SERVICE_PORT_")
            || port.is_some_and(|(_, port)| port.parse::<u16>().is_ok())
            || (self.lookup)(name).is_some_and(|text| is_service_url(name, &text))
    }

    pub(super) fn into_parts(self) -> (Vec<String>, Vec<Warning>) {
        (self.problems, self.warnings)
    }
}

/// Checks that there is a setting of this name.
///
/// # Errors
/// There is none: which is the nearest.
pub fn check_name(name: &str) -> Result<(), String> {
    if VARIABLES.iter().any(|variable| variable.name == name) {
        return Ok(());
    }
    let name: String = name.chars().take(SHOWN_CHARS_MAX).collect();
    let nearest = VARIABLES
        .iter()
        .filter(|variable| variable.is_ours())
        .min_by_key(|variable| distance(&name, variable.name))
        .map_or("", |variable| variable.name);
    Err(format!(
        "{name} is not a setting; did you mean {nearest}? docs/configuration.md lists all"
    ))
}

/// Whether a container platform says where a service is: for one called `grpcxx-rdma`, the name is
/// that of one of our settings.
fn is_service_url(name: &str, text: &str) -> bool {
    let scheme = text.split_once("://").map(|(scheme, _)| scheme);
    name.ends_with("_PORT") && scheme.is_some_and(|scheme| ["tcp", "udp", "sctp"].contains(&scheme))
}

fn rows(variables: &[&Variable]) -> String {
    let mut text =
        String::from("| Variable | Default | Unit | Meaning | Read by |\n|---|---|---|---|---|\n");
    for variable in variables {
        let default = match variable.default {
            "" => "unset".to_owned(),
            default => format!("`{default}`"),
        };
        let Variable {
            name,
            unit,
            meaning,
            reader,
            ..
        } = variable;
        let _never_fails = writeln!(
            text,
            "| `{name}` | {default} | {unit} | {meaning} | {reader} |"
        );
    }
    text
}

/// The number of letters to change, add or drop (Levenshtein).
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (index, letter) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = index + 1;
        for (column, other) in right.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[right.len()]
}

/// What the names of our own settings begin with.
const PREFIX: &str = "GRPCXX_";
/// How the names that container platforms give to ports end.
const SERVICE_PROTOCOLS: [&str; 3] = ["_TCP", "_UDP", "_SCTP"];
/// How much of a name or value an error repeats.
const SHOWN_CHARS_MAX: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_those_of_levenshtein() {
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("GRPCXX_HOST", "GRPCXX_HOST"), 0);
    }
}
