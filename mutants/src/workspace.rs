//! A copy of the workspace with mutants, and the test programs that cargo makes of it.

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::areas::Judge;

const INJECTED: &str = include_str!("injected.rs");
/// Mutants have constants that overflow and indices out of range, which are errors at run time too.
const ALLOWED: &str =
    "#![allow(warnings, arithmetic_overflow, overflowing_literals, unconditional_panic)]\n";

/// A test program.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: String,
    pub path: PathBuf,
    /// The folder of the package, where its tests run.
    pub dir: PathBuf,
}

/// Places that an error of the compiler names, the main one first: file and byte.
pub type Places = Vec<(String, usize)>;

/// The result of a build.
pub enum Build {
    Programs(Vec<Program>),
    /// Each error: its places, and its text.
    Errors(Vec<(Places, String)>),
}

/// A copy, in `target/mutants`, of the workspace in `root`.
pub struct Workspace {
    root: PathBuf,
    copy: PathBuf,
}

impl Workspace {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), copy: root.join("target/mutants/workspace") }
    }

    /// A file for what tests record.
    pub fn record(&self) -> PathBuf {
        self.root.join("target/mutants/reached.txt")
    }

    /// Makes the copy equal to the workspace, apart from the `rewritten` files. Files that are equal keep their
    /// times, so that cargo builds only what differs.
    pub fn update(&self, rewritten: &BTreeMap<String, String>) -> Result<()> {
        let files = files_below(&self.root)?;
        for path in &files {
            let (from, to) = (self.root.join(path), self.copy.join(path));
            let wanted = match rewritten.get(path) {
                Some(text) => text.as_bytes().to_vec(),
                None => fs::read(&from).with_context(|| format!("cannot read {path}"))?,
            };
            if fs::read(&to).is_ok_and(|present| present == wanted) {
                continue;
            }
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder)?;
            }
            // With its permissions.
            fs::copy(&from, &to)?;
            fs::write(&to, wanted).with_context(|| format!("cannot write {}", to.display()))?;
        }
        for path in files_below(&self.copy)?.difference(&files) {
            fs::remove_file(self.copy.join(path))?;
        }
        Ok(())
    }

    /// Builds the test programs of a package, unit tests first.
    pub fn build(&self, judge: &Judge) -> Result<Build> {
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args([
                "test",
                "--no-run",
                "--all-features",
                "--message-format=json",
                "-p",
                judge.package,
            ])
            .args(judge.tests)
            .current_dir(&self.copy)
            // Dependencies are the same, and built already by those who run tests.
            .env("CARGO_TARGET_DIR", self.root.join("target"))
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("cannot run cargo")?;
        let (mut programs, mut errors) = (Vec::new(), Vec::new());
        for line in output.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let message: Value =
                serde_json::from_slice(line).context("cannot read what cargo says")?;
            match message["reason"].as_str() {
                Some("compiler-artifact") => programs.extend(program(&message)),
                Some("compiler-message") if message["message"]["level"] == "error" => {
                    errors.push(error(&message["message"]));
                }
                _ => {}
            }
        }
        if output.status.success() {
            programs.sort_by_key(|(is_library, program)| (!is_library, program.name.clone()));
            return Ok(Build::Programs(programs.into_iter().map(|(_, program)| program).collect()));
        }
        if errors.is_empty() {
            bail!("cargo test --no-run failed in {}", self.copy.display());
        }
        Ok(Build::Errors(errors))
    }
}

/// The root of a crate with what the mutants in it ask.
pub fn with_injected(root: &str) -> String {
    format!("{ALLOWED}{root}{INJECTED}")
}

/// The bytes before the root of a crate.
pub fn prefix_len() -> usize {
    ALLOWED.len()
}

/// Paths of all files below `dir`, relative to it, without build directories and the history.
fn files_below(dir: &Path) -> Result<HashSet<String>> {
    let mut files = HashSet::new();
    let mut folders = vec![String::new()];
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(dir.join(&folder)) else { continue };
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let Some(name) = name.to_str().filter(|name| !matches!(*name, "target" | ".git"))
            else {
                continue;
            };
            let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
            if entry.path().is_dir() {
                folders.push(path);
            } else {
                files.insert(path);
            }
        }
    }
    Ok(files)
}

/// The test program of an artifact, and whether its tests are the unit tests of a library.
fn program(artifact: &Value) -> Option<(bool, Program)> {
    let path = artifact["executable"].as_str().filter(|_| artifact["profile"]["test"] == true)?;
    let kind = artifact["target"]["kind"][0].as_str()?;
    let dir = Path::new(artifact["manifest_path"].as_str()?).parent()?;
    let name = format!("{kind} {}", artifact["target"]["name"].as_str()?);
    Some((kind == "lib", Program { name, path: path.into(), dir: dir.to_owned() }))
}

/// Places and text of an error.
fn error(message: &Value) -> (Places, String) {
    let notes = message["children"].as_array().into_iter().flatten();
    let all = [message].into_iter().chain(notes);
    let spans = all.flat_map(|part| part["spans"].as_array().into_iter().flatten());
    let mut spans: Vec<&Value> = spans.collect();
    spans.sort_by_key(|span| span["is_primary"] != true);
    let place = |span: &&Value| {
        let byte = usize::try_from(span["byte_start"].as_u64()?).ok()?;
        Some((span["file_name"].as_str()?.to_owned(), byte))
    };
    let text = message["rendered"].as_str().unwrap_or_default().to_owned();
    (spans.iter().filter_map(place).collect(), text)
}
