//! Lifecycle of a connection in the driver: from its creation, through `shutdown` and the drop of its last
//! handle, to its removal.
//!
//! A state says what the handles have done, and which timeout runs because of it. `core::close` has FIN and
//! RST, and TIME-WAIT (`routing`) answers after the removal. Address validation (RFC 9000 8.1) runs beside
//! the lifecycle, since a connection may be shut down or dropped before its peer is validated.

use std::time::{Duration, Instant};

/// How long a closing connection waits for the next ACK while its peer waits for a reader of this side. Two
/// such sides would wait for each other until the linger timeout, or for ever. After this time a dropped
/// connection that discards data of its peer ends, and `shutdown` returns if both windows are closed.
const READER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long an unanswered connection is kept after its `connect` was dropped: if the answer is on its way,
/// the peer is sent a FIN or RST.
const ABANDONED_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The flow control windows of a connection that is shut down (RFC 9293 3.8.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Windows {
    /// One side may send, as far as is known. Entered on `shutdown`, and when a window opens; left when both
    /// are closed.
    Open,
    /// Both are closed since `last_progress`: the peer waits for a reader of this side, or its own
    /// application does not read. Left when a window opens, and after [`READER_TIMEOUT`].
    Closed,
    /// `shutdown` has returned after [`READER_TIMEOUT`]. The rest is delivered once the application reads.
    /// Never left.
    Background,
}

/// State of a connection; the states compare to RFC 9293 3.3.2 as noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifecycle {
    /// `connect` waits for the peer (SYN-SENT). Entered on an active open that sends an initial segment
    /// without data; left when the peer answers, on the drop of the last handle, on the connect timeout, and
    /// on an error.
    Connecting {
        /// When `connect` fails.
        deadline: Instant,
    },
    /// Handles may write (ESTABLISHED). Entered on every other creation, and from `Connecting`; left on
    /// `shutdown`, on the drop of the last handle, and on an error or abort.
    Open,
    /// The write side is shut down and not everything is acknowledged (FIN-WAIT-1). Entered on `shutdown`;
    /// left once all is acknowledged, on the drop of the last handle, on the linger timeout, and on an error
    /// or abort.
    ShutDown {
        /// When the state was entered, or the peer last acknowledged something new.
        last_progress: Instant,
        windows: Windows,
    },
    /// All data is acknowledged and `shutdown` has returned (FIN-WAIT-2 once the FIN is acknowledged too);
    /// reading goes on. Entered from `ShutDown`; left when the peer's FIN is read and this side's FIN is
    /// acknowledged, on the drop of the last handle, and on an error or abort.
    Drained {
        /// Until when `wait_idle` waits for the FIN-ACK.
        fin_ack_deadline: Instant,
    },
    /// The last handle is dropped: written data is still delivered, nothing is read. Entered on the drop;
    /// left once all data and the FIN are acknowledged, on the linger timeout, on the discard timeout, and on
    /// an error.
    Detached {
        /// When the state was entered, when the peer last acknowledged something new, or when it last
        /// answered while it took nothing.
        last_progress: Instant,
    },
    /// The handles are notified of the error. Entered when the connection ends, with any error; left by
    /// removal once the RST, if one is sent, is acknowledged or given up.
    Ended {
        /// Until when `wait_idle` waits for the acknowledgement of the RST.
        reset_ack_deadline: Instant,
    },
}

impl Lifecycle {
    /// The peer has answered.
    pub(super) fn on_established(&mut self) {
        if let Self::Connecting { .. } = self {
            *self = Self::Open;
        }
    }

    pub(super) fn connect_deadline(&self) -> Option<Instant> {
        match self {
            Self::Connecting { deadline } => Some(*deadline),
            _ => None,
        }
    }

    /// The application has shut down the write side.
    pub(super) fn on_shutdown(&mut self, now: Instant) {
        if matches!(self, Self::Connecting { .. } | Self::Open) {
            *self = Self::ShutDown { last_progress: now, windows: Windows::Open };
        }
    }

    /// `closed`: both windows are closed while something is left to deliver.
    pub(super) fn on_windows(&mut self, now: Instant, closed: bool) {
        let Self::ShutDown { last_progress, windows } = self else { return };
        match (*windows, closed) {
            (Windows::Open, true) => (*last_progress, *windows) = (now, Windows::Closed),
            (Windows::Closed, false) => *windows = Windows::Open,
            _ => {}
        }
    }

    /// When `shutdown` returns although not everything is acknowledged, see [`READER_TIMEOUT`].
    pub(super) fn background_deadline(&self) -> Option<Instant> {
        match self {
            Self::ShutDown { last_progress, windows: Windows::Closed } => {
                Some(*last_progress + READER_TIMEOUT)
            }
            _ => None,
        }
    }

    /// `shutdown` returns, and the rest is delivered in the background.
    pub(super) fn on_background(&mut self) {
        if let Self::ShutDown { windows, .. } = self {
            *windows = Windows::Background;
        }
    }

    /// The last handle was dropped.
    pub(super) fn on_detached(&mut self, now: Instant) {
        match self {
            Self::Connecting { .. } | Self::Open | Self::ShutDown { .. } | Self::Drained { .. } => {
                *self = Self::Detached { last_progress: now };
            }
            Self::Detached { .. } | Self::Ended { .. } => {}
        }
    }

    /// The peer has acknowledged something new.
    pub(super) fn on_progress(&mut self, now: Instant) {
        if let Self::ShutDown { last_progress, .. } | Self::Detached { last_progress } = self {
            *last_progress = now;
        }
    }

    /// The peer takes nothing now, and its latest datagram came at `last_received`. While it answers window
    /// probes, or data that it does not take, a reader may still come.
    pub(super) fn on_window_report(&mut self, last_received: Instant) {
        if let Self::Detached { last_progress } = self {
            *last_progress = last_received.max(*last_progress);
        }
    }

    /// Everything written is acknowledged. Returns true on the transition to `Drained`.
    pub(super) fn on_drained(&mut self, now: Instant, linger: Duration) -> bool {
        let drains = matches!(self, Self::ShutDown { .. });
        if drains {
            *self = Self::Drained { fin_ack_deadline: now + linger };
        }
        drains
    }

    /// The handles are notified that the connection has ended.
    pub(super) fn on_ended(&mut self, now: Instant, linger: Duration) {
        *self = Self::Ended { reset_ack_deadline: now + linger };
    }

    pub(super) fn is_ended(&self) -> bool {
        matches!(self, Self::Ended { .. })
    }

    pub(super) fn is_detached(&self) -> bool {
        matches!(self, Self::Detached { .. })
    }

    /// Whether the application writes no more: from `shutdown` or the drop of the last handle until the end.
    pub(super) fn is_closing(&self) -> bool {
        matches!(self, Self::ShutDown { .. } | Self::Drained { .. } | Self::Detached { .. })
    }

    /// When closing is given up: `linger` (SO_LINGER) after the last progress. While a task waits for
    /// `shutdown`, any datagram of the peer counts as progress (`last_received`), since the peer may be slow
    /// to read; window probes leave at least three times in that time. After `shutdown` has returned, the
    /// dead-peer timeout decides.
    pub(super) fn linger_deadline(
        &self,
        last_received: Instant,
        linger: Duration,
    ) -> Option<Instant> {
        match self {
            Self::ShutDown { windows: Windows::Background, .. } => None,
            Self::ShutDown { last_progress, .. } => {
                Some((*last_progress).max(last_received) + linger)
            }
            Self::Detached { last_progress } => Some(*last_progress + linger),
            Self::Connecting { .. } | Self::Open | Self::Drained { .. } | Self::Ended { .. } => {
                None
            }
        }
    }

    /// The last progress or the end of a connection that is not in use. `linger`: as at the end.
    pub(super) fn closing_since(&self, linger: Duration) -> Option<Instant> {
        match self {
            Self::Detached { last_progress } => Some(*last_progress),
            Self::Ended { reset_ack_deadline } => reset_ack_deadline.checked_sub(linger),
            _ => None,
        }
    }

    /// When an unanswered connection is given up after its `connect` was dropped.
    pub(super) fn abandoned_deadline(&self) -> Option<Instant> {
        match self {
            Self::Detached { last_progress } => Some(*last_progress + ABANDONED_CONNECT_TIMEOUT),
            _ => None,
        }
    }

    /// When a dropped connection that discards data of its peer is given up, see [`READER_TIMEOUT`].
    pub(super) fn discard_deadline(&self) -> Option<Instant> {
        match self {
            Self::Detached { last_progress } => Some(*last_progress + READER_TIMEOUT),
            _ => None,
        }
    }

    /// Until when `wait_idle` waits for the peer to acknowledge the FIN of a drained connection or the RST of
    /// an ended one.
    pub(super) fn close_deadline(&self) -> Option<Instant> {
        match self {
            Self::Drained { fin_ack_deadline } => Some(*fin_ack_deadline),
            Self::Ended { reset_ack_deadline } => Some(*reset_ack_deadline),
            Self::Connecting { .. }
            | Self::Open
            | Self::ShutDown { .. }
            | Self::Detached { .. } => None,
        }
    }
}

/// Events that the handles were notified of, so that their tasks are woken once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reported {
    /// The peer has answered: `established` returns.
    pub(super) established: bool,
    /// The peer's FIN was delivered after its last byte: reads return 0.
    pub(super) eof: bool,
    /// Whether the peer takes out-of-band datagrams, once it has shown that.
    pub(super) datagrams: Option<bool>,
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test needs one real instant to count from")]
mod tests {
    use super::*;

    const LINGER: Duration = Duration::from_secs(30);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn shutdown_then_drained_then_drop_visits_each_state_once() {
        let now = Instant::now();
        let mut state = Lifecycle::Open;
        assert!(!state.on_drained(now, LINGER) && !state.is_closing(), "nothing was shut down");
        state.on_shutdown(now);
        let shut_down = Lifecycle::ShutDown { last_progress: now, windows: Windows::Open };
        assert_eq!(state, shut_down);
        state.on_shutdown(now + SECOND);
        assert_eq!(state, shut_down, "a second shutdown");
        assert!(state.on_drained(now + SECOND, LINGER) && !state.on_drained(now, LINGER));
        assert_eq!(state.close_deadline(), Some(now + SECOND + LINGER));
        assert_eq!(state.linger_deadline(now, LINGER), None);
        state.on_detached(now + 2 * SECOND);
        assert!(state.is_detached() && state.is_closing());
        assert!(!state.on_drained(now, LINGER), "no handle is left to notify");
        state.on_ended(now + 3 * SECOND, LINGER);
        assert!(state.is_ended() && !state.is_closing());
        state.on_detached(now);
        state.on_shutdown(now);
        assert_eq!(state.close_deadline(), Some(now + 3 * SECOND + LINGER), "it stays ended");
    }

    #[test]
    fn linger_deadline_counts_datagrams_until_drop_and_acks_after_it() {
        let now = Instant::now();
        let mut state = Lifecycle::Open;
        state.on_shutdown(now);
        assert_eq!(state.linger_deadline(now + SECOND, LINGER), Some(now + SECOND + LINGER));
        assert_eq!(state.discard_deadline(), None);
        state.on_detached(now);
        assert_eq!(state.linger_deadline(now + SECOND, LINGER), Some(now + LINGER));
        state.on_progress(now + SECOND);
        assert_eq!(state.linger_deadline(now, LINGER), Some(now + SECOND + LINGER));
        assert_eq!(state.discard_deadline(), Some(now + SECOND + READER_TIMEOUT));
    }

    #[test]
    fn shutdown_returns_a_second_after_both_windows_closed() {
        let now = Instant::now();
        let mut state = Lifecycle::Open;
        state.on_windows(now, true);
        assert_eq!((state, state.background_deadline()), (Lifecycle::Open, None));
        state.on_shutdown(now);
        state.on_windows(now + SECOND, true);
        state.on_windows(now + 2 * SECOND, false);
        assert_eq!(state.background_deadline(), None, "a reader came");
        state.on_windows(now + 3 * SECOND, true);
        state.on_windows(now + 4 * SECOND, true);
        assert_eq!(state.background_deadline(), Some(now + 3 * SECOND + READER_TIMEOUT));
        state.on_background();
        state.on_windows(now + 5 * SECOND, false);
        assert_eq!((state.background_deadline(), state.linger_deadline(now, LINGER)), (None, None));
    }
}
