//! What a connection keeps while repair symbols are sent or received, and their statistics.

use crate::core::hello::Hello;
use crate::core::send::protection::ProtectionController;

/// What a connection that uses repair symbols, or whose peer asked for them, has negotiated.
#[derive(Debug)]
pub(super) struct RepairState {
    pub(super) hello: Hello,
    /// Repair rate wanted, per million; 0: none.
    pub(super) rate: u32,
    /// Sets the rate, if that depends on the loss.
    pub(super) auto: Option<ProtectionController>,
    /// The peer has sent FEC, so that it decodes FEC too.
    pub(super) peer_sends_fec: bool,
    pub(super) received: u64,
    pub(super) recovered: u64,
    pub(super) invalid: u64,
}

impl RepairState {
    pub(super) fn new() -> Self {
        Self {
            hello: Hello::new(),
            rate: 0,
            auto: None,
            peer_sends_fec: false,
            received: 0,
            recovered: 0,
            invalid: 0,
        }
    }
}

/// Counters of repair symbols, and the loss that their rate is chosen by.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairStats {
    /// The peer accepts repair symbols, and some are to be sent.
    pub active: bool,
    /// Bytes of repair symbols per million bytes of data.
    pub rate: u32,
    /// Repair symbols sent.
    pub sent: u64,
    /// Segments that the peer recovered with them.
    pub recovered_by_peer: u64,
    /// Repair symbols received.
    pub received: u64,
    /// Segments recovered with them.
    pub recovered: u64,
    /// Repair symbols received that were malformed, outside the window or inconsistent, ignored.
    pub invalid: u64,
    /// Estimated loss of data segments sent for the first time, per million: those that were
    /// retransmitted and those that the peer recovered.
    pub loss_per_million: u32,
}
