//! Datagrams in.

use std::time::Instant;

use super::{Kcp, PacketType};
use crate::core::clock::Micros;
use crate::core::recv::pending_acks::Ack;
use crate::core::recv::receiver::RecvOutcome;
use crate::core::segment::{self, Command, Header, InputError, Segments};
use crate::core::send::sender::{AckOutcome, UnaOutcome};
use crate::core::seq::Sn;

/// How long only late datagrams must come before the peer is asked whether it still has the state
/// of this conversation, microseconds.
const STALE_PEER_TIMEOUT: u64 = 1_000_000;

/// Further behind than this is no repetition: no window is larger.
const MAX_WINDOW: i32 = u16::MAX as i32;

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
        origin: PacketType,
    ) -> Result<(), InputError> {
        segment::validate(datagram, self.conv)?;
        let now = self.clock.tick(now);
        self.stats.received_datagrams += 1;
        self.stats.received_datagram_bytes += datagram.len() as u64;
        if origin == PacketType::Regular {
            self.keepalive.on_received(now);
        }
        self.input_acks(now, datagram, origin);
        let mut consistent = false;
        for (header, payload) in Segments::new(datagram) {
            let una = self.input_una(now, &header, origin);
            consistent |= matches!(una, UnaOutcome::Current { .. });
            let empty = header.command == Command::Push && payload.is_empty();
            if origin == PacketType::Regular && una != UnaOutcome::Invalid && !empty {
                // A probe may still be meant for an earlier conversation of that name.
                self.on_opened(now);
            }
            let far_behind = self.recv.nxt().since(header.sn) > MAX_WINDOW;
            self.close_state.on_capability(&header, empty && far_behind);
            match header.command {
                Command::Push => self.input_push(now, &header, payload, origin),
                Command::WindowProbe => self.window_update_pending = true,
                Command::Ack | Command::WindowUpdate => {}
                Command::Control => self.input_notice(now, &header, una),
            }
        }
        if origin == PacketType::Regular {
            self.check_stale_peer(now, consistent);
        }
        self.update_timers(now);
        Ok(())
    }

    fn input_acks(&mut self, now: Micros, datagram: &[u8], origin: PacketType) {
        let wire = origin == PacketType::Regular;
        let acks = Segments::new(datagram).map(|(header, _)| header);
        let mut acks = acks.filter(|header| header.command == Command::Ack).peekable();
        while let Some(header) = acks.next() {
            let (sn, ts) = (header.sn, header.ts);
            // The last one is of what arrived last; the others may have waited, or be told again.
            let sample = wire && acks.peek().is_none();
            match self.send.on_ack(now, &self.clock, (sn, ts), sample, &mut self.stats) {
                AckOutcome::Valid => {
                    self.keepalive.on_validated();
                    self.restart_check = None;
                    self.send.on_peer_activity(now);
                    continue;
                }
                AckOutcome::Stale => continue,
                AckOutcome::Invalid => {}
            }
            let answer =
                if wire { self.keepalive.on_answer(now, (sn, ts), header.una) } else { None };
            match answer {
                Some(answer) => {
                    self.send.on_peer_activity(now);
                    // All that one who only receives learns of the path.
                    if let Some(rtt) = answer.rtt.filter(|_| sample) {
                        self.send.rtt.on_sample(now, rtt);
                    }
                    // It is there, it answers.
                    if !answer.state_lost && header.una != Sn(0) {
                        self.restart_check = None;
                    }
                    self.on_suspect_answer(answer.state_lost);
                }
                None if wire && self.on_path_answer(now, &header) => {}
                None => self.stats.invalid_acks += 1,
            }
        }
    }

    fn input_una(&mut self, now: Micros, header: &Header, origin: PacketType) -> UnaOutcome {
        let una = self.send.on_una(now, &self.clock, header.una);
        match una {
            UnaOutcome::Current { newly_acked } => {
                if newly_acked > 0 {
                    self.send.on_peer_activity(now);
                }
                if origin == PacketType::Regular {
                    let srtt = self.send.rtt.srtt().unwrap_or(0);
                    self.send.remote.on_window(now, header.una, header.wnd, srtt);
                }
            }
            UnaOutcome::Stale => self.stats.stale_una_datagrams += 1,
            UnaOutcome::Invalid => self.stats.invalid_una += 1,
        }
        una
    }

    fn input_push(&mut self, now: Micros, header: &Header, payload: &[u8], origin: PacketType) {
        // What is told about a padded probe means nothing to whoever sent it.
        let padding = !payload.is_empty() && self.recv.nxt().since(header.sn) > MAX_WINDOW;
        if origin == PacketType::Regular && !padding {
            self.close_state.on_push(header.sn, header.ts);
        }
        if self.close_reason.is_some() {
            return;
        }
        if self.close_state.is_beyond_end(header.sn, self.recv.nxt()) {
            self.stats.out_of_window_segments += 1;
            return;
        }
        if !payload.is_empty() && self.close_state.refuses(header.sn, self.recv.nxt()) {
            self.stats.out_of_window_segments += 1;
            return;
        }
        let ack = Ack { sn: header.sn, ts: header.ts };
        match self.recv.input(header.sn, header.frg, payload) {
            Ok(RecvOutcome::InOrder) => {
                self.restart_check = None;
                if self.recv.autotune_window(now, &self.send.rtt) {
                    // Who only receives has to ask for it.
                    self.keepalive.request_ping(now);
                }
                self.close_state.on_advance(self.recv.nxt());
                self.acks.on_in_order(now, ack);
                self.stats.received_segments += 1;
                self.stats.received_bytes += payload.len() as u64;
            }
            Ok(RecvOutcome::OutOfOrder) => {
                self.acks.on_out_of_order(now, self.recv.nxt(), ack, payload.len());
                self.stats.received_segments += 1;
                self.stats.received_bytes += payload.len() as u64;
            }
            Ok(RecvOutcome::OutOfOrderDuplicate) => {
                // Its acknowledgement was lost: each such number is told again, not just the last.
                self.acks.on_out_of_order(now, self.recv.nxt(), ack, payload.len());
                self.stats.duplicate_segments += 1;
            }
            Ok(RecvOutcome::Duplicate) => {
                self.keepalive.on_duplicate_received(now);
                self.acks.on_duplicate(now, ack);
                self.stats.duplicate_segments += 1;
            }
            Ok(RecvOutcome::OutOfWindow) => self.stats.out_of_window_segments += 1,
            Err(error) => self.close_reason = Some(error),
        }
    }

    /// A late datagram is nothing. But where nothing else comes for a while the peer may have
    /// forgotten what it acknowledged: it is asked, and its answer decides, so old datagrams that
    /// somebody repeats cannot end a conversation.
    fn check_stale_peer(&mut self, now: Micros, consistent: bool) {
        if consistent {
            self.only_stale_since = None;
            return;
        }
        let since = *self.only_stale_since.get_or_insert(now);
        if now.since(since) >= STALE_PEER_TIMEOUT.max(3 * self.send.rtt.rto()) {
            self.keepalive.request_ping(now);
        }
    }

    /// Re-derives what depends on both directions: whether the peer owes an answer, and whether
    /// its window needs probing.
    #[inline]
    pub(super) fn update_timers(&mut self, now: Micros) {
        if self.close_state.needs_capability_ping() && self.send.is_drained() && self.has_started()
        {
            // Its answer shows whether it can be told of the end.
            self.keepalive.insist(now);
        }
        self.keepalive.watch(now, self.owes_answer());
        self.send.remote.update_persist_timer(now, self.send.is_window_blocked());
    }
}
