//! Source files of a crate as its modules name them, without what a build for Linux or its tests alone have.

use std::collections::HashMap;
use std::env::consts::{ARCH, OS};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ImplItemConst, Item, ItemConst, Lit, Meta, Token, Type};

/// One file.
pub struct Source {
    /// Relative to the workspace, with slashes.
    pub path: String,
    /// Its module, such as `core::recv::acks`; empty for the root of the crate.
    pub module: String,
    pub text: String,
    pub file: syn::File,
}

/// Reads the crate whose root is the file `crate_root` of the workspace in `dir`.
///
/// # Errors
///
/// A file of a module is missing or does not parse.
pub fn load(dir: &Path, crate_root: &str) -> Result<Vec<Source>> {
    let mut sources = Vec::new();
    let folder = crate_root.rsplit_once('/').map_or("", |(folder, _)| folder);
    read(dir, crate_root.to_owned(), folder, String::new(), &mut sources)?;
    Ok(sources)
}

/// Reads the file at `path` and the modules that it declares, whose files are in `folder`.
fn read(
    dir: &Path,
    path: String,
    folder: &str,
    module: String,
    sources: &mut Vec<Source>,
) -> Result<()> {
    let text =
        fs::read_to_string(dir.join(&path)).with_context(|| format!("cannot read {path}"))?;
    let file = syn::parse_file(&text).with_context(|| format!("cannot parse {path}"))?;
    let mut children = Vec::new();
    for item in &file.items {
        if let Item::Mod(child) = item
            && child.content.is_none()
            && is_compiled(&child.attrs)
        {
            children.push(child.ident.to_string());
        }
    }
    sources.push(Source { path: path.clone(), module: module.clone(), text, file });
    for name in children {
        let child_folder = format!("{folder}/{name}");
        let candidates = [format!("{child_folder}.rs"), format!("{child_folder}/mod.rs")];
        let Some(child) = candidates.into_iter().find(|file| dir.join(file).is_file()) else {
            bail!("{path} declares module {name}, which has no file in {folder}");
        };
        let child_module = if module.is_empty() { name } else { format!("{module}::{name}") };
        read(dir, child, &child_folder, child_module, sources)?;
    }
    Ok(())
}

/// Whether the attributes leave the item in a build with all features on this platform. Code that only tests have
/// does not count.
pub fn is_compiled(attributes: &[Attribute]) -> bool {
    let conditions = attributes.iter().filter(|attribute| attribute.path().is_ident("cfg"));
    conditions.map(Attribute::parse_args::<Meta>).all(|meta| meta.is_ok_and(|meta| holds(&meta)))
}

fn holds(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => {
            let value = |name| path.is_ident(name);
            (cfg!(unix) && value("unix"))
                || (cfg!(windows) && value("windows"))
                || value("debug_assertions")
        }
        Meta::NameValue(pair) => {
            let Expr::Lit(value) = &pair.value else { return false };
            let Lit::Str(value) = &value.lit else { return false };
            let value = value.value();
            if pair.path.is_ident("feature") {
                return value != "_testkit";
            }
            (pair.path.is_ident("target_os") && value == OS)
                || (pair.path.is_ident("target_arch") && value == ARCH)
                || (pair.path.is_ident("target_pointer_width") && value == usize::BITS.to_string())
        }
        Meta::List(list) => {
            let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
            let mut parts = parts.iter().flatten();
            match () {
                () if list.path.is_ident("all") => parts.all(holds),
                () if list.path.is_ident("any") => parts.any(holds),
                () => list.path.is_ident("not") && !parts.any(holds),
            }
        }
    }
}

/// What can be done with the value of a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Integer,
    Float,
    Duration,
}

/// Kinds of the constants of a crate by name. A name with two kinds is left out.
#[derive(Debug, Default)]
pub struct Constants(HashMap<String, Option<Kind>>);

impl Constants {
    pub fn of(sources: &[Source]) -> Self {
        let mut constants = Self::default();
        sources.iter().for_each(|source| constants.visit_file(&source.file));
        constants
    }

    pub fn kind(&self, name: &str) -> Option<Kind> {
        self.0.get(name).copied().flatten()
    }

    fn add(&mut self, name: String, of: &Type) {
        let kind = match of {
            Type::Path(path) => {
                match path.path.segments.last().map(|last| last.ident.to_string()) {
                    Some(name) if is_integer(&name) => Some(Kind::Integer),
                    Some(name) if name == "f64" || name == "f32" => Some(Kind::Float),
                    Some(name) if name == "Duration" => Some(Kind::Duration),
                    _ => None,
                }
            }
            _ => None,
        };
        self.0
            .entry(name)
            .and_modify(|known| *known = known.filter(|_| *known == kind))
            .or_insert(kind);
    }
}

impl<'ast> Visit<'ast> for Constants {
    fn visit_item_const(&mut self, item: &'ast ItemConst) {
        self.add(item.ident.to_string(), &item.ty);
    }

    fn visit_impl_item_const(&mut self, item: &'ast ImplItemConst) {
        self.add(item.ident.to_string(), &item.ty);
        visit::visit_impl_item_const(self, item);
    }
}

pub fn is_integer(name: &str) -> bool {
    let bits = name.strip_prefix(['u', 'i']);
    bits.is_some_and(|bits| matches!(bits, "8" | "16" | "32" | "64" | "128" | "size"))
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn condition_of_an_item_is_judged_for_all_features_without_tests() {
        let is_compiled = |attribute| is_compiled(&[attribute]);
        assert!(is_compiled(parse_quote!(#[inline])));
        assert!(is_compiled(parse_quote!(#[cfg(feature = "tracing")])));
        assert!(is_compiled(parse_quote!(#[cfg(not(loom))])));
        assert!(is_compiled(parse_quote!(#[cfg(not(all(test, loom)))])));
        assert!(!is_compiled(parse_quote!(#[cfg(test)])));
        assert!(!is_compiled(parse_quote!(#[cfg(any(test, feature = "_testkit"))])));
        assert!(!is_compiled(parse_quote!(#[cfg(not(feature = "aws-lc-rs"))])));
        assert!(!is_compiled(parse_quote!(#[cfg(target_os = "plan9")])));
    }

    #[test]
    fn constant_with_two_kinds_has_none() {
        let text = "const A: u32 = 1; const B: u8 = 1; mod m { const B: f64 = 1.0; const C: &str = \"\"; }";
        let file = syn::parse_file(text).unwrap();
        let source =
            Source { path: String::new(), module: String::new(), text: text.to_owned(), file };
        let constants = Constants::of(&[source]);
        assert_eq!(constants.kind("A"), Some(Kind::Integer));
        assert_eq!(constants.kind("B"), None);
        assert_eq!(constants.kind("C"), None);
    }
}
