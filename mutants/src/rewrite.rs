//! Puts the mutants of a file into its text, each behind a question whether it is chosen.

use std::ops::Range;

use crate::sites::{Shape, Site};

/// A mutant in the text: one of the changes of a site.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    pub id: usize,
    pub site: &'a Site,
    pub mutated: &'a str,
}

/// Where a byte of the new text comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The byte of the old text.
    Copied(usize),
    /// The text of this mutant.
    Mutant(usize),
}

/// A text with mutants.
#[derive(Debug, Default)]
pub struct Rewritten {
    pub text: String,
    /// Begins of pieces in the text, and the origin of the first byte of each.
    pieces: Vec<(usize, Origin)>,
}

impl Rewritten {
    /// `mutants`: in [`Site::order`].
    pub fn new(text: &str, mutants: &[Placed<'_>]) -> Self {
        let mut rewritten = Self::default();
        rewritten.copy(text, 0..text.len(), mutants);
        rewritten
    }

    pub fn origin(&self, byte: usize) -> Origin {
        let next = self.pieces.partition_point(|(begin, _)| *begin <= byte);
        match self.pieces[next.saturating_sub(1)] {
            (begin, Origin::Copied(old)) => Origin::Copied(old + (byte - begin)),
            (_, mutant) => mutant,
        }
    }

    fn copy(&mut self, text: &str, range: Range<usize>, mut mutants: &[Placed<'_>]) {
        let mut at = range.start;
        while let Some((mutant, others)) = mutants.split_first() {
            let Site { range, shape, .. } = mutant.site;
            let inner = others.partition_point(|other| other.site.range.start < range.end);
            let (inner, others) = others.split_at(inner);
            self.push(Origin::Copied(at), &text[at..range.start]);
            let (before, after) = match shape {
                Shape::Statement => (format!("if !crate::mutants::is({}) {{ ", mutant.id), " }"),
                Shape::Expression => {
                    let condition = format!("crate::mutants::is({})", mutant.id);
                    (format!("(if {condition} {{ {} }} else {{ ", mutant.mutated), " })")
                }
                Shape::Body => {
                    (format!(" if crate::mutants::is({}) {{ {} }}", mutant.id, mutant.mutated), "")
                }
            };
            self.push(Origin::Mutant(mutant.id), &before);
            self.copy(text, range.clone(), inner);
            self.push(Origin::Mutant(mutant.id), after);
            at = range.end;
            mutants = others;
        }
        self.push(Origin::Copied(at), &text[at..range.end]);
    }

    fn push(&mut self, origin: Origin, text: &str) {
        if !text.is_empty() {
            self.pieces.push((self.text.len(), origin));
            self.text.push_str(text);
        }
    }
}
