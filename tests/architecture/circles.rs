//! At most six files of a crate import each other in a circle.
//!
//! A file imports another if a path in it leads to a definition there. Re-exports are followed to
//! the file that defines the name, and code for tests is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, UseTree, Visibility};

/// The most files of a crate that may be in one circle.
const CIRCLE_FILES_MAX: usize = 6;

#[test]
fn circles_of_imports_are_small() {
    let mut faults = Vec::new();
    for (name, source) in super::roots_of_crates() {
        let circle = Crate::read(&source).widest_circle();
        if circle.len() > CIRCLE_FILES_MAX {
            faults.push(format!(
                "{name}: {} files import each other in a circle, {CIRCLE_FILES_MAX} are allowed: {}",
                circle.len(),
                circle.into_iter().collect::<Vec<_>>().join(" ")
            ));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_circle_through_a_re_export_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in [
        ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A;"),
        ("a.rs", "use crate::b; pub struct A(b::B);"),
        (
            "b.rs",
            "pub struct B; impl B { fn f() { vec![super::c::C] } }",
        ),
        ("c.rs", "use crate::A; pub struct C(A);"),
        (
            "d.rs",
            "use crate::A; #[cfg(test)] mod tests { use crate::c::C; } struct D(A);",
        ),
    ] {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    let circle = Crate::read(&folder.path().join("lib.rs")).widest_circle();
    let files: Vec<&str> = circle.iter().map(String::as_str).collect();
    assert_eq!(files, ["a.rs", "b.rs", "c.rs"]);
}

/// Module paths without `crate`, so that the root is empty.
type ModulePath = Vec<String>;

/// The modules of a crate, and the paths that lead from one to another.
struct Crate {
    folder: PathBuf,
    modules: BTreeMap<ModulePath, Module>,
}

#[derive(Default)]
struct Module {
    file: PathBuf,
    defined: BTreeSet<String>,
    /// Names from `use`, with the paths behind them.
    imported: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// What the code of the module names.
    named: BTreeSet<Vec<String>>,
}

impl Crate {
    fn read(root: &Path) -> Self {
        let mut found = Self {
            folder: root.parent().expect("a folder").to_path_buf(),
            modules: BTreeMap::new(),
        };
        let folder = found.folder.clone();
        found.read_file(Vec::new(), root, &folder);
        found
    }

    /// Reads the module `path`, whose child modules lie in `folder`.
    fn read_file(&mut self, path: ModulePath, file: &Path, folder: &Path) {
        let text = std::fs::read_to_string(file).expect("sources are readable");
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{file:?}: {error}"));
        self.read_items(path, file, folder, &parsed.items);
    }

    fn read_items(&mut self, path: ModulePath, file: &Path, folder: &Path, items: &[Item]) {
        let mut module = Module {
            file: file.to_path_buf(),
            ..Module::default()
        };
        for item in items {
            match item {
                Item::Mod(child) if !is_for_tests(&child.attrs) => {
                    self.read_child(&path, file, folder, child);
                }
                Item::Mod(_) => {}
                Item::Fn(item) if is_for_tests(&item.attrs) => {}
                Item::Impl(item) if is_for_tests(&item.attrs) => {}
                Item::Use(item) => module.read_use(item),
                item => {
                    module.defined.extend(name_of(item));
                    Names(&mut module).visit_item(item);
                }
            }
        }
        self.modules.insert(path, module);
    }

    fn read_child(&mut self, path: &ModulePath, file: &Path, folder: &Path, child: &ItemMod) {
        let name = child.ident.to_string();
        let path = [path.as_slice(), std::slice::from_ref(&name)].concat();
        let below = folder.join(&name);
        match &child.content {
            Some((_, items)) => self.read_items(path, file, &below, items),
            None => match path_of(&child.attrs) {
                Some(named) => {
                    let file = file.parent().expect("a folder").join(named);
                    let below = file.parent().expect("a folder").to_path_buf();
                    self.read_file(path, &file, &below);
                }
                None => {
                    let beside = folder.join(format!("{name}.rs"));
                    let file = if beside.exists() {
                        beside
                    } else {
                        below.join("mod.rs")
                    };
                    self.read_file(path, &file, &below);
                }
            },
        }
    }

    /// The files of the widest circle, named from the folder of the crate.
    fn widest_circle(&self) -> BTreeSet<String> {
        let mut imports: BTreeMap<&Path, BTreeSet<&Path>> = BTreeMap::new();
        for (path, module) in &self.modules {
            let imported = imports.entry(&module.file).or_default();
            for named in &module.named {
                imported.extend(self.file_of(path, named, true, DEPTH_MAX));
            }
        }
        let reached: BTreeMap<&Path, BTreeSet<&Path>> = imports
            .keys()
            .map(|file| (*file, reached_from(file, &imports)))
            .collect();
        let circles = reached.iter().map(|(file, others)| {
            let is_mutual = |other: &&&Path| reached[**other].contains(file);
            others.iter().filter(is_mutual).collect::<Vec<_>>()
        });
        let widest = circles.max_by_key(Vec::len).unwrap_or_default();
        widest
            .into_iter()
            .map(|file| file.strip_prefix(&self.folder).unwrap_or(file))
            .map(|file| file.display().to_string())
            .collect()
    }

    /// The file with the definition to which `names` leads from the module `from`, if it is in this
    /// crate.
    ///
    /// A name that a macro defines is in no list. If `is_sure` that it lies where the path leads,
    /// it counts as defined there.
    fn file_of(
        &self,
        from: &[String],
        names: &[String],
        is_sure: bool,
        depth: usize,
    ) -> Option<&Path> {
        let (first, rest) = names.split_first()?;
        let depth = depth.checked_sub(1)?;
        match first.as_str() {
            "crate" => self.file_below(&[], rest, is_sure, depth),
            "self" => self.file_below(from, rest, is_sure, depth),
            "super" => {
                let (_, parent) = from.split_last()?;
                let rest_is_up = rest.first().is_some_and(|name| name == "super");
                let search = if rest_is_up {
                    Self::file_of
                } else {
                    Self::file_below
                };
                search(self, parent, rest, is_sure, depth)
            }
            _ => self.file_below(from, names, false, depth),
        }
    }

    /// The file of `names` within `module`. To name a module alone is no import.
    fn file_below(
        &self,
        module: &[String],
        names: &[String],
        is_sure: bool,
        depth: usize,
    ) -> Option<&Path> {
        let depth = depth.checked_sub(1)?;
        let (first, rest) = names.split_first()?;
        let child = [module, std::slice::from_ref(first)].concat();
        if self.modules.contains_key(&child) {
            return self.file_below(&child, rest, true, depth);
        }
        let found = self.modules.get(module)?;
        if found.defined.contains(first) {
            return Some(&found.file);
        }
        if let Some(import) = found.imported.get(first) {
            let import = [import.as_slice(), rest].concat();
            return self.file_of(module, &import, is_sure, depth);
        }
        let by_glob = found.globs.iter().find_map(|glob| {
            let names = [glob.as_slice(), names].concat();
            self.file_of(module, &names, false, depth)
        });
        by_glob.or_else(|| is_sure.then_some(found.file.as_path()))
    }
}

impl Module {
    fn read_use(&mut self, item: &ItemUse) {
        if is_for_tests(&item.attrs) || item.leading_colon.is_some() {
            return;
        }
        self.read_tree(&item.tree, &mut Vec::new());
        // A trait may be imported for its methods alone, which no path names.
        if matches!(item.vis, Visibility::Inherited) {
            let mut names = Self::default();
            names.read_tree(&item.tree, &mut Vec::new());
            self.named.extend(names.imported.into_values());
        }
    }

    fn read_tree(&mut self, tree: &UseTree, before: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.read_tree(&path.tree, before);
                before.pop();
            }
            UseTree::Name(name) if name.ident == "self" => {
                let module = before.last().expect("self stands behind a path").clone();
                self.imported.insert(module, before.clone());
            }
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                self.imported
                    .insert(name.clone(), [before.as_slice(), &[name]].concat());
            }
            UseTree::Rename(rename) => {
                let name = rename.ident.to_string();
                self.imported.insert(
                    rename.rename.to_string(),
                    [before.as_slice(), &[name]].concat(),
                );
            }
            UseTree::Glob(_) => self.globs.push(before.clone()),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.read_tree(tree, before);
                }
            }
        }
    }
}

/// Collects the paths of an item, and those of macros whose input is a list of expressions.
struct Names<'m>(&'m mut Module);

impl<'ast> Visit<'ast> for Names<'_> {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path
            .segments
            .iter()
            .map(|segment| segment.ident.to_string());
        self.0.named.insert(names.collect());
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.0.read_use(item);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        visit::visit_macro(self, item);
        type List = syn::punctuated::Punctuated<syn::Expr, syn::Token![,]>;
        for expression in item
            .parse_body_with(List::parse_terminated)
            .into_iter()
            .flatten()
        {
            Names(self.0).visit_expr(&expression);
        }
    }
}

/// Files to which imports lead from `file`, one after the other.
fn reached_from<'a>(
    file: &'a Path,
    imports: &BTreeMap<&'a Path, BTreeSet<&'a Path>>,
) -> BTreeSet<&'a Path> {
    let mut reached = BTreeSet::new();
    let mut open = vec![file];
    while let Some(file) = open.pop() {
        for import in imports.get(file).into_iter().flatten() {
            if reached.insert(*import) {
                open.push(import);
            }
        }
    }
    reached
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = match &attribute.meta {
            syn::Meta::List(list) if list.path.is_ident("cfg") => list.tokens.to_string(),
            _ => return false,
        };
        condition.contains("test") && !condition.contains("not (test)")
    })
}

/// The file of a module that says where it lies.
fn path_of(attributes: &[Attribute]) -> Option<String> {
    attributes
        .iter()
        .find_map(|attribute| match &attribute.meta {
            syn::Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
                syn::Expr::Lit(literal) => match &literal.lit {
                    syn::Lit::Str(text) => Some(text.value()),
                    _ => None,
                },
                _ => None,
            },
            _ => None,
        })
}

/// What an item defines, if that has a name and is there outside of tests.
fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Longest chain of re-exports that is followed.
const DEPTH_MAX: usize = 24;
