//! Mutants that were judged before: their change has no effect, or an effect on cost alone.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::sample::Mutant;

/// One verdict of `mutants/equivalent.txt`.
#[derive(Debug, Default)]
struct Entry {
    path: String,
    line: String,
    before: String,
    after: String,
    reason: String,
}

/// The list of verdicts.
#[derive(Debug)]
pub struct Equivalent(Vec<Entry>);

impl Equivalent {
    /// # Errors
    ///
    /// The file is missing, or a block has no such lines.
    pub fn read(path: &Path) -> Result<Self> {
        let text =
            fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(&text)
    }

    /// Blocks of five lines with an empty line between them: the path, the line of the code, what changes after `-`,
    /// what is there instead after `+`, and the reason after `=`. Lines that begin with `#` are comments.
    fn parse(text: &str) -> Result<Self> {
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let blocks = lines.split(|line| line.trim().is_empty()).filter(|block| !block.is_empty());
        let entry = |block: &[&str]| {
            let [path, line, before, after, reason] = block else {
                bail!("a block of equivalent.txt must have 5 lines, got {}: {block:?}", block.len())
            };
            let part = |line: &str, mark: &str| match line.strip_prefix(mark) {
                Some(part) => Ok(part.to_owned()),
                None => bail!("this line of equivalent.txt must begin with `{mark}`: {line:?}"),
            };
            let (before, after, reason) =
                (part(before, "- ")?, part(after, "+ ")?, part(reason, "= ")?);
            Ok(Entry {
                path: (*path).to_owned(),
                line: line.trim().to_owned(),
                before,
                after,
                reason,
            })
        };
        Ok(Self(blocks.map(entry).collect::<Result<_>>()?))
    }

    /// Why the mutant changes nothing that tests could see.
    pub fn reason(&self, mutant: &Mutant) -> Option<&str> {
        let (before, after) = (mutant.before(), mutant.after());
        let same = |entry: &&Entry| {
            entry.path == mutant.path
                && entry.line == mutant.line_text
                && entry.before == before
                && entry.after == after
        };
        self.0.iter().find(same).map(|entry| &*entry.reason)
    }

    /// Places whose line is no longer in the code of `dir`.
    pub fn outdated(&self, dir: &Path) -> Vec<String> {
        let is_outdated = |entry: &&Entry| {
            let text = fs::read_to_string(dir.join(&entry.path)).unwrap_or_default();
            !text.lines().any(|line| line.trim() == entry.line)
        };
        let outdated = self.0.iter().filter(is_outdated);
        outdated.map(|entry| format!("{}: {}", entry.path, entry.line)).collect()
    }
}

/// A block for [`Equivalent::parse`], without its reason.
pub fn block(mutant: &Mutant) -> String {
    format!("{}\n  {}\n- {}\n+ {}", mutant.path, mutant.line_text, mutant.before(), mutant.after())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::areas::Area;
    use crate::sites::{Shape, Site};

    #[test]
    fn mutant_is_known_by_its_line_and_its_change_wherever_the_line_is() {
        let site = Site {
            shape: Shape::Expression,
            range: 100..110,
            function: 0..200,
            original: "a\n    < b".to_owned(),
            mutated: vec!["a <= b".to_owned()],
        };
        let mut mutant = Mutant {
            id: 1,
            area: Area::Core,
            path: "src/core/seq.rs".to_owned(),
            module: "core::seq".to_owned(),
            line: 7,
            line_text: "if a".to_owned(),
            site,
            mutated: "a <= b".to_owned(),
        };
        let list = format!("# comment\n\n{}\n= cost: one more\n", block(&mutant));
        let list = Equivalent::parse(&list).unwrap();
        assert_eq!(list.reason(&mutant), Some("cost: one more"));
        mutant.mutated = "a >= b".to_owned();
        assert_eq!(list.reason(&mutant), None);
    }

    #[test]
    fn list_with_a_bad_block_is_an_error_that_names_it() {
        let error = |text| Equivalent::parse(text).unwrap_err().to_string();
        assert!(error("src/a.rs\n  x\n- x\n= why\n").contains("5 lines, got 4"));
        assert!(error("src/a.rs\n  x\n+ x\n- y\n= why\n").contains("begin with `- `"));
    }

    #[test]
    fn stored_list_parses() {
        let stored = Path::new(env!("CARGO_MANIFEST_DIR")).join("equivalent.txt");
        Equivalent::read(&stored).unwrap();
    }
}
