//! Black hole detection of path MTU discovery (RFC 8899 4.3, RFC 2923 2.1).

use crate::core::clock::Micros;

/// Retransmissions of full segments, at least one RTO apart and without an ACK of a full segment
/// between them, that suggest a black hole (RFC 8899 4.3; quinn and s2n-quic use the same 3).
const BLACK_HOLE_THRESHOLD: u8 = 3;

/// Counts losses of full segments since the last ACK of a full segment (RFC 8899 4.3).
#[derive(Debug, Default)]
pub(super) struct BlackHoleDetector {
    /// Losses since the last reset.
    suspicious_loss_count: u8,
    /// When the latest of them was counted.
    last_loss: Micros,
    /// Largest datagram counted, bytes.
    largest: usize,
}

impl BlackHoleDetector {
    /// Counts the loss of a datagram of `size` bytes; losses within one RTO count once. Returns
    /// whether [`BLACK_HOLE_THRESHOLD`] is reached. `rto` in microseconds.
    pub(super) fn on_loss(&mut self, now: Micros, size: usize, rto: u64) -> bool {
        if self.suspicious_loss_count > 0 && now.since(self.last_loss) < rto {
            return false;
        }
        (self.suspicious_loss_count, self.last_loss) = (self.suspicious_loss_count + 1, now);
        self.largest = self.largest.max(size);
        self.suspicious_loss_count >= BLACK_HOLE_THRESHOLD
    }

    pub(super) fn reset(&mut self) {
        (self.suspicious_loss_count, self.largest) = (0, 0);
    }

    /// Whether a loss was counted since the last reset.
    #[inline]
    pub(super) fn is_suspicious(&self) -> bool {
        self.suspicious_loss_count > 0
    }

    /// Whether an ACK of a datagram of `size` bytes refutes the suspicion: no larger one was lost.
    pub(super) fn is_refuted_by(&self, size: usize) -> bool {
        size >= self.largest
    }
}
