//! What a connection keeps while repair symbols are sent or received.

use crate::core::redundancy::controller::RedundancyController;
use crate::core::redundancy::hello::Hello;

/// What a connection that uses repair symbols, or whose peer asked for them, has negotiated.
#[derive(Debug)]
pub(super) struct RepairState {
    pub(super) hello: Hello,
    /// Repair rate wanted, per million; 0: none.
    pub(super) rate: u32,
    /// Sets the rate, if that depends on the loss.
    pub(super) auto: Option<RedundancyController>,
    pub(super) received: u64,
    pub(super) recovered: u64,
    pub(super) invalid: u64,
}

impl RepairState {
    pub(super) fn new() -> Self {
        Self { hello: Hello::new(), rate: 0, auto: None, received: 0, recovered: 0, invalid: 0 }
    }
}
