//! The packets under way in one direction.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Packets by time of arrival, equal times in the order of sending.
#[derive(Debug, Default)]
pub struct InFlight {
    packets: BinaryHeap<Reverse<(Duration, u64, Vec<u8>)>>,
    sent: u64,
}

impl InFlight {
    /// Adds a packet that arrives at `due`.
    pub fn push(&mut self, due: Duration, packet: &[u8]) {
        self.sent += 1;
        self.packets.push(Reverse((due, self.sent, packet.to_vec())));
    }

    /// When the next packet arrives.
    #[must_use]
    pub fn next_due(&self) -> Option<Duration> {
        self.packets.peek().map(|Reverse((due, ..))| *due)
    }

    /// Takes out the next packet that arrives no later than `time`, with the time of its arrival.
    pub fn pop_due(&mut self, time: Duration) -> Option<(Duration, Vec<u8>)> {
        self.next_due().filter(|due| *due <= time)?;
        self.packets.pop().map(|Reverse((due, _, packet))| (due, packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_arrive_by_time_and_at_the_same_time_in_the_order_of_sending() {
        let ms = Duration::from_millis;
        let mut in_flight = InFlight::default();
        for (due, packet) in [(2, 9), (1, 5), (2, 3), (2, 7)] {
            in_flight.push(ms(due), &[packet]);
        }
        assert_eq!(in_flight.next_due(), Some(ms(1)));
        assert_eq!(in_flight.pop_due(Duration::from_micros(999)), None);
        for expected in [(1, 5), (2, 9), (2, 3), (2, 7)] {
            let (due, packet) = in_flight.pop_due(ms(2)).expect("a packet");
            assert_eq!((due, packet), (ms(expected.0), vec![expected.1]));
        }
        assert_eq!((in_flight.next_due(), in_flight.pop_due(ms(9))), (None, None));
    }
}
