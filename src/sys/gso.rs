//! GSO batches that the system takes and those it refused.
//!
//! A refusal usually concerns one destination, whose route has a device without segmentation or an MTU
//! below the segment size. Refusals of several destinations in a row mean that the system does not
//! segment at all. Routes change, so a batch is tried again after [`RETRY_AFTER`] sends.

use std::collections::VecDeque;
use std::net::SocketAddr;

/// Remembered destinations that refused; beyond it the oldest is replaced.
const MAX_DESTINATIONS: usize = 16;
/// Sends until a GSO batch is tried again: each refusal costs one system call.
const RETRY_AFTER: u32 = 256;
/// Destinations that refuse in a row before GSO is off for all.
const MAX_IN_A_ROW: usize = 4;

/// Why the system refused a GSO batch and then took its datagrams one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GsoRefusal {
    /// The system or the network device cannot segment.
    Offload,
    /// The segments exceed the route's MTU: single datagrams leave in IP fragments.
    RouteMtu,
}

#[derive(Debug)]
struct Refused {
    dst: SocketAddr,
    refusal: GsoRefusal,
    /// Smallest refused segment size in bytes.
    size: usize,
    /// Sends until a batch is tried again.
    wait: u32,
}

/// GSO state of one socket.
#[derive(Debug)]
pub(super) struct Gso {
    /// Most datagrams per batch: 1 if the system does not segment.
    max_segments: usize,
    /// Oldest first.
    refused: VecDeque<Refused>,
    /// Destinations refused for the device since a batch was last taken.
    in_a_row: usize,
    /// Sends until a batch is tried again to any destination; mostly 0.
    wait: u32,
}

impl Gso {
    pub(super) fn new(max_segments: usize) -> Self {
        Self { max_segments: max_segments.max(1), refused: VecDeque::new(), in_a_row: 0, wait: 0 }
    }

    /// Most datagrams per batch now.
    #[inline]
    pub(super) fn max_segments(&self) -> usize {
        if self.wait > 0 { 1 } else { self.max_segments }
    }

    /// Most datagrams of `size` bytes in the next send to `dst`.
    #[inline]
    pub(super) fn segments_of_next(&mut self, dst: SocketAddr, size: usize) -> usize {
        if self.wait > 0 {
            self.wait -= 1;
            return 1;
        }
        if self.refused.is_empty() { self.max_segments } else { self.after_refusal(dst, size) }
    }

    fn after_refusal(&mut self, dst: SocketAddr, size: usize) -> usize {
        match self.refused.iter_mut().find(|refused| refused.dst == dst) {
            Some(refused) if refused.wait > 0 && size >= refused.size => {
                refused.wait -= 1;
                1
            }
            _ => self.max_segments,
        }
    }

    /// The system took a batch of datagrams of `size` bytes to `dst`.
    #[inline]
    pub(super) fn on_taken(&mut self, dst: SocketAddr, size: usize) {
        self.in_a_row = 0;
        if !self.refused.is_empty() {
            self.refused.retain(|refused| refused.dst != dst || refused.size > size);
        }
    }

    /// The system refused a batch of datagrams of `size` bytes to `dst` and took its first datagram
    /// alone.
    pub(super) fn on_refused(&mut self, dst: SocketAddr, size: usize, refusal: GsoRefusal) {
        let known = self.refused.iter().position(|refused| refused.dst == dst);
        let before = known.and_then(|place| self.refused.remove(place));
        if refusal == GsoRefusal::Offload {
            let is_new = before.as_ref().is_none_or(|before| before.refusal != refusal);
            self.in_a_row += usize::from(is_new);
            if self.in_a_row >= MAX_IN_A_ROW {
                self.wait = RETRY_AFTER;
            }
        }
        if self.refused.len() >= MAX_DESTINATIONS {
            self.refused.pop_front();
        }
        let size = before.map_or(size, |before| before.size.min(size));
        self.refused.push_back(Refused { dst, refusal, size, wait: RETRY_AFTER });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 1_400;

    fn peer(number: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], number))
    }

    /// Counts sends to `dst` until a batch is tried again.
    fn waits(gso: &mut Gso, dst: SocketAddr) -> u32 {
        let mut sends = 0;
        while gso.segments_of_next(dst, SIZE) == 1 {
            sends += 1;
        }
        sends
    }

    #[test]
    fn refusal_of_one_destination_leaves_the_others_alone_and_is_tried_again() {
        let mut gso = Gso::new(64);
        for refusal in [GsoRefusal::Offload, GsoRefusal::RouteMtu] {
            for _ in 0..10 {
                gso.on_refused(peer(1), SIZE, refusal);
                assert_eq!(gso.max_segments(), 64);
                assert_eq!(gso.segments_of_next(peer(2), SIZE), 64);
                assert_eq!(gso.segments_of_next(peer(1), SIZE - 1), 64, "a smaller one may pass");
                assert_eq!(waits(&mut gso, peer(1)), RETRY_AFTER);
            }
        }
        gso.on_taken(peer(1), SIZE);
        assert_eq!(gso.segments_of_next(peer(1), SIZE), 64);
        assert!(gso.refused.is_empty());
    }

    #[test]
    fn batch_of_smaller_datagrams_does_not_end_the_refusal_of_larger_ones() {
        let mut gso = Gso::new(64);
        gso.on_refused(peer(1), SIZE, GsoRefusal::RouteMtu);
        gso.on_taken(peer(1), SIZE - 200);
        assert_eq!(gso.segments_of_next(peer(1), SIZE), 1);
    }

    #[test]
    fn several_destinations_in_a_row_turn_gso_off_for_a_while() {
        let mut gso = Gso::new(64);
        for number in 1..=3 {
            gso.on_refused(peer(number), SIZE, GsoRefusal::Offload);
            assert_eq!(gso.max_segments(), 64);
        }
        gso.on_taken(peer(9), SIZE);
        for number in 4..=7 {
            assert_eq!(gso.max_segments(), 64);
            gso.on_refused(peer(number), SIZE, GsoRefusal::Offload);
        }
        assert_eq!((gso.max_segments(), waits(&mut gso, peer(9))), (1, RETRY_AFTER));
        // One more refusal is enough now.
        assert_eq!(gso.max_segments(), 64);
        gso.on_refused(peer(9), SIZE, GsoRefusal::Offload);
        assert_eq!((gso.max_segments(), waits(&mut gso, peer(8))), (1, RETRY_AFTER));
        gso.on_taken(peer(8), SIZE);
        gso.on_refused(peer(10), SIZE, GsoRefusal::Offload);
        assert_eq!(gso.max_segments(), 64);
    }

    #[test]
    fn paths_with_a_small_mtu_never_turn_gso_off_for_others() {
        let mut gso = Gso::new(64);
        for number in 1..=1_000 {
            gso.on_refused(peer(number), SIZE, GsoRefusal::RouteMtu);
        }
        assert_eq!((gso.max_segments(), gso.refused.len()), (64, MAX_DESTINATIONS));
        assert_eq!(gso.segments_of_next(peer(1_001), SIZE), 64);
    }
}
