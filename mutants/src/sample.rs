//! A random sample of the mutants of some areas, and the files with them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use anyhow::Result;
use fastrand::Rng;

use crate::areas::Area;
use crate::rewrite::{Origin, Placed, Rewritten};
use crate::sites::{self, Shape, Site};
use crate::source::{self, Constants, Source};
use crate::workspace::{Places, prefix_len, with_injected};

/// A mutant of the sample: one change at one place.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// Its number, from 1.
    pub id: usize,
    pub area: Area,
    pub path: String,
    pub module: String,
    /// The line that it begins in: its number, and its text.
    pub line: usize,
    pub line_text: String,
    pub site: Site,
    /// The text of the change.
    pub mutated: String,
}

impl Mutant {
    /// The code that it changes, in one line.
    pub fn before(&self) -> String {
        one_line(&self.site.original)
    }

    /// The code that is there instead, in one line.
    pub fn after(&self) -> String {
        let is_removal = self.site.shape == Shape::Statement;
        if is_removal { "(removed)".to_owned() } else { one_line(&self.mutated) }
    }
}

/// The code of some packages, and a sample of its mutants.
pub struct Sample {
    sources: Vec<Source>,
    /// Roots of the packages.
    roots: BTreeSet<&'static str>,
    pub mutants: Vec<Mutant>,
    /// Number of sites in each area.
    pub sites: Vec<(Area, usize)>,
}

impl Sample {
    /// Draws `count` sites of each area, each as likely as another one, and one of the changes of each.
    pub fn draw(dir: &Path, areas: &[Area], seed: u64, count: usize) -> Result<Self> {
        let roots: BTreeSet<_> = areas.iter().map(|area| area.judge().root).collect();
        let (mut sources, mut all) = (Vec::new(), BTreeMap::<Area, Vec<Mutant>>::new());
        for root in &roots {
            let package = source::load(dir, root)?;
            let constants = Constants::of(&package);
            for source in &package {
                if let Some(area) = areas.iter().find(|area| area.has(&source.path)) {
                    let sites = sites::find(source, &constants);
                    let mutants = sites.into_iter().map(|site| Mutant::new(*area, source, site));
                    all.entry(*area).or_default().extend(mutants);
                }
            }
            sources.extend(package);
        }
        let (mut sites, mut mutants) = (Vec::new(), Vec::new());
        for area in areas {
            let Some(mut drawn) = all.remove(area) else { continue };
            sites.push((*area, drawn.len()));
            // The sample of an area does not depend on the other areas.
            let mut rng = Rng::with_seed(seed);
            rng.shuffle(&mut drawn);
            drawn.truncate(count);
            for mut mutant in drawn {
                mutant.id = mutants.len() + 1;
                mutant.mutated = rng.choice(&mutant.site.mutated).cloned().unwrap_or_default();
                mutants.push(mutant);
            }
        }
        Ok(Self { sources, roots, mutants, sites })
    }

    /// Texts of the files that change. `left_out`: mutants without a place in them.
    pub fn texts(&self, left_out: &HashSet<usize>) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        for source in &self.sources {
            let is_root = self.roots.contains(&*source.path);
            let rewritten = self.rewritten(source, left_out);
            if is_root {
                texts.insert(source.path.clone(), with_injected(&rewritten.text));
            } else if rewritten.text != source.text {
                texts.insert(source.path.clone(), rewritten.text);
            }
        }
        texts
    }

    /// The mutant at the first of these places that is in or around one.
    pub fn blamed(&self, places: &Places, left_out: &HashSet<usize>) -> Option<usize> {
        let mut origins = self.origins(places, left_out);
        origins.find_map(|(path, origin)| match origin {
            Origin::Mutant(id) => Some(id),
            Origin::Copied(byte) => {
                let around = self
                    .placed_in(path, left_out)
                    .filter(|mutant| mutant.site.range.contains(&byte));
                around.min_by_key(|mutant| mutant.site.range.len()).map(|mutant| mutant.id)
            }
        })
    }

    /// All mutants of the functions that these places are in.
    pub fn suspected(&self, places: &Places, left_out: &HashSet<usize>) -> Vec<usize> {
        let mut suspected = Vec::new();
        for (path, origin) in self.origins(places, left_out) {
            let Origin::Copied(byte) = origin else { continue };
            let here = self
                .placed_in(path, left_out)
                .filter(|mutant| mutant.site.function.contains(&byte));
            suspected.extend(here.map(|mutant| mutant.id));
        }
        suspected
    }

    /// Where the text at these places comes from.
    fn origins<'a>(
        &'a self,
        places: &'a Places,
        left_out: &'a HashSet<usize>,
    ) -> impl Iterator<Item = (&'a str, Origin)> {
        places.iter().filter_map(|(path, byte)| {
            let source = self.sources.iter().find(|source| source.path == *path)?;
            let prefix = if self.roots.contains(&**path) { prefix_len() } else { 0 };
            let rewritten = self.rewritten(source, left_out);
            Some((&*source.path, rewritten.origin(byte.checked_sub(prefix)?)))
        })
    }

    fn placed_in(&self, path: &str, left_out: &HashSet<usize>) -> impl Iterator<Item = &Mutant> {
        self.mutants
            .iter()
            .filter(move |mutant| mutant.path == path && !left_out.contains(&mutant.id))
    }

    fn rewritten(&self, source: &Source, left_out: &HashSet<usize>) -> Rewritten {
        let here = self.placed_in(&source.path, left_out);
        let mut placed: Vec<Placed<'_>> = here.map(Mutant::placed).collect();
        placed.sort_by_key(|placed| placed.site.order());
        Rewritten::new(&source.text, &placed)
    }
}

impl Mutant {
    fn new(area: Area, source: &Source, site: Site) -> Self {
        let begin = site.range.start;
        let line_start = source.text[..begin].rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            id: 0,
            area,
            path: source.path.clone(),
            module: source.module.clone(),
            line: source.text[..begin].matches('\n').count() + 1,
            line_text: source.text[line_start..]
                .lines()
                .next()
                .unwrap_or_default()
                .trim()
                .to_owned(),
            site,
            mutated: String::new(),
        }
    }

    fn placed(&self) -> Placed<'_> {
        Placed { id: self.id, site: &self.site, mutated: &self.mutated }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
