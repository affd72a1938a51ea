//! Detection of the peer's FEC layout from flags and seqids (kcp-go `autoTune`).
//!
//! Keeps the flag of each seqid for the last few thousand. A group begins where data follows
//! parity, and its data ends where parity follows data; the distance of two such edges is the sum
//! of the shard counts, or a multiple. A guess is adopted once every position of a group has been
//! seen with its expected flag, searching backwards from the latest packet, before any
//! contradiction. Loss delays adoption; a forged packet does until it leaves the window.
//!
//! Work is bounded: each packet pays for a few samples, and a guess waits until its cost is saved
//! up.

use std::time::{Duration, Instant};

use super::config::{FecConfig, Places, to_u8};

/// Seqids remembered: sixteen of the largest groups.
const WINDOW: u32 = 4_096;
const WORDS: usize = WINDOW as usize / 64;
/// Edges of each kind remembered. Guesses are the distances between them and their simple
/// fractions, since edges in between may have been lost or not sent.
const EDGES: usize = 4;
/// Samples for each position that confirm a fraction. Every distance is a multiple of the peer's
/// own sum, and no other multiple agrees with its packets. A fraction of the sum agrees if all
/// packets that contradict it were lost.
const FRACTION: u32 = 16;
/// Samples examined at most for each packet, and savings limit.
const INCOME: u32 = 64;
const SAVINGS: u32 = 4 * WINDOW;
/// Packets that must contradict a confirmed layout: a single packet may be stale or forged.
const CONTRADICTIONS: u32 = 2;
/// Agreeing packets that one contradicting packet outweighs: most packets agree with most layouts.
const CONTRADICTION_WEIGHT: u32 = 8;
/// Least time between two layout changes.
const MIN_CHANGE_INTERVAL: Duration = Duration::from_secs(1);
/// Far shards in excess of near ones that prove a jump.
const MAJORITY: u32 = 16;
/// The same if no near shard has arrived for [`PAUSE`].
const AFTER_PAUSE: u32 = 2;
const PAUSE: Duration = Duration::from_secs(1);
/// Longest time between two far shards.
const MAX_GAP: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Autotune {
    /// One bit for each seqid: received, and parity.
    seen: Box<[u64; WORDS]>,
    parity: Box<[u64; WORDS]>,
    /// The highest seqid in the window.
    top: Option<u32>,
    /// Seqids of the first packets after an edge: to data, and to parity.
    starts: Edges,
    ends: Edges,
    /// A sum without contradiction that too few packets confirm.
    guess: Option<Guess>,
    savings: u32,
    /// Packets that contradicted the current layout.
    contradictions: u32,
    /// Packets that agreed with the current layout, less contradictions times
    /// [`CONTRADICTION_WEIGHT`]. Two groups of them confirm it for good.
    agreements: u32,
    /// Seqids that came with both flags.
    conflicts: u32,
    jump: JumpDetector,
    changed: Option<Instant>,
}

impl Autotune {
    pub(super) fn new() -> Self {
        Self {
            seen: Box::new([0; WORDS]),
            parity: Box::new([0; WORDS]),
            top: None,
            starts: Edges::default(),
            ends: Edges::default(),
            guess: None,
            savings: SAVINGS,
            contradictions: 0,
            agreements: 0,
            conflicts: 0,
            jump: JumpDetector::default(),
            changed: None,
        }
    }

    /// Samples one packet. Returns the peer's layout if it is found to differ from the current one.
    pub(super) fn sample(
        &mut self,
        now: Instant,
        seqid: u32,
        parity: bool,
        current: Option<FecConfig>,
    ) -> Option<FecConfig> {
        self.savings = (self.savings + INCOME).min(SAVINGS);
        if !self.note(now, seqid, parity) {
            return None;
        }
        let agrees = current.is_none_or(|current| current.is_parity(seqid) == parity);
        if let Some(current) = current {
            self.contradictions = self.contradictions.saturating_add(u32::from(!agrees));
            if self.agreements < 2 * current.sum() {
                let change = if agrees { 1 } else { -CONTRADICTION_WEIGHT.cast_signed() };
                self.agreements = self.agreements.saturating_add_signed(change);
            }
        }
        let before = self.is_parity_at(seqid.wrapping_sub(1)).is_some_and(|other| other != parity);
        let after = self.is_parity_at(seqid.wrapping_add(1)).is_some_and(|other| other != parity);
        let rests =
            self.changed.is_some_and(|at| now.saturating_duration_since(at) < MIN_CHANGE_INTERVAL);
        let content = current.is_some() && self.contradictions == 0;
        let mut found = None;
        if let Some(guess) = &mut self.guess {
            guess.wait = guess.wait.saturating_sub(1);
            let contradicted = guess.wait > WINDOW && !agrees;
            if (guess.wait == 0 || contradicted) && !rests {
                let sum = guess.sum;
                self.guess = None;
                found = self.verify(sum, 2 * sum, seqid, current);
            }
        }
        let mut tried = Places::default();
        for (edge, is_start, is_there) in
            [(seqid, !parity, before), (seqid.wrapping_add(1), parity, after)]
        {
            if !is_there {
                continue;
            }
            let edges = if is_start { &mut self.starts } else { &mut self.ends };
            let earlier = *edges;
            edges.push(edge);
            if rests || content || found.is_some() {
                continue;
            }
            for (sum, part) in earlier.sums(edge) {
                let fits = !is_start || edge.is_multiple_of(sum);
                if fits && found.is_none() && tried.insert(to_u8(sum - 1)) {
                    let least = if part == 1 { 2 * sum } else { FRACTION * sum };
                    found = self.verify(sum, least, seqid, current);
                }
            }
        }
        if found.is_some() {
            (self.changed, self.agreements) = (Some(now), 0);
            self.contradictions = 0;
        }
        found
    }

    /// Records the packet. Returns false for a duplicate, and for a packet far outside the window.
    fn note(&mut self, now: Instant, seqid: u32, parity: bool) -> bool {
        let Some(top) = self.top else {
            self.restart(seqid, parity);
            return true;
        };
        let ahead = seqid.wrapping_sub(top);
        if ahead > 0 && ahead < WINDOW {
            self.forget(top.wrapping_add(1), ahead);
            self.top = Some(seqid);
        } else if top.wrapping_sub(seqid) >= WINDOW {
            // A few packets must not discard the window.
            let is_close =
                |other: u32| seqid.wrapping_sub(other).min(other.wrapping_sub(seqid)) < WINDOW;
            let jumps = self.jump.on_far(now, seqid, is_close);
            if jumps {
                self.restart(seqid, parity);
            }
            return jumps;
        }
        self.jump.on_near(now);
        match self.is_parity_at(seqid) {
            Some(kind) if kind == parity => false,
            Some(_) => {
                // A restarted peer reuses its seqids: the recorded flags are void.
                self.conflicts += 1;
                if self.conflicts >= CONTRADICTIONS {
                    self.restart(seqid, parity);
                } else {
                    self.set(seqid, parity);
                }
                true
            }
            None => {
                self.set(seqid, parity);
                true
            }
        }
    }

    /// Discards everything but this packet.
    fn restart(&mut self, seqid: u32, parity: bool) {
        self.seen.fill(0);
        (self.starts, self.ends) = (Edges::default(), Edges::default());
        (self.top, self.conflicts) = (Some(seqid), 0);
        self.guess = None;
        self.set(seqid, parity);
    }

    /// Checks a guess of the sum: searches back from `seqid` until every position of a group has
    /// been seen, data before parity. This yields the number of parity shards.
    fn verify(
        &mut self,
        sum: u32,
        enough: u32,
        seqid: u32,
        current: Option<FecConfig>,
    ) -> Option<FecConfig> {
        // Four of five samples may be missing.
        let reach = (WINDOW - self.top?.wrapping_sub(seqid)).min(5 * enough);
        let mut places = Places::default();
        let (mut covered, mut data, mut parities) = (0, 0, sum);
        let least = match current {
            None => 0,
            Some(current) if self.agreements < 2 * current.sum() => 1,
            Some(_) => CONTRADICTIONS,
        };
        let (mut contradictions, mut seen) = (0, 0);
        // Samples since the first contradiction, and their required number: older samples may be of
        // the current layout and agree by chance.
        let (mut fresh, recent) = (0, if least < CONTRADICTIONS { 0 } else { sum });
        let mut wait = None;
        let (mut at, mut place) = (seqid, seqid % sum);
        for _ in 0..reach {
            self.savings = self.savings.checked_sub(1)?;
            if let Some(parity) = self.is_parity_at(at) {
                if parity {
                    parities = parities.min(place);
                } else {
                    data = data.max(place + 1);
                }
                if data > parities {
                    break;
                }
                covered += u32::from(places.insert(to_u8(place)));
                seen += 1;
                let contradicts = current.is_some_and(|current| current.is_parity(at) != parity);
                if contradicts {
                    (contradictions, fresh) = (contradictions + 1, fresh.max(seen));
                }
                let missing = enough.saturating_sub(seen).max(recent.saturating_sub(fresh));
                wait = match missing {
                    _ if covered < sum => None,
                    _ if contradictions < least => Some(u32::MAX),
                    0 => return FecConfig::new(data as usize, (sum - data) as usize).ok(),
                    missing => Some(missing),
                };
            }
            // Seqids wrap at a multiple of the sum, not at the end of their 32 bits.
            (at, place) = match (at, place) {
                (0, _) => (u32::MAX, u32::MAX % sum),
                (_, 0) => (at - 1, sum - 1),
                _ => (at - 1, place - 1),
            };
        }
        if enough == 2 * sum {
            self.guess = wait.map(|wait| Guess { sum, wait }).or(self.guess);
        }
        None
    }

    /// Returns whether a seqid was recorded as parity.
    fn is_parity_at(&self, seqid: u32) -> Option<bool> {
        let (word, bit) = slot(seqid);
        let inside = self.top.is_some_and(|top| top.wrapping_sub(seqid) < WINDOW);
        (inside && self.seen[word] & bit != 0).then(|| self.parity[word] & bit != 0)
    }

    fn set(&mut self, seqid: u32, parity: bool) {
        let (word, bit) = slot(seqid);
        self.seen[word] |= bit;
        self.parity[word] &= !bit;
        self.parity[word] |= if parity { bit } else { 0 };
    }

    /// Clears the records of `count` seqids, whole words where possible.
    fn forget(&mut self, mut seqid: u32, mut count: u32) {
        while count > 0 {
            let (word, bit) = slot(seqid);
            let (mask, step) = if bit == 1 && count >= 64 { (u64::MAX, 64) } else { (bit, 1) };
            self.seen[word] &= !mask;
            (seqid, count) = (seqid.wrapping_add(step), count - step);
        }
    }
}

/// Word and bit of a seqid in the window.
fn slot(seqid: u32) -> (usize, u64) {
    let index = (seqid % WINDOW) as usize;
    (index / 64, 1 << (index % 64))
}

/// A sum to verify again.
#[derive(Clone, Copy, Debug)]
struct Guess {
    sum: u32,
    /// Packets until the next check; a contradiction of the current layout shortens it.
    wait: u32,
}

/// The last few edges of one kind.
#[derive(Clone, Copy, Debug, Default)]
struct Edges {
    at: [u32; EDGES],
    count: usize,
}

impl Edges {
    fn push(&mut self, edge: u32) {
        self.at[self.count % EDGES] = edge;
        self.count += 1;
    }

    /// Returns the sums of which a distance to these edges may be a multiple, with the factor,
    /// small factors first.
    fn sums(self, edge: u32) -> impl Iterator<Item = (u32, u32)> {
        // Distances across the wrap are no multiples of the sum.
        let known = self.at.into_iter().take(self.count);
        (1..=4)
            .flat_map(move |part| known.clone().map(move |other| (edge.abs_diff(other), part)))
            .filter(|(distance, part)| distance.is_multiple_of(*part))
            .map(|(distance, part)| (distance / part, part))
            .filter(|(sum, _)| (2..=256).contains(sum))
    }
}

/// Evidence that the peer continues at distant seqids: it restarted, or many packets were lost.
///
/// A forged shard must not end the recovery of regular ones. So far shards have to outnumber near
/// ones by a majority, or by two if no near shard has arrived for a while.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct JumpDetector {
    /// When a near shard last arrived.
    near: Option<Instant>,
    /// The latest far shard, its arrival, and the excess of far shards over near ones.
    far: Option<(u32, Instant, u32)>,
}

impl JumpDetector {
    /// Notes a shard near the current seqids.
    pub(super) fn on_near(&mut self, now: Instant) {
        self.near = Some(now);
        self.far = self.far.and_then(|(seqid, at, count)| {
            let left = count.checked_sub(1).filter(|left| *left > 0)?;
            Some((seqid, at, left))
        });
    }

    /// Notes a shard far from the current seqids; `is_close` says whether an earlier far shard with
    /// this seqid is near it. Returns whether the peer continues here.
    pub(super) fn on_far(
        &mut self,
        now: Instant,
        seqid: u32,
        is_close: impl FnOnce(u32) -> bool,
    ) -> bool {
        let passed = |since: Instant| now.saturating_duration_since(since);
        let before = self.far.filter(|(other, at, _)| passed(*at) <= MAX_GAP && is_close(*other));
        let count = match before {
            // A repeated seqid is no further evidence.
            Some((other, _, count)) => count + u32::from(other != seqid),
            None => 1,
        };
        let paused = self.near.is_none_or(|at| passed(at) >= PAUSE);
        let jumps = count >= if paused { AFTER_PAUSE } else { MAJORITY };
        if jumps {
            (self.near, self.far) = (Some(now), None);
        } else {
            self.far = Some((seqid, now, count));
        }
        jumps
    }
}
