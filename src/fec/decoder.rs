//! The receiver's half: keeps what arrived of the last few groups and computes what did not.
//!
//! The driver hands data packets to KCP by itself, so nothing is delivered from here that was not
//! lost. A group is finished when as many packets arrived as it has data packets; it is remembered
//! so that the rest of it is not taken for a new one. There is no clock in this: a group waits
//! until newer ones push it out.
//!
//! Numbers come from the network. One packet never moves the place where groups are expected.

use std::time::{Duration, Instant};

use super::gf256::Kernel;
use super::{DATA, FecConfig, FecStats, OUTER, PARITY, Places, SIZE};
use crate::fec::autotune::Autotune;
use crate::fec::reconstruct::Reconstructor;
use crate::fec::shard_buffers::Shard;

/// Groups behind the newest that are kept, as in kcp-go.
const BEHIND: u32 = 3;
/// Groups ahead of the newest that are believed at once.
const AHEAD: u32 = 64;
/// Packets that must agree with a layout after one that did not, and at least two groups of them.
/// Parity of other groups than those assumed makes data of the right shape and the wrong bytes, so
/// a layout in doubt recovers nothing.
const CONFIRMATION: u32 = 64;
/// As many must agree with one that was only assumed.
const ASSUMPTION: u32 = 16;
/// How long a number outside of that waits for another one like it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Recovers lost data packets of one peer.
///
/// Memory: packets of at most four groups, each as long as received.
#[derive(Debug)]
pub struct FecDecoder {
    layout: Option<FecConfig>,
    /// Packets that must agree with the layout before it is believed.
    doubt: u32,
    learner: Autotune,
    recovery: Option<Reconstructor>,
    kernel: Kernel,
    groups: [Group; 1 + BEHIND as usize],
    newest: Option<u32>,
    suspect: Option<Suspect>,
    /// Memory of packets that are not needed any more.
    spare: Vec<Shard>,
    stats: FecStats,
}

impl FecDecoder {
    /// A decoder for a layout that the peer is known to use, until it turns out to use another
    /// one; or one that finds it out from the first few groups.
    #[must_use]
    pub fn new(known: Option<FecConfig>) -> Self {
        Self::with_kernel(known, Kernel::best())
    }

    /// A decoder for a layout that the peer may use: it recovers nothing before some packets, two
    /// groups at least, have agreed.
    #[must_use]
    pub fn with_expected_layout(layout: FecConfig) -> Self {
        let mut decoder = Self::new(Some(layout));
        decoder.doubt = ASSUMPTION.max(2 * layout.sum());
        decoder
    }

    pub(super) fn with_kernel(initial: Option<FecConfig>, kernel: Kernel) -> Self {
        Self {
            layout: initial,
            doubt: 0,
            learner: Autotune::new(),
            recovery: None,
            kernel,
            groups: Default::default(),
            newest: None,
            suspect: None,
            spare: Vec::new(),
            stats: FecStats::default(),
        }
    }

    /// The peer's groups, as far as known.
    #[must_use]
    pub fn layout(&self) -> Option<FecConfig> {
        self.layout
    }

    /// What happened so far.
    #[must_use]
    pub fn stats(&self) -> FecStats {
        self.stats
    }

    /// Takes one decrypted data or parity packet.
    ///
    /// `recovered` is called with each KCP datagram that this one makes computable, and says
    /// whether it is plausible: made of whole segments, of a conversation that exists.
    pub fn input(&mut self, now: Instant, packet: &[u8], mut recovered: impl FnMut(&[u8]) -> bool) {
        let Some((seqid, parity, content)) = parse(packet) else { return };
        if parity {
            self.stats.parity_shards += 1;
        } else {
            self.stats.data_shards += 1;
        }
        if let Some(layout) = self.learner.sample(now, seqid, parity, self.layout) {
            self.stats.layout_changes += 1;
            self.adopt(layout);
        }
        let Some(layout) = self.layout else { return };
        if seqid >= layout.paws() || layout.is_parity(seqid) != parity {
            self.stats.misplaced_shards += 1;
            self.doubt = CONFIRMATION.max(2 * layout.sum());
            let known = self.groups.iter_mut().filter(|group| group.id.is_some());
            known.for_each(|group| group.give_up(&mut self.spare));
            return;
        }
        if !self.admit(now, layout, seqid) {
            return;
        }
        let Some(index) = self.store(layout, seqid, content) else { return };
        self.finish(layout, index, &mut recovered);
    }

    /// Other groups. What is there was collected under wrong numbers.
    fn adopt(&mut self, layout: FecConfig) {
        (self.layout, self.doubt) = (Some(layout), 0);
        self.forget_groups();
        (self.newest, self.suspect) = (None, None);
        if let Some(recovery) = &mut self.recovery {
            recovery.set_config(layout);
        }
    }

    /// Whether a packet is of a group that is kept now. Moves on to newer groups.
    fn admit(&mut self, now: Instant, layout: FecConfig, seqid: u32) -> bool {
        let id = seqid / layout.sum();
        let Some(newest) = self.newest else {
            self.newest = Some(id);
            return true;
        };
        let ahead = ahead(layout, newest, id);
        let behind = ahead.wrapping_neg();
        if ahead == 0 || (1..=BEHIND.cast_signed()).contains(&behind) {
            self.suspect = None;
            return true;
        }
        if (1..=AHEAD.cast_signed()).contains(&ahead) {
            self.suspect = None;
            self.newest = Some(id);
            self.retire(layout, id);
            return true;
        }
        if self.resolve(now, layout, seqid) {
            self.forget_groups();
            (self.newest, self.suspect) = (Some(id), None);
            return true;
        }
        if ahead < 0 && behind <= AHEAD.cast_signed() {
            self.stats.late_shards += 1;
        } else {
            self.stats.refused_jumps += 1;
        }
        false
    }

    /// Whether a number outside the window is where the peer continues: a second one near the
    /// first, in time too, and none between them that is where they were before.
    fn resolve(&mut self, now: Instant, layout: FecConfig, seqid: u32) -> bool {
        let id = seqid / layout.sum();
        let other = self.suspect.replace(Suspect { seqid, at: now });
        other.is_some_and(|other| {
            let distance = ahead(layout, other.seqid / layout.sum(), id).unsigned_abs();
            let recent = now.saturating_duration_since(other.at) <= PATIENCE;
            recent && other.seqid != seqid && distance <= BEHIND
        })
    }

    /// Keeps a packet. Returns the group's index if that is complete now.
    fn store(&mut self, layout: FecConfig, seqid: u32, content: &[u8]) -> Option<usize> {
        let (id, place) = (seqid / layout.sum(), layout.position(seqid));
        let known = self.groups.iter().position(|group| group.id == Some(id));
        // There are as many slots as groups in the window, and what left it is gone.
        let index = known.or_else(|| self.groups.iter().position(|group| group.id.is_none()))?;
        let group = self.groups.get_mut(index)?;
        group.id = Some(id);
        if group.seen.contains(place) {
            self.stats.duplicate_shards += 1;
            if !group.contradicts(place, content) {
                return None;
            }
            // The peer started again and uses its numbers anew.
            group.clear(&mut self.spare);
            group.id = Some(id);
        }
        group.seen.insert(place);
        // Copies confirm nothing.
        self.doubt = self.doubt.saturating_sub(1);
        if group.finished {
            return None;
        }
        let mut shard = self.spare.pop().unwrap_or_default();
        shard.set(content);
        group.shards.push((place, shard));
        (group.shards.len() >= layout.data_shards()).then_some(index)
    }

    /// A group has what it needs: computes what is missing.
    fn finish(
        &mut self,
        layout: FecConfig,
        index: usize,
        recovered: &mut impl FnMut(&[u8]) -> bool,
    ) {
        let Some(group) = self.groups.get_mut(index) else { return };
        if self.doubt > 0 {
            group.give_up(&mut self.spare);
            return;
        }
        group.finished = true;
        let longest = |parity: bool| {
            let shards = group.shards.iter();
            let shards = shards.filter(move |(place, _)| (*place >= layout.data) == parity);
            shards.map(|(_, shard)| shard.content().len())
        };
        if let Some(len) = longest(true).max() {
            // All parity of a group is as long as its longest data.
            let agrees =
                longest(true).all(|other| other == len) && longest(false).all(|l| l <= len);
            let recovery =
                self.recovery.get_or_insert_with(|| Reconstructor::new(layout, self.kernel));
            let lost = if agrees { recovery.run(&mut group.shards) } else { 0 };
            for datagram in (0..lost).map(|index| recovery.datagram(index, len)) {
                if datagram.is_some_and(&mut *recovered) {
                    self.stats.recovered_shards += 1;
                } else {
                    self.stats.mismatched_shards += 1;
                }
            }
            self.stats.mismatched_shards += u64::from(!agrees);
        }
        group.release(&mut self.spare);
    }

    /// Gives up what has left the window that ends with `newest`.
    fn retire(&mut self, layout: FecConfig, newest: u32) {
        for group in &mut self.groups {
            let behind = group.id.map(|id| ahead(layout, newest, id).wrapping_neg());
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

    /// Bytes that packets take, and coefficients for their recovery.
    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn memory(&self) -> (usize, usize) {
        let held = self.groups.iter().flat_map(|group| &group.shards).map(|(_, shard)| shard);
        let shards = held.chain(&self.spare).map(Shard::memory).sum::<usize>();
        let recovery = self.recovery.as_ref();
        let (all, cache) =
            recovery.map_or((0, 0), |recovery| (recovery.memory(), recovery.cache_memory()));
        (shards + all - cache, cache)
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self) {
        let Some(layout) = self.layout else { return };
        let ids: Vec<u32> = self.groups.iter().filter_map(|group| group.id).collect();
        for (i, id) in ids.iter().enumerate() {
            let behind = -ahead(layout, self.newest.expect("there is a group"), *id);
            assert!((0..=BEHIND.cast_signed()).contains(&behind), "{behind} behind");
            assert!(!ids[..i].contains(id), "one slot a group");
        }
        for group in &self.groups {
            assert!(group.shards.len() < layout.data_shards());
            assert!(group.shards.is_empty() || (!group.finished && group.id.is_some()));
            assert!(group.id.is_some() || !group.finished);
        }
        assert!(self.recovery.as_ref().is_none_or(|r| r.cache_memory() <= 256 * 1024));
    }
}

/// A packet outside the window.
#[derive(Clone, Copy, Debug)]
struct Suspect {
    seqid: u32,
    at: Instant,
}

/// What arrived of a group.
#[derive(Debug, Default)]
struct Group {
    id: Option<u32>,
    /// Places that arrived, also after the group was finished.
    seen: Places,
    shards: Vec<(u8, Shard)>,
    finished: bool,
}

impl Group {
    /// Whether something else came in this place before.
    fn contradicts(&self, place: u8, content: &[u8]) -> bool {
        let earlier = self.shards.iter().find(|(other, _)| *other == place);
        earlier.is_some_and(|(_, shard)| shard.content() != content)
    }

    /// Nothing of it will be recovered.
    fn give_up(&mut self, spare: &mut Vec<Shard>) {
        self.finished = true;
        self.release(spare);
    }

    fn release(&mut self, spare: &mut Vec<Shard>) {
        spare.extend(self.shards.drain(..).map(|(_, shard)| shard));
    }

    fn clear(&mut self, spare: &mut Vec<Shard>) {
        self.release(spare);
        (self.id, self.seen, self.finished) = (None, Places::default(), false);
    }
}

/// Number, whether it is parity, and what parity covers of a packet.
fn parse(packet: &[u8]) -> Option<(u32, bool, &[u8])> {
    let (&[a, b, c, d, low, high], content) = packet.split_first_chunk::<OUTER>()?;
    let parity = match u16::from_le_bytes([low, high]) {
        DATA => false,
        PARITY => true,
        _ => return None,
    };
    (content.len() >= SIZE).then_some((u32::from_le_bytes([a, b, c, d]), parity, content))
}

/// Groups from one to another, the shorter way round.
fn ahead(layout: FecConfig, from: u32, to: u32) -> i32 {
    let groups = layout.groups();
    // Both are below the count of groups, which is below half of all numbers.
    let forward = if to >= from { to - from } else { groups - (from - to) };
    let backward = groups - forward;
    if forward <= backward { forward.cast_signed() } else { -backward.cast_signed() }
}
