//! Our FIN, to recognise its FIN-ACKs and reflections.

use crate::core::seq::{Sn, Ts};

/// Our FIN, with the timestamps of its first and latest transmission.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalFin {
    pub(super) sn: Sn,
    pub(super) first_ts: Ts,
    pub(super) last_ts: Ts,
}

impl LocalFin {
    /// Whether one of its transmissions had `sn` and `ts`.
    pub(super) fn matches(&self, sn: Sn, ts: Ts) -> bool {
        self.sn == sn && ts.since(self.first_ts) >= 0 && ts.since(self.last_ts) <= 0
    }
}
