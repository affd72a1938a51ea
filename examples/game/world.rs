//! The world: where bots are, what a snapshot says of them, and what a client makes of snapshots.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::time::Instant;

/// Bots in the world.
pub(crate) const BOTS: usize = 16;
/// Time between two snapshots: 60 a second.
pub(crate) const TICK: Duration = Duration::from_nanos(16_666_667);
/// Bytes of a snapshot.
const SIZE: usize = 8 + 16 * BOTS;
/// Snapshots that a client keeps, to draw between two of them.
const KEPT: usize = 60;

/// Metres.
pub(crate) type Place = [f32; 2];

pub(crate) fn distance(a: Place, b: Place) -> f32 {
    (a[0] - b[0]).hypot(a[1] - b[1])
}

/// The place of a bot: it runs some 4 m a second and turns all the time.
pub(crate) fn position(bot: usize, at: Duration) -> Place {
    let (t, phase) = (at.as_secs_f64(), bot as f64);
    let x = 2.0 * (1.3 * t + phase).sin() + 0.8 * (3.1 * t).sin();
    let y = 2.0 * (1.1 * t + phase).cos() + 0.8 * (2.7 * t + phase).cos();
    [x as f32, y as f32]
}

/// Metres a second.
fn velocity(bot: usize, at: Duration) -> Place {
    let step = Duration::from_millis(1);
    let (a, b) = (position(bot, at), position(bot, at + step));
    [0, 1].map(|axis| (b[axis] - a[axis]) / step.as_secs_f32())
}

/// All bots at one time.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) number: u32,
    /// Time of the world, in whole milliseconds.
    pub(crate) at: Duration,
    /// Place and velocity of each.
    bots: [(Place, Place); BOTS],
}

impl Snapshot {
    pub(crate) fn take(number: u32, at: Duration) -> Self {
        let at = Duration::from_millis(at.as_millis() as u64);
        let bots = std::array::from_fn(|bot| (position(bot, at), velocity(bot, at)));
        Self { number, at, bots }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(SIZE);
        out.extend(self.number.to_le_bytes());
        out.extend((self.at.as_millis() as u32).to_le_bytes());
        for (place, velocity) in &self.bots {
            [place, velocity]
                .into_iter()
                .flatten()
                .for_each(|value| out.extend(value.to_le_bytes()));
        }
        out
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        ensure!(bytes.len() == SIZE, "a snapshot of {} bytes instead of {SIZE}", bytes.len());
        let word = |at: usize| [0, 1, 2, 3].map(|i| bytes[4 * at + i]);
        let float = |at: usize| f32::from_le_bytes(word(at));
        let bots = std::array::from_fn(|bot| {
            let at = 2 + 4 * bot;
            ([float(at), float(at + 1)], [float(at + 2), float(at + 3)])
        });
        let at = Duration::from_millis(u32::from_le_bytes(word(1)).into());
        Ok(Self { number: u32::from_le_bytes(word(0)), at, bots })
    }
}

/// The world as a client sees it.
pub(crate) struct View {
    /// The latest snapshots, by their time.
    snapshots: BTreeMap<Duration, Snapshot>,
    /// Arrival and time of each snapshot, by number.
    arrivals: BTreeMap<u32, (Instant, Duration)>,
    /// When the world began by the clock of this side: the fastest snapshot was under way for
    /// `delay`.
    began: Option<Instant>,
    delay: Duration,
}

impl View {
    /// `delay`: time from the server to this client.
    pub(crate) fn new(delay: Duration) -> Self {
        Self { snapshots: BTreeMap::new(), arrivals: BTreeMap::new(), began: None, delay }
    }

    /// A snapshot has arrived.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let (snapshot, now) = (Snapshot::from_bytes(bytes)?, Instant::now());
        if let Some(began) = now.checked_sub(snapshot.at + self.delay) {
            self.began = Some(self.began.map_or(began, |earliest| earliest.min(began)));
        }
        self.arrivals.entry(snapshot.number).or_insert((now, snapshot.at));
        self.snapshots.insert(snapshot.at, snapshot);
        while self.snapshots.len() > KEPT {
            self.snapshots.pop_first();
        }
        Ok(())
    }

    /// Time of the world now, once a snapshot is there.
    pub(crate) fn server_time(&self) -> Option<Duration> {
        self.began.map(|began| began.elapsed())
    }

    /// The place of a bot at `at`, extrapolated from the latest snapshot.
    pub(crate) fn predict(&self, bot: usize, at: Duration) -> Place {
        let Some((_, latest)) = self.snapshots.last_key_value() else { return [0.0, 0.0] };
        let age = at.saturating_sub(latest.at).as_secs_f32();
        let (place, velocity) = latest.bots[bot];
        [0, 1].map(|axis| place[axis] + velocity[axis] * age)
    }

    /// The place of a bot at `at`, interpolated between the snapshots around it; `None` without both.
    pub(crate) fn interpolate(&self, bot: usize, at: Duration) -> Option<Place> {
        let (_, before) = self.snapshots.range(..=at).next_back()?;
        let (_, after) = self.snapshots.range(at..).next()?;
        let span = (after.at - before.at).as_secs_f32();
        let share = if span > 0.0 { (at - before.at).as_secs_f32() / span } else { 0.0 };
        let (a, b) = (before.bots[bot].0, after.bots[bot].0);
        Some([0, 1].map(|axis| a[axis] + (b[axis] - a[axis]) * share))
    }

    /// How many of the first `count` snapshots were under way for at most `deadline`.
    pub(crate) fn on_time(&self, count: u32, deadline: Duration) -> u32 {
        let Some(began) = self.began else { return 0 };
        let is_on_time = |(arrival, at): &(Instant, Duration)| *arrival <= began + *at + deadline;
        self.arrivals.range(..count).filter(|(_, arrival)| is_on_time(arrival)).count() as u32
    }
}
