use wildmatch::WildMatch;

/// Which tensors are meant, by name.
#[derive(Debug)]
pub(crate) struct Patterns {
    texts: Vec<String>,
    patterns: Vec<WildMatch>,
}

impl Patterns {
    /// Names with `*` for any letters and `?` for one; none at all means everything.
    pub(crate) fn new(texts: &[String]) -> Self {
        Self {
            texts: texts.to_vec(),
            patterns: texts.iter().map(|text| WildMatch::new(text)).collect(),
        }
    }

    /// Whether this name is spelt out, which may itself hold a `*`.
    pub(crate) fn spell_out(&self, name: &str) -> bool {
        self.texts.iter().any(|text| text == name)
    }

    /// Whether a tensor of this name is meant.
    pub(crate) fn matches(&self, name: &str) -> bool {
        self.patterns.is_empty()
            || self.spell_out(name)
            || self.patterns.iter().any(|pattern| pattern.matches(name))
    }

    /// The patterns that match none of `names`.
    pub(crate) fn without_match<'a>(&'a self, names: &[&str]) -> Vec<&'a str> {
        self.texts
            .iter()
            .zip(&self.patterns)
            .filter(|(text, pattern)| {
                !names
                    .iter()
                    .any(|name| pattern.matches(name) || text.as_str() == *name)
            })
            .map(|(text, _)| text.as_str())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_patterns_select() {
        let patterns = Patterns::new(&["a.*".to_owned(), "b?".to_owned(), "c*".to_owned()]);
        for name in ["a.x", "a.", "b1", "c*"] {
            assert!(patterns.matches(name), "{name}");
        }
        assert!(!patterns.matches("b") && !patterns.matches("xa.x"));
        assert_eq!(patterns.without_match(&["a.x", "b1"]), ["c*"]);
        assert!(Patterns::new(&[]).matches("anything"));
    }
}
