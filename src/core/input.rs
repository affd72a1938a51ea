//! Datagrams in.

use std::time::Instant;

use super::ack::Ack;
use super::clock::Time;
use super::recv::Arrival;
use super::segment::{self, Command, Header, InputError, Segments};
use super::send::{Evidence, Una};
use super::seq::Sn;
use super::{Kcp, Origin};

/// How long only late datagrams must come before the peer is asked whether it still has the state
/// of this conversation, microseconds.
const LATE_FOR: u64 = 1_000_000;

/// Further behind than this is no repetition: no window is larger.
const FAR: i32 = u16::MAX as i32;

impl Kcp {
    /// Takes one datagram of the peer.
    ///
    /// The datagram is walked completely before anything is applied. Acknowledgements are matched
    /// against what was in flight before any cumulative one of the same datagram, and count only
    /// if their time stamp is one of a transmission of that segment. Windows are taken only from
    /// datagrams with the newest cumulative acknowledgement.
    ///
    /// # Errors
    ///
    /// When a segment is malformed or of another conversation; the datagram had no effect then.
    pub fn input(
        &mut self,
        now: Instant,
        datagram: &[u8],
        origin: Origin,
    ) -> Result<(), InputError> {
        segment::check(datagram, self.conv)?;
        let now = self.clock.pass(now);
        self.stats.received_datagrams += 1;
        self.stats.wire_bytes_in += datagram.len() as u64;
        if origin == Origin::Wire {
            self.live.on_heard(now);
        }
        self.input_acks(now, datagram, origin);
        let mut consistent = false;
        for (header, payload) in Segments::new(datagram) {
            let una = self.input_una(now, &header, origin);
            consistent |= matches!(una, Una::Current { .. });
            let empty = header.command == Command::Push && payload.is_empty();
            if origin == Origin::Wire && una != Una::Impossible && !empty {
                // A probe may still be meant for an earlier conversation of that name.
                self.on_opened(now);
            }
            let far_behind = self.recv.nxt().since(header.sn) > FAR;
            self.ending.learn(&header, empty && far_behind);
            match header.command {
                Command::Push => self.input_push(now, &header, payload, origin),
                Command::WindowAsk => self.tell_window = true,
                Command::Ack | Command::WindowTell => {}
                Command::Control => self.input_notice(now, &header, una),
            }
        }
        if origin == Origin::Wire {
            self.judge(now, consistent);
        }
        self.watch(now);
        Ok(())
    }

    fn input_acks(&mut self, now: Time, datagram: &[u8], origin: Origin) {
        let wire = origin == Origin::Wire;
        let acks = Segments::new(datagram).map(|(header, _)| header);
        let mut acks = acks.filter(|header| header.command == Command::Ack).peekable();
        while let Some(header) = acks.next() {
            let (sn, ts) = (header.sn, header.ts);
            // The last one is of what arrived last; the others may have waited, or be told again.
            let sample = wire && acks.peek().is_none();
            match self.send.on_ack(now, &self.clock, (sn, ts), sample, &mut self.stats) {
                Evidence::Proof => {
                    self.live.on_proof();
                    self.suspicion = None;
                    self.send.on_heard(now);
                    continue;
                }
                Evidence::Stale => continue,
                Evidence::Invalid => {}
            }
            let answer = if wire { self.live.on_answer(now, (sn, ts), header.una) } else { None };
            match answer {
                Some(answer) => {
                    self.send.on_heard(now);
                    // All that one who only receives learns of the path.
                    if let Some(rtt) = answer.rtt.filter(|_| sample) {
                        self.send.rtt.sample(now, rtt);
                    }
                    // It is there, it answers.
                    if !answer.forgotten && header.una != Sn(0) {
                        self.suspicion = None;
                    }
                    self.on_suspect_answer(answer.forgotten);
                }
                None if wire && self.on_path_answer(now, &header) => {}
                None => self.stats.invalid_acks += 1,
            }
        }
    }

    fn input_una(&mut self, now: Time, header: &Header, origin: Origin) -> Una {
        let una = self.send.on_una(now, &self.clock, header.una);
        match una {
            Una::Current { released } => {
                if released > 0 {
                    self.send.on_heard(now);
                }
                if origin == Origin::Wire {
                    let srtt = self.send.rtt.srtt().unwrap_or(0);
                    self.send.remote.on_window(now, header.una, header.wnd, srtt);
                }
            }
            Una::Late => self.stats.late_datagrams += 1,
            Una::Impossible => self.stats.invalid_una += 1,
        }
        una
    }

    fn input_push(&mut self, now: Time, header: &Header, payload: &[u8], origin: Origin) {
        // What is told about a padded probe means nothing to whoever sent it.
        let padding = !payload.is_empty() && self.recv.nxt().since(header.sn) > FAR;
        if origin == Origin::Wire && !padding {
            self.ending.on_push(header.sn, header.ts);
        }
        if self.ended.is_some() {
            return;
        }
        if self.ending.is_beyond_end(header.sn, self.recv.nxt()) {
            self.stats.beyond_window_segments += 1;
            return;
        }
        if !payload.is_empty() && self.ending.refuses(header.sn, self.recv.nxt()) {
            self.stats.beyond_window_segments += 1;
            return;
        }
        let ack = Ack { sn: header.sn, ts: header.ts };
        match self.recv.input(header.sn, header.frg, payload) {
            Ok(Arrival::InOrder) => {
                self.suspicion = None;
                if self.recv.tune(now, &self.send.rtt) {
                    // Who only receives has to ask for it.
                    self.live.request_probe(now);
                }
                self.ending.on_advance(self.recv.nxt());
                self.acks.in_order(now, ack);
                self.stats.received_segments += 1;
                self.stats.received_bytes += payload.len() as u64;
            }
            Ok(Arrival::Ahead) => {
                self.acks.ahead(now, self.recv.nxt(), ack, payload.len());
                self.stats.received_segments += 1;
                self.stats.received_bytes += payload.len() as u64;
            }
            Ok(Arrival::AheadAgain) => {
                // Its acknowledgement was lost: each such number is told again, not just the last.
                self.acks.ahead(now, self.recv.nxt(), ack, payload.len());
                self.stats.duplicate_segments += 1;
            }
            Ok(Arrival::Repeated) => {
                self.live.on_repetition(now);
                self.acks.repeated(now, ack);
                self.stats.duplicate_segments += 1;
            }
            Ok(Arrival::Refused) => self.stats.beyond_window_segments += 1,
            Err(error) => self.ended = Some(error),
        }
    }

    /// A late datagram is nothing. But where nothing else comes for a while the peer may have
    /// forgotten what it acknowledged: it is asked, and its answer decides, so old datagrams that
    /// somebody repeats cannot end a conversation.
    fn judge(&mut self, now: Time, consistent: bool) {
        if consistent {
            self.late_since = None;
            return;
        }
        let since = *self.late_since.get_or_insert(now);
        if now.since(since) >= LATE_FOR.max(3 * self.send.rtt.rto()) {
            self.live.request_probe(now);
        }
    }

    /// Re-derives what depends on both directions: whether the peer owes an answer, and whether
    /// its window needs probing.
    #[inline]
    pub(super) fn watch(&mut self, now: Time) {
        if self.ending.is_curious() && self.send.is_drained() && self.has_started() {
            // Its answer shows whether it can be told of the end.
            self.live.insist(now);
        }
        self.live.watch(now, self.owes_answer());
        self.send.remote.watch(now, self.send.is_stalled());
    }
}
