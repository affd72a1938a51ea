//! Decoding: elimination of missing source symbols (Gauss-Jordan, incrementally).
//!
//! Each equation states that a combination of missing segments equals a symbol. It has a pivot, a missing
//! segment with coefficient 1 that no other equation contains, so an equation without other segments is a
//! recovered segment. An arriving repair symbol is reduced by the existing equations, and an arriving missing
//! segment is subtracted from all.
//!
//! Bounds, whatever the peer sends: [`MAX_EQUATIONS`] equations in [`MAX_MISSING`] segments, the bytes that
//! the caller allows, and [`MAX_ROW_OPERATIONS`] additions of one equation to another per datagram. Beyond
//! them equations are dropped, which costs a retransmission and never recovers wrong bytes.

use super::{MAX_WINDOW, Symbol, coefficient};
use crate::config::SEGMENT_COST;
use crate::core::seq::Sn;
use crate::fec::gf256::{inverse, multiply, padded};

const MAX_EQUATIONS: usize = 64;
/// Most missing segments in all equations together.
const MAX_MISSING: usize = 64;
/// Most additions of one equation to another per datagram.
const MAX_ROW_OPERATIONS: usize = 64;

/// A received repair symbol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RepairSymbol<'a> {
    pub(crate) key: u32,
    /// First segment of the encoding window.
    pub(crate) first: Sn,
    /// Length of the encoding window, 1 to [`MAX_WINDOW`] segments.
    pub(crate) count: u8,
    pub(crate) symbol: &'a [u8],
}

/// State of a source symbol at the receiver.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    Received {
        frg: u8,
        payload: &'a [u8],
    },
    Missing,
    /// Received and delivered, but no longer kept.
    Forgotten,
}

/// Verdict on a repair symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// A new equation; it may have recovered segments.
    Innovative,
    /// A combination of known equations.
    Redundant,
    /// A segment of its window was delivered and is no longer kept, or a bound excludes the symbol.
    Dropped,
    /// Contradicts what is known, or is malformed.
    Invalid,
}

/// A segment that the equations determine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RecoveredSegment {
    pub(crate) sn: Sn,
    /// Key of a repair symbol that was needed: the one that reaches furthest, so it was sent after the
    /// segment.
    pub(crate) key: u32,
    pub(crate) frg: u8,
    pub(crate) payload: Vec<u8>,
}

/// Receive memory of an equation without its symbol, rounded up, bytes.
const ROW_COST: usize = 2 * SEGMENT_COST;

#[derive(Debug)]
struct Row {
    /// Index of the pivot in [`Decoder::missing`].
    pivot: usize,
    /// By index in [`Decoder::missing`].
    coefficients: [u8; MAX_MISSING],
    symbol: Symbol,
    /// The furthest-reaching repair symbol combined here: its key, and the number after its
    /// encoding window.
    furthest: (u32, Sn),
}

impl Row {
    fn coefficient(&self, index: usize) -> u8 {
        self.coefficients.get(index).copied().unwrap_or(0)
    }

    fn add(&mut self, factor: u8, other: &Self) {
        for (to, from) in self.coefficients.iter_mut().zip(other.coefficients) {
            *to ^= multiply(factor, from);
        }
        self.symbol.add(factor, &other.symbol);
        if other.furthest.1.since(self.furthest.1) > 0 {
            self.furthest = other.furthest;
        }
    }

    fn scale(&mut self, factor: u8) {
        for coefficient in &mut self.coefficients {
            *coefficient = multiply(factor, *coefficient);
        }
        self.symbol.scale(factor);
    }

    fn is_solved(&self) -> bool {
        let mut others = self.coefficients.iter().enumerate();
        others.all(|(index, coefficient)| *coefficient == 0 || index == self.pivot)
    }
}

/// The equations of one connection.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// Numbers of the missing segments.
    missing: [Option<Sn>; MAX_MISSING],
    /// Oldest first. Invariant: a pivot has coefficient 1 in its row and 0 in all others, and no row consists
    /// of its pivot alone.
    rows: Vec<Row>,
    /// Longest symbol since the rows were last empty, bytes: elimination may make all others that long.
    longest: usize,
    /// Additions of one row to another left for the current datagram.
    operations: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        let (missing, rows) = ([None; MAX_MISSING], Vec::new());
        Self { missing, rows, longest: 0, operations: MAX_ROW_OPERATIONS }
    }
}

impl Decoder {
    /// Upper bound of the memory of the equations, bytes.
    pub(crate) fn memory(&self) -> usize {
        self.rows.len() * (padded(self.longest) + ROW_COST)
    }

    /// Resets the work allowed for a datagram.
    pub(crate) fn start_datagram(&mut self) {
        self.operations = MAX_ROW_OPERATIONS;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Adds a repair symbol. `source` returns what is known of a segment; `limit` is the memory for all
    /// equations, bytes.
    pub(crate) fn insert<'a>(
        &mut self,
        repair: RepairSymbol<'_>,
        limit: usize,
        source: impl Fn(Sn) -> Source<'a>,
        recovered: &mut Vec<RecoveredSegment>,
    ) -> Inserted {
        if !(1..=MAX_WINDOW).contains(&usize::from(repair.count)) {
            return Inserted::Invalid;
        }
        let window = || (0..repair.count).map(|at| (at, repair.first.advance(at.into())));
        let mut missing = 0;
        for (_, sn) in window() {
            match source(sn) {
                Source::Forgotten => return Inserted::Dropped,
                Source::Missing => missing += 1,
                Source::Received { .. } => {}
            }
        }
        if missing == 0 {
            return Inserted::Redundant;
        }
        let Some(mut symbol) = Symbol::parse(repair.symbol) else { return Inserted::Invalid };
        if !self.make_space(symbol.len(), limit) {
            return Inserted::Dropped;
        }
        let needed =
            || window().map(|(_, sn)| sn).filter(|sn| matches!(source(*sn), Source::Missing));
        self.name_missing(needed);
        let mut coefficients = [0; MAX_MISSING];
        for (position, sn) in window() {
            let factor = coefficient(repair.key, position);
            match source(sn) {
                Source::Received { frg, payload } if symbol.add_source(factor, frg, payload) => {}
                Source::Missing => {
                    let index = self.missing.iter().position(|known| *known == Some(sn));
                    let to = index.and_then(|index| coefficients.get_mut(index));
                    let Some(to) = to else { return Inserted::Dropped };
                    *to = factor;
                }
                Source::Received { .. } | Source::Forgotten => return Inserted::Invalid,
            }
        }
        let furthest = (repair.key, repair.first.advance(repair.count.into()));
        let verdict = self.insert_row(Row { pivot: 0, coefficients, symbol, furthest });
        self.take_solved(recovered);
        verdict
    }

    /// A segment arrived by itself.
    pub(crate) fn on_source(
        &mut self,
        sn: Sn,
        frg: u8,
        payload: &[u8],
        recovered: &mut Vec<RecoveredSegment>,
    ) {
        let Some(index) = self.missing.iter().position(|known| *known == Some(sn)) else { return };
        let mut without_pivot = None;
        let mut at = 0;
        while let Some(row) = self.rows.get_mut(at) {
            let factor = row.coefficient(index);
            let is_valid = factor == 0 || row.symbol.add_source(factor, frg, payload);
            if let Some(coefficient) = row.coefficients.get_mut(index) {
                *coefficient = 0;
            }
            if !is_valid || (factor != 0 && row.pivot == index) {
                let row = self.rows.remove(at);
                without_pivot = without_pivot.or_else(|| is_valid.then_some(row));
            } else {
                at += 1;
            }
        }
        if let Some(slot) = self.missing.get_mut(index) {
            *slot = None;
        }
        if let Some(row) = without_pivot {
            self.insert_row(row);
        }
        self.take_solved(recovered);
    }

    /// Drops the oldest equations until all need at most `limit` bytes.
    pub(crate) fn enforce_limit(&mut self, limit: usize) {
        while !self.rows.is_empty() && self.memory() > limit {
            self.rows.remove(0);
        }
    }

    /// Drops the oldest equations until another one with a payload of `len` bytes fits, even if elimination
    /// makes all as long as the longest. Returns whether it fits at all.
    fn make_space(&mut self, len: usize, limit: usize) -> bool {
        loop {
            let others = if self.rows.is_empty() { 0 } else { self.longest };
            let longest = others.max(len);
            let fits = (padded(longest) + ROW_COST) * (self.rows.len() + 1) <= limit;
            if fits && self.rows.len() < MAX_EQUATIONS {
                self.longest = longest;
                return true;
            }
            if self.rows.is_empty() {
                return false;
            }
            self.rows.remove(0);
        }
    }

    /// Gives each of `needed`, at most [`MAX_WINDOW`], an index in `missing`. Drops all equations if the
    /// indices do not suffice.
    fn name_missing<I: Iterator<Item = Sn>>(&mut self, needed: impl Fn() -> I) {
        let unknown = needed().filter(|sn| !self.missing.contains(&Some(*sn))).count();
        let free = |missing: &[Option<Sn>]| missing.iter().filter(|sn| sn.is_none()).count();
        if free(&self.missing) < unknown {
            // Free the indices of dropped equations.
            for (index, sn) in self.missing.iter_mut().enumerate() {
                let is_used = self.rows.iter().any(|row| row.coefficient(index) != 0);
                *sn = sn.filter(|sn| is_used || needed().any(|needed| needed == *sn));
            }
        }
        if free(&self.missing) < unknown {
            self.rows.clear();
            self.missing = [None; MAX_MISSING];
        }
        for sn in needed() {
            if !self.missing.contains(&Some(sn))
                && let Some(free) = self.missing.iter_mut().find(|sn| sn.is_none())
            {
                *free = Some(sn);
            }
        }
    }

    /// Adds an equation: reduces it by the others, chooses its pivot, and eliminates the pivot from the
    /// others.
    fn insert_row(&mut self, mut row: Row) -> Inserted {
        for other in &self.rows {
            let factor = row.coefficient(other.pivot);
            if factor != 0 {
                let Some(left) = self.operations.checked_sub(1) else { return Inserted::Dropped };
                self.operations = left;
                row.add(factor, other);
            }
        }
        let Some(pivot) = row.coefficients.iter().position(|coefficient| *coefficient != 0) else {
            return if row.symbol.is_zero() { Inserted::Redundant } else { Inserted::Invalid };
        };
        row.pivot = pivot;
        row.scale(inverse(row.coefficient(pivot)));
        let operations = &mut self.operations;
        self.rows.retain_mut(|other| {
            let factor = other.coefficient(pivot);
            if factor == 0 {
                return true;
            }
            let Some(left) = operations.checked_sub(1) else { return false };
            *operations = left;
            other.add(factor, &row);
            true
        });
        self.rows.push(row);
        Inserted::Innovative
    }

    /// Moves the segments that the equations determine to `recovered`.
    fn take_solved(&mut self, recovered: &mut Vec<RecoveredSegment>) {
        let missing = &mut self.missing;
        for row in self.rows.extract_if(.., |row| row.is_solved()) {
            let Some(sn) = missing.get_mut(row.pivot).and_then(Option::take) else { continue };
            let (source, key) = (row.symbol.into_source(), row.furthest.0);
            recovered.extend(source.map(|(frg, payload)| RecoveredSegment {
                sn,
                key,
                frg,
                payload,
            }));
        }
    }

    /// Additions of one row to another since [`Self::start_datagram`].
    #[cfg(test)]
    pub(super) fn row_operations(&self) -> usize {
        MAX_ROW_OPERATIONS - self.operations
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        assert!(self.rows.len() <= MAX_EQUATIONS);
        let memory: usize = self.rows.iter().map(|row| row.symbol.memory() + ROW_COST).sum();
        assert!(memory <= self.memory(), "{memory} bytes");
        for (at, row) in self.rows.iter().enumerate() {
            assert!(!row.is_solved());
            assert!(self.missing.get(row.pivot).is_some_and(Option::is_some));
            for (other_at, other) in self.rows.iter().enumerate() {
                assert_eq!(other.coefficient(row.pivot), u8::from(at == other_at));
            }
            for (sn, coefficient) in self.missing.iter().zip(row.coefficients) {
                assert!(coefficient == 0 || sn.is_some(), "every coefficient is of a segment");
            }
        }
    }
}
