//! The applications: streams of both sides, with the bytes that they write and read.

use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::settings::STREAMS;
use super::third_party::Power;
use super::world::{End, World, Written};
use crate::config::{Mode, Setting};
use crate::fuzz::Choices;
use crate::fuzz::wire::{CLIENT_SIDE, SERVER_SIDE};
use crate::stream::KcpStream;

/// How long after a client connected a recorded datagram and its retransmissions are known.
const KNOWN: Duration = Duration::from_secs(60);

impl World {
    pub(super) fn adopt(&mut self, side: usize, stream: KcpStream) {
        let conv = stream.conv();
        self.accepted += 1;
        if side == CLIENT_SIDE {
            // A configured conversation id is used again.
            self.readers.remove(&conv);
        }
        // An earlier stream of this id is dropped.
        self.leave(side, conv, 2);
        let end = End { stream, serial: self.accepted, written: 0, read: 0, closed: false };
        let written = Written { serial: end.serial, bytes: 0, closed: false, since: self.now };
        // A client that changes its address may have several at the server.
        self.written[side].entry(conv).or_default().push(written);
        self.ends[side].insert(conv, end);
    }

    pub(super) fn application(&mut self, choices: &mut Choices<'_>) {
        self.poll_calls();
        self.accept();
        let side = usize::from(choices.byte() & 1);
        let mut convs: Vec<u32> = self.ends[side].keys().copied().collect();
        convs.sort_unstable();
        if convs.is_empty() {
            return;
        }
        let conv = choices.pick(&convs);
        let Some(end) = self.ends[side].get_mut(&conv) else { return };
        self.laws.check_stats(&end.stream.stats());
        let mut cx = Context::from_waker(Waker::noop());
        match choices.byte() % 12 {
            0..=3 => {
                let len = usize::from(choices.byte()) * 20 + 1;
                if let Ok(taken) = end.stream.try_write(pattern(end.written, len)) {
                    end.written += taken;
                }
            }
            4..=6 => self.read(side, conv),
            7 => {
                drop(Pin::new(&mut end.stream).poll_shutdown(&mut cx));
                end.closed = true;
            }
            8 => drop(end.stream.datagrams().send(b"beside")),
            9 => while end.stream.datagrams().try_recv().is_ok() {},
            10 => self.leave(side, conv, choices.byte()),
            _ => match choices.byte() & 7 {
                0 if side == SERVER_SIDE => self.stop_listening(),
                1 if side == CLIENT_SIDE => self.stop_connecting(),
                _ => self.turn(side),
            },
        }
        self.note(side, conv);
    }

    /// Records the bytes that this end has written, for checks of the reader.
    pub(super) fn note(&mut self, side: usize, conv: u32) {
        if let Some(end) = self.ends[side].get(&conv)
            && let Some(all) = self.written[side].get_mut(&conv)
            && let Some(written) = all.iter_mut().find(|written| written.serial == end.serial)
        {
            (written.bytes, written.closed) = (end.written, end.closed);
        }
    }

    pub(super) fn leave(&mut self, side: usize, conv: u32, how: u8) {
        let Some(end) = self.ends[side].get_mut(&conv) else { return };
        end.closed |= how & 3 != 0;
        self.note(side, conv);
        let Some(end) = self.ends[side].remove(&conv) else { return };
        match how & 3 {
            0 => end.stream.abort(),
            1 => drop(end.stream.into_split()),
            _ => drop(end.stream),
        }
    }

    pub(super) fn accept(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut accepted = Vec::new();
        if let Some(listener) = &self.listener {
            while let Poll::Ready(Ok((stream, _))) = listener.poll_accept(&mut cx) {
                accepted.push(stream);
            }
            assert!(listener.stats().connections.current <= STREAMS as u64);
        }
        accepted.into_iter().for_each(|stream| self.adopt(SERVER_SIDE, stream));
    }

    fn read(&mut self, side: usize, conv: u32) {
        let Some(end) = self.ends[side].get_mut(&conv) else { return };
        let (peer, mut buffer) = (end.stream.peer_addr(), [0; 4_096]);
        loop {
            let mut buf = ReadBuf::new(&mut buffer);
            let mut cx = Context::from_waker(Waker::noop());
            let polled = Pin::new(&mut end.stream).poll_read(&mut cx, &mut buf);
            let Poll::Ready(Ok(())) = polled else { return };
            let got = buf.filled();
            if let Ok(peer) = peer {
                self.laws.on_read(side, peer, conv);
            }
            if !self.setup.honest {
                if got.is_empty() {
                    return;
                }
                continue;
            }
            // A connection that was not accepted has written nothing.
            let all = self.written[1 - side].get(&conv).map_or(&[][..], Vec::as_slice);
            if got.is_empty() {
                let ends = |written: &Written| written.closed && written.bytes == end.read;
                let unwritten = all.is_empty() && end.read == 0;
                assert!(unwritten || all.iter().any(ends), "a truncated stream ends with EOF");
                return;
            }
            let is_known = all.iter().any(|written| self.now < written.since + KNOWN);
            if self.setup.power == Power::OnPath && side == SERVER_SIDE && is_known {
                let reader = *self.readers.entry(conv).or_insert(end.serial);
                assert_eq!(reader, end.serial, "bytes of {conv:#x} are delivered twice");
            }
            assert!(got == pattern(end.read, got.len()), "other bytes than were written");
            end.read += got.len();
            let bytes = all.iter().map(|written| written.bytes).max();
            assert!(Some(end.read) <= bytes, "more bytes than were written");
        }
    }
}

impl World {
    /// An application changes a setting of its stream.
    pub(super) fn set(&mut self, choices: &mut Choices<'_>) {
        let side = usize::from(choices.byte() & 1);
        let mut convs: Vec<u32> = self.ends[side].keys().copied().collect();
        convs.sort_unstable();
        let Some(conv) = convs.get(usize::from(choices.byte()) % convs.len().max(1)) else {
            return;
        };
        let Some(end) = self.ends[side].get(conv) else { return };
        let setting = choices.setting(Mode::Stream, true);
        if let Setting::Duplicates(copies) = setting {
            self.laws.on_duplicates(side, copies);
        }
        change(end, setting);
        self.turn(side);
    }
}

/// Passes the setting to the method that applications call.
fn change(End { stream, .. }: &End, setting: Setting) {
    match setting {
        Setting::Windows { send, recv } => stream.set_windows(send, recv).expect("in range"),
        Setting::Timing(timing) => stream.set_timing(timing),
        Setting::CongestionControl(control) => stream.set_congestion_control(control),
        Setting::AckPolicy(policy) => stream.set_ack_policy(policy),
        Setting::WritePolicy(policy) => stream.set_write_policy(policy),
        // Refused below the overhead.
        Setting::Mtu(mtu) => drop(stream.set_mtu(mtu)),
        Setting::RateLimit(rate) => stream.set_rate_limit(rate),
        Setting::Duplicates(copies) => stream.set_duplicates(copies).expect("in range"),
        // Refused without FEC.
        Setting::Fec(fec) => drop(stream.set_fec(fec)),
        Setting::Keepalive(interval, idle) => {
            stream.set_keepalive(interval, idle).expect("in range");
        }
        Setting::DeadPeerTimeout(timeout) => {
            stream.set_dead_peer_timeout(timeout).expect("in range");
        }
        Setting::Datagrams => drop(stream.datagrams().send(b"asks")),
        Setting::NetworkChanged => stream.network_changed(),
    }
}

/// Written and read bytes repeat with this period.
const PERIOD: usize = 251;
/// A multiple of the pattern: the longest write, from any place of the period.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| (0..=250).cycle().take(8 << 10).collect());

/// `len` bytes of the pattern from `offset`.
fn pattern(offset: usize, len: usize) -> &'static [u8] {
    let start = offset % PERIOD;
    &PATTERN[start..start + len]
}
