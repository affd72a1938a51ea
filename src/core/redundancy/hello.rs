//! Capability negotiation between peers of this crate (HELLO), in the role of QUIC's transport parameters
//! (RFC 9000 7.4).
//!
//! HELLO is a CONTROL segment with the capabilities of its sender; HELLO-ACK answers with the capabilities of
//! the other side. A side that wants to use an extension sends HELLO to a peer that advertised CONTROL:
//! [`MAX_HELLOS`] times, and then at most once per [`RETRY_INTERVAL`] while it sends data. An older peer
//! ignores it. Only HELLO-ACK shows the peer's capabilities, since it echoes a random number. Neither ever
//! ends a connection.

use crate::core::clock::Micros;
use crate::core::close::{ControlSegment, RetransmitTimer};
use crate::core::segment::ControlType;
use crate::core::seq::{Sn, Ts};

/// Capability bit: its sender accepts repair symbols (`Command::Repair`).
pub(crate) const ACCEPTS_REPAIR: u32 = 1;
/// Capability bit: its sender accepts out-of-band datagrams, whether or not either side uses FEC.
pub(crate) const ACCEPTS_DATAGRAMS: u32 = 2;
/// Capability bit: its sender accepts further paths ([`ControlType::Path`]).
pub(crate) const ACCEPTS_PATHS: u32 = 4;
/// Capabilities of each side.
const CAPABILITIES: u32 = ACCEPTS_REPAIR | ACCEPTS_DATAGRAMS;

/// Transmissions of our HELLO in a row. With losses of 20 % in both directions, three would all fail for one
/// connection in twenty, eight for one in 3,500.
const MAX_HELLOS: u8 = 8;
/// Time from the last of these to the next one while data is sent, microseconds.
const RETRY_INTERVAL: u64 = 60_000_000;
/// Answers that may leave at once; one more is allowed per [`ANSWER_INTERVAL`].
const ANSWER_BURST: u8 = 3;
/// Microseconds.
const ANSWER_INTERVAL: u64 = 1_000_000;

/// State of our HELLO.
#[derive(Clone, Copy, Debug)]
enum Request {
    /// No extension is wanted. Entered at construction; left on [`Hello::start`].
    Idle,
    /// HELLO leaves once the peer is known to support CONTROL. Entered on [`Hello::start`]; left when HELLO
    /// leaves.
    Queued,
    /// HELLO has left `count` times in a row, at most [`MAX_HELLOS`]. Entered when it leaves; left on
    /// HELLO-ACK, or when the time for the last answer is over.
    Sent { ts: Ts, timer: RetransmitTimer, count: u8 },
    /// No answer came in time: another HELLO leaves per [`RETRY_INTERVAL`]. Entered from `Sent`; left when
    /// HELLO leaves or a HELLO-ACK arrives.
    Unanswered { ts: Ts, timer: RetransmitTimer },
    /// The peer's capabilities are known. Entered on HELLO-ACK, never left.
    Answered { capabilities: u32 },
}

/// Negotiation of one connection.
#[derive(Debug)]
pub(crate) struct Hello {
    /// Capabilities of this side.
    capabilities: Sn,
    request: Request,
    /// HELLO-ACK for the next datagram.
    answer: Option<ControlSegment>,
    answers_left: u8,
    /// When `answers_left` next grows.
    refill_at: Micros,
    /// Whether the peer has sent HELLO.
    peer_asked: bool,
    /// The application sends datagrams, which no ACK answers.
    wants_datagrams: bool,
    /// The peer's HELLO arrived after ours stayed unanswered, so one more of ours was due at once.
    asked_again: bool,
}

impl Hello {
    /// `accepts_paths`: this side accepts further paths.
    pub(crate) fn new(accepts_paths: bool) -> Self {
        Self {
            capabilities: Sn(CAPABILITIES | if accepts_paths { ACCEPTS_PATHS } else { 0 }),
            request: Request::Idle,
            answer: None,
            answers_left: ANSWER_BURST,
            refill_at: Micros(0),
            peer_asked: false,
            wants_datagrams: false,
            asked_again: false,
        }
    }

    /// This side accepts further paths.
    pub(crate) fn accept_paths(&mut self) {
        self.capabilities.0 |= ACCEPTS_PATHS;
    }

    /// Asks for the peer's capabilities, once.
    pub(crate) fn start(&mut self) {
        if let Request::Idle = self.request {
            self.request = Request::Queued;
        }
    }

    /// As [`Self::start`], for an application that sends datagrams: asks again even without stream data.
    pub(crate) fn start_for_datagrams(&mut self) {
        self.wants_datagrams = true;
        self.start();
    }

    /// Handles the end of the time for the last answer.
    pub(crate) fn handle_timeout(&mut self, now: Micros) {
        if let Request::Sent { ts, timer, count: MAX_HELLOS } = self.request
            && now >= timer.expires
        {
            self.request = Request::Unanswered { ts, timer };
        }
    }

    /// Whether the peer accepts repair symbols.
    pub(crate) fn peer_accepts_repair(&self) -> bool {
        self.peer_accepts(ACCEPTS_REPAIR) == Some(true)
    }

    /// Whether the peer, which supports CONTROL, is known not to accept repair symbols.
    pub(crate) fn peer_lacks_repair(&self) -> bool {
        self.peer_accepts(ACCEPTS_REPAIR) == Some(false)
    }

    /// Whether the peer accepts out-of-band datagrams; `None` while unknown.
    pub(crate) fn peer_accepts_datagrams(&self) -> Option<bool> {
        self.peer_accepts(ACCEPTS_DATAGRAMS)
    }

    /// Whether the peer accepts further paths; `None` while unknown.
    pub(crate) fn peer_accepts_paths(&self) -> Option<bool> {
        self.peer_accepts(ACCEPTS_PATHS)
    }

    /// Whether the peer has a capability; `None` while unknown. A peer that left [`MAX_HELLOS`] in a row
    /// unanswered has none.
    fn peer_accepts(&self, capability: u32) -> Option<bool> {
        match self.request {
            Request::Unanswered { .. } => Some(false),
            Request::Answered { capabilities } => Some(capabilities & capability != 0),
            Request::Idle | Request::Queued | Request::Sent { .. } => None,
        }
    }

    /// Whether the peer has sent a HELLO.
    pub(crate) fn peer_asked(&self) -> bool {
        self.peer_asked
    }

    /// When HELLO is retransmitted or given up.
    pub(crate) fn deadline(&self) -> Option<Micros> {
        match self.request {
            Request::Sent { timer, .. } => Some(timer.expires),
            _ => None,
        }
    }

    /// Whether an answer leaves with the next datagram.
    pub(crate) fn has_answer(&self) -> bool {
        self.answer.is_some()
    }

    /// The HELLO-ACK to send now, if one is due.
    pub(crate) fn poll_answer(&mut self) -> Option<ControlSegment> {
        self.answer.take()
    }

    /// Whether HELLO would leave at `now` to a peer that supports CONTROL. `sends_data`: data of ours is
    /// unacknowledged.
    pub(crate) fn is_due(&self, now: Micros, sends_data: bool) -> bool {
        match self.request {
            Request::Queued => true,
            Request::Sent { timer, count, .. } => count < MAX_HELLOS && now >= timer.expires,
            Request::Unanswered { timer, .. } => {
                (sends_data || self.wants_datagrams) && now.since(timer.expires) >= RETRY_INTERVAL
            }
            Request::Idle | Request::Answered { .. } => false,
        }
    }

    /// The HELLO to send now; call if [`Self::is_due`]. `rto` in microseconds; `random` draws a number.
    pub(crate) fn poll(
        &mut self,
        now: Micros,
        rto: u64,
        random: impl FnOnce() -> Ts,
    ) -> Option<ControlSegment> {
        let (ts, previous, count) = match self.request {
            Request::Idle | Request::Answered { .. } => return None,
            Request::Queued => (random(), None, 0),
            Request::Sent { ts, timer, count } => (ts, Some(timer), count),
            Request::Unanswered { ts, timer } => (ts, Some(timer), MAX_HELLOS - 1),
        };
        let timer = RetransmitTimer::restart(previous, now, rto);
        self.request = Request::Sent { ts, timer, count: (count + 1).min(MAX_HELLOS) };
        Some(ControlSegment { kind: ControlType::Hello, sn: self.capabilities, ts })
    }

    /// Whether a HELLO with this number is our own, reflected.
    pub(crate) fn is_own(&self, ts: Ts) -> bool {
        match self.request {
            Request::Sent { ts: own, .. } | Request::Unanswered { ts: own, .. } => own == ts,
            Request::Idle | Request::Queued | Request::Answered { .. } => false,
        }
    }

    /// A HELLO arrived. Each is answered at most once, and answers are limited to [`ANSWER_BURST`] plus one
    /// per [`ANSWER_INTERVAL`]. Returns whether it is valid.
    pub(crate) fn on_hello(&mut self, now: Micros, ts: Ts) -> bool {
        if self.is_own(ts) {
            return false;
        }
        self.peer_asked = true;
        if let Request::Unanswered { ts, timer } = self.request
            && !std::mem::replace(&mut self.asked_again, true)
        {
            self.request = Request::Sent { ts, timer, count: MAX_HELLOS - 1 };
        }
        if self.answers_left < ANSWER_BURST && now >= self.refill_at {
            self.answers_left += 1;
            self.refill_at = now.add_micros(ANSWER_INTERVAL);
        }
        if self.answers_left > 0 {
            if self.answers_left == ANSWER_BURST {
                self.refill_at = now.add_micros(ANSWER_INTERVAL);
            }
            self.answers_left -= u8::from(self.answer.is_none());
            let (kind, sn) = (ControlType::HelloAck, self.capabilities);
            self.answer = Some(ControlSegment { kind, sn, ts });
        }
        true
    }

    /// A HELLO-ACK arrived. Returns whether it answers our HELLO.
    pub(crate) fn on_hello_ack(&mut self, capabilities: u32, ts: Ts) -> bool {
        let valid = self.is_own(ts);
        if valid {
            self.request = Request::Answered { capabilities };
        }
        // A second answer to a retransmitted HELLO is harmless.
        valid || matches!(self.request, Request::Answered { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::close::MAX_CONTROL_INTERVAL;

    const RTO: u64 = 200_000;

    fn random() -> Ts {
        Ts(77)
    }

    /// Rules: W-55, W-104.
    #[test]
    fn hello_leaves_eight_times_at_most() {
        let mut hello = Hello::new(false);
        assert!(!hello.is_due(Micros(0), true) && hello.poll(Micros(0), RTO, random).is_none());
        hello.start();
        let (mut now, mut gaps) = (Micros(0), Vec::new());
        while hello.is_due(now, true) {
            let sent = hello.poll(now, RTO, random).unwrap();
            assert_eq!(
                sent,
                ControlSegment { kind: ControlType::Hello, sn: Sn(CAPABILITIES), ts: Ts(77) }
            );
            assert!(!hello.is_due(now, true));
            let Some(next) = hello.deadline() else { break };
            gaps.push(next.since(now));
            now = next;
        }
        assert_eq!(gaps[..4], [RTO, 2 * RTO, 4 * RTO, MAX_CONTROL_INTERVAL]);
        assert_eq!(
            gaps.len(),
            usize::from(MAX_HELLOS),
            "the last one is for an answer to the last HELLO"
        );
        hello.handle_timeout(Micros(now.0 - 1));
        assert_eq!(hello.peer_accepts_datagrams(), None);
        hello.handle_timeout(now);
        assert_eq!((hello.peer_accepts_datagrams(), hello.deadline()), (Some(false), None));
        assert!(!hello.is_due(Micros(u64::MAX / 2), false) && !hello.peer_accepts_repair());
        hello.start();
        assert!(!hello.is_due(Micros(u64::MAX / 2), false), "it was sent");
        // Later, one HELLO leaves per minute while data is sent, and one for the peer's first HELLO.
        now = now.add_micros(RETRY_INTERVAL - 1);
        assert!(!hello.is_due(now, true));
        now = now.add_micros(1);
        assert!(hello.is_due(now, true) && !hello.is_due(now, false));
        assert!(hello.poll(now, RTO, random).is_some() && !hello.is_due(now, true));
        now = now.add_micros(MAX_CONTROL_INTERVAL);
        hello.handle_timeout(now);
        assert!(hello.on_hello(now, Ts(5)) && hello.is_due(now, false));
        assert!(hello.poll(now, RTO, random).is_some());
        now = now.add_micros(MAX_CONTROL_INTERVAL);
        hello.handle_timeout(now);
        hello.start_for_datagrams();
        assert!(!hello.is_due(now, false) && hello.is_due(now.add_micros(RETRY_INTERVAL), false));
        assert!(hello.on_hello(now, Ts(6)) && !hello.is_due(now, true), "once");
    }

    /// Rules: W-100, W-102, W-103.
    #[test]
    fn hello_ack_counts_with_the_number_of_our_hello() {
        let mut hello = Hello::new(false);
        assert!(!hello.on_hello_ack(1, Ts(77)), "nothing was asked");
        hello.start();
        assert!(!hello.on_hello_ack(1, Ts(77)), "nothing has left");
        hello.poll(Micros(0), RTO, random).unwrap();
        assert!(!hello.on_hello_ack(1, Ts(78)) && !hello.peer_accepts_repair());
        assert!(hello.on_hello_ack(1, Ts(77)) && hello.peer_accepts_repair());
        assert!(hello.deadline().is_none() && !hello.is_due(Micros(MAX_CONTROL_INTERVAL), true));
        let mut other = Hello::new(false);
        other.start();
        other.poll(Micros(0), RTO, random).unwrap();
        assert!(other.on_hello_ack(!1, Ts(77)) && !other.peer_accepts_repair());
    }

    #[test]
    fn own_hello_that_comes_back_is_not_answered() {
        let mut hello = Hello::new(false);
        hello.start();
        hello.poll(Micros(0), RTO, random).unwrap();
        assert!(!hello.on_hello(Micros(1), Ts(77)) && !hello.peer_asked());
        assert!(hello.poll_answer().is_none());
    }

    /// Rule: W-105.
    #[test]
    fn hello_is_answered_once_and_three_times_at_once_at_most() {
        let mut hello = Hello::new(false);
        let mut answers = 0;
        for i in 0..1_000_u32 {
            // One HELLO every 10 ms for ten seconds.
            let now = Micros(u64::from(i) * 10_000);
            assert!(hello.on_hello(now, Ts(i)) && hello.peer_asked());
            if let Some(answer) = hello.poll_answer() {
                assert_eq!((answer.kind, answer.ts), (ControlType::HelloAck, Ts(i)));
                answers += 1;
            }
            assert!(!hello.has_answer());
        }
        assert_eq!(answers, 3 + 9);
    }
}
