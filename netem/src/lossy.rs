//! A link with independent loss, a delay, and packets that arrive late.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use chacha20::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};

use crate::in_flight::InFlight;
use crate::link::Link;

/// A packet that leaves the link this much after it was due is late.
const LATE: Duration = Duration::from_millis(2);

/// The conditions of each direction. The default loses and delays nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Conditions {
    /// Lost packets, in percent.
    pub loss: u64,
    /// Time from one end to the other.
    pub delay: Duration,
    /// Packets that take a detour, in percent: later packets overtake them.
    pub detours: u64,
    /// Largest extra delay of a detour.
    pub detour: Duration,
}

/// Counters of both directions together.
#[derive(Debug, Default)]
pub struct Counts {
    /// Packets sent into the link.
    pub packets: AtomicU64,
    /// Packets that the link lost or could not hand on.
    pub lost: AtomicU64,
    /// Packets that came out more than 2 ms after they were due: this machine was too slow.
    pub late: AtomicU64,
    /// Bytes of the packets, with the headers of IP and UDP.
    pub bytes: AtomicU64,
}

/// One direction. The same seed draws the same fate for the n-th packet.
#[derive(Debug)]
pub struct LossyLink {
    conditions: Conditions,
    /// Bytes of each packet that [`push`](Link::push) does not see.
    headers: u64,
    random: ChaCha8Rng,
    in_flight: InFlight,
    counts: Arc<Counts>,
}

impl LossyLink {
    /// Both directions: towards the server, and back.
    #[must_use]
    pub fn pair(conditions: Conditions, seed: u64, counts: &Arc<Counts>) -> [Self; 2] {
        // Directions must not lose the same packets.
        [seed, !seed].map(|seed| Self {
            conditions,
            headers: 0,
            random: ChaCha8Rng::seed_from_u64(seed),
            in_flight: InFlight::default(),
            counts: counts.clone(),
        })
    }

    /// The same link for packets that lack this number of bytes.
    pub(crate) fn with_headers(self, headers: u64) -> Self {
        Self { headers, ..self }
    }

    /// A number below 100.
    fn draw(&mut self) -> u64 {
        self.random.next_u64() % 100
    }
}

impl Link for LossyLink {
    type Counts = ();

    fn push(&mut self, now: Duration, packet: &[u8]) {
        self.counts.packets.fetch_add(1, Relaxed);
        self.counts.bytes.fetch_add(self.headers + packet.len() as u64, Relaxed);
        if self.draw() < self.conditions.loss {
            self.counts.lost.fetch_add(1, Relaxed);
            return;
        }
        let mut due = now + self.conditions.delay;
        if self.draw() < self.conditions.detours {
            due += self.conditions.detour * u32::try_from(self.draw()).unwrap_or(0) / 100;
        }
        self.in_flight.push(due, packet);
    }

    fn next_due(&self) -> Option<Duration> {
        self.in_flight.next_due()
    }

    fn pop_due_within(&mut self, now: Duration, grain: Duration) -> Option<Vec<u8>> {
        let (due, packet) = self.in_flight.pop_due(now + grain)?;
        if now.saturating_sub(due) > LATE {
            self.counts.late.fetch_add(1, Relaxed);
        }
        Some(packet)
    }

    fn refused(&mut self, _: usize) {
        self.counts.lost.fetch_add(1, Relaxed);
    }

    fn counts(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_and_detours_have_their_shares_and_times() {
        const PACKETS: u64 = 100_000;
        let ms = Duration::from_millis;
        let conditions = Conditions { loss: 10, delay: ms(20), detours: 5, detour: ms(10) };
        let counts = Arc::<Counts>::default();
        let [mut up, _] = LossyLink::pair(conditions, 1, &counts);
        (0..PACKETS).for_each(|_| up.push(Duration::ZERO, &[0; 10]));
        let lost = counts.lost.load(Relaxed);
        // Five standard deviations.
        assert!(lost.abs_diff(PACKETS / 10) < 475, "{lost} lost");
        let (mut arrived, mut late) = (0, 0);
        while let Some(due) = up.next_due() {
            assert!((ms(20)..ms(30)).contains(&due), "{due:?}");
            (arrived, late) = (arrived + 1, late + u64::from(due > ms(20)));
            assert!(up.pop_due_within(due, Duration::ZERO).is_some());
        }
        assert_eq!(arrived, PACKETS - lost);
        // One detour in a hundred adds nothing.
        assert!(late.abs_diff(arrived * 495 / 10_000) < 330, "{late} took a detour");
        assert_eq!((counts.packets.load(Relaxed), counts.late.load(Relaxed)), (PACKETS, 0));
        assert_eq!(counts.bytes.load(Relaxed), 10 * PACKETS);
    }

    #[test]
    fn directions_lose_different_packets_and_a_seed_the_same() {
        let survivors = |seed, direction: usize| {
            let conditions = Conditions { loss: 50, ..Conditions::default() };
            let [up, down] = LossyLink::pair(conditions, seed, &Arc::default());
            let mut link = if direction == 0 { up } else { down };
            (0..100).for_each(|number| link.push(Duration::ZERO, &[number]));
            let next = || link.pop_due_within(Duration::ZERO, Duration::ZERO);
            std::iter::from_fn(next).collect::<Vec<_>>()
        };
        assert_eq!(survivors(7, 0), survivors(7, 0));
        assert_ne!(survivors(7, 0), survivors(7, 1));
        assert_ne!(survivors(7, 0), survivors(8, 0));
    }
}
