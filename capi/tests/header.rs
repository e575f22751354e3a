//! The header says what the library has: the same functions, with parameters of the same kinds.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Kinds of the parameters, then the kind of the result.
type Signature = (Vec<String>, String);

#[test]
fn the_header_declares_exactly_what_is_exported() {
    let declared = declared(&read("include/grpcxx.h"));
    let mut exported = BTreeMap::new();
    for path in sources() {
        exported.append(&mut exports(
            &std::fs::read_to_string(path).expect("readable"),
        ));
    }
    assert!(
        declared.len() > 80,
        "only {} declarations found",
        declared.len()
    );
    let mut faults = Vec::new();
    for (name, signature) in &declared {
        match exported.get(name) {
            None => faults.push(format!("{name} is declared and not exported")),
            Some(found) if found != signature => {
                faults.push(format!(
                    "{name}: the header has {signature:?}, the library {found:?}"
                ));
            }
            Some(_) => {}
        }
    }
    for name in exported.keys() {
        if !declared.contains_key(name) {
            faults.push(format!("{name} is exported and not declared"));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_header_and_the_library_have_one_version() {
    let header = read("include/grpcxx.h");
    let source = read("src/version.rs");
    let number = |text: &str, before: &str| -> u32 {
        let (_, rest) = text.split_once(before).expect(before);
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().expect("a number")
    };
    assert_eq!(
        number(&header, "#define GRPCXX_ABI_VERSION "),
        number(&source, "ABI_VERSION: u32 = ")
    );
}

#[test]
fn the_header_has_the_reasons_of_the_engine_with_their_meanings() {
    let header = read("include/grpcxx.h");
    let (_, list) = header
        .split_once("typedef enum grpcxx_reason {")
        .expect("the reasons");
    let (list, _) = list.split_once("} grpcxx_reason;").expect("their end");
    let declared: Vec<String> = list
        .lines()
        .filter(|line| line.trim().starts_with("GRPCXX_REASON_"))
        .map(|line| line.trim().trim_end_matches(',').to_owned())
        .collect();
    let known: Vec<String> = grpcxx_rpc::Reason::ALL
        .iter()
        .map(|reason| format!("GRPCXX_REASON_{reason} = {}", *reason as i32))
        .collect();
    assert_eq!(declared, known);
}

#[test]
fn the_header_has_the_types_of_the_engine_with_their_numbers() {
    let header = read("include/grpcxx.h");
    let (_, list) = header
        .split_once("typedef enum grpcxx_dtype {")
        .expect("the types");
    let (list, _) = list.split_once("} grpcxx_dtype;").expect("their end");
    let declared: Vec<String> = list
        .lines()
        .filter(|line| line.trim().starts_with("GRPCXX_"))
        .map(|line| line.trim().trim_end_matches(',').to_owned())
        .collect();
    let known: Vec<String> = grpcxx_rpc::DType::ALL
        .iter()
        .map(|dtype| {
            let name = dtype.name().to_uppercase();
            format!("GRPCXX_{name} = {}", dtype.number())
        })
        .collect();
    assert_eq!(declared, known);
}

#[test]
fn the_header_has_the_operators_of_groups_with_their_numbers() {
    let header = read("include/grpcxx.h");
    let (_, list) = header
        .split_once("typedef enum grpcxx_reduce_op {")
        .expect("the operators");
    let (list, _) = list.split_once("} grpcxx_reduce_op;").expect("their end");
    let declared: Vec<&str> = list
        .lines()
        .map(|line| line.trim().trim_end_matches(','))
        .filter(|line| !line.is_empty())
        .collect();
    let known = grpcxx_collectives::ReduceOp::ALL;
    let known = known.map(|op| format!("GRPCXX_{} = {}", op.name().to_uppercase(), op as i32));
    assert_eq!(declared, known);
}

fn read(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("readable")
}

fn sources() -> Vec<PathBuf> {
    std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))
        .expect("readable")
        .map(|entry| entry.expect("readable").path())
        .collect()
}

/// The functions of the header.
fn declared(header: &str) -> BTreeMap<String, Signature> {
    let mut text = String::new();
    let mut rest = header;
    while let Some((code, comment)) = rest.split_once("/*") {
        text.push_str(code);
        rest = comment.split_once("*/").expect("comments end").1;
    }
    text.push_str(rest);
    let text: String = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect::<Vec<_>>()
        .join(" ");
    let text = text.replace("extern \"C\" {", "");
    text.split(';')
        .filter(|piece| !piece.contains("typedef") && !piece.contains('}'))
        .filter_map(|piece| {
            let (head, parameters) = piece.split_once('(')?;
            let at = head.rfind("grpcxx_")?;
            let parameters = parameters.trim_end().strip_suffix(')')?;
            let kinds = split_outside(parameters)
                .iter()
                .filter(|parameter| parameter.trim() != "void")
                .map(|parameter| c_kind(parameter))
                .collect();
            Some((head[at..].trim().to_owned(), (kinds, c_kind(&head[..at]))))
        })
        .collect()
}

/// The exported functions of a source.
fn exports(source: &str) -> BTreeMap<String, Signature> {
    source
        .split("extern \"C\" fn grpcxx_")
        .skip(1)
        .map(|piece| {
            let (name, rest) = piece.split_once('(').expect("parameters");
            let (parameters, rest) = rest.split_at(closing(rest));
            let result = rest[1..].split('{').next().expect("a body");
            let result = result.trim().strip_prefix("->").unwrap_or("()");
            let kinds = split_outside(parameters)
                .iter()
                .filter(|parameter| !parameter.trim().is_empty())
                .map(|parameter| {
                    let (_, kind) = parameter.split_once(':').expect("a type");
                    rust_kind(kind)
                })
                .collect();
            (format!("grpcxx_{name}"), (kinds, rust_kind(result)))
        })
        .collect()
}

/// Where the parenthesis closes that was opened before `text`.
fn closing(text: &str) -> usize {
    let mut depth = 0;
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 0 => return at,
            ')' => depth -= 1,
            _ => {}
        }
    }
    panic!("no end: {text}");
}

/// Splits at commas outside of parentheses and angle brackets.
fn split_outside(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut depth = 0;
    for character in text.chars() {
        match character {
            '(' | '<' => depth += 1,
            ')' | '>' => depth -= 1,
            _ => {}
        }
        if character == ',' && depth == 0 {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push(character);
        }
    }
    parts.retain(|part| !part.trim().is_empty());
    parts
}

fn c_kind(text: &str) -> String {
    let first = text
        .split_whitespace()
        .find(|word| *word != "const")
        .unwrap_or_default();
    let kind = if text.contains('*') || first.ends_with("_fn") {
        "pointer"
    } else {
        match first {
            "int32_t" => "i32",
            "uint32_t" => "u32",
            "int64_t" => "i64",
            "uint64_t" => "u64",
            "uint16_t" => "u16",
            "size_t" => "usize",
            "bool" => "bool",
            "void" => "()",
            other => panic!("a type that this test does not know: {other} in {text}"),
        }
    };
    kind.to_owned()
}

fn rust_kind(text: &str) -> String {
    let text = text.trim();
    let kind = if text.starts_with('*') || text.starts_with("Option<") {
        "pointer"
    } else {
        text
    };
    kind.to_owned()
}
