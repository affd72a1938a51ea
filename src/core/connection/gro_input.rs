//! Input of a GRO batch (UDP_GRO): datagrams that continue the previous one are processed together.
//! The counterpart of [`Kcp::poll_transmit_more`].

use std::time::Instant;

use super::{Kcp, PacketType};
use crate::config::Mode;
use crate::core::recv::pending_acks::Ack;
use crate::core::recv::receiver::RecvOutcome;
use crate::core::segment::{Command, HEADER_LEN, Header};
use crate::core::send::UnaOutcome;
use crate::core::seq::Sn;

impl Kcp {
    /// Whether [`Self::input_more`] may take datagrams after `previous`.
    pub(crate) fn may_input_more(&self, previous: &[u8]) -> bool {
        lone_push(previous).is_some_and(|(header, _)| self.may_continue(&header))
    }

    /// Processes the first datagrams of `rest`, while they continue `previous`: each is one PUSH
    /// with the next number in order, and differs from `previous` in number, timestamp and payload
    /// only. `previous` itself is not processed. Returns how many were; 0 while anything but data
    /// in order may be going on. `rest` is advanced at most one datagram further.
    ///
    /// The state afterwards is the same as with [`Kcp::input`] for each
    /// (`core/tests/gro_batches.rs`). Work that depends only on the equal fields is done once:
    /// `una`, the peer's window, timers. Reflected segments of our own are not processed.
    pub(crate) fn input_more<'a>(
        &mut self,
        now: Instant,
        previous: &[u8],
        rest: impl Iterator<Item = &'a [u8]>,
    ) -> usize {
        let Some((first, _)) = lone_push(previous).filter(|(header, _)| self.may_continue(header))
        else {
            return 0;
        };
        let now = self.clock.tick(now);
        let (mut header, has_started) = (first, self.has_started());
        let (had_gap, rtt) = (self.recv.has_gap(), self.send.rtt.srtt());
        let (mut bytes, mut payload_bytes, mut segments) = (0, 0, 0_usize);
        for datagram in rest {
            let Some((next, payload)) = lone_push(datagram) else { break };
            let (ts, sn, len) = (next.ts, header.sn.advance(1), next.len);
            // Number 0 may be an initial segment, after the sequence has wrapped.
            if next != (Header { ts, sn, len, ..header })
                || sn == Sn(0)
                || (has_started && self.send.has_sent(&self.clock, sn, ts))
                || !matches!(self.recv.input(sn, next.frg, payload), Ok(RecvOutcome::InOrder))
            {
                break;
            }
            if segments == 0 {
                // A round trip ends at most once per instant, with the first segment.
                self.autotune_recv_window(now);
            }
            header = next;
            segments += 1;
            let ack = Ack { sn, ts };
            self.acks.on_in_order(now, ack, payload.len(), rtt);
            bytes += datagram.len();
            payload_bytes += payload.len();
        }
        if segments == 0 {
            return 0;
        }
        self.autotune_recv_window(now);
        self.stats.received_datagrams += segments as u64;
        self.stats.received_datagram_bytes += bytes as u64;
        self.stats.received_segments += segments as u64;
        self.stats.received_bytes += payload_bytes as u64;
        self.close_state.on_push(header.sn, header.ts);
        self.peer.on_state_shown();
        if had_gap {
            self.acks.forbid_delay();
        }
        let una = self.input_una(now, &header, PacketType::Regular);
        let is_current = matches!(una, UnaOutcome::Current { .. });
        self.on_segments_processed(now, bytes, PacketType::Regular, (true, is_current));
        segments
    }

    /// Whether segments that continue this header are plain data in order: every step of
    /// [`Kcp::input`] that [`Self::input_more`] skips, or does once, would have no further effect.
    fn may_continue(&self, header: &Header) -> bool {
        self.mode == Mode::Stream
            && self.close_reason.is_none()
            && self.keepalive.is_validated()
            && self.close_state.is_receiving()
            && !self.recv.has_repair_state()
            && header.sn.advance(1) == self.recv.nxt()
            && header.una == self.send.una()
            // The window does not shrink.
            && self.send.remote.available(header.una) <= u32::from(header.wnd)
    }
}

/// The PUSH, if `datagram` is one with payload and nothing else.
#[inline]
fn lone_push(datagram: &[u8]) -> Option<(Header, &[u8])> {
    let header = Header::parse(datagram).ok()?;
    let payload = datagram.get(HEADER_LEN..)?;
    let is_alone = header.command == Command::Push
        && !payload.is_empty()
        && u64::from(header.len) == payload.len() as u64;
    is_alone.then_some((header, payload))
}
