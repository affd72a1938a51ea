//! Deep checks: the answers of a connection about itself.

use std::time::{Duration, Instant};

use super::{CONV, Pair, Side};
use crate::core::connection::Kcp;
use crate::core::open::OpenedBy;
use crate::error::ConnectionError;

impl Pair {
    /// Checks both sides in depth.
    pub(super) fn observe(&mut self) {
        for Side { kcp, .. } in &mut self.sides {
            kcp.check_invariants();
            check_sizes(kcp);
            check_times(kcp, self.now);
            check_end(kcp, self.now);
            check_paths(kcp);
            assert!(!kcp.take_window_report() || !kcp.take_window_report(), "reported once");
        }
    }
}

fn check_sizes(kcp: &Kcp) {
    assert_eq!(kcp.conv(), CONV);
    let (limit, unsent) = kcp.send_backlog();
    assert!(kcp.send_capacity() <= kcp.window_capacity().min(limit));
    assert!(kcp.send_memory() >= unsent);
    assert!(kcp.current_mtu() <= kcp.max_mtu().into());
    assert!(kcp.readable().is_none_or(|bytes| bytes <= kcp.recv_memory()));
    assert!(kcp.send_unit() <= kcp.max_message_size());
    let (stats, counters) = (kcp.stats(), kcp.counters());
    assert_eq!(stats.sent.segments, counters.sent.segments);
    assert_eq!(kcp.estimates().unsent_bytes, unsent as u64);
    assert_eq!(stats.redundancy, kcp.redundancy_stats().unwrap_or_default());
}

fn check_times(kcp: &Kcp, now: Instant) {
    let limited = kcp.rate_limited_until(now);
    assert!(limited.is_none_or(|until| until > now && kcp.is_rate_limited()));
    assert!(kcp.poll_liveness().is_none() || kcp.close_reason().is_none());
    let (work, is_limited) = (kcp.poll_work(), !kcp.send_budget().is_unlimited());
    assert!(is_limited || work.is_none() || work >= kcp.poll_timeout());
    assert!(kcp.time_since_alive(now + Duration::from_secs(1)) > kcp.time_since_alive(now));
}

fn check_end(kcp: &Kcp, now: Instant) {
    let reason = kcp.close_reason();
    assert!(!kcp.is_closed() || kcp.is_drained());
    assert!(!kcp.is_resetting(now) || (reason.is_some() && kcp.reset_until() > Some(now)));
    assert!(!kcp.was_reset_orderly() || reason == Some(ConnectionError::Reset));
    assert!(!kcp.is_unknown_to_peer() || reason == Some(ConnectionError::Reset));
    assert!(!kcp.windows_are_closed() || kcp.waits_for_window() || kcp.has_discarded_data());
    assert!(!kcp.waits_for_window() || !kcp.has_discarded_data());
    let time_wait = kcp.time_wait(OpenedBy::default(), kcp.readable().is_some(), None);
    assert_eq!((time_wait.rcv_nxt, time_wait.snd_una), (kcp.rcv_nxt(), kcp.una()));
    assert_eq!(time_wait.withheld, kcp.withholds_acks());
    assert!(!time_wait.reset_on_data || reason != Some(ConnectionError::Reset));
    assert!(!kcp.is_refused() || kcp.has_started());
    assert!(!kcp.needs_ip_fragmentation() || reason.is_none());
    // The answers depend on the past.
    let _ = (kcp.has_pending_transmit(now), kcp.has_started(), kcp.has_reclaimable_memory());
    let _ = (kcp.peer_has_closed(), kcp.peer_supports_close(), kcp.awaits_peer_data());
    let _ = (kcp.awaits_first_data(), kcp.peer_accepts_datagrams());
    let _ = (kcp.is_simultaneous_passive_open(), kcp.must_send_reset(ConnectionError::IdleTimeout));
}

fn check_paths(kcp: &Kcp) {
    let active = kcp.active_path();
    assert_eq!(kcp.paths().filter(|path| path.is_active && path.id == active).count(), 1);
    assert!(kcp.paths().count() <= 1 || kcp.peer_accepts_paths() != Some(false));
    #[cfg(feature = "tracing")]
    assert!(kcp.paths().count() > 1 || !kcp.is_path_doubted(active));
}
