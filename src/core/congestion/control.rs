//! The congestion control of a connection: none, KCP's congestion window, or a controller with a
//! model of the path.

use std::num::NonZeroU64;

use crate::config::{CongestionControl, DEFAULT_WINDOW};
use crate::core::clock::Micros;
use crate::core::congestion::controller::{Acked, Controller, Lost, Pacing};
use crate::core::congestion::delivery_rate::DeliveryRate;
use crate::core::congestion::model::Model;
use crate::core::congestion::reno::CongestionWindow;
use crate::core::seq::Sn;

const SECOND: u64 = 1_000_000;

/// Congestion control of one connection. Segments are counted from the oldest that is not acknowledged
/// cumulatively and with proof ([`UnaProof`](crate::core::send::una_proof::UnaProof)).
#[derive(Debug)]
pub(crate) struct Congestion {
    /// Segments that may be in flight, which is all that sending reads. With a model `u32::MAX`
    /// while another segment may leave, and zero while none may: the model counts bytes, and not
    /// those that were acknowledged out of order.
    ///
    /// Invariant: as [`Control::window`] says; [`Congestion::change`] keeps it so. Not between the
    /// acknowledgements of a datagram and [`Congestion::on_acks_processed`].
    window: u32,
    control: Control,
}

#[derive(Debug)]
enum Control {
    Disabled,
    Reno(CongestionWindow),
    /// Entered when a segment leaves; left when the connection is idle, or its round trip is short and
    /// nothing was lost.
    Model(Box<ModelControl>),
    /// A model without state, which [`Congestion::begin_model`] makes: with nothing in flight, since
    /// after an idle time the path may be another one (RFC 5681 4.1), and on a path with a short round
    /// trip until something is lost.
    IdleModel(SlowStart),
}

/// Slow start (RFC 5681 3.1) in place of a model, which costs a tenth of what sending does where the
/// round trip is short: as long as nothing is lost, a larger window is no worse.
#[derive(Clone, Copy, Debug)]
struct SlowStart {
    /// Segments.
    window: u32,
}

impl SlowStart {
    /// Segments at the start: kcp-go's default window.
    const INITIAL: u32 = DEFAULT_WINDOW as u32;
    const NEW: Self = Self { window: Self::INITIAL };
}

/// A model, and the bytes in flight that it limits.
#[derive(Debug)]
struct ModelControl {
    rate: DeliveryRate,
    model: Model,
    messages: MessageWindow,
    /// RTT sample of the datagram that is processed, microseconds.
    rtt: Option<u64>,
}

/// What keeps more from leaving though the path could carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Nothing is written.
    Application,
    /// Either the send window or the peer's window is full.
    Window,
}

/// Which transmission of a segment leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentAs {
    New,
    /// The transmission before it was found lost, by the RTO or by acknowledgements.
    Retransmission {
        by_timeout: bool,
    },
    /// Another copy of a retransmission.
    RedundantCopy,
}

impl Control {
    fn model(segment: u64, rate: DeliveryRate) -> Self {
        let (model, messages) = (Model::new(segment), MessageWindow::default());
        Self::Model(Box::new(ModelControl { rate, model, messages, rtt: None }))
    }

    fn window(&self) -> u32 {
        match self {
            Self::Disabled => u32::MAX,
            Self::IdleModel(slow_start) => slow_start.window,
            Self::Reno(window) => window.window(),
            Self::Model(control) if control.is_open() => u32::MAX,
            Self::Model(_) => 0,
        }
    }
}

impl ModelControl {
    /// Whether another segment may leave.
    #[inline]
    fn is_open(&self) -> bool {
        self.rate.in_flight() < self.window()
    }

    #[inline]
    fn window(&self) -> u64 {
        self.model.window().max(self.messages.window)
    }
}

/// What a flow may have in flight whose application writes less than the path carries. A radio link, or its
/// return path, stops for a moment and then delivers everything. A sender that waits for ACKs meanwhile loses that
/// time. So the flow goes on, with at most what it writes in [`Self::WITHOUT_ACKS`].
#[derive(Clone, Copy, Debug, Default)]
struct MessageWindow {
    /// Bytes.
    window: u64,
    /// Bytes that left while nothing waited, in this second and in the one before.
    written: [u64; 2],
    /// When this second began.
    since: Micros,
    /// Bytes that left since nothing waited, and when the first of them did.
    pending: u64,
    pending_since: Micros,
    /// When nothing waited last.
    limited_at: Option<Micros>,
}

impl MessageWindow {
    /// How long ACKs may be late until messages wait, seconds. After as long a flow that always has data is no
    /// flow of messages.
    const WITHOUT_ACKS: u64 = 3;
    /// Most bytes, whatever is written.
    const MAX: u64 = 512 * 1024;

    /// `bytes` leave for the first time.
    fn on_sent(&mut self, now: Micros, bytes: u32, is_limited: bool, overflows: bool) {
        if overflows {
            *self = Self::default();
            return;
        }
        if self.pending == 0 {
            self.pending_since = now;
        }
        self.pending += u64::from(bytes);
        if is_limited {
            // What takes longer to leave is bulk.
            if now.since(self.pending_since) > SECOND {
                self.pending = 0;
            }
            if now.since(self.since) > SECOND {
                let recent = now.since(self.since) <= 2 * SECOND;
                self.written = [0, if recent { self.written[0] } else { 0 }];
                self.since = now;
            }
            self.written[0] += std::mem::take(&mut self.pending);
            self.limited_at = Some(now);
        }
        let is_recent = |at| now.since(at) <= Self::WITHOUT_ACKS * SECOND;
        self.window = if self.limited_at.is_some_and(is_recent) {
            let written = self.written[0].max(self.written[1]);
            (written * Self::WITHOUT_ACKS).min(Self::MAX)
        } else {
            0
        };
    }
}

impl Congestion {
    /// No congestion control; [`Self::set_mode`] starts another one.
    pub(crate) fn disabled() -> Self {
        Self { window: u32::MAX, control: Control::Disabled }
    }

    /// The mode in use.
    pub(crate) fn mode(&self) -> CongestionControl {
        match self.control {
            Control::Disabled => CongestionControl::Disabled,
            Control::Reno(_) => CongestionControl::Reno,
            Control::Model(_) | Control::IdleModel(_) => CongestionControl::Model,
        }
    }

    /// Whether a model has no state.
    #[inline]
    pub(crate) fn is_model_suspended(&self) -> bool {
        matches!(self.control, Control::IdleModel(_))
    }

    /// The state of a model begins. `segment`: bytes of a full segment, `in_flight`: those of each
    /// from SND.UNA on, as in [`Self::set_mode`]; `initial_rate`: configured, bytes per second.
    pub(crate) fn begin_model(
        &mut self,
        segment: u64,
        in_flight: impl Iterator<Item = u32>,
        initial_rate: Option<NonZeroU64>,
    ) {
        self.change(|control| *control = Control::model(segment, DeliveryRate::new(in_flight)));
        if let Some(rate) = initial_rate {
            self.change_model(|control| control.model.set_initial_rate(rate.get()));
        }
    }

    /// Frees the state of a model: slow start goes on with `window` segments, or with its first window.
    fn suspend_with(&mut self, window: u32) {
        let window = window.max(SlowStart::INITIAL);
        self.change(|control| *control = Control::IdleModel(SlowStart { window }));
    }

    /// A segment leaves for the first time on a path with a short round trip. Frees the state of a model
    /// that has found no loss, with `in_flight` segments. Returns whether there is none.
    #[inline]
    pub(crate) fn suspend_on_short_path(&mut self, in_flight: u32) -> bool {
        match &self.control {
            Control::IdleModel(_) => return true,
            Control::Model(control) if !control.model.has_lost() => {}
            _ => return false,
        }
        self.suspend_with(in_flight);
        true
    }

    /// `count` segments were acknowledged for the first time.
    #[inline]
    pub(crate) fn on_newly_acked(&mut self, count: u32) {
        if let Control::IdleModel(SlowStart { window }) = &mut self.control
            && *window < u32::from(u16::MAX)
        {
            *window = window.saturating_add(count);
            self.window = *window;
        }
    }

    /// Starts `mode` afresh. `una` is SND.UNA, `segment` the bytes of a full segment, `in_flight` the
    /// bytes of each from SND.UNA on, zero for those that are acknowledged.
    pub(crate) fn set_mode(
        &mut self,
        mode: CongestionControl,
        (una, segment): (Sn, u64),
        in_flight: impl Iterator<Item = u32>,
    ) {
        self.control = match mode {
            CongestionControl::Disabled => Control::Disabled,
            CongestionControl::Reno => {
                Control::Reno(CongestionWindow::with_in_flight(una, in_flight.count()))
            }
            CongestionControl::Model => {
                let rate = DeliveryRate::new(in_flight);
                if rate.is_empty() {
                    Control::IdleModel(SlowStart::NEW)
                } else {
                    Control::model(segment, rate)
                }
            }
        };
        self.window = self.control.window();
    }

    /// Segments that may be in flight; `u32::MAX` is no limit.
    #[inline]
    pub(crate) fn window(&self) -> u32 {
        self.window
    }

    /// The only place that changes a control, but for single acknowledgements, and keeps `window` true.
    #[inline]
    fn change(&mut self, change: impl FnOnce(&mut Control)) {
        change(&mut self.control);
        self.window = self.control.window();
    }

    /// Changes KCP's congestion window, if that is in use.
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

    #[inline]
    fn change_model(&mut self, change: impl FnOnce(&mut ModelControl)) {
        if let Control::Model(_) = &self.control {
            self.change(|control| {
                if let Control::Model(model) = control {
                    change(model);
                }
            });
        }
    }

    /// Whether a model limits rate and window.
    #[inline]
    pub(crate) fn is_model(&self) -> bool {
        matches!(self.control, Control::Model(_) | Control::IdleModel(_))
    }

    /// Whether a model takes each segment as a sample of the delivery rate.
    #[inline]
    pub(crate) fn samples_rate(&self) -> bool {
        matches!(self.control, Control::Model(_))
    }

    /// Whether a model has seen that a queue overflows.
    #[inline]
    pub(crate) fn overflows(&self) -> bool {
        matches!(&self.control, Control::Model(control) if control.model.overflows())
    }

    /// Many segments in a row were lost.
    pub(crate) fn on_burst_lost(&mut self, now: Micros) {
        if let Control::Model(control) = &mut self.control {
            control.model.on_burst_lost(now);
        }
    }

    /// Whether KCP's congestion window limits sending (kcp-go `nc` 0).
    pub(crate) fn is_reno(&self) -> bool {
        matches!(self.control, Control::Reno(_))
    }

    /// Segment `index` leaves, `bytes` with its header. `limit`: nothing more may leave
    /// for now, for another reason than the model's. With a model returns its pacing.
    pub(crate) fn on_sent(
        &mut self,
        now: Micros,
        (index, bytes): (usize, u32),
        sent_as: SentAs,
        limit: Option<Limit>,
    ) -> Option<Pacing> {
        let mut pacing = None;
        self.change_model(|control| {
            let ModelControl { rate, model, messages, .. } = control;
            let in_flight = rate.in_flight();
            match sent_as {
                SentAs::New => rate.on_sent(now, bytes),
                SentAs::Retransmission { by_timeout } => {
                    model.on_lost(&Lost { now, sent_at: rate.sent_at(index), by_timeout });
                    rate.on_retransmitted(now, index, bytes);
                }
                SentAs::RedundantCopy => {}
            }
            if sent_as != SentAs::RedundantCopy {
                model.on_sent(now, in_flight);
            }
            if sent_as == SentAs::New {
                let is_limited = limit == Some(Limit::Application);
                messages.on_sent(now, bytes, is_limited, model.overflows());
            }
            let is_open = control.is_open();
            let ModelControl { rate, model, .. } = control;
            if is_open {
                match limit {
                    Some(Limit::Application) => rate.on_app_limited(),
                    Some(Limit::Window) => rate.on_window_limited(),
                    None => {}
                }
            }
            model.set_window_limited(rate.is_window_limited());
            pacing = model.pacing();
        });
        pacing
    }

    /// Segment `index` was acknowledged for the first time. `is_latest`: what arrived is
    /// its latest transmission, as far as is known.
    #[inline]
    pub(crate) fn on_acked(&mut self, now: Micros, index: usize, is_latest: bool) {
        if let Control::Model(control) = &mut self.control {
            control.rate.on_acked(now, index, is_latest);
        }
    }

    /// The only transmission of segment `index` was lost, and repair symbols recovered the
    /// segment: KCP's congestion window is changed by [`Self::change_reno`].
    pub(crate) fn on_hidden_loss(&mut self, now: Micros, index: usize) {
        self.change_model(|ModelControl { rate, model, .. }| {
            model.on_lost(&Lost { now, sent_at: rate.sent_at(index), by_timeout: false });
        });
    }

    /// With a model its pacing.
    pub(crate) fn pacing(&self) -> Option<Pacing> {
        match &self.control {
            Control::Disabled | Control::Reno(_) | Control::IdleModel(_) => None,
            Control::Model(control) => control.model.pacing(),
        }
    }

    /// SND.UNA passes a segment, which is proved to have arrived.
    #[inline]
    pub(crate) fn on_una(&mut self, now: Micros) {
        if let Control::Model(control) = &mut self.control {
            control.rate.on_una(now);
        }
    }

    /// The first `count` segments are in flight no longer, though nothing proves that they have arrived.
    #[inline]
    pub(crate) fn write_off(&mut self, count: u32) {
        if count > 0 {
            self.change_model(|control| control.rate.write_off(count));
        }
    }

    /// An RTT sample, microseconds.
    #[inline]
    pub(crate) fn on_rtt(&mut self, rtt: u64) {
        if let Control::Model(control) = &mut self.control {
            control.rtt = Some(rtt);
        }
    }

    /// The acknowledgements of a datagram were processed.
    #[inline]
    pub(crate) fn on_acks_processed(&mut self, now: Micros, longest_wait: u64) {
        self.change_model(|control| control.on_acks_processed(now, longest_wait));
    }

    /// A retransmission was spurious.
    pub(crate) fn on_spurious_retransmit(&mut self) {
        self.change_model(|control| control.model.on_spurious_loss());
    }

    /// Bytes of a full segment, header included.
    pub(crate) fn set_segment(&mut self, segment: u64) {
        self.change_model(|control| control.model.set_segment(segment));
    }

    /// Whether [`Self::release_memory`] would free a model.
    pub(crate) fn has_reclaimable_memory(&self) -> bool {
        matches!(&self.control, Control::Model(control) if control.rate.is_empty())
    }

    /// Frees what an idle connection does not need.
    pub(crate) fn release_memory(&mut self) {
        if self.has_reclaimable_memory() || self.is_model_suspended() {
            self.suspend_with(0);
        }
    }

    /// For statistics: the window in full segments of `segment` bytes, and the rates at which
    /// segments leave and arrive, bytes per second, zero while unknown.
    pub(crate) fn estimates(&self, segment: u64) -> (u32, u64, u64) {
        match &self.control {
            Control::Disabled | Control::Reno(_) | Control::IdleModel(_) => (self.window, 0, 0),
            Control::Model(control) => {
                let window = control.model.window() / segment.max(1);
                let rate = control.model.pacing().map_or(0, |pacing| pacing.rate.get());
                let window = u32::try_from(window).unwrap_or(u32::MAX);
                (window, rate, control.model.delivery_rate())
            }
        }
    }

    #[cfg(any(test, feature = "_testkit"))]
    pub(crate) fn check_invariants(&self, unacked: impl Iterator<Item = bool>) {
        assert_eq!(self.window, self.control.window());
        if let Control::Model(control) = &self.control {
            control.rate.check_invariants(unacked);
            assert!(control.rate.in_flight() > 0 || control.is_open(), "nothing would open it");
        }
    }
}

impl ModelControl {
    fn on_acks_processed(&mut self, now: Micros, longest_wait: u64) {
        let (batch, sample) = self.rate.take_batch(now, self.model.min_rtt());
        let rtt = self.rtt.take();
        if batch.segments == 0 && rtt.is_none() {
            return;
        }
        self.model.on_acked(&Acked {
            now,
            segments: batch.segments,
            bytes: batch.bytes,
            delivered: self.rate.delivered(),
            in_flight: self.rate.in_flight(),
            rtt,
            longest_wait,
            rate: sample,
        });
        self.model.set_window_limited(self.rate.is_window_limited());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLIS: u64 = 1_000;

    #[test]
    fn window_of_messages_is_what_leaves_in_three_seconds() {
        let mut messages = MessageWindow::default();
        // 1,000 bytes each 10 ms.
        (0..300).for_each(|i| messages.on_sent(Micros(i * 10 * MILLIS), 1_000, true, false));
        assert!((300_000..=306_000).contains(&messages.window), "{}", messages.window);
        messages.on_sent(Micros(5_900 * MILLIS), 1_000, false, false);
        assert!(messages.window > 0);
        messages.on_sent(Micros(6_000 * MILLIS), 1_000, false, false);
        assert_eq!(messages.window, 0, "data has always waited for 3 s");
    }

    #[test]
    fn window_of_messages_ends_when_a_queue_overflows() {
        let mut messages = MessageWindow::default();
        (0..100).for_each(|i| messages.on_sent(Micros(i * 10 * MILLIS), 1_000, true, false));
        messages.on_sent(Micros(1_000 * MILLIS), 1_000, true, true);
        assert_eq!(messages.window, 0);
        messages.on_sent(Micros(1_010 * MILLIS), 1_000, true, false);
        assert_eq!(messages.window, 3_000, "what left before counts no longer");
    }

    #[test]
    fn bulk_that_takes_longer_than_a_second_is_no_message() {
        let mut messages = MessageWindow::default();
        (0..4_000).for_each(|ms| messages.on_sent(Micros(ms * MILLIS), 1_250, false, false));
        messages.on_sent(Micros(4_000 * MILLIS), 1_250, true, false);
        assert_eq!(messages.window, 0);
    }
}
