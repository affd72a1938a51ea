//! Finding and rewriting, on small texts and on a program that is compiled and run.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::rewrite::{Origin, Placed, Rewritten};
use crate::sites::{Site, find};
use crate::source::{Constants, Source};
use crate::workspace::with_injected;

/// A program in which each mutant changes what it prints, or how it ends.
const EXAMPLE: &str = include_str!("tests/example.txt");

fn source(text: &str) -> Source {
    let file = syn::parse_file(text).unwrap();
    Source { path: "lib.rs".to_owned(), module: String::new(), text: text.to_owned(), file }
}

fn sites(text: &str) -> Vec<Site> {
    let source = source(text);
    find(&source, &Constants::of(std::slice::from_ref(&source)))
}

/// `before => after` of all mutants.
fn changes(text: &str) -> Vec<String> {
    let change = |site: &Site| {
        let before = site.original.clone();
        site.mutated.iter().map(move |after| format!("{before} => {after}")).collect::<Vec<_>>()
    };
    sites(text).iter().flat_map(change).collect()
}

/// The text with mutant 1, 2, ... at each site: the change at `index`, or the last one.
fn with_all(text: &str, index: usize) -> Rewritten {
    let sites = sites(text);
    let placed = sites.iter().enumerate().map(|(id, site)| {
        let mutated = site.mutated.get(index).or_else(|| site.mutated.last()).unwrap();
        Placed { id: id + 1, site, mutated }
    });
    Rewritten::new(text, &placed.collect::<Vec<_>>())
}

#[test]
fn comparison_becomes_its_neighbour_and_its_contrary() {
    assert_eq!(changes("fn f(a: A) -> A { g(a < b) }"), ["a < b => a <= b", "a < b => a >= b"]);
    assert_eq!(changes("fn f(a: A) -> A { g(a == b) }"), ["a == b => a != b"]);
}

#[test]
fn operand_that_could_be_read_as_a_type_is_put_in_parentheses() {
    assert_eq!(
        changes("fn f(a: A) -> A { g(a as u32 > b) }"),
        ["a as u32 > b => (a as u32) >= b", "a as u32 > b => (a as u32) <= b"]
    );
}

#[test]
fn function_returns_plain_values_of_its_type_at_once() {
    assert_eq!(changes("fn f() { g() }"), ["fn f => return;"]);
    assert_eq!(
        changes("fn f() -> bool { g() }"),
        ["fn f => return true;", "fn f => return false;"]
    );
    assert_eq!(changes("fn f() -> Option<u8> { g() }"), ["fn f => return None;"]);
    assert_eq!(changes("fn f() -> Option<u8> { None }"), [""; 0]);
    assert_eq!(changes("fn f() -> Thing { g() }"), [""; 0]);
    assert_eq!(changes("fn f() {}"), [""; 0]);
}

#[test]
fn statement_is_left_out_if_its_block_has_the_same_type_without_it() {
    assert_eq!(
        changes("fn f(s: &mut S) -> A { s.go(); s.at = b; let c = d; c }"),
        ["s.go(); => ", "s.at = b; => "]
    );
    // The condition is true or false instead.
    assert_eq!(changes("fn f() -> A { if a { return b; } c }"), ["a => true", "a => false"]);
    assert_eq!(
        changes("fn f() -> A { if let Some(a) = b { return a; } c }"),
        ["if let Some(a) = b { return a; } => "]
    );
    assert_eq!(changes("fn f() -> A { trace::lost(a); c }"), [""; 0]);
}

#[test]
fn number_becomes_its_neighbours_zero_and_its_double() {
    assert_eq!(
        changes("fn f() -> A { g(7u8) }"),
        ["7u8 => 0u8", "7u8 => 6u8", "7u8 => 8u8", "7u8 => 14u8"]
    );
    assert_eq!(changes("fn f() -> A { g(0) }"), ["0 => 1"]);
    assert_eq!(changes("fn f() -> A { g(0.0) }"), ["0.0 => 1.0"]);
}

#[test]
fn use_of_a_constant_changes_and_its_definition_does_not() {
    assert_eq!(
        changes("const MAX: u8 = 3; fn f() -> A { g(MAX) }"),
        ["MAX => MAX + 1", "MAX => MAX - 1", "MAX => 0", "MAX => MAX * 2"]
    );
    assert_eq!(
        changes("const WAIT: Duration = s(3); fn f() -> A { g(WAIT) }"),
        ["WAIT => WAIT * 2", "WAIT => WAIT / 2"]
    );
    assert_eq!(changes("const NAME: &str = \"\"; fn f() -> A { g(NAME) }"), [""; 0]);
}

#[test]
fn code_that_is_no_behaviour_stays() {
    let texts = [
        "#[cfg(test)] mod tests { fn f() -> A { g(1) } }",
        "#[cfg(windows)] fn f() -> A { g(1) }",
        "const fn f() -> u8 { 3 + 4 }",
        "static S: [u8; 3] = [1; 3]; enum E { A = 1 }",
        "impl Debug for S { fn fmt(&self) -> bool { g(1) } }",
        "impl fmt::Display for S { fn fmt(&self) -> bool { g(1) } }",
        "fn f() -> A { debug_assert!(a < b); tracing::info!(c = 1); d }",
        "fn f(a: [u8; 3]) -> A { match a { [1, ..] => b, _ => c::<4> } }",
    ];
    for text in texts {
        assert_eq!(changes(text), [""; 0], "{text}");
    }
}

#[test]
fn byte_of_a_rewritten_text_has_its_origin() {
    let text = "fn f(a: A) -> A { g(a < b) }";
    let rewritten = with_all(text, 0);
    assert_eq!(
        rewritten.text,
        "fn f(a: A) -> A { g((if crate::mutants::is(1) { a <= b } else { a < b })) }"
    );
    let origin = |part: &str| rewritten.origin(rewritten.text.find(part).unwrap());
    assert_eq!(origin("g("), Origin::Copied(text.find("g(").unwrap()));
    assert_eq!(origin("a <= b"), Origin::Mutant(1));
    assert_eq!(origin("a < b"), Origin::Copied(text.find("a < b").unwrap()));
    assert_eq!(origin(" })"), Origin::Mutant(1));
    assert_eq!(rewritten.origin(rewritten.text.len() - 1), Origin::Copied(text.len() - 1));
}

/// A compiled program.
struct Compiled {
    path: PathBuf,
    dir: TempDir,
}

impl Compiled {
    fn new(text: &str) -> Self {
        let dir = TempDir::new().unwrap();
        let (input, path) = (dir.path().join("main.rs"), dir.path().join("program"));
        fs::write(&input, text).unwrap();
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let options = ["--edition=2024", "-Cdebuginfo=0", "-Coverflow-checks=on", "-o"];
        let status = Command::new(rustc).args(options).arg(&path).arg(&input).status().unwrap();
        assert!(status.success(), "the program must compile:\n{text}");
        Self { path, dir }
    }

    /// How it ends, and what it prints.
    fn run(&self, chosen: Option<&str>) -> (bool, String) {
        let mut command = Command::new(&self.path);
        command.env_remove("KCPX_MUTANT").envs(chosen.map(|chosen| ("KCPX_MUTANT", chosen)));
        let output = command.output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    }

    fn reached(&self) -> BTreeSet<String> {
        let path: &Path = &self.dir.path().join("reached");
        self.run(Some(&format!("record:{}", path.display())));
        fs::read_to_string(path).unwrap().lines().map(str::to_owned).collect()
    }
}

#[test]
fn every_mutant_of_the_example_changes_its_output_and_no_mutant_leaves_it() {
    let (is_ok, original) = Compiled::new(EXAMPLE).run(None);
    assert!(is_ok);
    let sites = sites(EXAMPLE);
    let most = sites.iter().map(|site| site.mutated.len()).max().unwrap();
    for index in 0..most {
        let compiled = Compiled::new(&with_injected(&with_all(EXAMPLE, index).text));
        assert_eq!(compiled.run(None), (true, original.clone()));
        let all: BTreeSet<String> = (1..=sites.len()).map(|id| format!("{id} main")).collect();
        assert_eq!(compiled.reached(), all);
        for (id, site) in sites.iter().enumerate() {
            let Some(mutated) = site.mutated.get(index) else { continue };
            let result = compiled.run(Some(&(id + 1).to_string()));
            assert_ne!(result, (true, original.clone()), "{} => {mutated}", site.original);
        }
    }
}
