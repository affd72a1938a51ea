//! Limits of the sending rate. [`Congestion`] is the congestion control of a connection: none, KCP's congestion
//! window, or the BBR model of the path. The submodules add pacing, the rate limit and window autotuning.

pub(crate) mod autotune;
mod bbr;
mod controller;
mod delivery_rate;
mod flow;
pub(crate) mod pacer;
pub(crate) mod reno;

pub(crate) use bbr::INITIAL_WINDOW;
pub(crate) use controller::{Limit, Pacing, SentAs};
pub(crate) use flow::PathHandle;

use std::num::NonZeroU64;

use crate::config::{CongestionControl, DEFAULT_WINDOW};
use crate::core::clock::Micros;
#[cfg(feature = "qlog")]
use crate::core::congestion::controller::ModelState;
use crate::core::congestion::flow::Flow;
use crate::core::congestion::reno::CongestionWindow;
use crate::core::seq::Sn;

/// Congestion control of one connection. Segments are counted from the oldest that is not both acknowledged
/// cumulatively and proved ([`UnaProof`](crate::core::recovery::acked::UnaProof)).
#[derive(Debug)]
pub(crate) struct Congestion {
    /// Segments that may be in flight; sending reads nothing else. With a model it is `u32::MAX` while
    /// another segment may leave and 0 otherwise: the model counts bytes, without those acknowledged out of
    /// order.
    ///
    /// Invariant: equals [`Control::window`], except between the acknowledgements of a datagram and
    /// [`Congestion::on_acks_processed`]; [`Congestion::change`] keeps it so. A change that another
    /// connection makes to a shared model shows with the next event here.
    window: u32,
    control: Control,
    /// The path, if other connections share its model.
    path: Option<Box<PathHandle>>,
}

#[derive(Debug)]
enum Control {
    Disabled,
    Reno(CongestionWindow),
    /// Entered when a segment leaves. Left when the connection is idle, or when its round trip is short and
    /// it has lost nothing.
    Bbr(Box<Flow>),
    /// A model without state; [`Congestion::begin_bbr`] creates the state. Used while nothing is in flight,
    /// since after an idle time the path may have changed (RFC 5681 4.1), and on a path with a short round
    /// trip until something is lost.
    IdleBbr(SlowStart),
}

/// Slow start (RFC 5681 3.1) in place of a model. On a path with a short round trip the model would cost a
/// tenth of the sending time, and while nothing is lost a large window does no harm.
#[derive(Clone, Copy, Debug)]
struct SlowStart {
    /// Segments.
    window: u32,
}

impl SlowStart {
    /// Window at the start, segments: kcp-go's default.
    const INITIAL: u32 = DEFAULT_WINDOW as u32;
    const NEW: Self = Self { window: Self::INITIAL };
}

impl Control {
    fn window(&self) -> u32 {
        match self {
            Self::Disabled => u32::MAX,
            Self::IdleBbr(slow_start) => slow_start.window,
            Self::Reno(window) => window.window(),
            Self::Bbr(flow) if flow.is_open() => u32::MAX,
            Self::Bbr(_) => 0,
        }
    }
}

impl Congestion {
    /// No congestion control until [`Self::set_mode`].
    pub(crate) fn disabled() -> Self {
        Self { window: u32::MAX, control: Control::Disabled, path: None }
    }

    pub(crate) fn mode(&self) -> CongestionControl {
        match self.control {
            Control::Disabled => CongestionControl::Off,
            Control::Reno(_) => CongestionControl::Reno,
            Control::Bbr(_) | Control::IdleBbr(_) => CongestionControl::Bbr,
        }
    }

    /// Whether a model is selected but has no state.
    #[inline]
    pub(crate) fn is_bbr_suspended(&self) -> bool {
        matches!(self.control, Control::IdleBbr(_))
    }

    /// Creates the state of the model. `segment`: length of a full segment, bytes; `in_flight`: as in
    /// [`Self::set_mode`]; `initial_rate`: configured, bytes per second.
    pub(crate) fn begin_bbr(
        &mut self,
        segment: u64,
        in_flight: impl Iterator<Item = u32>,
        initial_rate: Option<NonZeroU64>,
    ) {
        let flow = self.join(segment, in_flight);
        self.change(|control| *control = Control::Bbr(flow));
        if let Some(rate) = initial_rate {
            self.change_flow(|flow| flow.set_initial_rate(rate));
        }
    }

    fn join(&self, segment: u64, in_flight: impl Iterator<Item = u32>) -> Box<Flow> {
        let path = self.path.as_deref().cloned().unwrap_or_default();
        Box::new(Flow::join(path, segment, in_flight))
    }

    /// The path, for other connections that share its model.
    pub(crate) fn shared_path(&mut self) -> PathHandle {
        let path = match &self.control {
            Control::Bbr(flow) => flow.path().clone(),
            _ => PathHandle::default(),
        };
        (**self.path.get_or_insert_with(|| Box::new(path))).clone()
    }

    /// Uses the model of `path` from now on. `segment` and `in_flight`: as in [`Self::begin_bbr`].
    pub(crate) fn share_path(
        &mut self,
        path: PathHandle,
        segment: u64,
        in_flight: impl Iterator<Item = u32>,
    ) {
        if self.path.as_deref().is_some_and(|shared| shared.is_same(&path)) {
            return;
        }
        self.path = Some(Box::new(path));
        self.rejoin(segment, in_flight);
    }

    /// Leaves a path that other connections share, and begins a new model. Keeps a model that no other
    /// connection shares.
    pub(crate) fn leave_path(&mut self, segment: u64, in_flight: impl Iterator<Item = u32>) {
        let Some(path) = self.path.take() else { return };
        let own = 1 + usize::from(self.flow().is_some());
        if path.handles() > own {
            self.rejoin(segment, in_flight);
        }
    }

    fn rejoin(&mut self, segment: u64, in_flight: impl Iterator<Item = u32>) {
        if let Control::Bbr(_) = &self.control {
            let flow = self.join(segment, in_flight);
            self.change(|control| *control = Control::Bbr(flow));
        }
    }

    /// Frees the state of a model. Slow start continues with `window` segments, at least its initial window.
    fn suspend_with(&mut self, window: u32) {
        let window = window.max(SlowStart::INITIAL);
        self.change(|control| *control = Control::IdleBbr(SlowStart { window }));
    }

    /// A segment leaves for the first time on a path with a short round trip. Frees the state of a model that
    /// has found no loss; `in_flight` in segments. Returns whether the model has no state now.
    #[inline]
    pub(crate) fn suspend_on_short_path(&mut self, in_flight: u32) -> bool {
        match &self.control {
            Control::IdleBbr(_) => return true,
            Control::Bbr(flow) if !flow.has_lost() => {}
            _ => return false,
        }
        self.suspend_with(in_flight);
        true
    }

    /// `count` segments were acknowledged for the first time.
    #[inline]
    pub(crate) fn on_newly_acked(&mut self, count: u32) {
        if let Control::IdleBbr(SlowStart { window }) = &mut self.control
            && *window < u32::from(u16::MAX)
        {
            *window = window.saturating_add(count);
            self.window = *window;
        }
    }

    /// Starts `mode` afresh. `una` is SND.UNA, `segment` the length of a full segment in bytes, `in_flight`
    /// the bytes of each segment from SND.UNA on, 0 for acknowledged ones.
    pub(crate) fn set_mode(
        &mut self,
        mode: CongestionControl,
        una: Sn,
        segment: u64,
        in_flight: impl Iterator<Item = u32>,
    ) {
        self.control = match mode {
            CongestionControl::Off => Control::Disabled,
            CongestionControl::Reno => {
                Control::Reno(CongestionWindow::with_in_flight(una, in_flight.count()))
            }
            CongestionControl::Bbr => {
                let mut in_flight = in_flight.peekable();
                if in_flight.peek().is_none() {
                    Control::IdleBbr(SlowStart::NEW)
                } else {
                    Control::Bbr(self.join(segment, in_flight))
                }
            }
        };
        self.window = self.control.window();
    }

    /// Segments that may be in flight; `u32::MAX`: no limit.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// Changes the control and updates `window`. All changes go through here, except single acknowledgements.
    #[inline]
    fn change(&mut self, change: impl FnOnce(&mut Control)) {
        change(&mut self.control);
        self.window = self.control.window();
    }

    /// Changes the Reno window if it is in use.
    #[inline]
    pub(crate) fn change_reno(&mut self, change: impl FnOnce(&mut CongestionWindow)) {
        if let Control::Reno(_) = &self.control {
            self.change(|control| {
                if let Control::Reno(window) = control {
                    change(window);
                }
            });
        }
    }

    /// Changes the flow of a model and updates `window`.
    #[inline]
    fn change_flow<T>(&mut self, change: impl FnOnce(&mut Flow) -> T) -> Option<T> {
        let Control::Bbr(flow) = &mut self.control else { return None };
        let result = change(flow);
        self.window = self.control.window();
        Some(result)
    }

    fn flow(&self) -> Option<&Flow> {
        match &self.control {
            Control::Bbr(flow) => Some(flow),
            Control::Disabled | Control::Reno(_) | Control::IdleBbr(_) => None,
        }
    }

    /// Whether a model limits rate and window.
    #[inline]
    pub(crate) fn is_bbr(&self) -> bool {
        matches!(self.control, Control::Bbr(_) | Control::IdleBbr(_))
    }

    /// Whether a model samples the delivery rate with each segment.
    #[inline]
    pub(crate) fn samples_rate(&self) -> bool {
        matches!(self.control, Control::Bbr(_))
    }

    /// Whether the model has seen a queue overflow.
    #[inline]
    pub(crate) fn overflows(&self) -> bool {
        self.flow().is_some_and(Flow::overflows)
    }

    /// Many segments in a row were lost.
    pub(crate) fn on_burst_lost(&mut self, now: Micros) {
        self.change_flow(|flow| flow.on_burst_lost(now));
    }

    /// Whether Reno limits sending (kcp-go `nc` 0).
    pub(crate) fn is_reno(&self) -> bool {
        matches!(self.control, Control::Reno(_))
    }

    /// Segment `index` leaves; `bytes` with its header. `limit`: another reason than the model's why nothing
    /// more may leave for now. Returns the pacing of a model.
    pub(crate) fn on_sent(
        &mut self,
        now: Micros,
        index: usize,
        bytes: u32,
        sent_as: SentAs,
        limit: Option<Limit>,
    ) -> Option<Pacing> {
        self.change_flow(|flow| flow.on_sent(now, index, bytes, sent_as, limit)).flatten()
    }

    /// Segment `index` leaves on another path. `by_timeout`: if this one has lost it, whether a
    /// timeout has shown it.
    pub(crate) fn on_moved_away(&mut self, now: Micros, index: usize, by_timeout: Option<bool>) {
        self.change_flow(|flow| flow.on_moved_away(now, index, by_timeout));
    }

    /// Data leaves on another path from now on. `start`: the first segment that counts, with index 0.
    pub(crate) fn pause_at(&mut self, start: Sn) {
        self.change_flow(|flow| flow.pause_at(start));
    }

    /// Segments have left on another path since [`Self::pause_at`]. `start`: the first segment that counts now;
    /// `len`: how many count.
    pub(crate) fn catch_up(&mut self, now: Micros, start: Sn, len: usize) {
        self.change_flow(|flow| flow.catch_up(now, start, len));
    }

    /// Segment `index` was acknowledged for the first time. `is_latest`: as far as known, its latest
    /// transmission arrived.
    #[inline]
    pub(crate) fn on_acked(&mut self, now: Micros, index: usize, is_latest: bool) {
        if let Control::Bbr(flow) = &mut self.control {
            flow.on_acked(now, index, is_latest);
        }
    }

    /// The only transmission of segment `index` was lost, and repair symbols recovered the segment. Reno is
    /// handled by [`Self::change_reno`].
    pub(crate) fn on_hidden_loss(&mut self, now: Micros, index: usize) {
        self.change_flow(|flow| flow.on_hidden_loss(now, index));
    }

    /// The pacing of a model.
    pub(crate) fn pacing(&self) -> Option<Pacing> {
        self.flow().and_then(Flow::pacing)
    }

    /// SND.UNA passes a segment that is proved to have arrived.
    #[inline]
    pub(crate) fn on_una(&mut self, now: Micros) {
        if let Control::Bbr(flow) = &mut self.control {
            flow.on_una(now);
        }
    }

    /// The first `count` segments are no longer in flight, although nothing proves that they arrived.
    #[inline]
    pub(crate) fn write_off(&mut self, count: u32) {
        if count > 0 {
            self.change_flow(|flow| flow.write_off(count));
        }
    }

    /// An RTT sample, microseconds.
    #[inline]
    pub(crate) fn on_rtt(&mut self, rtt: u64) {
        if let Control::Bbr(flow) = &mut self.control {
            flow.on_rtt(rtt);
        }
    }

    /// Called at the end of a datagram that carried acknowledgements.
    #[inline]
    pub(crate) fn on_acks_processed(&mut self, now: Micros, longest_wait: u64) {
        self.change_flow(|flow| flow.on_acks_processed(now, longest_wait));
    }

    /// A retransmission was spurious.
    pub(crate) fn on_spurious_retransmit(&mut self) {
        self.change_flow(Flow::on_spurious_loss);
    }

    /// Sets the length of a full segment, header included, bytes.
    pub(crate) fn set_segment(&mut self, segment: u64) {
        self.change_flow(|flow| flow.set_segment(segment));
    }

    /// Whether [`Self::release_memory`] would free a model.
    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        self.flow().is_some_and(Flow::is_empty)
    }

    /// Frees memory that an idle connection does not need.
    pub(crate) fn release_memory(&mut self) {
        if self.has_reclaimable_memory() || self.is_bbr_suspended() {
            self.suspend_with(0);
        }
    }

    /// For statistics: window in full segments of `segment` bytes, pacing rate and delivery rate in bytes per
    /// second; 0 while unknown.
    pub(crate) fn estimates(&self, segment: u64) -> (u32, u64, u64) {
        let Some(flow) = self.flow() else { return (self.window, 0, 0) };
        let (window, pacing_rate, delivery_rate) = flow.estimates();
        let window = u32::try_from(window / segment.max(1)).unwrap_or(u32::MAX);
        (window, pacing_rate, delivery_rate)
    }

    /// The state for the qlog.
    #[cfg(feature = "qlog")]
    pub(crate) fn model(&self) -> ModelState {
        match &self.control {
            Control::Bbr(flow) => flow.model(),
            Control::IdleBbr(_) => ModelState::of("unmodelled"),
            Control::Reno(_) => ModelState::of("reno"),
            Control::Disabled => ModelState::of("off"),
        }
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self, unacked: impl Iterator<Item = bool>) {
        assert_eq!(self.window, self.control.window());
        if let Some(flow) = self.flow() {
            flow.check_invariants(self.path.is_none(), unacked);
        }
    }
}
