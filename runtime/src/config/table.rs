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
        let text = (self.lookup)(name).filter(|text| !(is_ours && text.is_empty()));
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

    pub(super) fn check_names<N: AsRef<str>>(&mut self, names: impl IntoIterator<Item = N>) {
        let mut unknown: Vec<_> = names
            .into_iter()
            .filter(|name| {
                let name = name.as_ref();
                name.starts_with(PREFIX) && VARIABLES.iter().all(|variable| variable.name != name)
            })
            .collect();
        unknown.sort_by(|a, b| a.as_ref().cmp(b.as_ref()));
        for name in unknown {
            let name: String = name.as_ref().chars().take(SHOWN_CHARS_MAX).collect();
            let nearest = VARIABLES
                .iter()
                .filter(|variable| variable.is_ours())
                .min_by_key(|variable| distance(&name, variable.name))
                .map_or("", |variable| variable.name);
            self.problems.push(format!(
                "{name} is not a setting; did you mean {nearest}? docs/configuration.md lists all"
            ));
        }
    }

    pub(super) fn into_parts(self) -> (Vec<String>, Vec<Warning>) {
        (self.problems, self.warnings)
    }
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
