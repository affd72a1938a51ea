//! Negotiated state of repair symbols.

use crate::core::redundancy::controller::RedundancyController;
use crate::core::redundancy::hello::Hello;

/// State of HELLO and repair symbols of one connection.
#[derive(Debug)]
pub(super) struct RepairState {
    pub(super) hello: Hello,
    /// Wanted repair rate, per million; 0: none.
    pub(super) rate: u32,
    /// Sets the rate with automatic redundancy.
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
