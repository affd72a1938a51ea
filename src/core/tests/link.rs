//! A one-way network path as a pure model: what becomes of each datagram follows from a seed, the
//! time and the datagram's length alone, so it serves a pair of cores and whole endpoints alike.
//!
//! Times are microseconds, probabilities parts per million. Every datagram draws from a generator
//! of its own, keyed by its rank: what happens to one never depends on how much luck another used,
//! so two runs that differ in one setting stay comparable.

use std::fmt;

/// Parts per million of certainty.
pub(crate) const CERTAIN: u32 = 1_000_000;

/// SplitMix64: small, and good enough to draw plans.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// An independent generator for each pair of numbers.
    pub(crate) fn keyed(seed: u64, key: u64) -> Self {
        let mut outer = Self(seed);
        Self(outer.next() ^ Self(key).next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `0..limit`; zero if there is none.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(limit)) >> 64) as u64
    }

    /// A number in `low..=high`.
    pub(crate) fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number in `low..=high` whose order of magnitude is evenly distributed.
    pub(crate) fn spread(&mut self, low: u64, high: u64) -> u64 {
        let bits = |n: u64| u64::from(u64::BITS - n.leading_zeros());
        let top = self.range(bits(low), bits(high));
        let cap = 1_u64.checked_shl(top as u32).map_or(u64::MAX, |n| n - 1);
        self.range(low.max(cap / 2).min(high), cap.clamp(low, high))
    }

    pub(crate) fn chance(&mut self, ppm: u32) -> bool {
        self.below(u64::from(CERTAIN)) < u64::from(ppm)
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Loss in runs (Gilbert and Elliott): everything is lost while the path is bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Burst {
    /// Chance that a datagram finds the path turned bad.
    pub(crate) enter: u32,
    /// Chance that a datagram finds it recovered.
    pub(crate) leave: u32,
}

impl Burst {
    /// Share of datagrams that find the path bad.
    fn share(self) -> u32 {
        let (enter, leave) = (u64::from(self.enter), u64::from(self.leave));
        (enter * u64::from(CERTAIN) / (enter + leave)) as u32
    }
}

/// What a path does. The default is perfect: no delay, no loss, no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkConfig {
    pub(crate) delay: u64,
    /// Up to this much is added to the delay of each datagram.
    pub(crate) jitter: u64,
    /// Jitter never lets one datagram overtake another.
    pub(crate) keep_order: bool,
    pub(crate) loss: u32,
    pub(crate) burst: Option<Burst>,
    /// Chance that a datagram is held back by up to `reorder_by` more.
    pub(crate) reorder: u32,
    pub(crate) reorder_by: u64,
    /// Chance that a datagram arrives again, one to `copies` times, up to `copy_delay` later.
    pub(crate) duplicate: u32,
    pub(crate) copies: u8,
    pub(crate) copy_delay: u64,
    pub(crate) corrupt: u32,
    /// Bytes per second, and how many bytes may wait for their turn before the tail is dropped.
    pub(crate) rate: Option<u64>,
    pub(crate) queue: u64,
    /// Larger datagrams disappear; zero for no limit.
    pub(crate) mtu: usize,
    /// Those whose sender allows it arrive in fragments instead.
    pub(crate) fragments: bool,
    /// From when to when nothing gets through.
    pub(crate) partitions: Vec<(u64, u64)>,
}

impl LinkConfig {
    /// A path with nothing but delay.
    pub(crate) fn delay(delay: u64) -> Self {
        Self { delay, ..Self::default() }
    }

    /// Chance that one datagram does not arrive intact, a full queue and partitions aside.
    pub(crate) fn mean_loss(&self) -> f64 {
        let certain = f64::from(CERTAIN);
        let bad = self.burst.map_or(0, |burst| burst.share());
        let kept = |ppm: u32| 1.0 - f64::from(ppm) / certain;
        1.0 - kept(bad) * kept(self.loss) * kept(self.corrupt)
    }

    /// Longest time that one datagram can take, copies aside.
    pub(crate) fn longest_delay(&self) -> u64 {
        let queueing = self.rate.map_or(0, |rate| (self.queue + 65_535) * 1_000_000 / rate);
        let held_back = if self.reorder > 0 { self.reorder_by } else { 0 };
        self.delay + self.jitter + held_back + queueing
    }

    /// The path from here on: nothing is cut off any more, at most half is lost, and losses are
    /// independent (runs of them last as many datagrams as they last, however slowly those come).
    pub(crate) fn healed(&self) -> Self {
        let bad = self.burst.map_or(0, |burst| burst.share());
        let loss = self.loss.max(bad).min(CERTAIN / 2);
        Self { partitions: Vec::new(), burst: None, loss, corrupt: 0, ..self.clone() }
    }
}

impl fmt::Display for LinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "delay={}", self.delay)?;
        if self.jitter > 0 {
            write!(f, " jitter={} keep_order={}", self.jitter, self.keep_order)?;
        }
        if self.loss > 0 {
            write!(f, " loss={}", self.loss)?;
        }
        if let Some(Burst { enter, leave }) = self.burst {
            write!(f, " burst={enter}/{leave}")?;
        }
        if self.reorder > 0 {
            write!(f, " reorder={}/{}", self.reorder, self.reorder_by)?;
        }
        if self.duplicate > 0 {
            write!(f, " duplicate={}x{}/{}", self.duplicate, self.copies, self.copy_delay)?;
        }
        if self.corrupt > 0 {
            write!(f, " corrupt={}", self.corrupt)?;
        }
        if let Some(rate) = self.rate {
            write!(f, " rate={rate} queue={}", self.queue)?;
        }
        if self.mtu > 0 {
            write!(f, " mtu={} fragments={}", self.mtu, self.fragments)?;
        }
        for (from, to) in &self.partitions {
            write!(f, " cut={from}..{to}")?;
        }
        Ok(())
    }
}

/// What a copy of a datagram looks like when it arrives.
///
/// UDP carries a checksum, so a damaged datagram normally never reaches the application: a test
/// of exact delivery has to drop what is not [`Damage::None`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    None,
    /// An odd number of inversions, so at least one bit differs; they follow from the number.
    Flip(u64),
    /// Only this many bytes are left.
    Cut(usize),
    /// The datagram and as many bytes of its own start again.
    Join(usize),
}

impl Damage {
    pub(crate) fn apply(self, datagram: &mut Vec<u8>) {
        match self {
            Self::None => {}
            Self::Flip(seed) => {
                let mut rng = Rng::new(seed);
                for _ in 0..=2 * rng.below(4) {
                    let bit = rng.below(datagram.len() as u64 * 8);
                    if let Some(byte) = datagram.get_mut(bit as usize / 8) {
                        *byte ^= 1 << (bit % 8);
                    }
                }
            }
            Self::Cut(len) => datagram.truncate(len),
            Self::Join(len) => datagram.extend_from_within(..len.min(datagram.len())),
        }
    }
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkStats {
    pub(crate) offered: u64,
    pub(crate) lost: u64,
    pub(crate) cut_off: u64,
    pub(crate) too_large: u64,
    pub(crate) queue_full: u64,
    pub(crate) copies: u64,
    pub(crate) damaged: u64,
}

/// The path with its state.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    config: LinkConfig,
    seed: u64,
    bad: bool,
    /// When the transmitter has sent everything that waits.
    free_at: u64,
    /// The latest arrival, for jitter that keeps the order.
    latest: u64,
    stats: LinkStats,
}

impl Link {
    pub(crate) fn new(config: LinkConfig, seed: u64) -> Self {
        Self { config, seed, bad: false, free_at: 0, latest: 0, stats: LinkStats::default() }
    }

    pub(crate) fn config(&self) -> &LinkConfig {
        &self.config
    }

    pub(crate) fn set_config(&mut self, config: LinkConfig) {
        self.config = config;
    }

    pub(crate) fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Offers a datagram of `len` bytes at `now`; `arrive` is called once per copy that gets
    /// through, with the time of its arrival.
    pub(crate) fn send(&mut self, now: u64, len: usize, mut arrive: impl FnMut(u64, Damage)) {
        let mut rng = Rng::keyed(self.seed, self.stats.offered);
        self.stats.offered += 1;
        let config = &self.config;
        if let Some(Burst { enter, leave }) = config.burst {
            self.bad = if self.bad { !rng.chance(leave) } else { rng.chance(enter) };
        }
        let lost = rng.chance(config.loss) || (self.bad && config.burst.is_some());
        let jitter = rng.below(config.jitter + 1);
        let held_back = rng.chance(config.reorder);
        let extra = rng.below(config.reorder_by + 1);
        let copied = rng.chance(config.duplicate);
        let damage = Self::damage(&mut rng, config.corrupt, len);
        if config.partitions.iter().any(|&(from, to)| (from..to).contains(&now)) {
            self.stats.cut_off += 1;
            return;
        }
        if config.mtu > 0 && len > config.mtu {
            self.stats.too_large += 1;
            return;
        }
        let Some(sent) = Self::transmit(config, &mut self.free_at, now, len) else {
            self.stats.queue_full += 1;
            return;
        };
        if lost {
            self.stats.lost += 1;
            return;
        }
        let mut at = sent + config.delay + jitter;
        if config.keep_order {
            at = at.max(self.latest);
            self.latest = at;
        }
        // Whoever is held back is overtaken, so it does not hold back the others.
        at += if held_back { extra } else { 0 };
        self.stats.damaged += u64::from(damage != Damage::None);
        arrive(at, damage);
        if copied {
            for _ in 0..rng.range(1, u64::from(config.copies.max(1))) {
                self.stats.copies += 1;
                arrive(at + rng.below(config.copy_delay + 1), Damage::None);
            }
        }
    }

    /// When the last bit has left, or `None` if the queue has no room.
    fn transmit(config: &LinkConfig, free_at: &mut u64, now: u64, len: usize) -> Option<u64> {
        let Some(rate) = config.rate else { return Some(now) };
        let waiting = free_at.saturating_sub(now) * rate / 1_000_000;
        if waiting > config.queue {
            return None;
        }
        *free_at = now.max(*free_at) + (len as u64 * 1_000_000).div_ceil(rate);
        Some(*free_at)
    }

    fn damage(rng: &mut Rng, corrupt: u32, len: usize) -> Damage {
        let (hit, kind, detail) = (rng.chance(corrupt), rng.below(3), rng.next());
        match (hit, kind) {
            (false, _) => Damage::None,
            (true, 0) => Damage::Flip(detail),
            (true, 1) => Damage::Cut(detail as usize % len.max(1)),
            (true, _) => Damage::Join(1 + detail as usize % len.max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrivals(config: LinkConfig, count: u64) -> (Vec<(u64, u64)>, LinkStats) {
        let mut link = Link::new(config, 1);
        let mut all = Vec::new();
        for i in 0..count {
            link.send(i * 1_000, 1_000, |at, _| all.push((i, at)));
        }
        (all, link.stats())
    }

    #[test]
    fn the_default_is_perfect() {
        let (all, _) = arrivals(LinkConfig::delay(40), 100);
        assert!(all.iter().copied().eq((0..100).map(|i| (i, i * 1_000 + 40))));
    }

    #[test]
    fn loss_is_as_frequent_as_asked() {
        let (all, _) = arrivals(LinkConfig { loss: 300_000, ..LinkConfig::default() }, 100_000);
        assert!((69_000..71_000).contains(&all.len()), "{}", all.len());
        let burst = Some(Burst { enter: 10_000, leave: 90_000 });
        let config = LinkConfig { burst, ..LinkConfig::default() };
        assert!((config.mean_loss() - 0.1).abs() < 1e-9);
        let (all, stats) = arrivals(config, 100_000);
        assert!((88_000..92_000).contains(&all.len()), "{}", all.len());
        assert_eq!(stats.lost + all.len() as u64, 100_000);
        let runs = all.windows(2).filter(|pair| pair[1].0 > pair[0].0 + 1).count() as u64;
        assert!((9..14).contains(&(stats.lost / runs)), "runs of {}", stats.lost / runs);
    }

    #[test]
    fn jitter_keeps_the_order_only_if_asked() {
        let config =
            |keep_order| LinkConfig { jitter: 20_000, keep_order, ..LinkConfig::default() };
        let ordered = |all: &[(u64, u64)]| all.is_sorted_by_key(|&(_, at)| at);
        assert!(ordered(&arrivals(config(true), 1_000).0));
        assert!(!ordered(&arrivals(config(false), 1_000).0));
    }

    #[test]
    fn a_full_queue_drops_the_tail() {
        let config = LinkConfig { rate: Some(500_000), queue: 10_000, ..LinkConfig::default() };
        let (all, stats) = arrivals(config, 1_000);
        // Twice what the path can carry: the queue fills, then half is dropped.
        assert!((500..515).contains(&all.len()), "{}", all.len());
        assert_eq!(stats.queue_full + all.len() as u64, 1_000);
        assert!(all.windows(2).skip(50).all(|pair| pair[1].1 - pair[0].1 == 2_000));
    }

    #[test]
    fn partitions_sizes_and_copies() {
        let config = LinkConfig {
            partitions: vec![(10_000, 20_000)],
            duplicate: CERTAIN,
            copies: 1,
            ..LinkConfig::default()
        };
        let (all, stats) = arrivals(config, 30);
        assert_eq!((all.len(), stats.cut_off, stats.copies), (40, 10, 20));
        let (all, stats) = arrivals(LinkConfig { mtu: 999, ..LinkConfig::default() }, 30);
        assert_eq!((all.len(), stats.too_large), (0, 30));
    }

    #[test]
    fn a_datagram_has_its_fate_whatever_befell_the_others() {
        let lossy = LinkConfig { loss: 100_000, jitter: 5_000, ..LinkConfig::default() };
        let healed = LinkConfig { duplicate: 500_000, copies: 5, ..lossy.clone() };
        let first = |mut all: Vec<(u64, u64)>| {
            all.dedup_by_key(|(i, _)| *i);
            all
        };
        let (plain, copied) = (arrivals(lossy, 1_000).0, arrivals(healed, 1_000).0);
        assert_eq!(first(plain), first(copied));
    }

    #[test]
    fn damage_shows() {
        let config = LinkConfig { corrupt: CERTAIN, ..LinkConfig::default() };
        let mut link = Link::new(config, 3);
        let datagram: Vec<u8> = (0..200).collect();
        for i in 0..300 {
            link.send(i, datagram.len(), |_, damage| {
                let mut damaged = datagram.clone();
                damage.apply(&mut damaged);
                assert_ne!(damaged, datagram, "{damage:?}");
            });
        }
    }
}
