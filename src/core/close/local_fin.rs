//! Our FIN, as FIN-ACKs and reflections of it are compared with it.

use crate::core::seq::{Sn, Ts};

/// Our FIN, with the timestamps of its first and its latest transmission.
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalFin {
    pub(super) sn: Sn,
    pub(super) first_ts: Ts,
    pub(super) last_ts: Ts,
}

impl LocalFin {
    /// Whether `sn` and `ts` are those of one of its transmissions.
    pub(super) fn matches(&self, sn: Sn, ts: Ts) -> bool {
        self.sn == sn && ts.since(self.first_ts) >= 0 && ts.since(self.last_ts) <= 0
    }
}
