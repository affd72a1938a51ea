//! FEC decoder (kcp-go `fecDecoder`): keeps the packets of the last few groups and recovers lost
//! data packets.
//!
//! The driver passes received data packets to KCP itself; the decoder delivers only recovered ones.
//! A group is finished once its packets, data or parity, equal its data packets in number; its
//! number is kept so that late packets do not start it again. Newer groups push a group out, not
//! time.
//!
//! Seqids come from the network: a single packet never moves the window of groups far.

use std::ops::{AddAssign, Sub};
use std::time::Instant;

use super::autotune::{Autotune, JumpDetector};
use super::config::{FecConfig, Places};
use super::gf256::{Kernel, coefficients};
use super::packet::{SIZE_LEN, parse};
use super::shard_buffers::{Rows, Shard};

/// Groups kept behind the newest (kcp-go `maxShardSets`).
const BEHIND: u32 = 3;
/// Groups by which one packet may move the window ahead.
const AHEAD: u32 = 64;
/// Packets that must agree with a layout after contradictions; at least two groups. Parity of
/// another layout yields well-formed packets of wrong bytes, so an unconfirmed layout recovers
/// nothing.
const CONFIRMATION: u32 = 64;
/// Packets that must agree with an expected layout; at least two groups.
const EXPECTATION: u32 = 16;
/// Agreeing packets that one contradicting packet outweighs: most packets agree with most layouts.
const CONTRADICTION_WEIGHT: u32 = 8;
/// Weighted contradictions, less agreeing packets, at which the layout loses its confirmation. A
/// few forged packets a second do not reach it.
const MAX_CONTRADICTION: u32 = 64;
/// Bytes of cached coefficients. Loss patterns recur: one lost packet per group yields only one
/// pattern per position.
const CACHE_LEN: usize = 256 * 1024;
/// Most patterns cached.
const MAX_PATTERNS: usize = 256;

/// Counters of one FEC decoder, or the sum of several.
///
/// ```
/// use kcpx::KcpListener;
///
/// fn report(listener: &KcpListener) {
///     let fec = listener.stats().fec;
///     println!("{} data packets, {} recovered", fec.data_shards, fec.recovered_shards);
///     println!("{} groups lost more than their parity", fec.unrecoverable_groups);
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FecStats {
    /// Data packets received.
    pub data_shards: u64,
    /// Parity packets received.
    pub parity_shards: u64,
    /// Data packets recovered from parity.
    pub recovered_shards: u64,
    /// Groups with parity that lost more packets than parity can recover.
    pub unrecoverable_groups: u64,
    /// Malformed data packets computed from parity, and groups with parity of different lengths.
    pub mismatched_shards: u64,
    /// Duplicate packets.
    pub duplicate_shards: u64,
    /// Packets of groups that have left the window.
    pub late_shards: u64,
    /// Packets with a flag that contradicts their seqid in the current layout.
    pub misplaced_shards: u64,
    /// Packets refused because their seqid is far outside the window.
    pub refused_jumps: u64,
    /// Detected changes of the peer's layout.
    pub layout_changes: u64,
}

impl FecStats {
    fn zip(self, other: Self, with: fn(u64, u64) -> u64) -> Self {
        Self {
            data_shards: with(self.data_shards, other.data_shards),
            parity_shards: with(self.parity_shards, other.parity_shards),
            recovered_shards: with(self.recovered_shards, other.recovered_shards),
            unrecoverable_groups: with(self.unrecoverable_groups, other.unrecoverable_groups),
            mismatched_shards: with(self.mismatched_shards, other.mismatched_shards),
            duplicate_shards: with(self.duplicate_shards, other.duplicate_shards),
            late_shards: with(self.late_shards, other.late_shards),
            misplaced_shards: with(self.misplaced_shards, other.misplaced_shards),
            refused_jumps: with(self.refused_jumps, other.refused_jumps),
            layout_changes: with(self.layout_changes, other.layout_changes),
        }
    }
}

impl AddAssign for FecStats {
    fn add_assign(&mut self, other: Self) {
        *self = self.zip(other, u64::wrapping_add);
    }
}

/// The difference to an earlier snapshot of the same decoder.
impl Sub for FecStats {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.zip(earlier, u64::wrapping_sub)
    }
}

/// Recovers lost data packets of one peer.
///
/// Memory: packets of at most four groups, at their received lengths.
///
/// [The module](crate::fec#example) has an example.
#[derive(Debug)]
pub struct FecDecoder {
    layout: Option<FecConfig>,
    /// Packets that must still agree before the layout counts as confirmed.
    unconfirmed: u32,
    /// Weighted packets that contradicted the layout, less agreeing packets.
    contradiction: u32,
    autotune: Autotune,
    reconstructor: Option<Reconstructor>,
    kernel: Kernel,
    groups: [Group; 1 + BEHIND as usize],
    newest: Option<u32>,
    jump: JumpDetector,
    /// Buffers of released packets, for reuse.
    spare: Vec<Shard>,
    /// Bytes of the buffers in `groups` and `spare`; no buffer is ever freed.
    shard_memory: usize,
    stats: FecStats,
}

impl FecDecoder {
    /// A decoder for a known layout of the peer; with `None` it detects the layout from the first
    /// few groups. It detects a change of the layout in both cases.
    #[must_use]
    pub fn new(known: Option<FecConfig>) -> Self {
        Self::with_kernel(known, Kernel::best())
    }

    /// A decoder for an expected layout of the peer: recovers nothing until packets, at least two
    /// groups of them, have confirmed the layout.
    #[must_use]
    pub fn with_expected_layout(layout: FecConfig) -> Self {
        let mut decoder = Self::new(Some(layout));
        decoder.unconfirmed = EXPECTATION.max(2 * layout.sum());
        decoder
    }

    pub(super) fn with_kernel(initial: Option<FecConfig>, kernel: Kernel) -> Self {
        Self {
            layout: initial,
            unconfirmed: 0,
            contradiction: 0,
            autotune: Autotune::new(),
            reconstructor: None,
            kernel,
            groups: Default::default(),
            newest: None,
            jump: JumpDetector::default(),
            spare: Vec::new(),
            shard_memory: 0,
            stats: FecStats::default(),
        }
    }

    /// Returns the peer's layout, once known.
    #[must_use]
    pub fn layout(&self) -> Option<FecConfig> {
        self.layout
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn stats(&self) -> FecStats {
        self.stats
    }

    /// Processes one decrypted data or parity packet.
    ///
    /// Calls `recovered` with each KCP datagram that this packet makes recoverable. Its result says
    /// whether the datagram is well-formed and belongs to an existing connection.
    pub fn input(&mut self, now: Instant, packet: &[u8], mut recovered: impl FnMut(&[u8]) -> bool) {
        let Some((seqid, parity, content)) = parse(packet) else { return };
        if parity {
            self.stats.parity_shards += 1;
        } else {
            self.stats.data_shards += 1;
        }
        if let Some(layout) = self.autotune.sample(now, seqid, parity, self.layout) {
            self.stats.layout_changes += 1;
            self.adopt(layout);
        }
        let Some(layout) = self.layout else { return };
        if seqid >= layout.paws() || layout.is_parity(seqid) != parity {
            self.on_contradiction(now, layout, seqid);
        } else if self.admit(now, layout, seqid) {
            self.store(layout, seqid, content);
        }
        self.finish_groups(layout, &mut recovered);
    }

    /// Handles a packet that contradicts the layout. The packet is ignored, and no group within one
    /// of it is decoded until the packet that belongs in its position arrives. Many contradictions
    /// suspend the layout until packets confirm it.
    fn on_contradiction(&mut self, now: Instant, layout: FecConfig, seqid: u32) {
        self.stats.misplaced_shards += 1;
        let id = seqid / layout.sum();
        let ahead = self.newest.map_or(0, |newest| ahead_of(layout, newest, id));
        if seqid >= layout.paws() || ahead.unsigned_abs() > AHEAD {
            return;
        }
        // Not further ahead: one packet must not push groups out.
        if ahead <= 1
            && self.admit(now, layout, seqid)
            && let Some(group) = self.group_mut(id)
        {
            group.on_contradiction(layout.position(seqid));
        }
        self.contradiction += CONTRADICTION_WEIGHT;
        let confirmation = CONFIRMATION.max(2 * layout.sum());
        if self.unconfirmed > 0 {
            self.unconfirmed = (self.unconfirmed + CONTRADICTION_WEIGHT).min(confirmation);
        } else if self.contradiction >= MAX_CONTRADICTION {
            (self.unconfirmed, self.contradiction) = (confirmation, 0);
            let known = self.groups.iter_mut().filter(|group| group.id.is_some());
            known.for_each(|group| group.give_up(&mut self.spare));
        }
    }

    /// Changes the layout. The groups so far have wrong boundaries.
    fn adopt(&mut self, layout: FecConfig) {
        (self.layout, self.unconfirmed, self.contradiction) = (Some(layout), 0, 0);
        self.forget_groups();
        self.newest = None;
        if let Some(reconstructor) = &mut self.reconstructor {
            reconstructor.set_config(layout);
        }
    }

    /// Whether the packet's group is in the window. Moves the window to newer groups.
    fn admit(&mut self, now: Instant, layout: FecConfig, seqid: u32) -> bool {
        let id = seqid / layout.sum();
        let Some(newest) = self.newest else {
            self.newest = Some(id);
            return true;
        };
        let ahead = ahead_of(layout, newest, id);
        let behind = ahead.wrapping_neg();
        if (0..=BEHIND.cast_signed()).contains(&behind) {
            self.jump.on_near(now);
            return true;
        }
        if (1..=AHEAD.cast_signed()).contains(&ahead) {
            self.jump.on_near(now);
            self.newest = Some(id);
            self.retire(layout, id);
            return true;
        }
        let is_close =
            |other: u32| ahead_of(layout, other / layout.sum(), id).unsigned_abs() <= BEHIND;
        if self.jump.on_far(now, seqid, is_close) {
            self.forget_groups();
            self.newest = Some(id);
            return true;
        }
        if ahead < 0 && behind <= AHEAD.cast_signed() {
            self.stats.late_shards += 1;
        } else {
            self.stats.refused_jumps += 1;
        }
        false
    }

    /// Returns the group with this number, which is in the window.
    fn group_mut(&mut self, id: u32) -> Option<&mut Group> {
        let known = self.groups.iter().position(|group| group.id == Some(id));
        // Invariant: the window has a slot for each of its groups; `retire` frees the groups that
        // left it.
        let index = known.or_else(|| self.groups.iter().position(|group| group.id.is_none()))?;
        let group = self.groups.get_mut(index)?;
        group.id = Some(id);
        Some(group)
    }

    fn store(&mut self, layout: FecConfig, seqid: u32, content: &[u8]) {
        let mut shard = self.spare.pop().unwrap_or_default();
        let Some(group) = self.group_mut(seqid / layout.sum()) else {
            self.spare.push(shard);
            return;
        };
        let place = layout.position(seqid);
        if !group.seen.insert(place) {
            let (discarded, grown) = group.replace(place, content);
            self.shard_memory += grown;
            self.stats.duplicate_shards += 1;
            self.spare.extend(discarded);
            self.spare.push(shard);
            return;
        }
        group.contradicted.remove(place);
        if !group.finished {
            let grown = shard.set(content);
            group.shards.push((place, shard));
            self.shard_memory += grown;
        } else {
            self.spare.push(shard);
        }
        // Duplicates, which returned above, do not confirm the layout.
        self.unconfirmed = self.unconfirmed.saturating_sub(1);
        self.contradiction = self.contradiction.saturating_sub(1);
    }

    /// Decodes every group that has enough packets and no contradiction in it or beside it. Checks
    /// all groups, since a packet may lift the contradiction of another group.
    fn finish_groups(&mut self, layout: FecConfig, recovered: &mut impl FnMut(&[u8]) -> bool) {
        for index in 0..self.groups.len() {
            let Some(group) = self.groups.get(index) else { return };
            let Some(id) = group.id else { continue };
            if group.shards.len() >= layout.data_shards() && !self.is_contradicted(layout, id) {
                self.finish(layout, index, recovered);
            }
        }
    }

    /// Whether a packet contradicted the layout in group `id` or a neighbour.
    fn is_contradicted(&self, layout: FecConfig, id: u32) -> bool {
        self.groups.iter().any(|group| {
            let beside = group.id.is_some_and(|other| ahead_of(layout, id, other).abs() <= 1);
            beside && group.contradicted.len() > 0
        })
    }

    /// Recovers the missing data packets of a group that has enough packets.
    fn finish(
        &mut self,
        layout: FecConfig,
        index: usize,
        recovered: &mut impl FnMut(&[u8]) -> bool,
    ) {
        let Some(group) = self.groups.get_mut(index) else { return };
        if self.unconfirmed > 0 {
            return group.give_up(&mut self.spare);
        }
        group.keep(layout.data_shards(), &mut self.spare);
        let longest = |parity: bool| {
            let shards = group.shards.iter();
            let shards = shards.filter(move |(place, _)| (*place >= layout.data) == parity);
            shards.map(|(_, shard)| shard.content().len())
        };
        if let Some(len) = longest(true).max() {
            // Parity is as long as the group's longest data packet.
            let agrees =
                longest(true).all(|other| other == len) && longest(false).all(|l| l <= len);
            let reconstructor =
                self.reconstructor.get_or_insert_with(|| Reconstructor::new(layout, self.kernel));
            let lost = if agrees { reconstructor.run(&mut group.shards) } else { 0 };
            let datagrams = (0..lost).map(|index| reconstructor.datagram(index, len));
            let valid = datagrams.filter(|d| d.is_some_and(&mut *recovered)).count();
            self.stats.recovered_shards += valid as u64;
            self.stats.mismatched_shards += (lost - valid) as u64 + u64::from(!agrees);
            if valid == 0 && (lost > 0 || !agrees) {
                group.discard_parity(layout, &mut self.spare);
                return;
            }
        }
        group.give_up(&mut self.spare);
    }

    /// Drops the groups that left the window, which ends with `newest`.
    fn retire(&mut self, layout: FecConfig, newest: u32) {
        for group in &mut self.groups {
            let behind = group.id.map(|id| ahead_of(layout, newest, id).wrapping_neg());
            if behind.is_some_and(|behind| behind > BEHIND.cast_signed()) {
                let parity = group.shards.iter().any(|(place, _)| *place >= layout.data);
                self.stats.unrecoverable_groups += u64::from(parity && !group.finished);
                group.clear(&mut self.spare);
            }
        }
    }

    fn forget_groups(&mut self) {
        self.groups.iter_mut().for_each(|group| group.clear(&mut self.spare));
    }

    /// Whether a group holds a parity packet, so that a data packet may complete the group. Data
    /// packets alone recover nothing.
    pub(crate) fn holds_parity(&self) -> bool {
        let Some(layout) = self.layout else { return false };
        let mut held = self.groups.iter().flat_map(|group| &group.shards);
        held.any(|(place, _)| *place >= layout.data)
    }

    /// Bytes of stored packets, and of the coefficient cache.
    pub(crate) fn memory(&self) -> (usize, usize) {
        let reconstructor = self.reconstructor.as_ref();
        let (all, cache) = reconstructor.map_or((0, 0), |all| (all.memory(), all.cache_memory()));
        (self.shard_memory + all - cache, cache)
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        let Some(layout) = self.layout else { return };
        let ids: Vec<u32> = self.groups.iter().filter_map(|group| group.id).collect();
        for (i, id) in ids.iter().enumerate() {
            let behind = -ahead_of(layout, self.newest.expect("there is a group"), *id);
            assert!((0..=BEHIND.cast_signed()).contains(&behind), "{behind} behind");
            assert!(!ids[..i].contains(id), "one slot a group");
        }
        for group in &self.groups {
            let known = group.id.map(|id| self.is_contradicted(layout, id));
            assert!(group.shards.len() < layout.data_shards() || known == Some(true));
            assert!(group.shards.len() <= layout.sum() as usize);
            assert!(group.shards.is_empty() || (!group.finished && group.id.is_some()));
            assert!(group.id.is_some() || !group.finished);
        }
        let held = self.groups.iter().flat_map(|group| &group.shards).map(|(_, shard)| shard);
        let memory = held.chain(&self.spare).map(Shard::memory).sum::<usize>();
        assert_eq!(self.shard_memory, memory);
        assert!(self.reconstructor.as_ref().is_none_or(|r| r.cache_memory() <= 256 * 1024));
    }
}

/// Packets received of a group.
#[derive(Debug, Default)]
struct Group {
    id: Option<u32>,
    /// Positions received, also after the group was finished.
    seen: Places,
    shards: Vec<(u8, Shard)>,
    /// Positions with a second packet that replaced a first one of other contents.
    replaced: Places,
    /// Positions of packets that contradicted the layout and have not been corrected.
    contradicted: Places,
    finished: bool,
}

impl Group {
    /// Handles another packet for an occupied position. With other contents it replaces the first:
    /// one of them is forged, or a restarted peer reuses its seqids. The second such packet proves
    /// a restart, which makes the other packets of the group stale.
    ///
    /// Returns the buffers of the stale packets, and the growth of its own in bytes.
    fn replace(&mut self, place: u8, content: &[u8]) -> (Vec<Shard>, usize) {
        let mut spare = Vec::new();
        let known = self.shards.iter_mut().find(|(other, _)| *other == place);
        let Some((_, shard)) = known.filter(|(_, shard)| shard.content() != content) else {
            return (spare, 0);
        };
        let grown = shard.set(content);
        self.replaced.insert(place);
        if self.replaced.len() == 2 {
            let replaced = self.replaced;
            self.discard(|place| !replaced.contains(place), &mut spare);
        }
        (spare, grown)
    }

    /// Notes a packet of the wrong kind in this position, unless the right kind was seen there.
    fn on_contradiction(&mut self, place: u8) {
        if !self.seen.contains(place) {
            self.contradicted.insert(place);
        }
    }

    /// Drops packets beyond `count`, parity first.
    fn keep(&mut self, count: usize, spare: &mut Vec<Shard>) {
        self.shards.sort_unstable_by_key(|(place, _)| *place);
        spare.extend(self.shards.drain(count.min(self.shards.len())..).map(|(_, shard)| shard));
    }

    /// Drops the parity, some of it forged: the true parity may still come.
    fn discard_parity(&mut self, layout: FecConfig, spare: &mut Vec<Shard>) {
        self.discard(|place| place >= layout.data, spare);
    }

    /// Forgets the packets in these positions.
    fn discard(&mut self, is_wrong: impl Fn(u8) -> bool, spare: &mut Vec<Shard>) {
        let mut kept = 0;
        while let Some((place, _)) = self.shards.get(kept) {
            if is_wrong(*place) {
                let (place, shard) = self.shards.swap_remove(kept);
                self.seen.remove(place);
                spare.push(shard);
            } else {
                kept += 1;
            }
        }
    }

    /// Marks the group as finished.
    fn give_up(&mut self, spare: &mut Vec<Shard>) {
        self.finished = true;
        self.release(spare);
    }

    fn release(&mut self, spare: &mut Vec<Shard>) {
        spare.extend(self.shards.drain(..).map(|(_, shard)| shard));
    }

    fn clear(&mut self, spare: &mut Vec<Shard>) {
        self.release(spare);
        *self = Self { shards: std::mem::take(&mut self.shards), ..Self::default() };
    }
}

/// Distance from one group number to another, the shorter way around the wrap.
fn ahead_of(layout: FecConfig, from: u32, to: u32) -> i32 {
    let groups = layout.groups();
    // Both are below the number of groups, which is below half of all numbers.
    let forward = if to >= from { to - from } else { groups - (from - to) };
    let backward = groups - forward;
    if forward <= backward { forward.cast_signed() } else { -backward.cast_signed() }
}

/// Coefficients for one set of received shards.
#[derive(Clone, Debug, Default)]
struct Pattern {
    present: Places,
    coefficients: Vec<u8>,
}

/// Computes lost data shards of one layout's groups.
#[derive(Debug)]
struct Reconstructor {
    config: FecConfig,
    /// Direct-mapped: a set of shards has one slot. Empty before the first loss.
    patterns: Vec<Pattern>,
    /// The most recently recovered shards.
    rows: Rows,
}

impl Reconstructor {
    fn new(config: FecConfig, kernel: Kernel) -> Self {
        Self { config, patterns: Vec::new(), rows: Rows::new(kernel) }
    }

    fn set_config(&mut self, config: FecConfig) {
        if config != self.config {
            (self.config, self.patterns) = (config, Vec::new());
        }
    }

    /// Recovers the data shards missing from `shards`, which has one shard per data position of a
    /// group, all in different positions. Returns their number.
    fn run(&mut self, shards: &mut [(u8, Shard)]) -> usize {
        shards.sort_unstable_by_key(|(place, _)| *place);
        let mut present = Places::default();
        shards.iter().for_each(|(place, _)| _ = present.insert(*place));
        let lost = (0..self.config.data).filter(|place| !present.contains(*place)).count();
        let slot = self.slot(&present);
        let Some(pattern) = self.patterns.get_mut(slot).filter(|_| lost > 0) else { return 0 };
        if pattern.present != present {
            let known: Vec<u8> = shards.iter().map(|(place, _)| *place).collect();
            let wanted = (0..self.config.data).filter(|place| !present.contains(*place));
            let wanted: Vec<u8> = wanted.collect();
            *pattern = Pattern { present, coefficients: coefficients(&known, &wanted) };
        }
        self.rows.clear(lost);
        for ((_, shard), column) in shards.iter().zip(pattern.coefficients.chunks_exact(lost)) {
            self.rows.fold(column, shard.lanes());
        }
        lost
    }

    /// Returns the KCP datagram of a recovered shard, which was padded to `len` bytes; `None` if it
    /// is malformed.
    fn datagram(&self, index: usize, len: usize) -> Option<&[u8]> {
        let shard = self.rows.row(index, len)?;
        let size = usize::from(u16::from_le_bytes(*shard.first_chunk::<SIZE_LEN>()?));
        let (content, padding) = shard.split_at_checked(size)?;
        // A wrong shard leaves noise in the padding, hardly ever zeros.
        padding.iter().all(|byte| *byte == 0).then_some(content)?.get(SIZE_LEN..)
    }

    fn slot(&mut self, present: &Places) -> usize {
        if self.patterns.is_empty() {
            let lost = self.config.data_shards().min(self.config.parity_shards());
            let each = size_of::<Pattern>() + lost * self.config.data_shards();
            self.patterns = vec![Pattern::default(); (CACHE_LEN / each).clamp(1, MAX_PATTERNS)];
        }
        let mix = |hash: u64, word: &u64| (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = present.0.iter().fold(0, |hash, word| {
            let hash = mix(hash, word);
            hash ^ hash >> 32
        });
        usize::try_from(hash >> 40).unwrap_or(0) % self.patterns.len()
    }

    /// Bytes of the cached coefficients.
    fn cache_memory(&self) -> usize {
        let coefficients = self.patterns.iter().map(|pattern| pattern.coefficients.capacity());
        coefficients.sum::<usize>() + self.patterns.capacity() * size_of::<Pattern>()
    }

    fn memory(&self) -> usize {
        self.cache_memory() + self.rows.memory()
    }
}
