//! Text of peers on its way to a terminal, which would obey control characters in it.

use std::borrow::Cow;

/// `text` with everything escaped that a terminal does not show as a letter.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if text.chars().all(is_shown) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        if is_shown(letter) {
            escaped.push(letter);
        } else {
            escaped.extend(letter.escape_debug());
        }
    }
    Cow::Owned(escaped)
}

/// As [`plain`], for texts of several lines.
pub(crate) fn plain_lines(text: &str) -> String {
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(plain).collect();
    lines.join("\n")
}

/// Whether a letter stands for itself. `escape_debug` knows what has no shape of its own, as signs
/// that turn the direction of text have not; quotes and backslashes have.
fn is_shown(letter: char) -> bool {
    letter.is_ascii_graphic() || letter == ' ' || letter.escape_debug().len() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_terminal_would_obey_is_escaped() {
        assert_eq!(plain("größe 層/\"'\\: 1.5 µs"), "größe 層/\"'\\: 1.5 µs");
        assert_eq!(
            plain("a\x1b[2Jb\r\n\u{9b}31m\u{202e}c\0"),
            "a\\u{1b}[2Jb\\r\\n\\u{9b}31m\\u{202e}c\\0"
        );
        assert_eq!(plain_lines("a\nb\x07\n"), "a\nb\\u{7}\n");
    }
}
